//! A strict parser (RFC 8259): no NaN, no leading zeros or plus, no raw controls in strings, no lone
//! surrogates, nothing after the value, at most 128 levels.

use std::collections::HashMap;

use super::Json;
use super::number::spell;

/// Levels of arrays and objects; also `serde_json`'s limit.
const MAX_DEPTH: usize = 128;

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {at}: expected {expected}")]
pub struct JsonError {
    /// Byte offset.
    pub at: usize,
    /// What could have stood there.
    pub expected: &'static str,
}

/// Parses one value.
///
/// # Errors
/// [`JsonError`] with the place.
pub fn parse(text: &str) -> Result<Json, JsonError> {
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return parser.fail("the end");
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn fail<T>(&self, expected: &'static str) -> Result<T, JsonError> {
        Err(JsonError {
            at: self.at,
            expected,
        })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, literal: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(literal.as_bytes());
        if found {
            self.at += literal.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => self.fail("fewer levels"),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.eat("null") => Ok(Json::Null),
            _ if self.eat("true") => Ok(Json::Bool(true)),
            _ if self.eat("false") => Ok(Json::Bool(false)),
            _ => self.fail("a value"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut members: Vec<(String, Json)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        self.skip_space();
        if self.eat("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return self.fail("a key");
            }
            let key = self.string()?;
            self.skip_space();
            if !self.eat(":") {
                return self.fail("a colon");
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            match places.get(&key) {
                Some(place) => members[*place].1 = value,
                None => {
                    places.insert(key.clone(), members.len());
                    members.push((key, value));
                }
            }
            self.skip_space();
            if self.eat("}") {
                return Ok(Json::Object(members));
            }
            if !self.eat(",") {
                return self.fail("a comma or the end of the object");
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.eat("]") {
            return Ok(Json::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.eat("]") {
                return Ok(Json::Array(items));
            }
            if !self.eat(",") {
                return self.fail("a comma or the end of the array");
            }
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return self.fail("a digit");
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        self.eat("-");
        if !self.eat("0") {
            self.digits()?;
        }
        if self.eat(".") {
            self.digits()?;
        }
        if self.eat("e") || self.eat("E") {
            let _signed = self.eat("+") || self.eat("-");
            self.digits()?;
        }
        Ok(Json::Number(spell(&self.text[start..self.at])))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..=0x1f)) {
                self.at += 1;
            }
            out.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                _ => return self.fail("a closing quote, or an escape for a control"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let letter = self.text.as_bytes().get(self.at + 1);
        let plain = match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return self.fail("an escape"),
        };
        self.at += 2;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, JsonError> {
        let high = self.hex4()?;
        let code = match high {
            0xd800..=0xdbff => {
                let low = match self.text.as_bytes()[self.at + 6..].starts_with(b"\\u") {
                    true => {
                        self.at += 6;
                        let low = self.hex4();
                        self.at -= 6;
                        low?
                    }
                    false => 0,
                };
                if !(0xdc00..=0xdfff).contains(&low) {
                    return self.fail("a surrogate pair");
                }
                self.at += 6;
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
            }
            _ => high,
        };
        match char::from_u32(code) {
            Some(c) => {
                self.at += 6;
                Ok(c)
            }
            None => self.fail("a surrogate pair"),
        }
    }

    /// The four digits after `\u` at the current place, which stays.
    fn hex4(&self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at + 2..self.at + 6);
        let text = digits
            .filter(|d| d.iter().all(u8::is_ascii_hexdigit))
            .and_then(|d| std::str::from_utf8(d).ok());
        match text.and_then(|t| u32::from_str_radix(t, 16).ok()) {
            Some(code) => Ok(code),
            None => self.fail("four hexadecimal digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lax_spellings_are_refused_at_their_place() {
        let cases = [
            ("NaN", 0),
            ("Infinity", 0),
            ("-Infinity", 1),
            ("+1", 0),
            ("01", 1),
            ("-", 1),
            ("1.", 2),
            (".5", 0),
            ("1e", 2),
            ("1e+", 3),
            ("\"a\nb\"", 2),
            ("\"\u{0}\"", 1),
            ("\"abc", 4),
            (r#""\x""#, 1),
            (r#""\u12g4""#, 1),
            (r#""\u12"#, 1),
            (r#""\ud800""#, 1),
            (r#""\ud800\u0041""#, 1),
            (r#""\ud800\ud800""#, 1),
            (r#""\udc00""#, 1),
            (r#""\ud800\"#, 1),
            ("[1,]", 3),
            ("[1 2]", 3),
            ("{a:1}", 1),
            ("{\"a\" 1}", 5),
            ("{\"a\":1,}", 7),
            ("{\"a\":}", 5),
            ("", 0),
            ("  ", 2),
            ("1 2", 2),
            ("nul", 0),
            ("'a'", 0),
            ("\u{feff}1", 0),
            ("\u{a0}1", 0),
        ];
        for (text, at) in cases {
            match parse(text) {
                Err(error) => assert_eq!(error.at, at, "{text:?}: {error}"),
                Ok(value) => panic!("{text:?} was accepted as {value}"),
            }
        }
    }

    #[test]
    fn depth_is_limited() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(parse(&nested(128)).is_ok());
        assert_eq!(parse(&nested(129)).unwrap_err().at, 128);
        assert!(
            parse(&"[{\"a\":".repeat(100_000)).is_err(),
            "no stack overflow"
        );
    }

    #[test]
    fn every_prefix_of_a_document_is_refused_without_a_panic() {
        let text = r#"{"a":[1.5e-3,"é\u00e9\ud83d\ude42",null,true,false,{}]}"#;
        assert!(parse(text).is_ok());
        for (cut, _) in text.char_indices() {
            assert!(parse(&text[..cut]).is_err(), "cut at {cut}");
        }
    }
}
