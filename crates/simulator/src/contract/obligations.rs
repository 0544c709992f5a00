//! What every store of obligations must do. An adapter's test makes an empty store and passes it to [`all`].

use holdfast_domain::delivery::Obligation;
use holdfast_domain::{CreditUnit, Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::obligations::{
    Answered, Claimed, Count, LeaseLost, LeaseToken, ObligationStore, Outcome, Standing, StoreFailed,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Long enough that it does not run out while a test looks.
const LONG: Span = Span::from_secs(60);
/// Short enough to wait for.
const SHORT: Span = Span::from_millis(60);
/// How many claims are slept on until their leases have run out. A store may give up what was slept on more often: it seems to bring
/// its workers down.
const SLEPT_ON_MAX: usize = 3;
const WELL_PAST_SHORT: Duration = Duration::from_millis(200);
/// No moment that comes while a test runs.
const FAR: Timestamp = Timestamp::from_millis(4_000_000_000_000);

/// Runs the whole suite on a store that is empty, and leaves it empty.
pub async fn all(store: &Arc<impl ObligationStore>) -> Answered<()> {
    what_is_put_is_there_unchanged(&**store).await?;
    a_lease_is_exclusive_until_it_is_completed(&**store).await?;
    a_stale_lease_completes_nothing(&**store).await?;
    a_lease_that_ran_out_counts_as_an_attempt(&**store).await?;
    a_retry_waits_and_a_return_costs_nothing(&**store).await?;
    the_dead_stay_until_somebody_acts(&**store).await?;
    the_oldest_is_by_age_and_not_by_due_time(&**store).await?;
    lists_go_on_after_the_last_seen(&**store).await?;
    a_list_goes_on_after_one_that_has_moved(&**store).await?;
    the_longest_due_are_claimed_first(&**store).await?;
    a_batch_is_as_good_as_one_by_one(&**store).await?;
    an_attempt_is_counted_for_each_that_was_made(&**store).await?;
    nothing_asked_is_nothing_done(&**store).await?;
    many_workers_never_hold_the_same(store).await
}

fn id(number: u32) -> ObligationId {
    format!("req_{number}").parse().expect("a short plain id")
}

fn worker(name: &str) -> Label {
    name.parse().expect("a plain word")
}

fn reason(text: &str) -> Reason {
    text.parse().expect("a short text")
}

/// The obligation with this number. Each has another cost and another age.
fn obligation(number: u32) -> Obligation {
    let cost = CreditUnit::new(9_007_199_254_740_993 + u64::from(number)).expect("a sum in range");
    Obligation {
        id: id(number),
        charge: format!("req_{number}").parse().expect("a short plain id"),
        owner: "alice".parse().expect("a short plain id"),
        cost,
        created_at: Timestamp::from_millis(1_700_000_000_000 + u64::from(number)),
    }
}

async fn put(store: &impl ObligationStore, numbers: impl IntoIterator<Item = u32>) -> Answered<()> {
    let all: Vec<Obligation> = numbers.into_iter().map(obligation).collect();
    store.put(&all).await
}

async fn claim_one(store: &impl ObligationStore, lease: Span) -> Answered<Claimed> {
    let claimed = store.claim_ready(worker("a"), 1, lease).await?;
    claimed.into_iter().next().ok_or_else(|| StoreFailed("nothing was due, and something should be".to_owned()))
}

async fn complete(
    store: &impl ObligationStore,
    claimed: &Claimed,
    outcome: Outcome,
) -> Answered<Result<(), LeaseLost>> {
    let answers = store.complete(&[(claimed.lease, outcome)]).await?;
    assert_eq!(answers.len(), 1, "one answer for one completion");
    Ok(answers[0])
}

/// Whether a moment came back as it was given. A store with a clock of its own may be off by the time of an answer.
fn is_about(found: Option<Timestamp>, expected: Timestamp) -> bool {
    found.is_some_and(|found| found.millis().abs_diff(expected.millis()) < 30_000)
}

fn due_at(standing: &Standing) -> Option<Timestamp> {
    match standing {
        Standing::Due { at } => Some(*at),
        Standing::Leased { .. } | Standing::Dead => None,
    }
}

/// Delivers everything that is due, so that the next test begins with an empty store.
async fn drain(store: &impl ObligationStore) -> Answered<()> {
    loop {
        let claimed = store.claim_ready(worker("drain"), 500, LONG).await?;
        if claimed.is_empty() {
            break;
        }
        let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
        assert!(store.complete(&done).await?.iter().all(Result::is_ok));
    }
    assert_eq!(store.count().await?, Count::default(), "a test left something behind");
    assert_eq!(store.oldest().await?, None);
    assert_eq!(store.next_due().await?, None);
    Ok(())
}

async fn what_is_put_is_there_unchanged(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1, 2]).await?;
    let dearer = Obligation { cost: CreditUnit::new(5).expect("a sum in range"), created_at: FAR, ..obligation(1) };
    store.put(&[dearer]).await?;
    let stored = store.get(id(1)).await?.expect("it was put");
    assert_eq!(stored.obligation, obligation(1), "neither the cost nor the moment changes, to the last digit");
    assert_eq!((stored.attempts, stored.reason), (0, None));
    assert_eq!(store.count().await?, Count { pending: 2, dead: 0 });
    assert_eq!(store.get(id(3)).await?, None);
    let mut claimed = store.claim_ready(worker("a"), 10, LONG).await?;
    claimed.sort_by_key(|claimed| claimed.obligation.id);
    let told: Vec<_> = claimed.iter().map(|claimed| claimed.obligation).collect();
    assert_eq!(told, [obligation(1), obligation(2)]);
    let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
    assert_eq!(store.complete(&done).await?, [Ok(()), Ok(())]);
    assert_eq!(store.get(id(1)).await?, None, "what is delivered goes");
    drain(store).await
}

