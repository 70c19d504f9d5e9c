//! Numbers in Python's spelling: integers digit for digit, others as `repr(float)`.

/// Respells a number that is valid JSON.
pub(super) fn spell(text: &str) -> String {
    if !text.contains(['.', 'e', 'E']) {
        return if text == "-0" { "0" } else { text }.to_owned();
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => repr(value),
        // Python would write `Infinity`, which is not JSON: leave what was sent.
        _ => text.to_owned(),
    }
}

/// Shortest digits that read back as `value`; plain from 1e-4 to below 1e16, else with exponent.
fn repr(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

#[cfg(test)]
mod tests {
    use super::spell;

    #[test]
    fn spelling_is_that_of_python() {
        // Right column: json.dumps(json.loads(left)) of Python 3.11.
        let cases = [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            ("1.0", "1.0"),
            ("1.50", "1.5"),
            ("1e2", "100.0"),
            ("1E+15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1.25e22", "1.25e+22"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e-100", "1e-100"),
            ("0.1", "0.1"),
            ("3.141592653589793", "3.141592653589793"),
            ("2.5e-324", "5e-324"),
            ("1e999", "1e999"),
        ];
        for (text, want) in cases {
            assert_eq!(spell(text), want, "{text}");
        }
    }
}
