//! Callers who ask one thing after the other, each with an account of their own, and remember what they were told.

use super::{World, code, commit, credits, mint, request, reserve};
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_domain::{Budget, Budgets, escrow};
use holdfast_engine::{Command, Outcome, Receipt, Record, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The codes of those who are to ask again: the database is away, or others were in the way at every try.
const LATER: [&str; 2] = ["SERVICE_DATABASE_UNAVAILABLE", "OPTIMISTIC_LOCK"];
/// Callers at work.
pub(crate) struct Load {
    callers: JoinSet<Vec<Receipt>>,
    told: watch::Receiver<usize>,
    is_over: Arc<AtomicBool>,
    realm: String,
}

/// One of them.
struct Caller {
    node: Arc<PostgresLedger>,
    name: String,
    counted: watch::Sender<usize>,
    told: Vec<Receipt>,
}

impl Load {
    /// Begins to ask, in names of this realm.
    pub(crate) fn begin(nodes: &[Arc<PostgresLedger>], callers: usize, realm: &str) -> Self {
        let (counted, told) = watch::channel(0);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        for number in 0..callers {
            let node = Arc::clone(&nodes[number % nodes.len()]);
            let (name, counted) = (format!("{realm}-{number}"), counted.clone());
            let caller = Caller { node, name, counted, told: Vec::new() };
            running.spawn(caller.ask_until(Arc::clone(&is_over)));
        }
        Self { callers: running, told, is_over, realm: realm.to_owned() }
    }

    /// Returns when so many requests have been answered.
    pub(crate) async fn reaches(&self, count: usize) {
        self.told.clone().wait_for(|told| *told >= count).await.unwrap();
    }

    /// Ends it, and compares what was told with what is there: the same, and nothing else of this realm.
    pub(crate) async fn end(self, world: &World) {
        self.is_over.store(true, Ordering::SeqCst);
        let told = self.callers.join_all().await.concat();
        let sql = "SELECT body FROM holdfast.ledger_entries WHERE starts_with(owner, $1)";
        let rows = world.admin.query(sql, &[&format!("{}-", self.realm)]).await.unwrap();
        let kept = rows.iter().map(|row| Record::decode(row.get(0)).unwrap().into_receipt());
        let kept: BTreeMap<u64, Receipt> = kept.map(|receipt| (receipt.offset, receipt)).collect();
        assert_eq!(kept.len(), told.len(), "entries, and requests that were told to be done");
        for receipt in told {
            assert_eq!(kept.get(&receipt.offset), Some(&receipt));
        }
    }
}

impl Caller {
    async fn ask_until(mut self, is_over: Arc<AtomicBool>) -> Vec<Receipt> {
        let name = self.name.clone();
        let mut round = 0;
        while !is_over.load(Ordering::SeqCst) {
            self.ask(mint(&name, 100, &format!("{name}-m{round}"))).await;
            let charge = format!("{name}-c{round}");
            self.ask(budgeted(reserve(&name, &charge, 40), &name)).await;
            self.ask(commit(&charge, 25)).await;
            let escrow = format!("{name}-e{round}");
            self.ask(hold(&name, &escrow, 10)).await;
            self.ask(settle(&escrow, &format!("{name}-payee"))).await;
            round += 1;
        }
        self.told
    }

    /// Asks until it is answered; and what was done is answered alike when it is asked again.
    async fn ask(&mut self, request: Request) {
        let mut is_first = true;
        loop {
            match self.node.submit(request.clone()).await {
                Ok(outcome) => {
                    let is_applied = matches!(outcome, Outcome::Applied(_));
                    assert!(is_applied || !is_first, "nobody has asked for it before: {request:?}");
                    self.told.push(outcome.receipt().clone());
                    self.counted.send_modify(|count| *count += 1);
                    break;
                }
                Err(refusal) => assert!(LATER.contains(&refusal.code()), "{request:?}: {refusal}"),
            }
            is_first = false;
        }
        if self.told.len().is_multiple_of(7) {
            let again = self.node.submit(request).await;
            match &again {
                Ok(Outcome::Replayed(receipt)) => assert_eq!(Some(receipt), self.told.last()),
                Ok(Outcome::Applied(_)) | Err(_) => assert!(LATER.contains(&code(&again)), "{again:?}"),
            }
        }
    }
}

/// The same hold, under a budget.
pub(crate) fn budgeted(mut request: Request, budget: &str) -> Request {
    if let Command::Reserve { reserve, .. } = &mut request.command {
        let budget = Budget { id: budget.parse().unwrap(), per_day: None, in_total: Some(credits(1_000_000_000)) };
        reserve.budgets = Budgets::new(&[budget]).unwrap();
    }
    request
}

pub(crate) fn hold(owner: &str, id: &str, units: u64) -> Request {
    let hold = escrow::Hold { owner: owner.parse().unwrap(), amount: credits(units), feature: "test".parse().unwrap() };
    request(Some(&format!("{id}-hold")), Command::Hold { escrow: id.parse().unwrap(), hold })
}

pub(crate) fn settle(id: &str, payee: &str) -> Request {
    let command = escrow::Command::Settle { payee: payee.parse().unwrap() };
    request(None, Command::Escrow { escrow: id.parse().unwrap(), command, ruling: None })
}
