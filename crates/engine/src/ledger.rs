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

use crate::book::{Book, FrozenBook};
use crate::error::Refusal;
use crate::keys::{Job, KeyHash, Keys};
use crate::record::Record;
use crate::records::Records;
use crate::request::{Answer, Command, Fingerprint, LifeState, Outcome, Request, fingerprint};
use crate::table::Row;
use holdfast_domain::charge::{self, Charge, Context, Reserve};
use holdfast_domain::escrow::{self, Escrow};
use holdfast_domain::{ChargeId, CreditUnit, Entry, EscrowId, Event, Key, Label, OwnerId, Reason, Timestamp};
use holdfast_journal::{Batch, Disk, Location};
use std::io;

/// The namespace of callers' keys in the key index.
const KEYS: u8 = b'k';
/// The namespace of charges in the key index.
const CHARGES: u8 = b'c';
/// The namespace of escrows in the key index.
const ESCROWS: u8 = b'e';

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

/// What is about to be written: everything of a record but its place and its balances.
struct Draft {
    actor: Label,
    key: Option<Key>,
    fingerprint: Fingerprint,
    event: Event,
    life: Life,
    /// The owner's row; `None` for a new owner.
    row: Option<Row>,
}

/// The life that an entry moves on.
enum Life {
    None,
    Charge(KeyHash, Option<(Charge, Location)>),
    Escrow(KeyHash, Option<(Escrow, Location)>),
}

