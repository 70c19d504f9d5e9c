//! The final merge of the streams, the output matrix, and draws from its rows.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::{hc, head as token};
use fpx_quant::Format;

use super::Pass;
use crate::on_device::draws::Way;
use crate::on_device::products::Input;
use crate::on_device::weights::Tail;

impl<R: Driver> Pass<'_, R> {
    /// Logits of wanted rows `first..first + n` (at most the scratch's) into `out` `[n, n_vocab]`, and the tokens
    /// drawn from them into `drawn` `[n]`.
    ///
    /// # Errors
    /// `Shape`, `Device`.
    pub(crate) fn head(
        &mut self,
        w: &Tail,
        first: usize,
        n: usize,
        way: Way,
    ) -> Result<(), KernelError> {
        if n == 0 {
            return Ok(());
        }
        let (s, d) = (self.scratch, self.meta.n_embd);
        // The streams of wanted tokens beside each other: rows of a table, by index.
        let wide = hc::STREAMS * d;
        let call = token::embed(Format::F32, self.n(), wide, n, 1)?;
        let mut x = Input::new(s.gathered, n);
        let all = Input::new(self.stream_rows(), self.n()).rows.x;
        let wanted = self.inputs.out.rows(first, n, 4);
        self.gpu.put(&call, &[all, wanted, x.rows.x])?;
        let site = &w.hc_head;
        self.gpu.product(&site.mix, &mut x, s.head_m)?;
        let blocks = w.head.tiles.is_some();
        let mut hidden = Input::made(s.hidden, n, blocks);
        let row = 4 * hc::STREAMS;
        let (m, mix) = (s.head_m.rows(0, n, row), s.head_mix.rows(0, n, row));
        let beside = hc::Beside {
            u: false,
            a8: blocks,
        };
        let call = hc::head(&self.site(n), beside)?;
        let norm = w.output_norm;
        let mut slots = vec![x.rows.x, m, site.base, site.scale, norm, mix, hidden.rows.x];
        slots.extend(hidden.block_slots());
        self.gpu.put(&call, &slots)?;
        self.gpu.product(&w.head, &mut hidden, s.out)?;
        self.draw(first, n, way)
    }

    fn draw(&mut self, first: usize, n: usize, way: Way) -> Result<(), KernelError> {
        let (s, v) = (self.scratch, self.meta.n_vocab);
        let (logits, tokens) = (s.out.rows(0, n, 4 * v), s.drawn.rows(0, n, 4));
        let plans = self.inputs.plans.rows(first, n, token::PLAN_BYTES);
        match way {
            Way::Host => return Ok(()),
            Way::Plain => {
                let best = s.best.rows(0, n, 8 * token::PARTS);
                let call = token::part(n, v, false)?;
                self.gpu.put(&call, &[logits, plans, best])?;
                self.gpu.put(&token::merge(n)?, &[best, tokens])?;
            }
            Way::Filtered => {
                let own = s.filtered.rows(0, n, 4 * v);
                let call = token::filtered(n, v, false)?;
                self.gpu.put(&call, &[logits, plans, own, tokens])?;
            }
        }
        self.gpu.put(&token::sound(n, v)?, &[logits, tokens])
    }
}
