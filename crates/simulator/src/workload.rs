//! What callers ask: every command, on a few accounts so that they meet, with repetitions, mistakes and edges.

use crate::model::Model;
use crate::rng::Rng;
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::escrow::Ruling;
use holdfast_domain::queue::Cause;
use holdfast_domain::{
    Budget, Budgets, ChargeId, CreditUnit, CreditsPerUsd, EscrowId, Id, IdKind, Key, Label, OwnerId, PayeeId, Price,
    Rates, Reason, RequestPrice, Span, Usage, escrow,
};
use holdfast_engine::{Command, Request};
use std::collections::VecDeque;

/// The kinds of requests, and how often each comes.
const WEIGHTS: [u32; 20] = [8, 18, 6, 5, 5, 12, 8, 6, 2, 5, 6, 3, 8, 4, 3, 3, 8, 3, 2, 3];

/// How requests look in one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// How many accounts there are.
    pub(crate) owners: usize,
    /// How long ids are: long ones fill segments quickly.
    pub(crate) width: usize,
    /// Whether some amounts are near the end of the range.
    pub(crate) huge: bool,
}

/// The callers of one run.
#[derive(Debug)]
pub(crate) struct Workload {
    rng: Rng,
    profile: Profile,
    weights: [u32; WEIGHTS.len()],
    owners: Vec<OwnerId>,
    charges: Vec<ChargeId>,
    escrows: Vec<EscrowId>,
    /// Everything that was ever asked.
    asked: Vec<Request>,
    /// Asked, and the answer never came: asked again in the same words.
    unanswered: VecDeque<Request>,
    next_id: u64,
    /// What every id of theirs begins with, so that several runs on one ledger do not meet.
    realm: String,
}

impl Workload {
    pub(crate) fn new(rng: Rng, profile: Profile) -> Self {
        Self::within(String::new(), rng, profile)
    }

    /// Callers whose ids all begin so.
    pub(crate) fn within(realm: String, mut rng: Rng, profile: Profile) -> Self {
        // Every run leaves some commands out and has much of others: rare sequences become common in some run.
        let mut weights = WEIGHTS.map(|weight| weight * rng.pick(&[0, 1, 1, 1, 2, 4]).unwrap_or(1));
        // Without money and holds there is nothing to do.
        weights[0] = weights[0].max(4);
        weights[1] = weights[1].max(10);
        let mut workload = Self {
            rng,
            profile,
            weights,
            owners: Vec::new(),
            charges: Vec::new(),
            escrows: Vec::new(),
            asked: Vec::new(),
            unanswered: VecDeque::new(),
            next_id: 0,
            realm,
        };
        workload.owners = (0..profile.owners).map(|number| workload.id("o", number as u64)).collect();
        workload
    }

    /// What every id of theirs begins with.
    pub(crate) fn realm(&self) -> &str {
        &self.realm
    }

