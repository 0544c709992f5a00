//! The ledger: decides each request against the book, and writes what was decided into the batch.
//!
//! This is the one place where state changes. It does no waiting and knows no threads or clock: whoever owns it passes in
//! the time and the batch, makes the batch durable, and only then tells the callers.
//!
//! # Invariants
//! - **Once**: a key, a charge and an escrow are looked up before anything is decided, for ever back. The same body gets the
//!   first answer; another body is refused.
//! - What is decided is written to the batch and posted to the book in one step, or not at all.

use crate::archive::{Archive, OnDisk, Sheet};
use crate::book::{Book, Budgeted, FrozenBook, Standing};
use crate::error::Refusal;
use crate::keys::{Job, KeyHash, Keys};
use crate::life::{Before, Found, Life, Next, advance, state_of};
use crate::record::{Draft, Record};
use crate::records::Records;
use crate::request::{Answer, Command, Hashes, LifeState, Outcome, Receipt, Request};
use holdfast_domain::charge::{self, Charge, Context, Reserve};
use holdfast_domain::escrow::{self, Escrow, Ruling};
use holdfast_domain::{ChargeId, CreditUnit, Day, EscrowId, Event, Key, Label, Place, Timestamp};
use holdfast_journal::{Batch, Disk, Location};
use std::io;

/// The most open reservations of one account, unless configured.
pub const OPEN_HOLDS_MAX: u32 = 1_000;

/// Bounds that a deployment sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most open reservations of one account.
    pub open_holds: u32,
}

/// The book, the keys and the records: all that a decision looks at.
pub struct Ledger<A> {
    pub(crate) book: Book,
    pub(crate) archive: A,
    limits: Limits,
    /// Memory for hashing bodies.
    scratch: Vec<u8>,
    /// Memory for the answer to a single request.
    single: Vec<Answer>,
}

/// A request on its way through a decision.
struct Call<'a> {
    request: &'a Request,
    hashes: &'a Hashes,
    now: Timestamp,
}

/// Where entries are written, and their answers.
type Desk<'a, A> = (&'a mut <A as Archive>::Sheet, &'a mut Vec<Answer>);

/// How a request that was not refused has been told.
enum Told {
    /// By an entry; the answer stands with those before it.
    Written,
    /// By an earlier one's.
    Known(Outcome),
}

impl<A: Archive> Ledger<A> {
    pub(crate) const fn over(archive: A, book: Book, limits: Limits) -> Self {
        Self { book, archive, limits, scratch: Vec::new(), single: Vec::new() }
    }

    /// Decides one request. What it does is in `sheet` when this returns, and is the caller's to make durable before
    /// telling anybody.
    pub fn decide(&mut self, request: &Request, now: Timestamp, sheet: &mut A::Sheet) -> Answer {
        let hashes = Hashes::of(request, &mut self.scratch);
        self.decide_hashed(request, &hashes, now, sheet)
    }

