//! How much one credential or one address may ask for.
//!
//! # Invariants
//! - What is remembered is bounded: whoever has been quiet is forgotten within a minute.

use super::settings::RateSettings;
use crate::identity::Role;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use holdfast_domain::Label;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

/// Who asked too much may ask again after so many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limited {
    /// How many requests may come at once.
    pub(crate) limit: u32,
    pub(crate) retry_after_s: u64,
}

impl Limited {
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let (wait, limit) = (self.retry_after_s, u64::from(self.limit));
        for (name, value) in
            [("retry-after", wait), ("ratelimit-limit", limit), ("ratelimit-remaining", 0), ("ratelimit-reset", wait)]
        {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

/// Whom a credential stands for. A subject keeps its allowance when its token is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    Subject(Label, Role),
    ApiKey(Label),
}

/// The limits of a server.
pub(crate) struct RateLimits {
    credentials: Limit<Credential>,
    addresses: Limit<IpAddr>,
    /// Refused credentials, by address: nobody may try many.
    failures: Limit<IpAddr>,
}

impl RateLimits {
    pub(crate) fn new(settings: &RateSettings) -> Self {
        Self {
            credentials: Limit::new(settings.per_credential),
            addresses: Limit::new(settings.per_address),
            failures: Limit::new(settings.failures),
        }
    }

    /// Counts a request with a good credential.
    pub(crate) fn credential(&self, credential: Credential) -> Result<(), Limited> {
        self.credentials.check(&credential)
    }

    /// Counts a request.
    pub(crate) fn address(&self, address: IpAddr) -> Result<(), Limited> {
        self.addresses.check(&site(address))
    }

    /// Counts a request with a bad credential.
    pub(crate) fn failure(&self, address: IpAddr) -> Result<(), Limited> {
        self.failures.check(&site(address))
    }

    /// Forgets those who have been quiet.
    pub(crate) fn forget_quiet(&self) {
        self.credentials.limiter.retain_recent();
        self.addresses.limiter.retain_recent();
        self.failures.limiter.retain_recent();
    }
}

/// A limit for each of many.
pub(super) struct Limit<K: Hash + Eq + Clone> {
    limiter: DefaultKeyedRateLimiter<K>,
    burst: NonZeroU32,
    clock: DefaultClock,
}

impl<K: Hash + Eq + Clone> Limit<K> {
    /// So many a second, and twice as many at once.
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        let burst = per_second.saturating_mul(NonZeroU32::MIN.saturating_add(1));
        let limiter = RateLimiter::keyed(Quota::per_second(per_second).allow_burst(burst));
        Self { limiter, burst, clock: DefaultClock::default() }
    }

    pub(super) fn check(&self, key: &K) -> Result<(), Limited> {
        self.limiter.check_key(key).map_err(|not_until| {
            let wait = not_until.wait_time_from(self.clock.now());
            Limited { limit: self.burst.get(), retry_after_s: wait.as_secs().saturating_add(1) }
        })
    }
}

/// One machine can have a whole /64 of addresses: they count as one.
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_per_key_and_says_when_to_come_again() {
        let limit = Limit::new(NonZeroU32::MIN);
        assert_eq!((limit.check(&1), limit.check(&1)), (Ok(()), Ok(())));
        let limited = limit.check(&1).unwrap_err();
        assert_eq!(limited.limit, 2);
        assert!((1..=2).contains(&limited.retry_after_s));
        assert_eq!(limit.check(&2), Ok(()));
    }

    #[test]
    fn addresses_of_one_site_count_as_one() {
        let site_of = |text: &str| site(text.parse().unwrap());
        assert_eq!(site_of("2001:db8:1:2:3::4"), site_of("2001:db8:1:2:ffff::1"));
        assert_ne!(site_of("2001:db8:1:2::1"), site_of("2001:db8:1:3::1"));
        assert_eq!(site_of("::ffff:10.0.0.1"), site_of("10.0.0.1"));
        assert_ne!(site_of("10.0.0.1"), site_of("10.0.0.2"));
    }
}
