//! The comparison: equal bits or a count of differences.

/// What a fresh output holds: an output element with these bits was not written.
const UNWRITTEN: u32 = 0xffff_ffff;

/// The result of one comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was compared.
    pub name: String,
    /// Values compared.
    pub compared: u64,
    /// Values that differ, unwritten ones included.
    pub differing: u64,
    /// The first difference, in words.
    pub first: Option<String>,
}

impl Outcome {
    /// Whether something was compared and nothing differs.
    #[must_use]
    pub fn equal(&self) -> bool {
        self.compared > 0 && self.differing == 0
    }

    fn new<T>(
        name: String,
        want: &[T],
        got: &[T],
        same: impl Fn(&T, &T) -> bool,
        say: impl Fn(&T) -> String,
    ) -> Self {
        let mut outcome = Self {
            name,
            compared: want.len() as u64,
            differing: 0,
            first: None,
        };
        if want.len() != got.len() {
            outcome.differing = want.len().abs_diff(got.len()) as u64;
            outcome.first = Some(format!("{} values, got {}", want.len(), got.len()));
        }
        for (index, (w, g)) in want.iter().zip(got).enumerate() {
            if !same(w, g) {
                outcome.differing += 1;
                outcome
                    .first
                    .get_or_insert_with(|| format!("[{index}]: want {}, got {}", say(w), say(g)));
            }
        }
        outcome
    }
}

/// Compares f32 values by their bits. A NaN equals every NaN except the poison of fresh buffers:
/// which NaN an operation gives is the processor's choice.
#[must_use]
pub fn compare_f32(name: impl Into<String>, want: &[f32], got: &[f32]) -> Outcome {
    Outcome::new(
        name.into(),
        want,
        got,
        |w, g| {
            let nan = w.is_nan() && g.is_nan();
            g.to_bits() != UNWRITTEN && (nan || w.to_bits() == g.to_bits())
        },
        |v| format!("{v:e} ({:#010x})", v.to_bits()),
    )
}

/// Compares bytes.
#[must_use]
pub fn compare_bytes(name: impl Into<String>, want: &[u8], got: &[u8]) -> Outcome {
    Outcome::new(
        name.into(),
        want,
        got,
        |w, g| w == g,
        |v| format!("{v:#04x}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_is_a_difference() {
        let want = [1.0f32, 2.0, 3.0];
        assert!(compare_f32("x", &want, &want).equal());
        let got = [1.0, f32::from_bits(2f32.to_bits() ^ 1), 3.0];
        let outcome = compare_f32("x", &want, &got);
        assert_eq!((outcome.compared, outcome.differing), (3, 1));
        assert!(outcome.first.unwrap().starts_with("[1]: want 2e0"));
        assert!(
            !compare_f32("x", &[0.0], &[-0.0]).equal(),
            "the sign of zero counts"
        );
    }

    #[test]
    fn nan_equals_nan_but_not_a_number_nor_poison() {
        let nan = f32::from_bits(0x7fc0_0000);
        assert!(compare_f32("x", &[nan], &[f32::from_bits(0xffc0_0001)]).equal());
        assert!(!compare_f32("x", &[nan], &[1.0]).equal());
        assert!(!compare_f32("x", &[1.0], &[nan]).equal());
        assert!(!compare_f32("x", &[nan], &[f32::from_bits(UNWRITTEN)]).equal());
    }

    #[test]
    fn missing_values_and_empty_comparisons_are_not_equal() {
        assert!(!compare_f32("x", &[1.0, 2.0], &[1.0]).equal());
        assert!(!compare_f32("x", &[], &[]).equal());
        assert!(!compare_bytes("x", &[1], &[2]).equal());
    }
}
