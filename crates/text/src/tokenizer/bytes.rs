//! The GPT-2 byte alphabet: every byte is one printable character, so that a vocabulary of
//! arbitrary bytes can be stored as text. Bytes that print stand for themselves; the other 68 take
//! the characters from U+0100 on, in byte order.

/// Whether the byte stands for itself.
const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHAR_OF_BYTE: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut shifted = 0u32;
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = if prints(byte as u8) {
            byte as u8 as char
        } else {
            shifted += 1;
            match char::from_u32(0xff + shifted) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    table
};

/// The first character past the alphabet.
const END: usize = 0x100 + 68;

const BYTE_OF_CHAR: [Option<u8>; END] = {
    let mut table = [None; END];
    let mut byte = 0usize;
    while byte < 256 {
        table[CHAR_OF_BYTE[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    table
};

/// The alphabet's character for a byte.
#[cfg(test)]
pub(crate) fn char_of_byte(byte: u8) -> char {
    CHAR_OF_BYTE[usize::from(byte)]
}

/// The bytes an alphabet text stands for; `None` if a character is not of the alphabet.
pub(crate) fn bytes_of_text(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|c| BYTE_OF_CHAR.get(c as usize).copied().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_with_its_known_corners() {
        for byte in 0..=255u8 {
            let text = char_of_byte(byte).to_string();
            assert_eq!(bytes_of_text(&text), Some(vec![byte]));
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(char_of_byte(b'\t'), 'ĉ');
        assert_eq!(char_of_byte(0x7f), 'ġ');
        assert_eq!(char_of_byte(0xad), 'Ń');
        assert_eq!(char_of_byte(b'a'), 'a');
        assert_eq!(bytes_of_text("a b"), None, "a raw space is not of it");
        assert_eq!(bytes_of_text("ń"), None, "the first character past it");
        assert_eq!(bytes_of_text("｜"), None);
    }
}
