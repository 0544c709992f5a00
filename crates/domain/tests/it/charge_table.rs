//! The life of a charge as tables: every state × every command, and every state × every event.
//!
//! A state is written `held 60 charged 40 lost 0 in-flight 24h` (24 hours from now is when it ends by itself) or
//! `committed charged 70 lost 0 back 30`; `late 30` is the part of it that came late, and `expired` says that more may
//! come, as it always may after `auto-released`. A commit is written `final 60+20 lost 5`: 60 from the hold, 20 from what was
//! available, 5 not collected; `back 10` says what the hold gave back. All amounts are credits. A token of a prompt
//! costs one credit, a token of an answer two.

use crate::table::{credits, hours, id, read, reason, rows};
use crate::world::terms;
use holdfast_domain::charge::{
    Actual, CannotFollow, Closed, Command, Context, Ended, Event, Finality, Hold, OnExpiry, Overrun, Refusal, Reserve,
    Stage, State, TTL_MAX, Taken, Terms, reserve,
};
use holdfast_domain::{AMOUNT_MAX, Budgets, Charge, CreditUnit, CreditsPerUsd, Price, Rates, Span, Timestamp, Usage};

/// The moment of every decision here, unless the command is `expire`, which comes exactly when the hold ends.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// What is asked of every state.
const COMMANDS: [&str; 26] = [
    "start",
    "increase 0",
    "increase 5",
    "increase 1000000000000",
    "extend 0h",
    "extend 8785h",
    "extend 1h",
    "extend 48h",
    "commit 0 final",
    "commit 30 final",
    "commit 60 final",
    "commit 100 final",
    "commit 130 final",
    "commit 0 partial",
    "commit 30 partial",
    "commit 60 partial",
    "commit 100 partial",
    "commit 130 partial",
    "commit 10+20 tokens final",
    "commit 10+20 tokens partial",
    "release",
    "expire early",
    "expire",
    "void",
    "ack",
    "fail",
];

#[test]
fn a_reserved_hold_can_start_grow_live_on_be_charged_and_be_given_back() {
    check(
        "held 100 charged 0 lost 0 reserved 24h",
        "
        start                       | started               | held 100 charged 0 lost 0 in-flight 24h
        increase 0                  | refused: zero amount  |
        increase 5                  | increased 5           | held 105 charged 0 lost 0 reserved 24h
        increase 1000000000000      | refused: overflow     |
        extend 0h                   | refused: ttl          |
        extend 8785h                | refused: ttl          |
        extend 1h                   | extended 24h          | held 100 charged 0 lost 0 reserved 24h
        extend 48h                  | extended 48h          | held 100 charged 0 lost 0 reserved 48h
        commit 0 final              | final 0+0 back 100    | committed charged 0 lost 0 back 100
        commit 30 final             | final 30+0 back 70    | committed charged 30 lost 0 back 70
        commit 60 final             | final 60+0 back 40    | committed charged 60 lost 0 back 40
        commit 100 final            | final 100+0           | committed charged 100 lost 0 back 0
        commit 130 final            | final 100+0 lost 30   | committed charged 100 lost 30 back 0
        commit 0 partial            | refused: zero amount  |
        commit 30 partial           | partial 30+0          | held 70 charged 30 lost 0 reserved 24h
        commit 60 partial           | partial 60+0          | held 40 charged 60 lost 0 reserved 24h
        commit 100 partial          | partial 100+0         | held 0 charged 100 lost 0 reserved 24h
        commit 130 partial          | partial 100+0 lost 30 | held 0 charged 100 lost 30 reserved 24h
        commit 10+20 tokens final   | final 50+0 back 50    | committed charged 50 lost 0 back 50
        commit 10+20 tokens partial | partial 50+0          | held 50 charged 50 lost 0 reserved 24h
        release                     | released 100          | released charged 0 lost 0 back 100
        expire early                | refused: held         |
        expire                      | auto-released 100     | auto-released charged 0 lost 0 back 100
        void                        | refused: held         |
        ack                         | refused: held         |
        fail                        | refused: held         |
        ",
    );
}

#[test]
fn a_hold_in_flight_can_do_the_same_but_start_again() {
    check(
        "held 100 charged 0 lost 0 in-flight 24h",
        "
        start                       | refused: held         |
        increase 0                  | refused: zero amount  |
        increase 5                  | increased 5           | held 105 charged 0 lost 0 in-flight 24h
        increase 1000000000000      | refused: overflow     |
        extend 0h                   | refused: ttl          |
        extend 8785h                | refused: ttl          |
        extend 1h                   | extended 24h          | held 100 charged 0 lost 0 in-flight 24h
        extend 48h                  | extended 48h          | held 100 charged 0 lost 0 in-flight 48h
        commit 0 final              | final 0+0 back 100    | committed charged 0 lost 0 back 100
        commit 30 final             | final 30+0 back 70    | committed charged 30 lost 0 back 70
        commit 60 final             | final 60+0 back 40    | committed charged 60 lost 0 back 40
        commit 100 final            | final 100+0           | committed charged 100 lost 0 back 0
        commit 130 final            | final 100+0 lost 30   | committed charged 100 lost 30 back 0
        commit 0 partial            | refused: zero amount  |
        commit 30 partial           | partial 30+0          | held 70 charged 30 lost 0 in-flight 24h
        commit 60 partial           | partial 60+0          | held 40 charged 60 lost 0 in-flight 24h
        commit 100 partial          | partial 100+0         | held 0 charged 100 lost 0 in-flight 24h
        commit 130 partial          | partial 100+0 lost 30 | held 0 charged 100 lost 30 in-flight 24h
        commit 10+20 tokens final   | final 50+0 back 50    | committed charged 50 lost 0 back 50
        commit 10+20 tokens partial | partial 50+0          | held 50 charged 50 lost 0 in-flight 24h
        release                     | released 100          | released charged 0 lost 0 back 100
        expire early                | refused: held         |
        expire                      | auto-released 100     | auto-released charged 0 lost 0 back 100
        void                        | refused: held         |
        ack                         | refused: held         |
        fail                        | refused: held         |
        ",
    );
}

#[test]
fn a_hold_charged_in_part_adds_to_what_it_charged_and_its_release_or_expiry_leaves_a_charge() {
    check(
        "held 60 charged 40 lost 7 in-flight 24h",
        "
        start                       | refused: held        |
        increase 0                  | refused: zero amount |
        increase 5                  | increased 5          | held 65 charged 40 lost 7 in-flight 24h
        increase 1000000000000      | refused: overflow    |
        extend 0h                   | refused: ttl         |
        extend 8785h                | refused: ttl         |
        extend 1h                   | extended 24h         | held 60 charged 40 lost 7 in-flight 24h
        extend 48h                  | extended 48h         | held 60 charged 40 lost 7 in-flight 48h
        commit 0 final              | final 0+0 back 60    | committed charged 40 lost 7 back 60
        commit 30 final             | final 30+0 back 30   | committed charged 70 lost 7 back 30
        commit 60 final             | final 60+0           | committed charged 100 lost 7 back 0
        commit 100 final            | final 60+0 lost 40   | committed charged 100 lost 47 back 0
        commit 130 final            | final 60+0 lost 70   | committed charged 100 lost 77 back 0
        commit 0 partial            | refused: zero amount |
        commit 30 partial           | partial 30+0         | held 30 charged 70 lost 7 in-flight 24h
        commit 60 partial           | partial 60+0         | held 0 charged 100 lost 7 in-flight 24h
        commit 100 partial          | partial 60+0 lost 40 | held 0 charged 100 lost 47 in-flight 24h
        commit 130 partial          | partial 60+0 lost 70 | held 0 charged 100 lost 77 in-flight 24h
        commit 10+20 tokens final   | final 50+0 back 10   | committed charged 90 lost 7 back 10
        commit 10+20 tokens partial | partial 50+0         | held 10 charged 90 lost 7 in-flight 24h
        release                     | released 60          | committed charged 40 lost 7 back 60
        expire early                | refused: held        |
        expire                      | auto-released 60     | committed charged 40 lost 7 back 60 expired
        void                        | refused: held        |
        ack                         | refused: held        |
        fail                        | refused: held        |
        ",
    );
}

