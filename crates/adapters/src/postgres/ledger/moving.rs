//! Books in a database: read to a file in one transaction, and made from one in one transaction.
//!
//! What is taken over goes the way that everything goes: loaded and locked by `ledger_open`, checked by the rules, admitted by
//! `ledger_admit`. So a node's role is enough, and the database's own guards hold for it too.

use super::entry::{Admission, Ledger, NO_CHAIN, ObligationRow, link};
use super::rows::{Opened, Seen, names};
use super::session::{ADMIT as ADMIT_SQL, PLANS};
use super::{Settles, Time};
use crate::moving::{
    Checked, Engine, Head, Item, Lines, Moved, MovingError, Owed, Writer, check, differ, refused, same,
};
use crate::postgres::{Database, DatabaseError};
use holdfast_domain::budget::Used;
use holdfast_domain::{Change, CreditUnit, Day, Id, IdKind, OwnerId};
use holdfast_engine::moving::{Owing, Stands, Sums};
use holdfast_engine::part::{Decided, Part, Wanted};
use holdfast_engine::recovery::Progress;
use holdfast_engine::{Limits, OPEN_HOLDS_MAX, Record};
use holdfast_journal::{JournalId, failpoint};
use std::collections::HashMap;
use std::path::Path;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

/// How many rows are fetched at once.
const FETCH: usize = 4_096;
/// How many entries are admitted at once; fewer than there are offsets in a block.
const ADMIT: usize = 2_048;

/// A move holds its locks until it ends, however long it takes.
const NEVER_LATE: i64 = i64::MAX;

const OWNERS: &str =
    "SELECT owner, available, held, open_holds::bigint, entries, chain FROM holdfast.ledger_owners ORDER BY owner";
const PAYEES: &str = "SELECT payee, balance, entries FROM holdfast.ledger_payees ORDER BY payee";
const BUDGETS: &str =
    "SELECT budget, day, today, total FROM holdfast.ledger_budgets WHERE today > 0 OR total > 0 ORDER BY budget";
const SUMS: &str = "SELECT (SELECT count(*) FROM holdfast.ledger_entries), count(*), \
                           (SELECT count(*) FROM holdfast.ledger_payees), \
                           coalesce(sum(available), 0)::bigint, coalesce(sum(held), 0)::bigint, \
                           coalesce(sum(escrowed), 0)::bigint, \
                           (SELECT coalesce(sum(balance), 0)::bigint FROM holdfast.ledger_payees), \
                           coalesce(sum(revenue), 0)::bigint, coalesce(sum(treasury), 0)::bigint \
                      FROM holdfast.ledger_owners";
/// No statement of a move is cut short, and two imports do not meet.
const ALONE: &str = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
                     SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock(hashtext('holdfast import'))";

