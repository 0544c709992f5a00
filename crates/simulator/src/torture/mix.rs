//! What is asked next: a mix of all requests over a few accounts, so that they meet each other.

use super::amount::Micro;
use super::history::{Fate, Sent};
use super::order::{Body, Order};
use holdfast_simulator::rng::Rng;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Few, so that requests contend.
pub(crate) const ACCOUNTS: u64 = 6;
const PAYEES: u64 = 3;
/// Above this many open holds only settling goes on: an account may have 1,000.
const HELD_MAX: usize = 600;
/// How often each kind is asked for, in the order of [`Mix::body`].
const WEIGHTS: [u32; 12] = [6, 34, 8, 22, 10, 5, 8, 4, 3, 2, 3, 4];

/// The requests for one data directory. Numbers are never given twice, and each charge is asked for each end once.
pub(crate) struct Mix {
    next: AtomicU64,
    pool: Mutex<Pool>,
}

/// What requests can act on.
#[derive(Default)]
struct Pool {
    held: Vec<Held>,
    /// Charges that were committed and not yet asked to be voided.
    committed: Vec<u64>,
    /// Charges that were committed and not yet asked to be acknowledged.
    unacked: Vec<u64>,
    escrows: Vec<Escrow>,
    /// Reservations whose commit was sent right behind them.
    followed: HashSet<u64>,
}

/// A charge that is, or was, held; it is offered until both ends have been asked for.
#[derive(Clone, Copy)]
struct Held {
    charge: u64,
    amount: Micro,
    started: bool,
    committed: bool,
    released: bool,
}

/// An escrow that is, or was, open.
#[derive(Clone, Copy)]
struct Escrow {
    escrow: u64,
    amount: Micro,
}

impl Mix {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), pool: Mutex::new(Pool::default()) }
    }

    /// The first requests of a data directory: every account gets something.
    pub(crate) fn endow(&self) -> Vec<Order> {
        let mint = |account| self.order(Body::Mint { account, amount: Micro::credits(20_000) });
        (0..ACCOUNTS).map(mint).collect()
    }

    /// The next request.
    pub(crate) fn next(&self, rng: &mut Rng) -> Order {
        let body = self.body(rng);
        self.order(body)
    }

    /// A request that settles `reserve`, to be sent right behind it.
    pub(crate) fn follow_up(&self, reserve: &Order) -> Option<Order> {
        let Body::Reserve { amount, .. } = reserve.body else { return None };
        self.pool().followed.insert(reserve.number);
        Some(self.order(Body::Commit { charge: reserve.number, actual: Micro(amount.0 / 2) }))
    }

    fn order(&self, body: Body) -> Order {
        Order { number: self.next.fetch_add(1, Ordering::Relaxed), body }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn body(&self, rng: &mut Rng) -> Body {
        let mut pool = self.pool();
        let account = rng.below(ACCOUNTS);
        let fresh = |rng: &mut Rng| Body::Reserve { account, amount: amount(rng), ttl_s: ttl_s(rng) };
        let choice = if pool.held.len() > HELD_MAX { 3 } else { rng.weighted(&WEIGHTS) };
        let found = match choice {
            0 => Some(Body::Mint { account, amount: Micro::credits(rng.between(1, 500)) }),
            2 => {
                let held = pool.held.get(rng.index(pool.held.len())).copied();
                held.map(|held| Body::Increase { charge: held.charge, amount: amount(rng) })
            }
            3 => pool.commit(rng),
            4 => pool.release(rng),
            5 => take(&mut pool.committed, rng).map(|charge| Body::Void { charge }),
            6 => Some(Body::Hold { account, amount: amount(rng) }),
            7 => pool.settle(rng),
            8 => pool.refund(rng),
            9 => pool.split(rng),
            10 => pool.start(rng),
            11 => take(&mut pool.unacked, rng).map(|charge| Body::Ack { charge }),
            _ => None,
        };
        found.unwrap_or_else(|| fresh(rng))
    }

    /// Takes note of what was done, so that it can be acted on.
    pub(crate) fn learn(&self, sent: &Sent) {
        let Fate::Done { .. } = sent.fate else { return };
        let number = sent.order.number;
        let mut pool = self.pool();
        match sent.order.body {
            Body::Reserve { amount, .. } => {
                let committed = pool.followed.remove(&number);
                pool.held.push(Held { charge: number, amount, started: false, committed, released: false });
            }
            Body::Commit { charge, .. } => {
                pool.committed.push(charge);
                pool.unacked.push(charge);
            }
            Body::Hold { amount, .. } => pool.escrows.push(Escrow { escrow: number, amount }),
            Body::Mint { .. }
            | Body::Start { .. }
            | Body::Increase { .. }
            | Body::Release { .. }
            | Body::Void { .. }
            | Body::Ack { .. }
            | Body::Settle { .. }
            | Body::Refund { .. }
            | Body::Split { .. } => {}
        }
    }
}

