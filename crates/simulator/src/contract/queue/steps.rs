//! Rules of single steps: what is put, taken up and ended, and what is refused.

use super::{GIVEN_UP, Kept, LATER, NOW, Tried, at, credits, done, escrow_of, id, intake, item, payee, refused, same};
use holdfast_domain::queue::{Cause, End, Item, Stage, State, Verdict, enqueue};
use holdfast_domain::{AMOUNT_MAX, Span, Timestamp};
use holdfast_engine::queue::{Counts, METADATA_BYTES_MAX, Put, QueueFailed, QueueStore};

pub(super) async fn put<S: QueueStore>(tried: &Tried<S>) -> Kept {
    same("nothing is there", tried.item(id("put-a")).await?, None)?;
    let mut full = intake("put-a", "put");
    full.priority = -7;
    full.metadata = Some("{\"song\": \"Ü\", \"n\": 1e2,  \"b\":\"\\u0000\"}".into());
    let a = tried.put(enqueue(full, NOW, Some(Span::from_secs(60)))).await?;
    let b = tried.put(item("put-b", "put", 1)).await?;
    tried.is(&a).await?;
    tried.is(&b).await?;
    let a = same("a start", tried.start(a.intake.id, at(2)).await?, start_of(&a)).map(|()| start_of(&a))?;
    tried.is(&a).await?;
    let ended = tried.end(a.intake.id, Verdict::Finish).await?;
    let end = End { verdict: Verdict::Finish, started_at: Some(at(2)), ended_at: LATER };
    same("an end", &ended, &Item { stage: Stage::Ended(end), ..a })?;
    tried.is(&ended).await?;
    tried.tidy([b.intake.id]).await?;
    let given_up = End { verdict: GIVEN_UP, started_at: None, ended_at: LATER };
    tried.is(&Item { stage: Stage::Ended(given_up), ..b }).await
}

fn start_of(item: &Item) -> Item {
    Item { stage: Stage::InProgress { started_at: at(2) }, ..item.clone() }
}

pub(super) async fn reused<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let first = tried.put(item("reused", "reused", 0)).await?;
    // The same intake, however much later and with whatever time to be taken up in.
    let again = enqueue(first.intake.clone(), LATER, Some(Span::from_secs(9)));
    let other_amount =
        Item { intake: holdfast_domain::queue::Intake { amount: credits(1), ..first.intake.clone() }, ..first.clone() };
    let other_words = Item {
        intake: holdfast_domain::queue::Intake { metadata: Some("{}".into()), ..first.intake.clone() },
        ..first.clone()
    };
    let name = first.intake.id;
    let started = Item { stage: Stage::InProgress { started_at: at(2) }, ..first.clone() };
    let end = End { verdict: GIVEN_UP, started_at: Some(at(2)), ended_at: LATER };
    let ended = Item { stage: Stage::Ended(end), ..first.clone() };
    for now in [first, started, ended] {
        match now.state() {
            State::Queued => {}
            State::InProgress => drop(tried.start(name, at(2)).await?),
            State::Finished | State::Abandoned | State::Partial => tried.tidy([name]).await?,
        }
        same("the same intake again", tried.store.put(again.clone()).await, Ok(Put::Known(now.clone())))?;
        same("another amount", tried.store.put(other_amount.clone()).await, Err(QueueFailed::Reused))?;
        same("other metadata", tried.store.put(other_words.clone()).await, Err(QueueFailed::Reused))?;
        tried.is(&now).await?;
    }
    Ok(())
}