#[test]
fn a_committed_charge_waits_for_the_peer_and_can_be_taken_back() {
    check_closed(
        "committed charged 70 lost 5 back 30",
        "
        void | voided 70 | voided charged 70 lost 5 back 30
        ack  | acked     | acked charged 70 lost 5 back 30
        fail | failed    | failed charged 70 lost 5 back 30
        ",
    );
}

#[test]
fn a_charge_of_nothing_is_told_to_the_peer_and_taken_back_like_any_other() {
    check_closed(
        "committed charged 0 lost 0 back 100",
        "
        void | voided 0 | voided charged 0 lost 0 back 100
        ack  | acked    | acked charged 0 lost 0 back 100
        fail | failed   | failed charged 0 lost 0 back 100
        ",
    );
}

#[test]
fn an_acknowledged_charge_can_only_be_taken_back() {
    check_closed("acked charged 70 lost 5 back 30", "void | voided 70 | voided charged 70 lost 5 back 30");
}

#[test]
fn a_failed_charge_can_be_replayed_to_the_peer_or_taken_back() {
    check_closed(
        "failed charged 70 lost 5 back 30",
        "
        void | voided 70 | voided charged 70 lost 5 back 30
        ack  | acked     | acked charged 70 lost 5 back 30
        ",
    );
}

#[test]
fn the_word_of_the_peer_counts_only_for_all_that_was_charged() {
    for (state, name) in [
        ("committed charged 70 lost 5 back 60 late 30 expired", "committed"),
        ("failed charged 70 lost 5 back 60 late 30 expired", "failed"),
    ] {
        let before = read(state, |words| charge(words, standard()));
        let acked = state.replace(name, "acked");
        let check = |command, outcome: &str, then: &str| {
            decides(&before, read(command, parse_command), &at(NOW, "1000"), outcome, then);
        };
        check("ack 70", "acked", &acked);
        check("ack 40", &format!("refused: {name}"), "");
        check("fail 40", &format!("refused: {name}"), "");
    }
    let before = read("committed charged 70 lost 5 back 30", |words| charge(words, standard()));
    let failed = "failed charged 70 lost 5 back 30";
    decides(&before, read("fail 70", parse_command), &at(NOW, "1000"), "failed", failed);
}

#[test]
fn a_voided_charge_stays_as_it_is() {
    check_closed("voided charged 70 lost 5 back 30", "");
}

#[test]
fn a_released_hold_stays_as_it_is() {
    check_closed("released charged 0 lost 0 back 100", "");
}

#[test]
fn an_auto_released_hold_takes_late_results_from_what_is_available_until_one_is_final() {
    check_closed(
        "auto-released charged 0 lost 0 back 100",
        "
        commit 0 final              | final 0+0             | committed charged 0 lost 0 back 100
        commit 30 final             | final 0+30            | committed charged 30 lost 0 back 100 late 30
        commit 60 final             | final 0+60            | committed charged 60 lost 0 back 100 late 60
        commit 100 final            | final 0+100           | committed charged 100 lost 0 back 100 late 100
        commit 130 final            | final 0+100 lost 30   | committed charged 100 lost 30 back 100 late 100
        commit 0 partial            | refused: zero amount  |
        commit 30 partial           | partial 0+30          | auto-released charged 30 lost 0 back 100 late 30
        commit 60 partial           | partial 0+60          | auto-released charged 60 lost 0 back 100 late 60
        commit 100 partial          | partial 0+100         | auto-released charged 100 lost 0 back 100 late 100
        commit 130 partial          | partial 0+100 lost 30 | auto-released charged 100 lost 30 back 100 late 100
        commit 10+20 tokens final   | final 0+50            | committed charged 50 lost 0 back 100 late 50
        commit 10+20 tokens partial | partial 0+50          | auto-released charged 50 lost 0 back 100 late 50
        ",
    );
}

#[test]
fn late_parts_take_no_more_than_the_hold_gave_back_and_can_be_taken_back() {
    check_closed(
        "auto-released charged 30 lost 7 back 100 late 30",
        "
        commit 0 final              | final 0+0            | committed charged 30 lost 7 back 100 late 30
        commit 30 final             | final 0+30           | committed charged 60 lost 7 back 100 late 60
        commit 60 final             | final 0+60           | committed charged 90 lost 7 back 100 late 90
        commit 100 final            | final 0+70 lost 30   | committed charged 100 lost 37 back 100 late 100
        commit 130 final            | final 0+70 lost 60   | committed charged 100 lost 67 back 100 late 100
        commit 0 partial            | refused: zero amount |
        commit 30 partial           | partial 0+30         | auto-released charged 60 lost 7 back 100 late 60
        commit 60 partial           | partial 0+60         | auto-released charged 90 lost 7 back 100 late 90
        commit 100 partial          | partial 0+70 lost 30 | auto-released charged 100 lost 37 back 100 late 100
        commit 130 partial          | partial 0+70 lost 60 | auto-released charged 100 lost 67 back 100 late 100
        commit 10+20 tokens final   | final 0+50           | committed charged 80 lost 7 back 100 late 80
        commit 10+20 tokens partial | partial 0+50         | auto-released charged 80 lost 7 back 100 late 80
        void                        | voided 30            | voided charged 30 lost 7 back 100 late 30
        ",
    );
}

#[test]
fn a_committed_charge_that_expired_still_takes_late_results() {
    check_closed(
        "committed charged 40 lost 7 back 60 expired",
        "
        commit 0 final              | final 0+0            | committed charged 40 lost 7 back 60
        commit 30 final             | final 0+30           | committed charged 70 lost 7 back 60 late 30
        commit 60 final             | final 0+60           | committed charged 100 lost 7 back 60 late 60
        commit 100 final            | final 0+60 lost 40   | committed charged 100 lost 47 back 60 late 60
        commit 130 final            | final 0+60 lost 70   | committed charged 100 lost 77 back 60 late 60
        commit 0 partial            | refused: zero amount |
        commit 30 partial           | partial 0+30         | committed charged 70 lost 7 back 60 late 30 expired
        commit 60 partial           | partial 0+60         | committed charged 100 lost 7 back 60 late 60 expired
        commit 100 partial          | partial 0+60 lost 40 | committed charged 100 lost 47 back 60 late 60 expired
        commit 130 partial          | partial 0+60 lost 70 | committed charged 100 lost 77 back 60 late 60 expired
        commit 10+20 tokens final   | final 0+50           | committed charged 90 lost 7 back 60 late 50
        commit 10+20 tokens partial | partial 0+50         | committed charged 90 lost 7 back 60 late 50 expired
        void                        | voided 40            | voided charged 40 lost 7 back 60
        ack                         | acked                | acked charged 40 lost 7 back 60 expired
        fail                        | failed               | failed charged 40 lost 7 back 60 expired
        ",
    );
}

