//! Books that move from a data directory to a database and back, with everything that the simulator's callers did in them.

use super::{World, commit, done, mint, of_charge, reserve};
use crate::contract::ledgers::Embedded;
use holdfast_adapters::moving::{self, Engine, Head, Item, Late, Moved, MovingError, Writer};
use holdfast_adapters::postgres::ledger::{Settles, moving as in_database};
use holdfast_adapters::postgres::{Database, PostgresLedger};
use holdfast_domain::budget::Used;
use holdfast_domain::charge::{self, Charge};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{Account, BudgetId, Change, ChargeId, EscrowId, OwnerId};
use holdfast_engine::part::Wanted;
use holdfast_engine::recovery::OpenConfig;
use holdfast_engine::{
    Answer, Balance, Command, LifeState, Limits, Outcome, Receipt, Record, Refusal, Request, Totals,
};
use holdfast_journal::{Config, JournalId};
use holdfast_simulator::contract::ledger::{HandClock, LedgerUnderTest, mixed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// An engine whose callers are listened to.
struct Heard {
    inner: Arc<Embedded>,
    applied: Arc<Mutex<Vec<(Request, Receipt)>>>,
}

impl Heard {
    fn keep(&self, request: &Request, answer: &Answer) {
        if let Ok(Outcome::Applied(receipt)) = answer {
            self.applied.lock().unwrap().push((request.clone(), receipt.clone()));
        }
    }
}

impl LedgerUnderTest for Heard {
    async fn submit(&self, request: Request) -> Answer {
        let answer = self.inner.submit(request.clone()).await;
        self.keep(&request, &answer);
        answer
    }

    async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        let answers = self.inner.submit_batch(requests.clone()).await?;
        requests.iter().zip(&answers).for_each(|(request, answer)| self.keep(request, answer));
        Ok(answers)
    }

    async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        self.inner.balance(owner).await
    }

    async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        self.inner.account(account).await
    }

    async fn used(&self, budget: BudgetId) -> Result<Used, Refusal> {
        self.inner.used(budget).await
    }

    async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.inner.charge(id).await
    }

    async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.inner.escrow(id).await
    }

    async fn life(&self, id: ChargeId) -> Result<Vec<Receipt>, Refusal> {
        self.inner.life(id).await
    }

    async fn totals(&self) -> Result<Totals, Refusal> {
        self.inner.totals().await
    }

    async fn expire_due(&self) -> Result<(), Refusal> {
        self.inner.expire_due().await
    }
}

fn config(id: u8) -> OpenConfig {
    OpenConfig {
        journal: Config { segment_bytes: 256 * 1_024, id: JournalId([id; 16]), verify_threads: 1 },
        limits: Limits { open_holds: 16 },
        keys_in_memory: Some(64),
    }
}

fn code(moved: Result<Moved, MovingError>) -> &'static str {
    moved.map_or_else(|error| error.code(), |_| "moved")
}

/// A receipt wherever its entry stands.
fn anywhere(receipt: &Receipt) -> Receipt {
    Receipt { offset: 0, ..receipt.clone() }
}

/// The entries of a file, as far as they are not about where in a journal's files the others stand.
fn entries(file: &Path) -> Vec<Record> {
    let checked = moving::check(file, &mut |_| {}).unwrap();
    let mut lines = checked.again().unwrap();
    let mut records = Vec::new();
    while let Some(item) = lines.next().unwrap() {
        if let Item::Entry(record) = item {
            records.push(Record { life_previous: None, ..*record });
        }
    }
    records
}

/// The lines that say how everybody stands, and the sums.
fn standing(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let is_about = |line: &&str| ["owner", "payee", "budget", "end"].iter().any(|kind| line[2..].starts_with(kind));
    text.lines().filter(is_about).map(str::to_owned).collect()
}

/// Everything that anybody did on a data directory.
struct Past {
    applied: Vec<(Request, Receipt)>,
    charges: Vec<(ChargeId, Vec<Receipt>)>,
    escrows: Vec<(EscrowId, Option<(Escrow, OwnerId)>)>,
}

