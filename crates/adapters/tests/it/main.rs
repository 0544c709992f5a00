//! The read model beside a naive fold of the same entries: histories, balances as of every moment, restarts, rebuilds;
//! and the providers against servers that misbehave.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod dispatcher;
mod obligations;
mod providers;

use holdfast_adapters::ReadModel;
use holdfast_adapters::read_model::{self, AsOf, Lookup, QueryError};
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{Account, Budgets, Change, Label, Span, Timestamp, escrow};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{Command, Ledger, Limits, OnDisk, Projection, Record, Request, Tail};
use holdfast_journal::{Batch, Config, Frames, Journal, JournalId, LocalDisk, Location};
use std::collections::BTreeMap;
use std::path::Path;

const ACCOUNTS: [&str; 7] = [
    "user:alice:available",
    "user:alice:held",
    "user:carol:available",
    "user:carol:held",
    "payee:bob:available",
    "system:revenue",
    "treasury:usdc_received",
];

/// A ledger with its journal, driven by hand.
struct Books {
    ledger: Ledger<OnDisk<LocalDisk>>,
    journal: Journal<LocalDisk>,
    disk: LocalDisk,
    now: u64,
}

impl Books {
    fn open(directory: &Path) -> Self {
        let disk = LocalDisk::at(directory).unwrap();
        let config = OpenConfig {
            journal: Config { segment_bytes: 64 * 1_024, id: JournalId([5; 16]), verify_threads: 1 },
            limits: Limits { open_holds: 1_000 },
            keys_in_memory: Some(100),
        };
        let opened = recovery::open(disk.clone(), &config, &mut |_| {}).unwrap();
        Self { ledger: opened.ledger, journal: opened.journal, disk, now: 1_000 }
    }

    /// Does each command in a frame of its own, a few milliseconds apart.
    fn run(&mut self, commands: impl IntoIterator<Item = (Option<String>, Command)>) {
        let actor: Label = "test".parse().unwrap();
        for (key, command) in commands {
            self.now += 3;
            let mut batch = Batch::begin(self.journal.cursor(), Vec::new());
            let request = Request { key: key.map(|key| key.parse().unwrap()), actor, command };
            let _done = self.ledger.decide(&request, Timestamp::from_millis(self.now), &mut batch).unwrap();
            let end = self.journal.append(&mut batch).unwrap();
            self.ledger.durable(end.location);
        }
    }

    fn records(&self) -> Vec<Record> {
        let mut frames = Frames::starting(self.disk.clone(), Location::START);
        let mut records = Vec::new();
        while let Some(frame) = frames.next(self.journal.end().location).unwrap() {
            records.extend(frame.records().map(|stored| Record::decode(stored.unwrap().body).unwrap()));
        }
        records
    }

    fn feed(&self, model: &mut ReadModel) {
        let mut tail = Tail::new(self.disk.clone(), model.applied());
        while tail.feed(self.journal.end().location, 50, model).unwrap() {}
    }
}

/// A busy day: mints, reservations of two owners, commits, and escrows of which bob earns some.
fn day(from: u32, to: u32) -> Vec<(Option<String>, Command)> {
    let mut commands = Vec::new();
    for number in from..to {
        let owner = if number % 3 == 0 { "carol" } else { "alice" }.parse().unwrap();
        let reason = "a credit".parse().unwrap();
        commands.push((Some(format!("m{number}")), Command::Mint { owner, amount: "10".parse().unwrap(), reason }));
        let charge = format!("c{number}").parse().unwrap();
        let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
        let reserve = Reserve { owner, amount: "4".parse().unwrap(), terms, ttl: Span::DAY, budgets: Budgets::NONE };
        commands.push((None, Command::Reserve { charge, reserve }));
        let actual = Actual::Credits(format!("0.{}", number % 9 + 1).parse().unwrap());
        let command = charge::Command::Commit { actual, finality: Finality::Final };
        commands.push((None, Command::Charge { charge, command }));
        let escrow = format!("e{number}").parse().unwrap();
        let hold = escrow::Hold { owner, amount: "2".parse().unwrap(), feature: "chat".parse().unwrap() };
        commands.push((Some(format!("h{number}")), Command::Hold { escrow, hold }));
        let command = match number % 2 {
            0 => escrow::Command::Settle { payee: "bob".parse().unwrap() },
            _ => escrow::Command::Refund,
        };
        commands.push((None, Command::Escrow { escrow, command, ruling: None }));
    }
    commands
}

/// The balance of every account after every entry, folded from the postings.
fn folded(records: &[Record]) -> Vec<BTreeMap<String, Change>> {
    let mut balances: BTreeMap<String, Change> = BTreeMap::new();
    let fold = |record: &Record| {
        for (account, change) in record.event.changes().unwrap() {
            let balance = balances.entry(account.to_string()).or_insert(Change::ZERO);
            *balance = balance.checked_add(change).unwrap();
        }
        balances.clone()
    };
    records.iter().map(fold).collect()
}

fn last_entry(records: &[Record], account: &Account) -> u64 {
    let holder = |record: &&Record| match account {
        Account::Available(owner) | Account::Held(owner) => record.event.owner() == *owner,
        Account::Payee(payee) => record.event.payee() == Some(*payee),
        Account::Escrow(_) | Account::Revenue | Account::Treasury => false,
    };
    records.iter().rev().find(holder).map_or(0, |record| record.offset)
}

