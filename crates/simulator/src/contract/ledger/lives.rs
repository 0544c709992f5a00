//! Rules about requests one by one, and about the lives of charges.

use super::requests::{
    LONG, TERMS, asks, charge, commit, cost, credits, escrow, hold, keyed, mint, on, on_escrow, owner, plan, reason,
    reserve, reserve_as,
};
use super::{Kept, LedgerUnderTest, Tried, asked, refused, same};
use holdfast_domain::charge::{Actual, Charge, Command, Finality, Overrun, Reserve, State, Terms};
use holdfast_domain::{CreditsPerUsd, Price, Rates, Span, Usage, escrow as escrows};
use holdfast_engine::{BATCH_MAX, Command as Asked, LifeState, Outcome, Refusal, Request};

/// How long the holds live that are to end by themselves.
const BRIEF: Span = Span::from_secs(1);

pub(super) async fn key_reused<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let first = tried.done(mint("reuser", 5)).await?;
    let again = tried.submit(mint("reuser", 5)).await;
    same("the same again", again, Ok(Outcome::Replayed(first)))?;
    let another = |request| keyed("mint-reuser-5", request);
    for (what, request) in [
        ("another amount", another(mint("reuser", 6))),
        ("another account", another(mint("reuser-2", 5))),
        ("another command", another(reserve("reuser-hold", "reuser", 1))),
    ] {
        same(what, tried.submit(request).await, Err(Refusal::KeyReused))?;
    }
    // A refused request leaves its key free.
    refused(
        "too much",
        &tried.submit(keyed("free", reserve("reuser-hold", "reuser", 6))).await,
        "INSUFFICIENT_BALANCE",
    )?;
    let now = tried.submit(keyed("free", reserve("reuser-hold", "reuser", 4))).await;
    same("the key of a refused request", matches!(now, Ok(Outcome::Applied(_))), true)?;
    tried.has(owner("reuser"), "1", "4").await
}

pub(super) async fn key_required<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.all_done(vec![mint("careless", 5), reserve("careless-hold", "careless", 1)]).await?;
    let unkeyed = |request: Request| Request { key: None, ..request };
    for request in [
        unkeyed(mint("careless", 6)),
        unkeyed(hold("careless-escrow", "careless", 1)),
        on("careless-hold", Command::Increase { amount: credits(1) }),
        on("careless-hold", Command::Extend { ttl: LONG }),
        on("careless-hold", cost(credits(1), Finality::Partial)),
    ] {
        same(&format!("{request:?}"), tried.submit(request).await, Err(Refusal::KeyRequired))?;
    }
    tried.has(owner("careless"), "4", "1").await
}

pub(super) async fn batches<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let requests = vec![
        reserve("early", "queue", 1),
        mint("queue", 10),
        reserve("queue-a", "queue", 6),
        reserve("queue-b", "queue", 6),
        commit("queue-a", 2),
        reserve("queue-b", "queue", 6),
        reserve("queue-b", "queue", 6),
    ];
    let answers = asked(tried.ledger.submit_batch(requests).await)?;
    let said = answers.iter().map(|answer| match answer {
        Ok(Outcome::Applied(_)) => "applied",
        Ok(Outcome::Replayed(_)) => "replayed",
        Err(refusal) => refusal.code(),
    });
    let expected =
        ["ACCOUNT_NOT_FOUND", "applied", "applied", "INSUFFICIENT_BALANCE", "applied", "applied", "replayed"];
    same("the answers", said.collect::<Vec<_>>(), expected.to_vec())?;
    let offsets: Vec<u64> = answers.iter().flatten().map(|outcome| outcome.receipt().offset).collect();
    let (last, others) = offsets.split_last().ok_or("nothing was answered")?;
    same("a replay's offset", Some(last), others.last())?;
    same("offsets grow", others.is_sorted_by(|one, two| one < two), true)?;
    let too_many = vec![mint("never", 1); BATCH_MAX + 1];
    same("a batch that is too large", tried.ledger.submit_batch(too_many).await, Err(Refusal::BatchTooLarge))?;
    same("what it left", asked(tried.ledger.balance(owner("never")).await)?, None)?;
    same("an empty batch", tried.ledger.submit_batch(Vec::new()).await, Ok(Vec::new()))?;
    tried.has(owner("queue"), "2", "6").await
}