    /// Notes requests whose answers did not come.
    pub(crate) fn unanswered(&mut self, requests: impl Iterator<Item = Request>) {
        self.unanswered.extend(requests);
        // Callers give up some time.
        while self.unanswered.len() > 24 {
            self.unanswered.pop_front();
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self, model: &Model) -> Request {
        if self.rng.one_in(2)
            && let Some(request) = self.unanswered.pop_front()
        {
            return request;
        }
        let request = if model.owners().count() < self.owners.len().min(2) {
            let command = self.mint();
            self.keyed(command)
        } else {
            self.any(model)
        };
        self.asked.push(request.clone());
        request
    }

    /// A request whose record is long.
    pub(crate) fn long_mint(&mut self) -> Request {
        let command = self.mint();
        let request = self.keyed(command);
        self.asked.push(request.clone());
        request
    }

    fn any(&mut self, model: &Model) -> Request {
        let command = match self.rng.weighted(&self.weights) {
            0 => self.mint(),
            1 => self.reserve(model),
            2 if self.rng.one_in(3) => self.charge(charge::Command::Abandon),
            2 if self.rng.one_in(2) => {
                let amount = self.amount(None);
                self.charge(charge::Command::Note { actual: Actual::Credits(amount) })
            }
            2 => self.charge(charge::Command::Start),
            3 => {
                let amount = self.amount(None);
                self.charge(charge::Command::Increase { amount })
            }
            4 => {
                let ttl = self.ttl();
                self.charge(charge::Command::Extend { ttl })
            }
            5 => self.commit(model, Finality::Final),
            6 => self.commit(model, Finality::Partial),
            7 => self.charge(charge::Command::Release),
            8 => self.charge(charge::Command::Expire),
            9 => {
                let reason = self.reason();
                self.charge(charge::Command::Void { reason })
            }
            10 => self.charge(charge::Command::Ack { charged: None }),
            11 => {
                let reason = self.reason();
                self.charge(charge::Command::Fail { reason, charged: None })
            }
            12 => self.hold(model),
            13 => {
                let payee = self.payee();
                self.escrow(escrow::Command::Settle { payee })
            }
            14 => self.escrow(escrow::Command::Refund),
            15 => self.split(model),
            16 => return self.again(),
            17 => return self.key_again(model),
            18 => self.stranger(),
            _ => self.reserve(model),
        };
        self.keyed(command)
    }

    /// A request with a key where one is needed, and often where not.
    fn keyed(&mut self, command: Command) -> Request {
        let needed = command.needs_key();
        let key = if self.rng.one_in(if needed { 40 } else { 2 }) { None } else { Some(self.fresh_key()) };
        Request { key, actor: self.actor(), command }
    }

    /// The same words as before; a caller that lost the id of its escrow makes up another.
    fn again(&mut self) -> Request {
        let position = self.rng.index(self.asked.len());
        let Some(request) = self.asked.get(position).cloned() else {
            let command = self.mint();
            return self.keyed(command);
        };
        match request.command {
            Command::Hold { hold, .. } if self.rng.one_in(2) => {
                let escrow = self.fresh("e");
                Request { command: Command::Hold { escrow, hold }, ..request }
            }
            Command::Hold { .. }
            | Command::Mint { .. }
            | Command::Reserve { .. }
            | Command::Charge { .. }
            | Command::Escrow { .. } => request,
        }
    }

    /// An old key for something else.
    fn key_again(&mut self, model: &Model) -> Request {
        let position = self.rng.index(self.asked.len());
        let key = self.asked.get(position).and_then(|request| request.key);
        let command = if self.rng.one_in(2) { self.mint() } else { self.reserve(model) };
        Request { key: key.or_else(|| Some(self.fresh_key())), actor: self.actor(), command }
    }

    /// Names that nobody has.
    fn stranger(&mut self) -> Command {
        let amount = self.amount(None);
        match self.rng.below(4) {
            0 => Command::Charge { charge: self.fresh("c"), command: charge::Command::Release },
            1 => Command::Escrow { escrow: self.fresh("e"), command: escrow::Command::Refund, ruling: self.ruling() },
            2 => {
                let hold = escrow::Hold { owner: self.fresh("nobody"), amount, feature: self.label("f") };
                Command::Hold { escrow: self.fresh("e"), hold }
            }
            _ => {
                let (owner, terms, ttl) = (self.fresh("nobody"), self.terms(), self.ttl());
                let reserve = Reserve { owner, amount, terms, ttl, budgets: Budgets::NONE };
                Command::Reserve { charge: self.fresh("c"), reserve }
            }
        }
    }

    fn mint(&mut self) -> Command {
        let owner = self.owner();
        let amount = self.amount(Some(5_000));
        Command::Mint { owner, amount, reason: self.reason() }
    }

    fn reserve(&mut self, model: &Model) -> Command {
        let owner = self.owner();
        let near = model.owner(owner).map_or(100, |row| if self.rng.one_in(8) { row.available } else { 100 });
        let (amount, terms, ttl) = (self.amount(Some(near)), self.terms(), self.ttl());
        // Now and then an id that is taken.
        let charge = match self.recent(&self.charges.clone()) {
            Some(charge) if self.rng.one_in(12) => charge,
            Some(_) | None => self.fresh("c"),
        };
        self.charges.push(charge);
        Command::Reserve { charge, reserve: Reserve { owner, amount, terms, ttl, budgets: self.budgets() } }
    }

    /// Limits in up to two of three names, often low enough to be felt.
    fn budgets(&mut self) -> Budgets {
        let count = self.rng.weighted(&[5, 3, 2]) as u64;
        let first = self.rng.below(3);
        let mut limit =
            || self.rng.pick(&[None, Some(50), Some(300), Some(2_000), Some(20_000)]).flatten().map(credits);
        let limits: Vec<(Option<CreditUnit>, Option<CreditUnit>)> = (0..count).map(|_| (limit(), limit())).collect();
        let named = limits.into_iter().zip(first..);
        let budget = |((per_day, in_total), number)| Budget { id: self.id("b", number % 3), per_day, in_total };
        Budgets::new(&named.map(budget).collect::<Vec<_>>()).expect("few, and of different names")
    }

    fn commit(&mut self, model: &Model, finality: Finality) -> Command {
        let charge = self.known_charge();
        let held = model.held_and_charged(charge).map(|(held, _)| held);
        let actual = if self.rng.one_in(4) {
            let mut tokens = || self.rng.pick(&[0, 1, 50, 1_000, 1_000_000, u64::MAX]).unwrap_or(0);
            let (input, output) = (tokens(), tokens());
            Actual::Usage(Usage { input, output, ..self.further_usage() })
        } else {
            Actual::Credits(self.amount(held))
        };
        Command::Charge { charge, command: charge::Command::Commit { actual, finality } }
    }

    /// Cached and thought tokens, in every other usage.
    fn further_usage(&mut self) -> Usage {
        if self.rng.one_in(2) {
            return Usage::NONE;
        }
        let mut tokens = || self.rng.pick(&[0, 0, 1, 70, 2_000, u64::MAX]).unwrap_or(0);
        Usage { cached_input: tokens(), cache_write: tokens(), reasoning: tokens(), ..Usage::NONE }
    }

    fn charge(&mut self, command: charge::Command) -> Command {
        Command::Charge { charge: self.known_charge(), command }
    }

    fn hold(&mut self, model: &Model) -> Command {
        let owner = self.owner();
        let near = model.owner(owner).map_or(100, |row| if self.rng.one_in(8) { row.available } else { 100 });
        let hold = escrow::Hold { owner, amount: self.amount(Some(near)), feature: self.label("f") };
        let escrow = match self.recent(&self.escrows.clone()) {
            Some(escrow) if self.rng.one_in(12) => escrow,
            Some(_) | None => self.fresh("e"),
        };
        self.escrows.push(escrow);
        Command::Hold { escrow, hold }
    }

    fn escrow(&mut self, command: escrow::Command) -> Command {
        Command::Escrow { escrow: self.known_escrow(), command, ruling: self.ruling() }
    }

    fn split(&mut self, model: &Model) -> Command {
        let escrow = self.known_escrow();
        let amount = model.escrow_amount(escrow).map_or(10, CreditUnit::units);
        let settle = self.rng.between(0, amount);
        let refund = if self.rng.one_in(6) { self.rng.between(0, 100) } else { amount - settle };
        let (settle, refund) = (credits(settle), credits(refund));
        let command = escrow::Command::PartialSettle { payee: self.payee(), settle, refund };
        Command::Escrow { escrow, command, ruling: self.ruling() }
    }

    /// The queue's word, every other time.
    fn ruling(&mut self) -> Option<Ruling> {
        let cause = self.rng.pick(&Cause::ALL)?;
        let item = self.rng.below(3);
        self.rng.one_in(2).then(|| Ruling { item: self.id("qi", item), cause })
    }

    /// An amount, often just at or beside `near`.
    fn amount(&mut self, near: Option<i128>) -> CreditUnit {
        let near = near.and_then(|near| u64::try_from(near).ok()).unwrap_or(100);
        let units = match self.rng.below(16) {
            0 => near,
            1 => near.saturating_add(1),
            2 => near.saturating_sub(1),
            3 if self.rng.one_in(3) => 0,
            4 if self.profile.huge => holdfast_domain::AMOUNT_MAX - self.rng.below(3),
            5 if self.profile.huge => holdfast_domain::AMOUNT_MAX / 2,
            _ => self.rng.between(1, near.clamp(1, 10_000).saturating_mul(2)),
        };
        credits(units.min(holdfast_domain::AMOUNT_MAX))
    }

    fn ttl(&mut self) -> Span {
        let day = Span::DAY.millis();
        let millis = match self.rng.below(24) {
            0 => 0,
            1 => u64::MAX,
            2 => 366 * day + self.rng.below(2),
            3..=5 => 1,
            6..=14 => self.rng.between(1, 60_000),
            _ => self.rng.between(1, 3 * day),
        };
        Span::from_millis(millis)
    }

    fn terms(&mut self) -> Terms {
        let overrun = self.rng.pick(&[Overrun::Cap, Overrun::Available, Overrun::Refuse]).unwrap_or(Overrun::Cap);
        let on_expiry = self.rng.pick(&[OnExpiry::Release, OnExpiry::ChargeEstimate]).unwrap_or(OnExpiry::Release);
        let rates = self.rng.one_in(2).then(|| self.rates()).flatten();
        Terms { rates, overrun, on_expiry }
    }

    fn rates(&mut self) -> Option<Rates> {
        let mut price =
            || self.rng.pick(&[1, 400_000, 15_000_000, Price::MAX]).and_then(|price| Price::new(price).ok());
        let (input, output) = (price()?, price()?);
        let credits_per_usd = CreditsPerUsd::new(self.rng.pick(&[1, 100, CreditsPerUsd::MAX])?)?;
        let rates = Rates {
            input,
            output,
            cached_input: None,
            cache_write: None,
            reasoning: None,
            per_request: None,
            credits_per_usd,
        };
        Some(if self.rng.one_in(2) { self.with_further_prices(rates) } else { rates })
    }

    /// The same rates with some of the prices that not every model has.
    fn with_further_prices(&mut self, rates: Rates) -> Rates {
        let mut price = || {
            let price = self.rng.pick(&[0, 0, 3, 75_000, 18_750_000, Price::MAX])?;
            Price::new(price).ok()
        };
        let (cached_input, cache_write, reasoning) = (price(), price(), price());
        let per_request = self.rng.pick(&[0, 0, 1, 10_000, RequestPrice::MAX]);
        let per_request = per_request.and_then(|price| RequestPrice::new(price).ok());
        Rates { cached_input, cache_write, reasoning, per_request, ..rates }
    }

    /// One of `items`, more likely a late one.
    fn recent<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let from = if self.rng.one_in(3) { 0 } else { items.len().saturating_sub(6) };
        self.rng.pick(items.get(from..)?)
    }

