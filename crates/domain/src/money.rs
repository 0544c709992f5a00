//! Amounts of money as whole units: no floats, no signs, no silent default, no unchecked operator.
//!
//! Three denominations exist and never mix: [`CreditUnit`] (what accounts hold, in millionths of a credit), [`MicroUsd`]
//! (what models cost) and [`MicroUsdc`] (what arrives on chain). Crossing from one to another takes an explicit rate.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// The largest amount of any denomination: balances are signed 64-bit sums, so one amount must leave them room.
pub const AMOUNT_MAX: u64 = 1_000_000_000_000_000_000;

/// A denomination: how many decimal places its text form has.
pub trait Denomination: Copy + Eq + Ord + fmt::Debug {
    /// Decimal places of the text form; the stored integer counts units of the last place.
    const PLACES: usize;
    /// What to call it in a message.
    const NAME: &'static str;
}

/// Credits, stored in millionths and written with up to six places: `12.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Credit {}
/// Millionths of a US dollar, written as a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsdMicro {}
/// Millionths of a USDC, written as a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsdcMicro {}

impl Denomination for Credit {
    const PLACES: usize = 6;
    const NAME: &'static str = "credits";
}
impl Denomination for UsdMicro {
    const PLACES: usize = 0;
    const NAME: &'static str = "micro-dollars";
}
impl Denomination for UsdcMicro {
    const PLACES: usize = 0;
    const NAME: &'static str = "micro-USDC";
}

/// Credits in millionths.
pub type CreditUnit = Money<Credit>;
/// Millionths of a US dollar.
pub type MicroUsd = Money<UsdMicro>;
/// Millionths of a USDC.
pub type MicroUsdc = Money<UsdcMicro>;

/// A non-negative amount of one denomination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money<D> {
    units: u64,
    denomination: PhantomData<D>,
}

/// A sum left the range that balances can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overflow;

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the amount is out of range")
    }
}
impl std::error::Error for Overflow {}

impl<D: Denomination> Money<D> {
    /// Nothing.
    pub const ZERO: Self = Self::raw(0);

    const fn raw(units: u64) -> Self {
        Self { units, denomination: PhantomData }
    }

    /// An amount from its smallest units, at most [`AMOUNT_MAX`].
    pub const fn new(units: u64) -> Result<Self, Overflow> {
        if units > AMOUNT_MAX { Err(Overflow) } else { Ok(Self::raw(units)) }
    }

    /// The amount in its smallest units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.units
    }

    /// Whether this is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.units == 0
    }

    /// The sum, if it is in range.
    pub fn checked_add(self, other: Self) -> Result<Self, Overflow> {
        self.units.checked_add(other.units).ok_or(Overflow).and_then(Self::new)
    }

    /// The difference, if it is not negative.
    pub fn checked_sub(self, other: Self) -> Result<Self, Overflow> {
        self.units.checked_sub(other.units).map(Self::raw).ok_or(Overflow)
    }

    /// What is missing from `self` to reach `other`; nothing if it is covered.
    #[must_use]
    pub const fn shortfall(self, other: Self) -> Self {
        Self::raw(other.units.saturating_sub(self.units))
    }
}

impl<D: Denomination> fmt::Display for Money<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, "", self.units, D::PLACES)
    }
}

/// The digits of the largest number of units.
const DIGITS_MAX: usize = 20;

/// Writes `units` after `sign` as a decimal with at most `places` places and no trailing zeros.
///
/// Digit by digit: every answer has several amounts, and to have each formatted, cut and formatted again was a twelfth of a reservation.
pub(crate) fn write_decimal(f: &mut fmt::Formatter<'_>, sign: &str, units: u64, places: usize) -> fmt::Result {
    let mut digits = [b'0'; DIGITS_MAX];
    let mut rest = units;
    for digit in digits.iter_mut().rev() {
        let [last, ..] = (rest % 10).to_le_bytes();
        *digit |= last;
        rest /= 10;
    }
    let digits = std::str::from_utf8(&digits).expect("digits are ASCII");
    let (whole, fraction) = digits.split_at(DIGITS_MAX.saturating_sub(places));
    let (zeros, _) = whole.split_at(whole.len().saturating_sub(1));
    let leading = zeros.bytes().take_while(|digit| *digit == b'0').count();
    let trailing = fraction.bytes().rev().take_while(|digit| *digit == b'0').count();
    let (_, whole) = whole.split_at(leading);
    let (fraction, _) = fraction.split_at(fraction.len().saturating_sub(trailing));
    let mut text = String::with_capacity(DIGITS_MAX.saturating_add(2));
    text.push_str(sign);
    text.push_str(whole);
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    f.pad(&text)
}

/// Why a text is not an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMoney {
    /// Something other than plain digits and one point: a sign, a space, an exponent, a letter, or nothing at all.
    NotDigits,
    /// Leading zeros, trailing zeros after the point, or a bare point: one amount has one text.
    NotCanonical,
    /// More decimal places than the denomination has.
    TooPrecise,
    /// Above [`AMOUNT_MAX`].
    TooLarge,
}

impl fmt::Display for NotMoney {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDigits => "write the amount as plain digits, such as 12.5, without sign, space or exponent",
            Self::NotCanonical => "write the amount without leading zeros and without zeros at the end of the fraction",
            Self::TooPrecise => "the amount has more decimal places than its unit (credits have six)",
            Self::TooLarge => "the amount is above the largest one allowed, 1000000000000 credits",
        })
    }
}
impl std::error::Error for NotMoney {}