pub(super) async fn linked<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let first = tried.put(item("link-a", "link", 0)).await?;
    let with_its_escrow = |name: &str| {
        let mut rival = item(name, "link", 1);
        rival.intake.escrow = first.intake.escrow;
        rival
    };
    same("its escrow while it waits", tried.store.put(with_its_escrow("link-b")).await, Err(QueueFailed::Linked))?;
    tried.start(first.intake.id, at(2)).await?;
    same("its escrow while it runs", tried.store.put(with_its_escrow("link-b")).await, Err(QueueFailed::Linked))?;
    same("the rival", tried.item(id("link-b")).await?, None)?;
    tried.put(item("link-c", "link", 1)).await?;
    let asked = vec![escrow_of("link-none"), escrow_of("link-c"), escrow_of("link-a"), escrow_of("link-b")];
    let found = |found: Vec<holdfast_domain::EscrowId>| {
        let mut names: Vec<String> = found.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    let linked = found(done("linked", tried.store.linked(asked.clone()).await)?);
    same("the linked", linked, vec!["esc-link-a".to_owned(), "esc-link-c".to_owned()])?;
    tried.tidy([first.intake.id, id("link-c")]).await?;
    let linked = found(done("linked", tried.store.linked(asked).await)?);
    same("the linked after their ends", linked, vec!["esc-link-a".to_owned(), "esc-link-c".to_owned()])?;
    same("none of none", done("linked", tried.store.linked(Vec::new()).await)?, Vec::new())?;
    tried.put(with_its_escrow("link-d")).await?;
    tried.tidy([id("link-d")]).await
}

const PARTIAL: fn() -> Verdict =
    || Verdict::Partial { settle: credits(400_000), refund: credits(600_000), cause: Cause::QualityIssue };

/// Every state, with every step on it: what it gives, or the exact refusal, and that a refusal changes nothing.
pub(super) async fn table<S: QueueStore>(tried: &Tried<S>) -> Kept {
    const OPEN: &[State] = &[State::Queued, State::InProgress];
    let unknown = id("table-none");
    same("a start of none", tried.store.start(unknown, NOW).await, Err(QueueFailed::Unknown))?;
    same("an end of none", tried.store.end(unknown, GIVEN_UP, NOW).await, Err(QueueFailed::Unknown))?;
    let other = Verdict::Abandon { cause: Cause::PerformerDeclined };
    for (index, state) in State::ALL.into_iter().enumerate() {
        for (number, verdict) in [None, Some(Verdict::Finish), Some(other), Some(PARTIAL())].into_iter().enumerate() {
            let what = format!("{state} and {verdict:?}");
            let now = in_state(tried, &format!("table-{index}-{number}"), state).await?;
            let name = now.intake.id;
            let answer = match verdict {
                None => tried.store.start(name, at(3)).await,
                Some(verdict) => tried.store.end(name, verdict, at(3)).await,
            };
            let is_same_end = matches!(now.stage, Stage::Ended(end) if Some(end.verdict) == verdict);
            match (state, verdict) {
                (State::Queued, None) => {
                    let started = Item { stage: Stage::InProgress { started_at: at(3) }, ..now.clone() };
                    same(&what, &answer, &Ok(started))?;
                }
                (_, None) => refused(&what, &answer, state, &[State::Queued])?,
                (State::Queued | State::InProgress, Some(verdict)) => {
                    let end = End { verdict, started_at: now.started_at(), ended_at: at(3) };
                    same(&what, &answer, &Ok(Item { stage: Stage::Ended(end), ..now.clone() }))?;
                }
                (_, Some(_)) if is_same_end => same(&what, &answer, &Ok(now.clone()))?,
                (_, Some(Verdict::Abandon { .. })) => refused(&what, &answer, state, OPEN)?,
                (_, Some(_)) => refused(&what, &answer, state, &[State::InProgress])?,
            }
            tried.is(&answer.unwrap_or(now)).await?;
            if let Some(left) = tried.item(name).await?.filter(|item| !item.state().is_end()) {
                tried.tidy([left.intake.id]).await?;
            }
        }
    }
    let begun = Item { stage: Stage::InProgress { started_at: NOW }, ..item("table-begun", "table", 0) };
    let answer = tried.store.put(begun).await.map(|_| item("table-begun", "table", 0));
    refused("a put of one that is begun", &answer, State::InProgress, &[State::Queued])
}

