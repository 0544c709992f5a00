//! A journal whose every checksum holds, with an entry that nobody could have decided: the start is refused and the entry named.

use crate::world::{World, commit, config, cu, id, mint, open, owner, request, reserve, try_open};
use holdfast_domain::charge::{self, Finality, Taken};
use holdfast_domain::{Event, escrow};
use holdfast_engine::recovery::{self, StartError};
use holdfast_engine::{Command, LifeState, Link, OwnerLink, Record};
use holdfast_journal::{Batch, Frames, Journal, LocalDisk, Location};
use std::path::Path;

const ANOTHER_OWNER: &str = "it names another owner than the record before it";

/// A charge of each owner that is open, one that is committed, and an escrow of each. Bob's books are like alice's, so that what
/// is forged of hers leads to balances that his allow.
fn books(directory: &Path) {
    let world = open(directory);
    let submit = |world: &World, request| {
        let _done = world.submit(request).unwrap();
    };
    for name in ["alice", "bob"] {
        submit(&world, mint(&format!("m-{name}"), name, "100"));
        submit(&world, reserve(&format!("open-{name}"), name, "10"));
        submit(&world, reserve(&format!("closed-{name}"), name, "10"));
        submit(&world, commit(&format!("closed-{name}"), "4"));
        let hold = escrow::Hold { owner: owner(name), amount: cu("5"), feature: "chat".parse().unwrap() };
        let escrow = format!("escrow-{name}").parse().unwrap();
        submit(&world, request(Some(&format!("h-{name}")), Command::Hold { escrow, hold }));
    }
    world.engine.stop().unwrap();
}

/// An entry after the last one of a journal, as if `by` had been charged for a life of alice's.
fn forge(directory: &Path, by: &str, event: fn(&str) -> (Event, LifeState), available: &str, held: &str) {
    let disk = LocalDisk::at(directory).unwrap();
    let (mut journal, _) = Journal::open(disk.clone(), config().journal).unwrap();
    let (event, state) = event(by);
    let (mut last, mut history, mut newest) = (None, Vec::new(), None);
    let mut frames = Frames::starting(disk, Location::START);
    while let Some(frame) = frames.next(journal.end().location).unwrap() {
        for stored in frame.records() {
            let stored = stored.unwrap();
            let record = Record::decode(stored.body).unwrap();
            if record.event.owner() == owner(by) {
                history.push(record.offset);
            }
            if life_of(&record.event) == life_of(&event) {
                last = Some(stored.location);
            }
            newest = Some(record);
        }
    }
    let newest = newest.unwrap();
    let available =
        Link { balance: cu(available), previous: *history.last().unwrap(), number: history.len() as u64 + 1 };
    let forged = Record {
        offset: newest.offset + 1,
        key: None,
        event,
        state,
        owner: OwnerLink { available, held: cu(held) },
        payee: None,
        life_previous: last,
        ..newest
    };
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    batch.push(|bytes| forged.encode(bytes)).unwrap();
    journal.append(&mut batch).unwrap();
}

fn life_of(event: &Event) -> Option<&str> {
    match event {
        Event::Minted(_) => None,
        Event::Charge { id, .. } => Some(id.as_str()),
        Event::Escrow { id, .. } => Some(id.as_str()),
    }
}

/// Forged in alice's own name the entry is taken, so it is sound but for its owner; in bob's it stops the start, with and
/// without a snapshot.
fn check(event: fn(&str) -> (Event, LifeState), available: &str, held: &str) {
    for derived_files in ["there", "gone"] {
        for by in ["alice", "bob"] {
            let directory = tempfile::tempdir().unwrap();
            books(directory.path());
            forge(directory.path(), by, event, available, held);
            if derived_files == "gone" {
                recovery::forget_derived(&LocalDisk::at(directory.path()).unwrap()).unwrap();
            }
            let opened = try_open(directory.path());
            if by == "alice" {
                assert_eq!(opened.unwrap().balance("alice"), (available.to_owned(), held.to_owned()));
                continue;
            }
            let refused = opened.map(|world| world.report).unwrap_err();
            let is_named =
                matches!(&refused, StartError::Corrupt(named) if (named.offset, named.what) == (11, ANOTHER_OWNER));
            assert!(is_named, "derived files {derived_files}: {refused:?}");
        }
    }
}

#[test]
fn the_commit_of_an_open_charge_in_another_owners_name_stops_the_start() {
    let event = |by: &str| {
        let taken = Taken { from_hold: cu("3"), from_available: cu("0"), returned: cu("7"), uncollected: cu("0") };
        let event = charge::Event::Committed { taken, finality: Finality::Final };
        let event = Event::Charge { id: id("open-alice"), owner: owner(by), event };
        (event, LifeState::Charge(charge::State::Committed))
    };
    check(event, "88", "0");
}

#[test]
fn the_void_of_a_closed_charge_in_another_owners_name_stops_the_start() {
    let event = |by: &str| {
        let event = charge::Event::Voided { returned: cu("4"), reason: "by hand".parse().unwrap() };
        let event = Event::Charge { id: id("closed-alice"), owner: owner(by), event };
        (event, LifeState::Charge(charge::State::Voided))
    };
    check(event, "85", "10");
}

#[test]
fn the_refund_of_an_escrow_to_another_owner_stops_the_start() {
    let event = |by: &str| {
        let event = escrow::Event::Refunded { amount: cu("5") };
        let event = Event::Escrow { id: "escrow-alice".parse().unwrap(), owner: owner(by), event, ruling: None };
        (event, LifeState::Escrow(escrow::State::Refunded))
    };
    check(event, "86", "10");
}
