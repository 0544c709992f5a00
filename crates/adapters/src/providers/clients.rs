//! The clients of one provider, one for each thread that asks: a connection is served by the thread that opened it, and whoever
//! asked on another one would have to be woken for every piece of its answer.

use reqwest::{Client, redirect};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const POOL_IDLE_MAX: Duration = Duration::from_secs(90);

/// The number that the next thread gets.
static NEXT: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// The number of this thread.
pub(super) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}

/// The clients.
#[derive(Debug)]
pub(super) struct Clients {
    connect_timeout: Duration,
    /// That of the first thread, and of one whose own cannot be made.
    common: Client,
    own: Vec<OnceLock<Client>>,
}

impl Clients {
    pub(super) fn new(connect_timeout: Duration) -> Result<Self, reqwest::Error> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // The first thread has the one that tells whether any can be made; the others' are made when they are needed.
        let own = (1..cores).map(|_| OnceLock::new()).collect();
        Ok(Self { connect_timeout, common: client(connect_timeout)?, own })
    }

    /// The one of this thread.
    pub(super) fn mine(&self) -> &Client {
        let number = thread_number() % (self.own.len() + 1);
        let Some(place) = number.checked_sub(1).and_then(|index| self.own.get(index)) else { return &self.common };
        place.get_or_init(|| client(self.connect_timeout).unwrap_or_else(|_| self.common.clone()))
    }
}

fn client(connect_timeout: Duration) -> Result<Client, reqwest::Error> {
    Client::builder()
        .redirect(redirect::Policy::none())
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(POOL_IDLE_MAX)
        .user_agent(concat!("holdfast/", env!("CARGO_PKG_VERSION")))
        .build()
}
