//! How the peer is told: who it is, how patiently, and from which store.

use crate::failure::Failure;
use crate::settings::Said;
use holdfast_adapters::obligations::postgres::ATTEMPTS_MAX;
use holdfast_adapters::obligations::redis::{Address, PREFIX};
use holdfast_adapters::peer::{PeerRefused, PeerSettings, PrivateAddresses};
use holdfast_adapters::postgres::Database;
use holdfast_domain::Span;
use holdfast_domain::delivery::{CircuitPolicy, Schedule};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Everything that can be said about settling with the peer.
#[derive(Debug, Clone)]
pub(crate) struct SettlementSettings {
    pub(crate) peer: PeerSettings,
    /// The `aud` of our tokens for it.
    pub(crate) audience: String,
    pub(crate) schedule: Schedule,
    pub(crate) circuit: CircuitPolicy,
    /// Whether new paid work is refused while the peer is away.
    pub(crate) require_peer: bool,
    pub(crate) store: StoreChoice,
}

/// Where obligations wait.
#[derive(Clone)]
pub(crate) enum StoreChoice {
    /// In a file that is derived from the journal.
    Journal,
    /// In memory.
    Memory,
    /// In Redis, under keys that begin with the prefix. Boxed, because the others are nothing beside it.
    Redis(Box<(Address, String)>),
    /// In the payment outbox of a PostgreSQL database.
    Postgres(Box<Database>),
}

impl fmt::Debug for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl StoreChoice {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
        }
    }
}

/// The most that may be sent at once.
const AT_ONCE_MAX: u64 = 4_096;
/// The longest pause of a schedule: a day.
const PAUSE_MAX_MS: u64 = 24 * 60 * 60 * 1_000;
/// The most pauses of a schedule.
const PAUSES_MAX: usize = 100;

impl SettlementSettings {
    /// What is said; `None` if there is no peer. What is said of one that is not there is still checked.
    pub(crate) fn read(said: &Said) -> Result<Option<Self>, Failure> {
        let url = said.text("HOLDFAST_PEER_URL")?;
        let millis = |name, most: u64, usual: u64| -> Result<Duration, Failure> {
            Ok(Duration::from_millis(said.number(name, 1..=most)?.unwrap_or(usual)))
        };
        let settings = Self {
            peer: PeerSettings {
                url: url.clone().unwrap_or_default(),
                connect_timeout: millis("HOLDFAST_PEER_CONNECT_TIMEOUT_MS", 10_000, 5_000)?,
                timeout: millis("HOLDFAST_PEER_TIMEOUT_MS", 10_000, 10_000)?,
                private_addresses: private_addresses(said)?,
            },
            audience: said.text("HOLDFAST_PEER_AUDIENCE")?.unwrap_or_else(|| "billing".to_owned()),
            schedule: schedule(said)?,
            circuit: circuit(said)?,
            require_peer: flag(said, "HOLDFAST_BILLING_REQUIRE_PEER")?,
            store: store(said)?,
        };
        settings.check_schedule()?;
        if url.is_none() {
            return settings.refuse_if_required();
        }
        settings.checked()?;
        Ok(Some(settings))
    }

    /// Whether the peer can be told anything there.
    fn checked(&self) -> Result<(), Failure> {
        self.peer.check().map_err(|refused| self.refused(&refused))
    }

