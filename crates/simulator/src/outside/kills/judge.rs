//! Whether the books are right after a kill: pure.
//!
//! # Invariants
//! - What a client saw complete is charged what it used, to the last unit.
//! - What it did not see complete is charged at most what the upstream did, or given back.
//! - No request has two charges: a repeated one is answered only if it was not charged before.

use super::super::books::{self, Booked, Ending, Fault};
use super::super::tariff::Tariff;
use super::ask::{Asked, Kind, Seen};
use crate::upstream::Call;
use holdfast_domain::CreditUnit;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    Books(Fault),
    /// The client was told another usage than the upstream's, or another cost than the books'.
    ToldOtherwise,
    /// It is charged more than the upstream did.
    MoreThanDone {
        most: CreditUnit,
        charged: CreditUnit,
    },
    /// It was refused, or broke off before anything was used, and is charged.
    RefusedAndCharged(CreditUnit),
    /// The gateway noted what it had delivered, and a kill made that free.
    NotedAndFree,
    /// The repeated request was not answered as it must be.
    Repeated {
        seen: Seen,
        was: Option<Ending>,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Books(fault) => write!(out, "{fault}"),
            Self::ToldOtherwise => write!(out, "the client was told another usage or cost"),
            Self::MoreThanDone { most, charged } => write!(out, "charged {charged}, and at most {most} was done"),
            Self::RefusedAndCharged(charged) => write!(out, "refused, and charged {charged}"),
            Self::NotedAndFree => write!(out, "noted as delivered, and not charged"),
            Self::Repeated { seen, was } => write!(out, "repeated after {was:?}, and answered {seen:?}"),
        }
    }
}

/// Judges one request after the restart.
pub(super) fn judge(asked: &Asked, booked: Option<&Booked>, calls: &[&Call], tariff: &Tariff) -> Option<Wrong> {
    match &asked.seen {
        Seen::Complete { usage, cost } => {
            let Some(booked) = booked else { return Some(Wrong::Books(Fault::NotBooked)) };
            let fault = books::verdict(Some(booked), calls, tariff).map(Wrong::Books);
            let used = calls.first().and_then(|call| call.usage);
            let differs = usage.is_some_and(|told| Some(told) != used)
                || cost.is_some_and(|told| told != booked.charged)
                || booked.ending != Ending::Committed
                || used.is_none();
            fault.or(differs.then_some(Wrong::ToldOtherwise))
        }
        Seen::Refused { .. } => well_ended(booked, calls).map(Wrong::Books).or_else(|| {
            let charged = booked.map_or(CreditUnit::ZERO, |booked| booked.charged);
            (!charged.is_zero()).then_some(Wrong::RefusedAndCharged(charged))
        }),
        Seen::Partly => well_ended(booked, calls).map(Wrong::Books).or_else(|| {
            let booked = booked?;
            if asked.plan.kind == Kind::Slow && booked.charged.is_zero() {
                return Some(Wrong::NotedAndFree);
            }
            let most = most(asked.plan.kind, booked, calls, tariff);
            let more = Wrong::MoreThanDone { most, charged: booked.charged };
            (booked.charged > most).then_some(more)
        }),
    }
}

/// Whether there is at most one call, and one ending of the hold if there is a hold.
fn well_ended(booked: Option<&Booked>, calls: &[&Call]) -> Option<Fault> {
    match booked {
        _ if calls.len() > 1 => Some(Fault::CalledTimes(calls.len())),
        None => calls.first().map(|_| Fault::NotBooked),
        Some(booked) if booked.ending == Ending::Held => Some(Fault::StillHeld),
        Some(booked) if booked.endings != 1 => Some(Fault::Endings(booked.endings)),
        Some(_) => None,
    }
}

/// The most that a request without its end may cost.
fn most(kind: Kind, booked: &Booked, calls: &[&Call], tariff: &Tariff) -> CreditUnit {
    let Some(call) = calls.first() else { return CreditUnit::ZERO };
    match kind {
        // What was delivered is counted by the gateway itself, whose tokens are not the upstream's words.
        Kind::Breaking | Kind::Slow => booked.held.unwrap_or(CreditUnit::ZERO),
        Kind::Whole | Kind::Stream | Kind::StreamWithUsage | Kind::Failing => {
            call.usage.and_then(|usage| tariff.cost(usage)).unwrap_or(CreditUnit::ZERO)
        }
    }
}

/// One request asked again after the restart.
pub(super) struct Repeat<'a> {
    /// What the books said before.
    pub(super) was: Option<&'a Booked>,
    /// And say now.
    pub(super) is: Option<&'a Booked>,
    /// What its client saw now.
    pub(super) asked: &'a Asked,
    /// The upstream's calls for it since then.
    pub(super) calls: &'a [&'a Call],
}

