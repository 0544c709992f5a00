//! The life of a queue item as tables: every state × every command, and every state × every end of its escrow.
//!
//! A command is written `start`, `finish`, `abandon user_disconnected` or `partial quality_issue 70+30`: 70 to the payee, 30
//! back to the user. What the wallet is to do is written as in the escrow's tables, with the cause of the ruling.

use crate::table::{credits, id, read, rows};
use holdfast_domain::escrow::{self, Escrowed, Ruling};
use holdfast_domain::queue::{
    Cause, End, Intake, Item, NotACause, Order, Refusal, Stage, State, Verdict, accepts, enqueue,
};
use holdfast_domain::{CreditUnit, Escrow, Span, Timestamp};

const QUEUED_AT: Timestamp = Timestamp::from_millis(1_000);
const STARTED_AT: Timestamp = Timestamp::from_millis(2_000);
const ENDED_AT: Timestamp = Timestamp::from_millis(3_000);
const NOW: Timestamp = Timestamp::from_millis(4_000);

/// What is asked of every state, beside every cause of an abandonment and of a division: an item of 100.
const OTHERS: [&str; 9] = [
    "start",
    "finish",
    "partial partial_delivery 100+0",
    "partial partial_delivery 0+100",
    "partial partial_delivery 0+0",
    "partial partial_delivery 70+29",
    "partial partial_delivery 70+31",
    "partial partial_delivery 1000000000000+100",
    "partial performance_completed 70+29",
];

const STATES: [&str; 5] = ["queued", "in_progress", "finished", "abandoned", "partial"];

#[test]
fn an_item_in_progress_is_finished_abandoned_or_divided_to_the_last_unit() {
    check(
        "in_progress",
        "
        start                                     | refused: in_progress, not queued     |
        finish                                    | settle bob for performance_completed | finished
        partial partial_delivery 100+0            | divide bob 100+0 for partial_delivery | partial
        partial partial_delivery 0+100            | divide bob 0+100 for partial_delivery | partial
        partial partial_delivery 0+0              | refused: split 100                   |
        partial partial_delivery 70+29            | refused: split 100                   |
        partial partial_delivery 70+31            | refused: split 100                   |
        partial partial_delivery 1000000000000+100 | refused: split 100                  |
        partial performance_completed 70+29       | refused: cause performance_completed |
        abandon performance_completed             | refused: cause performance_completed |
        abandon user_disconnected                 | refund for user_disconnected         | abandoned
        abandon performer_declined                | refund for performer_declined        | abandoned
        abandon rope_drop_timeout                 | refund for rope_drop_timeout         | abandoned
        abandon admin_cancelled                   | refund for admin_cancelled           | abandoned
        abandon partial_delivery                  | refund for partial_delivery          | abandoned
        abandon quality_issue                     | refund for quality_issue             | abandoned
        partial performance_completed 70+30       | refused: cause performance_completed |
        partial user_disconnected 70+30           | divide bob 70+30 for user_disconnected | partial
        partial performer_declined 70+30          | divide bob 70+30 for performer_declined | partial
        partial rope_drop_timeout 70+30           | divide bob 70+30 for rope_drop_timeout | partial
        partial admin_cancelled 70+30             | divide bob 70+30 for admin_cancelled | partial
        partial partial_delivery 70+30            | divide bob 70+30 for partial_delivery | partial
        partial quality_issue 70+30               | divide bob 70+30 for quality_issue   | partial
        ",
    );
}

#[test]
fn a_queued_item_is_taken_up_or_abandoned_and_nothing_else() {
    let row = |command: &str| {
        let (outcome, then) = match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["start"] => ("in_progress".to_owned(), "in_progress"),
            ["abandon", "performance_completed"] => ("refused: cause performance_completed".to_owned(), ""),
            ["abandon", cause] => (format!("refund for {cause}"), "abandoned"),
            // That it was not taken up comes before whatever else is wrong with it.
            _ => ("refused: queued, not in_progress".to_owned(), ""),
        };
        format!("{command} | {outcome} | {then}")
    };
    check("queued", &commands().iter().map(|command| row(command)).collect::<Vec<_>>().join("\n"));
}

