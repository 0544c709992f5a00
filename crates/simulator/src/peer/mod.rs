//! A peer that misbehaves: a real HTTP server for `POST /api/internal/finalize`, with a book of what it was told.
//!
//! It takes each `reservation_id` once, as a real peer does, and says 409 to those that it knows. Beside that it does what
//! peers, proxies and networks do: it takes a charge and drops the answer, fails, sends garbage, hangs, goes away and comes
//! back ([`Manner`]). What it answers to the n-th call about an id follows from the seed, whatever else happens at that time.
//!
//! # Invariants
//! - What is in the [`Book`] as applied was applied before the first byte of its answer.
//! - After [`Options::fair_after`] bad answers about an id the next one is honest: whoever goes on asking gets through.
//! - Unless a bug is planted ([`Plant`]), nothing is applied twice, and no answer says that something was applied that was not.

mod answer;
mod book;
mod call;
mod connection;
mod manner;
mod server;

pub use book::{Book, Row};
pub use manner::{Manner, Mix};

use book::Books;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::watch;

/// The only route.
pub const FINALIZE: &str = "/api/internal/finalize";

/// A bug in the peer, to see that whoever compares books finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// It applies a charge as often as it is told of it.
    AppliesAgain,
    /// It says that it has taken one in so many, and has not.
    Loses(u64),
    /// It applies another cost of one in so many.
    Misreads(u64),
}

/// How the peer comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is always there.
    Steady,
    /// After about so many calls it refuses connections for at most so long.
    ComesAndGoes {
        /// Half to one and a half times as many calls.
        calls: u64,
        /// The longest time away.
        away: Duration,
    },
}

/// How the peer is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// What everything random follows from.
    pub seed: u64,
    /// What it does how often.
    pub mix: Mix,
    /// After so many bad answers about an id the next is honest.
    pub fair_after: u64,
    /// How it comes and goes.
    pub presence: Presence,
    /// One id in so many is refused with 422 until [`Peer::relent`].
    pub refuses_one_in: Option<u64>,
    /// A bug in it.
    pub plant: Option<Plant>,
}

impl Options {
    /// A peer that does everything right.
    #[must_use]
    pub fn honest() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            seed: 0,
            mix: Mix::honest(),
            fair_after: u64::MAX,
            presence: Presence::Steady,
            refuses_one_in: None,
            plant: None,
        }
    }

    /// A peer that does everything wrong, now and then.
    #[must_use]
    pub fn hostile(seed: u64) -> Self {
        let presence = Presence::ComesAndGoes { calls: 400, away: Duration::from_millis(150) };
        Self { seed, mix: Mix::hostile(), fair_after: 4, presence, ..Self::honest() }
    }
}

/// What the connections share.
struct State {
    options: Options,
    books: Mutex<Books>,
    mix: Mutex<Mix>,
    relented: watch::Sender<bool>,
    /// How many different ids are applied.
    applied: watch::Sender<u64>,
}

/// A running peer, on a thread of its own; ends when dropped.
pub struct Peer {
    /// `http://ADDRESS`.
    pub url: String,
    state: Arc<State>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Listens, and serves in the background.
    ///
    /// # Errors
    /// If the address is not free, or no thread can be had.
    pub fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let state = Arc::new(State {
            books: Mutex::default(),
            mix: Mutex::new(options.mix.clone()),
            relented: watch::Sender::new(false),
            applied: watch::Sender::new(0),
            options,
        });
        let (stop, stopping) = watch::channel(false);
        let named = thread::Builder::new().name("peer".to_owned());
        let shared = Arc::clone(&state);
        // Waited for when the peer is dropped.
        let thread = named.spawn(move || runtime.block_on(server::serve(listener, address, shared, stopping)))?;
        Ok(Self { url: format!("http://{address}"), state, stop, thread: Some(thread) })
    }

    /// What it was told so far.
    #[must_use]
    pub fn book(&self) -> Book {
        self.state.shown()
    }

    /// What it was told about one id.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<Row> {
        self.state.shown_row(id)
    }

    /// How many calls there were.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.books().book.calls
    }

    /// How many different ids it has applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        *self.state.applied.borrow()
    }

    /// Waits until it has applied so many different ids.
    pub async fn wait_applied(&self, count: u64) {
        let mut applied = self.state.applied.subscribe();
        // The sender is our own, so this cannot fail.
        let _reached = applied.wait_for(|applied| *applied >= count).await.is_ok();
    }

    /// Changes what it does how often.
    pub fn behave(&self, mix: Mix) {
        *self.state.mix.lock().unwrap_or_else(PoisonError::into_inner) = mix;
    }

    /// From now on nothing is refused with 422 any more.
    pub fn relent(&self) {
        self.state.relented.send_replace(true);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // Who panicked there has said so.
            let _ended = thread.join();
        }
    }
}
