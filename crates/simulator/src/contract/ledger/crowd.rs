//! Rules that only a crowd can break: many ask for the same at the same time.

use super::requests::{charge, commit, credits, keyed, mint, on, owner, plan, reserve, reserve_as, under};
use super::{Kept, LedgerUnderTest, OPEN_HOLDS_MAX, Tried, asked, refused, same};
use holdfast_domain::charge::{self as life, Reserve};
use holdfast_engine::{Answer, Outcome, Refusal, Request};

const CROWD: u64 = 1_000;
const AGAIN: usize = 200;
const ROUNDS: u32 = 20;

fn applied(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| matches!(answer, Ok(Outcome::Applied(_)))).count()
}

/// One of these did it, and everybody was told the same.
fn once(answers: &[Answer]) -> Kept {
    same("how many did it", applied(answers), 1)?;
    let mut first = None;
    for answer in answers {
        let receipt = answer.as_ref().map_err(|refusal| format!("a repetition was refused: {refusal}"))?.receipt();
        same("a repetition's receipt", receipt, *first.get_or_insert(receipt))?;
    }
    Ok(())
}

pub(super) async fn no_overdraft<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("crowd", 10)).await?;
    let all = (0..CROWD).map(|number| reserve(&format!("crowd-{number}"), "crowd", 1));
    let answers = tried.crowd(all.collect()).await?;
    same("how many of a balance for ten", applied(&answers), 10)?;
    for answer in answers.iter().filter(|answer| answer.is_err()) {
        same("why", answer, &Err(Refusal::InsufficientBalance { available: credits(0), required: credits(1) }))?;
    }
    tried.has(owner("crowd"), "0", "10").await?;
    same("open holds", tried.balance(owner("crowd")).await?.open_holds, 10)
}

pub(super) async fn once_by_key<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    once(&tried.crowd(vec![mint("keyed", 7); AGAIN]).await?)?;
    let increase = keyed("more", on("keyed-hold", life::Command::Increase { amount: credits(2) }));
    tried.done(reserve("keyed-hold", "keyed", 1)).await?;
    once(&tried.crowd(vec![increase; AGAIN]).await?)?;
    tried.has(owner("keyed"), "4", "3").await?;
    same("entries", tried.balance(owner("keyed")).await?.entries, 3)
}

pub(super) async fn once_by_charge<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("unkeyed", 50)).await?;
    once(&tried.crowd(vec![reserve("unkeyed-hold", "unkeyed", 30); AGAIN]).await?)?;
    tried.has(owner("unkeyed"), "20", "30").await?;
    once(&tried.crowd(vec![commit("unkeyed-hold", 12); AGAIN]).await?)?;
    tried.has(owner("unkeyed"), "38", "0").await?;
    same("entries", tried.balance(owner("unkeyed")).await?.entries, 3)?;
    refused("another amount", &tried.submit(commit("unkeyed-hold", 13)).await, "INVALID_STATE")?;
    refused("another hold", &tried.submit(reserve("unkeyed-hold", "unkeyed", 31)).await, "ALREADY_USED_KEY")
}

pub(super) async fn one_end<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("races", 100)).await?;
    for round in 0..ROUNDS {
        let id = format!("race-{round}");
        tried.done(reserve(&id, "races", 5)).await?;
        // Each of another cost, so that no two are the same request.
        let mut ends: Vec<Request> = (1..=4).map(|whole| commit(&id, whole)).collect();
        ends.extend([on(&id, life::Command::Release), on(&id, life::Command::Abandon)]);
        let answers = tried.crowd(ends).await?;
        same("how many ended it", applied(&answers), 1)?;
        for answer in answers.iter().filter(|answer| !matches!(answer, Ok(Outcome::Applied(_)))) {
            refused("the others", answer, "INVALID_STATE")?;
        }
    }
    same("what is held", tried.balance(owner("races")).await?.held, credits(0))
}

pub(super) async fn budgets<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    // Of ten owners, so that the budget is what they have in common.
    for number in 0..10 {
        tried.done(mint(&format!("team-{number}"), 1_000)).await?;
    }
    let all = (0..AGAIN).map(|number| {
        let plan = plan(&format!("team-{}", number % 10), 1);
        reserve_as(&format!("team-hold-{number}"), Reserve { budgets: under("team", None, Some(12)), ..plan })
    });
    let answers = tried.crowd(all.collect()).await?;
    same("how many of a budget of twelve", applied(&answers), 12)?;
    for answer in answers.iter().filter(|answer| answer.is_err()) {
        refused("the others", answer, "INSUFFICIENT_BUDGET")?;
    }
    let budget = "team".parse().expect("a plain word");
    same("what is used", asked(tried.ledger.used(budget).await)?.total, credits(12))?;
    let held = answers.iter().position(|answer| answer.is_ok()).ok_or("none was admitted")?;
    tried.done(on(&format!("team-hold-{held}"), life::Command::Release)).await?;
    same("what is used after a release", asked(tried.ledger.used(budget).await)?.total, credits(11))
}

pub(super) async fn open_holds<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("many", 1_000)).await?;
    let most = usize::try_from(OPEN_HOLDS_MAX).map_err(|error| error.to_string())?;
    let all = (0..4 * most).map(|number| reserve(&format!("many-{number}"), "many", 1));
    let answers = tried.crowd(all.collect()).await?;
    same("how many are open", applied(&answers), most)?;
    for answer in answers.iter().filter(|answer| answer.is_err()) {
        same("why", answer, &Err(Refusal::TooManyOpenHolds { open: OPEN_HOLDS_MAX }))?;
    }
    let open = answers.iter().position(|answer| answer.is_ok()).ok_or("none was admitted")?;
    tried.done(on(&format!("many-{open}"), life::Command::Release)).await?;
    tried.done(reserve("many-more", "many", 1)).await?;
    let closed = tried.charge(charge(&format!("many-{open}"))).await?;
    same("the one that was released", closed.state(), life::State::Released)
}