/// Judges a repeated request.
pub(super) fn judge_repeat(repeat: &Repeat<'_>, tariff: &Tariff) -> Option<Wrong> {
    let Repeat { was, is, asked, calls } = repeat;
    let was_charged = was.is_some_and(|was| was.ending == Ending::Committed || !was.charged.is_zero());
    let repeated = || Wrong::Repeated { seen: asked.seen.clone(), was: was.map(|was| was.ending) };
    match &asked.seen {
        Seen::Refused { status: 409, code } if was_charged && code == "already_answered" => {
            let is_same = is == was && calls.is_empty();
            (!is_same).then(repeated)
        }
        Seen::Complete { .. } if !was_charged => judge(asked, *is, calls, tariff),
        Seen::Complete { .. } | Seen::Refused { .. } | Seen::Partly => Some(repeated()),
    }
}

/// The life of one charge of the gateway's, as the journal has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) reserves: u64,
    pub(super) commits: u64,
    pub(super) releases: u64,
    pub(super) charged: CreditUnit,
}

/// The lives of all charges of the gateway's, and what makes no sense in them.
pub(super) fn lives(entries: &[Value]) -> (BTreeMap<String, Life>, Vec<String>) {
    const NONE: Life = Life { reserves: 0, commits: 0, releases: 0, charged: CreditUnit::ZERO };
    let mut lives: BTreeMap<String, Life> = BTreeMap::new();
    let mut faults = Vec::new();
    for entry in entries {
        let Some(id) = entry["correlation_id"].as_str().filter(|id| id.starts_with("inf_")) else { continue };
        let life = lives.entry(id.to_owned()).or_insert(NONE);
        match entry["kind"].as_str() {
            Some("billing_reserve") => life.reserves += 1,
            Some("billing_commit") => life.commits += 1,
            Some("billing_release" | "billing_auto_release") => life.releases += 1,
            _ => {}
        }
        let Some(charged) = entry["charged_cu"].as_str() else { continue };
        match charged.parse().ok().and_then(|charged| life.charged.checked_add(charged).ok()) {
            Some(added) => life.charged = added,
            None => faults.push(format!("{id}: a charge of {charged} that cannot be added")),
        }
    }
    (lives, faults)
}

/// What is wrong with the journal: every charge of the gateway's must have one reserve and one end. The sum of what was
/// charged comes with it.
pub(super) fn audit(entries: &[Value]) -> (CreditUnit, Vec<String>) {
    let (lives, mut faults) = lives(entries);
    let mut sum = CreditUnit::ZERO;
    for (id, Life { reserves, commits, releases, charged }) in &lives {
        match sum.checked_add(*charged) {
            Ok(added) => sum = added,
            Err(_) => faults.push(format!("{id}: a charge of {charged} that cannot be added")),
        }
        if (*reserves, commits + releases) != (1, 1) {
            faults.push(format!("{id}: {reserves} reserves, {commits} commits, {releases} releases"));
        }
    }
    (sum, faults)
}

#[cfg(test)]
mod tests {
    use super::super::ask::Plan;
    use super::super::door::Door;
    use super::*;
    use crate::upstream::{Progress, Usage};
    use holdfast_domain::CreditsPerUsd;
    use serde_json::json;

    const USED: Usage = Usage { input: 10, cached: 0, output: 5, reasoning: 0 };

    fn tariff() -> Tariff {
        let [input, output] = ["1", "2"].map(|price| price.parse().unwrap());
        Tariff { input, output, credits_per_usd: CreditsPerUsd::DEFAULT }
    }

    fn call() -> Call {
        Call {
            number: 1,
            route: "/v1/chat/completions".to_owned(),
            model: "mock".to_owned(),
            tag: Some("k".to_owned()),
            request_id: None,
            max_tokens: None,
            stream: true,
            status: Some(200),
            behaviour: None,
            usage: Some(USED),
            usage_sent: true,
            chunks_sent: 5,
            progress: Progress::Finished,
        }
    }

    fn booked(ending: Ending, charged: &str) -> Booked {
        Booked { ending, held: Some("1".parse().unwrap()), charged: charged.parse().unwrap(), endings: 1 }
    }

    fn asked(kind: Kind, seen: Seen) -> Asked {
        Asked { plan: Plan { key: "k".to_owned(), door: Door::Chat, kind, words: 5 }, seen }
    }

    fn complete() -> Seen {
        Seen::Complete { usage: Some(USED), cost: Some("0.002".parse().unwrap()) }
    }