    fn known_charge(&mut self) -> ChargeId {
        let known = self.recent(&self.charges.clone());
        known.unwrap_or_else(|| self.fresh("c"))
    }

    fn known_escrow(&mut self) -> EscrowId {
        let known = self.recent(&self.escrows.clone());
        known.unwrap_or_else(|| self.fresh("e"))
    }

    fn owner(&mut self) -> OwnerId {
        let owner = self.rng.pick(&self.owners);
        owner.unwrap_or_else(|| self.fresh("o"))
    }

    fn payee(&mut self) -> PayeeId {
        let number = self.rng.below(3);
        self.id("p", number)
    }

    fn actor(&mut self) -> Label {
        self.label("a")
    }

    fn label(&mut self, prefix: &str) -> Label {
        let number = self.rng.below(3);
        self.id(prefix, number)
    }

    fn reason(&mut self) -> Reason {
        let number = self.rng.below(3);
        let text = format!("because {number:0width$}", width = self.profile.width * 3);
        text.parse().expect("a short line of plain text")
    }

    /// A key that nobody has used.
    pub(crate) fn fresh_key(&mut self) -> Key {
        self.fresh("k")
    }

    fn fresh<K: IdKind>(&mut self, prefix: &str) -> Id<K> {
        self.next_id += 1;
        self.id(prefix, self.next_id)
    }

    fn id<K: IdKind>(&self, prefix: &str, number: u64) -> Id<K> {
        let text = format!("{}{prefix}{number:0width$}", self.realm, width = self.profile.width);
        text.parse().expect("plain text of at most 64 characters")
    }
}

pub(crate) fn credits(units: u64) -> CreditUnit {
    CreditUnit::new(units.min(holdfast_domain::AMOUNT_MAX)).expect("within the range")
}
