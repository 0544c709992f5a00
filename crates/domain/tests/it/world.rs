//! A naive ledger to run random steps against: a map of balances, kept by plain sums, and the story of each charge.
//!
//! It trusts the domain with nothing that a property is about: it adds up the postings, checks the floors and prices
//! usage by its own sums.

use crate::table::{id, reason};
use holdfast_domain::charge::{
    self, Actual, Closed, Command, Context, Finality, OnExpiry, Overrun, Refusal, Reserve, Terms, reserve,
};
use holdfast_domain::escrow::{self, Hold};
use holdfast_domain::{
    AMOUNT_MAX, Account, Budgets, Charge, ChargeId, CreditUnit, CreditsPerUsd, Escrow, EscrowId, Event, Guard, Mint,
    OwnerId, Price, Rates, RequestPrice, Span, Timestamp, Usage,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Balances in millionths of a credit, wide enough that no sum here can overflow.
pub(crate) type Book = BTreeMap<Account, i128>;

/// One thing that somebody asks for.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Mint(Mint),
    Reserve(ChargeId, Reserve),
    Charge(ChargeId, Command),
    Hold(EscrowId, Hold),
    Escrow(EscrowId, escrow::Command),
    Wait(Span),
}

/// The books and the lives, as they stand.
#[derive(Debug)]
pub(crate) struct World {
    now: Timestamp,
    pub(crate) book: Book,
    pub(crate) charges: BTreeMap<ChargeId, Story>,
    pub(crate) escrows: BTreeMap<EscrowId, (Escrow, OwnerId)>,
    pub(crate) minted: BTreeMap<OwnerId, i128>,
    /// What each owner's escrows have paid to payees.
    pub(crate) paid_out: BTreeMap<OwnerId, i128>,
}

/// What happened to one charge, and what its work cost by the test's own sums.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) charge: Charge,
    pub(crate) owner: OwnerId,
    pub(crate) reserved: Terms,
    pub(crate) chapters: Vec<Chapter>,
    pub(crate) cost: i128,
    /// What its entries brought into revenue, less what they took out.
    pub(crate) revenue: i128,
}

/// One admitted event of a charge.
#[derive(Debug)]
pub(crate) struct Chapter {
    pub(crate) before: Option<Charge>,
    pub(crate) command: Option<Command>,
    pub(crate) event: charge::Event,
    pub(crate) after: Charge,
}

