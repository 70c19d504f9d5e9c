//! A GGUF encoder for tests that can lie in every field. Shares no code with the crate's writer.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

/// A key: name, type id, payload.
#[derive(Clone)]
pub struct Key(pub Vec<u8>, pub u32, pub Vec<u8>);

/// A row of the tensor table.
#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    /// Dimension count, where it is not the shape's.
    pub dims: Option<u32>,
    pub shape: Vec<u64>,
    pub type_id: u32,
    pub offset: u64,
}

/// A file, field by field.
#[derive(Clone)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    /// Counts, where they are not the tables'.
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub keys: Vec<Key>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

pub fn string(s: &[u8]) -> Vec<u8> {
    let mut out = (s.len() as u64).to_le_bytes().to_vec();
    out.extend(s);
    out
}

pub fn str_key(name: &str, value: &str) -> Key {
    Key(name.into(), 8, string(value.as_bytes()))
}

pub fn u32_key(name: &str, value: u32) -> Key {
    Key(name.into(), 4, value.to_le_bytes().to_vec())
}

pub fn u16_key(name: &str, value: u16) -> Key {
    Key(name.into(), 2, value.to_le_bytes().to_vec())
}

/// An array's payload: element type, length, elements.
pub fn array(element: u32, n: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = element.to_le_bytes().to_vec();
    out.extend(n.to_le_bytes());
    out.extend(payload);
    out
}

pub fn tensor(name: &str, shape: &[u64], type_id: u32, offset: u64) -> Tensor {
    Tensor {
        name: name.into(),
        dims: None,
        shape: shape.to_vec(),
        type_id,
        offset,
    }
}

impl Raw {
    /// A valid file: keys of several types, three tensors that end on the alignment.
    pub fn valid() -> Self {
        let words = [string(b"a"), string("\u{120}b".as_bytes())].concat();
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_keys: None,
            keys: vec![
                str_key("general.architecture", "deepseek4"),
                u32_key("deepseek4.block_count", 2),
                Key(b"deepseek4.expert_weights_norm".to_vec(), 7, vec![1]),
                Key(b"tokenizer.ggml.tokens".to_vec(), 9, array(8, 2, &words)),
                Key(b"r".to_vec(), 9, array(5, 2, &[4, 0, 0, 0, 128, 0, 0, 0])),
            ],
            tensors: vec![
                // 3 * 68 = 204 bytes, padded to 224.
                tensor("token_embd.weight", &[64, 3], 8, 0),
                // 20 bytes, padded to 32.
                tensor("output_norm.weight", &[5], 0, 224),
                // 64 bytes.
                tensor("output.weight", &[4, 2, 2], 0, 256),
            ],
            alignment: 32,
            data: (0..320u32).map(|i| i as u8).collect(),
        }
    }

    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let count = |lie: Option<u64>, n: usize| lie.unwrap_or(n as u64).to_le_bytes();
        out.extend(count(self.n_tensors, self.tensors.len()));
        out.extend(count(self.n_keys, self.keys.len()));
        for Key(name, type_id, payload) in &self.keys {
            out.extend(string(name));
            out.extend(type_id.to_le_bytes());
            out.extend(payload);
        }
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend(t.dims.unwrap_or(t.shape.len() as u32).to_le_bytes());
            t.shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.type_id.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// splitmix64: mutations from a seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// A few random edits: bits, bytes, interesting words, cuts, insertions, moved runs.
pub fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    const WORDS: [u64; 10] = [
        0,
        1,
        31,
        u64::MAX,
        1 << 63,
        1 << 32,
        0xffff_ffff,
        0x7fff_ffff,
        1 << 20,
        u64::MAX - 31,
    ];
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next() as u8,
            2 => {
                let word = WORDS[rng.below(WORDS.len())].to_le_bytes();
                let n = [1, 2, 4, 8][rng.below(4)].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&word[..n]);
            }
            3 => bytes.truncate(at),
            4 => bytes.insert(at, rng.next() as u8),
            5 => drop(bytes.remove(at)),
            _ => {
                let n = rng.below(16).min(bytes.len() - at);
                let to = rng.below(bytes.len() - n + 1);
                bytes.copy_within(at..at + n, to);
            }
        }
    }
}
