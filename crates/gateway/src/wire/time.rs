//! Moments as RFC 3339 text in UTC, exact to the millisecond and without floats.

use holdfast_domain::Timestamp;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

const MILLIS_PER_DAY: u64 = 24 * 60 * 60 * 1_000;
/// The last moment that four digits of a year can say: 9999-12-31T23:59:59.999Z.
const LAST_MILLIS: u64 = 253_402_300_799_999;

/// The bytes of a moment's text.
const LENGTH: usize = 24;

/// A moment as it is written on the wire: `2026-01-31T09:30:00.000Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl Moment {
    /// Its text, written by hand: every answer has several, and a formatter takes its time over padded numbers.
    fn text(self) -> [u8; LENGTH] {
        let millis = self.0.millis().min(LAST_MILLIS);
        let (year, month, day) = date_of(millis / MILLIS_PER_DAY);
        let within = millis % MILLIS_PER_DAY;
        let (hour, minute, second) = (within / 3_600_000, within / 60_000 % 60, within / 1_000 % 60);
        let digit = |number: u64| b'0' + (number % 10) as u8;
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let hundredths = within % 1_000 / 10;
        let pairs = [year / 100, year, month, day, hour, minute, second, hundredths];
        for (place, pair) in [0, 2, 5, 8, 11, 14, 17, 20].into_iter().zip(pairs) {
            text[place..place + 2].copy_from_slice(&[digit(pair / 10), digit(pair)]);
        }
        text[22] = digit(within);
        text
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("digits and signs"))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.text()).expect("digits and signs"))
    }
}

/// A text that is no moment from 1970 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAMoment;

impl FromStr for Moment {
    type Err = NotAMoment;

    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        parse(text)
            .filter(|millis| *millis <= LAST_MILLIS)
            .map(|millis| Self(Timestamp::from_millis(millis)))
            .ok_or(NotAMoment)
    }
}

fn parse(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, offset_minutes) = split_offset(rest)?;
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(clock, fraction)| (clock, Some(fraction)));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let in_range = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let millis = fraction.map_or(Some(0), millis_of)?;
    let within = ((hour * 60 + minute) * 60 + second) * 1_000 + millis;
    let local = days_before(year, month, day)?.checked_mul(MILLIS_PER_DAY)?.checked_add(within)?;
    local.checked_add_signed(-offset_minutes * 60_000)
}

/// Three numbers of exactly so many digits, apart by `separator`.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut next = |digits| parts.next().filter(|part| part.len() == digits).and_then(number);
    let numbers = [next(digits[0])?, next(digits[1])?, next(digits[2])?];
    parts.next().is_none().then_some(numbers)
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The first three digits of a fraction of a second: what is finer than a millisecond is cut off.
fn millis_of(fraction: &str) -> Option<u64> {
    if !(1..=9).contains(&fraction.len()) {
        return None;
    }
    number(fraction)?;
    number(format!("{fraction:0<3}").get(..3)?)
}

/// The clock's text, and how many minutes it is ahead of UTC.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let at = text.rfind(['+', '-'])?;
    let (clock, offset) = text.split_at(at);
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let [hours, minutes] = [hours, minutes].map(|part| number(part).filter(|_| part.len() == 2));
    let ahead =
        i64::try_from(hours.filter(|hours| *hours < 24)? * 60 + minutes.filter(|minutes| *minutes < 60)?).ok()?;
    Some((clock, if offset.starts_with('-') { -ahead } else { ahead }))
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from the first of March of year 0 to the first of March of `year`.
const fn days_of_years(year: u64) -> u64 {
    year * 365 + year / 4 - year / 100 + year / 400
}

/// Days from the first of March of year 0 to the first of January 1970.
const EPOCH_DAYS: u64 = 719_468;

/// Days from the epoch to a date. Years begin in March here, so that the leap day is the last of its year.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    (days_of_years(year) + (153 * month + 2) / 5 + day - 1).checked_sub(EPOCH_DAYS)
}

/// The date so many days after the epoch: [`days_before`] turned round.
const fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH_DAYS;
    let (era, within) = (days / 146_097, days % 146_097);
    let year_of_era = (within - within / 1_460 + within / 36_524 - within / 146_096) / 365;
    let day_of_year = within - days_of_years(year_of_era);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let (month, next_year) = if march_month < 10 { (march_month + 3, 0) } else { (march_month - 9, 1) };
    (era * 400 + year_of_era + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(millis: u64, text: &str) {
        assert_eq!(Moment(Timestamp::from_millis(millis)).to_string(), text);
        assert_eq!(text.parse(), Ok(Moment(Timestamp::from_millis(millis))), "{text}");
    }

    #[test]
    fn moments_and_texts_are_one_to_one() {
        check(0, "1970-01-01T00:00:00.000Z");
        check(951_782_400_000, "2000-02-29T00:00:00.000Z");
        check(1_772_323_199_999, "2026-02-28T23:59:59.999Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
        check(LAST_MILLIS, "9999-12-31T23:59:59.999Z");
        for day in (0..LAST_MILLIS / MILLIS_PER_DAY).step_by(101) {
            let moment = Moment(Timestamp::from_millis(day * MILLIS_PER_DAY + 45_296_789));
            assert_eq!(moment.to_string().parse(), Ok(moment));
        }
    }

    #[test]
    fn every_rfc_3339_spelling_of_a_moment_is_read() {
        let read = |text: &str| text.parse::<Moment>().map(|moment| moment.0.millis());
        assert_eq!(read("2026-01-31T09:30:00Z"), Ok(1_769_851_800_000));
        assert_eq!(read("2026-01-31t09:30:00z"), Ok(1_769_851_800_000));
        assert_eq!(read("2026-01-31T10:30:00+01:00"), Ok(1_769_851_800_000));
        assert_eq!(read("2026-01-31T04:00:00-05:30"), Ok(1_769_851_800_000));
        assert_eq!(read("2026-01-31T09:30:00.1239999Z"), Ok(1_769_851_800_123));
        for bad in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31T09:30:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T09:60:00Z",
            "2026-01-31T09:30:00.Z",
            "2026-1-31T09:30:00Z",
            "+026-01-31T09:30:00Z",
            "1969-12-31T23:59:59Z",
            "2026-01-31T09:30:00+1:00",
            "2026-01-31T09:30:00+24:00",
            "1e3",
        ] {
            assert_eq!(read(bad), Err(NotAMoment), "{bad:?}");
        }
    }
}
