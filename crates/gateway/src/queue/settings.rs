//! How the queue is set up: where its wallet is, and how long an item waits for its payee.

use crate::failure::Failure;
use crate::settings::Said;
use holdfast_domain::{Label, Span};
use reqwest::Url;
use std::collections::BTreeMap;

/// The longest time that can be said: a year.
const SPAN_MAX: Span = Span::from_secs(366 * 24 * 60 * 60);
/// How long an escrow may be held without an item before somebody should look.
const ORPHAN_AFTER: Span = Span::from_secs(5 * 60);
/// The kinds of work that can have a time of their own.
const FEATURES_MAX: usize = 1_000;

/// Everything that can be said about the queue, but the secret that it signs with.
#[derive(Debug, Clone)]
pub(crate) struct QueueSettings {
    /// Where the wallet is, if it is another process.
    pub(crate) wallet_url: Option<Url>,
    /// The `aud` of our tokens for it.
    pub(crate) wallet_audience: String,
    pub(crate) rope_drop: RopeDrop,
    /// An escrow that has been held longer than this without an item is an orphan.
    pub(crate) orphan_after: Span,
}

impl QueueSettings {
    /// What is said.
    pub(crate) fn read(said: &Said) -> Result<Self, Failure> {
        let rope_drop = said.parsed("HOLDFAST_QUEUE_ROPE_DROP", RopeDrop::read, || {
            "a length of time such as 10m, or several by featureType such as solo=5m,group=30m,*=15m (never: no drop)"
                .to_owned()
        })?;
        let length = || "a length of time such as 90s, 5m or 1h".to_owned();
        let orphan_after = said.parsed("HOLDFAST_QUEUE_ORPHAN_AFTER", span, length)?;
        let url = said.parsed("HOLDFAST_QUEUE_WALLET_URL", wallet_url, || {
            "an http or https URL without a user, password, query or fragment".to_owned()
        })?;
        Ok(Self {
            wallet_url: url.flatten(),
            wallet_audience: said.text("HOLDFAST_QUEUE_WALLET_AUDIENCE")?.unwrap_or_else(|| "holdfast".to_owned()),
            rope_drop: rope_drop.unwrap_or_default(),
            orphan_after: orphan_after.unwrap_or(ORPHAN_AFTER),
        })
    }
}

/// The address of a wallet; none if the text is empty.
fn wallet_url(text: &str) -> Option<Option<Url>> {
    if text.is_empty() {
        return Some(None);
    }
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())?;
    let is_bare = url.username().is_empty() && url.password().is_none();
    (is_bare && url.query().is_none() && url.fragment().is_none()).then_some(Some(url))
}

/// How long items wait for their payee before they are given up, by kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RopeDrop {
    by_feature: BTreeMap<Label, Option<Span>>,
    others: Option<Span>,
}

impl RopeDrop {
    /// How long an item of this kind waits; `None` is for ever.
    pub(crate) fn of(&self, feature: Label) -> Option<Span> {
        self.by_feature.get(&feature).copied().unwrap_or(self.others)
    }

    /// Reads `10m`, or `solo=5m,group=30m,*=15m`. What is named nowhere waits for ever, and so does `never`.
    fn read(text: &str) -> Option<Self> {
        let mut read = Self::default();
        if text.is_empty() {
            return Some(read);
        }
        if !text.contains('=') {
            return Some(Self { others: wait(text)?, ..read });
        }
        let mut others = None;
        for part in text.split(',') {
            let (feature, length) = part.split_once('=')?;
            let (feature, length) = (feature.trim(), wait(length.trim())?);
            let twice = match feature {
                "*" => others.replace(length).is_some(),
                _ => read.by_feature.insert(feature.parse().ok()?, length).is_some(),
            };
            if twice || read.by_feature.len() > FEATURES_MAX {
                return None;
            }
        }
        read.others = others.flatten();
        Some(read)
    }
}

/// A wait that ends, or `never`.
fn wait(text: &str) -> Option<Option<Span>> {
    if text == "never" { Some(None) } else { span(text).map(Some) }
}

/// A length of time: `250ms`, `90s`, `15m`, `2h`, `1d`.
fn span(text: &str) -> Option<Span> {
    let digits = text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let total = number.parse::<u64>().ok()?.checked_mul(millis)?;
    Some(Span::from_millis(total)).filter(|span| *span <= SPAN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, feature: &str) -> Option<u64> {
        RopeDrop::read(text).unwrap().of(feature.parse().unwrap()).map(Span::millis)
    }

    #[test]
    fn each_kind_of_work_waits_as_long_as_is_said() {
        assert_eq!(of("", "solo"), None);
        assert_eq!(of("10m", "solo"), Some(600_000));
        let several = "solo=5m, group=30m,vip=never,*=250ms";
        let expected = [("solo", Some(300_000)), ("group", Some(1_800_000)), ("vip", None), ("other", Some(250))];
        for (feature, millis) in expected {
            assert_eq!(of(several, feature), millis, "{feature}");
        }
        assert_eq!(of("solo=5m", "other"), None, "what is not named waits for ever");
        for bad in ["10", "m", "-5m", "5x", "solo=", "=5m", "solo=5m,solo=6m", "a b=5m", "1h30m", "solo=5m,", "400d"] {
            assert_eq!(RopeDrop::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_wallet_is_at_a_plain_address() {
        assert_eq!(wallet_url(""), Some(None));
        assert!(wallet_url("http://127.0.0.1:8080").is_some_and(|url| url.is_some()));
        for bad in ["wallet", "ftp://wallet", "http://me@wallet", "http://:secret@wallet", "http://wallet?a=1"] {
            assert_eq!(wallet_url(bad), None, "{bad}");
        }
    }
}