impl Pool {
    fn commit(&mut self, rng: &mut Rng) -> Option<Body> {
        let index = rng.index(self.held.len());
        let held = self.held.get_mut(index).filter(|held| !held.committed)?;
        held.committed = true;
        let found = *held;
        self.forget_held(index, rng);
        let share = i128::from(rng.between(0, 4));
        Some(Body::Commit { charge: found.charge, actual: Micro(found.amount.0 * share / 4) })
    }

    fn release(&mut self, rng: &mut Rng) -> Option<Body> {
        let index = rng.index(self.held.len());
        let held = self.held.get_mut(index).filter(|held| !held.released)?;
        held.released = true;
        let found = *held;
        self.forget_held(index, rng);
        Some(Body::Release { charge: found.charge })
    }

    /// Mostly forgets a charge once its end was asked for; else it stays, and the other end will be asked for too.
    fn forget_held(&mut self, index: usize, rng: &mut Rng) {
        let spent = self.held.get(index).is_some_and(|held| held.committed && held.released);
        if spent || !rng.one_in(5) {
            self.held.swap_remove(index);
        }
    }

    fn start(&mut self, rng: &mut Rng) -> Option<Body> {
        let index = rng.index(self.held.len());
        let held = self.held.get_mut(index).filter(|held| !held.started)?;
        held.started = true;
        Some(Body::Start { charge: held.charge })
    }

    fn settle(&mut self, rng: &mut Rng) -> Option<Body> {
        let Escrow { escrow, .. } = self.escrow(rng)?;
        Some(Body::Settle { escrow, payee: rng.below(PAYEES) })
    }

    fn refund(&mut self, rng: &mut Rng) -> Option<Body> {
        let Escrow { escrow, .. } = self.escrow(rng)?;
        Some(Body::Refund { escrow })
    }

    fn split(&mut self, rng: &mut Rng) -> Option<Body> {
        let Escrow { escrow, amount } = self.escrow(rng)?;
        let settle = Micro(amount.0 / 3);
        Some(Body::Split { escrow, payee: rng.below(PAYEES), settle, refund: amount - settle })
    }

    /// An escrow to be ended. Some stay, and will be asked to end again, by another key: that must be refused.
    fn escrow(&mut self, rng: &mut Rng) -> Option<Escrow> {
        let index = rng.index(self.escrows.len());
        let found = self.escrows.get(index).copied()?;
        if !rng.one_in(5) {
            self.escrows.swap_remove(index);
        }
        Some(found)
    }
}

fn take(list: &mut Vec<u64>, rng: &mut Rng) -> Option<u64> {
    let index = rng.index(list.len());
    (index < list.len()).then(|| list.swap_remove(index))
}

/// Mostly small; now and then more than anybody has.
fn amount(rng: &mut Rng) -> Micro {
    if rng.one_in(40) { Micro::credits(10_000_000) } else { Micro(i128::from(rng.between(1, 50_000_000))) }
}

/// Mostly long; some expire while the run goes on.
fn ttl_s(rng: &mut Rng) -> u64 {
    if rng.one_in(10) { 1 } else { 3_600 }
}