#[test]
fn an_acknowledged_charge_that_expired_goes_back_to_the_peer_with_a_late_result() {
    check_closed(
        "acked charged 70 lost 7 back 60 late 30 expired",
        "
        commit 0 final              | final 0+0             | committed charged 70 lost 7 back 60 late 30
        commit 30 final             | final 0+30            | committed charged 100 lost 7 back 60 late 60
        commit 60 final             | final 0+30 lost 30    | committed charged 100 lost 37 back 60 late 60
        commit 100 final            | final 0+30 lost 70    | committed charged 100 lost 77 back 60 late 60
        commit 130 final            | final 0+30 lost 100   | committed charged 100 lost 107 back 60 late 60
        commit 0 partial            | refused: zero amount  |
        commit 30 partial           | partial 0+30          | committed charged 100 lost 7 back 60 late 60 expired
        commit 60 partial           | partial 0+30 lost 30  | committed charged 100 lost 37 back 60 late 60 expired
        commit 100 partial          | partial 0+30 lost 70  | committed charged 100 lost 77 back 60 late 60 expired
        commit 130 partial          | partial 0+30 lost 100 | committed charged 100 lost 107 back 60 late 60 expired
        commit 10+20 tokens final   | final 0+30 lost 20    | committed charged 100 lost 27 back 60 late 60
        commit 10+20 tokens partial | partial 0+30 lost 20  | committed charged 100 lost 27 back 60 late 60 expired
        void                        | voided 70             | voided charged 70 lost 7 back 60 late 30
        ",
    );
}

#[test]
fn a_failed_charge_that_expired_goes_back_to_the_peer_with_a_late_result() {
    check_closed(
        "failed charged 40 lost 7 back 60 expired",
        "
        commit 0 final              | final 0+0            | committed charged 40 lost 7 back 60
        commit 30 final             | final 0+30           | committed charged 70 lost 7 back 60 late 30
        commit 60 final             | final 0+60           | committed charged 100 lost 7 back 60 late 60
        commit 100 final            | final 0+60 lost 40   | committed charged 100 lost 47 back 60 late 60
        commit 130 final            | final 0+60 lost 70   | committed charged 100 lost 77 back 60 late 60
        commit 0 partial            | refused: zero amount |
        commit 30 partial           | partial 0+30         | committed charged 70 lost 7 back 60 late 30 expired
        commit 60 partial           | partial 0+60         | committed charged 100 lost 7 back 60 late 60 expired
        commit 100 partial          | partial 0+60 lost 40 | committed charged 100 lost 47 back 60 late 60 expired
        commit 130 partial          | partial 0+60 lost 70 | committed charged 100 lost 77 back 60 late 60 expired
        commit 10+20 tokens final   | final 0+50           | committed charged 90 lost 7 back 60 late 50
        commit 10+20 tokens partial | partial 0+50         | committed charged 90 lost 7 back 60 late 50 expired
        void                        | voided 40            | voided charged 40 lost 7 back 60
        ack                         | acked                | acked charged 40 lost 7 back 60 expired
        ",
    );
}

#[test]
fn a_charge_whose_last_result_came_late_takes_no_other() {
    for state in ["voided", "acked", "failed", "committed"] {
        let state = format!("{state} charged 70 lost 7 back 60 late 30");
        let before = read(&state, |words| charge(words, standard()));
        for command in COMMANDS.into_iter().filter(|command| command.starts_with("commit")) {
            let refused = Err(Refusal::InvalidState(before.state()));
            assert_eq!(before.decide(&read(command, parse_command), &at(NOW, "1000")), refused, "{state}: {command}");
        }
    }
}

#[test]
fn late_parts_of_an_expired_hold_add_up_to_what_it_gave_back() {
    check_life(
        "
        expire            | auto-released 100      | auto-released charged 0 lost 0 back 100
        commit 60 partial | partial 0+60           | auto-released charged 60 lost 0 back 100 late 60
        ack               | refused: auto-released |
        commit 30 partial | partial 0+30           | auto-released charged 90 lost 0 back 100 late 90
        commit 30 partial | partial 0+10 lost 20   | auto-released charged 100 lost 20 back 100 late 100
        commit 0 partial  | refused: zero amount   |
        commit 30 final   | final 0+0 lost 30      | committed charged 100 lost 50 back 100 late 100
        commit 30 final   | refused: committed     |
        ack               | acked                  | acked charged 100 lost 50 back 100 late 100
        ",
    );
}

#[test]
fn the_peer_learns_of_a_part_that_expired_and_of_each_late_result_after_it() {
    check_life(
        "
        commit 40 partial | partial 40+0       | held 60 charged 40 lost 0 reserved 24h
        expire            | auto-released 60   | committed charged 40 lost 0 back 60 expired
        ack               | acked              | acked charged 40 lost 0 back 60 expired
        commit 30 partial | partial 0+30       | committed charged 70 lost 0 back 60 late 30 expired
        fail              | failed             | failed charged 70 lost 0 back 60 late 30 expired
        commit 60 final   | final 0+30 lost 30 | committed charged 100 lost 30 back 60 late 60
        commit 60 final   | refused: committed |
        ack               | acked              | acked charged 100 lost 30 back 60 late 60
        void              | voided 100         | voided charged 100 lost 30 back 60 late 60
        ",
    );
}

#[test]
fn the_overrun_policy_says_what_happens_to_cost_above_an_untouched_hold() {
    check_overrun(
        "held 100 charged 0 lost 0 in-flight 24h",
        "
                               | 0            | 30           | 60           | 100   | 130
        cap 1000 final         | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+0 lost 30
        cap 1000 partial       | zero         | 30+0         | 60+0         | 100+0 | 100+0 lost 30
        cap 20 final           | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+0 lost 30
        cap 20 partial         | zero         | 30+0         | 60+0         | 100+0 | 100+0 lost 30
        cap 0 final            | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+0 lost 30
        cap 0 partial          | zero         | 30+0         | 60+0         | 100+0 | 100+0 lost 30
        available 1000 final   | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+30
        available 1000 partial | zero         | 30+0         | 60+0         | 100+0 | 100+30
        available 20 final     | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+20 lost 10
        available 20 partial   | zero         | 30+0         | 60+0         | 100+0 | 100+20 lost 10
        available 0 final      | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | 100+0 lost 30
        available 0 partial    | zero         | 30+0         | 60+0         | 100+0 | 100+0 lost 30
        refuse 1000 final      | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | over 100
        refuse 1000 partial    | zero         | 30+0         | 60+0         | 100+0 | over 100
        refuse 20 final        | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | over 100
        refuse 20 partial      | zero         | 30+0         | 60+0         | 100+0 | over 100
        refuse 0 final         | 0+0 back 100 | 30+0 back 70 | 60+0 back 40 | 100+0 | over 100
        refuse 0 partial       | zero         | 30+0         | 60+0         | 100+0 | over 100
        ",
    );
}

#[test]
fn the_overrun_policy_says_what_happens_to_cost_above_the_rest_of_a_hold() {
    check_overrun(
        "held 60 charged 40 lost 7 in-flight 24h",
        "
                               | 0           | 30           | 60   | 100           | 130
        cap 1000 final         | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+0 lost 40  | 60+0 lost 70
        cap 1000 partial       | zero        | 30+0         | 60+0 | 60+0 lost 40  | 60+0 lost 70
        cap 20 final           | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+0 lost 40  | 60+0 lost 70
        cap 20 partial         | zero        | 30+0         | 60+0 | 60+0 lost 40  | 60+0 lost 70
        cap 0 final            | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+0 lost 40  | 60+0 lost 70
        cap 0 partial          | zero        | 30+0         | 60+0 | 60+0 lost 40  | 60+0 lost 70
        available 1000 final   | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+40         | 60+70
        available 1000 partial | zero        | 30+0         | 60+0 | 60+40         | 60+70
        available 20 final     | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+20 lost 20 | 60+20 lost 50
        available 20 partial   | zero        | 30+0         | 60+0 | 60+20 lost 20 | 60+20 lost 50
        available 0 final      | 0+0 back 60 | 30+0 back 30 | 60+0 | 60+0 lost 40  | 60+0 lost 70
        available 0 partial    | zero        | 30+0         | 60+0 | 60+0 lost 40  | 60+0 lost 70
        refuse 1000 final      | 0+0 back 60 | 30+0 back 30 | 60+0 | over 60       | over 60
        refuse 1000 partial    | zero        | 30+0         | 60+0 | over 60       | over 60
        refuse 20 final        | 0+0 back 60 | 30+0 back 30 | 60+0 | over 60       | over 60
        refuse 20 partial      | zero        | 30+0         | 60+0 | over 60       | over 60
        refuse 0 final         | 0+0 back 60 | 30+0 back 30 | 60+0 | over 60       | over 60
        refuse 0 partial       | zero        | 30+0         | 60+0 | over 60       | over 60
        ",
    );
}

