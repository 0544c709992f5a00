//! A naive wallet and a naive queue beside it, which can die between any two of their steps.
//!
//! A call is several steps, and the steps of all callers interleave: it reads the item, has the wallet act, then ends the item.
//! The wallet forgets nothing. The queue keeps what it put and what it started; of the ends that it has seen, a crash may take
//! any. The books are plain sums over the postings.

use crate::table::id;
use holdfast_domain::escrow::{self, Hold, Ruling};
use holdfast_domain::queue::{Cause, End, Intake, Item, Order, Stage, Verdict, accepts, enqueue};
use holdfast_domain::{Account, CreditUnit, Escrow, EscrowId, Event, ItemId, OwnerId, PayeeId, Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// What each user has at first, in millionths.
pub(crate) const MINTED: i128 = 1_000;
/// How many call at the same time.
pub(crate) const CALLERS: usize = 4;

/// One thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A user's money is set aside.
    Hold(EscrowId, Hold),
    /// A caller sees whether an escrow is good for an item; it puts the item when it goes on.
    Intake(usize, Intake, Option<Span>),
    /// An item is taken up.
    Start(ItemId),
    /// A caller reads an item and means to end it so.
    Decide(usize, ItemId, Verdict),
    /// The timer sees an overdue item, if there is one, and means to abandon it.
    Drop(usize),
    /// A caller does its next step.
    GoOn(usize),
    /// A caller goes away, whatever it was at.
    HangUp(usize),
    /// An operator ends an escrow without asking the queue.
    Operator(EscrowId, escrow::Command),
    /// What the queue has seen is on its disk.
    Sync,
    /// The queue dies with every call in it; the ends that were not on disk are kept where the mask has a one.
    Crash(u64),
    /// Time goes by.
    Wait(Span),
}

/// Where a call is.
#[derive(Debug, Clone)]
enum Call {
    /// The escrow was good for it when it looked.
    Putting(Intake, Option<Span>),
    /// The item allowed it when it looked.
    Ordering(ItemId, Verdict, Order),
    /// The wallet has acted at that moment.
    Ending(ItemId, Verdict, Timestamp),
    /// The wallet would not: somebody else was before.
    Converging(ItemId),
}

/// What the wallet has of an escrow.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) escrow: Escrow,
    pub(crate) owner: OwnerId,
    pub(crate) end: Option<(escrow::Event, Option<Ruling>, Timestamp)>,
    /// How many entries its life has.
    pub(crate) entries: usize,
}

