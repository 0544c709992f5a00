//! The life of an escrow as tables: every state × every command, and every state × every event.
//!
//! A command is written `settle bob`, `refund` or `divide bob 70+30`: 70 to the payee, 30 back to the owner.

use crate::table::{credits, id, read, rows};
use holdfast_domain::escrow::{CannotFollow, Command, Escrowed, Event, Hold, Refusal, State, hold};
use holdfast_domain::{Escrow, Timestamp};

/// What is asked of every state: an escrow of 100.
const COMMANDS: [&str; 10] = [
    "settle bob",
    "settle carol",
    "refund",
    "divide bob 70+30",
    "divide carol 100+0",
    "divide bob 0+100",
    "divide bob 0+0",
    "divide bob 70+29",
    "divide bob 70+31",
    "divide bob 1000000000000+100",
];

#[test]
fn a_held_escrow_is_paid_out_given_back_or_divided_to_the_last_unit() {
    check(
        "held",
        "
        settle bob                   | settled bob 100     | settled
        settle carol                 | settled carol 100   | settled
        refund                       | refunded 100        | refunded
        divide bob 70+30             | divided bob 70+30   | partial
        divide carol 100+0           | divided carol 100+0 | partial
        divide bob 0+100             | divided bob 0+100   | partial
        divide bob 0+0               | refused: split 100  |
        divide bob 70+29             | refused: split 100  |
        divide bob 70+31             | refused: split 100  |
        divide bob 1000000000000+100 | refused: split 100  |
        ",
    );
}

#[test]
fn an_escrow_that_has_ended_refuses_everything_and_says_how_it_ended() {
    for state in ["settled", "refunded", "partial"] {
        check(state, &COMMANDS.map(|command| format!("{command} | refused: {state} |")).join("\n"));
    }
}

#[test]
fn an_escrow_of_nothing_is_refused() {
    assert_eq!(hold(&asked("0"), Timestamp::EPOCH), Err(Refusal::ZeroAmount));
    for amount in ["0.000001", "100", "1000000000000"] {
        let event = Event::Held(escrowed(amount));
        assert_eq!(hold(&asked(amount), Timestamp::EPOCH), Ok(event));
        assert_eq!(Escrow::apply(None, &event), Ok(Escrow::Held(escrowed(amount))));
    }
}

/// Which events can follow which state, and what they lead to; a dot is a corrupt journal.
const FOLLOWS: &str = "
                                  | none | held     | settled | refunded | partial
    held 100                      | held | .        | .       | .        | .
    held 0                        | .    | .        | .       | .        | .
    settled bob 100               | .    | settled  | .       | .        | .
    settled bob 99                | .    | .        | .       | .        | .
    settled bob 101               | .    | .        | .       | .        | .
    settled bob 0                 | .    | .        | .       | .        | .
    refunded 100                  | .    | refunded | .       | .        | .
    refunded 99                   | .    | .        | .       | .        | .
    refunded 101                  | .    | .        | .       | .        | .
    refunded 0                    | .    | .        | .       | .        | .
    divided bob 70+30             | .    | partial  | .       | .        | .
    divided bob 100+0             | .    | partial  | .       | .        | .
    divided bob 0+100             | .    | partial  | .       | .        | .
    divided bob 70+29             | .    | .        | .       | .        | .
    divided bob 70+31             | .    | .        | .       | .        | .
    divided bob 0+0               | .    | .        | .       | .        | .
    divided bob 1000000000000+100 | .    | .        | .       | .        | .
";

#[test]
fn an_event_that_cannot_follow_its_state_is_refused() {
    for row in rows(FOLLOWS).skip(1) {
        let event = read(row[0], parse_event);
        for (state, cell) in ["none", "held", "settled", "refunded", "partial"].into_iter().zip(row.iter().skip(1)) {
            let before = (state != "none").then(|| escrow(state));
            let refused = CannotFollow { state: before.map(|escrow| escrow.state()) };
            let expected = if *cell == "." { Err(refused) } else { Ok(escrow(cell)) };
            assert_eq!(Escrow::apply(before, &event), expected, "{} after {state}", row[0]);
        }
    }
}

#[test]
fn every_state_has_its_name_on_the_wire() {
    for name in ["held", "settled", "refunded", "partial"] {
        assert_eq!(escrow(name).state().to_string(), name);
        assert_eq!(escrow(name).escrowed(), &escrowed("100"));
    }
}

/// Every command of [`COMMANDS`], in that order, does to `state` what the table says: `command | outcome | then`.
fn check(state: &str, table: &str) {
    let before = escrow(state);
    let rows: Vec<_> = rows(table).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), COMMANDS, "every command, once, in order");
    for row in rows {
        let [command, outcome, then] = row[..] else { unreachable!("three cells: {row:?}") };
        let decided = before.decide(read(command, parse_command));
        assert_eq!(decided, read(outcome, parse_outcome), "{state}: {command}");
        match decided {
            Ok(event) => assert_eq!(Escrow::apply(Some(before), &event), Ok(escrow(then)), "{state}: {command}"),
            Err(_) => assert_eq!(then, "", "nothing follows a refusal"),
        }
    }
}

fn escrowed(amount: &str) -> Escrowed {
    Escrowed { amount: credits(amount).expect("an amount"), feature: id("solo"), held_at: Timestamp::EPOCH }
}

fn escrow(state: &str) -> Escrow {
    read(state, |words| match words {
        ["held"] => Some(Escrow::Held(escrowed("100"))),
        ["settled"] => Some(Escrow::Settled(escrowed("100"))),
        ["refunded"] => Some(Escrow::Refunded(escrowed("100"))),
        ["partial"] => Some(Escrow::Partial(escrowed("100"))),
        _ => None,
    })
}

fn parse_command(words: &[&str]) -> Option<Command> {
    Some(match words {
        ["settle", payee] => Command::Settle { payee: id(payee) },
        ["refund"] => Command::Refund,
        ["divide", payee, parts] => {
            let (settle, refund) = parts.split_once('+')?;
            Command::PartialSettle { payee: id(payee), settle: credits(settle)?, refund: credits(refund)? }
        }
        _ => return None,
    })
}

fn parse_outcome(words: &[&str]) -> Option<Result<Event, Refusal>> {
    Some(Err(match words {
        ["refused:", "split", amount] => Refusal::InvalidSplit { amount: credits(amount)? },
        ["refused:", "settled"] => Refusal::AlreadyProcessed(State::Settled),
        ["refused:", "refunded"] => Refusal::AlreadyProcessed(State::Refunded),
        ["refused:", "partial"] => Refusal::AlreadyProcessed(State::Partial),
        _ => return parse_event(words).map(Ok),
    }))
}

fn parse_event(words: &[&str]) -> Option<Event> {
    Some(match words {
        ["held", amount] => Event::Held(escrowed(amount)),
        ["settled", payee, amount] => Event::Settled { payee: id(payee), amount: credits(amount)? },
        ["refunded", amount] => Event::Refunded { amount: credits(amount)? },
        ["divided", payee, parts] => {
            let (settled, refunded) = parts.split_once('+')?;
            Event::PartiallySettled { payee: id(payee), settled: credits(settled)?, refunded: credits(refunded)? }
        }
        _ => return None,
    })
}

fn asked(amount: &str) -> Hold {
    Hold { owner: id("alice"), amount: credits(amount).expect("an amount"), feature: id("solo") }
}
