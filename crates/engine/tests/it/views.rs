//! What is asked of the books: open reservations in the order of their ends, and what all owners have together.

use crate::world::{World, cu, mint, open, owner, reserve};
use holdfast_domain::Span;
use holdfast_domain::charge::Reserve;
use holdfast_engine::{Command, Request};

/// A reservation of one credit that ends after so many seconds.
fn ending(charge: &str, from: &str, after: u32) -> Request {
    let request = reserve(charge, from, "1");
    let Command::Reserve { charge, reserve } = request.command else { unreachable!("it is one") };
    let reserve = Reserve { ttl: Span::from_secs(after), ..reserve };
    Request { command: Command::Reserve { charge, reserve }, ..request }
}

fn open_charges(world: &World, of: Option<&str>, at_most: usize) -> Vec<(String, String)> {
    let of = of.map(owner);
    let found = world.engine.ask_blocking(move |view| view.open_charges(of, at_most)).unwrap();
    found.into_iter().map(|(id, owner, _)| (id.to_string(), owner.to_string())).collect()
}

#[test]
fn open_charges_come_in_the_order_of_their_ends_and_only_as_many_as_are_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let mut expected = Vec::new();
    for (name, of) in [("alice", 0_u32), ("bob", 1)] {
        let _credited = world.submit(mint(name, name, "1000")).unwrap();
        // The ends come in another order than the reservations, and each twice, so that ids decide between equals.
        for number in 0..40 {
            let after = 60 + (number * 7 % 20) * 2 + of;
            let charge = format!("{name}-{number:02}");
            let _held = world.submit(ending(&charge, name, after)).unwrap();
            expected.push((after, charge, name.to_owned()));
        }
    }
    expected.sort();
    let of = |owner: Option<&str>| {
        let wanted = expected.iter().filter(|(_, _, name)| owner.is_none_or(|owner| owner == name));
        wanted.map(|(_, charge, name)| (charge.clone(), name.clone())).collect::<Vec<_>>()
    };
    for owner in [None, Some("alice"), Some("bob")] {
        let all = of(owner);
        for at_most in [0, 1, 2, all.len() - 1, all.len(), all.len() + 1, usize::MAX] {
            assert_eq!(open_charges(&world, owner, at_most), all[..at_most.min(all.len())], "{owner:?} {at_most}");
        }
    }
    assert_eq!(open_charges(&world, Some("nobody"), 10), [], "an owner who was never credited has none");
}

#[test]
fn the_standing_sums_all_owners_and_names_those_who_have_most_held_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let nobody = world.engine.ask_blocking(|view| view.standing(3)).unwrap().unwrap();
    assert_eq!((nobody.available, nobody.held, nobody.largest.len()), (cu("0"), cu("0"), 0));
    for (name, credits) in [("dan", "5"), ("bob", "30"), ("eve", "1"), ("alice", "30"), ("carol", "20")] {
        let _credited = world.submit(mint(name, name, credits)).unwrap();
    }
    // What is held still counts as bob's: he stays beside alice.
    let _held = world.submit(reserve("r", "bob", "29.5")).unwrap();
    let standing = |at_most: usize| {
        let standing = world.engine.ask_blocking(move |view| view.standing(at_most)).unwrap().unwrap();
        assert_eq!((standing.available, standing.held), (cu("56.5"), cu("29.5")), "whoever is named");
        let row = |(name, balance): &(holdfast_domain::OwnerId, holdfast_engine::Balance)| {
            (name.to_string(), balance.available.to_string(), balance.held.to_string())
        };
        standing.largest.iter().map(row).collect::<Vec<_>>()
    };
    let row = |name: &str, available: &str, held: &str| (name.to_owned(), available.to_owned(), held.to_owned());
    let all = [
        row("alice", "30", "0"),
        row("bob", "0.5", "29.5"),
        row("carol", "20", "0"),
        row("dan", "5", "0"),
        row("eve", "1", "0"),
    ];
    for at_most in [0, 2, 3, 4, 5, 6] {
        assert_eq!(standing(at_most), all[..at_most.min(all.len())], "{at_most}");
    }
}
