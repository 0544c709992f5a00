//! The engine on PostgreSQL: any number of nodes share one database, and nothing else.
//!
//! ```text
//!  submit ─▶ queue ─▶ lane: at once ───────────────▶ decided by the rules ─▶ ledger_admit ─────────▶ answers
//!                       or: BEGIN, ledger_open ─▶ decided by the rules ─▶ ledger_admit, COMMIT ─▶ answers
//! ```
//!
//! The rules are the embedded engine's ([`holdfast_engine::part`]); the tables and what they guard are in `sql/0008…0010`,
//! `sql/0016`, `sql/0019` and `sql/0021`. Time is the database's, so that nodes need not agree on it ([`Time`]).

mod busy;
mod entry;
mod expiry;
mod known;
mod lane;
pub mod moving;
mod owed;
mod place;
mod query;
mod rows;
mod session;
mod time;

pub use owed::Owed;
pub use query::Until;
pub use time::Time;

use super::{Database, DatabaseError};
use busy::Meets;
use holdfast_engine::part::{Part, Wanted};
use holdfast_engine::{Answer, BATCH_MAX, Limits, Refusal, Request, View};
use known::Known;
use lane::{Job, Taken};
use rows::{Opened, names};
use session::{Question, Session, Values};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};
use tokio_postgres::Row;

/// How many lanes a node has, unless told otherwise: one decides while the other's commit is being synced. A third makes the rounds
/// smaller, and what a round costs by itself is more than it gains below some hundred callers.
pub const LANES: usize = 2;
/// The most requests of one round. More are taken only if one caller brings them together.
const ROUND_MAX: usize = 1_000;
/// So many requests are not divided among lanes: what a round costs by itself, they cost together.
const ROUND_MIN: usize = 32;
/// How often a lane lets others go first, at most.
const GATHER_MAX: usize = 64;
/// The most requests that wait.
const WAITING_MAX: usize = 100_000;

/// What a deployment decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Bounds.
    pub limits: Limits,
    /// Whether there is a peer.
    pub settles: Settles,
    /// How many connections decide: [`LANES`], unless told otherwise.
    pub lanes: usize,
}

/// Whether there is a peer who is to be told of each charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settles {
    /// What is committed is owed, by the same commit.
    Yes,
    /// Nobody is told.
    No,
}

/// Something that went wrong on the way to the database, for the log and the counters.
#[derive(Debug)]
pub enum Trouble {
    /// Somebody else was there at the same moment; it is tried again.
    Overtaken,
    /// The connection was lost, or there was none; it is tried again.
    Lost(String),
    /// The connection was lost while a commit was on its way; what became of it is found out.
    InDoubt,
    /// The database refused.
    Refused(String),
}

/// Hears of trouble.
pub trait Observer: Send + Sync + 'static {
    /// This happened.
    fn trouble(&self, trouble: &Trouble);
}

/// How the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Whether the last that was heard of the database was an answer.
    pub is_reached: bool,
    /// Requests that wait.
    pub waiting: usize,
    /// Rounds that were tried again because somebody else was there.
    pub overtaken: u64,
    /// Commits whose end had to be found out.
    pub in_doubt: u64,
    /// How many connections decide.
    pub lanes: usize,
}

/// The books in a database.
pub struct PostgresLedger {
    shared: Arc<Shared>,
    database: Database,
    reader: tokio::sync::Mutex<Option<Arc<Session>>>,
    lanes: Vec<tokio::task::JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<VecDeque<Job>>,
    /// Rung once for each job.
    bell: Notify,
    waiting: AtomicUsize,
    /// Requests that lanes have taken.
    deciding: AtomicUsize,
    known: Mutex<Known>,
    stopping: AtomicBool,
    rules: Rules,
    time: Time,
    observer: Arc<dyn Observer>,
    is_reached: AtomicBool,
    overtaken: AtomicU64,
    in_doubt: AtomicU64,
    /// Rung when something that was committed here is owed.
    owes: Notify,
}