/// An entry that was decided, and whether the naive book let it in.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) event: Event,
    pub(crate) admitted: bool,
    /// The balances as they are, or would be, after it.
    pub(crate) after: Book,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            now: Timestamp::from_millis(1_800_000_000_000),
            book: Book::new(),
            charges: BTreeMap::new(),
            escrows: BTreeMap::new(),
            minted: BTreeMap::new(),
            paid_out: BTreeMap::new(),
        }
    }

    /// Takes a step. `None`: the rules refused it before there was an entry.
    pub(crate) fn take(&mut self, step: &Step) -> Option<Tried> {
        let event = self.decide(step)?;
        let mut after = self.book.clone();
        for (account, change) in event.changes().expect("whatever is decided balances") {
            *after.entry(account).or_insert(0) += i128::from(change.units());
        }
        let admitted = floors(&event).iter().all(|account| after[account] >= 0);
        if admitted {
            self.admit(step, &event);
            self.book.clone_from(&after);
        }
        Some(Tried { event, admitted, after })
    }

    fn decide(&mut self, step: &Step) -> Option<Event> {
        match step {
            Step::Mint(Mint { owner, amount, reason }) => holdfast_domain::mint(*owner, *amount, reason.clone()).ok(),
            Step::Reserve(id, _) if self.charges.contains_key(id) => None,
            Step::Reserve(id, request) => {
                let event = reserve(request, self.now).ok()?;
                Some(Event::Charge { id: *id, owner: request.owner, event })
            }
            Step::Charge(id, command) => {
                let Story { charge, owner, .. } = self.charges.get(id)?;
                let event = self.decide_charge(charge, *owner, command).ok()?;
                Some(Event::Charge { id: *id, owner: *owner, event })
            }
            Step::Hold(id, _) if self.escrows.contains_key(id) => None,
            Step::Hold(id, request) => {
                let event = escrow::hold(request, self.now).ok()?;
                Some(Event::Escrow { id: *id, owner: request.owner, event, ruling: None })
            }
            Step::Escrow(id, command) => {
                let (escrow, owner) = self.escrows.get(id)?;
                let event = escrow.decide(*command).ok()?;
                Some(Event::Escrow { id: *id, owner: *owner, event, ruling: None })
            }
            Step::Wait(span) => {
                self.now = self.now.after(*span);
                None
            }
        }
    }

    fn decide_charge(&self, charge: &Charge, owner: OwnerId, command: &Command) -> Result<charge::Event, Refusal> {
        let available = self.balance(Account::Available(owner)).clamp(0, i128::from(AMOUNT_MAX));
        let available = u64::try_from(available).ok().and_then(|units| CreditUnit::new(units).ok());
        let context = Context { now: self.now, available: available.expect("clamped") };
        charge.decide(command, &context)
    }

    fn admit(&mut self, step: &Step, event: &Event) {
        match event {
            Event::Minted(mint) => *self.minted.entry(mint.owner).or_insert(0) += units(mint.amount),
            Event::Charge { id, owner, event } => self.admit_charge(*id, *owner, step, event),
            Event::Escrow { id, owner, event, .. } => {
                let before = self.escrows.get(id).map(|(escrow, _)| *escrow);
                let after = Escrow::apply(before, event).expect("whatever is decided can follow");
                self.escrows.insert(*id, (after, *owner));
                *self.paid_out.entry(*owner).or_insert(0) += match event {
                    escrow::Event::Settled { amount, .. } => units(*amount),
                    escrow::Event::PartiallySettled { settled, .. } => units(*settled),
                    escrow::Event::Held(_) | escrow::Event::Refunded { .. } => 0,
                };
            }
        }
    }

    fn admit_charge(&mut self, id: ChargeId, owner: OwnerId, step: &Step, event: &charge::Event) {
        let before = self.charges.get(&id).map(|story| story.charge);
        let after = Charge::apply(before, event).expect("whatever is decided can follow");
        let command = match step {
            Step::Charge(_, command) => Some(command.clone()),
            Step::Mint(_) | Step::Reserve(..) | Step::Hold(..) | Step::Escrow(..) | Step::Wait(_) => None,
        };
        let reserved = terms(&after);
        let story = self.charges.entry(id).or_insert(Story {
            charge: after,
            owner,
            reserved,
            chapters: Vec::new(),
            cost: 0,
            revenue: 0,
        });
        story.charge = after;
        story.cost += cost(before.as_ref(), command.as_ref(), &story.reserved);
        story.revenue += revenue(event);
        story.chapters.push(Chapter { before, command, event: event.clone(), after });
    }

    pub(crate) fn balance(&self, account: Account) -> i128 {
        self.book.get(&account).copied().unwrap_or(0)
    }
}

/// The accounts whose floor an entry asks for.
pub(crate) fn floors(event: &Event) -> BTreeSet<Account> {
    let postings = event.postings().expect("whatever is decided balances");
    let account = |Guard::Floor(place)| event.account(place).expect("what an entry posts to, it names");
    postings.floors().map(account).collect()
}

/// What an accepted command made the work cost: what the caller said, or, when expiry charges, the rest of the hold.
fn cost(before: Option<&Charge>, command: Option<&Command>, frozen: &Terms) -> i128 {
    match (command, before) {
        (Some(Command::Commit { actual: Actual::Credits(amount), .. }), _) => units(*amount),
        (Some(Command::Commit { actual: Actual::Usage(usage), finality }), _) => {
            price(&frozen.rates.expect("a commit by usage was accepted"), *usage, *finality)
        }
        (Some(Command::Expire), Some(Charge::Held(hold)))
            if hold.stage == charge::Stage::InFlight && frozen.on_expiry == OnExpiry::ChargeEstimate =>
        {
            units(hold.held)
        }
        (_, _) => 0,
    }
}

/// The price of usage, by the sentence in the specification: tokens × rate, in credits, rounded down to a millionth; and
/// the price per request with the final one.
pub(crate) fn price(rates: &Rates, usage: Usage, finality: Finality) -> i128 {
    let at = |tokens: u64, price: Price| i128::from(tokens) * i128::from(price.get());
    let per_request = match (finality, rates.per_request) {
        (Finality::Final, Some(price)) => i128::from(price.get()),
        (Finality::Final, None) | (Finality::Partial, _) => 0,
    };
    let micro_usd_times_million = at(usage.input, rates.input)
        + at(usage.cached_input, rates.cached_input.unwrap_or(rates.input))
        + at(usage.cache_write, rates.cache_write.unwrap_or(rates.input))
        + at(usage.output, rates.output)
        + at(usage.reasoning, rates.reasoning.unwrap_or(rates.output))
        + per_request * 1_000_000;
    micro_usd_times_million * i128::from(rates.credits_per_usd.get()) / 1_000_000
}

