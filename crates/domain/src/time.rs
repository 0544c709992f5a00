//! Moments and spans in milliseconds. Nothing here reads a clock: the shell passes `now` in.

use std::fmt;

/// A moment: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch itself, before every real moment.
    pub const EPOCH: Self = Self(0);

    /// A moment from milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// The moment `span` later. Saturates at the end of time: a hold that never expires is what such a caller asked for.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Timestamp {
    /// The day (UTC) that it is in.
    #[must_use]
    pub const fn day(self) -> Day {
        Day(self.0 / Span::DAY.0)
    }
}

/// A day (UTC): days since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(u64);

impl Day {
    /// The day of the epoch, before every real one.
    pub const EPOCH: Self = Self(0);

    /// A day from its number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Days since the Unix epoch.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// The default life of a hold: 24 hours.
    pub const DAY: Self = Self(24 * 60 * 60 * 1_000);

    /// A span of milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// A span of seconds.
    #[must_use]
    pub const fn from_secs(secs: u32) -> Self {
        #[expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "u32 seconds fit u64 milliseconds")]
        Self(secs as u64 * 1_000)
    }

    /// Its length in milliseconds.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }
}
