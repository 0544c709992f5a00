//! The queue beside its wallet over random steps with crashes: whatever is lost, each escrow's money is in one place, and
//! every item says of it what happened.
//!
//! The steps run against [`World`]. The seed is fixed; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` try others.

use crate::queue_world::{CALLERS, Kept, MINTED, Step, World, payees, units, users};
use crate::table::id;
use holdfast_domain::escrow::{Command, Event, Hold};
use holdfast_domain::queue::{Cause, Intake, Item, Stage, Verdict};
use holdfast_domain::{Account, CreditUnit, Escrow, EscrowId, ItemId, PayeeId, Span};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestCaseResult, TestRunner};
use std::collections::{BTreeMap, BTreeSet};

fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let rng_seed = match given.rng_seed {
        RngSeed::Random => RngSeed::Fixed(20_261_116),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    ProptestConfig { cases: given.cases.max(1_024), rng_seed, failure_persistence: None, ..given }
}

/// The world after all steps and a restart of the queue.
fn after(steps: &[Step]) -> World {
    let mut world = World::new();
    steps.iter().for_each(|step| world.take(step));
    world.take(&Step::Crash(0));
    world
}

/// What an escrow's end gave to its payee and to its user.
fn parts(kept: &Kept) -> (Option<PayeeId>, i128, i128) {
    match kept.end.map(|(event, ..)| event) {
        None | Some(Event::Held(_)) => (None, 0, 0),
        Some(Event::Settled { payee, amount }) => (Some(payee), units(amount), 0),
        Some(Event::Refunded { amount }) => (None, 0, units(amount)),
        Some(Event::PartiallySettled { payee, settled, refunded }) => (Some(payee), units(settled), units(refunded)),
    }
}