pub(super) async fn unknown<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let before = asked(tried.ledger.totals().await)?;
    for (request, refusal) in [
        (reserve("no-hold", "nobody", 1), Refusal::UnknownAccount),
        (hold("no-escrow", "nobody", 1), Refusal::UnknownAccount),
        (commit("no-hold", 1), Refusal::UnknownCharge),
        (on("no-hold", Command::Release), Refusal::UnknownCharge),
        (on_escrow("no-escrow", escrows::Command::Refund), Refusal::UnknownEscrow),
    ] {
        same(&format!("{request:?}"), tried.submit(request).await, Err(refusal))?;
    }
    same("an unknown account", asked(tried.ledger.balance(owner("nobody")).await)?, None)?;
    same("an unknown charge", asked(tried.ledger.charge(charge("no-hold")).await)?, None)?;
    same("its life", asked(tried.ledger.life(charge("no-hold")).await)?, Vec::new())?;
    same("an unknown escrow", asked(tried.ledger.escrow(escrow("no-escrow")).await)?, None)?;
    same("the sums", asked(tried.ledger.totals().await)?, before)
}

pub(super) async fn senseless<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.all_done(vec![mint("odd", 10), reserve("odd-hold", "odd", 2)]).await?;
    let lasting = |ttl| reserve_as("odd-time", Reserve { ttl, ..plan("odd", 1) });
    let none = credits(0);
    let mint_nothing = Asked::Mint { owner: owner("odd"), amount: none, reason: reason() };
    for (request, code) in [
        (keyed("odd-1", asks(mint_nothing)), "INVALID_AMOUNT"),
        (reserve("odd-none", "odd", 0), "INVALID_AMOUNT"),
        (hold("odd-none", "odd", 0), "INVALID_AMOUNT"),
        (keyed("odd-2", on("odd-hold", Command::Increase { amount: none })), "INVALID_AMOUNT"),
        (keyed("odd-3", on("odd-hold", cost(none, Finality::Partial))), "INVALID_AMOUNT"),
        (lasting(Span::from_millis(0)), "INVALID_TTL"),
        (lasting(Span::from_secs(366 * 24 * 60 * 60 + 1)), "INVALID_TTL"),
        (keyed("odd-4", on("odd-hold", Command::Extend { ttl: Span::from_millis(0) })), "INVALID_TTL"),
        (on("odd-hold", commit_usage(Usage::NONE)), "NO_FROZEN_RATES"),
    ] {
        refused(&format!("{request:?}"), &tried.submit(request).await, code)?;
    }
    // Nothing is a cost like any other: the whole hold comes back.
    tried.done(commit("odd-hold", 0)).await?;
    tried.has(owner("odd"), "10", "0").await
}

const fn commit_usage(usage: Usage) -> Command {
    Command::Commit { actual: Actual::Usage(usage), finality: Finality::Final }
}

/// Every state, with what leads there from an open hold.
fn states() -> [(State, Vec<Command>); 7] {
    let paid = || cost(credits(3), Finality::Final);
    let fail = || Command::Fail { reason: reason(), charged: None };
    [
        (State::Held, vec![]),
        (State::Committed, vec![paid()]),
        (State::Acked, vec![paid(), Command::Ack { charged: None }]),
        (State::Failed, vec![paid(), fail()]),
        (State::Voided, vec![paid(), Command::Void { reason: reason() }]),
        (State::Released, vec![Command::Release]),
        (State::AutoReleased, vec![]),
    ]
}

/// Every command, with the states that it may be given in and where it leads.
fn commands() -> [(Command, Vec<(State, State)>); 14] {
    use State::{Acked, AutoReleased, Committed, Failed, Held, Released, Voided};
    let note = Command::Note { actual: Actual::Credits(credits(1)) };
    let part = |whole| cost(credits(whole), Finality::Partial);
    let told = |whole| Command::Ack { charged: Some(credits(whole)) };
    let voidable = vec![(Committed, Voided), (Acked, Voided), (Failed, Voided)];
    [
        (Command::Start, vec![(Held, Held)]),
        (note, vec![(Held, Held)]),
        (Command::Abandon, vec![(Held, Released)]),
        (Command::Increase { amount: credits(1) }, vec![(Held, Held)]),
        (Command::Extend { ttl: LONG }, vec![(Held, Held)]),
        (part(1), vec![(Held, Held), (AutoReleased, AutoReleased)]),
        (cost(credits(1), Finality::Final), vec![(Held, Committed), (AutoReleased, Committed)]),
        (Command::Release, vec![(Held, Released)]),
        (Command::Expire, vec![]),
        (Command::Void { reason: reason() }, voidable),
        (Command::Ack { charged: None }, vec![(Committed, Acked), (Failed, Acked)]),
        (told(3), vec![(Committed, Acked), (Failed, Acked)]),
        (told(4), vec![]),
        (Command::Fail { reason: reason(), charged: None }, vec![(Committed, Failed)]),
    ]
}

