//! A checker that never fired proves nothing: every kind of damage is planted here and must be named.

use super::*;
use crate::torture::books::{REVENUE, TREASURY};
use crate::torture::history::Receipt;
use crate::torture::order::{Body, Order};
use std::time::Duration;

/// A mint, a reservation of it, and a commit of half: as sent, as journalled, and as told.
struct Case {
    history: History,
    entries: Vec<Entry>,
    told: BTreeMap<String, Micro>,
}

const AVAILABLE: &str = "user:a0:available";
const HELD: &str = "user:a0:held";

fn micro(credits: i128) -> Micro {
    Micro(credits * 1_000_000)
}

fn posting(account: &str, credits: i128) -> (String, Micro) {
    (account.to_owned(), micro(credits))
}

fn sound() -> Case {
    let bodies = [
        Body::Mint { account: 0, amount: micro(10) },
        Body::Reserve { account: 0, amount: micro(8), ttl_s: 9 },
        Body::Commit { charge: 2, actual: micro(3) },
    ];
    let postings = [
        vec![posting(TREASURY, -10), posting(AVAILABLE, 10)],
        vec![posting(AVAILABLE, -8), posting(HELD, 8)],
        vec![posting(HELD, -8), posting(REVENUE, 3), posting(AVAILABLE, 5)],
    ];
    let start = Instant::now();
    let mut history = History::default();
    let mut entries = Vec::new();
    for ((number, body), postings) in (1_u32..).zip(bodies).zip(postings) {
        let order = Order { number: number.into(), body };
        let offset = u64::from(number);
        let fate = Fate::Done {
            receipt: Receipt { offset, body: String::new() },
            at: start + Duration::from_secs(1) * number + Duration::from_millis(1),
        };
        history.sent.push(Sent { order, sent_at: start + Duration::from_secs(1) * number, fate, verified: false });
        let (kind, key, subject) = (order.kind().to_owned(), order.key(), order.subject());
        entries.push(Entry { offset, kind, key, subject, postings, balances: Vec::new() });
    }
    let told = [posting(TREASURY, -10), posting(AVAILABLE, 7), posting(REVENUE, 3)].into();
    Case { history, entries, told }
}

fn check(plant: impl FnOnce(&mut Case), expected: &str) {
    let mut case = sound();
    plant(&mut case);
    let findings = audit(&case.history, &case.entries, &case.told).join("\n");
    assert!(findings.contains(expected), "expected {expected:?}, found {findings:?}");
}

#[test]
fn a_sound_journal_has_no_findings() {
    let Case { history, entries, told } = sound();
    assert_eq!(audit(&history, &entries, &told), Vec::<String>::new());
}

#[test]
fn an_acknowledged_entry_that_is_gone_is_noticed() {
    check(|case| drop(case.entries.pop()), "acknowledged at offset 3 and not in the journal");
    check(|case| drop(case.entries.remove(1)), "entry 2 is missing");
}

#[test]
fn a_request_that_was_done_twice_is_noticed() {
    let again = |case: &mut Case| {
        let first = case.entries.first().unwrap().clone();
        case.entries.push(Entry { offset: 4, ..first });
    };
    check(again, "was done twice, by entries 1 and 4");
}

#[test]
fn an_entry_that_nobody_asked_for_is_noticed() {
    check(|case| drop(case.history.sent.remove(1)), "nobody asked for it");
}

#[test]
fn an_entry_of_a_refused_request_is_noticed() {
    let refuse = |case: &mut Case| {
        case.history.sent.last_mut().unwrap().fate = Fate::Refused { code: "X".to_owned() };
    };
    check(refuse, "refused with X, and yet entry 3");
}

#[test]
fn an_entry_at_another_offset_than_was_told_is_noticed() {
    let move_it = |case: &mut Case| match &mut case.history.sent.last_mut().unwrap().fate {
        Fate::Done { receipt, .. } => receipt.offset = 9,
        Fate::Unknown | Fate::Refused { .. } => unreachable!("all of the case is done"),
    };
    check(move_it, "acknowledged at offset 9, and stands at 3");
}

#[test]
fn postings_that_are_not_what_was_asked_for_are_noticed() {
    let more = |case: &mut Case| case.entries.first_mut().unwrap().postings.last_mut().unwrap().1 = micro(11);
    check(more, "and was to post");
    let wrong_balance = |case: &mut Case| case.entries.first_mut().unwrap().balances.push(posting(AVAILABLE, 9));
    check(wrong_balance, "it says that user:a0:available is then 9");
}

#[test]
fn a_balance_below_zero_is_noticed() {
    let overdraw = |case: &mut Case| {
        let order = Order { number: 2, body: Body::Reserve { account: 0, amount: micro(11), ttl_s: 9 } };
        case.history.sent.get_mut(1).unwrap().order = order;
        case.entries.get_mut(1).unwrap().postings = vec![posting(AVAILABLE, -11), posting(HELD, 11)];
    };
    check(overdraw, "it leaves user:a0:available at -1");
}

#[test]
fn a_balance_that_is_told_wrong_is_noticed() {
    check(|case| case.told.extend([posting(REVENUE, 4)]), "the server tells 4");
    check(|case| case.told.retain(|account, _| account != REVENUE), "the server tells 0");
}

#[test]
fn a_request_that_stands_before_what_was_acknowledged_before_it_is_noticed() {
    let late = |case: &mut Case| {
        let last = case.history.sent.last().unwrap().sent_at + Duration::from_secs(9);
        case.history.sent.first_mut().unwrap().sent_at = last;
    };
    check(late, "was sent after k2 at 2 had been acknowledged");
}