    /// Looks up what some requests will look at, and forgets it: the memory is far away, and what is asked for together comes
    /// together. Decided one by one, each would wait for its own.
    pub(crate) fn approach<'a>(&self, requests: impl Iterator<Item = &'a Hashes>) {
        for Hashes { key, life, .. } in requests {
            match self.book.charges.get(*life) {
                // What is open is not looked for among what is closed: most likely it is about to be closed.
                Some(open) => {
                    std::hint::black_box(open.glance());
                    self.archive.approach_note(*life);
                }
                None => self.archive.approach(*life),
            }
            if let Some(key) = key {
                self.archive.approach(*key);
            }
        }
    }

    /// Decides one request whose hashes have been worked out.
    pub(crate) fn decide_hashed(
        &mut self,
        request: &Request,
        hashes: &Hashes,
        now: Timestamp,
        sheet: &mut A::Sheet,
    ) -> Answer {
        let mut single = std::mem::take(&mut self.single);
        self.decide_into(request, hashes, now, (sheet, &mut single));
        let answer = single.pop().expect("one request has one answer");
        self.single = single;
        answer
    }

    /// The same, with the answer put where the caller has those of a batch: it is written there once and not moved, because a
    /// processor that reads back what it has just written in other pieces waits for everything that it wrote before.
    pub(crate) fn decide_into(
        &mut self,
        request: &Request,
        hashes: &Hashes,
        now: Timestamp,
        (sheet, answers): (&mut A::Sheet, &mut Vec<Answer>),
    ) {
        let call = Call { request, hashes, now: now.max(self.book.last_at) };
        match self.decide_call(&call, (sheet, answers)) {
            Ok(Told::Written) => {}
            Ok(Told::Known(outcome)) => answers.push(Ok(outcome)),
            Err(refusal) => answers.push(Err(refusal)),
        }
    }

    fn decide_call(&mut self, call: &Call<'_>, (sheet, answers): Desk<'_, A>) -> Result<Told, Refusal> {
        let request = call.request;
        match &request.key {
            Some(key) => {
                if let Some(known) = self.known_key(key, call, sheet)? {
                    return Ok(Told::Known(known));
                }
            }
            None if request.command.needs_key() => return Err(Refusal::KeyRequired),
            None => {}
        }
        let desk = (sheet, answers);
        match &request.command {
            Command::Mint { owner, amount, reason } => {
                let event = holdfast_domain::mint(*owner, *amount, reason.clone()).map_err(|_| Refusal::ZERO)?;
                let before = Before::nothing(Life::None, self.book.owner_row(*owner));
                self.write(call, Box::new(event), &before, desk)
            }
            Command::Reserve { charge, reserve } => self.reserve(call, charge, reserve, desk),
            Command::Charge { charge, command } => self.move_charge(call, charge, command, desk),
            Command::Hold { escrow, hold } => self.hold(call, *escrow, hold, desk),
            Command::Escrow { escrow, command, ruling } => self.move_escrow(call, *escrow, (*command, *ruling), desk),
        }
    }

    /// The answer that a caller's key had before.
    fn known_key(&self, key: &Key, call: &Call<'_>, sheet: &A::Sheet) -> Result<Option<Outcome>, Refusal> {
        let Some(hash) = call.hashes.key else { return Ok(None) };
        let Some(location) = self.archive.find(hash)? else { return Ok(None) };
        let record = self.archive.read(location, sheet)?;
        if record.key == Some(*key) && record.fingerprint == call.hashes.fingerprint {
            Ok(Some(Outcome::Replayed(record.into_receipt())))
        } else {
            Err(Refusal::KeyReused)
        }
    }

    fn reserve(
        &mut self,
        call: &Call<'_>,
        id: &ChargeId,
        reserve: &Reserve,
        desk: Desk<'_, A>,
    ) -> Result<Told, Refusal> {
        let key = call.hashes.life;
        let last = self.book.charges.get(key).map(|open| open.last);
        if let Some(last) = last.map_or_else(|| self.archive.find(key), |last| Ok(Some(last)))? {
            return self.repeated(last, call, desk.0)?.ok_or(Refusal::KeyReused);
        }
        let row = self.book.owner_row(reserve.owner).ok_or(Refusal::UnknownAccount)?;
        let open = self.book.owners.row(row).open_holds;
        if open >= self.limits.open_holds {
            return Err(Refusal::TooManyOpenHolds { open });
        }
        let event = charge::reserve(reserve, call.now)?;
        self.book.check_budgets(reserve.budgets.as_slice(), reserve.amount, call.now.day())?;
        let before = Before::nothing(Life::Charge(None), Some(row));
        self.write(call, Box::new(Event::Charge { id: *id, owner: reserve.owner, event }), &before, desk)
    }

    fn move_charge(
        &mut self,
        call: &Call<'_>,
        id: &ChargeId,
        command: &charge::Command,
        desk: Desk<'_, A>,
    ) -> Result<Told, Refusal> {
        let found = self.charge(call.hashes.life, id, desk.0)?.ok_or(Refusal::UnknownCharge)?;
        let Found { life: charge, standing } = found;
        let Standing { last, row, .. } = standing;
        let available = self.book.owners.row(row).available;
        match charge.decide(command, &Context { now: call.now, available }) {
            Ok(event) => {
                if let charge::Event::Increased { amount } = event {
                    self.check_increase(&standing, amount, call, desk.0)?;
                }
                let event = Box::new(Event::Charge { id: *id, owner: self.book.owner_name(row), event });
                self.write(call, event, &Before::of(Life::Charge(Some(charge)), standing), desk)
            }
            Err(refusal @ charge::Refusal::InvalidState(_)) => self.repeated(last, call, desk.0)?.ok_or(refusal.into()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Checks the budgets of a hold that is to grow: its first record has their limits.
    fn check_increase(
        &self,
        standing: &Standing,
        amount: CreditUnit,
        call: &Call<'_>,
        sheet: &A::Sheet,
    ) -> Result<(), Refusal> {
        if standing.budgeted.rows().next().is_none() {
            return Ok(());
        }
        let records = self.archive.life(standing.last, sheet)?;
        let budgets = records.last().map_or(&[][..], |record| record.event.budgets());
        self.book.check_budgets(budgets, amount, call.now.day())
    }

    fn hold(&mut self, call: &Call<'_>, id: EscrowId, hold: &escrow::Hold, desk: Desk<'_, A>) -> Result<Told, Refusal> {
        let key = call.hashes.life;
        if self.book.escrows.get(key).is_some() || self.archive.find(key)?.is_some() {
            return Err(Refusal::KeyReused);
        }
        let row = self.book.owner_row(hold.owner).ok_or(Refusal::UnknownAccount)?;
        let event = Event::Escrow { id, owner: hold.owner, event: escrow::hold(hold, call.now)?, ruling: None };
        let before = Before::nothing(Life::Escrow(None), Some(row));
        self.write(call, Box::new(event), &before, desk)
    }

    fn move_escrow(
        &mut self,
        call: &Call<'_>,
        id: EscrowId,
        (command, ruling): (escrow::Command, Option<Ruling>),
        desk: Desk<'_, A>,
    ) -> Result<Told, Refusal> {
        let found = self.escrow(call.hashes.life, id, desk.0)?.ok_or(Refusal::UnknownEscrow)?;
        let Found { life: escrow, standing } = found;
        let Standing { last, row, .. } = standing;
        match escrow.decide(command) {
            Ok(event) => {
                let event = Box::new(Event::Escrow { id, owner: self.book.owner_name(row), event, ruling });
                self.write(call, event, &Before::of(Life::Escrow(Some(escrow)), standing), desk)
            }
            Err(refusal @ escrow::Refusal::AlreadyProcessed(_)) => {
                self.repeated(last, call, desk.0)?.ok_or(refusal.into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The answer that the same body had earlier in the same life.
    ///
    /// Only a request without a key is known by its body. One with a key that was never used is another request: were it
    /// answered like the first, its key would have an answer and not be remembered.
    fn repeated(&self, last: Location, call: &Call<'_>, sheet: &A::Sheet) -> Result<Option<Told>, Refusal> {
        if call.request.key.is_some() {
            return Ok(None);
        }
        let records = self.archive.life(last, sheet)?;
        let first = records.into_iter().find(|record| record.fingerprint == call.hashes.fingerprint);
        Ok(first.map(|record| Told::Known(Outcome::Replayed(record.into_receipt()))))
    }

    /// A charge, open or closed. Inlined, as is all that gives long values on the way of every entry: they are not written only to be
    /// read back.
    #[inline(always)]
    pub(crate) fn charge(
        &self,
        key: KeyHash,
        id: &ChargeId,
        sheet: &A::Sheet,
    ) -> Result<Option<Found<Charge>>, Refusal> {
        if let Some(open) = self.book.charges.get(key) {
            let (life, standing) = (Charge::Held(open.hold), open.standing());
            return Ok((open.id == *id).then_some(Found { life, standing }));
        }
        self.closed_charge(key, *id, sheet)
    }

    #[inline(never)]
    fn closed_charge(&self, key: KeyHash, id: ChargeId, sheet: &A::Sheet) -> Result<Option<Found<Charge>>, Refusal> {
        let Some(last) = self.archive.find(key)? else { return Ok(None) };
        let Some((life, first)) = self.archive.charge(id, last, sheet)? else { return Ok(None) };
        Ok(Some(Found { life, standing: self.standing(last, &first)? }))
    }

    /// An escrow, open or closed.
    pub(crate) fn escrow(
        &self,
        key: KeyHash,
        id: EscrowId,
        sheet: &A::Sheet,
    ) -> Result<Option<Found<Escrow>>, Refusal> {
        if let Some(open) = self.book.escrows.get(key) {
            let (life, standing) = (Escrow::Held(open.escrowed), open.standing());
            return Ok((open.id == id).then_some(Found { life, standing }));
        }
        let Some(last) = self.archive.find(key)? else { return Ok(None) };
        let Some((life, first)) = self.archive.escrow(id, last, sheet)? else { return Ok(None) };
        Ok(Some(Found { life, standing: self.standing(last, &first)? }))
    }

    /// What the book knows of a closed life that `first` began.
    pub(crate) fn standing(&self, last: Location, first: &Record) -> Result<Standing, Refusal> {
        let row = self.book.owner_row(first.event.owner()).ok_or(Refusal::UnknownAccount)?;
        let budgeted = self.book.known_budgets(first.event.budgets(), first.at.day());
        Ok(Standing { last, row, budgeted })
    }

    /// The place of the entry that a caller's key made.
    pub(crate) fn key_location(&self, key: &Key) -> Result<Option<Location>, Refusal> {
        self.archive.find(KeyHash::of_key(key))
    }

    /// Admits an entry if its guards hold: into the sheet and into the book, in one step.
    fn write(
        &mut self,
        call: &Call<'_>,
        event: Box<Event>,
        before: &Before,
        (sheet, answers): Desk<'_, A>,
    ) -> Result<Told, Refusal> {
        let postings = event.postings().map_err(|_| Refusal::OUT_OF_RANGE)?;
        let prepared = self.book.prepare(&event, &postings, before.row)?;
        let next = advance(&before.life, &event).ok_or(Refusal::OUT_OF_RANGE)?;
        let budgeted = self.budgeted(&event, before, call.now.day());
        let spent = self.book.spend(&budgeted, postings.at(Place::Available), call.now.day())?;
        let (location, offset) = sheet.next();
        let (owner, state) = (prepared.owner_link(), state_of(&next));
        let draft = Draft {
            offset,
            at: call.now,
            actor: &call.request.actor,
            key: call.request.key.as_ref(),
            fingerprint: call.hashes.fingerprint,
            event: &event,
            state,
            owner,
            payee: prepared.payee_link(),
            life_previous: before.last,
        };
        sheet.push(|bytes| draft.encode(bytes)).map_err(|_| Refusal::OUT_OF_RANGE)?;
        let row = self.book.post(&prepared, &event, offset, call.now);
        self.book.post_spent(&spent);
        self.settle(call.hashes.life, &event, &next, Standing { last: location, row, budgeted });
        self.remember(call.hashes, state, location);
        self.archive.noted(offset);
        let (available, held) = (owner.available.balance, owner.held);
        answers.push(Ok(Outcome::Applied(Receipt { offset, at: call.now, event, state, available, held })));
        Ok(Told::Written)
    }

    /// What the charge that an event is about counts against.
    pub(crate) fn budgeted(&mut self, event: &Event, before: &Before, day: Day) -> Budgeted {
        match event.budgets() {
            [] => before.budgeted,
            budgets => self.book.count_against(budgets, day),
        }
    }

    /// Puts a life into the book, or takes it out when it is closed.
    pub(crate) fn settle(&mut self, key: KeyHash, event: &Event, next: &Next, standing: Standing) {
        match (event, next) {
            (Event::Charge { id, .. }, Next::Charge(charge)) => self.book.put_charge(key, *id, charge, standing),
            (Event::Escrow { id, .. }, Next::Escrow(escrow)) => {
                self.book.put_escrow(key, *id, escrow, standing.last, standing.row);
            }
            (Event::Minted(_), Next::None) => {}
            (Event::Minted(_) | Event::Charge { .. } | Event::Escrow { .. }, _) => {
                unreachable!("`advance` makes no such pair")
            }
        }
    }

    /// Notes where a closed life and a caller's key are found.
    pub(crate) fn remember(&mut self, hashes: &Hashes, state: LifeState, location: Location) {
        if state.is_closed() {
            self.archive.note(hashes.life, location);
        }
        if let Some(key) = hashes.key {
            self.archive.note(key, location);
        }
    }
}

impl<D: Disk> Ledger<OnDisk<D>> {
    pub(crate) const fn new(disk: D, book: Book, keys: Keys<D>, limits: Limits) -> Self {
        Self::over(OnDisk { keys, records: Records::new(disk) }, book, limits)
    }

    /// Writes an entry for each hold whose time has come, as far as there is room.
    pub fn expire(&mut self, now: Timestamp, actor: Label, batch: &mut Batch, at_most: usize) -> usize {
        let now = now.max(self.book.last_at);
        let mut expired = 0;
        for moment in self.book.take_due(now, at_most) {
            let charge = self.book.charges.get(moment.1).map(|open| open.id).filter(|_| batch.has_room());
            let command = charge.map(|charge| Command::Charge { charge, command: charge::Command::Expire });
            let answer = command.map(|command| self.decide(&Request { key: None, actor, command }, now, batch));
            match answer {
                Some(Ok(_)) => expired += 1,
                Some(Err(_)) | None => self.book.put_back(moment),
            }
        }
        expired
    }

    /// Whether a hold's time may have come; if not, none has.
    pub(crate) fn may_be_due(&self, now: Timestamp) -> bool {
        self.book.may_be_due(now)
    }

    /// When the next hold's time comes. Looks at all of them.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.book.next_due()
    }

    /// Keeps a closed batch readable until [`Ledger::durable`] says that it is on the disk.
    pub fn closed(&mut self, batch: &Batch) {
        self.archive.records.keep(batch);
    }

    /// Everything before `end` is on the disk.
    pub fn durable(&mut self, end: Location) {
        self.archive.records.durable(end);
    }

    /// The book as it stands, for a snapshot. The keys are set aside with it, so that a start from the snapshot finds them.
    pub(crate) fn freeze(&mut self, through: u64) -> FrozenBook {
        self.archive.keys.freeze(through);
        self.book.freeze()
    }

    /// Does one piece of upkeep of the key index, given that the journal is durable up to and with entry `durable`; `false`
    /// if there is none to do. For those who own the ledger alone; the engine does the slow part without its lock.
    pub fn tidy_keys(&mut self, disk: &D, durable: u64) -> io::Result<bool> {
        let Some(job) = self.archive.keys.job(durable) else { return Ok(false) };
        let run = Keys::execute(disk, &job)?;
        let obsolete = self.archive.keys.install(job, run);
        Keys::remove(disk, &obsolete)?;
        Ok(true)
    }

    /// The next piece of upkeep of the key index.
    pub(crate) fn keys_job(&self, durable: u64) -> Option<Job<D::File>> {
        self.archive.keys.job(durable)
    }
}
