//! The invariants over random steps: balanced, no overdraft, conserved, complete, immutable cost, frozen rates.
//!
//! The steps run against [`World`], a naive ledger. The seed is fixed, so a run is the same everywhere;
//! `PROPTEST_RNG_SEED` and `PROPTEST_CASES` try others.

use crate::table::id;
use crate::world::{
    Chapter, Step, Story, Tried, World, a_reserve, any_terms, closed, command, floors, price, rates, revenue, steps,
    sums, terms, units, usage,
};
use holdfast_domain::charge::{
    self, Actual, Command, Context, Ended, Finality, Hold, Overrun, Reserve, Stage, State, Taken, Terms, reserve,
};
use holdfast_domain::{
    AMOUNT_MAX, Account, Budgets, Change, Charge, CreditUnit, Escrow, Event, Kind, OwnerId, Place, Posting, Postings,
    Span, Timestamp, Unbalanced,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestCaseResult, TestRunner};
use std::collections::{BTreeMap, BTreeSet};

fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let rng_seed = match given.rng_seed {
        RngSeed::Random => RngSeed::Fixed(20_261_107),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    ProptestConfig { cases: given.cases.max(256), rng_seed, failure_persistence: None, ..given }
}

/// Looks at the world after each entry that was decided, admitted or not.
fn check(steps: &[Step], look: impl Fn(&World, &Tried) -> TestCaseResult) -> TestCaseResult {
    let mut world = World::new();
    for step in steps {
        if let Some(tried) = world.take(step) {
            look(&world, &tried)?;
        }
    }
    Ok(())
}

/// Looks at each charge after each entry.
fn check_stories(steps: &[Step], look: impl Fn(&Story) -> TestCaseResult) -> TestCaseResult {
    check(steps, |world, _| world.charges.values().try_for_each(&look))
}

