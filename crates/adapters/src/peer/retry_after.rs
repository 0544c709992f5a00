//! `Retry-After`: seconds, or the moment in the form that HTTP has for it.

use holdfast_domain::{Span, Timestamp};
use std::time::Duration;

/// How long the peer asks to be left alone; `None` if it cannot be read. A moment that is past asks for nothing.
pub(super) fn read(value: &str, now: Timestamp) -> Option<Span> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Span::from_millis(seconds.saturating_mul(1_000)));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    let since_epoch: Duration = at.duration_since(std::time::UNIX_EPOCH).ok()?;
    let at = u64::try_from(since_epoch.as_millis()).ok()?;
    Some(Span::from_millis(at.saturating_sub(now.millis())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_moments_are_read_and_nothing_else() {
        // 1994-11-06 08:49:37 UTC.
        let now = Timestamp::from_millis(784_111_777_000);
        for (value, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120_000)),
            ("18446744073709551615", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10_000)),
            ("Sun Nov  6 08:49:47 1994", Some(10_000)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(read(value, now), expected.map(Span::from_millis), "{value:?}");
        }
    }
}
