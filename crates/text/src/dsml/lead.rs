//! The start of a tag, as far as it is text: at most two line breaks (they belong to the markup),
//! `<` and perhaps `/`. Then the special token follows; or, in answers of models that spell the
//! marker out, the marker in letters.

/// Line breaks that belong to a tag.
const BREAKS: usize = 2;
/// Bars people and models write for U+FF5C, singly or doubled.
const BARS: [char; 3] = ['｜', '‖', '|'];
const NAME: &str = "DSML";

/// What held-back text may still become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Not a tag.
    No,
    /// Perhaps a tag.
    Partial,
    /// A spelled-out tag's start.
    Spelled,
}

/// Whether a tag can start with this character.
pub(super) fn starts(c: char) -> bool {
    c == '\n' || c == '<'
}

/// Whether the character is a bar.
pub(super) fn is_bar(c: char) -> bool {
    BARS.contains(&c)
}

/// Reads held-back text.
pub(super) fn read(held: &str, spelled: bool) -> Lead {
    let breaks = breaks(held);
    let rest = &held[breaks..];
    if breaks > BREAKS {
        return Lead::No;
    }
    let Some(rest) = rest.strip_prefix('<') else {
        return if rest.is_empty() {
            Lead::Partial
        } else {
            Lead::No
        };
    };
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    if rest.is_empty() {
        return Lead::Partial;
    }
    if spelled { marker(rest) } else { Lead::No }
}

fn marker(text: &str) -> Lead {
    let name = text.trim_start_matches(is_bar);
    let bars = text[..text.len() - name.len()].chars().count();
    if bars == 0 || bars > 2 {
        return Lead::No;
    }
    match name.strip_prefix(NAME) {
        Some("") => Lead::Partial,
        Some(end) if end.starts_with(is_bar) => Lead::Spelled,
        Some(_) => Lead::No,
        None if NAME.starts_with(name) => Lead::Partial,
        None => Lead::No,
    }
}

/// Line breaks at the start of held-back text, in bytes as in number.
pub(super) fn breaks(held: &str) -> usize {
    held.len() - held.trim_start_matches('\n').len()
}

/// Whether held-back text ends as a closing tag's start does.
pub(super) fn is_closing(held: &str) -> bool {
    held.trim_start_matches('\n').starts_with("</")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_and_every_prefix_is_read() {
        for open in ["<", "</", "\n<", "\n\n</"] {
            for bars in ["｜", "‖", "|", "||", "｜｜"] {
                let whole = format!("{open}{bars}DSML{bars}");
                let end = whole.find("DSML").unwrap() + 4 + bars.chars().next().unwrap().len_utf8();
                for (at, _) in whole.char_indices().skip(1) {
                    let want = if at < end {
                        Lead::Partial
                    } else {
                        Lead::Spelled
                    };
                    assert_eq!(read(&whole[..at], true), want, "{}", &whole[..at]);
                }
                assert_eq!(read(&whole[..end], true), Lead::Spelled);
                assert_eq!(read(&whole[..end], false), Lead::No);
                assert_eq!(is_closing(&whole), open.ends_with('/'));
                assert_eq!(breaks(&whole), open.matches('\n').count());
            }
        }
        for text in [
            "x", "\n\n\n", "\nx", "<x", "<//", "</x", "<|||", "<|DSMX", "<|dsml|", "<DSML",
        ] {
            assert_eq!(read(text, true), Lead::No, "{text:?}");
        }
    }
}
