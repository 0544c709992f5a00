//! Noting how much was delivered, and what becomes of a hold whose worker is gone.

use crate::table::{credits, id};
use holdfast_domain::charge::{
    Actual, Charge, Command, Context, Event, Finality, OnExpiry, Overrun, Refusal, Reserve, Terms, reserve,
};
use holdfast_domain::{Budgets, CreditUnit, Span, Timestamp};

const CONTEXT: Context = Context { now: Timestamp::EPOCH, available: CreditUnit::ZERO };

fn cu(amount: &str) -> CreditUnit {
    credits(amount).expect("an amount")
}

fn held(amount: &str, overrun: Overrun) -> Charge {
    let terms = Terms { rates: None, overrun, on_expiry: OnExpiry::Release };
    let request = Reserve { owner: id("alice"), amount: cu(amount), terms, ttl: Span::DAY, budgets: Budgets::NONE };
    let event = reserve(&request, Timestamp::EPOCH).expect("a plain reserve");
    Charge::apply(None, &event).expect("it begins a life")
}

fn note(cost: &str) -> Command {
    Command::Note { actual: Actual::Credits(cu(cost)) }
}

/// Does every command in turn, and gives the last event with the charge after it.
fn after(mut charge: Charge, commands: &[Command], available: &str) -> (Event, Charge) {
    let mut last = None;
    for command in commands {
        let context = Context { available: cu(available), ..CONTEXT };
        let event = charge.decide(command, &context).expect("each is allowed");
        charge = Charge::apply(Some(charge), &event).expect("what is decided can follow");
        last = Some(event);
    }
    (last.expect("at least one"), charge)
}

/// The charge of a hold of 100 that is abandoned after `commands`: what is charged, given back and lost.
fn abandoned(overrun: Overrun, commands: &[Command], available: &str) -> (String, String, String) {
    let commands: Vec<_> = commands.iter().cloned().chain([Command::Abandon]).collect();
    let (event, charge) = after(held("100", overrun), &commands, available);
    match (event, charge) {
        (Event::Released { returned }, Charge::Released(closed) | Charge::Committed(closed)) => {
            (closed.charged.to_string(), returned.to_string(), closed.uncollected.to_string())
        }
        (Event::Committed { taken, finality: Finality::Final }, Charge::Committed(closed)) => {
            (closed.charged.to_string(), taken.returned.to_string(), closed.uncollected.to_string())
        }
        other => unreachable!("{other:?}"),
    }
}

fn figures(charged: &str, returned: &str, lost: &str) -> (String, String, String) {
    (charged.to_owned(), returned.to_owned(), lost.to_owned())
}

#[test]
fn a_note_moves_no_money_and_never_goes_back() {
    let (event, charge) = after(held("100", Overrun::Cap), &[note("30"), note("20")], "0");
    assert_eq!(event, Event::Noted { cost: cu("30") });
    let Charge::Held(hold) = charge else { panic!("{charge:?}") };
    assert_eq!((hold.held, hold.charged, hold.noted), (cu("100"), CreditUnit::ZERO, cu("30")));
    assert!(Charge::apply(Some(charge), &Event::Noted { cost: cu("29.999999") }).is_err());
}

#[test]
fn an_abandoned_hold_is_charged_what_was_noted() {
    let part = Command::Commit { actual: Actual::Credits(cu("10")), finality: Finality::Partial };
    for overrun in [Overrun::Cap, Overrun::Available, Overrun::Refuse] {
        assert_eq!(abandoned(overrun, &[], "50"), figures("0", "100", "0"));
        assert_eq!(abandoned(overrun, &[note("30")], "50"), figures("30", "70", "0"));
        assert_eq!(abandoned(overrun, &[note("30"), part.clone()], "50"), figures("30", "70", "0"));
        assert_eq!(abandoned(overrun, &[note("10"), part.clone()], "50"), figures("10", "90", "0"));
    }
}

#[test]
fn what_was_noted_above_the_hold_is_settled_by_the_policy_and_never_refused() {
    assert_eq!(abandoned(Overrun::Cap, &[note("130")], "20"), figures("100", "0", "30"));
    assert_eq!(abandoned(Overrun::Available, &[note("130")], "20"), figures("120", "0", "10"));
    assert_eq!(abandoned(Overrun::Refuse, &[note("130")], "20"), figures("100", "0", "0"));
}

#[test]
fn a_hold_that_has_ended_is_neither_noted_nor_abandoned() {
    let commit = Command::Commit { actual: Actual::Credits(cu("10")), finality: Finality::Final };
    for end in [Command::Release, commit] {
        let (_, ended) = after(held("100", Overrun::Cap), &[end], "0");
        for command in [note("5"), Command::Abandon] {
            assert_eq!(ended.decide(&command, &CONTEXT), Err(Refusal::InvalidState(ended.state())));
        }
        assert!(Charge::apply(Some(ended), &Event::Noted { cost: cu("5") }).is_err());
    }
}