#[test]
fn a_late_result_takes_at_most_what_the_hold_gave_back_unless_the_policy_is_available() {
    check_overrun(
        "auto-released charged 0 lost 0 back 100",
        "
                               | 0    | 30           | 60           | 100          | 130
        cap 1000 final         | 0+0  | 0+30         | 0+60         | 0+100        | 0+100 lost 30
        cap 1000 partial       | zero | 0+30         | 0+60         | 0+100        | 0+100 lost 30
        cap 20 final           | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 20 partial         | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 0 final            | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 0 partial          | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 1000 final   | 0+0  | 0+30         | 0+60         | 0+100        | 0+130
        available 1000 partial | zero | 0+30         | 0+60         | 0+100        | 0+130
        available 20 final     | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 20 partial   | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 0 final      | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 0 partial    | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        refuse 1000 final      | 0+0  | 0+30         | 0+60         | 0+100        | over 100
        refuse 1000 partial    | zero | 0+30         | 0+60         | 0+100        | over 100
        refuse 20 final        | 0+0  | over 20      | over 20      | over 20      | over 20
        refuse 20 partial      | zero | over 20      | over 20      | over 20      | over 20
        refuse 0 final         | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 0 partial       | zero | over 0       | over 0       | over 0       | over 0
        ",
    );
}

#[test]
fn a_late_result_after_a_part_takes_at_most_what_the_rest_gave_back() {
    let table = "
                               | 0    | 30           | 60           | 100          | 130
        cap 1000 final         | 0+0  | 0+30         | 0+60         | 0+60 lost 40 | 0+60 lost 70
        cap 1000 partial       | zero | 0+30         | 0+60         | 0+60 lost 40 | 0+60 lost 70
        cap 20 final           | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 20 partial         | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 0 final            | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 0 partial          | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 1000 final   | 0+0  | 0+30         | 0+60         | 0+100        | 0+130
        available 1000 partial | zero | 0+30         | 0+60         | 0+100        | 0+130
        available 20 final     | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 20 partial   | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 0 final      | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 0 partial    | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        refuse 1000 final      | 0+0  | 0+30         | 0+60         | over 60      | over 60
        refuse 1000 partial    | zero | 0+30         | 0+60         | over 60      | over 60
        refuse 20 final        | 0+0  | over 20      | over 20      | over 20      | over 20
        refuse 20 partial      | zero | over 20      | over 20      | over 20      | over 20
        refuse 0 final         | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 0 partial       | zero | over 0       | over 0       | over 0       | over 0
    ";
    for state in [
        "committed charged 40 lost 7 back 60 expired",
        "acked charged 40 lost 7 back 60 expired",
        "failed charged 40 lost 7 back 60 expired",
    ] {
        check_overrun(state, table);
    }
}

#[test]
fn a_late_result_after_a_late_part_takes_at_most_what_that_left() {
    let table = "
                               | 0    | 30           | 60           | 100          | 130
        cap 1000 final         | 0+0  | 0+30         | 0+40 lost 20 | 0+40 lost 60 | 0+40 lost 90
        cap 1000 partial       | zero | 0+30         | 0+40 lost 20 | 0+40 lost 60 | 0+40 lost 90
        cap 20 final           | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 20 partial         | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        cap 0 final            | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 0 partial          | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 1000 final   | 0+0  | 0+30         | 0+60         | 0+100        | 0+130
        available 1000 partial | zero | 0+30         | 0+60         | 0+100        | 0+130
        available 20 final     | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 20 partial   | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 0 final      | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 0 partial    | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        refuse 1000 final      | 0+0  | 0+30         | over 40      | over 40      | over 40
        refuse 1000 partial    | zero | 0+30         | over 40      | over 40      | over 40
        refuse 20 final        | 0+0  | over 20      | over 20      | over 20      | over 20
        refuse 20 partial      | zero | over 20      | over 20      | over 20      | over 20
        refuse 0 final         | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 0 partial       | zero | over 0       | over 0       | over 0       | over 0
    ";
    for state in [
        "auto-released charged 60 lost 7 back 100 late 60",
        "committed charged 60 lost 7 back 60 late 20 expired",
        "acked charged 60 lost 7 back 60 late 20 expired",
        "failed charged 60 lost 7 back 60 late 20 expired",
    ] {
        check_overrun(state, table);
    }
}

#[test]
fn a_late_result_finds_nothing_left_of_what_the_hold_gave_back() {
    let table = "
                               | 0    | 30           | 60           | 100          | 130
        cap 1000 final         | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 1000 partial       | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 20 final           | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 20 partial         | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 0 final            | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        cap 0 partial          | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 1000 final   | 0+0  | 0+30         | 0+60         | 0+100        | 0+130
        available 1000 partial | zero | 0+30         | 0+60         | 0+100        | 0+130
        available 20 final     | 0+0  | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 20 partial   | zero | 0+20 lost 10 | 0+20 lost 40 | 0+20 lost 80 | 0+20 lost 110
        available 0 final      | 0+0  | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        available 0 partial    | zero | 0+0 lost 30  | 0+0 lost 60  | 0+0 lost 100 | 0+0 lost 130
        refuse 1000 final      | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 1000 partial    | zero | over 0       | over 0       | over 0       | over 0
        refuse 20 final        | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 20 partial      | zero | over 0       | over 0       | over 0       | over 0
        refuse 0 final         | 0+0  | over 0       | over 0       | over 0       | over 0
        refuse 0 partial       | zero | over 0       | over 0       | over 0       | over 0
    ";
    for state in
        ["auto-released charged 100 lost 7 back 100 late 100", "acked charged 110 lost 7 back 60 late 70 expired"]
    {
        check_overrun(state, table);
    }
}

#[test]
fn expiry_gives_back_unless_work_has_started_and_the_terms_say_to_charge() {
    let table = "
        held 100 charged 0 lost 0 reserved 24h  | release | auto-released 100 | auto-released charged 0 lost 0 back 100
        held 60 charged 40 lost 7 reserved 24h  | release | auto-released 60  | committed charged 40 lost 7 back 60 expired
        held 0 charged 100 lost 7 reserved 24h  | release | auto-released 0   | committed charged 100 lost 7 back 0 expired
        held 100 charged 0 lost 0 in-flight 24h | release | auto-released 100 | auto-released charged 0 lost 0 back 100
        held 60 charged 40 lost 7 in-flight 24h | release | auto-released 60  | committed charged 40 lost 7 back 60 expired
        held 0 charged 100 lost 7 in-flight 24h | release | auto-released 0   | committed charged 100 lost 7 back 0 expired
        held 100 charged 0 lost 0 reserved 24h  | charge  | auto-released 100 | auto-released charged 0 lost 0 back 100
        held 60 charged 40 lost 7 reserved 24h  | charge  | auto-released 60  | committed charged 40 lost 7 back 60 expired
        held 0 charged 100 lost 7 reserved 24h  | charge  | auto-released 0   | committed charged 100 lost 7 back 0 expired
        held 100 charged 0 lost 0 in-flight 24h | charge  | final 100+0       | committed charged 100 lost 0 back 0
        held 60 charged 40 lost 7 in-flight 24h | charge  | final 60+0        | committed charged 100 lost 7 back 0
        held 0 charged 100 lost 7 in-flight 24h | charge  | final 0+0         | committed charged 100 lost 7 back 0
    ";
    for row in rows(table) {
        let [state, policy, outcome, then] = row[..] else { unreachable!("four cells: {row:?}") };
        let on_expiry = if policy == "charge" { OnExpiry::ChargeEstimate } else { OnExpiry::Release };
        for overrun in [Overrun::Cap, Overrun::Available, Overrun::Refuse] {
            let terms = Terms { on_expiry, overrun, ..standard() };
            let before = read(state, |words| charge(words, terms));
            let a_moment_before = Span::from_millis(h(24).millis() - 1);
            decides(&before, Command::Expire, &at(NOW.after(a_moment_before), "1000"), "refused: held", "");
            decides(&before, Command::Expire, &at(NOW.after(h(24)), "1000"), outcome, then);
            decides(&before, Command::Expire, &at(NOW.after(h(99)), "0"), outcome, then);
        }
    }
}

