//! What the tests with a real Redis share.

use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::redis::{Address, Limits, PREFIX};
use holdfast_adapters::obligations::{Notice, Notices, RedisStore};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{CreditUnit, Label, ObligationId, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{ObligationStore, Outcome};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Short, so that a test which waits for a slow server does not wait for long.
pub(crate) const LIMITS: Limits =
    Limits { connect_within: Duration::from_secs(2), reply_within: Duration::from_millis(1_500) };
/// Long enough that it does not run out while a test looks.
pub(crate) const LONG: Span = Span::from_secs(60);

pub(crate) fn temp_dir() -> TempDir {
    TempDir::new().unwrap()
}

/// Keeps what it is told.
#[derive(Default)]
pub(crate) struct Told(Mutex<Vec<Notice>>);

impl Notices for Told {
    fn tell(&self, notice: &Notice) {
        self.0.lock().unwrap().push(notice.clone());
    }
}

impl Told {
    pub(crate) fn all(&self) -> Vec<Notice> {
        self.0.lock().unwrap().clone()
    }
}

pub(crate) fn redis_at(url: &str) -> RedisStore {
    redis_telling(url, Arc::new(Told::default()))
}

pub(crate) fn redis_telling(url: &str, told: Arc<Told>) -> RedisStore {
    redis_by(url, Arc::new(SystemClock::start()), told)
}

pub(crate) fn redis_by(url: &str, clock: Arc<dyn Clock>, told: Arc<Told>) -> RedisStore {
    RedisStore::new(Address::parse(url).unwrap(), PREFIX, LIMITS, clock, told)
}

pub(crate) fn id(number: u32) -> ObligationId {
    format!("chg_{number}").parse().unwrap()
}

pub(crate) fn worker(name: &str) -> Label {
    name.parse().unwrap()
}

pub(crate) fn obligation(number: u32) -> Obligation {
    Obligation {
        id: id(number),
        charge: format!("chg_{number}").parse().unwrap(),
        owner: "alice".parse().unwrap(),
        cost: CreditUnit::new(9_007_199_254_740_993 + u64::from(number)).unwrap(),
        created_at: Timestamp::from_millis(1_700_000_000_000 + u64::from(number)),
    }
}

pub(crate) fn obligations(numbers: std::ops::RangeInclusive<u32>) -> Vec<Obligation> {
    numbers.map(obligation).collect()
}

/// Claims all that is due, delivers it, and returns it by id.
pub(crate) async fn deliver_all(store: &impl ObligationStore) -> Vec<Obligation> {
    let mut delivered = Vec::new();
    loop {
        let claimed = store.claim_ready(worker("last"), 500, LONG).await.unwrap();
        if claimed.is_empty() {
            delivered.sort_by_key(|one: &Obligation| one.created_at);
            return delivered;
        }
        let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
        assert!(store.complete(&done).await.unwrap().iter().all(Result::is_ok));
        delivered.extend(claimed.iter().map(|claimed| claimed.obligation));
    }
}