fn check_as_of(directory: &Path, records: &[Record]) {
    let lookup = Lookup::open(directory).unwrap();
    for (record, balances) in records.iter().zip(folded(records)) {
        for text in ACCOUNTS {
            let account: Account = text.parse().unwrap();
            let last = last_entry(records, &account);
            let expected = balances.get(text).copied().unwrap_or(Change::ZERO);
            for as_of in [
                AsOf::Offset(record.offset),
                AsOf::Time(record.at),
                AsOf::Time(Timestamp::from_millis(record.at.millis() + 2)),
            ] {
                let found = lookup.balance_as_of(&account, last, as_of).unwrap();
                assert_eq!(found, expected, "{text} as of {as_of:?}");
            }
        }
    }
    let before = lookup.balance_as_of(&"user:alice:available".parse().unwrap(), records.len() as u64, AsOf::Offset(0));
    assert_eq!(before.unwrap(), Change::ZERO);
}

#[test]
fn every_balance_as_of_every_entry_and_moment_is_the_fold_of_the_postings() {
    let directory = tempfile::tempdir().unwrap();
    let mut books = Books::open(directory.path());
    let mut model = ReadModel::open(directory.path(), books.journal.id(), 0).unwrap();
    for part in 0..4 {
        books.run(day(part * 40, (part + 1) * 40));
        books.feed(&mut model);
    }
    check_as_of(directory.path(), &books.records());
}

#[test]
fn a_history_is_walked_by_pages_and_names_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut books = Books::open(directory.path());
    books.run(day(0, 60));
    let mut model = ReadModel::open(directory.path(), books.journal.id(), 1_000).unwrap();
    books.feed(&mut model);
    let records = books.records();
    let lookup = Lookup::open(directory.path()).unwrap();
    for text in ["user:alice:available", "payee:bob:available"] {
        let account: Account = text.parse().unwrap();
        let mut next = last_entry(&records, &account);
        let mut sum = Change::ZERO;
        let mut found = Vec::new();
        while next != 0 {
            let page = lookup.history(&account, next, 7).unwrap();
            sum = page.iter().try_fold(sum, |sum, row| sum.checked_add(row.change)).unwrap();
            found.extend(page.iter().map(|row| row.offset));
            next = page.last().unwrap().previous;
        }
        assert!(found.is_sorted_by(|a, b| a > b), "newest first");
        assert_eq!(sum, folded(&records).last().unwrap()[text], "{text}");
    }
    assert!(matches!(lookup.history(&Account::Revenue, 1, 1), Err(QueryError::NoHistory(_))));
}

#[test]
fn a_history_shows_entries_of_every_kind_that_a_charge_has() {
    let directory = tempfile::tempdir().unwrap();
    let mut books = Books::open(directory.path());
    let charge = "c0".parse().unwrap();
    let [mint, reserve, commit, ..] = &day(0, 1)[..] else { unreachable!("a day has five commands") };
    let of_charge = |command| (None, Command::Charge { charge, command });
    let actual = Actual::Credits("0.05".parse().unwrap());
    let reason = "a mistake".parse().unwrap();
    books.run([
        mint.clone(),
        reserve.clone(),
        of_charge(charge::Command::Start),
        of_charge(charge::Command::Note { actual }),
        commit.clone(),
        of_charge(charge::Command::Ack { charged: None }),
        of_charge(charge::Command::Void { reason }),
    ]);
    let mut model = ReadModel::open(directory.path(), books.journal.id(), 1_000).unwrap();
    books.feed(&mut model);
    let owner: Account = "user:carol:available".parse().unwrap();
    let rows = Lookup::open(directory.path()).unwrap().history(&owner, 7, 100).unwrap();
    let kinds: Vec<&str> = rows.iter().rev().map(|row| row.kind.as_str()).collect();
    let billing =
        ["reserve", "start", "progress", "commit", "finalize_ack", "void"].map(|kind| format!("billing_{kind}"));
    assert_eq!(kinds[0], "credit_mint");
    assert_eq!(kinds[1..], billing);
}

#[test]
fn a_restart_goes_on_and_a_rebuild_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut books = Books::open(directory.path());
    books.run(day(0, 50));
    let mut model = ReadModel::open(directory.path(), books.journal.id(), 1_000).unwrap();
    books.feed(&mut model);
    drop(model);
    books.run(day(50, 100));
    let last = books.journal.end().next_offset - 1;
    let mut model = ReadModel::open(directory.path(), books.journal.id(), last).unwrap();
    assert_eq!(model.applied().through, 250, "it goes on where it was");
    books.feed(&mut model);
    drop(model);
    check_as_of(directory.path(), &books.records());
    let mut model = ReadModel::rebuild(directory.path(), books.journal.id()).unwrap();
    books.feed(&mut model);
    model.finish(directory.path()).unwrap();
    check_as_of(directory.path(), &books.records());
    let model = ReadModel::open(directory.path(), books.journal.id(), last).unwrap();
    assert_eq!(model.applied().through, last, "a finished rebuild counts");
}

#[test]
fn a_model_that_does_not_fit_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let mut books = Books::open(directory.path());
    books.run(day(0, 10));
    let id = books.journal.id();
    let filled = |last| {
        let mut model = ReadModel::open(directory.path(), id, last).unwrap();
        let before = model.applied().through;
        books.feed(&mut model);
        before
    };
    assert_eq!(filled(1_000), 0);
    assert_eq!(filled(1_000), 50);
    assert_eq!(filled(10), 0, "it is ahead of the journal: not this journal's");
    let other = ReadModel::open(directory.path(), JournalId([6; 16]), 1_000).unwrap();
    assert_eq!(other.applied().through, 0, "another journal's");
    drop(other);
    std::fs::write(read_model::path(directory.path()), b"not a database at all").unwrap();
    assert_eq!(filled(1_000), 0, "damaged");
    let abandoned = ReadModel::rebuild(directory.path(), id).unwrap();
    drop(abandoned);
    assert_eq!(filled(1_000), 0, "a rebuild that was never finished does not count");
}