impl<D: Denomination> FromStr for Money<D> {
    type Err = NotMoney;

    fn from_str(text: &str) -> Result<Self, NotMoney> {
        let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !fraction.is_none_or(digits) {
            return Err(NotMoney::NotDigits);
        }
        let fraction = fraction.unwrap_or("");
        if fraction.len() > D::PLACES {
            return Err(NotMoney::TooPrecise);
        }
        if (whole.len() > 1 && whole.starts_with('0')) || fraction.ends_with('0') {
            return Err(NotMoney::NotCanonical);
        }
        format!("{whole}{fraction:0<places$}", places = D::PLACES)
            .parse::<u64>()
            .ok()
            .and_then(|units| Self::new(units).ok())
            .ok_or(NotMoney::TooLarge)
    }
}

/// A signed number of credit units: a change of one account, or the balance that changes add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Change(i64);

impl Change {
    /// No change.
    pub const ZERO: Self = Self(0);

    /// A change from signed millionths of a credit.
    #[must_use]
    pub const fn from_units(units: i64) -> Self {
        Self(units)
    }

    /// The change in signed millionths of a credit.
    #[must_use]
    pub const fn units(self) -> i64 {
        self.0
    }

    /// An amount that comes in.
    #[must_use]
    pub fn plus(amount: CreditUnit) -> Self {
        Self(i64::try_from(amount.units).expect("AMOUNT_MAX fits i64"))
    }

    /// An amount that goes out.
    #[must_use]
    pub fn minus(amount: CreditUnit) -> Self {
        Self(Self::plus(amount).0.checked_neg().expect("AMOUNT_MAX fits i64 with either sign"))
    }

    /// The same change the other way.
    pub fn negated(self) -> Result<Self, Overflow> {
        self.0.checked_neg().map(Self).ok_or(Overflow)
    }

    /// The sum, if it is in range.
    pub fn checked_add(self, other: Self) -> Result<Self, Overflow> {
        self.0.checked_add(other.0).map(Self).ok_or(Overflow)
    }

    /// The balance as an amount, if it is not negative and in range.
    pub fn amount(self) -> Result<CreditUnit, Overflow> {
        u64::try_from(self.0).map_err(|_| Overflow).and_then(CreditUnit::new)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs(), Credit::PLACES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: Result<u64, NotMoney>) {
        assert_eq!(text.parse::<CreditUnit>().map(Money::units), expected, "{text:?}");
    }

    #[test]
    fn credits_are_read_from_canonical_decimal_text_only() {
        check("0", Ok(0));
        check("12.5", Ok(12_500_000));
        check("0.000001", Ok(1));
        check("1000000000000", Ok(AMOUNT_MAX));
        for bad in
            ["", ".", "1.", ".5", "-1", "+1", " 1", "1 ", "1e3", "0x10", "1,5", "NaN", "inf", "١", "1_000", "1.2.3"]
        {
            check(bad, Err(NotMoney::NotDigits));
        }
        for bad in ["00", "01", "007.5", "1.50", "1.0"] {
            check(bad, Err(NotMoney::NotCanonical));
        }
        check("0.0000001", Err(NotMoney::TooPrecise));
        for bad in ["1000000000000.000001", "18446744073709551616", "99999999999999999999999999999999999999999"] {
            check(bad, Err(NotMoney::TooLarge));
        }
    }

    #[test]
    fn sums_and_differences_are_refused_outside_the_range() {
        let max = CreditUnit::new(AMOUNT_MAX).unwrap();
        let one = CreditUnit::new(1).unwrap();
        assert_eq!(max.checked_add(one), Err(Overflow));
        assert_eq!(CreditUnit::ZERO.checked_sub(one), Err(Overflow));
        assert_eq!(Change::from_units(i64::MAX).checked_add(Change::plus(one)), Err(Overflow));
        assert_eq!(Change::from_units(-1).amount(), Err(Overflow));
        assert_eq!(Change::minus(max).units(), -1_000_000_000_000_000_000);
    }

    #[test]
    fn a_change_is_written_with_its_sign() {
        assert_eq!(Change::from_units(-12_500_000).to_string(), "-12.5");
        assert_eq!(Change::from_units(1).to_string(), "0.000001");
        assert_eq!(Change::from_units(0).to_string(), "0");
        assert_eq!(Change::from_units(-10_000_000).to_string(), "-10");
        assert_eq!(Change::from_units(i64::MIN).to_string(), "-9223372036854.775808");
        assert_eq!(
            format!("{:>8}|{:<8}|", Change::from_units(-1_500_000), Change::from_units(20_000_000)),
            "    -1.5|20      |"
        );
    }

    proptest! {
        #[test]
        fn text_and_amount_are_one_to_one(units in 0..=AMOUNT_MAX) {
            let amount = CreditUnit::new(units).unwrap();
            prop_assert_eq!(amount.to_string().parse::<CreditUnit>(), Ok(amount));
        }

        #[test]
        fn whatever_is_accepted_is_already_canonical(text in "[0-9]{0,14}(\\.[0-9]{0,7})?") {
            if let Ok(amount) = text.parse::<CreditUnit>() {
                prop_assert_eq!(amount.to_string(), text);
            }
        }
    }
}
