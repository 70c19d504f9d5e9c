//! Mutated files never panic, and whatever is accepted can be read to its last byte.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{Raw, Rng, mutate};
use fpx_quant::{Fp2Dialect, Fp6Endpoint};
use gguf::{Dialects, Gguf, Header, Limits, OpenOptions};
use proptest::prelude::*;

/// Opens, and if that works touches everything. Returns whether it was accepted.
fn exercise(bytes: &[u8]) -> bool {
    let streamed = Header::read(bytes, &Limits::default());
    let parsed = Header::parse(bytes, &Limits::default());
    assert_eq!(streamed.is_ok(), parsed.is_ok());
    let options = OpenOptions {
        dialects: Dialects {
            fp2: Some(Fp2Dialect::Signed),
            fp6: Some(Fp6Endpoint::Zero),
        },
        ..OpenOptions::default()
    };
    match Gguf::from_bytes(bytes.to_vec(), &options) {
        Err(e) => {
            assert!(!e.to_string().is_empty());
            false
        }
        Ok(file) => {
            for t in file.tensors() {
                assert_eq!(file.bytes(t).len(), t.bytes());
                assert_eq!(t.elems(), t.rows() * t.row_elems());
            }
            for (key, value) in file.metadata().iter() {
                let _ = (value.describe(), file.metadata().find_u32(key));
                let _ = file.metadata().find_f32_per_layer(key, 3);
            }
            true
        }
    }
}

fn one(seed: u64) -> bool {
    let mut rng = Rng(seed);
    let mut bytes = Raw::valid().bytes();
    mutate(&mut bytes, &mut rng);
    exercise(&bytes)
}

#[test]
fn seeded_mutations() {
    let accepted = (0..20_000).filter(|&seed| one(seed)).count();
    // The mutator reaches both outcomes; otherwise it tests nothing.
    assert!((200..19_800).contains(&accepted), "{accepted} accepted");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        exercise(&bytes);
    }

    #[test]
    fn arbitrary_bytes_after_a_good_start(
        keep in 0usize..400,
        tail in proptest::collection::vec(any::<u8>(), 0..128),
    ) {
        let mut bytes = Raw::valid().bytes();
        bytes.truncate(keep);
        bytes.extend(tail);
        exercise(&bytes);
    }

    #[test]
    fn overwritten_words(at in 0usize..600, word in any::<u64>()) {
        let mut bytes = Raw::valid().bytes();
        let at = at.min(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        exercise(&bytes);
    }
}

#[test]
#[ignore = "soak: mutates headers for 60 s"]
fn fuzz() {
    let end = Instant::now() + Duration::from_secs(60);
    let mut seed = 1 << 32;
    while Instant::now() < end {
        for _ in 0..1000 {
            one(seed);
            seed += 1;
        }
    }
    println!("{} files", seed - (1 << 32));
}
