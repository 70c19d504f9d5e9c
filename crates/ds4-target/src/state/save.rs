//! Writing and reading the live rows of a sequence (`docs/adr/0002-state.md`).
//!
//! Exactly what the future depends on is written, in one order, little endian: two sequences with
//! the same bytes here continue identically, and the digest of the bytes is the state's hash.

use std::io::{Read, Write};

use engine_core::Fault;
use engine_core::mutant::mutant;

use super::{CompState, Marks, SeqState, StateShape};

const MAGIC: [u8; 8] = *b"4SPKSEQ1";

/// Visits every live row in the order of the file.
fn parts(seq: &SeqState, mut row: impl FnMut(Part<'_>)) {
    let pos = seq.marks.pos as usize;
    for layer in &seq.layers {
        let from = pos.saturating_sub(layer.shape.window - 1);
        for x in from..pos {
            row(Part::Raw(layer, x));
        }
        for comp in [&layer.comp, &layer.index].into_iter().flatten() {
            for w in 0..pos / comp.shape.ratio {
                row(Part::Row(comp, w));
            }
            for x in comp.shape.open_from(pos)..pos {
                row(Part::Open(comp, x));
            }
        }
    }
}

enum Part<'a> {
    Raw(&'a super::LayerState, usize),
    Row(&'a CompState, usize),
    Open(&'a CompState, usize),
}

/// Elements of an open row that the future reads: of the window before the open one, only the first
/// halves (they belong to the next row).
fn open_width(c: &CompState, x: usize, pos: usize) -> usize {
    let current = pos / c.shape.ratio * c.shape.ratio;
    if x < current {
        c.shape.width
    } else {
        c.shape.width * c.shape.overlap
    }
}

/// Writes the live rows of `seq`, committed part only.
///
/// # Errors
/// `Io`.
pub fn save(
    seq: &SeqState,
    shape: &StateShape,
    fingerprint: &[u8; 32],
    to: &mut dyn Write,
) -> Result<(), Fault> {
    let mut head = Vec::with_capacity(64);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(fingerprint);
    head.push(u8::from(shape.kv_sim));
    head.extend_from_slice(&[0; 3]);
    head.extend_from_slice(&seq.marks.pos.to_le_bytes());
    to.write_all(&head)?;
    let pos = seq.marks.pos as usize;
    let (mut buffer, mut failed) = (Vec::new(), None);
    parts(seq, |part| {
        if failed.is_some() {
            return;
        }
        buffer.clear();
        match part {
            Part::Raw(layer, x) => layer.raw.append_bytes(layer.raw_slot(x), &mut buffer),
            Part::Row(comp, w) => comp.rows.append_bytes(w, &mut buffer),
            Part::Open(comp, x) => {
                let n = open_width(comp, x, pos);
                for from in [&comp.keys, &comp.gates] {
                    for v in &from[comp.slot(x)][..n] {
                        buffer.extend_from_slice(&v.to_le_bytes());
                    }
                }
            }
        }
        failed = to.write_all(&buffer).err();
    });
    failed.map_or(Ok(()), |e| Err(Fault::Io(e)))
}

fn bad(field: &'static str, expected: impl ToString, got: impl ToString) -> Fault {
    Fault::BadState {
        field,
        expected: expected.to_string(),
        got: got.to_string(),
    }
}

/// Reads rows into `seq`, which may be dirty: nothing of its old content is state afterwards. On an
/// error the sequence is left empty.
///
/// # Errors
/// `BadState`, `Io`.
pub fn load(
    seq: &mut SeqState,
    shape: &StateShape,
    fingerprint: &[u8; 32],
    from: &mut dyn Read,
) -> Result<(), Fault> {
    seq.reset();
    let mut head = [0u8; 48];
    from.read_exact(&mut head)?;
    if head[..8] != MAGIC {
        return Err(bad(
            "magic",
            format!("{MAGIC:02x?}"),
            format!("{:02x?}", &head[..8]),
        ));
    }
    if head[8..40] != *fingerprint {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        return Err(bad(
            "model fingerprint",
            hex(fingerprint),
            hex(&head[8..40]),
        ));
    }
    if head[40] != u8::from(shape.kv_sim) || head[41..44] != [0; 3] {
        return Err(bad("kv_sim", shape.kv_sim, head[40]));
    }
    let pos = u32::from_le_bytes([head[44], head[45], head[46], head[47]]);
    if pos as usize > shape.n_ctx {
        return Err(bad("position", format!("at most {}", shape.n_ctx), pos));
    }
    let result = load_rows(seq, pos as usize, from);
    if result.is_ok() {
        seq.marks = Marks::at(pos);
    }
    result
}

fn load_rows(seq: &mut SeqState, pos: usize, from: &mut dyn Read) -> Result<(), Fault> {
    let mut buffer = Vec::new();
    for layer in &mut seq.layers {
        buffer.resize(layer.raw.kind().row_bytes(), 0);
        for x in pos.saturating_sub(layer.shape.window - 1)..pos {
            from.read_exact(&mut buffer)?;
            let slot = layer.raw_slot(x);
            if mutant(320) && x + 1 == pos {
                continue;
            }
            layer.raw.set_bytes(slot, &buffer);
        }
        for comp in [&mut layer.comp, &mut layer.index].into_iter().flatten() {
            buffer.resize(comp.rows.kind().row_bytes(), 0);
            for w in 0..pos / comp.shape.ratio {
                from.read_exact(&mut buffer)?;
                comp.rows.set_bytes(w, &buffer);
            }
            for x in comp.shape.open_from(pos)..pos {
                let (n, slot) = (open_width(comp, x, pos), comp.slot(x));
                buffer.resize(2 * 4 * n, 0);
                from.read_exact(&mut buffer)?;
                if mutant(37) {
                    continue;
                }
                let (words, _) = buffer.as_chunks::<4>();
                for (i, word) in words.iter().enumerate() {
                    let v = f32::from_le_bytes(*word);
                    let to = if i < n {
                        &mut comp.keys
                    } else {
                        &mut comp.gates
                    };
                    to[slot.start + i % n] = v;
                }
            }
        }
    }
    let mut rest = [0u8];
    match from.read(&mut rest)? {
        0 => Ok(()),
        _ => Err(bad("length", "the end of the rows", "more bytes")),
    }
}