#[test]
fn an_item_that_has_ended_refuses_everything_and_says_what_it_is_and_would_have_to_be() {
    for state in ["finished", "abandoned", "partial"] {
        let row = |command: &String| {
            let expected = match command.split_whitespace().next() {
                Some("start") => "queued",
                Some("abandon") => "queued or in_progress",
                _ => "in_progress",
            };
            format!("{command} | refused: {state}, not {expected} |")
        };
        check(state, &commands().iter().map(row).collect::<Vec<_>>().join("\n"));
    }
}

/// How an item that was not seen to end has ended, by what its escrow did on whose word; a dot is an item that stays.
const ENDED_AS: &str = "
    escrow                          | queued and in_progress
    held                            | .
    settled bob                     | finish
    settled bob by q1 performance_completed | finish
    settled carol                   | finish
    refunded                        | abandon admin_cancelled
    refunded by q1 user_disconnected | abandon user_disconnected
    refunded by q1 performer_declined | abandon performer_declined
    refunded by q1 rope_drop_timeout | abandon rope_drop_timeout
    refunded by q1 admin_cancelled  | abandon admin_cancelled
    refunded by q1 partial_delivery | abandon partial_delivery
    refunded by q1 quality_issue    | abandon quality_issue
    divided bob 70+30               | partial admin_cancelled 70+30
    divided bob 70+30 by q1 quality_issue | partial quality_issue 70+30
    divided bob 100+0 by q1 partial_delivery | partial partial_delivery 100+0
    divided bob 0+100 by q1 user_disconnected | partial user_disconnected 0+100
    settled bob by q2 performance_completed | abandon admin_cancelled
    refunded by q2 user_disconnected | abandon admin_cancelled
    divided bob 70+30 by q2 quality_issue | abandon admin_cancelled
";

#[test]
fn an_item_whose_end_was_lost_ends_as_its_escrow_did() {
    for row in rows(ENDED_AS).skip(1) {
        let (event, ruling) = read(row[0], parse_escrow_end);
        for state in ["queued", "in_progress"] {
            let before = item(state);
            let after = before.ended_as(&event, ruling, NOW);
            let expected = (row[1] != ".").then(|| {
                let verdict = read(row[1], parse_verdict);
                let end = End { verdict, started_at: before.started_at(), ended_at: NOW };
                Item { stage: Stage::Ended(end), ..before.clone() }
            });
            assert_eq!(after, expected, "{state}, and its escrow is {}", row[0]);
        }
    }
}

#[test]
fn an_item_that_has_ended_stays_as_it_is_whatever_its_escrow_says() {
    for row in rows(ENDED_AS).skip(1) {
        let (event, ruling) = read(row[0], parse_escrow_end);
        for state in ["finished", "abandoned", "partial"] {
            assert_eq!(item(state).ended_as(&event, ruling, NOW), None, "{state}, and its escrow is {}", row[0]);
        }
    }
}

#[test]
fn an_open_item_ends_as_its_escrow_did_even_if_the_queue_would_not_have_said_so() {
    for verdict in commands().iter().filter(|command| *command != "start").map(|command| read(command, parse_verdict)) {
        for state in ["queued", "in_progress"] {
            let before = item(state);
            let end = End { verdict, started_at: before.started_at(), ended_at: NOW };
            let after = Item { stage: Stage::Ended(end), ..before.clone() };
            assert_eq!(before.end(verdict, NOW), Ok(after), "{state}: {verdict:?}");
        }
    }
}

