//! The performance queue: it decides what becomes of an escrow, and has the wallet do it.
//!
//! ```text
//!  intake ─▶ queued ─▶ in progress ─▶ verdict ─▶ signed word ─▶ purse (the wallet, here or elsewhere) ─▶ the item ends
//!              └─ rope drop ───────────▲                                        │
//!                                      └──── converge: as the escrow ended ◀────┘
//! ```
//!
//! # Invariants
//! - The queue moves no money and the wallet decides nothing: every end is one signed word, under one key for each item and kind
//!   of end, whichever process the wallet is in.
//! - The escrow is the truth. An item that is not known to have ended is compared with it at the start and before anything is
//!   decided about it, so that a crash between the two leaves nothing open for long.
//! - What was begun about an end is finished, whether or not its caller waits for it.

mod converge;
mod error;
mod glance;
mod numbers;
mod open;
mod orphans;
mod outliving;
mod purse;
mod remote;
mod settings;
mod store;
mod timers;
mod watch;

pub(crate) use error::{Mismatch, QueueError};
pub(crate) use glance::Glance;
pub(crate) use open::open;
pub(crate) use orphans::Orphans;
pub(crate) use purse::{Purse, PurseFailed};
pub(crate) use remote::RemoteWallet;
pub(crate) use settings::QueueSettings;
pub(crate) use store::Store;

use crate::identity;
use crate::terminal;
use crate::wallet::{EscrowSeen, Instruction, Replayed, Secrets};
use holdfast_adapters::SystemClock;
use holdfast_domain::queue::{self, Cause, Intake, Item, Order, Refusal, Stage, State, Verdict};
use holdfast_domain::{Id, ItemId, Key, Label, PayeeId, Span, Timestamp, escrow};
use holdfast_engine::Clock;
use holdfast_engine::queue::{Filter, Put, QueueFailed, QueueStore};
use holdfast_journal::failpoint;
use numbers::{Asked, Numbers};
use outliving::Outliving;
use settings::RopeDrop;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch as signal;
use tokio_util::task::TaskTracker;

/// How often the wallet is asked when another was there at the same moment.
const TRIES: u32 = 3;
/// How long it is waited after the first of them; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How many items that have ended already are passed over to find one that has not.
const NEXT_TRIES: usize = 64;
/// The longest id of an item: the wallet's key for it is 14 bytes longer, and has at most 64.
const ITEM_BYTES_MAX: usize = 50;

/// What a queue is made of.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) purse: Purse,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) settings: QueueSettings,
}

/// The queue.
pub(crate) struct Queue {
    store: Store,
    purse: Purse,
    secrets: Arc<Secrets>,
    clock: Arc<SystemClock>,
    rope_drop: RopeDrop,
    orphan_after: Span,
    pub(crate) numbers: Numbers,
    /// The rope drop's next time.
    alarm: timers::Alarm,
    /// What is under way, and is waited for when the server stops.
    tasks: TaskTracker,
}

/// An item that is new, or was there already by the same intake.
pub(crate) struct Enqueued {
    pub(crate) item: Item,
    pub(crate) replayed: Replayed,
}

/// An item that has ended, and its escrow.
pub(crate) struct Ended {
    pub(crate) item: Item,
    pub(crate) escrow: EscrowSeen,
    pub(crate) replayed: Replayed,
}