/// The wallet's answers, as far as the queue tells them apart.
enum Answer {
    /// It has acted, now or before, on this very word.
    Done(Timestamp),
    /// The escrow has ended otherwise, or the key was used for another word.
    Otherwise,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct World {
    now: Timestamp,
    pub(crate) book: BTreeMap<Account, i128>,
    pub(crate) escrows: BTreeMap<EscrowId, Kept>,
    keys: BTreeMap<(ItemId, &'static str), (EscrowId, Order, Timestamp)>,
    /// As every question sees them.
    pub(crate) items: BTreeMap<ItemId, Item>,
    /// The ends that a crash may take, and the items as they were before.
    unsynced: BTreeMap<ItemId, Item>,
    calls: [Option<Call>; CALLERS],
    /// Every end that anybody ever saw.
    pub(crate) seen: Vec<(ItemId, End)>,
    /// What callers were told that they have done.
    pub(crate) told: Vec<(ItemId, Verdict)>,
    /// What random steps could easily miss.
    pub(crate) rare: BTreeSet<&'static str>,
}

impl World {
    pub(crate) fn new() -> Self {
        let book = users().into_iter().map(|user| (Account::Available(user), MINTED)).collect();
        Self {
            now: Timestamp::from_millis(1_800_000_000_000),
            book,
            escrows: BTreeMap::new(),
            keys: BTreeMap::new(),
            items: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            calls: [const { None }; CALLERS],
            seen: Vec::new(),
            told: Vec::new(),
            rare: BTreeSet::new(),
        }
    }

    pub(crate) fn balance(&self, account: Account) -> i128 {
        self.book.get(&account).copied().unwrap_or(0)
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match step {
            Step::Hold(id, request) => self.hold(*id, request),
            Step::Intake(caller, intake, rope) => self.look(*caller, intake, *rope),
            Step::Start(item) => self.start(*item),
            Step::Decide(caller, item, verdict) => self.decide(*caller, *item, *verdict),
            Step::Drop(caller) => {
                let overdue = self.items.values().find(|item| item.is_overdue(self.now)).map(|item| item.intake.id);
                if let Some(item) = overdue {
                    self.decide(*caller, item, Verdict::Abandon { cause: Cause::RopeDropTimeout });
                }
            }
            Step::GoOn(caller) => self.go_on(*caller),
            Step::HangUp(caller) => self.calls[*caller] = None,
            Step::Operator(escrow, command) => {
                if self.act(*escrow, *command, None).is_ok() {
                    self.rare.insert("an operator's end");
                }
            }
            Step::Sync => self.unsynced.clear(),
            Step::Crash(mask) => self.crash(*mask),
            Step::Wait(span) => self.now = self.now.after(*span),
        }
    }

    /// What the queue does at its start: every item that has not ended is compared with its escrow.
    pub(crate) fn converge(&mut self) {
        for item in self.items.keys().copied().collect::<Vec<_>>() {
            self.converge_one(item);
        }
    }

    fn hold(&mut self, id: EscrowId, request: &Hold) {
        let enough = self.balance(Account::Available(request.owner)) >= i128::from(request.amount.units());
        if self.escrows.contains_key(&id) || !enough {
            return;
        }
        let Ok(event) = escrow::hold(request, self.now) else { return };
        let escrow = Escrow::apply(None, &event).expect("whatever is decided can follow");
        self.escrows.insert(id, Kept { escrow, owner: request.owner, end: None, entries: 1 });
        self.post(&Event::Escrow { id, owner: request.owner, event, ruling: None });
    }

    fn look(&mut self, caller: usize, intake: &Intake, rope: Option<Span>) {
        let kept = self.escrows.get(&intake.escrow);
        if kept.is_some_and(|kept| accepts(intake, &kept.escrow, kept.owner)) {
            self.calls[caller] = Some(Call::Putting(intake.clone(), rope));
        }
    }

    fn start(&mut self, id: ItemId) {
        self.converge_one(id);
        let Some(started) = self.items.get(&id).and_then(|item| item.start(self.now).ok()) else { return };
        self.items.insert(id, started);
    }

    fn decide(&mut self, caller: usize, id: ItemId, verdict: Verdict) {
        self.converge_one(id);
        let order = self.items.get(&id).and_then(|item| item.order(verdict).ok());
        if let Some(order) = order {
            self.calls[caller] = Some(Call::Ordering(id, verdict, order));
        }
    }

    fn go_on(&mut self, caller: usize) {
        self.calls[caller] = match self.calls[caller].take() {
            None => None,
            Some(Call::Putting(intake, rope)) => {
                self.put(intake, rope);
                None
            }
            Some(Call::Ordering(item, verdict, order)) => Some(match self.carry_out(item, verdict, order) {
                Answer::Done(at) => Call::Ending(item, verdict, at),
                Answer::Otherwise => Call::Converging(item),
            }),
            Some(Call::Ending(item, verdict, at)) => {
                self.end(item, verdict, at);
                self.told.push((item, verdict));
                None
            }
            Some(Call::Converging(item)) => {
                self.converge_one(item);
                None
            }
        };
    }

    /// The guard of every store: an escrow belongs to at most one item that has not ended.
    fn put(&mut self, intake: Intake, rope: Option<Span>) {
        let open = self.items.values().filter(|item| !item.state().is_end());
        let linked = open.clone().any(|item| item.intake.escrow == intake.escrow);
        if linked || self.items.contains_key(&intake.id) {
            return;
        }
        if self.escrows[&intake.escrow].end.is_some() {
            self.rare.insert("an item that came after its escrow had ended");
        }
        self.items.insert(intake.id, enqueue(intake, self.now, rope));
    }

    /// The wallet's door: one key is one word, and the same word twice is the first answer.
    fn carry_out(&mut self, item: ItemId, verdict: Verdict, order: Order) -> Answer {
        let escrow = self.items[&item].intake.escrow;
        let key = (item, verdict.operation());
        if let Some((of, word, at)) = self.keys.get(&key).copied() {
            let same = (of, word) == (escrow, order);
            self.rare.insert(if same { "the same word twice" } else { "the same key for another word" });
            return if same { Answer::Done(at) } else { Answer::Otherwise };
        }
        match self.act(escrow, order.command, Some(order.ruling)) {
            Ok(()) => {
                self.keys.insert(key, (escrow, order, self.now));
                Answer::Done(self.now)
            }
            Err(_) => {
                self.rare.insert("an escrow that had ended otherwise");
                Answer::Otherwise
            }
        }
    }

    fn act(
        &mut self,
        id: EscrowId,
        command: escrow::Command,
        ruling: Option<Ruling>,
    ) -> Result<(), Option<escrow::Refusal>> {
        let kept = self.escrows.get_mut(&id).ok_or(None)?;
        let event = kept.escrow.decide(command)?;
        kept.escrow = Escrow::apply(Some(kept.escrow), &event).expect("whatever is decided can follow");
        assert!(kept.end.replace((event, ruling, self.now)).is_none(), "an escrow ends once");
        kept.entries += 1;
        let owner = kept.owner;
        self.post(&Event::Escrow { id, owner, event, ruling });
        Ok(())
    }

    fn post(&mut self, event: &Event) {
        for (account, change) in event.changes().expect("whatever is decided balances") {
            *self.book.entry(account).or_insert(0) += i128::from(change.units());
        }
    }

    /// The store's `end`: one that has ended so stays as it is. What the wallet has done is never refused.
    fn end(&mut self, id: ItemId, verdict: Verdict, at: Timestamp) {
        let before = self.items[&id].clone();
        if let Stage::Ended(end) = before.stage {
            assert_eq!((end.verdict, end.ended_at), (verdict, at), "{id} ended twice, and not the same way");
            return;
        }
        let after = before.end(verdict, at).expect("an item that has not ended follows its escrow");
        let Stage::Ended(end) = after.stage else { unreachable!("it has ended") };
        self.seen.push((id, end));
        self.unsynced.entry(id).or_insert(before);
        self.items.insert(id, after);
    }

    fn converge_one(&mut self, id: ItemId) {
        let Some(item) = self.items.get(&id) else { return };
        let Some((event, ruling, at)) = self.escrows[&item.intake.escrow].end else { return };
        let Some(after) = item.ended_as(&event, ruling, at) else { return };
        let Stage::Ended(end) = after.stage else { unreachable!("it has ended") };
        let was_queued = item.started_at().is_none();
        if was_queued && end.verdict == Verdict::Finish {
            self.rare.insert("a finish of what nobody took up");
        }
        if self.seen.iter().any(|(seen, _)| *seen == id) {
            self.rare.insert("an end that was lost and told again");
        }
        self.end(id, end.verdict, end.ended_at);
    }

    /// A start is on disk when it is answered, so an item comes back as it was right before its end.
    fn crash(&mut self, mask: u64) {
        let lost = std::mem::take(&mut self.unsynced).into_iter().enumerate();
        for (_, (id, before)) in lost.filter(|(index, _)| mask >> (index % 64) & 1 == 0) {
            self.items.insert(id, before);
        }
        if self.calls.iter().flatten().any(|call| matches!(call, Call::Ending(..))) {
            self.rare.insert("a crash between the wallet's act and the item's end");
        }
        self.calls = [const { None }; CALLERS];
        self.converge();
    }
}

/// Who pays.
pub(crate) fn users() -> Vec<OwnerId> {
    vec![id("alice"), id("amos")]
}

/// Who earns.
pub(crate) fn payees() -> Vec<PayeeId> {
    vec![id("bob"), id("carol")]
}

/// Amounts in millionths.
pub(crate) fn units(amount: CreditUnit) -> i128 {
    i128::from(amount.units())
}
