//! Replay: the ledger made again from what the journal holds.
//!
//! # Invariants
//! - A replay checks what it applies: an entry that does not lead to the balances it names is corruption.

use crate::archive::{Archive, OnDisk};
use crate::book::{Book, Standing};
use crate::error::Refusal;
use crate::keys::KeyHash;
use crate::ledger::Ledger;
use crate::life::{Before, Life, advance, state_of};
use crate::record::Record;
use crate::recovery::StartError;
use crate::request::Hashes;
use holdfast_domain::charge::{self, Charge};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{Event, Place};
use holdfast_journal::{Batch, Disk, Location};
use std::io;

/// An entry that cannot follow what is before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {offset} does not follow from the entries before it: {what}")]
pub struct Corrupt {
    /// Which entry.
    pub offset: u64,
    /// What does not follow.
    pub what: &'static str,
}

impl<D: Disk> Ledger<OnDisk<D>> {
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
        let day = record.at.day();
        if let Event::Charge { event: charge::Event::Reserved { amount, budgets, .. }, .. } = &record.event {
            let checked = self.book.check_budgets(budgets.as_slice(), *amount, day);
            checked.map_err(|_| corrupt("it passes a limit that it names"))?;
        }
        let budgeted = self.budgeted(&record.event, &before, day);
        let spent = self.book.spend(&budgeted, postings.at(Place::Available), day);
        let spent = spent.map_err(|_| corrupt("it takes more back from a budget than was used"))?;
        let row = self.book.post(&prepared, &record.event, record.offset, record.at);
        self.book.post_spent(&spent);
        self.settle(hashes.life, &record.event, &next, Standing { last: location, row, budgeted });
        if record.offset > known_keys {
            self.index(record, &hashes, location);
        }
        Ok(())
    }

    /// The life that a record moved on, as it stood before it. The index may know a later state already, so a closed life
    /// is read from the place that the record itself names.
    fn life_before(&self, record: &Record, key: KeyHash, batch: &Batch) -> Result<Before, Refusal> {
        Ok(match &record.event {
            Event::Minted(_) => Before::nothing(Life::None, None),
            Event::Charge { id, .. } => match (self.book.charges.get(key), record.life_previous) {
                (Some(open), _) => Before::of(Life::Charge(Some(Charge::Held(open.hold))), open.standing()),
                (None, Some(last)) => match self.archive.charge(*id, last, batch)? {
                    Some((charge, first)) => Before::of(Life::Charge(Some(charge)), self.standing(last, &first)?),
                    None => Before::nothing(Life::Charge(None), None),
                },
                (None, None) => Before::nothing(Life::Charge(None), None),
            },
            Event::Escrow { id, .. } => match (self.book.escrows.get(key), record.life_previous) {
                (Some(open), _) => Before::of(Life::Escrow(Some(Escrow::Held(open.escrowed))), open.standing()),
                (None, Some(last)) => match self.archive.escrow(*id, last, batch)? {
                    Some((escrow, first)) => Before::of(Life::Escrow(Some(escrow)), self.standing(last, &first)?),
                    None => Before::nothing(Life::Escrow(None), None),
                },
                (None, None) => Before::nothing(Life::Escrow(None), None),
            },
        })
    }

    /// Puts into the key index what one record of the journal says, without applying it.
    pub(crate) fn reindex(&mut self, record: &Record, location: Location) {
        self.index(record, &hashes_of(record), location);
    }

    fn index(&mut self, record: &Record, hashes: &Hashes, location: Location) {
        self.remember(hashes, record.state, location);
        self.archive.noted(record.offset);
    }
}

/// What the request behind a record was known by.
pub(crate) fn hashes_of(record: &Record) -> Hashes {
    let life = match &record.event {
        Event::Minted(_) => KeyHash(0),
        Event::Charge { id, .. } => KeyHash::of_charge(*id),
        Event::Escrow { id, .. } => KeyHash::of_escrow(*id),
    };
    Hashes { fingerprint: record.fingerprint, key: record.key.as_ref().map(KeyHash::of_key), life }
}
