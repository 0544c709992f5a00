//! One connection that decides: a round opens what its requests look at, decides them, and has what came of it admitted. One that
//! is at once opens nothing, and is one statement.

use super::entry::{Admission, Ledger, Places};
use super::known::{Left, Plan, Spare};
use super::rows::{First, Opened, Seen, names};
use super::{Rules, Time};
use crate::postgres::{Database, DatabaseError};
use holdfast_domain::Timestamp;
use holdfast_engine::part::Part;
use holdfast_engine::{Answer, Request};
use holdfast_journal::failpoint;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// Nothing waits for ever, and nobody keeps others waiting: a node that stands still loses its locks.
const BOUNDS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '6s'; \
                      SET idle_in_transaction_session_timeout = '3s'; \
                      SET default_transaction_isolation = 'read committed'";
/// What is asked by name or by place is found so, however small a table was when it was last looked at, and planned once.
pub(super) const PLANS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
                                SET jit = off; SET plan_cache_mode = force_generic_plan";
/// Admits what was decided.
pub(super) const ADMIT: &str = "SELECT * FROM holdfast.ledger_admit($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const FENCE: &str = "SELECT holdfast.ledger_fence($1)";
/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take by our own clock: longer than the database's bounds, for when there is no database any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);
const NO_ANSWER: &str = "no answer came in time";

/// A connection with what it says prepared.
pub(super) struct Session {
    client: Client,
    open: Statement,
    look: Statement,
    admit: Statement,
    /// Whose books these are.
    ledger: [u8; 16],
    driver: Driving,
}

/// What a round came to.
pub(super) enum Round {
    /// The answers, and what they say is durable.
    Answered {
        /// In order.
        answers: Vec<Answer>,
        /// What was admitted, if anything was.
        left: Option<Box<Left>>,
        /// Whether the peer is owed something by it.
        owes: bool,
    },
    /// The batch that begins with this was admitted after all, in an earlier round.
    Admitted(First),
}

/// Why a round came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    /// Somebody else was there at the same moment. Nothing was done; the next round will see what they did.
    Overtaken,
    /// Not all was asked for that the answers rest on. Nothing was done.
    Short,
    /// The database did not do it, and would not do it again. Nothing was done.
    Refused(String),
    /// The connection is gone. Nothing was done.
    Lost(String),
    /// The connection went while this batch was being committed. Whether it was is found out in the next round.
    InDoubt(Doubt),
}

/// A batch that was committed or not.
#[derive(Debug)]
pub(super) struct Doubt {
    /// How it begins.
    pub(super) first: First,
    /// What the callers are to be told if it was.
    pub(super) answers: Vec<Answer>,
    /// An owner with an entry in it who was there before.
    fence: Option<String>,
}

/// Why something was not admitted.
enum Refused {
    /// For this.
    For(Failed),
    /// It may have been.
    Unheard,
}

/// What is only read.
#[derive(Clone, Copy)]
pub(super) enum Question<'a> {
    /// What requests may look at, without locks.
    Look,
    /// Words of their own.
    Words(&'a str),
}

/// Why a question has no answer.
pub(super) struct Unanswered {
    /// In words.
    pub(super) said: String,
    /// Whether the connection was gone, so that another one may answer.
    pub(super) was_gone: bool,
}

/// The values of a question, in order.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What moves the bytes of a connection.
struct Driving(AbortHandle);

impl Drop for Driving {
    fn drop(&mut self) {
        // Closes it at once: what hangs is not waited for.
        self.0.abort();
    }
}

impl Session {
    /// Connects to decide.
    pub(super) async fn connect_to_decide(database: &Database) -> Result<Self, DatabaseError> {
        let session = Self::connect(database).await?;
        session.client.batch_execute(PLANS).await?;
        Ok(session)
    }

    /// Connects, and looks whether the schema is there.
    pub(super) async fn connect(database: &Database) -> Result<Self, DatabaseError> {
        let late = || DatabaseError::Unreachable(NO_ANSWER.to_owned());
        timeout(CONNECT_WITHIN, Self::begin(database)).await.map_err(|_| late())?
    }

    async fn begin(database: &Database) -> Result<Self, DatabaseError> {
        let (client, driver) = database.open().await?;
        // May safely die: its client is told.
        let driver = Driving(tokio::spawn(driver).abort_handle());
        client.batch_execute(BOUNDS).await?;
        let text = Type::TEXT_ARRAY;
        let five = [text.clone(), text.clone(), text.clone(), text.clone(), text.clone()];
        let six = [text.clone(), text.clone(), text.clone(), text.clone(), text, Type::INT8_ARRAY];
        let open = client.prepare_typed("SELECT * FROM holdfast.ledger_open($1, $2, $3, $4, $5, $6)", &six).await?;
        let look = client.prepare_typed("SELECT * FROM holdfast.ledger_look($1, $2, $3, $4, $5)", &five).await?;
        let admit = client.prepare(ADMIT).await?;
        let identity = client.query_one("SELECT uuid_send(ledger_id) FROM holdfast.ledger_identity", &[]).await?;
        let ledger = <[u8; 16]>::try_from(identity.get::<_, &[u8]>(0))
            .map_err(|_| DatabaseError::Failed("the ledger's id is not one".to_owned()))?;
        Ok(Self { client, open, look, admit, ledger, driver })
    }