async fn a_lease_is_exclusive_until_it_is_completed(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    let first = claim_one(store, LONG).await?;
    assert_eq!(store.claim_ready(worker("b"), 10, LONG).await?, []);
    put(store, [1]).await?;
    assert_eq!(store.claim_ready(worker("b"), 10, LONG).await?, [], "putting it again frees nothing");
    let stored = store.get(id(1)).await?.expect("it is leased");
    assert!(matches!(stored.standing, Standing::Leased { worker: by, .. } if by == worker("a")));
    assert!(!store.replay(id(1)).await?, "what somebody has in hand is not replayed");
    assert_eq!(complete(store, &first, Outcome::Delivered).await?, Ok(()));
    assert_eq!(complete(store, &first, Outcome::Delivered).await?, Err(LeaseLost), "a lease completes once");
    drain(store).await
}

async fn a_stale_lease_completes_nothing(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    let stale = claim_one(store, SHORT).await?;
    tokio::time::sleep(WELL_PAST_SHORT).await;
    assert_eq!(store.repair_expired(10).await?, 1);
    let good = claim_one(store, LONG).await?;
    assert_ne!(stale.lease.token, good.lease.token, "a token is never given twice");
    let late = reason("late");
    for outcome in [
        Outcome::Delivered,
        Outcome::Retry { at: FAR, reason: late.clone() },
        Outcome::Returned { at: FAR },
        Outcome::Dead { reason: late },
    ] {
        assert_eq!(complete(store, &stale, outcome).await?, Err(LeaseLost));
    }
    let mut forged = good.clone();
    forged.lease.token = LeaseToken(good.lease.token.0 ^ 1);
    assert_eq!(complete(store, &forged, Outcome::Delivered).await?, Err(LeaseLost));
    let stored = store.get(id(1)).await?.expect("nothing was changed");
    assert!(matches!(stored.standing, Standing::Leased { .. }));
    assert_eq!(complete(store, &good, Outcome::Delivered).await?, Ok(()));
    assert_eq!(complete(store, &stale, Outcome::Retry { at: FAR, reason: reason("ghost") }).await?, Err(LeaseLost));
    assert_eq!(store.get(id(1)).await?, None, "no ghost comes of a completion after the end");
    drain(store).await
}