#[test]
fn a_new_item_waits_until_its_rope_drops_if_it_has_one() {
    let check = |rope_drop: Option<u64>, drop_at: Option<u64>| {
        let drop_at = drop_at.map(Timestamp::from_millis);
        let expected = Item { intake: intake(), queued_at: QUEUED_AT, stage: Stage::Queued { drop_at } };
        assert_eq!(enqueue(intake(), QUEUED_AT, rope_drop.map(Span::from_millis)), expected);
    };
    check(None, None);
    check(Some(0), Some(1_000));
    check(Some(500), Some(1_500));
    check(Some(u64::MAX), Some(u64::MAX));
}

#[test]
fn an_item_is_overdue_from_its_drop_on_and_only_while_it_waits() {
    let waiting = enqueue(intake(), QUEUED_AT, Some(Span::from_millis(500)));
    for (now, expected) in [(1_000, false), (1_499, false), (1_500, true), (1_501, true), (u64::MAX, true)] {
        let now = Timestamp::from_millis(now);
        assert_eq!(waiting.is_overdue(now), expected, "{now}");
        assert!(!enqueue(intake(), QUEUED_AT, None).is_overdue(now), "without a rope nothing drops: {now}");
        let started = waiting.start(STARTED_AT).expect("it waits");
        assert!(!started.is_overdue(now), "taken up: {now}");
        assert!(!started.end(Verdict::Finish, ENDED_AT).expect("it is open").is_overdue(now), "ended: {now}");
    }
    // Taken up late is taken up: nobody has dropped it yet.
    assert_eq!(waiting.start(NOW).map(|item| item.state()), Ok(State::InProgress));
}

#[test]
fn the_higher_priority_goes_first_then_the_older_then_the_smaller_name() {
    let in_order = [
        (i32::MAX, 9, "q9"),
        (7, 1, "q5"),
        (7, 2, "q1"),
        (7, 2, "q10"),
        (7, 2, "q2"),
        (0, 1, "q3"),
        (-1, 0, "q4"),
        (i32::MIN, 0, "q0"),
    ];
    let item = |(priority, at, name): (i32, u64, &str)| {
        let intake = Intake { id: id(name), priority, ..intake() };
        enqueue(intake, Timestamp::from_millis(at), None)
    };
    let expected: Vec<Item> = in_order.map(item).into();
    let mut items: Vec<Item> = expected.iter().rev().cloned().collect();
    items.sort_by_key(Item::rank);
    assert_eq!(items, expected);
    // A place in the order does not depend on how far an item is.
    let started = expected[0].start(STARTED_AT).expect("it waits");
    assert_eq!(started.rank(), expected[0].rank());
    assert_eq!(started.end(Verdict::Finish, ENDED_AT).expect("it is open").rank(), expected[0].rank());
}

#[test]
fn an_escrow_is_good_for_an_item_if_it_is_held_and_agrees_in_everything() {
    let good = escrowed("100", "solo");
    let table: [(&str, Escrow, &str, bool); 9] = [
        ("the same", Escrow::Held(good), "alice", true),
        ("another's", Escrow::Held(good), "bob", false),
        ("less", Escrow::Held(escrowed("99.999999", "solo")), "alice", false),
        ("more", Escrow::Held(escrowed("100.000001", "solo")), "alice", false),
        ("for other work", Escrow::Held(escrowed("100", "group")), "alice", false),
        ("held later", Escrow::Held(Escrowed { held_at: NOW, ..good }), "alice", true),
        ("settled", Escrow::Settled(good), "alice", false),
        ("refunded", Escrow::Refunded(good), "alice", false),
        ("partial", Escrow::Partial(good), "alice", false),
    ];
    for (case, escrow, owner, expected) in table {
        assert_eq!(accepts(&intake(), &escrow, id(owner)), expected, "{case}");
    }
}

#[test]
fn every_cause_has_one_name_and_nothing_else_is_one() {
    for cause in Cause::ALL {
        assert_eq!(cause.name().parse(), Ok(cause));
        assert_eq!(cause.to_string(), cause.name());
    }
    let names = Cause::ALL.map(Cause::name);
    for bad in ["", "Quality_Issue", "quality_issue ", "quality-issue", "timeout", "PERFORMANCE_COMPLETED"] {
        assert_eq!(bad.parse::<Cause>(), Err(NotACause), "{bad:?}");
    }
    let said = NotACause.to_string();
    assert!(names.iter().all(|name| said.contains(name)), "whoever slipped is told all of them: {said}");
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), Cause::ALL.len());
}

