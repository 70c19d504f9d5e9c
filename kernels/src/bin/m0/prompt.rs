//! Times of launches that only a prompt makes, at the shapes of the Flash model and a chunk of 2,048 tokens.

use ds4_kernels::cases;
use ds4_kernels::launch::attend::{self, Output};
use ds4_kernels::launch::index::COMPRESSED;
use ds4_kernels::launch::tiled::{Stack, Work};
use ds4_kernels::launch::{dense, grouped};
use fpx_quant::{Format, Fp2Dialect};

use crate::families::{D, DIM, EXPERTS, FF, HEADS, Item, ROT, Result, USED};

const TOKENS: usize = 2048;
const SLOTS: usize = TOKENS * USED;

/// All of them.
pub(crate) fn items() -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let signed = Format::Fp2(Fp2Dialect::Signed);
    for (format, up) in [
        (signed, true),
        (Format::Fp3, false),
        (Format::Fp4Fast, true),
        (Format::Fp4Fast, false),
    ] {
        items.push(routed(format, up)?);
    }
    let shared = Stack {
        format: Format::Fp4Fast,
        matrices: 1,
        rows: FF,
        k: D,
    };
    let call = grouped::gate_up(&shared, &Work::plain(TOKENS), false, false, 10.0)?;
    items.push(Item::new("prompt: shared gate and up", call));
    for (name, m, k) in [
        ("mixing dots", 24, 4 * D),
        ("router", EXPERTS, D),
        ("compressor", 1024, D),
        ("indexer queries", 8192, 1024),
    ] {
        let call = dense::product(Format::F16, m, k, TOKENS)?;
        items.push(Item::new(format!("prompt: {name} F16 {m}x{k}"), call));
    }
    items.extend(attention()?);
    Ok(items)
}

/// Experts of a chunk: 40 to 56 slots each, in an order that jumps.
fn routed(format: Format, up: bool) -> Result<Item> {
    let (rows, k) = if up { (FF, D) } else { (D, FF) };
    let stack = Stack {
        format,
        matrices: EXPERTS,
        rows,
        k,
    };
    let work = Work {
        slots: SLOTS,
        per: if up { USED } else { 1 },
        wide: grouped::WIDE,
        ordered: true,
    };
    let mut units = Vec::new();
    let mut first = 0;
    for expert in 0..EXPERTS {
        // Pairs of experts share 96 slots unevenly.
        let count = 48 + [8, 3, 0, 6][expert / 2 % 4] * if expert % 2 == 0 { 1 } else { -1 };
        units.extend([expert as u32, first, count as u32, 0]);
        first += count as u32;
    }
    let order: Vec<u32> = (0..SLOTS).map(|s| (s * 4097 % SLOTS) as u32).collect();
    let call = match up {
        true => grouped::gate_up(&stack, &work, true, false, 10.0)?,
        false => grouped::product(&stack, &work)?,
    };
    let at = if up { 4 } else { 3 };
    units.resize(SLOTS * 4, 0);
    let name = if up { "gate and up" } else { "down" };
    Ok(Item::new(format!("prompt: {format} {name}"), call)
        .give(at, cases::u32_bytes(&units))
        .give(at + 1, cases::u32_bytes(&order)))
}

/// Both launches of attention over a window and 512 chosen rows.
fn attention() -> Result<Vec<Item>> {
    const POSITIONS: usize = 512;
    let s = attend::Shape {
        positions: POSITIONS,
        heads: HEADS,
        dim: DIM,
        rows: POSITIONS + 128,
        stride: 640,
    };
    let comp = 2048;
    let list = |p: usize| {
        (0..s.stride).map(move |j| match j {
            0..128 => (p + j) as u32,
            _ => COMPRESSED | ((j * 1229 + p * 31) % comp) as u32,
        })
    };
    let keys = cases::u32_bytes(&(0..POSITIONS).flat_map(list).collect::<Vec<u32>>());
    let counts = cases::u32_bytes(&vec![s.stride as u32; POSITIONS]);
    let out = Output {
        n_rot: ROT,
        floats: false,
        a8: true,
    };
    let weights = attend::many_weights(&s, ROT, comp, 0.044)?;
    let values = attend::many_values(&s, ROT, comp, &out)?;
    Ok(vec![
        Item::new("prompt: attend, weights", weights)
            .give(3, keys.clone())
            .give(4, counts.clone()),
        Item::new("prompt: attend, values", values)
            .give(2, keys)
            .give(3, counts),
    ])
}
