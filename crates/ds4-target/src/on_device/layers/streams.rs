//! The residual streams between sublayers: what a sublayer gave is merged into them by the dots of the next site where
//! tokens are few, and by a launch of its own else. The bits are the same.
//!
//! Must not know: what a sublayer is.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::hc::{self, Beside, Dots};

use super::Pass;
use crate::on_device::arena::Slot;
use crate::on_device::products::{Input, Rows};
use crate::on_device::weights::Site;

/// Where the streams of a pass stand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams {
    /// Which of the two buffers: dots that merge read one and write the other.
    other: bool,
    /// A sublayer's output that is not in them yet: how many slots come before the block.
    open: Option<usize>,
    /// A site whose post and C are still to be finished, by a launch of its sublayer.
    site: Option<hc::Open>,
}

impl<R: Driver> Pass<'_, R> {
    /// The streams' buffer.
    pub(super) fn stream_rows(&self) -> Rows {
        match self.streams.other {
            true => self.scratch.x_other,
            false => self.scratch.x,
        }
    }

    fn x(&self) -> Slot {
        Input::new(self.stream_rows(), self.n()).rows.x
    }

    /// Before a sublayer: mixing weights, and its normed input, with its blocks if `blocks`. The site is left open:
    /// the sublayer finishes it ([`Self::take_site`]).
    pub(super) fn pre(
        &mut self,
        site: &Site,
        norm: Slot,
        blocks: bool,
    ) -> Result<Input, KernelError> {
        let (n, s) = (self.n(), self.scratch);
        let (dots, m) = if site.mix.tiles.is_none() {
            (Dots::Segments, self.dots(site)?)
        } else {
            self.settle()?;
            let mut x = Input::new(self.stream_rows(), n);
            self.gpu.product(&site.mix, &mut x, s.m)?;
            (Dots::Whole, s.m.rows(0, n, 4 * hc::SITE))
        };
        let h = Input::made(s.h, n, blocks);
        let mix = s.mix.rows(0, n, 4 * hc::SITE);
        let beside = Beside {
            u: false,
            a8: blocks,
        };
        let (iterations, eps) = (self.meta.hc_iterations as usize, self.meta.hc_eps);
        self.streams.site = Some(hc::Open { iterations, eps });
        let call = hc::pre_open(&self.site(n), dots, beside)?;
        let mut slots = vec![self.x(), m, site.base, site.scale, norm, mix, h.rows.x];
        slots.extend(h.block_slots());
        self.gpu.put(&call, &slots)?;
        Ok(h)
    }

    /// The open site, for a launch that finishes it, and its mixing weights.
    pub(super) fn take_site(&mut self) -> Option<(hc::Open, Slot)> {
        let mix = self.scratch.mix.rows(0, self.n(), 4 * hc::SITE);
        self.streams.site.take().map(|open| (open, mix))
    }

    /// After a sublayer that wrote `block` and, if `used` is not 0, rows of so many slots a token.
    pub(super) fn leave(&mut self, used: usize) {
        self.streams.open = Some(used);
    }

    /// Merges what is open, in place: somebody is about to read the streams.
    pub(super) fn settle(&mut self) -> Result<(), KernelError> {
        let Some(used) = self.streams.open.take() else {
            return Ok(());
        };
        let call = hc::post(self.n(), self.meta.n_embd, used)?;
        let slots = [vec![self.x()], self.given(used)].concat();
        self.gpu.put(&call, &slots)
    }

    /// Merges what is open and brings the streams to where the next stage looks for them.
    pub(super) fn leave_stage(&mut self) -> Result<(), KernelError> {
        self.settle()?;
        if self.streams.other {
            let from = self.x();
            self.streams.other = false;
            self.gpu.copy(from, self.x())?;
        }
        Ok(())
    }

    /// Segments of a site's dots: of few tokens with what is open merged on the way.
    fn dots(&mut self, site: &Site) -> Result<Slot, KernelError> {
        let (n, d) = (self.n(), self.meta.n_embd);
        let row = 4 * hc::segments(d) * (hc::SITE + 1);
        let part = self.scratch.m_part.rows(0, n, row);
        let format = site.mix.format;
        if n > hc::FEW {
            self.settle()?;
            let call = hc::dots_many(format, n, d)?;
            self.gpu.read += site.mix.bytes;
            self.gpu.put(&call, &[self.x(), site.mix.slot, part])?;
            return Ok(part);
        }
        let open = self.streams.open.take();
        let call = hc::dots(format, n, d, open)?;
        self.gpu.read += site.mix.bytes;
        let mut slots = vec![self.x(), site.mix.slot];
        if let Some(used) = open {
            slots.extend(self.given(used));
            self.streams.other = !self.streams.other;
            slots.push(self.x());
        }
        slots.push(part);
        self.gpu.put(&call, &slots)?;
        Ok(part)
    }

    /// A sublayer's output: block, slots if there are any, and the mixing weights of its site.
    fn given(&self, used: usize) -> Vec<Slot> {
        debug_assert!(self.streams.site.is_none(), "the sublayer left it open");
        let (n, d, s) = (self.n(), self.meta.n_embd, self.scratch);
        let mut slots = vec![s.block.rows(0, n, 4 * d)];
        slots.extend((used > 0).then(|| s.y.rows(0, n * used, 4 * d)));
        slots.push(s.mix.rows(0, n, 4 * hc::SITE));
        slots
    }

    /// The streams with everything merged, to be read.
    ///
    /// # Errors
    /// `Shape`, `Device`.
    pub(crate) fn merged(&mut self) -> Result<Input, KernelError> {
        self.settle()?;
        Ok(Input::new(self.stream_rows(), self.n()))
    }

    pub(crate) fn site(&self, n: usize) -> hc::Site {
        let m = self.meta;
        hc::Site {
            n,
            d: m.n_embd,
            iterations: m.hc_iterations as usize,
            rms_eps: m.rms_eps,
            eps: m.hc_eps,
        }
    }
}
