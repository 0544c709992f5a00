//! What was loaded, and the page that what is decided on it is written to.

use crate::archive::{Archive, Sheet};
use crate::book::{Owner, Payee};
use crate::error::Refusal;
use crate::keys::{HashedMap, KeyHash};
use crate::record::Record;
use holdfast_domain::budget::Used;
use holdfast_domain::{BudgetId, CreditUnit, OwnerId, PayeeId, Timestamp};
use holdfast_journal::{Location, RECORD_BYTES_MAX, RecordTooLong};
use std::collections::HashMap;

/// What was loaded, all at one moment.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The owners that were named, and those of the lives.
    pub owners: Vec<OwnerRow>,
    /// The payees.
    pub payees: Vec<PayeeRow>,
    /// The budgets that were named, and those of the lives.
    pub budgets: Vec<BudgetRow>,
    /// Every record of each life.
    pub lives: Vec<Record>,
    /// The record that each key made.
    pub keyed: Vec<Record>,
    /// The moment.
    pub now: Timestamp,
    /// The offset of the next entry: as many after it are free as there are requests.
    pub first_offset: u64,
}

/// An owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerRow {
    /// Who.
    pub id: OwnerId,
    /// What can be spent.
    pub available: CreditUnit,
    /// What open reservations hold.
    pub held: CreditUnit,
    /// How many reservations are open.
    pub open_holds: u32,
    /// The last entry.
    pub last: u64,
    /// How many entries there are.
    pub entries: u64,
    /// When the last one was decided.
    pub last_at: Timestamp,
}

impl OwnerRow {
    pub(super) const fn standing(&self) -> Owner {
        let Self { available, held, open_holds, last, entries, .. } = *self;
        Owner { available, held, last, entries, open_holds }
    }
}

/// A payee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayeeRow {
    /// Who.
    pub id: PayeeId,
    /// What was earned.
    pub balance: CreditUnit,
    /// The last entry.
    pub last: u64,
    /// How many entries there are.
    pub entries: u64,
}

impl PayeeRow {
    pub(super) const fn standing(&self) -> Payee {
        let Self { balance, last, entries, .. } = *self;
        Payee { balance, last, entries }
    }
}

/// A budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRow {
    /// Whose.
    pub id: BudgetId,
    /// What has been used of it.
    pub used: Used,
    /// The last entry that counted against it.
    pub last: u64,
}

/// Records and where they are found. A record's place is its offset.
pub(crate) struct Loaded {
    places: HashedMap<Location>,
    records: HashMap<u64, Record>,
}

impl Loaded {
    pub(super) fn new(lives: Vec<Record>, keyed: Vec<Record>) -> Self {
        let place =
            |record: &Record| Some((KeyHash::of_key(record.key.as_ref()?).into(), Location::unpack(record.offset)));
        let places = keyed.iter().filter_map(place).collect();
        let records = lives.into_iter().chain(keyed).map(|record| (record.offset, record)).collect();
        Self { places, records }
    }
}

impl Archive for Loaded {
    type Sheet = Page;

    fn find(&self, key: KeyHash) -> Result<Option<Location>, Refusal> {
        Ok(self.places.get(&key.into()).copied())
    }

    fn read(&self, location: Location, page: &Page) -> Result<Record, Refusal> {
        let offset = location.pack();
        let unreadable = || Refusal::Unreadable(format!("entry {offset} was not loaded"));
        match page.body(offset) {
            Some(body) => Record::decode(body).ok_or_else(unreadable),
            None => self.records.get(&offset).cloned().ok_or_else(unreadable),
        }
    }

    fn note(&mut self, key: KeyHash, location: Location) {
        self.places.insert(key.into(), location);
    }

    fn noted(&mut self, _offset: u64) {}
}

/// What was decided, in order.
pub(crate) struct Page {
    first: u64,
    bodies: Vec<Vec<u8>>,
}

impl Page {
    pub(super) const fn begin(first: u64) -> Self {
        Self { first, bodies: Vec::new() }
    }

    pub(super) fn body(&self, offset: u64) -> Option<&[u8]> {
        let number = usize::try_from(offset.checked_sub(self.first)?).ok()?;
        self.bodies.get(number).map(Vec::as_slice)
    }

    pub(super) fn records(&self) -> Result<Vec<Record>, Refusal> {
        let unreadable = || Refusal::Unreadable("an entry just made".to_owned());
        self.bodies.iter().map(|body| Record::decode(body).ok_or_else(unreadable)).collect()
    }
}

impl Sheet for Page {
    fn next(&self) -> (Location, u64) {
        let offset = self.first.saturating_add(self.bodies.len() as u64);
        (Location::unpack(offset), offset)
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), RecordTooLong> {
        let mut body = Vec::with_capacity(192);
        write(&mut body);
        if body.len() > RECORD_BYTES_MAX {
            return Err(RecordTooLong);
        }
        self.bodies.push(body);
        Ok(())
    }
}
