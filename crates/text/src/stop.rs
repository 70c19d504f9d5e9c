//! Stop strings in a stream. Text that may be the start of one is held back until that is decided;
//! the string whose last character comes first wins, of several that end there the longest. How the
//! text is cut into pieces changes nothing.

/// Looks for stop strings.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Text not given out yet: the longest start of a stop string that the text ends with.
    held: String,
}

#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// `fallback[n]`: the longest start of `text` that `text[..=n]` ends with, itself excepted.
    fallback: Vec<usize>,
    /// How much of `text` the stream ends with.
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut fallback = vec![0; text.len()];
        let mut len = 0;
        for at in 1..text.len() {
            while len > 0 && text[at] != text[len] {
                len = fallback[len - 1];
            }
            len += usize::from(text[at] == text[len]);
            fallback[at] = len;
        }
        Self {
            text,
            fallback,
            matched: 0,
        }
    }

    /// Takes a byte; whether the stream now ends with the string.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        let ends = self.matched == self.text.len();
        if ends {
            self.matched = self.fallback[self.matched - 1];
        }
        ends
    }
}

impl StopStrings {
    /// Empty strings never match.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().filter(|s| !s.as_ref().is_empty());
        Self {
            stops: stops.map(|s| Stop::new(s.as_ref())).collect(),
            held: String::new(),
        }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes text and appends to `out` what is surely before any stop string. Once a string was
    /// found it is returned, the text before it has been given out, and the rest is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<String> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        for c in text.chars() {
            self.held.push(c);
            if let Some(found) = self.step(c) {
                let before = self.held.len() - found.len();
                out.push_str(&self.held[..before]);
                self.held.clear();
                return Some(found);
            }
            let needed = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
            let sure = self.held.len() - needed;
            out.extend(self.held.drain(..sure));
        }
        None
    }

    fn step(&mut self, c: char) -> Option<String> {
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        let mut found: Option<&[u8]> = None;
        for stop in &mut self.stops {
            // A string ends with a character, so that only the last byte can complete one.
            let ends = bytes.iter().fold(false, |_, byte| stop.step(*byte));
            if ends && found.is_none_or(|f| f.len() < stop.text.len()) {
                found = Some(&stop.text);
            }
        }
        found.map(|f| String::from_utf8_lossy(f).into_owned())
    }

    /// Ends the text: what was held back is text after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text given out and the string found, the text fed in pieces of `width` characters.
    fn run(stops: &[&str], text: &str, width: usize) -> (String, Option<String>) {
        let mut matcher = StopStrings::new(stops);
        let mut out = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(width) {
            let piece: String = piece.iter().collect();
            if let Some(found) = matcher.push(&piece, &mut out) {
                return (out, Some(found));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    }

    /// The definition, by search.
    fn slow(stops: &[&str], text: &str) -> (String, Option<String>) {
        for (at, c) in text.char_indices() {
            let seen = &text[..at + c.len_utf8()];
            let found = stops
                .iter()
                .filter(|s| !s.is_empty() && seen.ends_with(**s));
            if let Some(stop) = found.max_by_key(|s| s.len()) {
                let before = seen.len() - stop.len();
                return (seen[..before].to_owned(), Some((*stop).to_owned()));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn strings_are_found_across_pieces() {
        let cases: [(&[&str], &str, &str, Option<&str>); 9] = [
            (&["END"], "one END two", "one ", Some("END")),
            (&["END"], "one EN", "one EN", None),
            (&["aab"], "aaab", "a", Some("aab")),
            (&["b", "ab"], "xab", "x", Some("ab")),
            (&["abc", "b"], "abc", "a", Some("b")),
            (&["\n\n"], "a\nb\n\nc", "a\nb", Some("\n\n")),
            (&["é｜"], "eé｜", "e", Some("é｜")),
            (&[""], "text", "text", None),
            (&[], "text", "text", None),
        ];
        for (stops, text, before, found) in cases {
            for width in 1..=text.len() {
                let got = run(stops, text, width);
                assert_eq!(
                    got,
                    (before.to_owned(), found.map(String::from)),
                    "{text} {width}"
                );
            }
        }
    }

    #[test]
    fn only_what_may_be_a_start_is_held_back() {
        let mut matcher = StopStrings::new(["</s>"]);
        let mut out = String::new();
        for (piece, want) in [("a<", "a"), ("/", "a"), ("b", "a</b"), ("<</s", "a</b<")] {
            assert_eq!(matcher.push(piece, &mut out), None);
            assert_eq!(out, want);
        }
        assert_eq!(matcher.push("> tail", &mut out), Some("</s>".to_owned()));
        assert_eq!(out, "a</b<");
        assert_eq!(matcher.push("more", &mut out), None, "going on is harmless");
    }

    proptest! {
        #[test]
        fn any_cut_equals_the_search(
            stops in prop::collection::vec("[ab｜]{0,4}", 0..4),
            text in "[ab｜]{0,24}",
            width in 1usize..8,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &text, width), slow(&stops, &text));
        }
    }
}