/// The life after an entry.
enum Next {
    None,
    Charge(KeyHash, ChargeId, Charge),
    Escrow(KeyHash, EscrowId, Escrow),
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
        let now = now.max(self.book.last_at);
        let fingerprint = fingerprint(&request.command, &mut self.scratch);
        match &request.key {
            Some(key) => {
                if let Some(answer) = self.known_key(key, fingerprint, batch)? {
                    return Ok(answer);
                }
            }
            None if request.command.needs_key() => return Err(Refusal::KeyRequired),
            None => {}
        }
        match &request.command {
            Command::Mint { owner, amount, reason } => {
                self.mint(request, fingerprint, (*owner, *amount, reason), now, batch)
            }
            Command::Reserve { charge, reserve } => self.reserve(request, fingerprint, *charge, reserve, now, batch),
            Command::Charge { charge, command } => self.move_charge(request, fingerprint, *charge, command, now, batch),
            Command::Hold { escrow, hold } => self.hold(request, fingerprint, *escrow, hold, now, batch),
            Command::Escrow { escrow, command } => {
                self.move_escrow(request, fingerprint, *escrow, *command, now, batch)
            }
        }
    }

    /// The answer that a caller's key had before.
    fn known_key(&self, key: &Key, fingerprint: Fingerprint, batch: &Batch) -> Result<Option<Outcome>, Refusal> {
        let Some(location) = self.find(KeyHash::of(KEYS, key.as_bytes()))? else { return Ok(None) };
        let record = self.records.read(location, batch)?;
        if record.key == Some(*key) && record.fingerprint == fingerprint {
            Ok(Some(Outcome::Replayed(record.into_receipt())))
        } else {
            Err(Refusal::KeyReused)
        }
    }

    fn find(&self, key: KeyHash) -> Result<Option<Location>, Refusal> {
        self.keys.get(key).map_err(|error| Refusal::Unreadable(error.to_string()))
    }

    fn mint(
        &mut self,
        request: &Request,
        fingerprint: Fingerprint,
        (owner, amount, reason): (OwnerId, CreditUnit, &Reason),
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let event = holdfast_domain::mint(owner, amount, reason.clone()).map_err(|_| Refusal::ZERO)?;
        let row = self.book.owner_row(owner);
        self.write(draft(request, fingerprint, event, Life::None, row), now, batch)
    }

    fn reserve(
        &mut self,
        request: &Request,
        fingerprint: Fingerprint,
        id: ChargeId,
        reserve: &Reserve,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let key = KeyHash::of(CHARGES, id.as_bytes());
        let last = self.book.charges.get(key).map(|open| open.last);
        if let Some(last) = last.map_or_else(|| self.find(key), |last| Ok(Some(last)))? {
            return self.repeated(last, fingerprint, batch)?.ok_or(Refusal::KeyReused);
        }
        let row = self.book.owner_row(reserve.owner).ok_or(Refusal::UnknownAccount)?;
        let open = self.book.owners.row(row).open_holds;
        if open >= self.limits.open_holds {
            return Err(Refusal::TooManyOpenHolds { open });
        }
        let event = charge::reserve(reserve, now)?;
        let event = Event::Charge { id, owner: reserve.owner, event };
        self.write(draft(request, fingerprint, event, Life::Charge(key, None), Some(row)), now, batch)
    }

    fn move_charge(
        &mut self,
        request: &Request,
        fingerprint: Fingerprint,
        id: ChargeId,
        command: &charge::Command,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let key = KeyHash::of(CHARGES, id.as_bytes());
        let (charge, last) = self.charge(key, id, batch)?.ok_or(Refusal::UnknownCharge)?;
        let owner = charge.owner();
        let row = self.book.owner_row(owner);
        let available = row.map_or(CreditUnit::ZERO, |row| self.book.owners.row(row).available);
        match charge.decide(command.clone(), &Context { now, available }) {
            Ok(event) => {
                let event = Event::Charge { id, owner, event };
                self.write(draft(request, fingerprint, event, Life::Charge(key, Some((charge, last))), row), now, batch)
            }
            Err(refusal @ charge::Refusal::InvalidState(_)) => {
                self.repeated(last, fingerprint, batch)?.ok_or(refusal.into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn hold(
        &mut self,
        request: &Request,
        fingerprint: Fingerprint,
        id: EscrowId,
        hold: &escrow::Hold,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let key = KeyHash::of(ESCROWS, id.as_bytes());
        if self.book.escrows.get(key).is_some() || self.find(key)?.is_some() {
            return Err(Refusal::KeyReused);
        }
        let row = Some(self.book.owner_row(hold.owner).ok_or(Refusal::UnknownAccount)?);
        let event = Event::Escrow { id, owner: hold.owner, event: escrow::hold(hold)? };
        self.write(draft(request, fingerprint, event, Life::Escrow(key, None), row), now, batch)
    }

    fn move_escrow(
        &mut self,
        request: &Request,
        fingerprint: Fingerprint,
        id: EscrowId,
        command: escrow::Command,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Answer {
        let key = KeyHash::of(ESCROWS, id.as_bytes());
        let (escrow, last) = self.escrow(key, id, batch)?.ok_or(Refusal::UnknownEscrow)?;
        let owner = escrow.escrowed().owner;
        let row = self.book.owner_row(owner);
        match escrow.decide(command) {
            Ok(event) => {
                let event = Event::Escrow { id, owner, event };
                self.write(draft(request, fingerprint, event, Life::Escrow(key, Some((escrow, last))), row), now, batch)
            }
            // Another key is another settlement, even with the same words; only a request without one is known by its body.
            Err(refusal @ escrow::Refusal::AlreadyProcessed(_)) if request.key.is_none() => {
                self.repeated(last, fingerprint, batch)?.ok_or(refusal.into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The answer that the same body had earlier in the same life.
    fn repeated(&self, last: Location, fingerprint: Fingerprint, batch: &Batch) -> Result<Option<Outcome>, Refusal> {
        let records = self.records.life(last, batch)?;
        let first = records.into_iter().find(|record| record.fingerprint == fingerprint);
        Ok(first.map(|record| Outcome::Replayed(record.into_receipt())))
    }

    /// A charge and the place of its newest record, open or closed.
    pub(crate) fn charge(
        &self,
        key: KeyHash,
        id: ChargeId,
        batch: &Batch,
    ) -> Result<Option<(Charge, Location)>, Refusal> {
        if let Some(open) = self.book.charges.get(key) {
            return Ok((open.id == id).then_some((Charge::Held(open.hold), open.last)));
        }
        let Some(last) = self.find(key)? else { return Ok(None) };
        Ok(self.records.charge(id, last, batch)?.map(|charge| (charge, last)))
    }

    /// An escrow and the place of its newest record, open or closed.
    pub(crate) fn escrow(
        &self,
        key: KeyHash,
        id: EscrowId,
        batch: &Batch,
    ) -> Result<Option<(Escrow, Location)>, Refusal> {
        if let Some(open) = self.book.escrows.get(key) {
            return Ok((open.id == id).then_some((Escrow::Held(open.escrowed), open.last)));
        }
        let Some(last) = self.find(key)? else { return Ok(None) };
        Ok(self.records.escrow(id, last, batch)?.map(|escrow| (escrow, last)))
    }

    /// The key under which a charge is found.
    pub(crate) fn charge_key(id: ChargeId) -> KeyHash {
        KeyHash::of(CHARGES, id.as_bytes())
    }

    /// The key under which an escrow is found.
    pub(crate) fn escrow_key(id: EscrowId) -> KeyHash {
        KeyHash::of(ESCROWS, id.as_bytes())
    }

    /// The place of the entry that a caller's key made.
    pub(crate) fn key_location(&self, key: &Key) -> Result<Option<Location>, Refusal> {
        self.find(KeyHash::of(KEYS, key.as_bytes()))
    }

    /// Admits an entry if its guards hold: into the batch and into the book, in one step.
    fn write(&mut self, draft: Draft, now: Timestamp, batch: &mut Batch) -> Answer {
        let Draft { actor, key, fingerprint, event, life, row } = draft;
        let entry = Entry::of(event).map_err(|_| Refusal::OUT_OF_RANGE)?;
        let prepared = self.book.prepare(&entry, row)?;
        let event = entry.into_event();
        let (location, offset) = batch.next();
        let (next, life_previous) = advance(life, &event).ok_or(Refusal::OUT_OF_RANGE)?;
        let record = Record {
            offset,
            at: now,
            actor,
            key,
            fingerprint,
            event,
            state: state_of(&next),
            owner: prepared.owner_link(),
            payee: prepared.payee_link(),
            life_previous,
        };
        batch.push(|bytes| record.encode(bytes)).map_err(|_| Refusal::OUT_OF_RANGE)?;
        let row = self.book.post(&prepared, offset, now);
        self.settle(&record, next, location, row);
        if self.keys.is_full() {
            self.keys.freeze(offset);
        }
        Ok(Outcome::Applied(record.into_receipt()))
    }

    /// Notes where a life now stands: in the book while it is open, in the index when it is closed.
    fn settle(&mut self, record: &Record, next: Next, location: Location, row: Row) {
        match next {
            Next::None => {}
            Next::Charge(key, id, charge) => {
                self.book.put_charge(key, id, &charge, location, row);
                if record.state.is_closed() {
                    self.keys.insert(key, location);
                }
            }
            Next::Escrow(key, id, escrow) => {
                self.book.put_escrow(key, id, &escrow, location);
                if record.state.is_closed() {
                    self.keys.insert(key, location);
                }
            }
        }
        if let Some(key) = &record.key {
            self.keys.insert(KeyHash::of(KEYS, key.as_bytes()), location);
        }
    }

    /// Writes an entry for each hold whose time has come, as far as there is room.
    pub fn expire(&mut self, now: Timestamp, actor: Label, batch: &mut Batch, at_most: usize) -> usize {
        let now = now.max(self.book.last_at);
        let mut expired = 0;
        for charge in self.book.due(now, at_most) {
            if !batch.has_room() {
                break;
            }
            let command = Command::Charge { charge, command: charge::Command::Expire };
            if self.decide(&Request { key: None, actor, command }, now, batch).is_ok() {
                expired += 1;
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
    ) -> Result<(), Corrupt> {
        let corrupt = |what| Corrupt { offset: record.offset, what };
        let entry = Entry::of(record.event.clone())
            .map_err(|_| corrupt("its postings do not balance, or name another owner"))?;
        let row = self.book.owner_row(record.event.owner());
        let prepared = self.book.prepare(&entry, row).map_err(|_| corrupt("it breaks a floor"))?;
        if !Book::agrees(&prepared, record) {
            return Err(corrupt("it leads to other balances than it names"));
        }
        let life =
            self.life_before(record, batch).map_err(|_| corrupt("the record before it in its life cannot be read"))?;
        let (next, life_previous) =
            advance(life, &record.event).ok_or(corrupt("its event cannot follow the state before it"))?;
        if (state_of(&next), life_previous) != (record.state, record.life_previous) {
            return Err(corrupt("it names another state, or another record before it"));
        }
        if record.at < self.book.last_at {
            return Err(corrupt("it is older than the entry before it"));
        }
        let row = self.book.post(&prepared, record.offset, record.at);
        if record.offset > known_keys {
            self.settle(record, next, location, row);
            if self.keys.is_full() {
                self.keys.freeze(record.offset);
            }
        } else {
            self.settle_book(next, location, row);
        }
        Ok(())
    }

    fn settle_book(&mut self, next: Next, location: Location, row: Row) {
        match next {
            Next::None => {}
            Next::Charge(key, id, charge) => self.book.put_charge(key, id, &charge, location, row),
            Next::Escrow(key, id, escrow) => self.book.put_escrow(key, id, &escrow, location),
        }
    }

    /// The life that a record moved on, as it stood before it. The index may know a later state already, so a closed life
    /// is read from the place that the record itself names.
    fn life_before(&self, record: &Record, batch: &Batch) -> Result<Life, Refusal> {
        match &record.event {
            Event::Minted(_) => Ok(Life::None),
            Event::Charge { id, .. } => {
                let key = KeyHash::of(CHARGES, id.as_bytes());
                let open = self.book.charges.get(key).map(|open| (Charge::Held(open.hold), open.last));
                let before = match (open, record.life_previous) {
                    (Some(open), _) => Some(open),
                    (None, Some(last)) => self.records.charge(*id, last, batch)?.map(|charge| (charge, last)),
                    (None, None) => None,
                };
                Ok(Life::Charge(key, before))
            }
            Event::Escrow { id, .. } => {
                let key = KeyHash::of(ESCROWS, id.as_bytes());
                let open = self.book.escrows.get(key).map(|open| (Escrow::Held(open.escrowed), open.last));
                let before = match (open, record.life_previous) {
                    (Some(open), _) => Some(open),
                    (None, Some(last)) => self.records.escrow(*id, last, batch)?.map(|escrow| (escrow, last)),
                    (None, None) => None,
                };
                Ok(Life::Escrow(key, before))
            }
        }
    }

    /// Puts into the key index what one record of the journal says, without applying it.
    pub(crate) fn index(&mut self, record: &Record, location: Location) {
        if record.state.is_closed() {
            match &record.event {
                Event::Minted(_) => {}
                Event::Charge { id, .. } => self.keys.insert(KeyHash::of(CHARGES, id.as_bytes()), location),
                Event::Escrow { id, .. } => self.keys.insert(KeyHash::of(ESCROWS, id.as_bytes()), location),
            }
        }
        if let Some(key) = &record.key {
            self.keys.insert(KeyHash::of(KEYS, key.as_bytes()), location);
        }
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

fn draft(request: &Request, fingerprint: Fingerprint, event: Event, life: Life, row: Option<Row>) -> Draft {
    Draft { actor: request.actor, key: request.key, fingerprint, event, life, row }
}

/// The life after `event`, and the place of its record before it. `None` if the event cannot follow.
fn advance(life: Life, event: &Event) -> Option<(Next, Option<Location>)> {
    match (life, event) {
        (Life::None, Event::Minted(_)) => Some((Next::None, None)),
        (Life::Charge(key, before), Event::Charge { id, owner, event }) => {
            let (charge, last) = before.unzip();
            let next = Charge::apply(charge, event).ok()?;
            (next.owner() == *owner).then_some((Next::Charge(key, *id, next), last))
        }
        (Life::Escrow(key, before), Event::Escrow { id, owner, event }) => {
            let (escrow, last) = before.unzip();
            let next = Escrow::apply(escrow, event).ok()?;
            (next.escrowed().owner == *owner).then_some((Next::Escrow(key, *id, next), last))
        }
        (
            Life::None | Life::Charge(..) | Life::Escrow(..),
            Event::Minted(_) | Event::Charge { .. } | Event::Escrow { .. },
        ) => None,
    }
}

const fn state_of(next: &Next) -> LifeState {
    match next {
        Next::None => LifeState::None,
        Next::Charge(_, _, charge) => LifeState::Charge(charge.state()),
        Next::Escrow(_, _, escrow) => LifeState::Escrow(escrow.state()),
    }
}
