//! Whether a Redis keeps what it is given, as far as it says.
//!
//! Asked with `CONFIG GET`; where that is forbidden, as with hosted ones, with `INFO`. What neither says is unknown, and never
//! taken for good.

use super::link::Link;
use holdfast_engine::obligations::{Answered, Durable};
use redis::Value;
use std::collections::HashMap;

/// What a Redis says of its persistence. `None` is what it does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Persistence {
    /// Whether it writes a log of what it is given (AOF), and the last write to it went well.
    pub aof: Option<bool>,
    /// When that log is synced: `always`, `everysec` (a power cut loses up to a second) or `no`.
    pub fsync: Option<String>,
    /// What it does when its memory is full. Anything but `noeviction` drops obligations.
    pub eviction: Option<String>,
}

impl Persistence {
    /// For `dlq_durable`: yes only if all that matters is known and good.
    #[must_use]
    pub fn durable(&self) -> Durable {
        match (self.aof, self.keeps_all()) {
            (Some(false), _) | (_, Some(false)) => Durable::No,
            (Some(true), Some(true)) => Durable::Yes,
            (None, _) | (_, None) => Durable::Unknown,
        }
    }

    /// For `dlq_aof_verified`: `true`, `false`, or `null` where the server does not say.
    #[must_use]
    pub const fn aof_verified(&self) -> Option<bool> {
        self.aof
    }

    /// What whoever runs it should do, if anything.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match (self.aof, self.keeps_all()) {
            (_, Some(false)) => Some("redis drops data when its memory is full: set maxmemory-policy noeviction"),
            (Some(false), _) => Some("redis forgets what it is given when it restarts: set appendonly yes"),
            (None, _) | (_, None) => Some(
                "redis does not say whether it keeps what it is given: check appendonly yes and maxmemory-policy noeviction",
            ),
            (Some(true), Some(true)) => None,
        }
    }

    fn keeps_all(&self) -> Option<bool> {
        self.eviction.as_ref().map(|policy| policy == "noeviction")
    }
}

/// Asks the server that holds `key`.
pub(super) async fn ask(link: &Link, key: &str) -> Answered<Persistence> {
    // Everybody may ask for `INFO`: whether the server is there at all shows here.
    let info = |section: &'static str| async move {
        let text: String = link.command(redis::cmd("INFO").arg(section), key).await?;
        Answered::Ok(text)
    };
    let (persistence, memory) = (info("persistence").await?, info("memory").await?);
    let mut settings = HashMap::new();
    for setting in ["appendonly", "appendfsync", "maxmemory-policy"] {
        // Where it is forbidden, `INFO` has to do.
        if let Ok(found) = link.command::<Value>(redis::cmd("CONFIG").arg("GET").arg(setting), key).await {
            settings.extend(redis::from_redis_value::<HashMap<String, String>>(found).unwrap_or_default());
        }
    }
    Ok(read(&settings, &persistence, &memory))
}

fn read(settings: &HashMap<String, String>, persistence: &str, memory: &str) -> Persistence {
    let setting = |name: &str| settings.get(name).cloned();
    let is_on = setting("appendonly").or_else(|| field(persistence, "aof_enabled").map(str::to_owned));
    let is_on = is_on.map(|value| matches!(value.as_str(), "yes" | "1"));
    let is_failing = field(persistence, "aof_last_write_status").is_some_and(|status| status != "ok");
    Persistence {
        aof: is_on.map(|is_on| is_on && !is_failing),
        fsync: setting("appendfsync"),
        eviction: setting("maxmemory-policy").or_else(|| field(memory, "maxmemory_policy").map(str::to_owned)),
    }
}

/// The value of a line `name:value` of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(settings: &[(&str, &str)], persistence: &str, memory: &str, durable: Durable, verified: Option<bool>) {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let read = read(&settings, persistence, memory);
        assert_eq!((read.durable(), read.aof_verified()), (durable, verified), "{read:?}");
        assert_eq!(read.advice().is_none(), durable == Durable::Yes);
    }

    #[test]
    fn only_what_is_known_and_good_is_durable() {
        let good = [("appendonly", "yes"), ("appendfsync", "everysec"), ("maxmemory-policy", "noeviction")];
        check(&good, "", "", Durable::Yes, Some(true));
        check(&[("appendonly", "no"), good[2]], "", "", Durable::No, Some(false));
        check(&[good[0], ("maxmemory-policy", "allkeys-lru")], "", "", Durable::No, Some(true));
        check(&[("maxmemory-policy", "volatile-ttl")], "", "", Durable::No, None);
        check(&good[..1], "", "", Durable::Unknown, Some(true));
        check(&[], "", "", Durable::Unknown, None);
    }

    #[test]
    fn a_server_that_forbids_config_is_asked_for_its_info() {
        let (on, keeps) = ("# Persistence\r\nloading:0\r\naof_enabled:1\r\n", "maxmemory_policy:noeviction\r\n");
        check(&[], on, keeps, Durable::Yes, Some(true));
        check(&[], "aof_enabled:0\r\n", keeps, Durable::No, Some(false));
        check(&[], on, "maxmemory:0\r\n", Durable::Unknown, Some(true));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_log() {
        let failing = "aof_enabled:1\r\naof_last_write_status:err\r\n";
        check(&[("maxmemory-policy", "noeviction")], failing, "", Durable::No, Some(false));
    }
}
