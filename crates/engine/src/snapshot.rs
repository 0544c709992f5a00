//! Snapshots: the book at one place in the journal, so that a start need not read all that came before.
//!
//! A snapshot is derived and never trusted: it carries a hash, and one that does not match is passed over for an older one.

use crate::book::{Book, Budgeted, FrozenBook, OpenCharge, OpenEscrow, Owner, Payee, Standing, System};
use crate::codec::{Taker, put_number, put_text};
use crate::keys::KeyHash;
use crate::record::{put_terms, take_terms};
use holdfast_domain::budget::Used;
use holdfast_domain::charge::{Charge, Hold, Stage};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{Change, ChargeId, Day, EscrowId, OwnerId, Timestamp};
use holdfast_journal::{Disk, DiskFile, JournalId, Location, failpoint, read_full};
use std::io;

/// The directory of the snapshots, below the data directory.
pub(crate) const DIRECTORY: &str = "snapshots";
/// How many snapshots are kept.
const KEPT: usize = 7;
const MAGIC: &[u8; 8] = b"HFsnap03";
const HASH_BYTES: usize = 32;
const PIECE_BYTES: usize = 1_024 * 1_024;

/// A place between two frames, and the book there.
pub(crate) struct Snapshot {
    /// Where the next frame stands.
    pub(crate) location: Location,
    /// The last entry that the book has in it.
    pub(crate) through: u64,
    pub(crate) book: FrozenBook,
}

fn file_name(through: u64) -> String {
    format!("{DIRECTORY}/{through:020}.snap")
}

/// Writes bytes to a file through a buffer, and hashes them on the way.
struct Pen<F> {
    file: F,
    at: u64,
    buffer: Vec<u8>,
    hasher: blake3::Hasher,
}

impl<F: DiskFile> Pen<F> {
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        write(&mut self.buffer);
        if self.buffer.len() >= PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_at(&self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let hash = self.hasher.finalize();
        self.file.write_at(hash.as_bytes(), self.at)?;
        self.file.sync()
    }
}

/// Writes a snapshot durably, and removes all but the newest few. The journal must be durable up to it.
pub(crate) fn save<D: Disk>(disk: &D, journal: JournalId, snapshot: &Snapshot) -> io::Result<()> {
    failpoint::pass("snapshot.before_write");
    let name = file_name(snapshot.through);
    let temporary = format!("{name}.tmp");
    let file = disk.create(&temporary)?;
    let mut pen = Pen { file, at: 0, buffer: Vec::with_capacity(PIECE_BYTES), hasher: blake3::Hasher::new() };
    let FrozenBook { system, owners, payees, budgets, charges, escrows, last_at } = &snapshot.book;
    pen.write(|bytes| {
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&journal.0);
        for number in [snapshot.location.pack(), snapshot.through, last_at.millis()] {
            put_number(bytes, number);
        }
        for balance in [system.revenue, system.treasury, system.escrowed] {
            bytes.extend_from_slice(&balance.units().to_le_bytes());
        }
        for length in [owners.len(), payees.len(), budgets.len(), charges.len(), escrows.len()] {
            put_number(bytes, length as u64);
        }
    })?;
    for (name, owner) in owners.iter() {
        pen.write(|bytes| {
            put_text(bytes, name);
            for number in [owner.available.units(), owner.held.units(), owner.last, owner.entries] {
                put_number(bytes, number);
            }
        })?;
    }
    for (name, payee) in payees.iter() {
        pen.write(|bytes| {
            put_text(bytes, name);
            for number in [payee.balance.units(), payee.last, payee.entries] {
                put_number(bytes, number);
            }
        })?;
    }
    for (name, used) in budgets.iter() {
        pen.write(|bytes| {
            put_text(bytes, name);
            for number in [used.day.number(), used.today.units(), used.total.units()] {
                put_number(bytes, number);
            }
        })?;
    }
    for open in charges.values() {
        pen.write(|bytes| {
            put_charge(bytes, open, owners.name(open.row));
            put_number(bytes, open.budgeted.reserved.number());
            put_number(bytes, open.budgeted.rows().count() as u64);
            open.budgeted.rows().for_each(|row| put_text(bytes, budgets.name(row)));
        })?;
    }
    for open in escrows.values() {
        pen.write(|bytes| put_escrow(bytes, open, owners.name(open.row)))?;
    }
    pen.finish()?;
    failpoint::pass("snapshot.before_rename");
    disk.rename(&temporary, &name)?;
    disk.sync_directory(DIRECTORY)?;
    failpoint::pass("snapshot.after_rename");
    let names = names(disk)?;
    names.iter().skip(KEPT).try_for_each(|through| disk.remove(&file_name(*through)))
}

fn put_charge(bytes: &mut Vec<u8>, open: &OpenCharge, owner: &[u8]) {
    let Hold { held, charged, uncollected, noted, stage, terms, expires_at } = &open.hold;
    put_text(bytes, open.id.as_bytes());
    put_text(bytes, owner);
    let amounts = [held, charged, uncollected, noted].map(|amount| amount.units());
    for number in amounts.into_iter().chain([expires_at.millis(), open.last.pack()]) {
        put_number(bytes, number);
    }
    bytes.push(match stage {
        Stage::Reserved => 0,
        Stage::InFlight => 1,
    });
    put_terms(bytes, terms);
}

fn put_escrow(bytes: &mut Vec<u8>, open: &OpenEscrow, owner: &[u8]) {
    let Escrowed { amount, feature, held_at } = &open.escrowed;
    put_text(bytes, open.id.as_bytes());
    put_text(bytes, owner);
    put_text(bytes, feature.as_bytes());
    put_number(bytes, amount.units());
    put_number(bytes, held_at.millis());
    put_number(bytes, open.last.pack());
}