impl PostgresLedger {
    /// Connects to the books in `database`, whose schema is there.
    ///
    /// # Errors
    /// If it cannot be reached, or has no ledger.
    pub async fn open(database: Database, rules: Rules, observer: Arc<dyn Observer>) -> Result<Self, DatabaseError> {
        Self::open_at(database, rules, Time::Database, observer).await
    }

    /// The same, with the time from elsewhere.
    ///
    /// # Errors
    /// If it cannot be reached, or has no ledger.
    pub async fn open_at(
        database: Database,
        rules: Rules,
        time: Time,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, DatabaseError> {
        let reader = Session::connect(&database).await?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            bell: Notify::new(),
            waiting: AtomicUsize::new(0),
            deciding: AtomicUsize::new(0),
            known: Mutex::default(),
            stopping: AtomicBool::new(false),
            rules,
            time,
            observer,
            is_reached: AtomicBool::new(true),
            overtaken: AtomicU64::new(0),
            in_doubt: AtomicU64::new(0),
            owes: Notify::new(),
        });
        let lane = |_| tokio::spawn(lane::run(Arc::clone(&shared), database.clone()));
        let lanes = (0..rules.lanes.max(1)).map(lane).collect();
        Ok(Self { shared, database, reader: tokio::sync::Mutex::new(Some(Arc::new(reader))), lanes })
    }

    /// Has one request decided. The answer is durable when it comes.
    pub async fn submit(&self, request: Request) -> Answer {
        self.put(request)?.await.unwrap_or(Err(Refusal::Stopping))
    }

    fn put(&self, request: Request) -> Result<oneshot::Receiver<Answer>, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.shared.put(Job::One(Box::new(request), reply))?;
        Ok(answer)
    }

    /// Has requests decided, in order, in one transaction. Each is answered by itself.
    pub async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        if requests.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLarge);
        }
        let (reply, answers) = oneshot::channel();
        self.shared.put(Job::Many(requests, reply))?;
        answers.await.map_err(|_| Refusal::Stopping)
    }

    /// Looks at what is wanted as it stands. Sums and lists over all are asked for by their own functions.
    pub async fn look<T>(&self, wanted: &Wanted, look: impl FnOnce(&View<'_>) -> T) -> Result<T, Refusal> {
        let lists = names(wanted);
        let lists: Values<'_> = &[&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets];
        let rows = self.read(Question::Look, lists).await?;
        let unreadable = || Refusal::Unreadable("the database's rows are not understood".to_owned());
        let opened = Opened::read(&rows, &self.shared.time).ok_or_else(unreadable)?;
        Ok(Part::new(opened.rows, self.shared.rules.limits)?.look(look))
    }

    /// Reads by the connection that is only for reading, and once more by a new one if that was gone.
    async fn read(&self, question: Question<'_>, values: Values<'_>) -> Result<Vec<Row>, Refusal> {
        let mut is_second = false;
        loop {
            let session = self.session().await?;
            let unanswered = match session.ask(question, values).await {
                Ok(found) => {
                    self.shared.reached();
                    return Ok(found);
                }
                Err(unanswered) => unanswered,
            };
            self.shared.trouble(&Trouble::Lost(unanswered.said));
            if is_second || !unanswered.was_gone {
                return Err(Refusal::DatabaseUnavailable);
            }
            is_second = true;
        }
    }

    async fn session(&self) -> Result<Arc<Session>, Refusal> {
        let mut reader = self.reader.lock().await;
        if let Some(session) = reader.as_ref().filter(|session| !session.is_closed()) {
            return Ok(Arc::clone(session));
        }
        let connected = Session::connect(&self.database).await.map_err(|error| {
            self.shared.trouble(&Trouble::Lost(error.to_string()));
            Refusal::DatabaseUnavailable
        })?;
        Ok(Arc::clone(reader.insert(Arc::new(connected))))
    }

    /// Where it is.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// How it is. Never waits.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            is_reached: self.shared.is_reached.load(Ordering::Relaxed),
            waiting: self.shared.waiting.load(Ordering::Relaxed),
            overtaken: self.shared.overtaken.load(Ordering::Relaxed),
            in_doubt: self.shared.in_doubt.load(Ordering::Relaxed),
            lanes: self.lanes.len(),
        }
    }

    /// Takes no more, and waits until what waits is answered.
    pub async fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.bell.notify_waiters();
        for lane in self.lanes.drain(..) {
            // One that waits wakes by its own bell; `notify_waiters` alone misses one that is just about to wait.
            self.shared.bell.notify_one();
            let _ended = lane.await.is_ok();
        }
    }
}

