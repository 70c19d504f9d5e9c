//! Writing and reading the live context rows of a sequence.
//!
//! Magic `4SPKDRF1`, the draft model's fingerprint (32 bytes), `kv_round` (1 byte, 3 zero), first
//! position and position after the last (u32 each), then per stage the rows of these positions, f32.
//! Little endian, no padding, nothing after the last row. As in `docs/adr/0002-state.md`, exactly
//! what the future reads is written: the digest of these bytes is the hash of the context.

use std::io::{Read, Write};
use std::ops::Range;

use engine_core::mutant::mutant;
use engine_core::{Fault, Pos};

use super::rings::{Marks, Shape};

const MAGIC: [u8; 8] = *b"4SPKDRF1";

/// What a saved context must agree with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) fingerprint: [u8; 32],
    pub(crate) kv_round: bool,
}

/// Writes the rows of `live`; `row` appends one's bytes.
pub(crate) fn save(
    live: Range<Pos>,
    shape: &Shape,
    stamp: &Stamp,
    to: &mut dyn Write,
    mut row: impl FnMut(usize, Pos, &mut Vec<u8>),
) -> Result<(), Fault> {
    to.write_all(&MAGIC)?;
    to.write_all(&stamp.fingerprint)?;
    to.write_all(&[u8::from(stamp.kv_round), 0, 0, 0])?;
    to.write_all(&live.start.to_le_bytes())?;
    to.write_all(&live.end.to_le_bytes())?;
    let mut bytes = Vec::with_capacity(4 * shape.width);
    for stage in 0..shape.stages {
        for pos in live.clone() {
            bytes.clear();
            row(stage, pos, &mut bytes);
            to.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Positions of the rows in a saved context, by its header; `None` if the bytes are no saved context.
#[must_use]
pub fn saved_range(bytes: &[u8]) -> Option<Range<Pos>> {
    let head = bytes.first_chunk::<52>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (start, end) = (word(44), word(48));
    (head[..8] == MAGIC && start <= end).then_some(start..end)
}

fn bad(field: &'static str, expected: impl ToString, got: impl ToString) -> Fault {
    Fault::BadState {
        field,
        expected: expected.to_string(),
        got: got.to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads saved rows; `row` takes one's bytes. Which rows there are then; what an error leaves is no context.
pub(crate) fn load(
    shape: &Shape,
    stamp: &Stamp,
    from: &mut dyn Read,
    mut row: impl FnMut(usize, Pos, &[u8]),
) -> Result<Marks, Fault> {
    let mut head = [0u8; 52];
    from.read_exact(&mut head)?;
    if head[..8] != MAGIC {
        return Err(bad("magic", hex(&MAGIC), hex(&head[..8])));
    }
    if head[8..40] != stamp.fingerprint && !mutant(218) {
        let expected = hex(&stamp.fingerprint);
        return Err(bad("draft fingerprint", expected, hex(&head[8..40])));
    }
    if head[40] != u8::from(stamp.kv_round) || head[41..44] != [0; 3] {
        return Err(bad("kv_round", stamp.kv_round, head[40]));
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (start, end) = (word(44), word(48));
    let most = shape.window as u32;
    if start > end || end - start > most {
        let expected = format!("at most {most} positions in order");
        return Err(bad("positions", expected, format!("{start}..{end}")));
    }
    let mut bytes = vec![0; 4 * shape.width];
    for stage in 0..shape.stages {
        for pos in start..end {
            from.read_exact(&mut bytes)?;
            row(stage, pos, &bytes);
        }
    }
    if from.read(&mut [0u8])? != 0 {
        return Err(bad("length", "the end of the rows", "more bytes"));
    }
    let mut marks = Marks::new(*shape);
    marks.begin(start);
    marks.advance(end);
    Ok(marks)
}