/// Looks at each event of each charge, once all is done.
fn check_chapters(steps: &[Step], look: impl Fn(&Story, &Chapter) -> TestCaseResult) -> TestCaseResult {
    let mut world = World::new();
    for step in steps {
        world.take(step);
    }
    let stories = world.charges.values();
    stories
        .flat_map(|story| story.chapters.iter().map(move |chapter| (story, chapter)))
        .try_for_each(|(s, c)| look(s, c))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_postings_of_every_entry_sum_to_zero(steps in steps()) {
        check(&steps, |_, tried| {
            let postings = tried.event.postings().expect("whatever is decided balances");
            let changes: Vec<_> = postings.iter().map(|posting| posting.change.units()).collect();
            prop_assert_eq!(changes.iter().copied().map(i128::from).sum::<i128>(), 0);
            prop_assert!(!changes.contains(&0), "a posting of nothing: {:?}", changes);
            Ok(())
        })?;
    }

    #[test]
    fn postings_that_do_not_sum_to_zero_are_refused(one in any_change(), two in any_change(), three in any_change()) {
        let sum = |changes: &[i64]| changes.iter().copied().map(i128::from).sum::<i128>();
        let refused = Err(Unbalanced);
        prop_assume!(one != 0 && sum(&[one, two]) != 0 && sum(&[one, two, three]) != 0);
        prop_assert_eq!(Postings::balanced([posting(Place::Available, one)]), refused);
        prop_assert_eq!(Postings::balanced([posting(Place::Available, one), posting(Place::Held, two)]), refused);
        prop_assert_eq!(Postings::balanced([posting(Place::Available, one), posting(Place::Held, two), posting(Place::Payee, three)]), refused);
    }

    #[test]
    fn postings_that_sum_to_zero_are_kept_but_for_those_of_nothing(one in small_change(), two in small_change()) {
        let all = [posting(Place::Available, one), posting(Place::Held, two), posting(Place::Payee, -(one + two))];
        let kept: Vec<_> = all.into_iter().filter(|posting| posting.change != Change::ZERO).collect();
        let postings = Postings::balanced(all);
        prop_assert_eq!(postings.map(|postings| postings.iter().copied().collect::<Vec<_>>()), Ok(kept));
    }

    #[test]
    fn no_guarded_account_is_ever_below_zero(steps in steps()) {
        check(&steps, |world, _| {
            for (account, balance) in &world.book {
                prop_assert!(!is_guarded(account) || *balance >= 0, "{} is at {}", account, balance);
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_floors_of_an_entry_name_every_account_that_it_could_overdraw_and_no_other(steps in steps()) {
        check(&steps, |_, tried| {
            let floors = floors(&tried.event);
            let changes = tried.event.changes().expect("whatever is decided balances");
            let takes = changes.filter(|(_, change)| *change < Change::ZERO);
            let could = takes.map(|(account, _)| account).filter(is_guarded).collect();
            prop_assert_eq!(&floors, &could);
            let below = tried.after.iter().filter(|(_, balance)| **balance < 0);
            let broken: BTreeSet<_> = below.map(|(account, _)| *account).filter(is_guarded).collect();
            prop_assert!(broken.is_subset(&floors), "{:?} broken, {:?} guarded", broken, floors);
            prop_assert_eq!(broken.is_empty(), tried.admitted);
            Ok(())
        })?;
    }

    #[test]
    fn only_what_takes_from_the_available_can_ever_be_turned_away(steps in steps()) {
        // What a charge or an escrow has set aside is there when it ends: no ending can fail for want of money.
        check(&steps, |_, tried| {
            let asks = matches!(
                tried.event.kind(),
                Kind::BillingReserve | Kind::BillingIncrease | Kind::EscrowHold
            );
            prop_assert!(tried.admitted || asks, "turned away: {:?}", tried.event);
            Ok(())
        })?;
    }

    #[test]
    fn the_sum_over_all_accounts_is_zero(steps in steps()) {
        check(&steps, |world, tried| {
            prop_assert_eq!(world.book.values().sum::<i128>(), 0);
            prop_assert_eq!(tried.after.values().sum::<i128>(), 0);
            Ok(())
        })?;
    }

    #[test]
    fn what_is_held_is_the_sum_of_the_open_holds(steps in steps()) {
        check(&steps, |world, _| {
            let mut held: BTreeMap<OwnerId, i128> = world.minted.keys().map(|owner| (*owner, 0)).collect();
            for story in world.charges.values() {
                if let Charge::Held(Hold { held: part, .. }) = &story.charge {
                    *held.entry(story.owner).or_insert(0) += units(*part);
                }
            }
            for (owner, sum) in held {
                prop_assert_eq!(world.balance(Account::Held(owner)), sum);
            }
            for (id, (escrow, _)) in &world.escrows {
                let open = matches!(escrow, Escrow::Held(_));
                let kept = if open { units(escrow.escrowed().amount) } else { 0 };
                prop_assert_eq!(world.balance(Account::Escrow(*id)), kept);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_charge_ends_at_most_once(steps in steps()) {
        check_stories(&steps, |story| {
            let count = |wanted: fn(&Chapter) -> bool| story.chapters.iter().filter(|chapter| wanted(chapter)).count();
            let (reserved, ended, lapsed, voided) = (count(reserves), count(ends), count(lapses), count(voids));
            prop_assert_eq!(reserved, 1);
            prop_assert_eq!(ended, usize::from(story.charge.state() != State::Held));
            let last_late = count(|chapter| is_late(chapter) && is_final(chapter));
            prop_assert!(last_late <= lapsed && lapsed <= 1 && voided <= 1, "{:?}", story);
            prop_assert!(count(is_late) == 0 || lapsed == 1, "{:?}", story);
            prop_assert_eq!(voided == 1, story.charge.state() == State::Voided);
            Ok(())
        })?;
    }

    #[test]
    fn what_was_charged_never_changes_after_the_hold_ended_but_by_late_results_of_an_expired_one(steps in steps()) {
        check_chapters(&steps, |_, chapter| {
            if let Some(before) = chapter.before.filter(|charge| charge.state() != State::Held) {
                let same = sums(&before) == sums(&chapter.after);
                prop_assert!(same || (is_late(chapter) && ended(&before) == Some(Ended::Expired)), "{:?}", chapter);
                let (charged, lost) = sums(&before);
                prop_assert!(charged <= sums(&chapter.after).0 && lost <= sums(&chapter.after).1);
            }
            Ok(())
        })?;
    }

    #[test]
    fn more_can_come_from_the_expiry_of_a_charge_to_its_final_result_or_its_void(steps in steps()) {
        check_chapters(&steps, |_, chapter| {
            let opens = lapses(chapter);
            let closes = is_final(chapter) || voids(chapter) || matches!(chapter.event, charge::Event::Released { .. });
            let before = chapter.before.as_ref().and_then(ended);
            let expected = if opens { Some(Ended::Expired) } else if closes { Some(Ended::Settled) } else { before };
            prop_assert_eq!(ended(&chapter.after), expected, "{:?}", chapter);
            match chapter.after.state() {
                State::AutoReleased => prop_assert_eq!(ended(&chapter.after), Some(Ended::Expired)),
                State::Released | State::Voided => prop_assert_eq!(ended(&chapter.after), Some(Ended::Settled)),
                State::Held | State::Committed | State::Acked | State::Failed => {}
            }
            Ok(())
        })?;
    }

    #[test]
    fn late_results_together_take_no_more_than_the_hold_gave_back_unless_the_policy_is_available(steps in steps()) {
        check_stories(&steps, |story| {
            let late = story.chapters.iter().filter(|chapter| is_late(chapter));
            let taken: i128 = late.map(|chapter| revenue(&chapter.event)).sum();
            let gave_back = story.chapters.iter().map(|chapter| {
                if let charge::Event::AutoReleased { returned } = &chapter.event { units(*returned) } else { 0 }
            });
            prop_assert_eq!(taken, closed(&story.charge).map_or(0, |closed| units(closed.late)));
            prop_assert!(taken <= gave_back.sum::<i128>() || story.reserved.overrun == Overrun::Available, "{:?}", story);
            Ok(())
        })?;
    }

    #[test]
    fn the_peer_is_told_of_whatever_changed_the_sum_after_the_hold_ended(steps in steps()) {
        check_chapters(&steps, |_, chapter| {
            let state = chapter.after.state();
            if lapses(chapter) {
                let charged = sums(&chapter.after).0 > 0;
                prop_assert_eq!(state, if charged { State::Committed } else { State::AutoReleased });
            }
            if is_late(chapter) {
                // Only a late part of a hold that the peer has never heard of waits for the final one.
                let before = chapter.before.map(|charge| charge.state());
                let waits = before == Some(State::AutoReleased) && !is_final(chapter);
                prop_assert_eq!(state, if waits { State::AutoReleased } else { State::Committed });
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_void_gives_back_exactly_what_was_charged(steps in steps()) {
        check_chapters(&steps, |story, chapter| {
            if let charge::Event::Voided { returned, .. } = &chapter.event {
                prop_assert_eq!(units(*returned), sums(&story.charge).0);
                prop_assert_eq!(story.revenue, 0);
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_terms_of_a_charge_are_those_of_its_reserve_for_ever(steps in steps()) {
        check_chapters(&steps, |story, chapter| {
            prop_assert_eq!(terms(&chapter.after), story.reserved);
            Ok(())
        })?;
    }

    #[test]
    fn a_commit_by_usage_costs_what_the_frozen_rates_say(steps in steps()) {
        check_chapters(&steps, |story, chapter| {
            if let Some(Command::Commit { actual: Actual::Usage(usage), finality }) = &chapter.command {
                let frozen = story.reserved.rates.expect("a commit by usage needs rates");
                prop_assert_eq!(cost_of(&chapter.event), Some(price(&frozen, *usage, *finality)));
            }
            Ok(())
        })?;
    }

    #[test]
    fn usage_is_the_same_commit_as_its_price_by_the_frozen_rates(
        request in a_reserve(), one in rates(), two in rates(), usage in usage(), is_final: bool,
    ) {
        let finality = if is_final { Finality::Final } else { Finality::Partial };
        let priced = CreditUnit::new(u64::try_from(price(&two, usage, finality)).expect("not negative")).expect("small");
        let commit = |rates, actual| {
            let terms = Terms { rates: Some(rates), ..request.terms };
            let event = reserve(&Reserve { terms, ..request.clone() }, NOW).ok()?;
            let charge = Charge::apply(None, &event).expect("whatever is decided can follow");
            Some(charge.decide(&Command::Commit { actual, finality }, &context(50)))
        };
        // Whatever other rates there are play no part: only those of the reserve do.
        prop_assert_eq!(commit(two, Actual::Usage(usage)), commit(one, Actual::Credits(priced)));
    }

    #[test]
    fn what_left_the_owner_is_what_was_charged(steps in steps()) {
        check(&steps, |world, _| {
            for story in world.charges.values() {
                let taken_back = story.charge.state() == State::Voided;
                prop_assert_eq!(story.revenue, if taken_back { 0 } else { sums(&story.charge).0 });
            }
            let earned: i128 = world.charges.values().map(|story| story.revenue).sum();
            prop_assert_eq!(world.balance(Account::Revenue), earned);
            prop_assert_eq!(world.balance(Account::Treasury), -world.minted.values().sum::<i128>());
            for (owner, minted) in &world.minted {
                prop_assert_eq!(wealth(world, *owner) + spent(world, *owner), *minted);
            }
            Ok(())
        })?;
    }

    #[test]
    fn what_was_charged_and_what_could_not_be_are_the_whole_cost(steps in steps()) {
        check_stories(&steps, |story| {
            let (charged, uncollected) = sums(&story.charge);
            prop_assert_eq!(charged + uncollected, story.cost);
            Ok(())
        })?;
    }

    #[test]
    fn whatever_is_decided_can_follow_even_at_the_edge_of_the_range(
        amount in edge_amount(),
        terms in any_terms(),
        commands in prop::collection::vec((command(edge_amount()), edge_amount(), 0..40u64), 1..40),
    ) {
        let request = Reserve { owner: id("alice"), amount, terms, ttl: Span::from_millis(60), budgets: Budgets::NONE };
        let Ok(event) = reserve(&request, NOW) else { return Ok(()) };
        let mut charge = Charge::apply(None, &event).expect("whatever is decided can follow");
        let mut now = NOW;
        for (command, available, later) in commands {
            now = now.after(Span::from_millis(later));
            if let Ok(event) = charge.decide(&command, &Context { now, available }) {
                let after = Charge::apply(Some(charge), &event);
                prop_assert!(after.is_ok(), "{:?} decided {:?}, which cannot follow it", charge, event);
                charge = after.unwrap();
                let postings = Event::Charge { id: id("c1"), owner: id("alice"), event }.postings();
                prop_assert!(postings.is_ok(), "{:?}", postings);
            }
        }
    }

    #[test]
    fn an_open_hold_can_always_be_released_and_in_time_expires(steps in steps()) {
        check_stories(&steps, |story| {
            if let Charge::Held(hold) = &story.charge {
                let due = Context { now: hold.expires_at, available: CreditUnit::ZERO };
                for command in [Command::Release, Command::Expire] {
                    let event = story.charge.decide(&command, &due);
                    let follows = event.is_ok_and(|event| Charge::apply(Some(story.charge), &event).is_ok());
                    prop_assert!(follows, "{:?}", story);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_commit_that_can_follow_keeps_the_money_whole_and_the_terms(
        hold in any_hold(), taken in any_taken(), last in any::<bool>(),
    ) {
        let finality = if last { Finality::Final } else { Finality::Partial };
        let event = charge::Event::Committed { taken, finality };
        if let Ok(after) = Charge::apply(Some(Charge::Held(hold)), &event) {
            let left = if let Charge::Held(hold) = after { units(hold.held) } else { 0 };
            prop_assert_eq!(units(taken.from_hold) + units(taken.returned) + left, units(hold.held));
            let beyond = units(taken.from_available) + units(taken.uncollected);
            prop_assert!(beyond == 0 || taken.from_hold == hold.held, "beyond a hold that was not used up");
            prop_assert!(taken.from_available.is_zero() || hold.terms.overrun == Overrun::Available);
            prop_assert!(beyond == 0 || hold.terms.overrun != Overrun::Refuse);
            prop_assert_eq!(after.state() == State::Held, finality == Finality::Partial);
        }
    }
}

#[test]
fn the_random_steps_reach_every_kind_and_every_state() {
    let mut runner = TestRunner::new(config());
    let (mut kinds, mut states, mut rare) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for _ in 0..2_000 {
        let steps = steps().new_tree(&mut runner).expect("nothing is filtered").current();
        let mut world = World::new();
        for tried in steps.iter().filter_map(|step| world.take(step)) {
            kinds.insert((tried.event.kind(), tried.admitted));
        }
        for chapter in world.charges.values().flat_map(|story| &story.chapters) {
            states.insert(chapter.after.state().name());
            rare.extend(rarities(chapter));
        }
    }
    let admitted: Vec<_> = kinds.iter().filter(|(_, admitted)| *admitted).map(|(kind, _)| kind.name()).collect();
    assert_eq!(admitted.len(), 15, "{admitted:?}");
    assert_eq!(kinds.iter().filter(|(_, admitted)| !*admitted).count(), 3, "three kinds can be turned away");
    assert_eq!(states.len(), 7, "{states:?}");
    assert_eq!(rare.len(), 10, "{rare:?}");
}

/// What a chapter shows that random steps could easily miss.
fn rarities(chapter: &Chapter) -> Vec<&'static str> {
    let was = |state| chapter.before.is_some_and(|charge| charge.state() == state);
    let from_lapsed = was(State::AutoReleased);
    let found = [
        (is_late(chapter) && from_lapsed && is_final(chapter), "a late result"),
        (is_late(chapter) && from_lapsed && !is_final(chapter), "a late part"),
        (is_late(chapter) && was(State::Committed), "a late result before the peer knew"),
        (is_late(chapter) && was(State::Acked), "a late result after the peer knew"),
        (is_late(chapter) && was(State::Failed), "a late result after the peer could not be told"),
        (voids(chapter) && from_lapsed, "a void of a part"),
        (sums(&chapter.after).1 > 0, "an uncollected cost"),
        (
            matches!(&chapter.event, charge::Event::Committed { taken, .. } if !taken.from_available.is_zero()),
            "an overrun",
        ),
        (
            matches!((&chapter.command, ends(chapter)), (Some(Command::Expire), true)) && commits(chapter),
            "a charged estimate",
        ),
        (
            matches!(chapter.event, charge::Event::Released { .. }) && chapter.after.state() == State::Committed,
            "a release of the rest",
        ),
    ];
    found.into_iter().filter_map(|(is, name)| is.then_some(name)).collect()
}

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn context(available: u64) -> Context {
    Context { now: NOW, available: CreditUnit::new(available).expect("small") }
}

/// Whether the account may never be below zero, by the specification's own list.
const fn is_guarded(account: &Account) -> bool {
    match account {
        Account::Available(_) | Account::Held(_) | Account::Escrow(_) | Account::Payee(_) => true,
        Account::Revenue | Account::Treasury => false,
    }
}

fn reserves(chapter: &Chapter) -> bool {
    matches!(chapter.event, charge::Event::Reserved { .. })
}

/// Whether the hold ended with this: committed for good, released or auto-released.
fn ends(chapter: &Chapter) -> bool {
    let open = chapter.before.is_some_and(|charge| charge.state() == State::Held);
    let last = matches!(
        chapter.event,
        charge::Event::Committed { finality: Finality::Final, .. }
            | charge::Event::Released { .. }
            | charge::Event::AutoReleased { .. }
    );
    open && last
}

/// Whether the hold was given back because its time had come.
fn lapses(chapter: &Chapter) -> bool {
    matches!(chapter.event, charge::Event::AutoReleased { .. })
}

fn is_final(chapter: &Chapter) -> bool {
    matches!(chapter.event, charge::Event::Committed { finality: Finality::Final, .. })
}

fn ended(charge: &Charge) -> Option<Ended> {
    closed(charge).map(|closed| closed.ended)
}

fn commits(chapter: &Chapter) -> bool {
    matches!(chapter.event, charge::Event::Committed { .. })
}

/// Whether this charged for work whose hold had already ended.
fn is_late(chapter: &Chapter) -> bool {
    commits(chapter) && chapter.before.is_some_and(|charge| charge.state() != State::Held)
}

fn voids(chapter: &Chapter) -> bool {
    matches!(chapter.event, charge::Event::Voided { .. })
}

fn cost_of(event: &charge::Event) -> Option<i128> {
    if let charge::Event::Committed { taken, .. } = event {
        Some(units(taken.from_hold) + units(taken.from_available) + units(taken.uncollected))
    } else {
        None
    }
}

/// What an owner still has, wherever it is.
fn wealth(world: &World, owner: OwnerId) -> i128 {
    let escrows = world.escrows.iter().filter(|(_, (_, of))| *of == owner);
    let escrowed: i128 = escrows.map(|(id, _)| world.balance(Account::Escrow(*id))).sum();
    world.balance(Account::Available(owner)) + world.balance(Account::Held(owner)) + escrowed
}

/// What an owner has paid, for charges and to payees.
fn spent(world: &World, owner: OwnerId) -> i128 {
    let charges = world.charges.values().filter(|story| story.owner == owner);
    charges.map(|story| story.revenue).sum::<i128>() + world.paid_out.get(&owner).copied().unwrap_or(0)
}

fn posting(place: Place, units: i64) -> Posting {
    Posting { place, change: Change::from_units(units) }
}

/// Any change at all, and often one near another, so that some almost balance.
fn any_change() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -3..=3i64, Just(i64::MAX), Just(i64::MIN)]
}

/// A change such that two of them are still an amount.
fn small_change() -> impl Strategy<Value = i64> {
    let half = i64::try_from(AMOUNT_MAX / 2).expect("AMOUNT_MAX fits i64");
    prop_oneof![-half..=half, -3..=3i64]
}

fn edge_amount() -> impl Strategy<Value = CreditUnit> + Clone {
    let around = |middle: u64| middle - 2..=middle;
    let units = prop_oneof![0..3u64, around(AMOUNT_MAX / 2), around(AMOUNT_MAX)];
    units.prop_map(|units| CreditUnit::new(units).expect("in range"))
}

fn few() -> impl Strategy<Value = CreditUnit> {
    (0..6u64).prop_map(|units| CreditUnit::new(units).expect("in range"))
}

fn any_hold() -> impl Strategy<Value = Hold> {
    (few(), few(), any_terms()).prop_map(|(held, charged, terms)| Hold {
        held,
        charged,
        uncollected: CreditUnit::ZERO,
        noted: CreditUnit::ZERO,
        stage: Stage::InFlight,
        terms,
        expires_at: NOW,
    })
}

fn any_taken() -> impl Strategy<Value = Taken> {
    (few(), few(), few(), few()).prop_map(|(from_hold, from_available, returned, uncollected)| Taken {
        from_hold,
        from_available,
        returned,
        uncollected,
    })
}
