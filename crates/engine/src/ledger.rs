//! The ledger: decides each request against the book, and writes what was decided into the batch.
//!
//! This is the one place where state changes. It does no waiting and knows no threads or clock: whoever owns it passes in
//! the time and the batch, makes the batch durable, and only then tells the callers.
//!
//! # Invariants
//! - **Once**: a key, a charge and an escrow are looked up before anything is decided, for ever back. The same body gets the
//!   first answer; another body is refused.
//! - What is decided is written to the batch and posted to the book in one step, or not at all.
//! - A replay checks what it applies: an entry that does not lead to the balances it names is corruption.

use crate::book::{Book, FrozenBook, OpenCharge, OpenEscrow};
use crate::error::Refusal;
use crate::keys::{Job, KeyHash, Keys};
use crate::record::{Draft, Record};
use crate::records::Records;
use crate::recovery::StartError;
use crate::request::{Answer, Command, Hashes, LifeState, Outcome, Receipt, Request};
use crate::table::Row;
use holdfast_domain::charge::{self, Charge, Context, Reserve};
use holdfast_domain::escrow::{self, Escrow};
use holdfast_domain::{ChargeId, EscrowId, Event, Key, Label, OwnerId, Timestamp};
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

/// The book, the key index and the records: all that a decision looks at.
pub struct Ledger<D: Disk> {
    pub(crate) book: Book,
    pub(crate) keys: Keys<D>,
    pub(crate) records: Records<D>,
    limits: Limits,
    /// Memory for hashing bodies.
    scratch: Vec<u8>,
}

/// A request on its way through a decision.
struct Call<'a> {
    request: &'a Request,
    hashes: &'a Hashes,
    now: Timestamp,
}

/// The charge or escrow that an entry moves on.
enum Life {
    None,
    Charge(Option<Charge>),
    Escrow(Option<Escrow>),
}

/// A life as it stands before an entry.
struct Before {
    life: Life,
    /// Its newest record.
    last: Option<Location>,
    /// The owner's row; `None` for a new owner.
    row: Option<Row>,
}

/// A charge or escrow that was found, open or closed.
pub(crate) struct Found<L> {
    pub(crate) life: L,
    /// Its newest record.
    pub(crate) last: Location,
    /// Its owner's.
    pub(crate) row: Row,
}

/// The life after an entry.
enum Next {
    None,
    Charge(ChargeId, Charge),
    Escrow(EscrowId, Escrow),
}

/// An entry that cannot follow what is before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {offset} does not follow from the entries before it: {what}")]
pub struct Corrupt {
    /// Which entry.
    pub offset: u64,
    /// What does not follow.
    pub what: &'static str,
}

impl<D: Disk> Ledger<D> {
    pub(crate) fn new(disk: D, book: Book, keys: Keys<D>, limits: Limits) -> Self {
        Self { book, keys, records: Records::new(disk), limits, scratch: Vec::new() }
    }

    /// Decides one request. What it does is in `batch` when this returns, and is the caller's to make durable before
    /// telling anybody.
    pub fn decide(&mut self, request: &Request, now: Timestamp, batch: &mut Batch) -> Answer {
        let hashes = Hashes::of(request, &mut self.scratch);
        self.decide_hashed(request, &hashes, now, batch)
    }

    /// Decides one request whose hashes have been worked out.
    pub(crate) fn decide_hashed(
        &mut self,
        request: &Request,
        hashes: &Hashes,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let call = Call { request, hashes, now: now.max(self.book.last_at) };
        match &request.key {
            Some(key) => {
                if let Some(answer) = self.known_key(key, &call, batch)? {
                    return Ok(answer);
                }
            }
            None if request.command.needs_key() => return Err(Refusal::KeyRequired),
            None => {}
        }
        match &request.command {
            Command::Mint { owner, amount, reason } => {
                let event = holdfast_domain::mint(*owner, *amount, reason.clone()).map_err(|_| Refusal::ZERO)?;
                let before = Before { life: Life::None, last: None, row: self.book.owner_row(*owner) };
                self.write(&call, Box::new(event), &before, batch)
            }
            Command::Reserve { charge, reserve } => self.reserve(&call, *charge, reserve, batch),
            Command::Charge { charge, command } => self.move_charge(&call, *charge, command, batch),
            Command::Hold { escrow, hold } => self.hold(&call, *escrow, hold, batch),
            Command::Escrow { escrow, command } => self.move_escrow(&call, *escrow, *command, batch),
        }
    }

    /// The answer that a caller's key had before.
    fn known_key(&self, key: &Key, call: &Call<'_>, batch: &Batch) -> Result<Option<Outcome>, Refusal> {
        let Some(hash) = call.hashes.key else { return Ok(None) };
        let Some(location) = self.find(hash)? else { return Ok(None) };
        let record = self.records.read(location, batch)?;
        if record.key == Some(*key) && record.fingerprint == call.hashes.fingerprint {
            Ok(Some(Outcome::Replayed(record.into_receipt())))
        } else {
            Err(Refusal::KeyReused)
        }
    }

