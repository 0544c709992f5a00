//! Rules that only a crowd can break: many ask for the same at the same time.

use super::{GIVEN_UP, Kept, LATER, Tried, at, credits, id, item, payee, refused, same};
use holdfast_domain::queue::{Cause, Stage, State, Verdict};
use holdfast_engine::queue::{Put, QueueFailed, QueueStore};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use tokio::task::JoinSet;

const CALLERS: u32 = 64;
const ITEMS: u32 = 200;
const ENDERS: u32 = 100;

/// Has many do something at once, and gives what came of each.
async fn crowd<T: Send + 'static, A: Future<Output = T> + Send + 'static>(
    count: u32,
    act: impl Fn(u32) -> A,
) -> Result<Vec<T>, String> {
    // All of them are waited for below.
    let mut tasks = JoinSet::new();
    for number in 0..count {
        tasks.spawn(act(number));
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.push(ended.map_err(|error| error.to_string())?);
    }
    Ok(all)
}

pub(super) async fn each_once<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let put = crowd(ITEMS, |number| {
        let store = Arc::clone(&tried.store);
        async move { store.put(item(&format!("once-{number:03}"), "once", number)).await }
    });
    for answer in put.await? {
        same("a put", answer.as_ref().map(|put| matches!(put, Put::New(_))), Ok(true))?;
    }
    let taken = crowd(CALLERS, |number| {
        let store = Arc::clone(&tried.store);
        async move {
            let mut mine = Vec::new();
            while let Some(item) = store.start_next(payee("once"), at(1_000 + number)).await? {
                mine.push((item.intake.id, item.stage));
            }
            Ok::<_, QueueFailed>(mine)
        }
    });
    let mut all = Vec::new();
    for mine in taken.await? {
        all.extend(mine.map_err(|failed| format!("a caller failed: {failed:?}"))?);
    }
    let distinct: BTreeSet<String> = all.iter().map(|(id, _)| id.to_string()).collect();
    same("how often one was taken up", (all.len(), distinct.len()), (200, 200))?;
    for (name, stage) in &all {
        same("who took it up", tried.item(*name).await?.map(|item| item.stage), Some(*stage))?;
    }
    tried.tidy(all.into_iter().map(|(id, _)| id)).await
}

pub(super) async fn one_start<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let name = tried.put(item("start", "start", 0)).await?.intake.id;
    let answers = crowd(CALLERS, |number| {
        let store = Arc::clone(&tried.store);
        async move { store.start(name, at(1 + number)).await }
    });
    let (started, others): (Vec<_>, Vec<_>) = answers.await?.into_iter().partition(Result::is_ok);
    same("how many started it", started.len(), 1)?;
    for answer in &others {
        refused("another start", answer, State::InProgress, &[State::Queued])?;
    }
    let seen = tried.item(name).await?;
    same("who started it", seen.as_ref(), started.first().and_then(|answer| answer.as_ref().ok()))?;
    tried.tidy([name]).await
}

pub(super) async fn one_verdict<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let name = tried.put(item("verdict", "verdict", 0)).await?.intake.id;
    tried.start(name, at(1)).await?;
    let verdict_of = |number: u32| match number % 4 {
        0 => Verdict::Finish,
        1 => GIVEN_UP,
        2 => Verdict::Abandon { cause: Cause::QualityIssue },
        _ => Verdict::Partial { settle: credits(1), refund: credits(999_999), cause: Cause::PartialDelivery },
    };
    let answers = crowd(ENDERS, |number| {
        let store = Arc::clone(&tried.store);
        async move { (verdict_of(number), store.end(name, verdict_of(number), at(100 + number)).await) }
    });
    let answers = answers.await?;
    let ended = tried.item(name).await?.ok_or("the item is gone")?;
    let Stage::Ended(end) = ended.stage else { return Err(format!("it has not ended: {ended:?}")) };
    for (verdict, answer) in &answers {
        if *verdict == end.verdict {
            same("the same verdict", answer, &Ok(ended.clone()))?;
        } else {
            let expected: &[State] = match verdict {
                Verdict::Abandon { .. } => &[State::Queued, State::InProgress],
                Verdict::Finish | Verdict::Partial { .. } => &[State::InProgress],
            };
            refused("another verdict", answer, end.verdict.state(), expected)?;
        }
    }
    same("how many had that verdict", answers.iter().filter(|(_, answer)| answer.is_ok()).count(), 25)
}

pub(super) async fn one_link<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let answers = crowd(CALLERS, |number| {
        let store = Arc::clone(&tried.store);
        let mut rival = item(&format!("rival-{number}"), "rival", 0);
        rival.intake.escrow = "esc-rivals".parse().expect("a plain name");
        async move { (rival.intake.id, store.put(rival).await) }
    });
    let (new, others): (Vec<_>, Vec<_>) = answers.await?.into_iter().partition(|(_, answer)| answer.is_ok());
    same("how many got the escrow", new.len(), 1)?;
    for (name, answer) in &others {
        same("another item", answer.as_ref().err(), Some(&QueueFailed::Linked))?;
        same("what is left of it", tried.item(*name).await?, None)?;
    }
    tried.tidy(new.into_iter().map(|(id, _)| id)).await
}

pub(super) async fn one_put<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let answers = crowd(CALLERS, |number| {
        let store = Arc::clone(&tried.store);
        async move { store.put(item("same", "same", number)).await }
    });
    let (mut new, mut known) = (Vec::new(), Vec::new());
    for answer in answers.await? {
        match answer.map_err(|failed| format!("a put failed: {failed:?}"))? {
            Put::New(item) => new.push(item),
            Put::Known(item) => known.push(item),
        }
    }
    same("how many were new", (new.len(), known.len()), (1, 63))?;
    same("what the others were told", known.iter().all(|item| Some(item) == new.first()), true)?;
    let end = tried.store.end(id("same"), GIVEN_UP, LATER).await;
    same("its end", end.map(|item| item.state()), Ok(State::Abandoned))
}