/// Whether an item says of its money what its escrow did with it.
fn agree(item: &Item, kept: &Kept) -> TestCaseResult {
    let Some((event, ruling, at)) = kept.end else {
        prop_assert!(!item.state().is_end(), "{:?} has ended, and its escrow has not", item);
        return Ok(());
    };
    let Stage::Ended(end) = item.stage else {
        return Err(TestCaseError::fail(format!("{item:?} has not ended, and its escrow has: {event:?}")));
    };
    prop_assert_eq!(end.ended_at, at);
    if ruling.is_some_and(|ruling| ruling.item != item.intake.id) {
        prop_assert_eq!(end.verdict, Verdict::Abandon { cause: Cause::AdminCancelled }, "it never had the money");
        return Ok(());
    }
    let amount = units(item.intake.amount);
    let said = match end.verdict {
        Verdict::Finish => (amount, 0),
        Verdict::Abandon { .. } => (0, amount),
        Verdict::Partial { settle, refund, .. } => (units(settle), units(refund)),
    };
    let (payee, settled, refunded) = parts(kept);
    prop_assert_eq!(said, (settled, refunded));
    if let Some(ruling) = ruling {
        prop_assert_eq!(end.verdict.cause(), ruling.cause);
        prop_assert!(payee.is_none_or(|payee| payee == item.intake.payee), "{:?} was paid for {:?}", payee, item);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_item_agrees_with_its_escrow_once_the_queue_has_started_again(steps in steps()) {
        let world = after(&steps);
        for item in world.items.values() {
            agree(item, &world.escrows[&item.intake.escrow])?;
        }
    }

    #[test]
    fn the_money_of_each_escrow_is_in_exactly_one_place(steps in steps()) {
        let world = after(&steps);
        let mut earned: BTreeMap<PayeeId, i128> = payees().into_iter().map(|payee| (payee, 0)).collect();
        let mut has: BTreeMap<_, i128> = users().into_iter().map(|user| (user, MINTED)).collect();
        for (id, kept) in &world.escrows {
            let amount = units(kept.escrow.escrowed().amount);
            let (payee, settled, refunded) = parts(kept);
            let held = if matches!(kept.escrow, Escrow::Held(_)) { amount } else { 0 };
            prop_assert_eq!(world.balance(Account::Escrow(*id)), held);
            prop_assert_eq!(held + settled + refunded, amount);
            prop_assert!(kept.entries <= 2, "{} entries of {}", kept.entries, id);
            *has.get_mut(&kept.owner).expect("one of the users") += refunded - amount;
            if let Some(payee) = payee {
                *earned.entry(payee).or_insert(0) += settled;
            }
        }
        for (user, has) in has {
            prop_assert_eq!(world.balance(Account::Available(user)), has);
        }
        for (payee, earned) in earned {
            prop_assert_eq!(world.balance(Account::Payee(payee)), earned);
        }
        prop_assert_eq!(world.book.values().sum::<i128>(), MINTED * 2, "two users were given this, and nothing came or went");
    }

    #[test]
    fn an_end_that_anybody_saw_is_the_end_for_ever(steps in steps()) {
        let world = after(&steps);
        for (id, end) in &world.seen {
            prop_assert_eq!(world.items[id].stage, Stage::Ended(*end));
        }
        for (id, verdict) in &world.told {
            let Stage::Ended(end) = world.items[id].stage else {
                return Err(TestCaseError::fail(format!("{id} was told to have ended")));
            };
            prop_assert_eq!(end.verdict, *verdict);
        }
    }

    #[test]
    fn no_escrow_pays_for_two_items(steps in steps()) {
        let world = after(&steps);
        for (id, kept) in &world.escrows {
            let items = || world.items.values().filter(|item| item.intake.escrow == *id);
            let open = items().filter(|item| !item.state().is_end()).count();
            prop_assert!(open <= 1, "{} items wait for {}", open, id);
            // Of an escrow that the queue ended, one item has the money, and it is the one of the ruling.
            if let Some((_, Some(ruling), _)) = kept.end {
                let paid = |item: &&Item| matches!(item.stage, Stage::Ended(end) if end.verdict != Verdict::Abandon { cause: Cause::AdminCancelled });
                prop_assert!(items().filter(paid).all(|item| item.intake.id == ruling.item));
                prop_assert!(world.items.contains_key(&ruling.item));
            }
        }
    }

    #[test]
    fn starting_the_queue_again_changes_nothing_more(steps in steps()) {
        let mut world = after(&steps);
        let before = world.items.clone();
        world.take(&Step::Crash(u64::MAX));
        prop_assert_eq!(&world.items, &before);
        world.take(&Step::Crash(0));
        prop_assert_eq!(&world.items, &before);
    }
}

#[test]
fn the_random_steps_reach_what_could_easily_be_missed() {
    let mut runner = TestRunner::new(config());
    let mut rare = BTreeSet::new();
    let mut states = BTreeSet::new();
    for _ in 0..2_000 {
        let steps = steps().new_tree(&mut runner).expect("nothing is filtered").current();
        let world = after(&steps);
        states.extend(world.items.values().map(|item| item.state().name()));
        states.extend(world.told.iter().map(|(_, verdict)| verdict.cause().name()));
        rare.extend(world.rare);
    }
    assert_eq!(states.len(), 5 + Cause::ALL.len(), "{states:?}");
    let expected = [
        "a crash between the wallet's act and the item's end",
        "a finish of what nobody took up",
        "an end that was lost and told again",
        "an escrow that had ended otherwise",
        "an item that came after its escrow had ended",
        "an operator's end",
        "the same key for another word",
        "the same word twice",
    ];
    assert_eq!(rare, expected.into());
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

fn step() -> impl Strategy<Value = Step> {
    let caller = || 0..CALLERS;
    let hold = (user(), amount()).prop_map(|(owner, amount)| Hold { owner, amount, feature: id("solo") });
    let rope = prop::option::of((0..60u64).prop_map(Span::from_millis));
    prop_oneof![
        4 => (escrow_id(), hold).prop_map(|(id, hold)| Step::Hold(id, hold)),
        6 => (caller(), intake(), rope).prop_map(|(caller, intake, rope)| Step::Intake(caller, intake, rope)),
        5 => item_id().prop_map(Step::Start),
        10 => (caller(), item_id(), verdict()).prop_map(|(caller, item, verdict)| Step::Decide(caller, item, verdict)),
        2 => caller().prop_map(Step::Drop),
        20 => caller().prop_map(Step::GoOn),
        1 => caller().prop_map(Step::HangUp),
        1 => (escrow_id(), operators()).prop_map(|(id, command)| Step::Operator(id, command)),
        2 => Just(Step::Sync),
        2 => any::<u64>().prop_map(Step::Crash),
        2 => (0..40u64).prop_map(|ms| Step::Wait(Span::from_millis(ms))),
    ]
}

fn user() -> impl Strategy<Value = holdfast_domain::OwnerId> {
    prop::sample::select(users())
}

fn payee() -> impl Strategy<Value = PayeeId> {
    prop::sample::select(payees())
}

fn escrow_id() -> impl Strategy<Value = EscrowId> {
    prop::sample::select(vec![id("e1"), id("e2"), id("e3")])
}

fn item_id() -> impl Strategy<Value = ItemId> {
    prop::sample::select(vec![id("q1"), id("q2"), id("q3"), id("q4")])
}

/// Few amounts, so that an item often fits an escrow.
fn amount() -> impl Strategy<Value = CreditUnit> {
    prop::sample::select(vec![small(0), small(40), small(40), small(40), small(90)])
}

fn small(units: u64) -> CreditUnit {
    CreditUnit::new(units).expect("a small amount")
}

fn intake() -> impl Strategy<Value = Intake> {
    (item_id(), user(), payee(), escrow_id(), amount(), -1..2i32).prop_map(
        |(id_of, user, payee, escrow, amount, priority)| Intake {
            id: id_of,
            user,
            payee,
            escrow,
            amount,
            feature: id("solo"),
            priority,
            metadata: None,
        },
    )
}

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(Cause::ALL.to_vec())
}

/// Parts that mostly add up to one of the amounts.
fn split() -> impl Strategy<Value = (CreditUnit, CreditUnit)> {
    let of = |whole: u64| (0..=whole).prop_map(move |part| (small(part), small(whole - part)));
    prop_oneof![6 => of(40), 2 => of(90), 1 => (amount(), amount())]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        2 => Just(Verdict::Finish),
        2 => cause().prop_map(|cause| Verdict::Abandon { cause }),
        2 => (split(), cause()).prop_map(|((settle, refund), cause)| Verdict::Partial { settle, refund, cause }),
    ]
}

fn operators() -> impl Strategy<Value = Command> {
    prop_oneof![
        payee().prop_map(|payee| Command::Settle { payee }),
        Just(Command::Refund),
        (payee(), split()).prop_map(|(payee, (settle, refund))| Command::PartialSettle { payee, settle, refund }),
    ]
}