    fn find(&self, key: KeyHash) -> Result<Option<Location>, Refusal> {
        self.keys.get(key).map_err(|error| Refusal::Unreadable(error.to_string()))
    }

    fn reserve(&mut self, call: &Call<'_>, id: ChargeId, reserve: &Reserve, batch: &mut Batch) -> Answer {
        let key = call.hashes.life;
        let last = self.book.charges.get(key).map(|open| open.last);
        if let Some(last) = last.map_or_else(|| self.find(key), |last| Ok(Some(last)))? {
            return self.repeated(last, call, batch)?.ok_or(Refusal::KeyReused);
        }
        let row = self.book.owner_row(reserve.owner).ok_or(Refusal::UnknownAccount)?;
        let open = self.book.owners.row(row).open_holds;
        if open >= self.limits.open_holds {
            return Err(Refusal::TooManyOpenHolds { open });
        }
        let event = charge::reserve(reserve, call.now)?;
        let before = Before { life: Life::Charge(None), last: None, row: Some(row) };
        self.write(call, Box::new(Event::Charge { id, owner: reserve.owner, event }), &before, batch)
    }

    fn move_charge(&mut self, call: &Call<'_>, id: ChargeId, command: &charge::Command, batch: &mut Batch) -> Answer {
        let found = self.charge(call.hashes.life, id, batch)?.ok_or(Refusal::UnknownCharge)?;
        let Found { life: charge, last, row } = found;
        let available = self.book.owners.row(row).available;
        match charge.decide(command, &Context { now: call.now, available }) {
            Ok(event) => {
                let event = Box::new(Event::Charge { id, owner: self.book.owner_name(row), event });
                let before = Before { life: Life::Charge(Some(charge)), last: Some(last), row: Some(row) };
                self.write(call, event, &before, batch)
            }
            Err(refusal @ charge::Refusal::InvalidState(_)) => self.repeated(last, call, batch)?.ok_or(refusal.into()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn hold(&mut self, call: &Call<'_>, id: EscrowId, hold: &escrow::Hold, batch: &mut Batch) -> Answer {
        let key = call.hashes.life;
        if self.book.escrows.get(key).is_some() || self.find(key)?.is_some() {
            return Err(Refusal::KeyReused);
        }
        let row = self.book.owner_row(hold.owner).ok_or(Refusal::UnknownAccount)?;
        let event = Event::Escrow { id, owner: hold.owner, event: escrow::hold(hold)? };
        let before = Before { life: Life::Escrow(None), last: None, row: Some(row) };
        self.write(call, Box::new(event), &before, batch)
    }

    fn move_escrow(&mut self, call: &Call<'_>, id: EscrowId, command: escrow::Command, batch: &mut Batch) -> Answer {
        let found = self.escrow(call.hashes.life, id, batch)?.ok_or(Refusal::UnknownEscrow)?;
        let Found { life: escrow, last, row } = found;
        match escrow.decide(command) {
            Ok(event) => {
                let event = Box::new(Event::Escrow { id, owner: self.book.owner_name(row), event });
                let before = Before { life: Life::Escrow(Some(escrow)), last: Some(last), row: Some(row) };
                self.write(call, event, &before, batch)
            }
            Err(refusal @ escrow::Refusal::AlreadyProcessed(_)) => {
                self.repeated(last, call, batch)?.ok_or(refusal.into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The answer that the same body had earlier in the same life.
    ///
    /// Only a request without a key is known by its body. One with a key that was never used is another request: were it
    /// answered like the first, its key would have an answer and not be remembered.
    fn repeated(&self, last: Location, call: &Call<'_>, batch: &Batch) -> Result<Option<Outcome>, Refusal> {
        if call.request.key.is_some() {
            return Ok(None);
        }
        let records = self.records.life(last, batch)?;
        let first = records.into_iter().find(|record| record.fingerprint == call.hashes.fingerprint);
        Ok(first.map(|record| Outcome::Replayed(record.into_receipt())))
    }

    /// A charge, open or closed.
    pub(crate) fn charge(&self, key: KeyHash, id: ChargeId, batch: &Batch) -> Result<Option<Found<Charge>>, Refusal> {
        if let Some(OpenCharge { id: open, hold, last, row }) = self.book.charges.get(key) {
            return Ok((*open == id).then_some(Found { life: Charge::Held(*hold), last: *last, row: *row }));
        }
        let Some(last) = self.find(key)? else { return Ok(None) };
        let Some((life, owner)) = self.records.charge(id, last, batch)? else { return Ok(None) };
        Ok(Some(Found { life, last, row: self.book.owner_row(owner).ok_or(Refusal::UnknownAccount)? }))
    }

    /// An escrow, open or closed.
    pub(crate) fn escrow(&self, key: KeyHash, id: EscrowId, batch: &Batch) -> Result<Option<Found<Escrow>>, Refusal> {
        if let Some(OpenEscrow { id: open, escrowed, last, row }) = self.book.escrows.get(key) {
            return Ok((*open == id).then_some(Found { life: Escrow::Held(*escrowed), last: *last, row: *row }));
        }
        let Some(last) = self.find(key)? else { return Ok(None) };
        let Some((life, owner)) = self.records.escrow(id, last, batch)? else { return Ok(None) };
        Ok(Some(Found { life, last, row: self.book.owner_row(owner).ok_or(Refusal::UnknownAccount)? }))
    }

    /// The place of the entry that a caller's key made.
    pub(crate) fn key_location(&self, key: &Key) -> Result<Option<Location>, Refusal> {
        self.find(KeyHash::of_key(key))
    }

    /// Admits an entry if its guards hold: into the batch and into the book, in one step.
    fn write(&mut self, call: &Call<'_>, event: Box<Event>, before: &Before, batch: &mut Batch) -> Answer {
        let postings = event.postings().map_err(|_| Refusal::OUT_OF_RANGE)?;
        let prepared = self.book.prepare(&event, &postings, before.row)?;
        let next = advance(&before.life, &event).ok_or(Refusal::OUT_OF_RANGE)?;
        let (location, offset) = batch.next();
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
        batch.push(|bytes| draft.encode(bytes)).map_err(|_| Refusal::OUT_OF_RANGE)?;
        let row = self.book.post(&prepared, &event, offset, call.now);
        self.settle(call.hashes.life, &next, location, row);
        self.remember(call.hashes, state, location);
        if self.keys.is_full() {
            self.keys.freeze(offset);
        }
        let (available, held) = (owner.available.balance, owner.held);
        Ok(Outcome::Applied(Receipt { offset, at: call.now, event, state, available, held }))
    }

    /// Puts a life into the book, or takes it out when it is closed. `row` is its owner's.
    fn settle(&mut self, key: KeyHash, next: &Next, location: Location, row: Row) {
        match next {
            Next::None => {}
            Next::Charge(id, charge) => self.book.put_charge(key, *id, charge, location, row),
            Next::Escrow(id, escrow) => self.book.put_escrow(key, *id, escrow, location, row),
        }
    }

    /// Notes where a closed life and a caller's key are found.
    fn remember(&mut self, hashes: &Hashes, state: LifeState, location: Location) {
        if state.is_closed() {
            self.keys.insert(hashes.life, location);
        }
        if let Some(key) = hashes.key {
            self.keys.insert(key, location);
        }
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

    /// When the next hold's time comes.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.book.next_due()
    }

    /// Keeps a closed batch readable until [`Ledger::durable`] says that it is on the disk.
    pub fn closed(&mut self, batch: &Batch) {
        self.records.keep(batch);
    }

    /// Everything before `end` is on the disk.
    pub fn durable(&mut self, end: Location) {
        self.records.durable(end);
    }

    /// Applies an entry that the journal already holds, and checks that it follows. `known_keys` is the entry up to which
    /// the key index has been read back from its files.
    pub(crate) fn replay(
        &mut self,
        record: &Record,
        location: Location,
        batch: &Batch,
        known_keys: u64,
    ) -> Result<(), StartError> {
        let corrupt = |what| StartError::Corrupt(Corrupt { offset: record.offset, what });
        let postings = record.event.postings().map_err(|_| corrupt("its postings do not balance"))?;
        let row = self.book.owner_row(record.event.owner());
        let prepared = self.book.prepare(&record.event, &postings, row).map_err(|_| corrupt("it breaks a floor"))?;
        if !Book::agrees(&prepared, record) {
            return Err(corrupt("it leads to other balances than it names"));
        }
        let hashes = hashes_of(record);
        // What cannot be read now may be read later: that is not for the journal to answer for.
        let unread = |refusal: Refusal| StartError::Io(io::Error::other(refusal.to_string()));
        let before = self.life_before(record, hashes.life, batch).map_err(unread)?;
        if before.last.is_some() && before.row != row {
            return Err(corrupt("it names another owner than the record before it"));
        }
        let next =
            advance(&before.life, &record.event).ok_or(corrupt("its event cannot follow the state before it"))?;
        if (state_of(&next), before.last) != (record.state, record.life_previous) {
            return Err(corrupt("it names another state, or another record before it"));
        }
        if record.at < self.book.last_at {
            return Err(corrupt("it is older than the entry before it"));
        }
        let row = self.book.post(&prepared, &record.event, record.offset, record.at);
        self.settle(hashes.life, &next, location, row);
        if record.offset > known_keys {
            self.index(record, &hashes, location);
        }
        Ok(())
    }

    /// The life that a record moved on, as it stood before it. The index may know a later state already, so a closed life
    /// is read from the place that the record itself names.
    fn life_before(&self, record: &Record, key: KeyHash, batch: &Batch) -> Result<Before, Refusal> {
        let row = |owner: OwnerId| self.book.owner_row(owner);
        Ok(match &record.event {
            Event::Minted(_) => Before { life: Life::None, last: None, row: None },
            Event::Charge { id, .. } => match (self.book.charges.get(key), record.life_previous) {
                (Some(OpenCharge { hold, last, row, .. }), _) => {
                    Before { life: Life::Charge(Some(Charge::Held(*hold))), last: Some(*last), row: Some(*row) }
                }
                (None, Some(last)) => match self.records.charge(*id, last, batch)? {
                    Some((charge, owner)) => {
                        Before { life: Life::Charge(Some(charge)), last: Some(last), row: row(owner) }
                    }
                    None => Before { life: Life::Charge(None), last: None, row: None },
                },
                (None, None) => Before { life: Life::Charge(None), last: None, row: None },
            },
            Event::Escrow { id, .. } => match (self.book.escrows.get(key), record.life_previous) {
                (Some(OpenEscrow { escrowed, last, row, .. }), _) => {
                    Before { life: Life::Escrow(Some(Escrow::Held(*escrowed))), last: Some(*last), row: Some(*row) }
                }
                (None, Some(last)) => match self.records.escrow(*id, last, batch)? {
                    Some((escrow, owner)) => {
                        Before { life: Life::Escrow(Some(escrow)), last: Some(last), row: row(owner) }
                    }
                    None => Before { life: Life::Escrow(None), last: None, row: None },
                },
                (None, None) => Before { life: Life::Escrow(None), last: None, row: None },
            },
        })
    }

    /// Puts into the key index what one record of the journal says, without applying it.
    pub(crate) fn reindex(&mut self, record: &Record, location: Location) {
        self.index(record, &hashes_of(record), location);
    }

    fn index(&mut self, record: &Record, hashes: &Hashes, location: Location) {
        self.remember(hashes, record.state, location);
        if self.keys.is_full() {
            self.keys.freeze(record.offset);
        }
    }

    /// The book as it stands, for a snapshot. The keys are set aside with it, so that a start from the snapshot finds them.
    pub(crate) fn freeze(&mut self, through: u64) -> FrozenBook {
        self.keys.freeze(through);
        self.book.freeze()
    }

    /// Does one piece of upkeep of the key index, given that the journal is durable up to and with entry `durable`; `false`
    /// if there is none to do. For those who own the ledger alone; the engine does the slow part without its lock.
    pub fn tidy_keys(&mut self, disk: &D, durable: u64) -> io::Result<bool> {
        let Some(job) = self.keys.job(durable) else { return Ok(false) };
        let run = Keys::execute(disk, &job)?;
        let obsolete = self.keys.install(&job, run);
        Keys::remove(disk, &obsolete)?;
        Ok(true)
    }

    /// The next piece of upkeep of the key index.
    pub(crate) fn keys_job(&self, durable: u64) -> Option<Job<D::File>> {
        self.keys.job(durable)
    }
}

/// What the request behind a record was known by.
fn hashes_of(record: &Record) -> Hashes {
    let life = match &record.event {
        Event::Minted(_) => KeyHash(0),
        Event::Charge { id, .. } => KeyHash::of_charge(*id),
        Event::Escrow { id, .. } => KeyHash::of_escrow(*id),
    };
    Hashes { fingerprint: record.fingerprint, key: record.key.as_ref().map(KeyHash::of_key), life }
}

/// The life after `event`. `None` if the event cannot follow.
fn advance(life: &Life, event: &Event) -> Option<Next> {
    match (life, event) {
        (Life::None, Event::Minted(_)) => Some(Next::None),
        (Life::Charge(before), Event::Charge { id, event, .. }) => {
            Charge::apply(*before, event).ok().map(|next| Next::Charge(*id, next))
        }
        (Life::Escrow(before), Event::Escrow { id, event, .. }) => {
            Escrow::apply(*before, event).ok().map(|next| Next::Escrow(*id, next))
        }
        (
            Life::None | Life::Charge(_) | Life::Escrow(_),
            Event::Minted(_) | Event::Charge { .. } | Event::Escrow { .. },
        ) => None,
    }
}

const fn state_of(next: &Next) -> LifeState {
    match next {
        Next::None => LifeState::None,
        Next::Charge(_, charge) => LifeState::Charge(charge.state()),
        Next::Escrow(_, escrow) => LifeState::Escrow(escrow.state()),
    }
}