    #[test]
    fn what_was_seen_complete_is_charged_to_the_last_unit() {
        let call = call();
        let check = |seen: Seen, booked: Option<Booked>, expected: Option<Wrong>| {
            assert_eq!(judge(&asked(Kind::Stream, seen), booked.as_ref(), &[&call], &tariff()), expected);
        };
        check(complete(), Some(booked(Ending::Committed, "0.002")), None);
        check(complete(), None, Some(Wrong::Books(Fault::NotBooked)));
        let released = Some(Wrong::Books(Fault::ReleasedThoughUsed));
        check(complete(), Some(booked(Ending::Released, "0")), released);
        let (expected, charged) = ("0.002".parse().unwrap(), "0.001".parse().unwrap());
        let wrong = Some(Wrong::Books(Fault::WrongCharge { expected, charged }));
        check(complete(), Some(booked(Ending::Committed, "0.001")), wrong);
        let told = Seen::Complete { usage: None, cost: Some("0.003".parse().unwrap()) };
        check(told, Some(booked(Ending::Committed, "0.002")), Some(Wrong::ToldOtherwise));
    }

    #[test]
    fn what_was_not_is_charged_at_most_what_was_done() {
        let call = call();
        let check = |kind: Kind, booked: Option<Booked>, calls: &[&Call], expected: Option<Wrong>| {
            assert_eq!(judge(&asked(kind, Seen::Partly), booked.as_ref(), calls, &tariff()), expected);
        };
        check(Kind::Whole, None, &[], None);
        check(Kind::Whole, None, &[&call], Some(Wrong::Books(Fault::NotBooked)));
        check(Kind::Whole, Some(booked(Ending::Released, "0")), &[&call], None);
        check(Kind::Whole, Some(booked(Ending::Committed, "0.002")), &[&call], None);
        check(Kind::Whole, Some(booked(Ending::Held, "0")), &[&call], Some(Wrong::Books(Fault::StillHeld)));
        let (most, charged) = ("0.002".parse().unwrap(), "0.003".parse().unwrap());
        let more = Some(Wrong::MoreThanDone { most, charged });
        check(Kind::Whole, Some(booked(Ending::Committed, "0.003")), &[&call], more);
        check(Kind::Breaking, Some(booked(Ending::Committed, "0.003")), &[&call], None);
        let twice = Some(Wrong::Books(Fault::CalledTimes(2)));
        check(Kind::Whole, Some(booked(Ending::Released, "0")), &[&call, &call], twice);
        let refused = asked(Kind::Failing, Seen::Refused { status: 400, code: String::new() });
        let charged = judge(&refused, Some(&booked(Ending::Committed, "0.002")), &[&call], &tariff());
        assert_eq!(charged, Some(Wrong::RefusedAndCharged("0.002".parse().unwrap())));
    }

    #[test]
    fn a_repeated_request_is_answered_only_if_it_was_not_charged() {
        let call = call();
        let (charged, released) = (booked(Ending::Committed, "0.002"), booked(Ending::Released, "0"));
        let refused = asked(Kind::Whole, Seen::Refused { status: 409, code: "already_answered".to_owned() });
        let answered = asked(Kind::Whole, complete());
        let check = |was: &Booked, is: &Booked, asked: &Asked, calls: &[&Call], is_right: bool| {
            let repeat = Repeat { was: Some(was), is: Some(is), asked, calls };
            assert_eq!(judge_repeat(&repeat, &tariff()).is_none(), is_right, "{was:?} {asked:?}");
        };
        check(&charged, &charged, &refused, &[], true);
        check(&charged, &charged, &refused, &[&call], false);
        check(&charged, &charged, &answered, &[&call], false);
        check(&released, &charged, &answered, &[&call], true);
        check(&released, &released, &refused, &[], false);
        check(&released, &released, &answered, &[&call], false);
    }

    #[test]
    fn a_second_commit_and_a_hold_without_an_end_are_found_in_the_journal() {
        let entry = |kind: &str, id: &str| json!({"kind": kind, "correlation_id": id});
        let commit = |id: &str| json!({"kind": "billing_commit", "correlation_id": id, "charged_cu": "1.5"});
        let good = [entry("billing_reserve", "inf_a"), commit("inf_a"), entry("credit_mint", "key_1")];
        assert_eq!(audit(&good), ("1.5".parse().unwrap(), Vec::new()));
        let twice = [entry("billing_reserve", "inf_a"), commit("inf_a"), commit("inf_a")];
        assert_eq!(audit(&twice).1, ["inf_a: 1 reserves, 2 commits, 0 releases"]);
        assert_eq!(audit(&[entry("billing_reserve", "inf_b")]).1, ["inf_b: 1 reserves, 0 commits, 0 releases"]);
    }
}
