//! Numeric classes: what a path may do to the bits of the result (arithmetic contract, rule 10).

use std::fmt;

/// The promise a path makes about its output bits. Ordered from strongest to weakest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NumericClass {
    /// Bit-equal to the reference on every device and for every scheduling choice. The default.
    #[default]
    Equal,
    /// Same structure, other bits (for example f16 matrix units). Needs a quality gate and a label.
    Near(&'static str),
    /// Changes the model itself (for example fewer experts). Needs a label.
    Approx(&'static str),
}

impl NumericClass {
    /// The weaker of two classes: a path is as strong as its weakest part.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.max(other)
    }
}

impl fmt::Display for NumericClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal"),
            Self::Near(why) => write!(f, "near:{why}"),
            Self::Approx(why) => write!(f, "approx:{why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NumericClass::{self, Approx, Equal, Near};

    #[test]
    fn a_path_is_as_strong_as_its_weakest_part() {
        assert_eq!(Equal.and(Equal), Equal);
        assert_eq!(Equal.and(Near("f16-mma")), Near("f16-mma"));
        assert_eq!(Approx("top4").and(Near("f16-mma")), Approx("top4"));
        assert_eq!(NumericClass::default().to_string(), "equal");
        assert_eq!(Near("f16-mma").to_string(), "near:f16-mma");
    }
}