/// An item that has come to a state.
async fn in_state<S: QueueStore>(tried: &Tried<S>, name: &str, state: State) -> Result<Item, String> {
    let put = tried.put(item(name, "table", 0)).await?;
    let name = put.intake.id;
    match state {
        State::Queued => return Ok(put),
        State::Abandoned => return tried.end(name, GIVEN_UP).await,
        State::InProgress | State::Finished | State::Partial => {}
    }
    let started = tried.start(name, at(1)).await?;
    match state {
        State::Finished => tried.end(name, Verdict::Finish).await,
        State::Partial => tried.end(name, PARTIAL()).await,
        State::Queued | State::InProgress | State::Abandoned => Ok(started),
    }
}

pub(super) async fn ended_so<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let verdicts = [Verdict::Finish, GIVEN_UP, PARTIAL()];
    for (number, verdict) in verdicts.into_iter().enumerate() {
        let name = tried.put(item(&format!("ended-{number}"), "ended", 0)).await?.intake.id;
        tried.start(name, at(1)).await?;
        let first = tried.end(name, verdict).await?;
        let again = done("the same end again", tried.store.end(name, verdict, at(5_000)).await)?;
        same("the same end again", &again, &first)?;
        tried.is(&first).await?;
    }
    let other_cause = Verdict::Abandon { cause: Cause::UserDisconnected };
    let answer = tried.store.end(id("ended-1"), other_cause, LATER).await;
    refused("another cause", &answer, State::Abandoned, &[State::Queued, State::InProgress])?;
    let other_split =
        Verdict::Partial { settle: credits(600_000), refund: credits(400_000), cause: Cause::QualityIssue };
    let answer = tried.store.end(id("ended-2"), other_split, LATER).await;
    refused("another split", &answer, State::Partial, &[State::InProgress])
}

pub(super) async fn counted<S: QueueStore>(tried: &Tried<S>) -> Kept {
    for (name, seconds) in [("count-b", 20), ("count-a", 10), ("count-c", 30)] {
        tried.put(item(name, "count", seconds)).await?;
    }
    let counts = |queued, in_progress, oldest| Counts { queued, in_progress, oldest };
    let is = async |expected| same("counts", done("counts", tried.store.counts().await)?, expected);
    is(counts(3, 0, Some(at(10)))).await?;
    tried.start(id("count-a"), at(40)).await?;
    is(counts(2, 1, Some(at(10)))).await?;
    tried.end(id("count-a"), Verdict::Finish).await?;
    is(counts(2, 0, Some(at(20)))).await?;
    tried.tidy([id("count-b")]).await?;
    is(counts(1, 0, Some(at(30)))).await?;
    tried.tidy([id("count-c")]).await
}

pub(super) async fn widest<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let longest = "w".repeat(64);
    let mut widest = intake("widest", "widest");
    widest.user = longest.parse().map_err(|error| format!("{error}"))?;
    widest.payee = payee(&longest);
    widest.escrow = longest.parse().map_err(|error| format!("{error}"))?;
    widest.feature = longest.parse().map_err(|error| format!("{error}"))?;
    widest.amount = credits(AMOUNT_MAX);
    widest.metadata = Some("ü".repeat(METADATA_BYTES_MAX / 2).into());
    for (priority, when) in [(i32::MIN, Timestamp::EPOCH), (i32::MAX, Timestamp::from_millis(u64::MAX >> 1))] {
        let mut intake = widest.clone();
        intake.priority = priority;
        intake.id = id(&longest[..if priority > 0 { 64 } else { 63 }]);
        let put = tried.put(enqueue(intake, when, None)).await?;
        tried.is(&put).await?;
        tried.start(put.intake.id, when).await?;
        let all = Verdict::Partial { settle: credits(AMOUNT_MAX), refund: credits(0), cause: Cause::PartialDelivery };
        let ended = tried.end(put.intake.id, all).await?;
        tried.is(&ended).await?;
    }
    Ok(())
}