    /// Whose books these are.
    pub(super) const fn ledger(&self) -> [u8; 16] {
        self.ledger
    }

    /// Whether it can be used no more.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.driver.0.is_finished()
    }

    /// Reads. One that did not answer in time can be used no more.
    pub(super) async fn ask(&self, question: Question<'_>, values: Values<'_>) -> Result<Vec<Row>, Unanswered> {
        let asked = async {
            match question {
                Question::Look => self.client.query(&self.look, values).await,
                Question::Words(words) => self.client.query(words, values).await,
            }
        };
        match timeout(ANSWER_WITHIN, asked).await {
            Ok(answer) => answer
                .map_err(|error| Unanswered { said: DatabaseError::said(&error), was_gone: self.client.is_closed() }),
            Err(_late) => {
                self.driver.0.abort();
                Err(Unanswered { said: NO_ANSWER.to_owned(), was_gone: false })
            }
        }
    }

    /// Decides `requests`, in order, on what is planned, and has it admitted. `doubts` are earlier rounds with the same requests
    /// whose end is not known.
    pub(super) async fn round(
        &self,
        requests: &[&Request],
        plan: &Plan,
        doubts: &[Doubt],
        rules: Rules,
        time: &Time,
    ) -> Result<Round, Failed> {
        let mut opened = match plan.spare {
            Some(spare) => self.look(plan, spare, time).await?,
            None => self.open(plan, doubts, time).await?,
        };
        let is_ours = |first: &First| doubts.iter().any(|doubt| doubt.first == *first);
        if let Some(first) = std::mem::take(&mut opened.done).into_iter().find(is_ours) {
            return self.leave(plan, Ok(Round::Admitted(first))).await;
        }
        opened.rows.lives.extend_from_slice(&plan.records);
        if !opened.is_whole() {
            return self.leave(plan, Err(Failed::Overtaken)).await;
        }
        let Opened { rows, seen, moment, .. } = opened;
        let decided = Part::new(rows, rules.limits).and_then(|mut part| {
            let answers: Vec<Answer> = requests.iter().map(|request| part.decide(request)).collect();
            Ok((answers, part.decided()?))
        });
        let (answers, decided) = match decided {
            Ok(decided) => decided,
            Err(_) if plan.is_guess() => return self.leave(plan, Err(Failed::Short)).await,
            Err(refusal) => return self.leave(plan, Err(Failed::Refused(refusal.to_string()))).await,
        };
        if plan.is_short(requests, &answers) {
            return self.leave(plan, Err(Failed::Short)).await;
        }
        if decided.entries.is_empty() {
            return self.leave(plan, Ok(Round::Answered { answers, left: None, owes: false })).await;
        }
        let ledger = Ledger { id: self.ledger, settles: rules.settles };
        let Some((admission, first)) = Admission::of(&decided, &seen, ledger).ok().and_then(Admission::begun) else {
            return self.leave(plan, Err(Failed::Refused("a number is out of range".to_owned()))).await;
        };
        let fence = admission.fence().map(str::to_owned);
        if plan.spare.is_some() && fence.is_none() {
            return Err(Failed::Short);
        }
        let owes = !admission.obligations.is_empty();
        match self.admit(&admission, plan, moment).await {
            Ok((places, spare)) => {
                let left = Left { decided, seen: admission.admitted(places), spare };
                Ok(Round::Answered { answers, left: Some(Box::new(left)), owes })
            }
            // What was not asked for may be to blame: a balance that no longer bears what was decided is refused as such.
            Err(Refused::For(Failed::Refused(_))) if plan.is_guess() => Err(Failed::Short),
            Err(Refused::For(failed)) => Err(failed),
            Err(Refused::Unheard) => Err(Failed::InDoubt(Doubt { first, answers, fence })),
        }
    }

    /// What a round at once begins with: what is known, and what is not, looked at without locks.
    async fn look(&self, plan: &Plan, spare: Spare, time: &Time) -> Result<Opened, Failed> {
        let now = spare.moment();
        let known = Opened::nothing(spare.first_offset, now);
        let mut rows = Vec::new();
        if !plan.asks_nothing() {
            let lists = names(&plan.wanted);
            let lists: Values<'_> = &[&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets];
            rows = match timeout(ANSWER_WITHIN, self.client.query(&self.look, lists)).await {
                Ok(rows) => rows.map_err(|error| failed(&error))?,
                Err(_late) => return Err(Failed::Lost(NO_ANSWER.to_owned())),
            };
        }
        let mut opened = known.and(&rows, time).ok_or_else(not_understood)?;
        // An owner of a life that was asked for may be among those that are known.
        opened.rows.owners.extend(plan.owners.iter().filter(|row| !opened.seen.owners.contains_key(row.id.as_str())));
        let Seen { owners, lives } = &plan.seen;
        for (owner, end) in owners {
            opened.seen.owners.entry(owner.clone()).or_insert_with(|| end.clone());
        }
        opened.seen.lives.extend(lives.iter().map(|(life, place)| (life.clone(), *place)));
        opened.moment = now;
        if opened.is_after() { Ok(opened) } else { Err(Failed::Short) }
    }

    /// Begins, and opens what is wanted: one way there and back. What is in doubt is settled before.
    async fn open(&self, plan: &Plan, doubts: &[Doubt], time: &Time) -> Result<Opened, Failed> {
        for owner in doubts.iter().filter_map(|doubt| doubt.fence.as_ref()) {
            match timeout(ANSWER_WITHIN, self.client.query(FENCE, &[owner])).await {
                Ok(raised) => drop(raised.map_err(|error| failed(&error))?),
                Err(_late) => return Err(Failed::Lost(NO_ANSWER.to_owned())),
            }
        }
        let in_doubt: Vec<i64> = doubts.iter().map(|doubt| doubt.first.offset.cast_signed()).collect();
        let lists = names(&plan.wanted);
        let lists: [&(dyn ToSql + Sync); 6] =
            [&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets, &in_doubt];
        let both = async { tokio::join!(self.client.batch_execute("BEGIN"), self.client.query(&self.open, &lists)) };
        let rows = match timeout(ANSWER_WITHIN, both).await.map(|(begun, rows)| begun.and(rows)) {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => return self.leave(plan, Err(failed(&error))).await,
            Err(_late) => return Err(Failed::Lost(NO_ANSWER.to_owned())),
        };
        let Some(mut opened) = Opened::read(&rows, time) else {
            return self.leave(plan, Err(not_understood())).await;
        };
        opened.seen.lives.extend(plan.seen.lives.iter().map(|(life, place)| (life.clone(), *place)));
        Ok(opened)
    }

    /// Admits and commits: one way there and back. Once it is on its way, only the answer says what became of it.
    async fn admit(&self, admission: &Admission, plan: &Plan, moment: Timestamp) -> Result<(Places, Spare), Refused> {
        let decided_at = i64::try_from(moment.millis()).unwrap_or(i64::MAX);
        let values = admission.values(&decided_at);
        let admit = self.client.query_one(&self.admit, &values);
        failpoint::pass("ledger.before_admit");
        // A statement by itself is a transaction by itself, and its answer comes when that has ended.
        let came = match plan.spare {
            Some(_) => timeout(ANSWER_WITHIN, admit).await.map(|admitted| (admitted, Ok(()))),
            None => {
                let both = async { tokio::join!(admit, self.client.batch_execute("COMMIT")) };
                timeout(ANSWER_WITHIN, both).await
            }
        };
        failpoint::pass("ledger.after_commit");
        match came {
            Ok((Ok(row), Ok(()))) => admitted(&row).ok_or_else(|| Refused::For(not_understood())),
            // The database said no: the commit after it was none. The last words of a session are no answer.
            Ok((Err(error), Ok(()))) if is_refusal(&error) => Err(Refused::For(failed(&error))),
            Ok((Ok(_) | Err(_), Ok(()) | Err(_))) | Err(_) => Err(Refused::Unheard),
        }
    }

    /// Ends the transaction, if there is one, without a trace.
    async fn leave<T>(&self, plan: &Plan, came_to: Result<T, Failed>) -> Result<T, Failed> {
        if plan.spare.is_some() {
            return came_to;
        }
        match timeout(ANSWER_WITHIN, self.client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => came_to,
            Ok(Err(error)) => came_to.and(Err(failed(&error))),
            Err(_late) => Err(Failed::Lost(NO_ANSWER.to_owned())),
        }
    }
}

