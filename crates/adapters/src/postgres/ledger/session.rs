//! One connection that decides: a round opens what its requests look at, decides them, and has what came of it admitted.

use super::entry::{Admission, Ledger};
use super::rows::{Opened, names};
use super::{Rules, Time};
use crate::postgres::{Database, DatabaseError};
use holdfast_engine::part::{Part, Wanted};
use holdfast_engine::{Answer, Request};
use holdfast_journal::failpoint;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// Nothing waits for ever, and nobody keeps others waiting: a node that stands still loses its locks.
const BOUNDS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '6s'; \
                      SET idle_in_transaction_session_timeout = '3s'; \
                      SET default_transaction_isolation = 'read committed'";
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
        /// Whether the peer is owed something by it.
        owes: bool,
    },
    /// The batch that begins at this offset was admitted after all, in an earlier round.
    Admitted(u64),
}

/// Why a round came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    /// Somebody else was there at the same moment. Nothing was done; the next round will see what they did.
    Overtaken,
    /// The database did not do it, and would not do it again. Nothing was done.
    Refused(String),
    /// The connection is gone. Nothing was done.
    Lost(String),
    /// The connection went while the batch that begins at this offset was being committed. Whether it was is found out in the
    /// next round.
    InDoubt {
        /// Its first offset.
        offset: u64,
        /// What the callers are to be told if it was.
        answers: Vec<Answer>,
    },
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
        let admit = client.prepare("SELECT holdfast.ledger_admit($1, $2, $3, $4, $5, $6)").await?;
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

    /// Decides `requests`, in order, and has it admitted. `in_doubt` are the first offsets of earlier rounds with the same
    /// requests whose end is not known.
    pub(super) async fn round(
        &self,
        requests: &[&Request],
        in_doubt: &[i64],
        rules: Rules,
        time: &Time,
    ) -> Result<Round, Failed> {
        let wanted = Wanted::by(requests.iter().copied());
        let rows = self.open(&wanted, in_doubt).await?;
        let opened = match Opened::read(&rows, time) {
            Some(opened) => opened,
            None => return self.leave(Err(Failed::Refused("its rows are not understood".to_owned()))).await,
        };
        if let Some(offset) = opened.done {
            return self.leave(Ok(Round::Admitted(offset))).await;
        }
        if !opened.is_whole() {
            return self.leave(Err(Failed::Overtaken)).await;
        }
        let (chains, offset) = (opened.chains, opened.rows.first_offset);
        let decided = Part::new(opened.rows, rules.limits).and_then(|mut part| {
            let answers: Vec<Answer> = requests.iter().map(|request| part.decide(request)).collect();
            Ok((answers, part.decided()?))
        });
        let (answers, decided) = match decided {
            Ok(decided) => decided,
            Err(refusal) => return self.leave(Err(Failed::Refused(refusal.to_string()))).await,
        };
        if decided.entries.is_empty() {
            return self.leave(Ok(Round::Answered { answers, owes: false })).await;
        }
        let Ok(admission) = Admission::of(&decided, chains, Ledger { id: self.ledger, settles: rules.settles }) else {
            return self.leave(Err(Failed::Refused("a number is out of range".to_owned()))).await;
        };
        self.admit(admission, offset, answers).await
    }

    /// Begins, and opens what is wanted: one way there and back.
    async fn open(&self, wanted: &Wanted, in_doubt: &[i64]) -> Result<Vec<Row>, Failed> {
        let lists = names(wanted);
        let lists: [&(dyn ToSql + Sync); 6] =
            [&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets, &in_doubt];
        let both = async { tokio::join!(self.client.batch_execute("BEGIN"), self.client.query(&self.open, &lists)) };
        match timeout(ANSWER_WITHIN, both).await.map(|(begun, rows)| begun.and(rows)) {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => self.leave(Err(failed(&error))).await,
            Err(_late) => Err(Failed::Lost(NO_ANSWER.to_owned())),
        }
    }

    /// Admits and commits: one way there and back. Once both are on their way, only their answers say what became of it.
    async fn admit(&self, admission: Admission, offset: u64, answers: Vec<Answer>) -> Result<Round, Failed> {
        let Admission { entries, owners, lives, payees, budgets, obligations } = admission;
        let admission: [&(dyn ToSql + Sync); 6] = [&entries, &owners, &lives, &payees, &budgets, &obligations];
        failpoint::pass("ledger.before_admit");
        let both =
            async { tokio::join!(self.client.query(&self.admit, &admission), self.client.batch_execute("COMMIT")) };
        let came = timeout(ANSWER_WITHIN, both).await;
        failpoint::pass("ledger.after_commit");
        match came {
            Ok((Ok(_), Ok(()))) => Ok(Round::Answered { answers, owes: !obligations.is_empty() }),
            // The database said no: the commit after it was none.
            Ok((Err(error), Ok(()))) if error.as_db_error().is_some() => Err(failed(&error)),
            Ok((Ok(_) | Err(_), Ok(()) | Err(_))) | Err(_) => Err(Failed::InDoubt { offset, answers }),
        }
    }

    /// Ends the transaction without a trace.
    async fn leave<T>(&self, came_to: Result<T, Failed>) -> Result<T, Failed> {
        match timeout(ANSWER_WITHIN, self.client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => came_to,
            Ok(Err(error)) => came_to.and(Err(failed(&error))),
            Err(_late) => Err(Failed::Lost(NO_ANSWER.to_owned())),
        }
    }
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
