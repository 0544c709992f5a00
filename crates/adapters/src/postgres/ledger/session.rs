//! One connection that decides: a round opens what its requests look at, decides them, and has what came of it admitted.

use super::Rules;
use super::entry::{Admission, Ledger};
use super::rows::{Opened, names};
use crate::postgres::{Database, DatabaseError};
use holdfast_engine::part::{Part, Wanted};
use holdfast_engine::{Answer, Limits, Refusal, Request};
use holdfast_journal::failpoint;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// Nothing waits for ever, and nobody keeps others waiting: a node that stands still loses its locks.
const BOUNDS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '6s'; \
                      SET idle_in_transaction_session_timeout = '3s'; \
                      SET default_transaction_isolation = 'read committed'";

/// A connection with what it says prepared.
pub(super) struct Session {
    client: Client,
    open: Statement,
    look: Statement,
    admit: Statement,
    /// Whose books these are.
    ledger: [u8; 16],
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

impl Session {
    /// Connects, and looks whether the schema is there.
    pub(super) async fn connect(database: &Database) -> Result<Self, DatabaseError> {
        let client = database.connect().await?;
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
        Ok(Self { client, open, look, admit, ledger })
    }

    /// Whose books these are.
    pub(super) const fn ledger(&self) -> [u8; 16] {
        self.ledger
    }

    /// The client, for what is only read.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Whether it can be used no more.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Looks at what is wanted, without locks.
    pub(super) async fn look(&self, wanted: &Wanted, limits: Limits) -> Result<Result<Part, Refusal>, Error> {
        let lists = names(wanted);
        let lists: [&(dyn ToSql + Sync); 5] = [&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets];
        let rows = self.client.query(&self.look, &lists).await?;
        let unreadable = || Refusal::Unreadable("the database's rows are not understood".to_owned());
        Ok(Opened::read(&rows).ok_or_else(unreadable).and_then(|opened| Part::new(opened.rows, limits)))
    }

    /// Decides `requests`, in order, and has it admitted. `in_doubt` are the first offsets of earlier rounds with the same
    /// requests whose end is not known.
    pub(super) async fn round(&self, requests: &[&Request], in_doubt: &[i64], rules: Rules) -> Result<Round, Failed> {
        let wanted = Wanted::by(requests.iter().copied());
        let rows = self.open(&wanted, in_doubt).await?;
        let opened = match Opened::read(&rows) {
            Some(opened) => opened,
            None => return self.leave(Err(Failed::Refused("its rows are not understood".to_owned()))).await,
        };
        if let Some(offset) = opened.done {
            return self.leave(Ok(Round::Admitted(offset))).await;
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
        let (begun, rows) = tokio::join!(self.client.batch_execute("BEGIN"), self.client.query(&self.open, &lists));
        match begun.and(rows) {
            Ok(rows) => Ok(rows),
            Err(error) => self.leave(Err(failed(&error))).await,
        }
    }

    /// Admits and commits: one way there and back. Once both are on their way, only their answers say what became of it.
    async fn admit(&self, admission: Admission, offset: u64, answers: Vec<Answer>) -> Result<Round, Failed> {
        let Admission { entries, owners, lives, payees, budgets, obligations } = admission;
        let admission: [&(dyn ToSql + Sync); 6] = [&entries, &owners, &lives, &payees, &budgets, &obligations];
        failpoint::pass("ledger.before_admit");
        let (admitted, committed) =
            tokio::join!(self.client.query(&self.admit, &admission), self.client.batch_execute("COMMIT"));
        failpoint::pass("ledger.after_commit");
        match (admitted, committed) {
            (Ok(_), Ok(())) => Ok(Round::Answered { answers, owes: !obligations.is_empty() }),
            // The database said no: the commit after it was none.
            (Err(error), Ok(())) if error.as_db_error().is_some() => Err(failed(&error)),
            (Ok(_) | Err(_), Ok(()) | Err(_)) => Err(Failed::InDoubt { offset, answers }),
        }
    }

    /// Ends the transaction without a trace.
    async fn leave<T>(&self, came_to: Result<T, Failed>) -> Result<T, Failed> {
        match self.client.batch_execute("ROLLBACK").await {
            Ok(()) => came_to,
            Err(error) => came_to.and(Err(failed(&error))),
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
