//! Paid inference: hold what a request can cost at the most, have it answered, charge what it did cost.
//!
//! ```text
//!  ask ─▶ known already? ─▶ quote (tokens × prices) ─▶ reserve ─▶ provider ─▶ pieces ─▶ commit ─▶ last piece
//!             join                                        402        release on failure before the first token
//! ```
//!
//! Every request is worked on by a task of its own, which the caller merely watches: a caller that hangs up changes nothing
//! of what is charged. Whatever kills the process leaves the hold, and the next start settles it by what was noted
//! ([`sweep`]).
//!
//! # Invariants
//! - The hold is an upper bound: no token beyond what was held for is asked of a provider.
//! - The end of an answer is told only after its charge is durable.
//! - The same key and body is answered once and charged once; another body under the key is refused.

mod ask;
mod live;
mod quote;
mod running;
mod settle;
mod sweep;
mod tally;
mod told;
mod work;

pub(crate) use ask::{Ask, Caller, IfGone, Wish, charge_of};
pub(crate) use live::{Head, Money, Reader};
pub(crate) use quote::NoQuote;
pub(crate) use sweep::sweep;
pub(crate) use tally::Tally;

use crate::books::Books;
use crate::prices::Prices;
use crate::settlement::Settlement;
use holdfast_adapters::SystemClock;
use holdfast_adapters::providers::Providers;
use holdfast_domain::CreditUnit;
use running::Running;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// What a charge of the gateway's is called by, so that a start knows which open holds nobody works on any more.
pub(crate) const CHARGE_PREFIX: &str = "inf_";
/// The requests a day that an account may make with its own provider key.
const BYOK_PER_DAY: u32 = 1_000;

/// Everything that answering takes.
pub(crate) struct Inference {
    books: Books,
    clock: Arc<SystemClock>,
    pub(crate) prices: Prices,
    pub(crate) providers: Providers,
    running: Running,
    tasks: TaskTracker,
    /// An answer that takes a balance below this says so.
    pub(crate) credits_low: CreditUnit,
    pub(crate) tally: Arc<Tally>,
    /// How charges are settled with the peer, if there is one.
    settlement: Option<Arc<Settlement>>,
}

impl Inference {
    pub(crate) fn new(
        (books, clock): (Books, Arc<SystemClock>),
        prices: Prices,
        providers: Providers,
        credits_low: CreditUnit,
        settlement: Option<Arc<Settlement>>,
        tally: Arc<Tally>,
    ) -> Arc<Self> {
        let (running, tasks) = (Running::new(), TaskTracker::new());
        Arc::new(Self { books, clock, prices, providers, running, tasks, credits_low, tally, settlement })
    }

    /// Waits until every request that is being worked on has been charged or released.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        let tally = Arc::clone(&self.tally);
        let _kept = tokio::task::spawn_blocking(move || tally.keep()).await;
    }
}