/// The snapshots there are, newest first.
fn names<D: Disk>(disk: &D) -> io::Result<Vec<u64>> {
    let parse = |name: &String| name.strip_suffix(".snap")?.parse().ok();
    let mut names: Vec<u64> = disk.list(DIRECTORY)?.iter().filter_map(parse).collect();
    names.sort_unstable_by_key(|through| std::cmp::Reverse(*through));
    Ok(names)
}

/// A book read back, and where it stood.
pub(crate) struct Loaded {
    pub(crate) location: Location,
    pub(crate) through: u64,
    pub(crate) book: Book,
}

/// The newest snapshot of this journal that reads back whole, and how many newer ones did not.
pub(crate) fn load<D: Disk>(disk: &D, journal: JournalId) -> io::Result<(Option<Loaded>, u32)> {
    disk.create_directory(DIRECTORY)?;
    for leftover in disk.list(DIRECTORY)?.iter().filter(|name| name.ends_with(".tmp")) {
        disk.remove(&format!("{DIRECTORY}/{leftover}"))?;
    }
    let mut bad = 0;
    for through in names(disk)? {
        match parse(&read_full(disk, &file_name(through))?, journal).filter(|loaded| loaded.through == through) {
            Some(loaded) => return Ok((Some(loaded), bad)),
            None => bad += 1,
        }
    }
    Ok((None, bad))
}

/// Removes every snapshot.
pub(crate) fn remove_all<D: Disk>(disk: &D) -> io::Result<()> {
    names(disk)?.iter().try_for_each(|through| disk.remove(&file_name(*through)))
}

fn parse(bytes: &[u8], journal: JournalId) -> Option<Loaded> {
    let (body, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
    (blake3::hash(body).as_bytes() == hash).then_some(())?;
    let mut taker = Taker(body);
    (taker.array::<8>()? == *MAGIC && taker.array::<16>()? == journal.0).then_some(())?;
    let (location, through) = (Location::unpack(taker.number()?), taker.number()?);
    let mut book = Book::new();
    book.last_at = Timestamp::from_millis(taker.number()?);
    let mut balance = || Some(Change::from_units(i64::from_le_bytes(taker.array()?)));
    book.system = System { revenue: balance()?, treasury: balance()?, escrowed: balance()? };
    let mut length = || taker.number();
    let [owners, payees, budgets, charges, escrows] = [length()?, length()?, length()?, length()?, length()?];
    for _ in 0..owners {
        let name = take_name(&mut taker)?;
        let owner = Owner {
            available: taker.amount()?,
            held: taker.amount()?,
            last: taker.number()?,
            entries: taker.number()?,
            open_holds: 0,
        };
        book.owners.find_or_insert(name, || owner);
    }
    for _ in 0..payees {
        let name = take_name(&mut taker)?;
        let payee = Payee { balance: taker.amount()?, last: taker.number()?, entries: taker.number()? };
        book.payees.find_or_insert(name, || payee);
    }
    for _ in 0..budgets {
        let name = take_name(&mut taker)?;
        let day = Day::from_number(taker.number()?);
        let used = Used { day, today: taker.amount()?, total: taker.amount()? };
        book.budgets.find_or_insert(name, || used);
    }
    for _ in 0..charges {
        let (id, owner, hold, last) = take_charge(&mut taker)?;
        let (row, budgeted) = (book.owner_row(owner)?, take_budgeted(&mut taker, &book)?);
        book.put_charge(KeyHash::of_charge(id), id, &Charge::Held(hold), Standing { last, row, budgeted });
    }
    for _ in 0..escrows {
        let (id, owner, escrowed, last) = take_escrow(&mut taker)?;
        let row = book.owner_row(owner)?;
        book.put_escrow(KeyHash::of_escrow(id), id, &Escrow::Held(escrowed), last, row);
    }
    taker.is_empty().then_some(Loaded { location, through, book })
}

fn take_name<'a>(taker: &mut Taker<'a>) -> Option<&'a [u8]> {
    let length = usize::from(taker.byte()?);
    taker.bytes(length)
}

fn take_budgeted(taker: &mut Taker<'_>, book: &Book) -> Option<Budgeted> {
    let reserved = Day::from_number(taker.number()?);
    let mut rows = Vec::new();
    for _ in 0..taker.number()? {
        rows.push(book.budgets.find(take_name(taker)?)?);
    }
    Some(Budgeted::new(rows.into_iter(), reserved))
}

fn take_charge(taker: &mut Taker<'_>) -> Option<(ChargeId, OwnerId, Hold, Location)> {
    let (id, owner) = (taker.id()?, taker.id()?);
    let mut amount = || taker.amount();
    let [held, charged, uncollected, noted] = [amount()?, amount()?, amount()?, amount()?];
    let expires_at = Timestamp::from_millis(taker.number()?);
    let last = Location::unpack(taker.number()?);
    let stage = match taker.byte()? {
        0 => Stage::Reserved,
        1 => Stage::InFlight,
        _ => return None,
    };
    let terms = take_terms(taker)?;
    Some((id, owner, Hold { held, charged, uncollected, noted, stage, terms, expires_at }, last))
}

fn take_escrow(taker: &mut Taker<'_>) -> Option<(EscrowId, OwnerId, Escrowed, Location)> {
    let id = taker.id()?;
    let (owner, feature) = (taker.id()?, taker.id()?);
    let escrowed = Escrowed { feature, amount: taker.amount()?, held_at: Timestamp::from_millis(taker.number()?) };
    Some((id, owner, escrowed, Location::unpack(taker.number()?)))
}
