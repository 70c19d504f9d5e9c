//! Bytes to text as they come. A character may be spread over tokens: its bytes are held back until
//! it is whole. Bytes that can never become UTF-8 turn into U+FFFD at once, one for each maximal
//! invalid part, exactly as `String::from_utf8_lossy` does on the whole.

/// Turns a stream of token bytes into text.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// The start of a character, at most three bytes.
    held: Vec<u8>,
}

impl Decoder {
    /// Appends what became readable by `bytes` to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.held.is_empty() {
            let kept = decode_prefix(bytes, out);
            self.held.extend_from_slice(&bytes[kept..]);
            return;
        }
        self.held.extend_from_slice(bytes);
        let kept = decode_prefix(&self.held, out);
        self.held.drain(..kept);
    }

    /// Whether a character is incomplete.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the text: an incomplete character becomes U+FFFD. The decoder is empty again.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.held));
        self.held.clear();
    }
}

/// Decodes all but an incomplete last character; returns the number of bytes used.
fn decode_prefix(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(text) => {
                out.push_str(text);
                return bytes.len();
            }
            Err(error) => {
                let valid = used + error.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&bytes[used..valid]));
                used = valid;
                match error.error_len() {
                    None => return used,
                    Some(len) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        used += len;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_two(bytes: &[u8], cut: usize) -> (String, String) {
        let mut decoder = Decoder::default();
        let mut first = String::new();
        decoder.push(&bytes[..cut], &mut first);
        let mut all = first.clone();
        decoder.push(&bytes[cut..], &mut all);
        decoder.finish(&mut all);
        assert!(!decoder.is_holding());
        (first, all)
    }

    #[test]
    fn every_cut_gives_the_text_of_the_whole() {
        let cases: &[&[u8]] = &[
            "aé｜🙂z".as_bytes(),
            b"\xff\xfe",
            b"a\xe4\xbd",
            b"\xe4\xbd\xe4\xbd\xa0",
            b"\xf0\x9f\x99a\xf0\x9f",
            b"\xc0\xafx\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"",
        ];
        for bytes in cases {
            let want = String::from_utf8_lossy(bytes);
            for cut in 0..=bytes.len() {
                let (first, all) = in_two(bytes, cut);
                assert_eq!(all, want, "{bytes:x?} cut at {cut}");
                assert!(want.starts_with(&first));
            }
        }
    }

    #[test]
    fn whole_characters_are_given_out_at_once_and_parts_never() {
        let mut decoder = Decoder::default();
        let mut out = String::new();
        for (byte, want) in [(b'a', "a"), (0xe4, "a"), (0xbd, "a"), (0xa0, "a你")] {
            decoder.push(&[byte], &mut out);
            assert_eq!(out, want);
        }
        decoder.push(b"\xe4b", &mut out);
        assert_eq!(out, "a你\u{fffd}b", "an invalid part does not wait");
    }
}