/// Has a seed's callers work on a data directory, and leaves it stopped.
async fn live(data: &Path, clock: &Arc<HandClock>, seed: u64) -> Past {
    let engine = Embedded::open(data, clock);
    let applied = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::new(Heard { inner: Arc::clone(&engine), applied: Arc::clone(&applied) });
    mixed(heard, Arc::clone(clock), seed, 3).await.unwrap();
    let applied = std::mem::take(&mut *applied.lock().unwrap());
    let (mut charges, mut escrows) = (BTreeSet::new(), BTreeSet::new());
    for (request, _) in &applied {
        match &request.command {
            Command::Mint { .. } => {}
            Command::Reserve { charge, .. } | Command::Charge { charge, .. } => drop(charges.insert(*charge)),
            Command::Hold { escrow, .. } | Command::Escrow { escrow, .. } => drop(escrows.insert(*escrow)),
        }
    }
    let mut past = Past { applied, charges: Vec::new(), escrows: Vec::new() };
    for id in charges {
        past.charges.push((id, engine.life(id).await.unwrap()));
    }
    for id in escrows {
        past.escrows.push((id, engine.escrow(id).await.unwrap()));
    }
    Embedded::stop(engine);
    past
}

/// The same for the first seed that has a late result which the peer has not acknowledged.
async fn live_with_late_results(dir: &Path, clock: &Arc<HandClock>) -> (PathBuf, Past) {
    for seed in 1..50 {
        let data = dir.join(format!("seed-{seed}"));
        let past = live(&data, clock, seed).await;
        if past.charges.iter().any(|(_, life)| ends_with_a_late_result(life)) {
            return (data, past);
        }
    }
    unreachable!("every few seeds there is one")
}

fn ends_with_a_late_result(life: &[Receipt]) -> bool {
    let [.., before, last] = life else { return false };
    let released = [charge::State::Released, charge::State::AutoReleased].map(LifeState::Charge);
    released.contains(&before.state) && last.state == LifeState::Charge(charge::State::Committed)
}

impl Past {
    /// Nothing of it is lost in a database: every life is whole, and every request that is repeated is known.
    async fn is_in(&self, node: &PostgresLedger) {
        for (id, life) in &self.charges {
            let wanted = Wanted { charges: vec![*id], ..Wanted::default() };
            let found = node.look(&wanted, |view| view.life(*id)).await.unwrap().unwrap();
            let found: Vec<Receipt> = found.into_iter().map(|record| anywhere(&record.into_receipt())).collect();
            assert_eq!(found, life.iter().map(anywhere).collect::<Vec<_>>(), "{id}");
        }
        for (id, escrow) in &self.escrows {
            let wanted = Wanted { escrows: vec![*id], ..Wanted::default() };
            assert_eq!(node.look(&wanted, |view| view.escrow(*id)).await.unwrap().unwrap(), *escrow, "{id}");
        }
        for (request, receipt) in self.applied.iter().filter(|(request, _)| request.key.is_some()) {
            assert_known(&node.submit(request.clone()).await, request, receipt);
        }
    }

    /// Nor in a data directory.
    async fn is_on(&self, engine: &Embedded) {
        for (id, life) in &self.charges {
            let found: Vec<Receipt> = engine.life(*id).await.unwrap().iter().map(anywhere).collect();
            assert_eq!(found, life.iter().map(anywhere).collect::<Vec<_>>(), "{id}");
        }
        for (id, escrow) in &self.escrows {
            assert_eq!(engine.escrow(*id).await.unwrap(), *escrow, "{id}");
        }
        for (request, receipt) in self.applied.iter().filter(|(request, _)| request.key.is_some()) {
            assert_known(&engine.submit(request.clone()).await, request, receipt);
        }
    }
}