#[test]
fn a_commit_by_usage_needs_rates_that_were_frozen() {
    let table = "
        held 100 charged 0 lost 0 reserved 24h      | refused: no rates
        held 100 charged 0 lost 0 in-flight 24h     | refused: no rates
        held 60 charged 40 lost 0 in-flight 24h     | refused: no rates
        committed charged 70 lost 0 back 30         | refused: committed
        acked charged 70 lost 0 back 30             | refused: acked
        failed charged 70 lost 0 back 30            | refused: failed
        voided charged 70 lost 0 back 30            | refused: voided
        released charged 0 lost 0 back 100          | refused: released
        auto-released charged 0 lost 0 back 100     | refused: no rates
        committed charged 40 lost 0 back 60 expired | refused: no rates
        acked charged 40 lost 0 back 60 expired     | refused: no rates
        failed charged 40 lost 0 back 60 expired    | refused: no rates
    ";
    for row in rows(table) {
        let [state, outcome] = row[..] else { unreachable!("two cells: {row:?}") };
        let before = read(state, |words| charge(words, Terms { rates: None, ..standard() }));
        for command in ["commit 10+20 tokens final", "commit 10+20 tokens partial"] {
            decides(&before, read(command, parse_command), &at(NOW, "1000"), outcome, "");
        }
    }
}

#[test]
fn a_price_per_request_is_charged_once_with_the_final_usage() {
    // Two cents are two credits, and a token of the prompt is one.
    let price = |cents: u64| Price::new(cents * 10_000_000_000).expect("above zero");
    let per_request = Some("0.02".parse().expect("a price"));
    let terms = Terms { rates: Some(Rates { per_request, ..rates(price(1), price(2)) }), ..standard() };
    let held = read("held 10 charged 0 lost 0 reserved 24h", |words| charge(words, terms));
    let expired = read("auto-released charged 0 lost 0 back 10", |words| charge(words, terms));
    for (before, command, outcome) in [
        (held, "commit 1+0 tokens partial", "partial 1+0"),
        (held, "commit 1+0 tokens final", "final 3+0 back 7"),
        // A final word without tokens is still a request; an amount of credits is the whole cost.
        (held, "commit 0+0 tokens final", "final 2+0 back 8"),
        (held, "commit 0+0 tokens partial", "refused: zero amount"),
        (held, "commit 1 final", "final 1+0 back 9"),
        (expired, "commit 1+0 tokens partial", "partial 0+1"),
        (expired, "commit 1+0 tokens final", "final 0+3"),
    ] {
        let expected = read(outcome, parse_outcome);
        assert_eq!(before.decide(&read(command, parse_command), &at(NOW, "100")), expected, "{command}");
    }
}

#[test]
fn a_commit_by_usage_is_summed_first_and_then_rounded_down_once() {
    // Two halves of the last place are one; three are one; one is none.
    let half = Price::new(5_000).expect("above zero");
    let rates = rates(half, half);
    let before =
        read("held 1 charged 0 lost 0 reserved 24h", |words| charge(words, Terms { rates: Some(rates), ..standard() }));
    for (command, outcome) in [
        ("commit 1+0 tokens final", "final 0+0 back 1"),
        ("commit 1+1 tokens final", "final 0.000001+0 back 0.999999"),
        ("commit 2+1 tokens final", "final 0.000001+0 back 0.999999"),
        ("commit 1+0 tokens partial", "refused: zero amount"),
        ("commit 18446744073709551615+18446744073709551615 tokens final", "refused: overflow"),
    ] {
        let expected = read(outcome, parse_outcome);
        assert_eq!(before.decide(&read(command, parse_command), &at(NOW, "1000")), expected, "{command}");
    }
}

#[test]
fn sums_out_of_range_are_refused_before_anything_is_written() {
    let table = "
        held 999999999999 charged 0 lost 0 in-flight 24h | increase 1                   | increased 1
        held 999999999999 charged 0 lost 0 in-flight 24h | increase 1.000001            | refused: overflow
        held 999999999998 charged 1 lost 0 in-flight 24h | increase 1                   | increased 1
        held 999999999999 charged 1 lost 0 in-flight 24h | increase 0.000001            | refused: overflow
        held 1 charged 999999999999 lost 0 in-flight 24h | commit 1 final               | final 1+0
        held 1 charged 999999999999 lost 0 in-flight 24h | commit 2 final               | refused: overflow
        held 1 charged 999999999999 lost 0 in-flight 24h | commit 1 partial             | partial 1+0
        held 1 charged 999999999999 lost 0 in-flight 24h | commit 2 partial             | refused: overflow
        held 1 charged 1 lost 0 in-flight 24h            | commit 1000000000000 final   | refused: overflow
        held 1 charged 0 lost 0 in-flight 24h            | commit 1000000000000 final   | final 1+999999999999
        committed charged 1 lost 0 back 1 expired        | commit 1000000000000 final   | refused: overflow
        auto-released charged 1 lost 0 back 1 late 1     | commit 1000000000000 partial | refused: overflow
        auto-released charged 0 lost 0 back 1            | commit 1000000000000 final   | final 0+1000000000000
        auto-released charged 0 lost 0 back 1            | commit 1000000000000 partial | partial 0+1000000000000
    ";
    for row in rows(table) {
        let [state, command, outcome] = row[..] else { unreachable!("three cells: {row:?}") };
        let terms = Terms { overrun: Overrun::Available, on_expiry: OnExpiry::ChargeEstimate, ..standard() };
        let before = read(state, |words| charge(words, terms));
        let context = at(NOW, "1000000000000");
        let expected = read(outcome, parse_outcome);
        assert_eq!(before.decide(&read(command, parse_command), &context), expected, "{row:?}");
        if let Ok(event) = expected {
            let after = Charge::apply(Some(before), &event).expect("what is decided follows");
            // Whatever was accepted, the estimate can still be charged when the time comes.
            let due = at(NOW.after(h(24)), "0");
            if let Ok(expired) = after.decide(&Command::Expire, &due) {
                assert!(Charge::apply(Some(after), &expired).is_ok(), "{row:?}: {expired:?}");
            }
        }
    }
    let cap = read("held 1 charged 1 lost 1000000000000 in-flight 24h", |words| charge(words, standard()));
    assert_eq!(cap.decide(&read("commit 2 final", parse_command), &at(NOW, "0")), Err(Refusal::Overflow));
    assert!(cap.decide(&read("commit 1 final", parse_command), &at(NOW, "0")).is_ok());
}

#[test]
fn a_reserve_needs_an_amount_and_a_believable_life() {
    let year_ms = TTL_MAX.millis();
    let table = [
        ("100", h(24), Ok(NOW.after(h(24)))),
        ("0.000001", Span::from_millis(1), Ok(NOW.after(Span::from_millis(1)))),
        ("1000000000000", TTL_MAX, Ok(NOW.after(TTL_MAX))),
        ("0", h(24), Err(Refusal::ZeroAmount)),
        ("100", Span::from_millis(0), Err(Refusal::InvalidTtl)),
        ("100", Span::from_millis(year_ms + 1), Err(Refusal::InvalidTtl)),
        ("100", Span::from_millis(u64::MAX), Err(Refusal::InvalidTtl)),
        ("0", Span::from_millis(0), Err(Refusal::ZeroAmount)),
    ];
    for (amount, ttl, expected) in table {
        let (owner, amount, terms) = (id("alice"), credits(amount).expect("an amount"), standard());
        let event = reserve(&Reserve { owner, amount, terms, ttl, budgets: Budgets::NONE }, NOW);
        assert_eq!(
            event,
            expected.map(|expires_at| Event::Reserved { amount, terms, expires_at, budgets: Budgets::NONE })
        );
        if let (Ok(event), Ok(expires_at)) = (event, expected) {
            let (charged, uncollected, stage) = (CreditUnit::ZERO, CreditUnit::ZERO, Stage::Reserved);
            let noted = CreditUnit::ZERO;
            let held = Hold { held: amount, charged, uncollected, noted, stage, terms, expires_at };
            assert_eq!(Charge::apply(None, &event), Ok(Charge::Held(held)));
        }
    }
}