impl Queue {
    /// A queue. Nothing of it runs by itself before [`Queue::run`].
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { store, purse, secrets, clock, settings } = parts;
        Arc::new(Self {
            store,
            purse,
            secrets,
            clock,
            rope_drop: settings.rope_drop,
            orphan_after: settings.orphan_after,
            numbers: Numbers::new(),
            alarm: timers::Alarm::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Begins what the queue does by itself, until `stopping`. All of it is waited for by [`Queue::finished`].
    ///
    /// Not before this server answers: a wallet in another process asks it for its keys first.
    pub(crate) fn run(self: &Arc<Self>, runtime: &Runtime, stopping: &signal::Receiver<bool>) {
        let runtime = runtime.handle();
        self.tasks.spawn_on(timers::run(Arc::clone(self), stopping.clone()), runtime);
        self.tasks.spawn_on(converge::run(Arc::clone(self), stopping.clone()), runtime);
        self.tasks.spawn_on(watch::run(Arc::clone(self), stopping.clone()), runtime);
    }

    /// Waits until what is under way is done.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Takes an item in, if its escrow is good for it. The same intake again gives the item as it is.
    pub(crate) async fn enqueue(&self, intake: Intake) -> Result<Enqueued, QueueError> {
        let (id, escrow) = (intake.id, intake.escrow);
        let of_store = |failed| QueueError::of_store(id, escrow, failed);
        if let Err(error) = self.check_linkage(&intake).await {
            // An intake that is repeated is good however its escrow has ended since.
            return match self.store.item(id).await.map_err(of_store)? {
                Some(item) if item.intake == intake => Ok(Enqueued { item, replayed: Replayed::Yes }),
                Some(_) => Err(QueueError::Reused),
                None => Err(error),
            };
        }
        let rope_drop = self.rope_drop.of(intake.feature);
        let item = queue::enqueue(intake, self.clock.now(), rope_drop);
        Ok(match self.store.put(item).await.map_err(of_store)? {
            Put::New(item) => {
                self.alarm.set_for(&item);
                Enqueued { item, replayed: Replayed::No }
            }
            Put::Known(item) => Enqueued { item, replayed: Replayed::Yes },
        })
    }

    async fn check_linkage(&self, intake: &Intake) -> Result<(), QueueError> {
        let refused = |mismatch| Err(QueueError::Linkage { escrow: intake.escrow, mismatch });
        let standing = self.purse.standing(intake.escrow).await?;
        let Some((escrow, owner)) = standing else { return refused(Mismatch::NotFound) };
        if queue::accepts(intake, &escrow, owner) {
            return Ok(());
        }
        let escrowed = escrow.escrowed();
        refused(if owner != intake.user {
            Mismatch::User
        } else if escrow.state() != escrow::State::Held {
            Mismatch::NotHeld(escrow.state())
        } else if escrowed.amount != intake.amount {
            Mismatch::Amount { held: escrowed.amount }
        } else {
            Mismatch::Feature
        })
    }

    /// One item, however old.
    pub(crate) async fn item(&self, id: ItemId) -> Result<Item, QueueError> {
        let item = self.find(id).await?;
        Ok(self.converged(item).await)
    }

    /// Items in the order of their rank; those that have ended, the last to end first.
    pub(crate) async fn list(&self, filter: Filter, at_most: usize) -> Result<Vec<Item>, QueueError> {
        self.store.list(filter, at_most).await.map_err(unavailable)
    }

    /// Has an item taken up. One whose time is over is given up instead.
    pub(crate) async fn start(self: &Arc<Self>, id: ItemId) -> Result<Item, QueueError> {
        let item = self.find(id).await?;
        let mut item = self.converged(item).await;
        if item.is_overdue(self.clock.now()) {
            self.drop_overdue(id).await?;
            item = self.find(id).await?;
        }
        let escrow = item.intake.escrow;
        if let Err(refusal) = item.start(self.clock.now()) {
            return Err(QueueError::Refused { item: id, refusal });
        }
        self.store.start(id, self.clock.now()).await.map_err(|failed| QueueError::of_store(id, escrow, failed))
    }

    /// Has the first of a payee's waiting items taken up, if there is one.
    pub(crate) async fn next(&self, payee: PayeeId) -> Result<Option<Item>, QueueError> {
        for _ in 0..NEXT_TRIES {
            let next = self.store.start_next(payee, self.clock.now()).await.map_err(unavailable)?;
            let Some(item) = next else { return Ok(None) };
            let item = self.converged(item).await;
            if !item.state().is_end() {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Finishes an item, for whoever names its payee, if anybody is named.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        id: ItemId,
        payee: Option<PayeeId>,
        actor: Label,
    ) -> Result<Ended, QueueError> {
        if let Some(payee) = payee
            && self.find(id).await?.intake.payee != payee
        {
            return Err(QueueError::OtherPayee(id));
        }
        self.end(id, Verdict::Finish, actor).await
    }

    /// Ends an item: its escrow first, then the item itself.
    ///
    /// It goes on when the caller has gone away: an escrow that has ended and an item that has not is only for crashes.
    pub(crate) async fn end(self: &Arc<Self>, id: ItemId, verdict: Verdict, actor: Label) -> Result<Ended, QueueError> {
        let queue = Arc::clone(self);
        Outliving::new(async move { queue.end_to_the_end(id, verdict, actor).await }, &self.tasks).await
    }

    async fn end_to_the_end(&self, id: ItemId, verdict: Verdict, actor: Label) -> Result<Ended, QueueError> {
        let item = self.find(id).await?;
        let (item, order) = self.ordered(item, verdict).await?;
        let instruction = self.instruction(&item, order, verdict);
        failpoint::pass("queue.before_carry_out");
        let carried_out = self.carry_out(&instruction, actor).await;
        failpoint::pass("queue.after_carry_out");
        let (escrow, replayed) = match carried_out {
            Ok(done) => done,
            Err(failed) if failed.says_it_has_ended() => {
                let item = self.converge(&item).await?.unwrap_or(item);
                // If the escrow has not ended after all, the wallet's own words are the best there are.
                item.order(verdict).map_err(|refusal| QueueError::Refused { item: id, refusal })?;
                return Err(failed.into());
            }
            Err(failed) => return Err(failed.into()),
        };
        let at = escrow.end.as_ref().map_or_else(|| self.clock.now(), |end| end.at);
        let item = self.ended(item, verdict, at).await;
        failpoint::pass("queue.after_end");
        if replayed == Replayed::No {
            self.numbers.ended(&item);
        }
        Ok(Ended { item, escrow, replayed })
    }

    /// What the wallet is to do; an item that would not allow it is compared with its escrow first.
    async fn ordered(&self, item: Item, verdict: Verdict) -> Result<(Item, Order), QueueError> {
        let item = match item.order(verdict) {
            Ok(order) => return Ok((item, order)),
            Err(Refusal::InvalidState { .. }) => self.converged(item).await,
            Err(Refusal::InvalidSplit { .. } | Refusal::InvalidCause(_)) => item,
        };
        let order = item.order(verdict).map_err(|refusal| QueueError::Refused { item: item.intake.id, refusal })?;
        Ok((item, order))
    }

    fn instruction(&self, item: &Item, order: Order, verdict: Verdict) -> Instruction {
        let Intake { id, user, escrow, amount, .. } = item.intake;
        let key = format!("queue-{id}-{}", verdict.operation());
        let key: Key = Id::from_bytes(key.as_bytes()).expect("an item's id has at most 50 bytes");
        // The wallet may be another machine, so the token's time is the wall clock's.
        let token = self.secrets.sign(escrow, user, amount, &order, identity::now());
        Instruction { escrow, user, amount, order, key, token }
    }

    /// Has the wallet do it. Only that another was there at the same moment is a reason to ask again.
    async fn carry_out(&self, instruction: &Instruction, actor: Label) -> Result<(EscrowSeen, Replayed), PurseFailed> {
        let mut tried = 1;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.purse.carry_out(instruction, actor).await {
                Err(failed) if failed.is_a_collision() && tried < TRIES => {
                    tokio::time::sleep(pause).await;
                    tried += 1;
                    pause *= 2;
                }
                carried_out => {
                    self.numbers.asked(match &carried_out {
                        Ok(_) => Asked::Done,
                        Err(failed) if failed.is_a_refusal() => Asked::Refused,
                        Err(_) => Asked::Failed,
                    });
                    return carried_out;
                }
            }
        }
    }

    /// The item, ended as its escrow was. If the store does not take it now, the escrow tells it again later.
    async fn ended(&self, item: Item, verdict: Verdict, at: Timestamp) -> Item {
        let id = item.intake.id;
        match self.store.end(id, verdict, at).await {
            Ok(item) => item,
            Err(failed) => {
                terminal::note(&format!("the end of queue item {id} is known to its escrow only: {failed}"));
                let end = queue::End { verdict, started_at: item.started_at(), ended_at: at };
                Item { stage: Stage::Ended(end), ..item }
            }
        }
    }

    /// Gives up an item that nobody took up in time. One that was taken up, or has ended, stays as it is.
    async fn drop_overdue(self: &Arc<Self>, id: ItemId) -> Result<(), QueueError> {
        if !self.find(id).await?.is_overdue(self.clock.now()) {
            return Ok(());
        }
        let actor: Label = "rope-drop".parse().expect("a plain word");
        match self.end(id, Verdict::Abandon { cause: Cause::RopeDropTimeout }, actor).await {
            Ok(_) | Err(QueueError::Refused { refusal: Refusal::InvalidState { .. }, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn find(&self, id: ItemId) -> Result<Item, QueueError> {
        self.store.item(id).await.map_err(unavailable)?.ok_or(QueueError::Unknown(id))
    }
}

/// An id that an item can have.
pub(crate) fn item_id(text: &str) -> Option<ItemId> {
    text.parse().ok().filter(|id: &ItemId| id.as_bytes().len() <= ITEM_BYTES_MAX)
}

/// The state of this name.
pub(crate) fn state_named(name: &str) -> Option<State> {
    State::ALL.into_iter().find(|state| state.name() == name)
}

fn unavailable(failed: QueueFailed) -> QueueError {
    QueueError::Store(failed.to_string())
}
