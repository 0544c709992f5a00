//! What every store of the queue's items must do. An adapter's test makes an empty store and passes it to [`rules`].
//!
//! # Invariants
//! - Every rule ends all that it put: after it the store counts nothing.
//! - Each rule has names of its own, because what has ended stays.

mod crowd;
mod lists;
mod steps;

use super::ledger::Broken;
use holdfast_domain::queue::{Cause, Intake, Item, Refusal, State, Verdict, enqueue};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, PayeeId, Span, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed, QueueStore};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

/// Whether a rule was kept; if not, what was seen.
type Kept = Result<(), String>;

/// Tries every rule on a store that is empty, and leaves nothing open in it.
pub async fn rules<S: QueueStore>(store: Arc<S>) -> Result<(), Broken> {
    let tried = Tried { store };
    tried.keeps("what is put is there unchanged", steps::put(&tried)).await?;
    tried.keeps("an id belongs to one intake", steps::reused(&tried)).await?;
    tried.keeps("an escrow belongs to one item", steps::linked(&tried)).await?;
    tried.keeps("every state and every step", steps::table(&tried)).await?;
    tried.keeps("an end that was told stays", steps::ended_so(&tried)).await?;
    tried.keeps("items are counted", steps::counted(&tried)).await?;
    tried.keeps("the widest values come back", steps::widest(&tried)).await?;
    tried.keeps("items are listed by rank", lists::by_rank(&tried)).await?;
    tried.keeps("a list goes on after one that has moved", lists::moved(&tried)).await?;
    tried.keeps("the last to end is listed first", lists::last_first(&tried)).await?;
    tried.keeps("the next is the first that is not overdue", lists::next(&tried)).await?;
    tried.keeps("overdue items come by their time", lists::overdue(&tried)).await?;
    tried.keeps("each item is taken up once in a crowd", crowd::each_once(&tried)).await?;
    tried.keeps("one of a crowd starts an item", crowd::one_start(&tried)).await?;
    tried.keeps("one verdict of a crowd stands", crowd::one_verdict(&tried)).await?;
    tried.keeps("one item of a crowd gets the escrow", crowd::one_link(&tried)).await?;
    tried.keeps("a put of a crowd is done once", crowd::one_put(&tried)).await
}

/// A store that is being tried.
struct Tried<S> {
    store: Arc<S>,
}

impl<S: QueueStore> Tried<S> {
    async fn keeps(&self, rule: &'static str, kept: impl Future<Output = Kept>) -> Result<(), Broken> {
        let broken = |what| Broken { rule, what };
        kept.await.map_err(broken)?;
        let left = done("counting", self.store.counts().await).map_err(broken)?;
        same("what the rule left behind", left, Counts::default()).map_err(broken)
    }

    /// Puts an item that must be new.
    async fn put(&self, item: Item) -> Result<Item, String> {
        match done("a put", self.store.put(item.clone()).await)? {
            Put::New(put) => same("what was put", &put, &item).map(|()| put),
            Put::Known(known) => Err(format!("{known:?} was known already")),
        }
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Result<Item, String> {
        done("a start", self.store.start(id, now).await)
    }

    async fn end(&self, id: ItemId, verdict: Verdict) -> Result<Item, String> {
        done("an end", self.store.end(id, verdict, LATER).await)
    }

    async fn item(&self, id: ItemId) -> Result<Option<Item>, String> {
        done("a look", self.store.item(id).await)
    }

    /// Looks whether an item is there as it should be.
    async fn is(&self, item: &Item) -> Kept {
        same("the item in the store", self.item(item.intake.id).await?.as_ref(), Some(item))
    }

    /// The names of what is listed.
    async fn names(&self, filter: Filter, at_most: usize) -> Result<Vec<String>, String> {
        let listed = done("a list", self.store.list(filter, at_most).await)?;
        Ok(listed.iter().map(|item| item.intake.id.to_string()).collect())
    }

    /// Ends these, so that nothing is left.
    async fn tidy(&self, ids: impl IntoIterator<Item = ItemId>) -> Kept {
        for id in ids {
            self.end(id, GIVEN_UP).await?;
        }
        Ok(())
    }
}

/// When items come, if nothing else is said.
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// When they end.
const LATER: Timestamp = Timestamp::from_millis(1_700_000_900_000);
/// How an item ends that a rule has no more use for.
const GIVEN_UP: Verdict = Verdict::Abandon { cause: Cause::AdminCancelled };

fn id(name: &str) -> ItemId {
    name.parse().expect("a plain name")
}

fn payee(name: &str) -> PayeeId {
    name.parse().expect("a plain name")
}

fn escrow_of(name: &str) -> EscrowId {
    format!("esc-{name}").parse().expect("a plain name")
}

fn credits(units: u64) -> CreditUnit {
    CreditUnit::new(units).expect("a sum in range")
}

fn at(seconds: u32) -> Timestamp {
    NOW.after(Span::from_secs(seconds))
}

/// The intake of an item with this name, for this payee.
fn intake(name: &str, payee_name: &str) -> Intake {
    Intake {
        id: id(name),
        user: "alice".parse().expect("a plain name"),
        payee: payee(payee_name),
        escrow: escrow_of(name),
        amount: credits(1_000_000),
        feature: "song".parse().expect("a plain name"),
        priority: 0,
        metadata: None,
    }
}

/// An item that came a few seconds after [`NOW`].
fn item(name: &str, payee_name: &str, seconds: u32) -> Item {
    enqueue(intake(name, payee_name), at(seconds), None)
}

fn done<T>(what: &str, answer: Answered<T>) -> Result<T, String> {
    answer.map_err(|failed| format!("{what} failed: {failed:?}"))
}

fn same<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Kept {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, and not {expected:?}")) }
}

/// Whether a step was refused because of the item's state.
fn refused(what: &str, answer: &Answered<Item>, current: State, expected: &'static [State]) -> Kept {
    let refusal = QueueFailed::Refused(Refusal::InvalidState { current, expected });
    same(what, answer.as_ref().err(), Some(&refusal))
}
