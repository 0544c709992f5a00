//! Rules about escrows.

use super::requests::{credits, escrow as id, hold, keyed, mint, on_escrow, owner, payee, reason};
use super::{Kept, LedgerUnderTest, Tried, asked, refused, same};
use holdfast_domain::escrow::{Command, State};
use holdfast_domain::{Account, Change};
use holdfast_engine::{Command as Asked, Outcome, Refusal};

const ROUNDS: u32 = 20;

async fn is_in<L: LedgerUnderTest>(tried: &Tried<L>, name: &str, state: State) -> Kept {
    let found = asked(tried.ledger.escrow(id(name)).await)?;
    let (found, whose) = found.ok_or_else(|| format!("there is no escrow {name}"))?;
    same("whose it is", whose, owner("patron"))?;
    same(&format!("the state of {name}"), found.state(), state)
}

async fn earned<L: LedgerUnderTest>(tried: &Tried<L>, name: &str, whole: u64) -> Kept {
    let found = asked(tried.ledger.account(Account::Payee(payee(name))).await)?;
    same(&format!("what {name} earned"), found, Some(Change::plus(credits(whole))))
}

pub(super) async fn ends<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let (settle, divide) = (
        |name: &str| Command::Settle { payee: payee(name) },
        |settle, refund| Command::PartialSettle {
            payee: payee("both"),
            settle: credits(settle),
            refund: credits(refund),
        },
    );
    tried.all_done(vec![mint("patron", 100), hold("all", "patron", 10), hold("none", "patron", 20)]).await?;
    tried.all_done(vec![hold("part", "patron", 30), hold("stays", "patron", 5)]).await?;
    tried.has(owner("patron"), "35", "0").await?;
    let held = asked(tried.ledger.account(Account::Escrow(id("part"))).await)?;
    same("what an escrow holds", held, Some(Change::plus(credits(30))))?;

    tried.done(on_escrow("all", settle("one"))).await?;
    tried.done(on_escrow("none", Command::Refund)).await?;
    let wrong = tried.submit(on_escrow("part", divide(20, 11))).await;
    same("parts that do not add up", wrong, Err(Refusal::InvalidSplit { amount: credits(30) }))?;
    tried.done(on_escrow("part", divide(20, 10))).await?;
    tried.has(owner("patron"), "65", "0").await?;
    earned(tried, "one", 10).await?;
    earned(tried, "both", 20).await?;
    for (name, state) in [("all", State::Settled), ("none", State::Refunded), ("part", State::Partial)] {
        is_in(tried, name, state).await?;
        let again = tried.submit(keyed(&format!("again-{name}"), on_escrow(name, settle("late")))).await;
        same("once more", again, Err(Refusal::EscrowAlreadyProcessed(state)))?;
    }
    is_in(tried, "stays", State::Held).await?;
    let repeated = tried.submit(on_escrow("all", settle("one"))).await;
    same("the same again", matches!(repeated, Ok(Outcome::Replayed(_))), true)?;
    let other = tried.submit(on_escrow("all", settle("other"))).await;
    same("another payee", other, Err(Refusal::EscrowAlreadyProcessed(State::Settled)))?;
    refused("too much", &tried.submit(hold("much", "patron", 66)).await, "INSUFFICIENT_BALANCE")
}

pub(super) async fn one_end<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("crowded", 100)).await?;
    for round in 0..ROUNDS {
        let name = format!("crowded-{round}");
        tried.done(hold(&name, "crowded", 5)).await?;
        let settle = |number| on_escrow(&name, Command::Settle { payee: payee(&format!("payee-{number}")) });
        let mut ends: Vec<_> = (0..6).map(settle).collect();
        ends.push(on_escrow(&name, Command::Refund));
        let answers = tried.crowd(ends).await?;
        let ended = answers.iter().filter(|answer| answer.is_ok()).count();
        same("how many ended it", ended, 1)?;
        for answer in answers.iter().filter(|answer| answer.is_err()) {
            refused("the others", answer, "ESCROW_ALREADY_PROCESSED")?;
        }
    }
    Ok(())
}

pub(super) async fn once_by_key<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("forgetful", 100)).await?;
    // Whoever lost the id of an escrow makes up another: the key is what counts.
    let one = hold("first", "forgetful", 8);
    let other = keyed("hold-first", hold("second", "forgetful", 8));
    let answers = tried.crowd([vec![one.clone(); 50], vec![other; 50]].concat()).await?;
    let applied = answers.iter().filter(|answer| matches!(answer, Ok(Outcome::Applied(_)))).count();
    same("how many did it", applied, 1)?;
    let offsets: Result<Vec<u64>, _> =
        answers.iter().map(|answer| answer.as_ref().map(|outcome| outcome.receipt().offset)).collect();
    let offsets = offsets.map_err(|refusal| format!("a repetition was refused: {refusal}"))?;
    same("every receipt is of one entry", offsets.iter().all(|offset| Some(offset) == offsets.first()), true)?;
    tried.has(owner("forgetful"), "92", "0").await?;
    refused(
        "another amount",
        &tried.submit(keyed("hold-first", hold("third", "forgetful", 9))).await,
        "ALREADY_USED_KEY",
    )?;
    let taken = answers.iter().flatten().next().map(|outcome| outcome.receipt().event.clone());
    let taken = match taken.as_deref() {
        Some(holdfast_domain::Event::Escrow { id, .. }) => *id,
        other => return Err(format!("an escrow was held by {other:?}")),
    };
    let Asked::Hold { hold, .. } = one.command else { return Err("a hold is one".to_owned()) };
    let id_again = keyed("fresh", super::requests::asks(Asked::Hold { escrow: taken, hold }));
    refused("an id that is taken", &tried.submit(id_again).await, "ALREADY_USED_KEY")?;
    let other = Asked::Mint { owner: owner("forgetful"), amount: credits(1), reason: reason() };
    let other = keyed("hold-first", super::requests::asks(other));
    refused("another command", &tried.submit(other).await, "ALREADY_USED_KEY")
}