/// Writes all entries in a database to `file`, as they stand at one moment; nodes may go on meanwhile.
///
/// # Errors
/// If the books do not fit together, or the file is there already or cannot be written.
pub async fn export(
    database: &Database,
    file: &Path,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Moved, MovingError> {
    if file.exists() {
        return Err(MovingError::Exists(file.to_owned()));
    }
    let client = database.connect().await?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0; \
                 SET LOCAL idle_in_transaction_session_timeout = 0";
    client.batch_execute(begin).await.map_err(DatabaseError::from)?;
    let sums = sums(&client).await?;
    let mut writer = Writer::create(file, Head::new(Engine::Postgres, identity(&client).await?, sums.entries))?;
    // Nodes that work side by side get their offsets in the order of their locks, and not of their clocks.
    let entries = "SELECT body, chain FROM holdfast.ledger_entries ORDER BY at, entry_offset";
    let mut rows = Cursor::open(&client, entries).await?;
    let mut chains: HashMap<OwnerId, Vec<u8>> = HashMap::new();
    let mut done = 0;
    while let Some(row) = rows.next().await? {
        let (body, chain): (&[u8], &[u8]) = (get(&row, 0)?, get(&row, 1)?);
        let record = Record::decode(body).ok_or_else(|| inconsistent("an entry cannot be decoded"))?;
        let before = chains.entry(record.event.owner()).or_insert_with(|| NO_CHAIN.to_vec());
        *before = link(before, body);
        if before != chain {
            let what = format!("entry {} does not follow in its owner's chain: it was changed", record.offset);
            return Err(MovingError::Inconsistent(what));
        }
        writer.entry(&record)?;
        done += 1;
        progress(Progress { done, total: sums.entries });
    }
    rows.close().await?;
    let mut everybody = Everybody::open(&client).await?;
    while let Some((stands, chain)) = everybody.next().await? {
        if let (Stands::Owner { id, .. }, Some(chain)) = (&stands, chain)
            && chains.get(id) != Some(&chain)
        {
            return Err(inconsistent("an owner's chain ends elsewhere than the owner's entries"));
        }
        writer.stands(&stands)?;
    }
    client.batch_execute("COMMIT").await.map_err(DatabaseError::from)?;
    writer.finish(sums)
}

/// Makes the books in a database, which are empty, from `file`. What the peer is still owed is put into the outbox with it, if
/// there is a peer.
///
/// # Errors
/// If they are not empty, or the file is not a whole export that the rules allow. Then nothing of it is kept.
pub async fn import(
    database: &Database,
    settles: Settles,
    file: &Path,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Moved, MovingError> {
    let client = database.connect().await?;
    client.batch_execute("BEGIN").await.map_err(DatabaseError::from)?;
    client.batch_execute(ALONE).await.map_err(DatabaseError::from)?;
    let entries = sums(&client).await?.entries;
    if entries > 0 {
        return Err(MovingError::NotEmpty { target: "the database".to_owned(), entries });
    }
    let checked = check(file, &mut |_| {})?;
    let mut taking = Taking::begin(client, &checked, settles).await?;
    let mut lines = checked.again()?;
    let first = taking.entries(&mut lines, progress).await?;
    compare(&taking.client, first, &mut lines).await?;
    let found = sums(&taking.client).await?;
    if found != checked.sums {
        return Err(differ(&checked.sums, &found));
    }
    failpoint::pass("import.before_commit");
    taking.client.batch_execute("COMMIT").await.map_err(DatabaseError::from)?;
    failpoint::pass("import.after_commit");
    let pending = taking.owing.due.values().flatten().count() as u64;
    let owed = Owed { pending, renamed: 0, given_up: taking.owing.given_up.len() as u64 };
    Ok(Moved { head: checked.head, sums: checked.sums, found, blake3: checked.blake3, owed })
}

/// Books that entries are taken into.
struct Taking {
    client: Client,
    open: Statement,
    admit: Statement,
    ledger: Ledger,
    /// The id of the books that the entries come from.
    from: [u8; 16],
    settles: Settles,
    owing: Owing,
    total: u64,
    done: u64,
}

impl Taking {
    async fn begin(client: Client, checked: &Checked, settles: Settles) -> Result<Self, MovingError> {
        client.batch_execute(PLANS).await.map_err(DatabaseError::from)?;
        let text = Type::TEXT_ARRAY;
        let six = [text.clone(), text.clone(), text.clone(), text.clone(), text, Type::INT8_ARRAY];
        let open = client.prepare_typed("SELECT * FROM holdfast.ledger_open($1, $2, $3, $4, $5, $6)", &six).await;
        let open = open.map_err(DatabaseError::from)?;
        let admit = client.prepare(ADMIT_SQL).await;
        let admit = admit.map_err(DatabaseError::from)?;
        // What is owed is known when all entries have been seen, and is put with the last of them.
        let ledger = Ledger { id: identity(&client).await?, settles: Settles::No };
        let from = checked.head.id_bytes().unwrap_or_default();
        let (owing, total) = (Owing::default(), checked.head.entries);
        Ok(Self { client, open, admit, ledger, from, settles, owing, total, done: 0 })
    }

    /// Takes all entries over, and gives what comes after them.
    async fn entries(
        &mut self,
        lines: &mut Lines,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<Stands>, MovingError> {
        let mut waiting = Vec::with_capacity(ADMIT);
        loop {
            let next = match lines.next()? {
                Some(Item::Entry(record)) => Some(record),
                Some(Item::Stands(stands)) => {
                    self.admit(&waiting).await?;
                    return Ok(Some(stands));
                }
                None => {
                    self.admit(&waiting).await?;
                    return Ok(None);
                }
            };
            waiting.extend(next.map(|record| *record));
            if waiting.len() == ADMIT {
                self.admit(&waiting).await?;
                waiting.clear();
                progress(Progress { done: self.done, total: self.total });
            }
        }
    }

    /// Takes some entries over: loaded, checked and admitted as a node does it.
    async fn admit(&mut self, records: &[Record]) -> Result<(), MovingError> {
        if records.is_empty() {
            return Ok(());
        }
        let (decided, seen) = self.decided(records).await?;
        for record in records {
            let out_of_range = |_| MovingError::Refused { offset: record.offset, why: "out of range".to_owned() };
            if self.settles == Settles::Yes {
                self.owing.add(record).map_err(out_of_range)?;
            }
        }
        self.done += records.len() as u64;
        let mut said = Admission::of(&decided, &seen, self.ledger).map_err(|_| not_understood())?;
        said.obligations = if self.done == self.total { self.obligations()? } else { Vec::new() };
        let said = said.values(&NEVER_LATE);
        self.client.query(&self.admit, &said).await.map_err(DatabaseError::from)?;
        failpoint::pass("import.mid_entries");
        Ok(())
    }

    async fn decided(&self, records: &[Record]) -> Result<(Decided, Seen), MovingError> {
        let lists = names(&Wanted::to_take_over(records));
        let in_doubt: [i64; 0] = [];
        let lists: [&(dyn ToSql + Sync); 6] =
            [&lists.owners, &lists.lives, &lists.keys, &lists.payees, &lists.budgets, &in_doubt.as_slice()];
        let rows = self.client.query(&self.open, &lists).await.map_err(DatabaseError::from)?;
        let Opened { rows, seen, .. } = Opened::read(&rows, &Time::Database).ok_or_else(not_understood)?;
        let unread = |error: holdfast_engine::Refusal| refused(error.into());
        let mut part = Part::new(rows, Limits { open_holds: OPEN_HOLDS_MAX }).map_err(unread)?;
        for record in records {
            part.take_over(record).map_err(refused)?;
        }
        Ok((part.decided().map_err(unread)?, seen))
    }

    /// What is not acknowledged, under the ids that the peer may have heard already.
    fn obligations(&self) -> Result<Vec<ObligationRow>, MovingError> {
        let due = self.owing.due.iter().flat_map(|(charge, parts)| parts.iter().map(move |due| (*charge, due)));
        let said = due.map(|(charge, due)| ObligationRow::due(charge, due, JournalId(self.from)));
        said.collect::<Result<_, _>>().map_err(|_| not_understood())
    }
}

/// Compares how everybody stands with what the file says, to its end. `said` is what was read of it already.
async fn compare(client: &Client, mut said: Option<Stands>, lines: &mut Lines) -> Result<(), MovingError> {
    let mut everybody = Everybody::open(client).await?;
    while let Some(stands) = said {
        same(&stands, everybody.next().await?.map(|(found, _)| found).as_ref())?;
        said = match lines.next()? {
            Some(Item::Stands(stands)) => Some(stands),
            Some(Item::Entry(_)) | None => None,
        };
    }
    match everybody.next().await? {
        Some((more, _)) => Err(differ(&"no more", &more)),
        None => Ok(()),
    }
}

async fn identity(client: &Client) -> Result<[u8; 16], MovingError> {
    let row = client.query_one("SELECT uuid_send(ledger_id) FROM holdfast.ledger_identity", &[]).await;
    let row = row.map_err(DatabaseError::from)?;
    <[u8; 16]>::try_from(get::<&[u8]>(&row, 0)?).map_err(|_| not_understood())
}

async fn sums(client: &Client) -> Result<Sums, MovingError> {
    let row = client.query_one(SUMS, &[]).await.map_err(DatabaseError::from)?;
    let change = |index| get::<i64>(&row, index).map(Change::from_units);
    Ok(Sums {
        entries: number(&row, 0)?,
        owners: number(&row, 1)?,
        payees: number(&row, 2)?,
        available: change(3)?,
        held: change(4)?,
        escrowed: change(5)?,
        paid: change(6)?,
        revenue: change(7)?,
        treasury: change(8)?,
    })
}

/// Rows of a query, some at a time.
struct Cursor<'a> {
    client: &'a Client,
    rows: std::vec::IntoIter<Row>,
}

impl<'a> Cursor<'a> {
    async fn open(client: &'a Client, sql: &str) -> Result<Self, MovingError> {
        let declare = format!("DECLARE holdfast_move NO SCROLL CURSOR FOR {sql}");
        client.batch_execute(&declare).await.map_err(DatabaseError::from)?;
        Ok(Self { client, rows: Vec::new().into_iter() })
    }

    async fn next(&mut self) -> Result<Option<Row>, MovingError> {
        if self.rows.len() == 0 {
            let fetch = format!("FETCH {FETCH} FROM holdfast_move");
            self.rows = self.client.query(&fetch, &[]).await.map_err(DatabaseError::from)?.into_iter();
        }
        Ok(self.rows.next())
    }

    async fn close(self) -> Result<(), MovingError> {
        Ok(self.client.batch_execute("CLOSE holdfast_move").await.map_err(DatabaseError::from)?)
    }
}

/// How everybody stands, in order: owners, with the ends of their chains, then payees, then budgets.
struct Everybody<'a> {
    client: &'a Client,
    rows: Cursor<'a>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Owners,
    Payees,
    Budgets,
}

impl<'a> Everybody<'a> {
    async fn open(client: &'a Client) -> Result<Self, MovingError> {
        Ok(Self { client, rows: Cursor::open(client, OWNERS).await?, kind: Kind::Owners })
    }

    async fn next(&mut self) -> Result<Option<(Stands, Option<Vec<u8>>)>, MovingError> {
        loop {
            if let Some(row) = self.rows.next().await? {
                return self.kind.read(&row).map(Some);
            }
            let (kind, sql) = match self.kind {
                Kind::Owners => (Kind::Payees, PAYEES),
                Kind::Payees => (Kind::Budgets, BUDGETS),
                Kind::Budgets => return Ok(None),
            };
            self.client.batch_execute("CLOSE holdfast_move").await.map_err(DatabaseError::from)?;
            (self.kind, self.rows) = (kind, Cursor::open(self.client, sql).await?);
        }
    }
}

impl Kind {
    fn read(self, row: &Row) -> Result<(Stands, Option<Vec<u8>>), MovingError> {
        let entries = |index| number(row, index);
        Ok(match self {
            Self::Owners => {
                let open_holds = u32::try_from(number(row, 3)?).map_err(|_| not_understood())?;
                let (available, held) = (amount(row, 1)?, amount(row, 2)?);
                let stands = Stands::Owner { id: id(row)?, available, held, open_holds, entries: entries(4)? };
                (stands, Some(get::<&[u8]>(row, 5)?.to_vec()))
            }
            Self::Payees => (Stands::Payee { id: id(row)?, balance: amount(row, 1)?, entries: entries(2)? }, None),
            Self::Budgets => {
                let day = Day::from_number(number(row, 1)?);
                let used = Used { day, today: amount(row, 2)?, total: amount(row, 3)? };
                (Stands::Budget { id: id(row)?, used }, None)
            }
        })
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, MovingError> {
    row.try_get(index).map_err(|_| not_understood())
}

fn number(row: &Row, index: usize) -> Result<u64, MovingError> {
    u64::try_from(get::<i64>(row, index)?).map_err(|_| not_understood())
}

fn amount(row: &Row, index: usize) -> Result<CreditUnit, MovingError> {
    CreditUnit::new(number(row, index)?).map_err(|_| not_understood())
}

fn id<K: IdKind>(row: &Row) -> Result<Id<K>, MovingError> {
    Id::from_bytes(get::<&str>(row, 0)?.as_bytes()).map_err(|_| not_understood())
}

fn not_understood() -> MovingError {
    inconsistent("the database's rows are not understood")
}

fn inconsistent(what: &str) -> MovingError {
    MovingError::Inconsistent(what.to_owned())
}
