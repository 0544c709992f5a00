//! The books of a database, worked out again from their entries alone.
//!
//! Every entry must say what its columns say, follow the one before it of its owner, its life and its payee, and be the next link
//! of its owner's chain. Added up, they must come to every row of owners, payees, budgets and lives, and to nothing else.

use holdfast_domain::budget::Used;
use holdfast_domain::{BudgetId, Change, Day, Event, Place};
use holdfast_engine::Record;
use holdfast_engine::part::LifeId;
use std::collections::BTreeMap;
use std::fmt::Debug;
use tokio_postgres::{Client, Row};

const ENTRIES: &str = "SELECT entry_offset, at, kind, owner, life, key, payee, available, held, escrow, paid, revenue, \
                       treasury, body, chain, previous FROM holdfast.ledger_entries ORDER BY entry_offset";
const PLACES: [Place; 6] =
    [Place::Available, Place::Held, Place::Escrow, Place::Payee, Place::Revenue, Place::Treasury];

/// What entries come to for an owner, as in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    sums: [i64; 6],
    open_holds: i32,
    entries: i64,
    last: i64,
    last_at: i64,
    chain: Vec<u8>,
    /// Every 256th entry, in order.
    milestones: Vec<(i64, i64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Payee {
    balance: i64,
    entries: i64,
    last: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    owner: String,
    state: String,
    held: i64,
    is_open: bool,
    budgets: Vec<String>,
    records: Vec<i64>,
}

#[derive(Debug, Default)]
struct Books {
    owners: BTreeMap<String, Owner>,
    payees: BTreeMap<String, Payee>,
    lives: BTreeMap<String, Life>,
    /// When each life was begun.
    begun: BTreeMap<String, Day>,
    budgets: BTreeMap<String, Used>,
}

/// What was found in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) entries: usize,
    pub(crate) owners: usize,
    pub(crate) lives: usize,
}

/// Reads all of the books, and says what does not add up.
pub(crate) async fn check(client: &Client) -> Result<Checked, String> {
    // One moment for all tables.
    let said = |error: tokio_postgres::Error| format!("the database: {error}");
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(said)?;
    let checked = check_within(client).await;
    client.batch_execute("COMMIT").await.map_err(said)?;
    checked
}

/// The same, within a transaction that is open.
pub(crate) async fn check_within(client: &Client) -> Result<Checked, String> {
    let said = |error: tokio_postgres::Error| format!("the database: {error}");
    let entries = client.query(ENTRIES, &[]).await.map_err(said)?;
    let mut books = Books::default();
    for row in &entries {
        books.add(row).map_err(|what| format!("entry {}: {what}", row.get::<_, i64>(0)))?;
    }
    books.compare(client).await?;
    Ok(Checked { entries: entries.len(), owners: books.owners.len(), lives: books.lives.len() })
}

fn same<T: PartialEq + Debug>(what: &str, found: T, right: T) -> Result<(), String> {
    if found == right { Ok(()) } else { Err(format!("{what} is {found:?}, and not {right:?}")) }
}

