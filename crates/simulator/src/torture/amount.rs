//! Credits in millionths and their text, read apart from the product's own code: a checker must not share its mistakes.

use std::fmt;

const PER_CREDIT: i128 = 1_000_000;

/// Millionths of a credit. Signed and wide: sums of a run never leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Micro(pub(crate) i128);

impl Micro {
    pub(crate) const ZERO: Self = Self(0);

    /// Whole credits.
    pub(crate) fn credits(count: u64) -> Self {
        Self(i128::from(count) * PER_CREDIT)
    }

    /// Reads `-12.5`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !plain(whole) || !plain(fraction) || fraction.len() > 6 {
            return None;
        }
        let units = whole.parse::<i128>().ok()?.checked_mul(PER_CREDIT)?;
        let rest = format!("{fraction:0<6}").parse::<i128>().ok()?;
        Some(Self(sign * units.checked_add(rest)?))
    }
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, rest) = (self.0.abs() / PER_CREDIT, self.0.abs() % PER_CREDIT);
        let text = format!("{whole}.{rest:06}");
        write!(f, "{sign}{}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl std::ops::Add for Micro {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::ops::Sub for Micro {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::Neg for Micro {
    type Output = Self;
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl std::iter::Sum for Micro {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, |sum, amount| sum + amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_reads_back_from_its_text() {
        for text in ["0", "1", "-1", "12.5", "-0.000001", "1000000.999999", "100"] {
            assert_eq!(Micro::read(text).unwrap().to_string(), text);
        }
        for bad in ["", "-", ".5", "5.", "1.0000001", "1e3", "+1", "1 "] {
            assert_eq!(Micro::read(bad), None, "{bad:?}");
        }
    }
}
