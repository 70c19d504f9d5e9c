//! Arms that are fed the base's text: every row and every state on the way is compared.

use engine_core::{SeqId, TokenId};

use super::arm::{Forced, Made};
use super::base::{Base, feed};
use super::pair::Pair;
use super::subject::{Seat, Subject};
use super::{Difference, Error, What, hex};

/// A run along the base's text.
struct Walk<'a> {
    base: &'a Base,
    text: Vec<TokenId>,
    at: usize,
    passes: usize,
    first: Option<Difference>,
}

impl<'a> Walk<'a> {
    fn new(base: &'a Base) -> Self {
        let mut text = base.greedy.whole();
        text.pop();
        Self {
            base,
            text,
            at: 0,
            passes: 0,
            first: None,
        }
    }

    /// Feeds up to `end` in chunks, comparing as it goes.
    fn go(
        &mut self,
        target: &mut dyn Subject,
        seq: SeqId,
        end: usize,
        chunk: usize,
    ) -> Result<(), Error> {
        while self.at < end && self.first.is_none() {
            let n = chunk.min(end - self.at);
            let rows = feed(target, seq, &self.text[self.at..self.at + n])?;
            self.passes += 1;
            let wrong = |(i, row): &(usize, &[u8; 32])| **row != self.base.rows[self.at + i];
            if let Some((i, row)) = rows.iter().enumerate().find(wrong) {
                self.differ(What::Logits, self.at + i, &self.base.rows[self.at + i], row);
            }
            self.at += n;
            self.state(target, seq)?;
        }
        Ok(())
    }

    fn state(&mut self, target: &dyn Subject, seq: SeqId) -> Result<(), Error> {
        let (want, got) = (self.base.states[self.at], target.digest(seq)?);
        if want != got {
            self.differ(What::State, self.at, &want, &got);
        }
        Ok(())
    }

    fn differ(&mut self, what: What, position: usize, expected: &[u8], got: &[u8]) {
        self.first.get_or_insert(Difference {
            what,
            sequence: 0,
            position: Some(position),
            expected: hex(expected),
            got: hex(got),
        });
    }

    fn made(self, target: &dyn Subject, seq: SeqId) -> Result<Made, Error> {
        Ok(Made {
            ids: self.base.greedy.ids_digest(),
            state: hex(&target.digest(seq)?),
            evidence: format!("{} rows in {} passes", self.at, self.passes),
            first: self.first,
        })
    }
}

/// Runs an arm.
pub(crate) fn run(
    pair: &Pair,
    seat: &mut Seat,
    base: &Base,
    forced: Forced,
) -> Result<Made, Error> {
    let target = &mut *seat.target;
    let mut walk = Walk::new(base);
    let end = walk.text.len();
    let seq = target.open()?;
    target.poison_stale(seq)?;
    let seq = match forced {
        Forced::Chunk(0) => {
            walk.go(target, seq, end, end)?;
            seq
        }
        Forced::Chunk(n) => {
            walk.go(target, seq, end, n)?;
            seq
        }
        Forced::SaveLoad => save_load(target, &mut walk, seq)?,
        Forced::Fork => fork(target, &mut walk, seq)?,
        Forced::Carried => {
            let mut cpu = pair.on_cpu(1)?;
            carried(target, &mut *cpu.target, &mut walk, seq)?
        }
    };
    walk.made(target, seq)
}

/// Positions around the borders of windows and ratios.
const STOPS: [usize; 9] = [1, 3, 4, 17, 63, 64, 127, 128, 131];

fn stops(end: usize) -> impl Iterator<Item = usize> {
    let last = end - 8;
    STOPS.into_iter().filter(move |s| *s < last).chain([last])
}

fn other(text: &[TokenId]) -> Vec<TokenId> {
    text.iter().rev().copied().collect()
}

fn save_load(target: &mut dyn Subject, walk: &mut Walk<'_>, seq: SeqId) -> Result<SeqId, Error> {
    let (mut seq, end) = (seq, walk.text.len());
    let wrong = other(&walk.text);
    for stop in stops(end) {
        walk.go(target, seq, stop, 16)?;
        let saved = take(target, seq)?;
        // Dirty the slot that the load will take.
        let dirty = target.open()?;
        feed(target, dirty, &wrong[..stop.max(8)])?;
        target.close(dirty);
        seq = target.load(&mut saved.as_slice())?;
        walk.state(target, seq)?;
    }
    walk.go(target, seq, end, 1)?;
    Ok(seq)
}

/// Saves a sequence and closes it.
fn take(target: &mut dyn Subject, seq: SeqId) -> Result<Vec<u8>, Error> {
    let mut saved = Vec::new();
    target.save(seq, &mut saved)?;
    target.close(seq);
    Ok(saved)
}

/// From `here` to `there` and back, a few tokens on either side of every stop.
fn carried(
    here: &mut dyn Subject,
    there: &mut dyn Subject,
    walk: &mut Walk<'_>,
    seq: SeqId,
) -> Result<SeqId, Error> {
    let (mut seq, end) = (seq, walk.text.len());
    for stop in stops(end) {
        walk.go(here, seq, stop, 16)?;
        let saved = take(here, seq)?;
        let away = there.load(&mut saved.as_slice())?;
        walk.state(there, away)?;
        walk.go(there, away, (stop + 3).min(end), 3)?;
        let saved = take(there, away)?;
        seq = here.load(&mut saved.as_slice())?;
        here.poison_stale(seq)?;
        walk.state(here, seq)?;
    }
    walk.go(here, seq, end, 1)?;
    Ok(seq)
}

fn fork(target: &mut dyn Subject, walk: &mut Walk<'_>, seq: SeqId) -> Result<SeqId, Error> {
    let (mut seq, end) = (seq, walk.text.len());
    let wrong = other(&walk.text);
    for stop in stops(end) {
        walk.go(target, seq, stop, 16)?;
        let copy = target.fork(seq)?;
        feed(target, seq, &wrong[..8])?;
        target.close(seq);
        seq = copy;
        target.poison_stale(seq)?;
        walk.state(target, seq)?;
    }
    walk.go(target, seq, end, 1)?;
    Ok(seq)
}
