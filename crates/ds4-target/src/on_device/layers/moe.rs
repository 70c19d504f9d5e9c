//! Mixture of experts: routes, units of work, the routed and the shared expert. Their sum is part of what follows
//! (`hc_post`).

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::experts::{self, Experts};
use ds4_kernels::launch::tiled::{Stack, Work};
use ds4_kernels::launch::{grouped, route};

use super::Pass;
use crate::on_device::arena::Slot;
use crate::on_device::products::{Input, Rows, Units};
use crate::on_device::weights::{Matrix, Moe, Routing};

/// Most tokens whose routed and shared experts are in one launch: rows of the shared one are read again for every
/// [`experts::WIDE`] of them.
const TOGETHER: usize = 8;

/// An expert's first half: matrices, clamp, weights of its slots.
struct Half<'a> {
    gate: &'a Matrix,
    up: &'a Matrix,
    limit: f32,
    weights: Option<Slot>,
    /// Whether the next matrix takes f32.
    floats: bool,
}

/// Tokens from which on experts' weights take the way through shared memory: the kernels around those of fewer lose more by the
/// smaller first-level cache than it gains (`benches/records/2026-12-01-flash-h200-7.md`).
const STAGED: usize = 3;

impl<R: Driver> Pass<'_, R> {
    /// The sublayer of layer `at`: `h` normed input; writes `block` (the shared expert) and `y` (slots of the routed ones).
    pub(super) fn experts(&mut self, at: usize, w: &Moe, h: &mut Input) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let units = self.route(at, w, h)?;
        if let Some(stacks) =
            together(w).filter(|_| n <= TOGETHER && units.work.wide <= experts::WIDE)
        {
            return self.few_tokens(w, h, &stacks, &units);
        }
        let plain = Units {
            work: Work::plain(n),
            ..units
        };
        let half = Half {
            gate: &w.shared_gate,
            up: &w.shared_up,
            limit: w.clamp_shared,
            weights: None,
            floats: w.shared_down.tiles.is_none(),
        };
        let mut act = self.half(&half, h, &plain, s.shared)?;
        self.gpu.product(&w.shared_down, &mut act, s.block)?;
        let slots = n * m.n_used;
        let half = Half {
            gate: &w.gate,
            up: &w.up,
            limit: w.clamp_routed,
            weights: Some(s.weights.rows(0, slots, 4)),
            floats: false,
        };
        let mut act = self.half(&half, h, &units, s.act)?;
        let one = Units {
            work: Work {
                per: 1,
                ..units.work
            },
            ..units
        };
        let y = s.y.rows(0, slots, 4 * m.n_embd);
        match &w.down.tiles {
            Some(stack) => self.gpu.stacked(&w.down, stack, &mut act, &one, y),
            None => Err(floats(&w.down)),
        }
    }

    /// The experts of a few tokens: routed and shared ones in one launch each way. `stacks`: of gate and up, and of
    /// down; routed and shared.
    fn few_tokens(
        &mut self,
        w: &Moe,
        h: &mut Input,
        stacks: &[[Stack; 2]; 2],
        units: &Units,
    ) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let slots = n * m.n_used;
        let weights = s.weights.rows(0, slots, 4);
        let (act, shared) = (s.act.part(0, slots), s.shared.part(0, n));
        h.quantise(self.gpu)?;
        let shared_reads = [&w.shared_gate, &w.shared_up, &w.shared_down];
        self.gpu.read += shared_reads.map(|w| w.bytes).iter().sum::<u64>();
        let staged = n >= STAGED && self.gpu.kernels.copies_aside();
        let [up, down] = stacks.map(|[routed, shared]| Experts {
            routed,
            shared,
            tokens: n,
            used: m.n_used,
            staged,
        });
        let call = experts::gate_up(&up, [w.clamp_routed, w.clamp_shared])?;
        let mut given = vec![w.gate.slot, w.up.slot, h.rows.q, h.rows.meta];
        given.extend(units.slots());
        given.extend([weights, act.q, act.meta]);
        given.extend([w.shared_gate.slot, w.shared_up.slot]);
        given.extend([shared.q, shared.meta]);
        self.gpu.put(&call, &given)?;
        let call = experts::down(&down)?;
        let y = s.y.rows(0, slots, 4 * m.n_embd);
        let block = s.block.rows(0, n, 4 * m.n_embd);
        let mut given = vec![w.down.slot, act.q, act.meta];
        given.extend(units.slots());
        given.extend([y, w.shared_down.slot, shared.q, shared.meta, block]);
        self.gpu.put(&call, &given)
    }

    /// Experts of every token and their units of work.
    fn route(&mut self, at: usize, w: &Moe, h: &mut Input) -> Result<Units, KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        self.gpu.product(&w.router, h, s.logits)?;
        let slots = n * m.n_used;
        let (chosen, weights) = (s.chosen.rows(0, slots, 4), s.weights.rows(0, slots, 4));
        let (list, order) = (
            s.units.rows(0, slots, route::UNIT_BYTES),
            s.order.rows(0, slots, 4),
        );
        let wide = match n {
            1 => 1,
            2..=TOGETHER if together(w).is_some() => experts::WIDE,
            _ => grouped::wide(slots, m.n_expert),
        };
        let units = match n {
            1 => route::Units::Slots,
            2..=route::PLANNED => route::Units::Planned(wide),
            _ => route::Units::Later,
        };
        let shape = route::Shape {
            n,
            experts: m.n_expert,
            used: m.n_used,
            scale: m.route_scale,
            counted: true,
            units,
        };
        let logits = s.logits.rows(0, n, 4 * m.n_expert);
        let site = self.take_site();
        let open = site.as_ref().map(|(open, _)| open);
        let (call, mut given) = match w.routing {
            Routing::TopK(bias) => (route::top_k_beside(&shape, open)?, vec![logits, bias]),
            Routing::Table(table) => {
                let vocabulary = m.n_vocab;
                let call = route::hash_beside(&shape, vocabulary, open)?;
                (call, vec![logits, self.inputs.tokens, table])
            }
        };
        given.extend([chosen, weights, s.routed]);
        let visits = s.visits.rows(at, 1, 8);
        given.extend(shape.visited().then_some(visits));
        given.extend((units != route::Units::Later).then_some(list));
        given.extend(matches!(units, route::Units::Planned(_)).then_some(order));
        given.extend(site.map(|(_, mix)| mix));
        self.gpu.put(&call, &given)?;
        if units == route::Units::Later {
            let call = route::plan(slots, wide)?;
            self.gpu.put(&call, &[chosen, visits, order, list])?;
        }
        Ok(Units {
            work: Work {
                slots,
                per: m.n_used,
                wide,
                ordered: n > 1,
            },
            units: list,
            order,
        })
    }

    /// Gate, up and activation into `out`.
    fn half(
        &mut self,
        w: &Half<'_>,
        h: &mut Input,
        units: &Units,
        out: Rows,
    ) -> Result<Input, KernelError> {
        let slots = units.work.slots;
        let both = w.gate.tiles.zip(w.up.tiles);
        if let Some((gate, _)) = both.filter(|(gate, up)| gate == up) {
            let act = Input::blocks(out, slots);
            let matrices = [w.gate, w.up];
            self.gpu.gate_up(
                matrices, &gate, h, units, w.weights, w.floats, w.limit, &act.rows,
            )?;
            return Ok(act);
        }
        let act = Input::new(out, slots);
        let ff = self.meta.n_ff;
        let (gate, up) = (
            self.scratch.gate.rows(0, slots, 4 * ff),
            self.scratch.up.rows(0, slots, 4 * ff),
        );
        for (w, to) in [(w.gate, gate), (w.up, up)] {
            match &w.tiles {
                Some(stack) if units.work.wide > 0 => self.gpu.stacked(w, stack, h, units, to)?,
                None if units.work.wide > 0 => return Err(floats(w)),
                _ => self.gpu.product(w, h, to)?,
            }
        }
        let call = route::swiglu(slots, ff, w.weights.is_some(), w.limit)?;
        let mut given = vec![gate, up];
        given.extend(w.weights);
        given.push(act.rows.x);
        self.gpu.put(&call, &given)?;
        Ok(act)
    }
}

/// The stacks of gate and up, and of down, routed and shared, if there are kernels that take both at once.
fn together(w: &Moe) -> Option<[[Stack; 2]; 2]> {
    let both = |a: &Matrix, b: &Matrix| Some([a.tiles?, b.tiles?]).filter(|[a, b]| a == b);
    let routed = both(&w.gate, &w.up)?[0];
    let shared = both(&w.shared_gate, &w.shared_up)?[0];
    let down = [w.down.tiles?, w.shared_down.tiles?];
    let fit = experts::together(&routed, &shared) && experts::together(&down[0], &down[1]);
    fit.then_some([[routed, shared], down])
}

/// Experts in floats are refused when weights are placed.
fn floats(w: &Matrix) -> KernelError {
    KernelError::Runtime {
        runtime: "device",
        message: format!("{}: a stack of {} matrices", w.name, w.format),
    }
}