async fn a_lease_that_ran_out_counts_as_an_attempt(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    let first = claim_one(store, SHORT).await?;
    assert_eq!(first.attempts, 0);
    put(store, [2]).await?;
    let good = claim_one(store, LONG).await?;
    tokio::time::sleep(WELL_PAST_SHORT).await;
    assert_eq!(store.repair_expired(10).await?, 1, "a lease that is good is left alone");
    assert_eq!(complete(store, &good, Outcome::Delivered).await?, Ok(()));
    assert_eq!(store.repair_expired(10).await?, 0, "once");
    let second = claim_one(store, LONG).await?;
    assert_eq!(second.attempts, 1);
    assert_eq!(complete(store, &second, Outcome::Delivered).await?, Ok(()));
    drain(store).await
}

async fn a_retry_waits_and_a_return_costs_nothing(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    let why = reason("503 from the peer");
    let claimed = claim_one(store, LONG).await?;
    assert_eq!(complete(store, &claimed, Outcome::Retry { at: FAR, reason: why.clone() }).await?, Ok(()));
    assert_eq!(store.claim_ready(worker("a"), 10, LONG).await?, [], "it is not due");
    let stored = store.get(id(1)).await?.expect("it waits");
    assert_eq!((stored.attempts, stored.reason.as_ref()), (1, Some(&why)));
    assert!(is_about(due_at(&stored.standing), FAR), "{:?}", stored.standing);
    assert!(is_about(store.next_due().await?, FAR));
    assert_eq!(store.count().await?, Count { pending: 1, dead: 0 });

    assert!(store.replay(id(1)).await?, "what waits can be brought forward");
    let claimed = claim_one(store, LONG).await?;
    assert_eq!(claimed.attempts, 0, "a replay begins anew");
    assert_eq!(complete(store, &claimed, Outcome::Returned { at: Timestamp::EPOCH }).await?, Ok(()));
    let claimed = claim_one(store, LONG).await?;
    assert_eq!(claimed.attempts, 0, "what was not tried is no attempt");
    assert_eq!(complete(store, &claimed, Outcome::Delivered).await?, Ok(()));
    drain(store).await
}

async fn the_dead_stay_until_somebody_acts(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1, 2]).await?;
    let why = reason("422 from the peer");
    let claimed = store.claim_ready(worker("a"), 10, LONG).await?;
    let dead: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Dead { reason: why.clone() })).collect();
    assert_eq!(store.complete(&dead).await?, [Ok(()), Ok(())]);
    assert_eq!(store.count().await?, Count { pending: 0, dead: 2 });
    assert_eq!(store.claim_ready(worker("a"), 10, LONG).await?, []);
    assert_eq!((store.next_due().await?, store.oldest().await?), (None, None));
    put(store, [1]).await?;
    let stored = store.get(id(1)).await?.expect("it is dead, and there");
    assert_eq!(stored.standing, Standing::Dead, "putting it again does not wake it");
    assert_eq!((stored.obligation, stored.attempts, stored.reason), (obligation(1), 1, Some(why)));

    assert!(store.replay(id(1)).await?);
    assert!(store.resolve(id(2), &reason("paid by hand")).await?);
    assert!(!store.resolve(id(2), &reason("paid by hand")).await?, "once");
    assert!(!store.resolve(id(1), &reason("paid by hand")).await?, "what is pending is not resolved");
    assert!(!store.replay(id(3)).await?, "nothing comes of nothing");
    let claimed = claim_one(store, LONG).await?;
    assert_eq!((claimed.obligation, claimed.attempts), (obligation(1), 0));
    assert_eq!(complete(store, &claimed, Outcome::Delivered).await?, Ok(()));
    drain(store).await
}

async fn the_oldest_is_by_age_and_not_by_due_time(store: &impl ObligationStore) -> Answered<()> {
    put(store, [5, 3, 9]).await?;
    assert_eq!(store.oldest().await?, Some(obligation(3).created_at));
    let claimed = store.claim_ready(worker("a"), 10, LONG).await?;
    let later = |claimed: &Claimed| (claimed.lease, Outcome::Retry { at: FAR, reason: reason("later") });
    let (third, others): (Vec<Claimed>, Vec<Claimed>) =
        claimed.into_iter().partition(|claimed| claimed.obligation.id == id(3));
    assert!(store.complete(&third.iter().map(later).collect::<Vec<_>>()).await?.iter().all(Result::is_ok));
    assert_eq!(store.oldest().await?, Some(obligation(3).created_at), "though it is due last");
    let done: Vec<_> = others.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
    assert!(store.complete(&done).await?.iter().all(Result::is_ok));
    assert!(store.replay(id(3)).await?);
    drain(store).await
}