/// What an event of a charge brings into revenue.
pub(crate) fn revenue(event: &charge::Event) -> i128 {
    match event {
        charge::Event::Committed { taken, .. } => units(taken.from_hold) + units(taken.from_available),
        charge::Event::Voided { returned, .. } => -units(*returned),
        charge::Event::Reserved { .. }
        | charge::Event::Started
        | charge::Event::Noted { .. }
        | charge::Event::Increased { .. }
        | charge::Event::Extended { .. }
        | charge::Event::Released { .. }
        | charge::Event::AutoReleased { .. }
        | charge::Event::Acked
        | charge::Event::Failed { .. } => 0,
    }
}

pub(crate) fn units(amount: CreditUnit) -> i128 {
    i128::from(amount.units())
}

/// What was agreed at reserve, as the charge has it now.
pub(crate) const fn terms(charge: &Charge) -> Terms {
    match charge {
        Charge::Held(hold) => hold.terms,
        Charge::Committed(closed)
        | Charge::Acked(closed)
        | Charge::Failed(closed)
        | Charge::Voided(closed)
        | Charge::Released(closed)
        | Charge::AutoReleased(closed) => closed.terms,
    }
}

/// What is left of a charge whose hold has ended.
pub(crate) const fn closed(charge: &Charge) -> Option<&Closed> {
    match charge {
        Charge::Held(_) => None,
        Charge::Committed(closed)
        | Charge::Acked(closed)
        | Charge::Failed(closed)
        | Charge::Voided(closed)
        | Charge::Released(closed)
        | Charge::AutoReleased(closed) => Some(closed),
    }
}

/// What was charged, and what could not be.
pub(crate) fn sums(charge: &Charge) -> (i128, i128) {
    match charge {
        Charge::Held(hold) => (units(hold.charged), units(hold.uncollected)),
        Charge::Committed(closed)
        | Charge::Acked(closed)
        | Charge::Failed(closed)
        | Charge::Voided(closed)
        | Charge::Released(closed)
        | Charge::AutoReleased(closed) => (units(closed.charged), units(closed.uncollected)),
    }
}

/// Up to eighty steps of two owners with four charges and two escrows: few enough names that the steps meet.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let funded = [mint("alice", 300), mint("bob", 60)];
    prop::collection::vec(step(), 1..80).prop_map(move |steps| funded.iter().cloned().chain(steps).collect())
}

fn mint(owner: &str, units: u64) -> Step {
    Step::Mint(Mint { owner: id(owner), amount: small(units), reason: reason("a start") })
}

fn step() -> impl Strategy<Value = Step> {
    let minted = (owner(), amount(200)).prop_map(|(owner, amount)| {
        let reason = reason("top-up");
        Step::Mint(Mint { owner, amount, reason })
    });
    // Mostly one of two sizes, so that a random division often fits.
    let size = prop_oneof![1 => Just(small(40)), 1 => Just(small(80)), 1 => amount(120)];
    let escrowed = (escrow_id(), owner(), size).prop_map(|(escrow, owner, amount)| {
        let feature = id("solo");
        Step::Hold(escrow, Hold { owner, amount, feature })
    });
    prop_oneof![
        2 => minted,
        5 => (charge_id(), a_reserve()).prop_map(|(id, request)| Step::Reserve(id, request)),
        25 => (charge_id(), command(amount(150))).prop_map(|(id, command)| Step::Charge(id, command)),
        2 => escrowed,
        3 => (escrow_id(), of_escrow()).prop_map(|(id, command)| Step::Escrow(id, command)),
        5 => (0..40u64).prop_map(|ms| Step::Wait(Span::from_millis(ms))),
    ]
}

fn owner() -> impl Strategy<Value = OwnerId> {
    prop::sample::select(vec![id("alice"), id("bob")])
}

fn charge_id() -> impl Strategy<Value = ChargeId> {
    prop::sample::select(vec![id("c1"), id("c2"), id("c3"), id("c4")])
}

fn escrow_id() -> impl Strategy<Value = EscrowId> {
    prop::sample::select(vec![id("e1"), id("e2")])
}

fn small(units: u64) -> CreditUnit {
    CreditUnit::new(units).expect("a small amount")
}