/// The states of [`FOLLOWS`], in the order of its columns.
const STATES: [&str; 9] = [
    "none",
    "held 100 charged 0 lost 0 reserved 24h",
    "held 100 charged 0 lost 0 in-flight 24h",
    "held 60 charged 40 lost 0 in-flight 24h",
    "committed charged 70 lost 0 back 30",
    "acked charged 70 lost 0 back 30",
    "failed charged 70 lost 0 back 30",
    "voided charged 70 lost 0 back 30",
    "released charged 0 lost 0 back 100",
];

/// Which events can follow which state, under the policy `cap`, and what they lead to; a dot is a corrupt journal.
const FOLLOWS: &str = "
                                    | none | rsvd | flight | part | comm | ackd | fail | void | rel
    reserved 100                    | held | .    | .      | .    | .    | .    | .    | .    | .
    reserved 0                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    started                         | .    | held | .      | .    | .    | .    | .    | .    | .
    increased 5                     | .    | held | held   | held | .    | .    | .    | .    | .
    increased 0                     | .    | .    | .      | .    | .    | .    | .    | .    | .
    increased 1000000000000         | .    | .    | .      | .    | .    | .    | .    | .    | .
    extended 23h                    | .    | .    | .      | .    | .    | .    | .    | .    | .
    extended 24h                    | .    | held | held   | held | .    | .    | .    | .    | .
    extended 48h                    | .    | held | held   | held | .    | .    | .    | .    | .
    final 100+0                     | .    | comm | comm   | .    | .    | .    | .    | .    | .
    final 100+0 lost 30             | .    | comm | comm   | .    | .    | .    | .    | .    | .
    final 100+30                    | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 60+0                      | .    | .    | .      | comm | .    | .    | .    | .    | .
    final 60+0 lost 30              | .    | .    | .      | comm | .    | .    | .    | .    | .
    final 60+30                     | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 60+0 back 40              | .    | comm | comm   | .    | .    | .    | .    | .    | .
    final 60+0 back 40 lost 1       | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 60+1 back 40              | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 30+0                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 30+0 back 30              | .    | .    | .      | comm | .    | .    | .    | .    | .
    final 30+0 back 60              | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 30+0 back 80              | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+0 back 100              | .    | comm | comm   | .    | .    | .    | .    | .    | .
    final 0+0 back 60               | .    | .    | .      | comm | .    | .    | .    | .    | .
    final 0+0                       | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+30                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+30 lost 5               | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+60                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+100                     | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+130                     | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+30 back 5               | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 0+30 lost 1000000000000   | .    | .    | .      | .    | .    | .    | .    | .    | .
    final 1+1000000000000           | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 100+0                   | .    | held | held   | .    | .    | .    | .    | .    | .
    partial 60+0                    | .    | held | held   | held | .    | .    | .    | .    | .
    partial 60+0 lost 5             | .    | .    | .      | held | .    | .    | .    | .    | .
    partial 130+0                   | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 60+0 back 40            | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+0                     | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+0 lost 5              | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+30                    | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+30 lost 5             | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+60                    | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+100                   | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+130                   | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+30 back 5             | .    | .    | .      | .    | .    | .    | .    | .    | .
    partial 0+30 lost 1000000000000 | .    | .    | .      | .    | .    | .    | .    | .    | .
    released 100                    | .    | rel  | rel    | .    | .    | .    | .    | .    | .
    released 60                     | .    | .    | .      | comm | .    | .    | .    | .    | .
    released 0                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    auto-released 100               | .    | auto | auto   | .    | .    | .    | .    | .    | .
    auto-released 60                | .    | .    | .      | comm | .    | .    | .    | .    | .
    auto-released 0                 | .    | .    | .      | .    | .    | .    | .    | .    | .
    voided 70                       | .    | .    | .      | .    | void | void | void | .    | .
    voided 40                       | .    | .    | .      | .    | .    | .    | .    | .    | .
    voided 100                      | .    | .    | .      | .    | .    | .    | .    | .    | .
    voided 0                        | .    | .    | .      | .    | .    | .    | .    | .    | .
    acked                           | .    | .    | .      | .    | ackd | .    | ackd | .    | .
    failed                          | .    | .    | .      | .    | fail | .    | .    | .    | .
";

#[test]
fn an_event_that_cannot_follow_its_state_is_refused() {
    check_follows(FOLLOWS, |column| (STATES[column], standard()));
}

/// The states of [`FOLLOWS_EXPIRY`]: what is left for late results is 100, 60, 60, 30 and 60.
const EXPIRED: [&str; 5] = [
    "auto-released charged 0 lost 0 back 100",
    "auto-released charged 40 lost 0 back 100 late 40",
    "committed charged 40 lost 0 back 60 expired",
    "acked charged 70 lost 0 back 60 late 30 expired",
    "failed charged 40 lost 0 back 60 expired",
];

/// As [`FOLLOWS`], for charges that ended by expiry; none of its events that are left out here can follow.
const FOLLOWS_EXPIRY: &str = "
                        | auto | late | comm | ackd | fail
    final 0+0           | comm | comm | comm | comm | comm
    final 0+30          | comm | comm | comm | comm | comm
    final 0+30 lost 5   | comm | comm | comm | comm | comm
    final 0+60          | comm | comm | comm | .    | comm
    final 0+100         | comm | .    | .    | .    | .
    partial 0+0 lost 5  | auto | auto | comm | comm | comm
    partial 0+30        | auto | auto | comm | comm | comm
    partial 0+30 lost 5 | auto | auto | comm | comm | comm
    partial 0+60        | auto | auto | comm | .    | comm
    partial 0+100       | auto | .    | .    | .    | .
    voided 70           | .    | .    | .    | void | .
    voided 40           | .    | void | void | .    | void
    acked               | .    | .    | ackd | .    | ackd
    failed              | .    | .    | fail | .    | .
";

#[test]
fn only_a_late_result_a_void_or_the_word_of_the_peer_can_follow_expiry() {
    let state_of = |column: usize| (EXPIRED[column], standard());
    check_follows(FOLLOWS_EXPIRY, state_of);
    let written: Vec<_> = rows(FOLLOWS_EXPIRY).skip(1).map(|row| row[0]).collect();
    let events: Vec<_> = rows(FOLLOWS).skip(1).map(|row| row[0]).collect();
    assert!(written.iter().all(|event| events.contains(event)), "an event that is not tried elsewhere: {written:?}");
    let left_out = events.iter().filter(|event| !written.contains(event));
    let refused: String = left_out.map(|event| format!("{event} | . | . | . | . | .\n")).collect();
    check_follows(&format!("| auto | late | comm | ackd | fail\n{refused}"), state_of);
}