async fn lists_go_on_after_the_last_seen(store: &impl ObligationStore) -> Answered<()> {
    put(store, 1..=5).await?;
    let claimed = store.claim_ready(worker("a"), 2, LONG).await?;
    let dead: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Dead { reason: reason("no") })).collect();
    assert!(store.complete(&dead).await?.iter().all(Result::is_ok));
    let mut seen = Vec::new();
    while let page @ [_, ..] = store.list_pending(seen.last().copied(), 2).await?.as_slice() {
        assert!(page.len() <= 2);
        seen.extend(page.iter().map(|stored| stored.obligation.id));
    }
    let dead: Vec<_> = store.list_dead(None, 10).await?.iter().map(|stored| stored.obligation.id).collect();
    assert_eq!((seen.len(), dead.len()), (3, 2));
    let all: HashSet<_> = seen.iter().chain(&dead).collect();
    assert_eq!(all.len(), 5, "each is in one list");
    for id in dead {
        assert!(store.replay(id).await?);
    }
    drain(store).await
}

async fn a_list_goes_on_after_one_that_has_moved(store: &impl ObligationStore) -> Answered<()> {
    // All of one moment, so that only their ids order them.
    let of_one_moment = |number| Obligation { created_at: obligation(0).created_at, ..obligation(number) };
    let all: Vec<Obligation> = (11..=19).map(of_one_moment).collect();
    store.put(&all).await?;
    let claimed = store.claim_ready(worker("a"), 20, LONG).await?;
    let outcome = |claimed: &Claimed| match claimed.obligation.id {
        moved if moved == id(14) => Outcome::Dead { reason: reason("no") },
        _ => Outcome::Returned { at: Timestamp::EPOCH },
    };
    let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, outcome(claimed))).collect();
    assert!(store.complete(&done).await?.iter().all(Result::is_ok));
    let page = store.list_pending(Some(id(14)), 3).await?;
    let ids: Vec<_> = page.iter().map(|stored| stored.obligation.id).collect();
    assert_eq!(ids, [id(15), id(16), id(17)], "neither again what was seen, nor past what was not");
    assert!(store.replay(id(14)).await?);
    drain(store).await
}

async fn the_longest_due_are_claimed_first(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    put(store, [2]).await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    put(store, [3]).await?;
    for number in 1..=3 {
        let claimed = claim_one(store, LONG).await?;
        assert_eq!(claimed.obligation.id, id(number));
        assert_eq!(complete(store, &claimed, Outcome::Delivered).await?, Ok(()));
    }
    drain(store).await
}

/// Mixed outcomes in one call, one lease twice among them, and the same obligation twice in one put.
async fn a_batch_is_as_good_as_one_by_one(store: &impl ObligationStore) -> Answered<()> {
    let dearer = Obligation { cost: CreditUnit::new(5).expect("a sum in range"), ..obligation(1) };
    let mut all: Vec<Obligation> = (1..=4).map(obligation).collect();
    all.push(dearer);
    store.put(&all).await?;
    assert_eq!(store.count().await?, Count { pending: 4, dead: 0 });
    let mut claimed = store.claim_ready(worker("a"), 10, LONG).await?;
    claimed.sort_by_key(|claimed| claimed.obligation.id);
    assert_eq!(claimed[0].obligation, obligation(1), "the first of two is what counts");
    let outcomes = [
        (claimed[0].lease, Outcome::Delivered),
        (claimed[1].lease, Outcome::Retry { at: FAR, reason: reason("later") }),
        (claimed[2].lease, Outcome::Dead { reason: reason("no") }),
        (claimed[3].lease, Outcome::Returned { at: FAR }),
        (claimed[1].lease, Outcome::Delivered),
        (claimed[0].lease, Outcome::Retry { at: FAR, reason: reason("ghost") }),
    ];
    let answers = store.complete(&outcomes).await?;
    assert_eq!(answers, [Ok(()), Ok(()), Ok(()), Ok(()), Err(LeaseLost), Err(LeaseLost)], "each lease once");
    assert_eq!(store.count().await?, Count { pending: 2, dead: 1 });
    assert_eq!(store.get(id(1)).await?, None);
    for (number, attempts) in [(2, 1), (3, 1), (4, 0)] {
        let stored = store.get(id(number)).await?.expect("it was not delivered");
        assert_eq!((stored.obligation, stored.attempts), (obligation(number), attempts));
        assert!(store.replay(id(number)).await?);
    }
    drain(store).await
}

