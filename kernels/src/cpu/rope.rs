//! Rotary embedding of a row's tail, interleaved pairs (spec/ds4-architecture.md 2.5).

use engine_core::mutant::mutant;

/// Direction of the rotation: queries and keys turn forward, attention outputs turn back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// (a, b) -> (a c - b s, a s + b c).
    Forward,
    /// The same with -s.
    Back,
}

#[inline(always)]
fn rotate_impl(row: &mut [f32], cos: &[f32], sin: &[f32], turn: Turn) {
    let n_rot = 2 * cos.len();
    let at = if mutant(1) { 0 } else { row.len() - n_rot };
    let tail = &mut row[at..at + n_rot];
    for (pair, (c, s)) in tail.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
        let s = if turn == Turn::Back { -*s } else { *s };
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a.mul_add(*c, -(b * s));
        pair[1] = a.mul_add(s, b * *c);
    }
}

dispatch! {
    /// Rotates the last `2 * cos.len()` elements of `row` by the angles of its position. Each output
    /// is one product rounded and one fma: `fma(a, c, -(b * s))` and `fma(a, s, b * c)`.
    ///
    /// # Panics
    /// If the row is shorter than the rotated part.
    pub fn rotate(row: &mut [f32], cos: &[f32], sin: &[f32], turn: Turn) = rotate_impl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_keeps_length_and_head_and_undoes_itself() {
        let (c, s) = ([0.6f32, 0.0], [0.8f32, -1.0]);
        let row = [9.0f32, 1.0, 2.0, 3.0, 4.0];
        let mut turned = row;
        rotate(&mut turned, &c, &s, Turn::Forward);
        assert_eq!(turned[0], 9.0, "only the tail turns");
        assert!((turned[1] - (0.6 - 1.6)).abs() < 1e-6 && (turned[2] - (0.8 + 1.2)).abs() < 1e-6);
        assert_eq!(turned[3..], [4.0, -3.0]);
        rotate(&mut turned, &c, &s, Turn::Back);
        for (a, b) in turned.iter().zip(&row) {
            assert!((a - b).abs() < 1e-6);
        }
    }
}
