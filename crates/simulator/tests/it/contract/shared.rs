//! The engine on PostgreSQL under the ledger's suite: one node, and three that take turns on one database.

use crate::ledger::checker;
use crate::ledger::{Heard, World};
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_adapters::postgres::ledger::{LANES, Rules, Settles, Time};
use holdfast_domain::budget::Used;
use holdfast_domain::charge::Charge;
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{Account, BudgetId, Change, ChargeId, EscrowId, OwnerId};
use holdfast_engine::part::Wanted;
use holdfast_engine::{Answer, Balance, Clock, Limits, Receipt, Record, Refusal, Request, Totals};
use holdfast_simulator::contract::ledger::{self, HandClock, LedgerUnderTest, OPEN_HOLDS_MAX};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// As many holds as may be due at once.
const ALL_DUE: u32 = 1_000;

/// Nodes on one database, which take turns.
struct Nodes {
    nodes: Vec<PostgresLedger>,
    turn: AtomicUsize,
}

impl Nodes {
    async fn open(world: &World, database: &str, clock: &Arc<HandClock>, count: usize) -> Arc<Self> {
        let limits = Limits { open_holds: OPEN_HOLDS_MAX };
        let rules = Rules { limits, settles: Settles::Yes, lanes: LANES };
        let mut nodes = Vec::new();
        for _ in 0..count {
            let time = Time::Given(Arc::clone(clock) as Arc<dyn Clock>);
            let database = world.database(database);
            nodes.push(PostgresLedger::open_at(database, rules, time, Arc::new(Heard::default())).await.unwrap());
        }
        Arc::new(Self { nodes, turn: AtomicUsize::new(0) })
    }

    fn next(&self) -> &PostgresLedger {
        &self.nodes[self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }
}

impl LedgerUnderTest for Nodes {
    async fn submit(&self, request: Request) -> Answer {
        self.next().submit(request).await
    }

    async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        self.next().submit_batch(requests).await
    }

    async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        let wanted = Wanted { owners: vec![owner], ..Wanted::default() };
        self.next().look(&wanted, |view| view.balance(owner)).await
    }

    async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        let mut wanted = Wanted::default();
        match account {
            Account::Available(owner) | Account::Held(owner) => wanted.owners.push(owner),
            Account::Payee(payee) => wanted.payees.push(payee),
            Account::Escrow(escrow) => wanted.escrows.push(escrow),
            Account::Revenue => return Ok(Some(self.totals().await?.revenue)),
            Account::Treasury => return Ok(Some(self.totals().await?.treasury)),
        }
        self.next().look(&wanted, |view| view.account(&account)).await
    }

    async fn used(&self, budget: BudgetId) -> Result<Used, Refusal> {
        let wanted = Wanted { budgets: vec![budget], ..Wanted::default() };
        self.next().look(&wanted, |view| view.used(budget)).await
    }

    async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        let wanted = Wanted { charges: vec![id], ..Wanted::default() };
        self.next().look(&wanted, |view| view.charge(id)).await?
    }

    async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        let wanted = Wanted { escrows: vec![id], ..Wanted::default() };
        self.next().look(&wanted, |view| view.escrow(id)).await?
    }

    async fn life(&self, id: ChargeId) -> Result<Vec<Receipt>, Refusal> {
        let wanted = Wanted { charges: vec![id], ..Wanted::default() };
        let life = self.next().look(&wanted, |view| view.life(id)).await??;
        Ok(life.into_iter().map(Record::into_receipt).collect())
    }

    async fn totals(&self) -> Result<Totals, Refusal> {
        self.next().totals().await
    }

    async fn expire_due(&self) -> Result<(), Refusal> {
        let actor = "expiry".parse().unwrap();
        while self.next().expire(actor, ALL_DUE).await? > 0 {}
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_the_ledger_on_postgresql() {
    let world = World::new().await;
    for (database, nodes) in [("alone", 1), ("three", 3)] {
        world.add_database(database).await;
        let clock = HandClock::new();
        let engine = Nodes::open(&world, database, &clock, nodes).await;
        ledger::rules(engine, clock).await.unwrap();
        checker::check(&world.log_in(database).await).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_callers_of_postgresql_beside_the_model() {
    let world = World::new().await;
    let mut all = ledger::Mixed::default();
    for (seed, callers, nodes) in [(0, 1, 1), (1, 1, 3), (101, 4, 3)] {
        let (database, clock) = (format!("mixed_{seed}"), HandClock::new());
        world.add_database(&database).await;
        let engine = Nodes::open(&world, &database, &clock, nodes).await;
        all = all.and(ledger::mixed(engine, clock, seed, callers).await.unwrap());
        checker::check(&world.log_in(&database).await).await.unwrap();
    }
    let ledger::Mixed { applied, replayed, refused, expired } = all;
    assert!([applied, replayed, refused, expired].into_iter().all(|count| count > 100), "{all:?}");
}