/// Every reason that a person may write comes back, and every attempt counts.
async fn an_attempt_is_counted_for_each_that_was_made(store: &impl ObligationStore) -> Answered<()> {
    put(store, [1]).await?;
    let words = ["503", "7 seven", " leading", "Überlastet: 100 %d \\ \"x\" {y} [z]", "0"];
    for (attempts, words) in (0..).zip(words) {
        let claimed = claim_one(store, LONG).await?;
        assert_eq!(claimed.attempts, attempts);
        let outcome = Outcome::Retry { at: Timestamp::EPOCH, reason: reason(words) };
        assert_eq!(complete(store, &claimed, outcome).await?, Ok(()));
        let stored = store.get(id(1)).await?.expect("it waits");
        assert_eq!((stored.attempts, stored.reason), (attempts + 1, Some(reason(words))));
    }
    drain(store).await
}

async fn nothing_asked_is_nothing_done(store: &impl ObligationStore) -> Answered<()> {
    store.put(&[]).await?;
    assert_eq!(store.complete(&[]).await?, []);
    put(store, [1]).await?;
    assert_eq!(store.claim_ready(worker("a"), 0, LONG).await?, []);
    assert_eq!(store.repair_expired(0).await?, 0);
    assert_eq!(store.list_pending(None, 0).await?, []);
    assert_eq!(store.count().await?, Count { pending: 1, dead: 0 });
    drain(store).await
}

/// Workers that race for leases, some of which run out: nobody ever holds what another holds, and each is delivered once.
async fn many_workers_never_hold_the_same(store: &Arc<impl ObligationStore>) -> Answered<()> {
    const COUNT: u32 = 400;
    put(&**store, 1..=COUNT).await?;
    let mut workers = Vec::new();
    let slept_on = Arc::new(AtomicUsize::new(0));
    for number in 0..8 {
        let (store, slept_on) = (Arc::clone(store), Arc::clone(&slept_on));
        workers.push(tokio::spawn(async move { work(&*store, &format!("worker-{number}"), COUNT, &slept_on).await }));
    }
    let mut delivered = Vec::new();
    for worker in workers {
        delivered.extend(worker.await.expect("a worker does not panic")?);
    }
    let distinct: HashSet<ObligationId> = delivered.iter().copied().collect();
    assert_eq!(distinct.len(), delivered.len(), "two completed the same");
    assert_eq!(distinct.len(), usize::try_from(COUNT).expect("a small number"), "and none was lost");
    drain(&**store).await
}

/// Claims and delivers until nothing is left. A few claims are slept on until their leases have run out.
async fn work(
    store: &impl ObligationStore,
    name: &str,
    count: u32,
    slept_on: &AtomicUsize,
) -> Answered<Vec<ObligationId>> {
    let mut delivered = Vec::new();
    for _ in 0..count {
        store.repair_expired(50).await?;
        let sleeps = slept_on.fetch_add(1, Ordering::Relaxed) < SLEPT_ON_MAX;
        let (most, lease) = if sleeps { (30, SHORT) } else { (7, LONG) };
        let claimed = store.claim_ready(worker(name), most, lease).await?;
        if claimed.is_empty() && store.count().await?.pending == 0 {
            break;
        }
        if sleeps {
            tokio::time::sleep(WELL_PAST_SHORT).await;
        }
        let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
        for ((lease, _), answer) in done.iter().zip(store.complete(&done).await?) {
            if answer.is_ok() {
                delivered.push(lease.id);
            }
        }
    }
    Ok(delivered)
}
