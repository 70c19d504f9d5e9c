//! The hidden rows of asks: from a draft that was begun ahead where one fits, else drafted now.

use std::time::Instant;

use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Backbone, DraftRows, Verifying};
use engine_core::{Fault, Target, Ticket};

use super::DsparkDrafter;
use super::ahead::Flight;

impl<B: Backbone> DsparkDrafter<B> {
    /// The hidden rows of all asks, and which of them were drafted ahead; `None` if they are late.
    pub(super) fn gather(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
    ) -> Result<Option<(DraftRows, Vec<bool>)>, Fault> {
        let landed = self.ahead.land(asks, &self.texts);
        self.sweep();
        let Some((flight, places)) = landed else {
            let ticket = self.begin(target, asks)?;
            let rows = self.take(ticket, asks)?;
            return Ok(rows.map(|rows| (rows, vec![false; asks.len()])));
        };
        let alone = asks.iter().zip(&places).filter(|(_, p)| p.is_none());
        let alone: Vec<Ask> = alone.map(|(ask, _)| *ask).collect();
        let later = match alone.is_empty() {
            true => None,
            false => Some(self.begin(target, &alone)?),
        };
        let flown = self.flown(&flight)?;
        let others = match later {
            None => None,
            Some(ticket) => self.take(ticket, &alone)?,
        };
        self.stats.late += if others.is_none() {
            alone.len() as u64
        } else {
            0
        };
        let others = others.unwrap_or_else(|| nothing(alone.len()));
        let rows = join(asks, &places, &flown, &others, self.model.meta.stage.n_embd);
        Ok(Some((rows, places.iter().map(Option::is_some).collect())))
    }

    /// Sends asks, with the rows they need.
    fn begin(&mut self, target: &mut dyn Target, asks: &[Ask]) -> Result<Ticket, Fault> {
        for ask in asks {
            self.settle(ask.seq)?;
        }
        let block = self.embed(target, asks)?;
        self.backbone.submit(asks, &block)
    }

    /// The answer to asks; `None` if it is late.
    fn take(&mut self, ticket: Ticket, asks: &[Ask]) -> Result<Option<DraftRows>, Fault> {
        let deadline = self.patience.map(|p| Instant::now() + p);
        match self.backbone.poll(ticket, deadline) {
            Ok(rows) => {
                self.check_rows(asks, &rows)?;
                Ok(Some(rows))
            }
            Err(Fault::Deadline) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The answer to a draft ahead, empty if it is late.
    fn flown(&mut self, flight: &Flight) -> Result<DraftRows, Fault> {
        if let Some(rows) = self.take(flight.ticket, &flight.asks)? {
            return Ok(rows);
        }
        self.stats.late += flight.asks.len() as u64;
        self.ahead.is_late(flight.ticket);
        Ok(nothing(flight.asks.len()))
    }

    /// Takes answers that nobody will use; whether none is outstanding.
    fn sweep(&mut self) -> bool {
        let Self {
            ahead, backbone, ..
        } = self;
        let now = Some(Instant::now());
        ahead.sweep(|ticket| matches!(backbone.poll(*ticket, now), Err(Fault::Deadline)))
    }

    /// Begins drafts behind spans that are about to be verified.
    pub(super) fn begin_ahead(
        &mut self,
        target: &mut dyn Target,
        spans: &[Verifying<'_>],
    ) -> Result<(), Fault> {
        self.ahead.lapse();
        if !self.backbone.is_apart() && !mutant(365) {
            self.ahead.counts.idle += spans.len() as u64;
            return Ok(());
        }
        if !self.sweep() {
            self.ahead.counts.busy += spans.len() as u64;
            return Ok(());
        }
        let asks = self.ahead.asks(spans, self.model.meta.block as u32);
        let ticket = self.begin(target, &asks)?;
        self.ahead.begin(ticket, asks, spans);
        Ok(())
    }

    /// A backbone may be another process: what it answers is not trusted.
    fn check_rows(&self, asks: &[Ask], rows: &DraftRows) -> Result<(), Fault> {
        let n: usize = rows.rows.iter().sum();
        let values = n * self.model.meta.stage.n_embd;
        let fits = rows.rows.len() == asks.len()
            && asks
                .iter()
                .zip(&rows.rows)
                .all(|(a, n)| *n <= a.depth as usize)
            && rows.normed.len() == values
            && rows.pre_norm.len() == values;
        if fits {
            return Ok(());
        }
        let (want, got) = (asks.len(), rows.rows.len());
        Err(Fault::Lost {
            what: "draft backbone".to_owned(),
            why: format!(
                "expected at most the depths of {want} asks, got {got} counts, {n} rows in all, \
                 {} and {} values",
                rows.normed.len(),
                rows.pre_norm.len()
            ),
        })
    }
}

fn nothing(asks: usize) -> DraftRows {
    DraftRows {
        rows: vec![0; asks],
        ..DraftRows::default()
    }
}

/// The rows of all asks in their order, each `width` values. Of a block that was drafted ahead the first
/// row is left out: it guessed the seed, which is known by now.
fn join(
    asks: &[Ask],
    places: &[Option<usize>],
    flown: &DraftRows,
    others: &DraftRows,
    width: usize,
) -> DraftRows {
    let mut out = DraftRows::default();
    let mut other = 0..others.rows.len();
    for (ask, place) in asks.iter().zip(places) {
        let from = if place.is_some() { flown } else { others };
        let Some(at) = place.or_else(|| other.next()) else {
            continue;
        };
        let skip = usize::from(place.is_some() && !mutant(362));
        let before: usize = from.rows[..at].iter().sum();
        let first = before + skip.min(from.rows[at]);
        let n = (before + from.rows[at] - first).min(ask.depth as usize);
        let values = first * width..(first + n) * width;
        out.rows.push(n);
        out.normed.extend_from_slice(&from.normed[values.clone()]);
        out.pre_norm.extend_from_slice(&from.pre_norm[values]);
    }
    out
}