    /// Whether the store gives up when the schedule does.
    fn check_schedule(&self) -> Result<(), Failure> {
        if !matches!(self.store, StoreChoice::Postgres(_)) {
            return Ok(());
        }
        let refused = |name: &str, value: u64, allowed: String| {
            Err(Failure::Setting { name: name.to_owned(), value: value.to_string(), allowed })
        };
        let attempts = self.schedule.attempts_max();
        if attempts > ATTEMPTS_MAX {
            let allowed = format!("fewer than {ATTEMPTS_MAX} where obligations are in PostgreSQL, which gives up then");
            let pauses = u64::try_from(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
            return refused("the number of pauses in peer.retry_quick_ms and peer.retry_slow_ms", pauses, allowed);
        }
        if self.schedule.age_min > Span::from_millis(0) {
            let allowed =
                format!("0 where obligations are in PostgreSQL, which gives up after {ATTEMPTS_MAX} attempts");
            return refused("peer.retry_age_min_s", self.schedule.age_min.millis() / 1_000, allowed);
        }
        Ok(())
    }

    /// Why nothing can be told there.
    pub(super) fn refused(&self, refused: &PeerRefused) -> Failure {
        Failure::Setting {
            name: "peer.url".to_owned(),
            // It may have a password in it.
            value: self.peer.url.split('@').next_back().unwrap_or_default().to_owned(),
            allowed: refused.to_string(),
        }
    }

    fn refuse_if_required(self) -> Result<Option<Self>, Failure> {
        if !self.require_peer {
            return Ok(None);
        }
        Err(Failure::Setting {
            name: "billing.require_peer".to_owned(),
            value: "true".to_owned(),
            allowed: "false where peer.url (HOLDFAST_PEER_URL) does not say where the peer is".to_owned(),
        })
    }
}

fn private_addresses(said: &Said) -> Result<PrivateAddresses, Failure> {
    let read = |text: &str| match text {
        "allow" => Some(PrivateAddresses::Allow),
        "refuse" => Some(PrivateAddresses::Refuse),
        _ => None,
    };
    let found = said.parsed("HOLDFAST_PEER_PRIVATE_ADDRESSES", read, || "allow or refuse".to_owned())?;
    Ok(found.unwrap_or(PrivateAddresses::Allow))
}

fn flag(said: &Said, name: &'static str) -> Result<bool, Failure> {
    let found = said.parsed(name, |text| text.parse().ok(), || "true or false".to_owned())?;
    Ok(found.unwrap_or(false))
}

fn store(said: &Said) -> Result<StoreChoice, Failure> {
    let prefix = said.text("HOLDFAST_BILLING_OBLIGATIONS_PREFIX")?.unwrap_or_else(|| PREFIX.to_owned());
    let name = said.text("HOLDFAST_BILLING_OBLIGATIONS")?;
    match name.as_deref() {
        None | Some("journal") => Ok(StoreChoice::Journal),
        Some("memory") => Ok(StoreChoice::Memory),
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            let authorities = said.text("HOLDFAST_BILLING_OBLIGATIONS_CA")?.filter(|file| !file.is_empty());
            let database = Database::at(url, authorities.as_deref().map(Path::new))?;
            Ok(StoreChoice::Postgres(Box::new(database)))
        }
        Some(url) => {
            let address = Address::parse(url).map_err(|error| Failure::Setting {
                name: "billing.obligations".to_owned(),
                // It may have a password in it.
                value: url.split("://").next().unwrap_or_default().chars().take(20).collect(),
                allowed: format!("journal, memory, postgres://…, or the URL of a Redis ({error})"),
            })?;
            Ok(StoreChoice::Redis(Box::new((address, prefix))))
        }
    }
}

fn schedule(said: &Said) -> Result<Schedule, Failure> {
    let usual = Schedule::usual();
    let pauses = |name, usual: Vec<Span>| -> Result<Vec<Span>, Failure> {
        let allowed = || format!("up to {PAUSES_MAX} pauses of 0 to {PAUSE_MAX_MS} ms, as in 1000,2000,4000");
        Ok(said.parsed(name, read_pauses, allowed)?.unwrap_or(usual))
    };
    let age_min = said.number("HOLDFAST_PEER_RETRY_AGE_MIN_S", 0..=366 * 24 * 60 * 60)?.unwrap_or(0);
    Ok(Schedule {
        quick: pauses("HOLDFAST_PEER_RETRY_QUICK_MS", usual.quick)?,
        slow: pauses("HOLDFAST_PEER_RETRY_SLOW_MS", usual.slow)?,
        age_min: Span::from_millis(age_min * 1_000),
    })
}

fn read_pauses(text: &str) -> Option<Vec<Span>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let pause = |text: &str| text.trim().parse().ok().filter(|millis| *millis <= PAUSE_MAX_MS).map(Span::from_millis);
    let pauses: Option<Vec<Span>> = text.split(',').map(pause).collect();
    pauses.filter(|pauses| pauses.len() <= PAUSES_MAX)
}

fn circuit(said: &Said) -> Result<CircuitPolicy, Failure> {
    let usual = CircuitPolicy::USUAL;
    let span = |name, usual: Span| -> Result<Span, Failure> {
        Ok(said.number(name, 1..=PAUSE_MAX_MS)?.map_or(usual, Span::from_millis))
    };
    let failures = said.number("HOLDFAST_PEER_CIRCUIT_FAILURES", 1..=1_000_000)?;
    let at_once = said.number("HOLDFAST_PEER_AT_ONCE", 1..=AT_ONCE_MAX)?;
    Ok(CircuitPolicy {
        failures: failures.and_then(|failures| u32::try_from(failures).ok()).unwrap_or(usual.failures),
        window: span("HOLDFAST_PEER_CIRCUIT_WINDOW_MS", usual.window)?,
        rest: span("HOLDFAST_PEER_CIRCUIT_REST_MS", usual.rest)?,
        at_once: at_once.and_then(|at_once| usize::try_from(at_once).ok()).unwrap_or(usual.at_once),
    })
}