/// Brings one charge for every state and command into the state, gives it the command, and looks where it is.
pub(super) async fn transitions<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let (mut open, mut lead, mut give, mut expected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, (state, path)) in states().into_iter().enumerate() {
        for (which, (command, allowed)) in commands().into_iter().enumerate() {
            // Each has an account of its own, so that nothing else refuses it.
            let id = format!("life-{number}-{which}");
            let ttl = if state == State::AutoReleased { BRIEF } else { LONG };
            open.extend([mint(&id, 20), reserve_as(&id, Reserve { ttl, ..plan(&id, 10) })]);
            lead.extend(path.iter().map(|command| on(&id, command.clone())));
            // With a key that is new, so that it is no repetition.
            give.push(keyed(&format!("give-{id}"), on(&id, command)));
            let leads_to = allowed.iter().find(|(from, _)| *from == state).map(|(_, to)| *to);
            expected.push((id, state, leads_to));
        }
    }
    tried.all_done(open).await?;
    tried.later(BRIEF).await?;
    tried.all_done(lead).await?;
    let answers = asked(tried.ledger.submit_batch(give.clone()).await)?;
    for ((request, answer), (id, state, leads_to)) in give.iter().zip(answers).zip(expected) {
        let found = answer.as_ref().map(|outcome| outcome.receipt().state).map_err(Clone::clone);
        let right = leads_to.map_or(Err(Refusal::InvalidState(state)), |to| Ok(LifeState::Charge(to)));
        same(&format!("{:?} of a charge that is {state}", request.command), found, right)?;
        same("where it is then", tried.charge(charge(&id)).await?.state(), leads_to.unwrap_or(state))?;
    }
    Ok(())
}

pub(super) async fn overruns<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("over", 100)).await?;
    let with = |id: &str, overrun| reserve_as(id, Reserve { terms: Terms { overrun, ..TERMS }, ..plan("over", 10) });
    tried
        .all_done(vec![
            with("over-cap", Overrun::Cap),
            with("over-available", Overrun::Available),
            with("over-refuse", Overrun::Refuse),
        ])
        .await?;
    let refusal = tried.submit(commit("over-refuse", 11)).await;
    same("one that refuses", refusal, Err(Refusal::ExceedsHold { chargeable: credits(10) }))?;
    tried.all_done(vec![commit("over-refuse", 10), commit("over-cap", 15), commit("over-available", 95)]).await?;
    for (id, charged, uncollected) in [("over-refuse", 10, 0), ("over-cap", 10, 5), ("over-available", 80, 15)] {
        let Charge::Committed(closed) = tried.charge(charge(id)).await? else {
            return Err(format!("{id} was not committed"));
        };
        same(id, (closed.charged, closed.uncollected), (credits(charged), credits(uncollected)))?;
    }
    tried.has(owner("over"), "0", "0").await
}

pub(super) async fn frozen_rates<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    let price = |text: &str| text.parse::<Price>().map_err(|error| format!("{error}"));
    let rates = Rates {
        input: price("10")?,
        output: price("30")?,
        cached_input: None,
        cache_write: None,
        reasoning: None,
        per_request: None,
        credits_per_usd: CreditsPerUsd::DEFAULT,
    };
    tried.done(mint("frozen", 10)).await?;
    let reserve = Reserve { terms: Terms { rates: Some(rates), ..TERMS }, ..plan("frozen", 10) };
    tried.done(reserve_as("frozen-hold", reserve)).await?;
    // 1,000 tokens at 10 and 500 at 30 dollars a million are two and a half cents.
    tried.done(on("frozen-hold", commit_usage(Usage { input: 1_000, output: 500, ..Usage::NONE }))).await?;
    tried.has(owner("frozen"), "7.5", "0").await
}

pub(super) async fn told_in_order<L: LedgerUnderTest>(tried: &Tried<L>) -> Kept {
    tried.done(mint("teller", 10)).await?;
    let mut receipts = Vec::new();
    for request in [
        reserve("tale", "teller", 4),
        on("tale", Command::Start),
        keyed("tale-part", on("tale", cost(credits(1), Finality::Partial))),
        commit("tale", 2),
        on("tale", Command::Fail { reason: reason(), charged: None }),
        on("tale", Command::Ack { charged: None }),
        on("tale", Command::Void { reason: reason() }),
    ] {
        receipts.push(tried.done(request).await?);
    }
    same("offsets grow", receipts.is_sorted_by(|one, two| one.offset < two.offset), true)?;
    same("a life", asked(tried.ledger.life(charge("tale")).await)?, receipts)?;
    let (found, whose) = asked(tried.ledger.charge(charge("tale")).await)?.ok_or("it is there")?;
    same("its owner and state", (whose, found.state()), (owner("teller"), State::Voided))?;
    tried.has(owner("teller"), "10", "0").await
}
