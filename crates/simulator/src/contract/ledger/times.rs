//! Rules about time: holds that end by themselves, what comes after that, and budgets of a day.

use super::requests::{TERMS, asks, charge, commit, cost, credits, keyed, mint, on, owner, plan, reserve_as, under};
use super::{Kept, LedgerUnderTest, Tried, asked, refused, same};
use holdfast_domain::charge::{Charge, Command, Finality, OnExpiry, Overrun, Reserve, State, Terms};
use holdfast_domain::{Account, Change, Span};
use holdfast_engine::{Command as Asked, Refusal, Request};

const TEN_SECONDS: Span = Span::from_secs(10);
const MOMENT: Span = Span::from_millis(1);

/// A hold of ten seconds.
fn brief(id: &str, from: &str, whole: u64, terms: Terms) -> Request {
    reserve_as(id, Reserve { ttl: TEN_SECONDS, terms, ..plan(from, whole) })
}

pub(super) async fn expiry<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let estimate = Terms { on_expiry: OnExpiry::ChargeEstimate, ..TERMS };
    tried
        .all_done(vec![
            mint("sleeper", 100),
            brief("left", "sleeper", 10, TERMS),
            brief("left-in-part", "sleeper", 10, TERMS),
            brief("left-running", "sleeper", 10, TERMS),
            brief("left-to-charge", "sleeper", 10, estimate),
            brief("never-begun", "sleeper", 10, estimate),
            brief("extended", "sleeper", 10, TERMS),
            on("left-running", Command::Start),
            on("left-to-charge", Command::Start),
            keyed("left-part", on("left-in-part", cost(credits(4), Finality::Partial))),
        ])
        .await?;
    tried.clock.forward(Span::from_millis(TEN_SECONDS.millis() - 2));
    tried.later(MOMENT).await?;
    same("a moment before its end", tried.charge(charge("left")).await?.state(), State::Held)?;
    let early = tried.submit(keyed("too-early", on("left", Command::Expire))).await;
    same("an early end", early, Err(Refusal::InvalidState(State::Held)))?;
    tried.done(keyed("longer", on("extended", Command::Extend { ttl: TEN_SECONDS }))).await?;
    tried.later(MOMENT).await?;
    for (id, state) in [
        ("left", State::AutoReleased),
        ("left-in-part", State::Committed),
        ("left-running", State::AutoReleased),
        ("left-to-charge", State::Committed),
        ("never-begun", State::AutoReleased),
        ("extended", State::Held),
    ] {
        same(id, tried.charge(charge(id)).await?.state(), state)?;
    }
    // A part of four and an estimate of ten were charged; one is still held.
    tried.has(owner("sleeper"), "76", "10").await?;
    tried.later(TEN_SECONDS).await?;
    tried.has(owner("sleeper"), "86", "0").await?;
    let life = asked(tried.ledger.life(charge("left")).await)?;
    same("the entries of one that was left", life.len(), 2)
}

pub(super) async fn late_results<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let with = |overrun| Terms { overrun, ..TERMS };
    tried
        .all_done(vec![
            mint("tardy", 100),
            brief("late", "tardy", 10, TERMS),
            brief("late-refuse", "tardy", 10, with(Overrun::Refuse)),
            brief("late-available", "tardy", 10, with(Overrun::Available)),
        ])
        .await?;
    tried.later(TEN_SECONDS).await?;
    tried.has(owner("tardy"), "100", "0").await?;
    let part = keyed("late-part", on("late", cost(credits(4), Finality::Partial)));
    tried.done(part).await?;
    same("after a part", tried.charge(charge("late")).await?.state(), State::AutoReleased)?;
    // Ten were given back, and four of them are taken.
    tried.done(commit("late", 9)).await?;
    tried.has(owner("tardy"), "90", "0").await?;
    let Charge::Committed(closed) = tried.charge(charge("late")).await? else {
        return Err("a late result commits".to_owned());
    };
    same("charged and not", (closed.charged, closed.uncollected), (credits(10), credits(3)))?;
    let more = tried.submit(keyed("late-more", commit("late", 1))).await;
    same("after the final one", more, Err(Refusal::InvalidState(State::Committed)))?;
    let much = tried.submit(commit("late-refuse", 11)).await;
    same("more than was held", much, Err(Refusal::ExceedsHold { chargeable: credits(10) }))?;
    tried.done(commit("late-available", 30)).await?;
    tried.has(owner("tardy"), "60", "0").await?;
    // The whole of an account can be gone by then.
    let spend = Asked::Reserve { charge: charge("tardy-rest"), reserve: plan("tardy", 60) };
    tried.done(asks(spend)).await?;
    refused("with nothing left", &tried.submit(commit("late-refuse", 10)).await, "EXCEEDS_HOLD")?;
    tried.has(owner("tardy"), "0", "60").await
}

pub(super) async fn budget_of_a_day<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let daily = |id: &str, whole| {
        reserve_as(id, Reserve { budgets: under("daily", Some(10), Some(25)), ..plan("spender", whole) })
    };
    tried.all_done(vec![mint("spender", 100), daily("day-1", 9), commit("day-1", 8)]).await?;
    refused("more than a day allows", &tried.submit(daily("day-1-more", 3)).await, "INSUFFICIENT_BUDGET")?;
    tried.done(daily("day-1-rest", 2)).await?;
    let grow = keyed("grow", on("day-1-rest", Command::Increase { amount: credits(1) }));
    refused("a hold that grows", &tried.submit(grow).await, "INSUFFICIENT_BUDGET")?;
    tried.later(Span::DAY).await?;
    tried.all_done(vec![daily("day-2", 10), commit("day-2", 10)]).await?;
    tried.later(Span::DAY).await?;
    refused("more than there is in all", &tried.submit(daily("day-3", 6)).await, "INSUFFICIENT_BUDGET")?;
    tried.done(daily("day-3", 5)).await?;
    let used = asked(tried.ledger.used("daily".parse().expect("a plain word")).await)?;
    same("what is used", (used.today, used.total), (credits(5), credits(25)))?;
    let held = asked(tried.ledger.account(Account::Held(owner("spender"))).await)?;
    same("what is held", held, Some(Change::plus(credits(7))))
}