fn assert_known(answer: &Answer, request: &Request, receipt: &Receipt) {
    let found = match answer {
        Ok(Outcome::Replayed(found)) => Some(anywhere(found)),
        Ok(Outcome::Applied(_)) | Err(_) => None,
    };
    assert_eq!(found, Some(anywhere(receipt)), "{request:?} was answered {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_moves_to_a_database_and_back_with_all_that_was_done() {
    let world = World::new().await;
    let database = Database::at(&world.server.url_as("node", "postgres"), None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let there = file("there");
    let clock = HandClock::new();
    let (here, past) = live_with_late_results(dir.path(), &clock).await;
    assert!(past.applied.len() > 500 && !past.escrows.is_empty(), "{}", past.applied.len());

    moving::export(&here, &config(5), &file("1"), &mut |_| {}).unwrap();
    let moved = in_database::import(&database, Settles::Yes, &file("1"), &mut |_| {}).await.unwrap();
    assert_eq!(moved.sums, moved.found);
    let pending = world.number("SELECT count(*) FROM holdfast.payment_outbox_pending").await;
    assert_eq!(u64::try_from(pending).unwrap(), moved.owed.pending);
    assert!(pending > 0, "some of it was not acknowledged");
    let node = world.node().await;
    past.is_in(&node).await;
    assert_eq!(node.totals().await.unwrap().imbalance, 0);

    let moved = in_database::export(&database, &file("2"), &mut |_| {}).await.unwrap();
    assert_eq!((moved.head.engine, moved.sums), (Engine::Postgres, moved.found));
    assert_eq!(standing(&file("1")), standing(&file("2")));
    std::fs::create_dir(&there).unwrap();
    let refused = moving::import(&there, &config(6), (&file("2"), Late::Refuse), &mut |_| {});
    assert_eq!(code(refused), "IMPORT_LATE_RESULTS", "the peer would know them by another id");
    assert!(!there.join("journal").exists());
    let moved = moving::import(&there, &config(6), (&file("2"), Late::Rename), &mut |_| {}).unwrap();
    assert!(moved.owed.renamed > 0);
    moving::export(&there, &config(6), &file("3"), &mut |_| {}).unwrap();
    assert_eq!(entries(&file("1")), entries(&file("3")), "offsets, links, balances, keys, fingerprints");
    assert_eq!(standing(&file("1")), standing(&file("3")));
    let engine = Embedded::open(&there, &clock);
    past.is_on(&engine).await;
    Embedded::stop(engine);

    let again = in_database::import(&database, Settles::Yes, &file("1"), &mut |_| {}).await;
    assert_eq!(code(again), "IMPORT_TARGET_NOT_EMPTY");
    assert_eq!(
        code(moving::import(&there, &config(6), (&file("1"), Late::Rename), &mut |_| {})),
        "IMPORT_TARGET_NOT_EMPTY"
    );
    assert_eq!(code(moving::export(&there, &config(6), &file("1"), &mut |_| {})), "FILE_EXISTS");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_nodes_that_work_side_by_side_become_one_order() {
    let world = World::new().await;
    let nodes = Arc::new([world.node().await, world.node().await, world.node().await]);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..12_usize {
        let nodes = Arc::clone(&nodes);
        callers.spawn(async move {
            let owner = format!("owner-{}", caller % 5);
            done(&nodes[caller % 3], mint(&owner, 1_000_000, &format!("m{caller}"))).await;
            for number in 0..25 {
                let id = format!("c{caller}-{number}");
                done(&nodes[number % 3], reserve(&owner, &id, 1_000)).await;
                done(&nodes[(number + caller) % 3], commit(&id, 700)).await;
            }
        });
    }
    callers.join_all().await;
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("books"), dir.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    let database = Database::at(&world.server.url_as("node", "postgres"), None).unwrap();
    in_database::export(&database, &file, &mut |_| {}).await.unwrap();
    let moved = moving::import(&data, &config(6), (&file, Late::Rename), &mut |_| {}).unwrap();
    assert_eq!((moved.sums.entries, moved.sums.revenue.units()), (12 * 51, 12 * 25 * 700));
    assert_eq!(moved.owed.pending, 12 * 25);
}

/// A small export of a data directory, and the directory's parent.
async fn small() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("books"));
    let engine = Embedded::open(&data, &HandClock::new());
    for request in [
        mint("alice", 5_000_000, "m1"),
        reserve("alice", "told", 1_000_000),
        commit("told", 400_000),
        of_charge("told", charge::Command::Ack { charged: None }),
        reserve("alice", "owed", 1_000_000),
        commit("owed", 300_000),
        reserve("alice", "lost", 1_000_000),
        commit("lost", 200_000),
        of_charge("lost", charge::Command::Fail { reason: "gone".parse().unwrap(), charged: None }),
        reserve("alice", "open", 1_000_000),
    ] {
        let answer = engine.submit(request).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
    Embedded::stop(engine);
    moving::export(&data, &config(5), &file, &mut |_| {}).unwrap();
    (dir, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_one_bit_changed_or_a_piece_missing_is_refused() {
    let (dir, file) = small().await;
    let whole = std::fs::read(&file).unwrap();
    let (hurt, data) = (dir.path().join("hurt"), dir.path().join("new"));
    std::fs::create_dir(&data).unwrap();
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        std::fs::write(&hurt, &bytes).unwrap();
        assert!(moving::check(&hurt, &mut |_| {}).is_err(), "byte {place}");
        std::fs::write(&hurt, &whole[..place]).unwrap();
        assert!(moving::check(&hurt, &mut |_| {}).is_err(), "cut at {place}");
    }
    assert_eq!(code(moving::import(&data, &config(6), (&hurt, Late::Rename), &mut |_| {})), "EXPORT_DAMAGED");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "nothing is written before the file was found good");
    std::fs::write(&hurt, [whole.as_slice(), b"\n"].concat()).unwrap();
    assert_eq!(code(moving::import(&data, &config(6), (&hurt, Late::Rename), &mut |_| {})), "EXPORT_DAMAGED");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_rules_do_not_allow_is_not_taken_over_however_well_it_is_hashed() {
    let (dir, file) = small().await;
    let world = World::new().await;
    let database = Database::at(&world.server.url_as("node", "postgres"), None).unwrap();
    let checked = moving::check(&file, &mut |_| {}).unwrap();
    let (mut lines, mut records, mut stands) = (checked.again().unwrap(), Vec::new(), Vec::new());
    while let Some(item) = lines.next().unwrap() {
        match item {
            Item::Entry(record) => records.push(*record),
            Item::Stands(stand) => stands.push(stand),
        }
    }
    for left_out in 0..=records.len() {
        let forged = dir.path().join(format!("forged-{left_out}"));
        let kept: Vec<&Record> =
            records.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, record)| record).collect();
        let mut sums = holdfast_engine::moving::Sums::NOTHING;
        kept.iter().for_each(|record| sums.add(record).unwrap());
        let mut writer = Writer::create(&forged, Head::new(Engine::Embedded, [5; 16], sums.entries)).unwrap();
        kept.iter().for_each(|record| writer.entry(record).unwrap());
        // The last round leaves out no entry, but says nothing of how everybody stands.
        if left_out < records.len() {
            stands.iter().for_each(|stand| writer.stands(stand).unwrap());
        }
        writer.finish(sums).unwrap();
        let data = dir.path().join(format!("data-{left_out}"));
        std::fs::create_dir(&data).unwrap();
        for refused in [
            code(moving::import(&data, &config(6), (&forged, Late::Rename), &mut |_| {})),
            code(in_database::import(&database, Settles::Yes, &forged, &mut |_| {}).await),
        ] {
            assert!(["IMPORT_ENTRY_REFUSED", "IMPORT_BOOKS_DIFFER"].contains(&refused), "{left_out}: {refused}");
        }
        assert!(!data.join("journal").exists());
        assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_owners").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_peer_has_not_acknowledged_is_owed_in_the_database_too() {
    let (_dir, file) = small().await;
    let world = World::new().await;
    let database = Database::at(&world.server.url_as("node", "postgres"), None).unwrap();
    let moved = in_database::import(&database, Settles::Yes, &file, &mut |_| {}).await.unwrap();
    assert_eq!((moved.owed.pending, moved.owed.renamed, moved.owed.given_up), (1, 0, 1));
    let sql = "SELECT idempotency_key, payload->>'actual_cost_micro' FROM holdfast.payment_outbox_pending";
    let rows = world.admin.query(sql, &[]).await.unwrap();
    let rows: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("owed", "300000")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_entries_were_changed_is_not_exported() {
    let (dir, file) = small().await;
    let world = World::new().await;
    let database = Database::at(&world.server.url("postgres"), None).unwrap();
    in_database::import(&database, Settles::No, &file, &mut |_| {}).await.unwrap();
    // Only a superuser can, who takes the trigger away first.
    let change = "ALTER TABLE holdfast.ledger_entries DISABLE TRIGGER ALL; \
                  UPDATE holdfast.ledger_entries SET chain = sha256(chain) WHERE key = 'm1'";
    world.admin.batch_execute(change).await.unwrap();
    let out = dir.path().join("out");
    assert_eq!(code(in_database::export(&database, &out, &mut |_| {}).await), "EXPORT_INCONSISTENT");
    assert!(!out.exists());
}