/// The same for the two policies that [`FOLLOWS`] leaves out: 100 held, and 100 given back by expiry.
const FOLLOWS_BY_POLICY: &str = "
                         | cap  | available | refuse | late cap | late available | late refuse
    final 100+0          | comm | comm      | comm   | .        | .              | .
    final 100+0 lost 30  | comm | comm      | .      | .        | .              | .
    final 100+30         | .    | comm      | .      | .        | .              | .
    final 100+20 lost 10 | .    | comm      | .      | .        | .              | .
    final 70+30 back 30  | .    | .         | .      | .        | .              | .
    partial 100+30       | .    | held      | .      | .        | .              | .
    partial 70+30        | .    | .         | .      | .        | .              | .
    partial 0+30         | .    | .         | .      | auto     | auto           | auto
    partial 0+20 lost 10 | .    | .         | .      | auto     | auto           | .
    partial 0+130        | .    | .         | .      | .        | auto           | .
    final 0+100          | .    | .         | .      | comm     | comm           | comm
    final 0+20 lost 10   | .    | .         | .      | comm     | comm           | .
    final 0+130          | .    | .         | .      | .        | comm           | .
    final 0+100 lost 30  | .    | .         | .      | comm     | comm           | .
";

#[test]
fn a_commit_that_its_terms_do_not_allow_cannot_follow() {
    let policies = [Overrun::Cap, Overrun::Available, Overrun::Refuse];
    check_follows(FOLLOWS_BY_POLICY, |column| {
        let state = if column < 3 { STATES[2] } else { EXPIRED[0] };
        (state, Terms { overrun: policies[column % 3], ..standard() })
    });
}

#[test]
fn every_state_has_its_name_on_the_wire() {
    for (state, name) in STATES.iter().chain(&EXPIRED).zip([
        "",
        "RESERVE_HELD",
        "RESERVE_HELD",
        "RESERVE_HELD",
        "FINALIZE_PENDING",
        "FINALIZE_ACKED",
        "FINALIZE_FAILED",
        "VOIDED",
        "RELEASED",
        "AUTO_RELEASED",
        "AUTO_RELEASED",
        "FINALIZE_PENDING",
        "FINALIZE_ACKED",
        "FINALIZE_FAILED",
    ]) {
        if let Some(charge) = before(state, standard()) {
            assert_eq!(charge.state().to_string(), name);
        }
    }
}

/// Every command of [`COMMANDS`], in that order, does to `state` what the table says: `command | outcome | then`.
fn check(state: &str, table: &str) {
    let before = read(state, |words| charge(words, standard()));
    let rows: Vec<_> = rows(table).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), COMMANDS, "every command, once, in order");
    for row in rows {
        let [command, outcome, then] = row[..] else { unreachable!("three cells: {row:?}") };
        let now = if command == "expire" { NOW.after(h(24)) } else { NOW };
        decides(&before, read(command, parse_command), &at(now, "1000"), outcome, then);
    }
}

/// As [`check`], for a charge whose hold has ended: every command that the table leaves out is refused with the state.
fn check_closed(state: &str, table: &str) {
    let name = state.split(' ').next().expect("a state has a name");
    let written: Vec<_> = rows(table).collect();
    assert!(written.iter().all(|row| COMMANDS.contains(&row[0])), "a command that is not asked: {written:?}");
    let line = |command: &&str| match written.iter().find(|row| row[0] == *command) {
        Some(row) => row.join("|"),
        None => format!("{command} | refused: {name} |"),
    };
    check(state, &COMMANDS.iter().map(line).collect::<Vec<_>>().join("\n"));
}

/// One charge of 100 from its reserve on: each row's outcome, on the state that the row before led to.
fn check_life(table: &str) {
    let mut state = STATES[1];
    for row in rows(table) {
        let [command, outcome, then] = row[..] else { unreachable!("three cells: {row:?}") };
        let before = read(state, |words| charge(words, standard()));
        decides(&before, read(command, parse_command), &at(NOW.after(h(24)), "1000"), outcome, then);
        state = if then.is_empty() { state } else { then };
    }
}

fn decides(before: &Charge, command: Command, context: &Context, outcome: &str, then: &str) {
    let case = format!("{before:?}\n{command:?}\n{context:?}");
    let decided = before.decide(&command, context);
    assert_eq!(decided, read(outcome, parse_outcome), "{case}");
    match decided {
        Ok(event) => {
            let after = read(then, |words| charge(words, terms(before)));
            assert_eq!(Charge::apply(Some(*before), &event), Ok(after), "{case}");
        }
        Err(_) => assert_eq!(then, "", "nothing follows a refusal: {case}"),
    }
}

/// A commit of each amount (a column) under each `policy available finality` (a row) takes what the cell says.
fn check_overrun(state: &str, table: &str) {
    let mut rows = rows(table);
    let header = rows.next().expect("a table has a header");
    for (overrun, policy) in [(Overrun::Cap, "cap"), (Overrun::Available, "available"), (Overrun::Refuse, "refuse")] {
        for available in ["1000", "20", "0"] {
            for word in ["final", "partial"] {
                let row = rows.next().expect("a row for every policy, balance and finality");
                assert_eq!((row[0], row.len()), (format!("{policy} {available} {word}").as_str(), header.len()));
                let before = read(state, |words| charge(words, Terms { overrun, ..standard() }));
                for (amount, cell) in header.iter().zip(&row).skip(1) {
                    let command = read(&format!("commit {amount} {word}"), parse_command);
                    commits(&before, command, &at(NOW, available), cell, finality(word).expect("final or partial"));
                }
            }
        }
    }
    assert_eq!(rows.next(), None, "no other rows");
}

fn commits(before: &Charge, command: Command, context: &Context, cell: &str, finality: Finality) {
    let case = format!("{before:?}\n{command:?}\n{context:?}");
    let expected = match cell.strip_prefix("over ") {
        Some(chargeable) => Err(Refusal::ExceedsHold { chargeable: credits(chargeable).expect("an amount") }),
        None if cell == "zero" => Err(Refusal::ZeroAmount),
        None => Ok(read(cell, parse_taken)),
    };
    let decided = before.decide(&command, context);
    assert_eq!(decided, expected.map(|taken| Event::Committed { taken, finality }), "{case}");
    if let (Ok(event), Ok(taken)) = (decided, expected) {
        assert_eq!(Charge::apply(Some(*before), &event), Ok(by_hand(before, &taken, finality)), "{case}");
    }
}

/// The charge after a commit, by plain sums.
fn by_hand(before: &Charge, taken: &Taken, finality: Finality) -> Charge {
    let sum = |parts: &[CreditUnit]| {
        CreditUnit::new(parts.iter().map(|part| part.units()).sum()).expect("small amounts in the tables")
    };
    let took = [taken.from_hold, taken.from_available];
    let added = |charged: CreditUnit| sum(&[charged, took[0], took[1]]);
    let late = |closed: Closed| Closed {
        charged: added(closed.charged),
        uncollected: sum(&[closed.uncollected, taken.uncollected]),
        late: added(closed.late),
        ended: if finality == Finality::Final { Ended::Settled } else { closed.ended },
        ..closed
    };
    match (*before, finality) {
        (Charge::Held(hold), Finality::Partial) => Charge::Held(Hold {
            held: CreditUnit::new(hold.held.units() - taken.from_hold.units()).expect("less than before"),
            charged: added(hold.charged),
            uncollected: sum(&[hold.uncollected, taken.uncollected]),
            ..hold
        }),
        (Charge::Held(hold), Finality::Final) => Charge::Committed(Closed {
            charged: added(hold.charged),
            uncollected: sum(&[hold.uncollected, taken.uncollected]),
            returned: taken.returned,
            late: CreditUnit::ZERO,
            ended: Ended::Settled,
            terms: hold.terms,
        }),
        (Charge::AutoReleased(closed), Finality::Partial) => Charge::AutoReleased(late(closed)),
        (
            Charge::AutoReleased(closed)
            | Charge::Committed(closed)
            | Charge::Acked(closed)
            | Charge::Failed(closed)
            | Charge::Voided(closed)
            | Charge::Released(closed),
            Finality::Final | Finality::Partial,
        ) => Charge::Committed(late(closed)),
    }
}

