//! Options: strictly those a verb knows. One that is misspelt would leave something out in silence.

use std::path::PathBuf;

use device::survey::Settings;
use device::{cuda, hip};

use super::{Stop, refuse};

/// Words after a verb, checked.
pub(crate) struct Options<'a>(&'a [String]);

impl<'a> Options<'a> {
    /// Reads words. `values`: options that take one; `flags`: those that take none.
    ///
    /// # Errors
    /// A word that is neither, or an option without its value.
    pub(crate) fn of(args: &'a [String], values: &[&str], flags: &[&str]) -> Result<Self, Stop> {
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let word = word.as_str();
            if values.contains(&word) {
                let value = words.next().filter(|v| !v.starts_with("--"));
                value.ok_or_else(|| refuse(format!("{word} wants a value")))?;
            } else if !flags.contains(&word) {
                let known = [values, flags].concat().join(", ");
                return Err(refuse(format!("{word:?} is not among {known}")));
            }
        }
        Ok(Self(args))
    }

    /// Whether a flag is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|a| a == name)
    }

    /// Every value of an option.
    pub(crate) fn all(&self, name: &str) -> Vec<&'a str> {
        let pairs = self.0.windows(2).filter(|w| w[0] == name);
        pairs.map(|w| w[1].as_str()).collect()
    }

    /// The value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.all(name).first().copied()
    }

    /// Where vendors' libraries are.
    pub(crate) fn libraries(&self) -> Settings {
        let file = |name: &str| self.value(name).map(PathBuf::from);
        Settings {
            cuda: cuda::Settings {
                nvrtc: file("--nvrtc"),
            },
            hip: hip::Settings {
                hip: file("--hip"),
                hiprtc: file("--hiprtc"),
            },
        }
    }
}
