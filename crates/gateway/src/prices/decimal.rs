//! Decimal numbers as other people's JSON writes them (`1.5e-07`), read exactly from their text, never through a float.

/// A number in whole units of 10⁻¹², and whether something finer had to be rounded up to get there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pico {
    pub(super) units: u64,
    pub(super) rounded: bool,
}

/// Digits that a double can hold. What comes after them in other people's files is noise of their own sums.
const DIGITS_MAX: usize = 15;
const PLACES: i32 = 12;

/// Reads a JSON number that is not negative. Digits beyond the fifteenth are rounded to the nearest; a rest finer than
/// 10⁻¹² is rounded up, so that a price is never below what it was.
pub(super) fn pico(text: &str) -> Option<Pico> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || digits.len() > 100 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let places = i32::try_from(fraction.len()).ok()?;
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent).parse::<i32>().ok()?.checked_sub(places)?;
    let (number, exponent) = significant(digits.trim_start_matches('0'), exponent)?;
    let scale = exponent.checked_add(PLACES)?;
    let power = 10_u128.checked_pow(scale.unsigned_abs());
    let (units, rounded) = match power {
        Some(power) if scale >= 0 => (number.checked_mul(power)?, false),
        Some(power) => (number.div_ceil(power), number % power != 0),
        None if scale >= 0 => return if number == 0 { Some(Pico { units: 0, rounded: false }) } else { None },
        None => (u128::from(number != 0), number != 0),
    };
    Some(Pico { units: u64::try_from(units).ok()?, rounded })
}

/// At most [`DIGITS_MAX`] digits, rounded to the nearest, and the exponent that goes with them.
fn significant(digits: &str, exponent: i32) -> Option<(u128, i32)> {
    let (kept, noise) = digits.split_at_checked(DIGITS_MAX).unwrap_or((digits, ""));
    let number = if kept.is_empty() { 0 } else { kept.parse::<u128>().ok()? };
    let up = noise.bytes().next().is_some_and(|digit| digit >= b'5');
    let dropped = i32::try_from(noise.len()).ok()?;
    Some((number.checked_add(u128::from(up))?, exponent.checked_add(dropped)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prices_per_token_are_read_exactly() {
        let check =
            |text: &str, units: u64, rounded: bool| assert_eq!(pico(text), Some(Pico { units, rounded }), "{text}");
        check("1.5e-07", 150_000, false);
        check("2.5e-06", 2_500_000, false);
        check("0.00000015", 150_000, false);
        check("1E-5", 10_000_000, false);
        check("0.0", 0, false);
        check("0e999", 0, false);
        check("3", 3_000_000_000_000, false);
        check("1.25e+0", 1_250_000_000_000, false);
        // Noise of a double, as these files really have it.
        check("5.0000000000000004e-08", 50_000, false);
        check("2.1429999999999996e-06", 2_143_000, false);
        check("9.9999999999999999e-07", 1_000_000, false);
        // Finer than the unit: up.
        check("1.00000000000001e-07", 100_001, true);
        check("1e-13", 1, true);
        check("1e-999", 1, true);
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for bad in ["", "-1", "e5", ".5", "1e", "NaN", "\"1\"", "null", "1.5.2", "1e99", "1e9999999999", "{}", "true"] {
            assert_eq!(pico(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_way_to_write_a_number_reads_as_that_number(units in 0..1_000_000_000_000_000u64, shift in 0..12usize) {
            let text = format!("{units}e-12");
            prop_assert_eq!(pico(&text), Some(Pico { units, rounded: false }));
            let digits = format!("{units:0>width$}", width = shift + 1);
            let (whole, fraction) = digits.split_at(digits.len() - shift);
            let text = format!("{whole}.{fraction}0e-{:02}", 12 - shift);
            prop_assert_eq!(pico(&text), Some(Pico { units, rounded: false }));
        }
    }
}