/// Each event (a row) after each state (a column) leads to the state that the cell names; a dot is refused.
fn check_follows(table: &str, state_of: impl Fn(usize) -> (&'static str, Terms)) {
    let mut rows = rows(table);
    let header = rows.next().expect("a table has a header");
    for row in rows {
        assert_eq!(row.len(), header.len(), "a cell for every state: {row:?}");
        let event = read(row[0], parse_event);
        for (column, cell) in row.iter().skip(1).enumerate() {
            let (state, terms) = state_of(column);
            let before = before(state, terms);
            let reached = Charge::apply(before, &event).map(|charge| short(charge.state()));
            let refused = CannotFollow { state: before.map(|charge| charge.state()) };
            let expected = if *cell == "." { Err(refused) } else { Ok(*cell) };
            assert_eq!(reached, expected, "{} after {state}, {:?}", row[0], terms.overrun);
        }
    }
}

fn before(state: &str, terms: Terms) -> Option<Charge> {
    (state != "none").then(|| read(state, |words| charge(words, terms)))
}

const fn short(state: State) -> &'static str {
    match state {
        State::Held => "held",
        State::Committed => "comm",
        State::Acked => "ackd",
        State::Failed => "fail",
        State::Voided => "void",
        State::Released => "rel",
        State::AutoReleased => "auto",
    }
}

fn rates(input: Price, output: Price) -> Rates {
    Rates {
        input,
        output,
        cached_input: None,
        cache_write: None,
        reasoning: None,
        per_request: None,
        credits_per_usd: CreditsPerUsd::DEFAULT,
    }
}

fn standard() -> Terms {
    // A dollar is 100 credits, so a cent per token is a credit per token.
    let price = |cents: u64| Price::new(cents * 10_000_000_000).expect("above zero");
    Terms { rates: Some(rates(price(1), price(2))), overrun: Overrun::Cap, on_expiry: OnExpiry::Release }
}

fn at(now: Timestamp, available: &str) -> Context {
    Context { now, available: credits(available).expect("an amount") }
}

fn h(hours: u32) -> Span {
    Span::from_secs(hours * 60 * 60)
}

fn charge(words: &[&str], terms: Terms) -> Option<Charge> {
    if let ["held", held, "charged", charged, "lost", lost, stage, until] = words {
        let stage = match *stage {
            "reserved" => Stage::Reserved,
            "in-flight" => Stage::InFlight,
            _ => return None,
        };
        let (held, charged, uncollected) = (credits(held)?, credits(charged)?, credits(lost)?);
        let expires_at = NOW.after(hours(until)?);
        let noted = CreditUnit::ZERO;
        return Some(Charge::Held(Hold { held, charged, uncollected, noted, stage, terms, expires_at }));
    }
    let [name, "charged", charged, "lost", lost, "back", back, more @ ..] = words else { return None };
    let (charged, uncollected, returned) = (credits(charged)?, credits(lost)?, credits(back)?);
    let (late, more) =
        if let ["late", late, more @ ..] = more { (credits(late)?, more) } else { (CreditUnit::ZERO, more) };
    let ended = match (*name, more) {
        ("auto-released", []) | ("committed" | "acked" | "failed", ["expired"]) => Ended::Expired,
        (_, []) => Ended::Settled,
        _ => return None,
    };
    let closed = Closed { charged, uncollected, returned, late, ended, terms };
    match *name {
        "committed" => Some(Charge::Committed(closed)),
        "acked" => Some(Charge::Acked(closed)),
        "failed" => Some(Charge::Failed(closed)),
        "voided" => Some(Charge::Voided(closed)),
        "released" => Some(Charge::Released(closed)),
        "auto-released" => Some(Charge::AutoReleased(closed)),
        _ => None,
    }
}

fn parse_command(words: &[&str]) -> Option<Command> {
    Some(match words {
        ["start"] => Command::Start,
        ["increase", amount] => Command::Increase { amount: credits(amount)? },
        ["extend", ttl] => Command::Extend { ttl: hours(ttl)? },
        ["commit", amount, word] => {
            Command::Commit { actual: Actual::Credits(credits(amount)?), finality: finality(word)? }
        }
        ["commit", tokens, "tokens", word] => {
            let (input, output) = tokens.split_once('+')?;
            let usage = Usage { input: input.parse().ok()?, output: output.parse().ok()?, ..Usage::NONE };
            Command::Commit { actual: Actual::Usage(usage), finality: finality(word)? }
        }
        ["release"] => Command::Release,
        ["expire"] | ["expire", "early"] => Command::Expire,
        ["void"] => Command::Void { reason: reason("by mistake") },
        ["ack"] => Command::Ack { charged: None },
        ["ack", told] => Command::Ack { charged: Some(credits(told)?) },
        ["fail"] => Command::Fail { reason: reason("no answer"), charged: None },
        ["fail", told] => Command::Fail { reason: reason("no answer"), charged: Some(credits(told)?) },
        _ => return None,
    })
}

fn finality(word: &str) -> Option<Finality> {
    match word {
        "final" => Some(Finality::Final),
        "partial" => Some(Finality::Partial),
        _ => None,
    }
}

fn parse_outcome(words: &[&str]) -> Option<Result<Event, Refusal>> {
    let refusal = match words {
        ["refused:", "zero", "amount"] => Refusal::ZeroAmount,
        ["refused:", "overflow"] => Refusal::Overflow,
        ["refused:", "ttl"] => Refusal::InvalidTtl,
        ["refused:", "no", "rates"] => Refusal::NoFrozenRates,
        ["refused:", "held"] => Refusal::InvalidState(State::Held),
        ["refused:", "committed"] => Refusal::InvalidState(State::Committed),
        ["refused:", "acked"] => Refusal::InvalidState(State::Acked),
        ["refused:", "failed"] => Refusal::InvalidState(State::Failed),
        ["refused:", "voided"] => Refusal::InvalidState(State::Voided),
        ["refused:", "released"] => Refusal::InvalidState(State::Released),
        ["refused:", "auto-released"] => Refusal::InvalidState(State::AutoReleased),
        _ => return parse_event(words).map(Ok),
    };
    Some(Err(refusal))
}

fn parse_event(words: &[&str]) -> Option<Event> {
    Some(match words {
        ["reserved", amount] => Event::Reserved {
            amount: credits(amount)?,
            terms: standard(),
            expires_at: NOW.after(h(24)),
            budgets: Budgets::NONE,
        },
        ["started"] => Event::Started,
        ["increased", amount] => Event::Increased { amount: credits(amount)? },
        ["extended", until] => Event::Extended { expires_at: NOW.after(hours(until)?) },
        [word @ ("final" | "partial"), taken @ ..] => {
            Event::Committed { taken: parse_taken(taken)?, finality: finality(word)? }
        }
        ["released", returned] => Event::Released { returned: credits(returned)? },
        ["auto-released", returned] => Event::AutoReleased { returned: credits(returned)? },
        ["voided", returned] => Event::Voided { returned: credits(returned)?, reason: reason("by mistake") },
        ["acked"] => Event::Acked,
        ["failed"] => Event::Failed { reason: reason("no answer") },
        _ => return None,
    })
}

fn parse_taken(words: &[&str]) -> Option<Taken> {
    let (sum, back, lost) = match words {
        [sum] => (sum, "0", "0"),
        [sum, "back", back] => (sum, *back, "0"),
        [sum, "lost", lost] => (sum, "0", *lost),
        [sum, "back", back, "lost", lost] => (sum, *back, *lost),
        _ => return None,
    };
    let (from_hold, from_available) = sum.split_once('+')?;
    Some(Taken {
        from_hold: credits(from_hold)?,
        from_available: credits(from_available)?,
        returned: credits(back)?,
        uncollected: credits(lost)?,
    })
}

// The tables write the largest amount as a thousand milliard credits.
const _: () = assert!(AMOUNT_MAX == 1_000_000_000_000 * 1_000_000);
