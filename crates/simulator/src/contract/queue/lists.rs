//! Rules of what is listed, and in which order.

use super::{Filter, GIVEN_UP, Kept, LATER, NOW, Tried, at, done, id, intake, item, payee, same};
use holdfast_domain::queue::{Cause, Item, State, Verdict, enqueue};
use holdfast_domain::{ItemId, PayeeId, Span, Timestamp};
use holdfast_engine::queue::QueueStore;

/// Those of one payee, in a state if one is said.
fn of(name: &str, state: Option<State>) -> Filter {
    Filter { payee: Some(payee(name)), state, after: None }
}

/// Lists page by page.
async fn paged<S: QueueStore>(tried: &Tried<S>, filter: Filter, size: usize) -> Result<Vec<String>, String> {
    let (mut all, mut after) = (Vec::<String>::new(), None::<ItemId>);
    loop {
        let page = tried.names(Filter { after, ..filter }, size).await?;
        if page.len() > size || all.len() > 100 {
            return Err(format!("a page of {size} after {after:?} has {page:?}"));
        }
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(id(last));
        all.extend(page);
    }
}

fn with_priority(name: &str, of: &str, priority: i32, seconds: u32) -> Item {
    let mut ranked = intake(name, of);
    ranked.priority = priority;
    enqueue(ranked, at(seconds), None)
}

/// By priority, then age, then name; and not by when they were put.
pub(super) async fn by_rank<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let all = [
        with_priority("rank-6", "rank-x", -5, 0),
        with_priority("rank-3", "rank-x", 0, 2),
        with_priority("rank-1", "rank-y", 9, 50),
        with_priority("rank-5", "rank-y", 0, 3),
        with_priority("rank-4", "rank-x", 0, 2),
        with_priority("rank-2", "rank-x", 1, 60),
        with_priority("rank-0", "rank-x", 10, 70),
    ];
    for item in &all {
        tried.put(item.clone()).await?;
    }
    tried.start(id("rank-2"), LATER).await?;
    tried.start(id("rank-5"), LATER).await?;
    let names = |numbers: &[u32]| numbers.iter().map(|number| format!("rank-{number}")).collect::<Vec<_>>();
    let everything = Filter::default();
    same("all", tried.names(everything, 100).await?, names(&[0, 1, 2, 3, 4, 5, 6]))?;
    same("of x", tried.names(of("rank-x", None), 100).await?, names(&[0, 2, 3, 4, 6]))?;
    same("none of nobody", tried.names(of("rank-z", None), 100).await?, names(&[]))?;
    let queued = Filter { state: Some(State::Queued), ..everything };
    let started = Filter { state: Some(State::InProgress), ..everything };
    same("queued", tried.names(queued, 100).await?, names(&[0, 1, 3, 4, 6]))?;
    same("in progress", tried.names(started, 100).await?, names(&[2, 5]))?;
    same("queued of y", tried.names(of("rank-y", Some(State::Queued)), 9).await?, names(&[1]))?;
    same("in progress of y", tried.names(of("rank-y", Some(State::InProgress)), 9).await?, names(&[5]))?;
    same("at most none", tried.names(everything, 0).await?, names(&[]))?;
    for size in [1, 2, 3] {
        same("pages of all", paged(tried, everything, size).await?, names(&[0, 1, 2, 3, 4, 5, 6]))?;
        same("pages of x", paged(tried, of("rank-x", None), size).await?, names(&[0, 2, 3, 4, 6]))?;
        same("pages of queued", paged(tried, queued, size).await?, names(&[0, 1, 3, 4, 6]))?;
    }
    tried.tidy(all.iter().map(|item| item.intake.id)).await
}

pub(super) async fn moved<S: QueueStore>(tried: &Tried<S>) -> Kept {
    for number in 0..6 {
        tried.put(item(&format!("moved-{number}"), "moved", number)).await?;
    }
    let names = |numbers: &[u32]| numbers.iter().map(|number| format!("moved-{number}")).collect::<Vec<_>>();
    tried.start(id("moved-1"), LATER).await?;
    tried.end(id("moved-2"), GIVEN_UP).await?;
    let after = |name, state| Filter { after: Some(id(name)), ..of("moved", state) };
    same("after a started one", tried.names(after("moved-1", Some(State::Queued)), 2).await?, names(&[3, 4]))?;
    same("after an ended one", tried.names(after("moved-2", None), 2).await?, names(&[3, 4]))?;
    same("after none that there is", tried.names(after("moved-none", None), 2).await?, names(&[0, 1]))?;
    let ended = after("moved-1", Some(State::Abandoned));
    same("ended after one that has not", tried.names(ended, 2).await?, names(&[2]))?;
    tried.tidy([0, 1, 3, 4, 5].map(|number| id(&format!("moved-{number}")))).await
}