#[test]
fn every_state_has_its_name_and_only_three_are_ends() {
    assert_eq!(State::ALL.map(State::name), STATES);
    for (state, name) in State::ALL.into_iter().zip(STATES) {
        assert_eq!((item(name).state(), state.to_string().as_str()), (state, name));
    }
    assert_eq!(State::ALL.map(State::is_end), [false, false, true, true, true]);
}

#[test]
fn a_verdict_names_its_state_its_cause_and_what_the_wallet_does() {
    for (verdict, state, cause, operation) in [
        ("finish", "finished", "performance_completed", "settle"),
        ("abandon rope_drop_timeout", "abandoned", "rope_drop_timeout", "refund"),
        ("partial quality_issue 70+30", "partial", "quality_issue", "partial"),
    ] {
        let verdict = read(verdict, parse_verdict);
        let said = (verdict.state().name(), verdict.cause().name(), verdict.operation());
        assert_eq!(said, (state, cause, operation));
    }
}

/// What is asked of every state.
fn commands() -> Vec<String> {
    let others = OTHERS.iter().map(|command| (*command).to_owned());
    let abandons = Cause::ALL.iter().map(|cause| format!("abandon {cause}"));
    let partials = Cause::ALL.iter().map(|cause| format!("partial {cause} 70+30"));
    others.chain(abandons).chain(partials).collect()
}

/// Every one of [`commands`], in that order, does to `state` what the table says: `command | outcome | then`. What the wallet
/// is told is carried out on an escrow, and by either way the item ends the same.
fn check(state: &str, table: &str) {
    let before = item(state);
    let rows: Vec<_> = rows(table).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), commands(), "every command, once, in order");
    for row in rows {
        let [command, outcome, then] = row[..] else { unreachable!("three cells: {row:?}") };
        let what = format!("{state}: {command}");
        let after = if command == "start" {
            let started = before.start(STARTED_AT);
            assert_eq!(started.clone().map(|item| item.state()), read(outcome, parse_started), "{what}");
            started.ok()
        } else {
            let verdict = read(command, parse_verdict);
            let order = before.order(verdict);
            assert_eq!(order, read(outcome, parse_order), "{what}");
            order.ok().map(|order| carried_out(&before, verdict, &order))
        };
        assert_eq!(after.map_or("", |item| item.state().name()), then, "{what}");
        if before.state().is_end() && command != "start" {
            let refused = before.order(read(command, parse_verdict)).expect_err("it has ended");
            assert_eq!(before.end(read(command, parse_verdict), NOW), Err(refused), "{what}");
        }
    }
}

/// The item after the wallet has done what it was told.
fn carried_out(before: &Item, verdict: Verdict, order: &Order) -> Item {
    let held = Escrow::Held(escrowed("100", "solo"));
    let event = held.decide(order.command).expect("the wallet can do whatever the queue may say");
    let seen = before.end(verdict, ENDED_AT).expect("it was allowed");
    assert_eq!(
        before.ended_as(&event, Some(order.ruling), ENDED_AT).as_ref(),
        Some(&seen),
        "the escrow tells the same"
    );
    assert_eq!(seen.started_at(), before.started_at());
    seen
}

fn intake() -> Intake {
    Intake {
        id: id("q1"),
        user: id("alice"),
        payee: id("bob"),
        escrow: id("e1"),
        amount: amount("100"),
        feature: id("solo"),
        priority: 0,
        metadata: Some("{}".into()),
    }
}