/// Mostly a small amount, now and then nothing or as much as there can be.
fn amount(most: u64) -> impl Strategy<Value = CreditUnit> + Clone {
    let units = prop_oneof![1 => Just(0), 20 => 1..=most, 1 => AMOUNT_MAX - 3..=AMOUNT_MAX];
    units.prop_map(|units| CreditUnit::new(units).expect("in range"))
}

/// A request whose hold lives for some of the waits.
pub(crate) fn a_reserve() -> impl Strategy<Value = Reserve> {
    (owner(), amount(120), any_terms(), 1..50u64).prop_map(|(owner, amount, terms, ttl)| Reserve {
        owner,
        amount,
        terms,
        ttl: Span::from_millis(ttl),
        budgets: Budgets::NONE,
    })
}

pub(crate) fn any_terms() -> impl Strategy<Value = Terms> {
    let overrun = prop::sample::select(vec![Overrun::Cap, Overrun::Available, Overrun::Refuse]);
    let on_expiry = prop::sample::select(vec![OnExpiry::Release, OnExpiry::ChargeEstimate]);
    (prop::option::weighted(0.8, rates()), overrun, on_expiry).prop_map(|(rates, overrun, on_expiry)| Terms {
        rates,
        overrun,
        on_expiry,
    })
}

/// Rates at which the usages of [`command`] cost about as much as the amounts are.
pub(crate) fn rates() -> impl Strategy<Value = Rates> {
    let price = || (1..40_000u64).prop_map(|price| Price::new(price).expect("above zero"));
    let may_have = || prop::option::of(price());
    // A millionth of a dollar is up to a hundred units: as much as many tokens.
    let per_request = prop::option::of(Just(RequestPrice::new(1).expect("above zero")));
    let further = (may_have(), may_have(), may_have(), per_request);
    (price(), price(), further, 1..=100u64).prop_map(|(input, output, further, per_usd)| {
        let (cached_input, cache_write, reasoning, per_request) = further;
        let credits_per_usd = CreditsPerUsd::new(per_usd).expect("above zero");
        Rates { input, output, cached_input, cache_write, reasoning, per_request, credits_per_usd }
    })
}

/// Usage of all kinds of tokens, or of the usual two.
pub(crate) fn usage() -> impl Strategy<Value = Usage> {
    let tokens = || 0..100u64;
    let further = prop_oneof![Just((0, 0, 0)), (0..50u64, 0..50u64, 0..50u64)];
    (tokens(), tokens(), further).prop_map(|(input, output, (cached_input, cache_write, reasoning))| Usage {
        input,
        cached_input,
        cache_write,
        output,
        reasoning,
    })
}

/// Any command about a charge, with amounts of the given size.
pub(crate) fn command(amount: impl Strategy<Value = CreditUnit> + Clone + 'static) -> impl Strategy<Value = Command> {
    let actual = prop_oneof![amount.clone().prop_map(Actual::Credits), usage().prop_map(Actual::Usage)];
    let finality = prop_oneof![1 => Just(Finality::Final), 3 => Just(Finality::Partial)];
    prop_oneof![
        3 => Just(Command::Start),
        2 => amount.prop_map(|amount| Command::Increase { amount }),
        1 => (0..50u64).prop_map(|ttl| Command::Extend { ttl: Span::from_millis(ttl) }),
        8 => (actual, finality).prop_map(|(actual, finality)| Command::Commit { actual, finality }),
        1 => Just(Command::Release),
        5 => Just(Command::Expire),
        3 => Just(Command::Void { reason: reason("by mistake") }),
        2 => Just(Command::Ack { charged: None }),
        2 => Just(Command::Fail { reason: reason("no answer"), charged: None }),
    ]
}

fn of_escrow() -> impl Strategy<Value = escrow::Command> {
    let payee = prop::sample::select(vec![id("carol"), id("dave")]);
    let of_whole = |whole: u64| (0..=whole).prop_map(move |part| [part, whole - part].map(small));
    let unlike = (amount(120), amount(120)).prop_map(|(settle, refund)| [settle, refund]);
    let parts = prop_oneof![2 => of_whole(40), 2 => of_whole(80), 1 => unlike];
    prop_oneof![
        1 => payee.clone().prop_map(|payee| escrow::Command::Settle { payee }),
        1 => Just(escrow::Command::Refund),
        2 => (payee, parts).prop_map(|(payee, [settle, refund])| {
            escrow::Command::PartialSettle { payee, settle, refund }
        }),
    ]
}
