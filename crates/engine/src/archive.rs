//! Where used keys and closed lives are found again: on the engine's own disk, or among what was loaded for some requests.

use crate::error::Refusal;
use crate::keys::{KeyHash, Keys};
use crate::record::Record;
use crate::records::Records;
use holdfast_domain::charge::{Charge, Event as ChargeEvent};
use holdfast_domain::escrow::{Escrow, Event as EscrowEvent};
use holdfast_domain::{ChargeId, EscrowId, Event};
use holdfast_journal::{Batch, Disk, Location, RecordTooLong};

/// What a decision finds besides the book.
pub trait Archive {
    /// Where what is decided is written.
    type Sheet: Sheet;

    /// The newest record of a key or of a closed life.
    fn find(&self, key: KeyHash) -> Result<Option<Location>, Refusal>;
    /// Brings nearer what [`Archive::find`] will look at, if that can be had without waiting.
    fn approach(&self, _key: KeyHash) {}
    /// Brings nearer where [`Archive::note`] will write.
    fn approach_note(&self, _key: KeyHash) {}
    /// The record at `location`, which may be on the open sheet.
    fn read(&self, location: Location, sheet: &Self::Sheet) -> Result<Record, Refusal>;
    /// Notes where a key or a closed life is found from now on.
    fn note(&mut self, key: KeyHash, location: Location);
    /// Everything up to and with entry `offset` has been noted.
    fn noted(&mut self, offset: u64);

    /// The records of a life, newest first, from `last` back to the one that began it.
    fn life(&self, last: Location, sheet: &Self::Sheet) -> Result<Vec<Record>, Refusal> {
        let mut records = Vec::new();
        let mut next = Some(last);
        while let Some(location) = next {
            let record = self.read(location, sheet)?;
            next = record.life_previous;
            records.push(record);
        }
        Ok(records)
    }

    /// A charge and the record that began it, folded from its records; `None` if the records are another's.
    fn charge(&self, id: ChargeId, last: Location, sheet: &Self::Sheet) -> Result<Option<(Charge, Record)>, Refusal> {
        let mut records = self.life(last, sheet)?;
        Ok(charge_of(id, &records)?.zip(records.pop()))
    }

    /// An escrow and the record that began it, folded from its records; `None` if the records are another's.
    fn escrow(&self, id: EscrowId, last: Location, sheet: &Self::Sheet) -> Result<Option<(Escrow, Record)>, Refusal> {
        let corrupt = || Refusal::Unreadable(format!("the entries of escrow {id} do not follow each other"));
        let mut escrow = None;
        let mut records = self.life(last, sheet)?;
        for record in records.iter().rev() {
            let Some(event) = escrow_event(&record.event, id) else { return Ok(None) };
            escrow = Some(Escrow::apply(escrow, event).map_err(|_| corrupt())?);
        }
        Ok(escrow.zip(records.pop()))
    }
}

/// Records that were decided together, and are to become durable together.
pub trait Sheet {
    /// Where the next record will stand, and its offset.
    fn next(&self) -> (Location, u64);
    /// Adds a record whose body `write` appends to the bytes given to it.
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), RecordTooLong>;
}

impl Sheet for Batch {
    fn next(&self) -> (Location, u64) {
        Self::next(self)
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), RecordTooLong> {
        Self::push(self, write)
    }
}

/// The engine's own disk.
pub struct OnDisk<D: Disk> {
    pub(crate) keys: Keys<D>,
    pub(crate) records: Records<D>,
}

impl<D: Disk> Archive for OnDisk<D> {
    type Sheet = Batch;

    fn find(&self, key: KeyHash) -> Result<Option<Location>, Refusal> {
        self.keys.get(key).map_err(|error| Refusal::Unreadable(error.to_string()))
    }

    fn approach(&self, key: KeyHash) {
        self.keys.approach(key);
    }

    fn approach_note(&self, key: KeyHash) {
        self.keys.approach_insert(key);
    }

    fn read(&self, location: Location, batch: &Batch) -> Result<Record, Refusal> {
        self.records.read(location, batch)
    }

    fn note(&mut self, key: KeyHash, location: Location) {
        self.keys.insert(key, location);
    }

    fn noted(&mut self, offset: u64) {
        if self.keys.is_full() {
            self.keys.freeze(offset);
        }
    }
}

/// A charge, folded from its records, which come newest first; `None` if they are another's.
pub(crate) fn charge_of(id: ChargeId, records: &[Record]) -> Result<Option<Charge>, Refusal> {
    let corrupt = || Refusal::Unreadable(format!("the entries of reservation {id} do not follow each other"));
    let mut charge = None;
    for record in records.iter().rev() {
        let Some(event) = charge_event(&record.event, id) else { return Ok(None) };
        charge = Some(Charge::apply(charge, event).map_err(|_| corrupt())?);
    }
    Ok(charge)
}

fn charge_event(event: &Event, of: ChargeId) -> Option<&ChargeEvent> {
    match event {
        Event::Charge { id, event, .. } if *id == of => Some(event),
        Event::Charge { .. } | Event::Minted(_) | Event::Escrow { .. } => None,
    }
}

fn escrow_event(event: &Event, of: EscrowId) -> Option<&EscrowEvent> {
    match event {
        Event::Escrow { id, event, .. } if *id == of => Some(event),
        Event::Escrow { .. } | Event::Minted(_) | Event::Charge { .. } => None,
    }
}