fn units(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

impl Books {
    fn add(&mut self, row: &Row) -> Result<(), String> {
        let body: &[u8] = row.get(13);
        let record = Record::decode(body).ok_or("it cannot be decoded")?;
        same("its offset", row.get::<_, i64>(0), units(record.offset))?;
        same("its moment", row.get::<_, i64>(1), units(record.at.millis()))?;
        same("its kind", row.get::<_, &str>(2), record.event.kind().name())?;
        same("its owner", row.get::<_, String>(3), record.event.owner().to_string())?;
        same("its life", row.get::<_, Option<String>>(4), life_of(&record))?;
        same("its key", row.get::<_, Option<String>>(5), record.key.map(|key| key.to_string()))?;
        same("its payee", row.get::<_, Option<String>>(6), record.event.payee().map(|payee| payee.to_string()))?;
        let postings = record.event.postings().map_err(|_| "its postings do not balance")?;
        let changes = PLACES.map(|place| postings.at(place).units());
        same("what it changes", std::array::from_fn(|column| row.get(column + 7)), changes)?;
        same("the entry before it, as its column says", row.get(15), units(record.owner.available.previous))?;
        same("the sum of what it changes", changes.iter().sum(), 0)?;
        self.add_to_life(&record, changes)?;
        self.add_to_owner(&record, changes, (body, row.get(14)))?;
        self.add_to_payee(&record, changes[3])?;
        self.add_to_budgets(&record, postings.at(Place::Available))
    }

    fn add_to_owner(&mut self, record: &Record, changes: [i64; 6], link: (&[u8], Vec<u8>)) -> Result<(), String> {
        let first = Owner {
            sums: [0; 6],
            open_holds: 0,
            entries: 0,
            last: 0,
            last_at: 0,
            chain: vec![0; 32],
            milestones: Vec::new(),
        };
        let owner = self.owners.entry(record.event.owner().to_string()).or_insert(first);
        let (body, chain) = link;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&owner.chain).update(body);
        same("its link", chain.as_slice(), hasher.finalize().as_bytes().as_slice())?;
        same("the entry before it", units(record.owner.available.previous), owner.last)?;
        if owner.last_at > units(record.at.millis()) {
            return Err("it was before the one before it".to_owned());
        }
        owner.chain = chain;
        for (sum, change) in owner.sums.iter_mut().zip(changes) {
            *sum += change;
        }
        (owner.entries, owner.last, owner.last_at) =
            (owner.entries + 1, units(record.offset), units(record.at.millis()));
        same("its number", units(record.owner.available.number), owner.entries)?;
        if owner.entries % 256 == 0 {
            owner.milestones.push((owner.last, owner.last_at));
        }
        same("what is available", units(record.owner.available.balance.units()), owner.sums[0])?;
        same("what is held", units(record.owner.held.units()), owner.sums[1])
    }

    fn add_to_life(&mut self, record: &Record, changes: [i64; 6]) -> Result<(), String> {
        let Some(name) = life_of(record) else { return Ok(()) };
        let first = || Life {
            owner: record.event.owner().to_string(),
            state: String::new(),
            held: 0,
            is_open: false,
            budgets: record.event.budgets().iter().map(|budget| budget.id.to_string()).collect(),
            records: Vec::new(),
        };
        let life = self.lives.entry(name.clone()).or_insert_with(first);
        self.begun.entry(name).or_insert_with(|| record.at.day());
        let before = record.life_previous.map(|place| units(place.pack()));
        same("the entry of its life before it", before, life.records.last().copied())?;
        let is_charge = matches!(record.event, Event::Charge { .. });
        let was_open = life.is_open;
        life.state = record.state.name().to_owned();
        life.held += if is_charge { changes[1] } else { changes[2] };
        life.is_open = is_charge && !record.state.is_closed();
        life.records.push(units(record.offset));
        if let Some(owner) = self.owners.get_mut(&life.owner) {
            owner.open_holds += i32::from(life.is_open) - i32::from(was_open);
        }
        Ok(())
    }

    fn add_to_payee(&mut self, record: &Record, paid: i64) -> Result<(), String> {
        let Some(name) = record.event.payee() else { return same("what is paid to nobody", paid, 0) };
        let payee = self.payees.entry(name.to_string()).or_default();
        let link = record.payee.ok_or("it names a payee and does not say what it has")?;
        same("the payee's entry before it", units(link.previous), payee.last)?;
        payee.balance += paid;
        (payee.entries, payee.last) = (payee.entries + 1, units(record.offset));
        same("what the payee has", units(link.balance.units()), payee.balance)
    }

    fn add_to_budgets(&mut self, record: &Record, available: Change) -> Result<(), String> {
        let Some(name) = life_of(record) else { return Ok(()) };
        let (reserved, day) = (self.begun[&name], record.at.day());
        for budget in &self.lives[&name].budgets {
            let used = self.budgets.entry(budget.clone()).or_insert(Used::NOTHING);
            if available != Change::ZERO {
                *used = used.after(available, reserved, day).map_err(|error| format!("budget {budget}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Compares with what the tables say.
    async fn compare(&self, client: &Client) -> Result<(), String> {
        let ask = async |sql: &str| client.query(sql, &[]).await.map_err(|error| format!("the database: {error}"));
        let owners = ask("SELECT owner, available, held, escrowed, paid, revenue, treasury, open_holds, entries, \
                          last_offset, last_at, chain, \
                          ARRAY(SELECT entry_offset FROM holdfast.ledger_milestones AS milestone \
                                 WHERE milestone.owner = owners.owner ORDER BY entry_offset), \
                          ARRAY(SELECT at FROM holdfast.ledger_milestones AS milestone \
                                 WHERE milestone.owner = owners.owner ORDER BY entry_offset) \
                     FROM holdfast.ledger_owners AS owners");
        let owner = |row: &Row| Owner {
            sums: std::array::from_fn(|column| row.get(column + 1)),
            open_holds: row.get(7),
            entries: row.get(8),
            last: row.get(9),
            last_at: row.get(10),
            chain: row.get(11),
            milestones: row.get::<_, Vec<i64>>(12).into_iter().zip(row.get::<_, Vec<i64>>(13)).collect(),
        };
        agree("owner", &owners.await?, owner, &self.owners)?;
        let payees = ask("SELECT payee, balance, entries, last_offset FROM holdfast.ledger_payees");
        let payee = |row: &Row| Payee { balance: row.get(1), entries: row.get(2), last: row.get(3) };
        agree("payee", &payees.await?, payee, &self.payees)?;
        let lives = ask("SELECT life, owner, state, held, expires_at IS NOT NULL, budgets, records \
                         FROM holdfast.ledger_lives");
        let life = |row: &Row| Life {
            owner: row.get(1),
            state: row.get(2),
            held: row.get(3),
            is_open: row.get(4),
            budgets: row.get(5),
            records: row.get(6),
        };
        agree("life", &lives.await?, life, &self.lives)?;
        let budgets = ask("SELECT budget, day, today, total FROM holdfast.ledger_budgets").await?;
        let used = |row: &Row| (row.get::<_, i64>(1), row.get::<_, i64>(2), row.get::<_, i64>(3));
        let right = self.budgets.iter().map(|(name, used)| {
            name.parse::<BudgetId>().unwrap();
            (name.clone(), (units(used.day.number()), units(used.today.units()), units(used.total.units())))
        });
        agree("budget", &budgets, used, &right.collect())?;
        let everything = "SELECT (sum(available + held + escrowed + revenue + treasury) \
                          + (SELECT coalesce(sum(balance), 0) FROM holdfast.ledger_payees))::bigint FROM holdfast.ledger_owners";
        let sum: Option<i64> = ask(everything).await?.first().and_then(|row| row.get(0));
        same("the sum over all accounts", sum.unwrap_or(0), 0)
    }
}

fn life_of(record: &Record) -> Option<String> {
    LifeId::of(&record.event).map(|life| match life {
        LifeId::Charge(id) => format!("c:{id}"),
        LifeId::Escrow(id) => format!("e:{id}"),
    })
}

/// Whether the rows are those that the entries come to, no less and no more.
fn agree<T: PartialEq + Debug>(
    what: &str,
    rows: &[Row],
    read: impl Fn(&Row) -> T,
    right: &BTreeMap<String, T>,
) -> Result<(), String> {
    for row in rows {
        let name: &str = row.get(0);
        same(&format!("{what} {name}"), Some(&read(row)), right.get(name))?;
    }
    same(&format!("the number of rows for each {what}"), rows.len(), right.len())
}