impl Drop for PostgresLedger {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.bell.notify_waiters();
        for lane in &self.lanes {
            lane.abort();
        }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, job: Job) -> Result<(), Refusal> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Refusal::Stopping);
        }
        let count = job.requests().len();
        if self.waiting.fetch_add(count, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            return Err(Refusal::Overloaded);
        }
        self.queue().push_back(job);
        self.bell.notify_one();
        Ok(())
    }

    /// A lane's share of all that waits, or more if one caller brings it; `None` when there is nothing and nothing will come.
    async fn take(&self) -> Option<Taken> {
        loop {
            self.gather().await;
            let taken = self.take_now(self.share());
            if !taken.jobs.is_empty() {
                return Some(taken);
            }
            // What waits for another lane is taken by it, or whoever it rings for.
            if self.stopping.load(Ordering::Acquire) {
                return None;
            }
            self.bell.notified().await;
        }
    }

    /// Callers who were answered together ask again together, and a round for the first of them costs almost what one for all does:
    /// those who are about to ask are let go first.
    async fn gather(&self) {
        let mut before = 0;
        for _ in 0..GATHER_MAX {
            let waiting = self.waiting.load(Ordering::Relaxed);
            if waiting == before {
                return;
            }
            before = waiting;
            tokio::task::yield_now().await;
        }
    }

    /// How much a lane takes, so that the lanes have as much to do as each other.
    fn share(&self) -> usize {
        let all = self.waiting.load(Ordering::Relaxed) + self.deciding.load(Ordering::Relaxed);
        all.div_ceil(self.rules.lanes.max(1)).clamp(ROUND_MIN, ROUND_MAX)
    }

    fn take_now(&self, at_most: usize) -> Taken {
        let mut queue = self.queue();
        let mut known = self.known();
        let (mut taken, mut count, mut passed) = (Taken::default(), 0, VecDeque::new());
        while let Some(next) = queue.front() {
            let more = next.requests().len();
            if count > 0 && count + more > at_most {
                // Whoever is next takes the rest.
                self.bell.notify_one();
                break;
            }
            if passed.len() >= ROUND_MAX {
                break;
            }
            let Some(job) = queue.pop_front() else { break };
            let (touches, meets) = known.meets(job.requests());
            // One that is alone waits for the lane that is at its account. A batch could wait for ever.
            if meets == Meets::Others && matches!(job, Job::One(..)) {
                passed.push_back(job);
                continue;
            }
            if meets == Meets::Others {
                taken.meets = Meets::Others;
            }
            count += more;
            taken.touches.extend(touches);
            taken.jobs.push(job);
        }
        while let Some(job) = passed.pop_back() {
            queue.push_front(job);
        }
        known.busy().begin(&taken.touches);
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        self.deciding.fetch_add(count, Ordering::Relaxed);
        taken
    }

    fn reached(&self) {
        self.is_reached.store(true, Ordering::Relaxed);
    }

    fn trouble(&self, trouble: &Trouble) {
        match trouble {
            Trouble::Overtaken => drop(self.overtaken.fetch_add(1, Ordering::Relaxed)),
            Trouble::InDoubt => drop(self.in_doubt.fetch_add(1, Ordering::Relaxed)),
            Trouble::Lost(_) => self.is_reached.store(false, Ordering::Relaxed),
            Trouble::Refused(_) => {}
        }
        self.observer.trouble(trouble);
    }
}
