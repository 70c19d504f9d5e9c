//! Blocks of host memory by address.

use std::collections::BTreeMap;

use crate::driver::{Place, Raw};

/// Alignment of every block, as the drivers give it.
const ALIGN: usize = 256;
/// What fresh and freed memory holds: f32 NaN, int -1.
const POISON: u8 = 0xff;

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its first address.
    pub start: Raw,
    /// Its size.
    pub bytes: u64,
    /// Its kind of memory.
    pub place: Place,
}

#[derive(Debug)]
pub(super) struct Block {
    /// Owns the memory unless somebody else does; touched only through addresses while the block is in the table.
    _bytes: Vec<u8>,
    pub(super) len: u64,
    pub(super) place: Place,
    pub(super) live: bool,
    /// Whether it counts as used.
    counted: bool,
}

/// All blocks, freed ones too if they are kept to catch later uses.
#[derive(Debug, Default)]
pub(super) struct Memory {
    blocks: BTreeMap<Raw, Block>,
    pub(super) used: u64,
    pub(super) keep_freed: bool,
}

impl Memory {
    /// A poisoned block; `None` if the host has no memory either.
    pub(super) fn alloc(&mut self, place: Place, len: u64) -> Option<Raw> {
        let wanted = usize::try_from(len).ok()?.checked_add(ALIGN)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted).ok()?;
        bytes.resize(wanted, POISON);
        let address = bytes.as_mut_ptr().expose_provenance();
        let address = address.next_multiple_of(ALIGN) as Raw;
        let block = Block {
            _bytes: bytes,
            len,
            place,
            live: true,
            counted: true,
        };
        self.insert(address, block);
        Some(address)
    }

    /// Takes memory that somebody else owns into the table.
    pub(super) fn adopt(&mut self, place: Place, address: Raw, len: u64, counted: bool) {
        let block = Block {
            _bytes: Vec::new(),
            len,
            place,
            live: true,
            counted,
        };
        self.insert(address, block);
    }

    fn insert(&mut self, address: Raw, block: Block) {
        // Memory that was given back may be given out again, at another start.
        let gone: Vec<Raw> = self
            .overlapping(address, block.len)
            .filter(|(_, b)| !b.live && b._bytes.is_empty())
            .map(|(start, _)| start)
            .collect();
        for start in gone {
            self.blocks.remove(&start);
        }
        self.used += if block.counted { block.len } else { 0 };
        self.blocks.insert(address, block);
    }

    /// Blocks with a byte in `address..address + len`.
    fn overlapping(&self, address: Raw, len: u64) -> impl Iterator<Item = (Raw, &Block)> {
        let end = address.saturating_add(len);
        let before = self.blocks.range(..end).map(|(start, b)| (*start, b));
        before.filter(move |(start, b)| start.saturating_add(b.len) > address)
    }

    /// Whether a live block has a byte in `address..address + len`.
    pub(super) fn is_taken(&self, address: Raw, len: u64) -> bool {
        self.overlapping(address, len).any(|(_, b)| b.live)
    }

    /// Whether there was such a block.
    pub(super) fn free(&mut self, address: Raw) -> bool {
        let Some(block) = self.blocks.get_mut(&address).filter(|b| b.live) else {
            return false;
        };
        self.used -= if block.counted { block.len } else { 0 };
        block.live = false;
        if !self.keep_freed {
            self.blocks.remove(&address);
        }
        true
    }

    /// Says what is wrong with `bytes` bytes at `address`, if something is.
    pub(super) fn objection(&self, address: Raw, bytes: u64) -> Option<String> {
        let found = self.blocks.range(..=address).next_back();
        let Some((start, block)) = found else {
            return Some(format!("{address:#x} was never allocated"));
        };
        let end = (address - start).checked_add(bytes);
        if end.is_none_or(|end| end > block.len) {
            return Some(format!(
                "{bytes} bytes at {address:#x} end outside of a block of {}",
                block.len
            ));
        }
        (!block.live).then(|| format!("use after free at {address:#x}"))
    }

    /// Where the block that holds an address lies.
    pub(super) fn place(&self, address: Raw) -> Option<Place> {
        self.block(address).map(|b| b.place)
    }

    /// The live block that holds an address.
    pub(super) fn block(&self, address: Raw) -> Option<BlockInfo> {
        let (start, block) = self.blocks.range(..=address).next_back()?;
        let inside = block.live && address - start < block.len.max(1);
        inside.then_some(BlockInfo {
            start: *start,
            bytes: block.len,
            place: block.place,
        })
    }

    /// Live blocks.
    pub(super) fn live(&self) -> usize {
        self.blocks.values().filter(|b| b.live).count()
    }
}
