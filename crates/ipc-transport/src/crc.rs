//! CRC-32C (Castagnoli), the check sum of frames. Reflected polynomial 0x82f63b78, as in iSCSI
//! (RFC 3720 appendix B.4, where the test values come from).
//!
//! Eight bytes a turn: table `k` moves a byte past `k` more, so that the eight look-ups of a turn do not wait for
//! each other ("slicing by eight").

const BYTES: usize = 8;
const TABLES: [[u32; 256]; BYTES] = tables();

const fn tables() -> [[u32; 256]; BYTES] {
    let mut tables = [[0; 256]; BYTES];
    let mut n = 0;
    while n < 256 {
        let mut word = n as u32;
        let mut bit = 0;
        while bit < 8 {
            word = (word >> 1) ^ if word & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        tables[0][n] = word;
        n += 1;
    }
    let mut at = 1;
    while at < BYTES {
        let mut n = 0;
        while n < 256 {
            let word = tables[at - 1][n];
            tables[at][n] = (word >> 8) ^ tables[0][(word & 0xff) as usize];
            n += 1;
        }
        at += 1;
    }
    tables
}

/// The sum of `parts`, one after the other.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    !parts.iter().fold(u32::MAX, |sum, part| add(sum, part))
}

fn add(mut sum: u32, part: &[u8]) -> u32 {
    let (turns, rest) = part.as_chunks::<BYTES>();
    for turn in turns {
        let bytes = (u64::from_le_bytes(*turn) ^ u64::from(sum)).to_le_bytes();
        let words = bytes.iter().zip(TABLES.iter().rev());
        sum = words.fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    for byte in rest {
        sum = (sum >> 8) ^ TABLES[0][((sum ^ u32::from(*byte)) & 0xff) as usize];
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{TABLES, crc32c};

    #[test]
    fn the_values_of_the_standard() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c(&[&[0xff; 32]]), 0x62a8_ab43);
        assert_eq!(crc32c(&[b"12345", b"", b"6789"]), 0xe306_9283);
    }
    /// Every length and every cut gives the sum that bytes taken one by one give.
    #[test]
    fn turns_of_eight_are_eight_bytes() {
        let bytes: Vec<u8> = (0..100u32).map(|n| (n * 151 + 7) as u8).collect();
        for n in 0..=bytes.len() {
            let one = |sum: u32, byte: &u8| (sum >> 8) ^ TABLES[0][usize::from(sum as u8 ^ byte)];
            let want = !bytes[..n].iter().fold(u32::MAX, one);
            let (head, tail) = bytes[..n].split_at(n / 3);
            assert_eq!(crc32c(&[&bytes[..n]]), want, "{n}");
            assert_eq!(crc32c(&[head, tail]), want, "{n}");
        }
    }
}
