//! What arms make on a device: targets and drafters' layers, everything poisoned that is not weights.
//!
//! Must not know: vendors, arms.

use std::sync::Arc;

use device::Device;
use device::driver::Driver;
use ds4_target::on_device::{DeviceTarget, GRAPH_TOKENS, Markov, Settings, Share, equal_shares};
use ds4_target::{Model, Options};
use dspark_draft::backbone;
use dspark_draft::on_device::{DeviceBackbone, GRAPH_ROWS};
use dspark_draft::weights::DraftModel;
use engine_core::seams::Backbone;

use super::Error;
use super::subject::Subject;

pub(crate) type Made<W> = Result<<W as Put>::Out, Error>;

/// Work for a device of whatever runtime.
pub(crate) trait Put {
    type Out;

    /// Tokens, or rows, up to which its passes are replayed as graphs.
    const GRAPHS: usize;

    /// On devices of one runtime, at least one; what runs on one of several runs on the last.
    fn put<R: Driver>(
        self,
        devices: &[Device<R>],
        settings: Settings<'_>,
    ) -> Result<Self::Out, Error>;
}

/// A fresh target, with everything that is not state poisoned.
pub(crate) struct NewTarget<'a> {
    pub(crate) model: Arc<Model>,
    pub(crate) options: Options,
    /// The drafter whose chains are drawn beside it.
    pub(crate) chains: Option<&'a DraftModel>,
}

impl Put for NewTarget<'_> {
    type Out = Box<dyn Subject>;

    const GRAPHS: usize = GRAPH_TOKENS;

    fn put<R: Driver>(
        self,
        devices: &[Device<R>],
        settings: Settings<'_>,
    ) -> Result<Self::Out, Error> {
        let markov = self.chains.map(|draft| Markov {
            first: &draft.heads.w1,
            second: &draft.heads.w2,
        });
        let (model, options) = (self.model, self.options);
        let layers = equal_shares(&model, &options, markov, devices.len())?;
        let shares = devices.iter().cloned().zip(layers);
        let shares: Vec<Share<R>> = shares
            .map(|(device, layers)| Share { device, layers })
            .collect();
        let mut target = DeviceTarget::split(model, options, markov, &shares, settings)?;
        target.poison()?;
        Ok(Box::new(target))
    }
}

/// A drafter's fresh layers, with everything poisoned that is not weights.
pub(crate) struct NewLayers {
    pub(crate) model: Arc<DraftModel>,
    pub(crate) options: backbone::Options,
}

impl Put for NewLayers {
    type Out = Box<dyn Backbone>;

    const GRAPHS: usize = GRAPH_ROWS;

    fn put<R: Driver>(
        self,
        devices: &[Device<R>],
        settings: Settings<'_>,
    ) -> Result<Self::Out, Error> {
        let last = &devices[devices.len() - 1];
        let mut layers = DeviceBackbone::new(self.model, self.options, last, settings)?;
        layers.blocks_mut().poison()?;
        Ok(Box::new(layers))
    }
}