pub(super) async fn last_first<S: QueueStore>(tried: &Tried<S>) -> Kept {
    // Put in one order, ended in another, two of them at one moment.
    let ends = [(3, 0, "x"), (0, 30, "x"), (4, 0, "x"), (1, 20, "y"), (2, 10, "x")];
    for (number, seconds, of) in ends {
        tried.put(item(&format!("last-{number}"), &format!("last-{of}"), number)).await?;
        let cause = Verdict::Abandon { cause: Cause::UserDisconnected };
        done("an end", tried.store.end(id(&format!("last-{number}")), cause, at(2_000_000 + seconds)).await)?;
    }
    tried.put(item("last-5", "last-x", 9)).await?;
    tried.start(id("last-5"), LATER).await?;
    done("a finish", tried.store.end(id("last-5"), Verdict::Finish, at(2_000_040)).await)?;
    let names = |numbers: &[u32]| numbers.iter().map(|number| format!("last-{number}")).collect::<Vec<_>>();
    let all = Filter { state: Some(State::Abandoned), ..Filter::default() };
    same("the last five", tried.names(all, 5).await?, names(&[0, 1, 2, 3, 4]))?;
    let of_x = of("last-x", Some(State::Abandoned));
    for size in [1, 2, 3, 10] {
        same("pages of x", paged(tried, of_x, size).await?, names(&[0, 2, 3, 4]))?;
    }
    let finished = of("last-x", Some(State::Finished));
    same("finished", tried.names(finished, 10).await?, names(&[5]))?;
    same("not open", tried.names(of("last-x", None), 10).await?, names(&[]))
}

pub(super) async fn next<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let next = async |payee: PayeeId, now: Timestamp| {
        let started = done("the next", tried.store.start_next(payee, now).await)?;
        Ok::<_, String>(started.map(|item| (item.intake.id.to_string(), item.stage)))
    };
    let (x, y) = (payee("next-x"), payee("next-y"));
    same("of nothing", next(x, NOW).await?, None)?;
    let mut hurried = with_priority("next-0", "next-x", 9, 0);
    hurried.stage = holdfast_domain::queue::Stage::Queued { drop_at: Some(at(100)) };
    tried.put(hurried).await?;
    for (name, priority, seconds) in [("next-3", 0, 1), ("next-2", 0, 0), ("next-1", 5, 9)] {
        tried.put(with_priority(name, "next-x", priority, seconds)).await?;
    }
    tried.put(item("next-y", "next-y", 0)).await?;
    let taken =
        |name: &str, started_at| Some((name.to_owned(), holdfast_domain::queue::Stage::InProgress { started_at }));
    same("an overdue one is passed over", next(x, at(100)).await?, taken("next-1", at(100)))?;
    same("in time", next(x, at(99)).await?, taken("next-0", at(99)))?;
    same("the older", next(x, at(101)).await?, taken("next-2", at(101)))?;
    same("the last", next(x, at(102)).await?, taken("next-3", at(102)))?;
    same("no more", next(x, at(103)).await?, None)?;
    same("another's", next(y, at(104)).await?, taken("next-y", at(104)))?;
    let started = tried.item(id("next-2")).await?.map(|item| item.stage);
    same("as it was told", started, Some(holdfast_domain::queue::Stage::InProgress { started_at: at(101) }))?;
    tried.tidy(["next-0", "next-1", "next-2", "next-3", "next-y"].map(id)).await
}

pub(super) async fn overdue<S: QueueStore>(tried: &Tried<S>) -> Kept {
    let dropped = |name: &str, span: Option<u32>| enqueue(intake(name, "overdue"), NOW, span.map(Span::from_secs));
    for (name, span) in [("over-c", Some(30)), ("over-a", Some(10)), ("over-never", None), ("over-b", Some(20))] {
        tried.put(dropped(name, span)).await?;
    }
    let names = async |now, at_most| {
        let found = done("overdue", tried.store.overdue(now, at_most).await)?;
        Ok::<_, String>(found.iter().map(|item| item.intake.id.to_string()).collect::<Vec<_>>().join(" "))
    };
    same("before the first", names(Timestamp::from_millis(at(10).millis() - 1), 9).await?, String::new())?;
    same("at its moment", names(at(10), 9).await?, "over-a".to_owned())?;
    same("all", names(at(9_999), 9).await?, "over-a over-b over-c".to_owned())?;
    same("the longest", names(at(9_999), 2).await?, "over-a over-b".to_owned())?;
    // One that was taken up though it was late is late no more, nor is one that has ended.
    tried.start(id("over-a"), at(15)).await?;
    same("without the started", names(at(9_999), 9).await?, "over-b over-c".to_owned())?;
    tried.end(id("over-b"), Verdict::Abandon { cause: Cause::RopeDropTimeout }).await?;
    same("without the ended", names(at(9_999), 9).await?, "over-c".to_owned())?;
    tried.tidy(["over-a", "over-c", "over-never"].map(id)).await
}
