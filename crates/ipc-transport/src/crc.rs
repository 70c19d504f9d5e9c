//! CRC-32C (Castagnoli), the check sum of frames. Reflected polynomial 0x82f63b78, as in iSCSI
//! (RFC 3720 appendix B.4, where the test values come from).

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut word = n as u32;
        let mut bit = 0;
        while bit < 8 {
            word = (word >> 1) ^ if word & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[n] = word;
        n += 1;
    }
    table
}

/// The sum of `parts`, one after the other.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for byte in parts.iter().copied().flatten() {
        sum = (sum >> 8) ^ TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize];
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn the_values_of_the_standard() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c(&[&[0xff; 32]]), 0x62a8_ab43);
        assert_eq!(crc32c(&[b"12345", b"", b"6789"]), 0xe306_9283);
    }
}
