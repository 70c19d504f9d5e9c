//! A pass: part by part, each part stage by stage. While a stage computes, the one before may begin the next part.
//!
//! Must not know: sequences, what is done with rows.

use device::driver::Driver;
use ds4_kernels::KernelError;
use engine_core::{Fault, Span};

use super::inputs::Part;
use super::products::Input;
use super::stage::{Stage, Work};
use super::taps;
use super::target::{DeviceTarget, lost};

impl<R: Driver> DeviceTarget<R> {
    /// Runs the checked batch, part by part; logits of all wanted rows, features of all spans.
    ///
    /// # Errors
    /// `Lost`, with the device.
    pub(super) fn run(&mut self, spans: &[Span]) -> Result<(), Fault> {
        let batch = &self.batch;
        let pos = |row: usize| batch.pos[batch.out[row]];
        self.answers.clear();
        self.answers.draws.look(spans, &self.rows.span_rows, pos);
        let most = self.last().scratch.sizes.tokens;
        for part in Part::of(&self.batch, most) {
            self.run_part(spans, &part)?;
        }
        Ok(())
    }

    fn run_part(&mut self, spans: &[Span], part: &Part) -> Result<(), Fault> {
        let work = Work {
            meta: &self.model.meta,
            options: &self.options,
            ropes: &self.ropes,
            batch: &self.batch,
            part,
        };
        let d = self.info.n_embd;
        let mut taps = Vec::new();
        for at in 0..self.stages.len() {
            let (before, here) = self.stages.split_at_mut(at);
            let stage = &mut here[0];
            let (layers, room) = (stage.weights.numbers(), stage.scratch.features);
            let (mut own, tapped) = taps::of_stage(&self.batch, spans, part, &layers, room, d);
            let mut run = || {
                let inputs = stage.send(&work, &self.answers, &mut self.inputs)?;
                if let Some(before) = before.last() {
                    hand_over(before, stage, part.tokens.len())?;
                }
                stage.run(&work, &inputs, &tapped, &mut self.answers)
            };
            run().map_err(|e| lost(&self.stages[at].gpu, &e))?;
            let own = own.drain(..).zip(tapped).map(|(tap, t)| (at, tap, t.out));
            taps.extend(own);
        }
        for (at, tap, out) in taps {
            let to = self.rows.span_features[tap.span].clone();
            let (to, mut done) = (&mut self.rows.features[to], 0);
            let stage = &self.stages[at];
            let take = |bytes: &[u8]| done += tap.put(to, d, done, bytes);
            stage
                .gpu
                .fetch(out, take)
                .map_err(|e| lost(&stage.gpu, &e))?;
        }
        Ok(())
    }
}

/// Brings the streams of a part's `n` tokens from one stage to the next.
fn hand_over<R: Driver>(from: &Stage<R>, to: &mut Stage<R>, n: usize) -> Result<(), KernelError> {
    let streams = |stage: &Stage<R>| Input::new(stage.scratch.x, n).rows.x;
    let (near, far) = (streams(from), streams(to));
    match &mut to.edge {
        Some(edge) => edge.cross((&from.gpu, near), (&to.gpu, far)),
        None => Err(KernelError::Runtime {
            runtime: "device",
            message: "no way from one stage to the next".into(),
        }),
    }
}