/// What the database says of what it admitted.
fn admitted(row: &Row) -> Option<(Places, Spare)> {
    let places = |index| row.try_get(index).ok();
    let number = |index| row.try_get::<_, i64>(index).ok().and_then(|number| u64::try_from(number).ok());
    let spare = Spare::new(number(3)?, Timestamp::from_millis(number(4)?));
    Some((Places { owners: places(0)?, begun: places(1)?, moved: places(2)? }, spare))
}

fn is_refusal(error: &Error) -> bool {
    error.as_db_error().and_then(DbError::parsed_severity) == Some(Severity::Error)
}

fn not_understood() -> Failed {
    Failed::Refused("its rows are not understood".to_owned())
}

/// What a failure means for the round.
fn failed(error: &Error) -> Failed {
    let said = DatabaseError::said(error);
    let Some(refusal) = error.as_db_error() else { return Failed::Lost(said) };
    let code = refusal.code();
    let overtaken = [
        SqlState::UNIQUE_VIOLATION,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
    ];
    if code.code() == STALE || overtaken.contains(code) {
        return Failed::Overtaken;
    }
    // 08: the connection; 57P: it is being shut down, or not up yet; 53: it has no room just now; 25P03: we stood still.
    let is_gone = ["08", "57P", "53", "25P03"].iter().any(|class| code.code().starts_with(class));
    if is_gone { Failed::Lost(said) } else { Failed::Refused(said) }
}

/// `ledger_admit` found that somebody has been there.
const STALE: &str = "P7101";