fn item(state: &str) -> Item {
    let ended = |verdict, started_at| Stage::Ended(End { verdict, started_at, ended_at: ENDED_AT });
    let cause = Cause::QualityIssue;
    let (settle, refund) = (amount("70"), amount("30"));
    let stage = read(state, |words| match words {
        ["queued"] => Some(Stage::Queued { drop_at: None }),
        ["in_progress"] => Some(Stage::InProgress { started_at: STARTED_AT }),
        ["finished"] => Some(ended(Verdict::Finish, Some(STARTED_AT))),
        ["abandoned"] => Some(ended(Verdict::Abandon { cause }, None)),
        ["partial"] => Some(ended(Verdict::Partial { settle, refund, cause }, Some(STARTED_AT))),
        _ => None,
    });
    Item { intake: intake(), queued_at: QUEUED_AT, stage }
}

fn amount(text: &str) -> CreditUnit {
    credits(text).expect("an amount")
}

fn escrowed(text: &str, feature: &str) -> Escrowed {
    Escrowed { amount: amount(text), feature: id(feature), held_at: Timestamp::EPOCH }
}

fn parts(text: &str) -> Option<(CreditUnit, CreditUnit)> {
    let (settle, refund) = text.split_once('+')?;
    Some((credits(settle)?, credits(refund)?))
}

fn parse_verdict(words: &[&str]) -> Option<Verdict> {
    Some(match words {
        ["finish"] => Verdict::Finish,
        ["abandon", cause] => Verdict::Abandon { cause: cause.parse().ok()? },
        ["partial", cause, both] => {
            let (settle, refund) = parts(both)?;
            Verdict::Partial { settle, refund, cause: cause.parse().ok()? }
        }
        _ => return None,
    })
}

fn parse_started(words: &[&str]) -> Option<Result<State, Refusal>> {
    if words == ["in_progress"] { Some(Ok(State::InProgress)) } else { parse_refusal(words).map(Err) }
}

fn parse_order(words: &[&str]) -> Option<Result<Order, Refusal>> {
    let (command, cause) = match words {
        ["settle", payee, "for", cause] => (escrow::Command::Settle { payee: id(payee) }, cause),
        ["refund", "for", cause] => (escrow::Command::Refund, cause),
        ["divide", payee, both, "for", cause] => {
            let (settle, refund) = parts(both)?;
            (escrow::Command::PartialSettle { payee: id(payee), settle, refund }, cause)
        }
        _ => return parse_refusal(words).map(Err),
    };
    Some(Ok(Order { command, ruling: Ruling { item: id("q1"), cause: cause.parse().ok()? } }))
}

fn parse_refusal(words: &[&str]) -> Option<Refusal> {
    Some(match words {
        ["refused:", "split", amount] => Refusal::InvalidSplit { amount: credits(amount)? },
        ["refused:", "cause", cause] => Refusal::InvalidCause(cause.parse().ok()?),
        ["refused:", current, "not", expected @ ..] => {
            let current = item(current.strip_suffix(',')?).state();
            let expected: &'static [State] = match expected {
                ["queued"] => &[State::Queued],
                ["in_progress"] => &[State::InProgress],
                ["queued", "or", "in_progress"] => &[State::Queued, State::InProgress],
                _ => return None,
            };
            Refusal::InvalidState { current, expected }
        }
        _ => return None,
    })
}

fn parse_escrow_end(words: &[&str]) -> Option<(escrow::Event, Option<Ruling>)> {
    let (event, ruling) = match words {
        [event @ .., "by", item, cause] => (event, Some(Ruling { item: id(item), cause: cause.parse().ok()? })),
        event => (event, None),
    };
    let event = match event {
        ["held"] => escrow::Event::Held(escrowed("100", "solo")),
        ["settled", payee] => escrow::Event::Settled { payee: id(payee), amount: amount("100") },
        ["refunded"] => escrow::Event::Refunded { amount: amount("100") },
        ["divided", payee, both] => {
            let (settled, refunded) = parts(both)?;
            escrow::Event::PartiallySettled { payee: id(payee), settled, refunded }
        }
        _ => return None,
    };
    Some((event, ruling))
}
