//! Whether an item, its escrow and the journal tell one story, and the one that callers were told: pure.
//!
//! # Invariants
//! - Every wrong story has its own fault; the tests tell each of them.

use super::story::{Fate, Story, Told};
use holdfast_domain::CreditUnit;
use holdfast_domain::queue::{Cause, Verdict};
use serde_json::Value;
use std::fmt;

/// An item as `GET /api/v1/queue/items/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ItemShown {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) is_started: bool,
    /// User, payee, escrow and amount.
    pub(super) about: [String; 4],
    /// How it ended, if it has.
    pub(super) verdict: Option<Verdict>,
}

impl ItemShown {
    /// `None` if what is shown makes no sense.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let text = |field: &str| value[field].as_str().map(str::to_owned);
        let amount = |field: &str| value[field].as_str().and_then(|text| text.parse::<CreditUnit>().ok());
        let cause = || value["statusReason"].as_str().and_then(|text| text.parse::<Cause>().ok());
        let status = text("status")?;
        let verdict = match status.as_str() {
            "queued" | "in_progress" => None,
            "finished" => Some(Verdict::Finish),
            "abandoned" => Some(Verdict::Abandon { cause: cause()? }),
            "partial" => {
                let (settle, refund) = (amount("settleAmount")?, amount("refundAmount")?);
                Some(Verdict::Partial { settle, refund, cause: cause()? })
            }
            _ => return None,
        };
        let about = [text("userId")?, text("modelId")?, text("escrowId")?, text("amount")?];
        Some(Self { id: text("queueItemId")?, is_started: value["startedAt"].is_string(), status, about, verdict })
    }
}

/// One entry of an escrow's life, as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: String,
    pub(super) key: Option<String>,
    pub(super) user: String,
    pub(super) payee: Option<String>,
    pub(super) amount: Option<CreditUnit>,
    pub(super) settled: CreditUnit,
    pub(super) returned: CreditUnit,
}

/// What is wrong with one piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The hold was answered, and the journal does not have it as it was asked for.
    HoldLost,
    /// The intake was answered, and there is no such item.
    ItemLost,
    /// The item is not what was asked for.
    ItemDiffers,
    /// The start was answered, and the item was never taken up.
    StartLost,
    /// An end was answered or is due, and the item has not ended.
    EndLost { status: String },
    /// Nobody ended it, and it is not where it was left.
    Moved { status: String },
    /// The item and the journal do not agree.
    Disagree { item: String, journal: Option<String> },
    /// What is shown of the escrow is not what the journal has.
    EscrowShown { status: Option<String>, journal: Option<String> },
    /// It ended as nobody asked for.
    Unasked,
    /// A caller was told of another end.
    ToldOtherwise { told: String, status: String },
    /// The life of the escrow has so many entries.
    Entries(usize),
    /// The end stands under another key than the item's.
    Key(Option<String>),
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HoldLost => write!(out, "the hold was answered, and is not in the journal as it was asked for"),
            Self::ItemLost => write!(out, "the intake was answered, and there is no such item"),
            Self::ItemDiffers => write!(out, "the item is not what was asked for"),
            Self::StartLost => write!(out, "the start was answered, and the item was never taken up"),
            Self::EndLost { status } => write!(out, "its end was answered or is due, and it is {status}"),
            Self::Moved { status } => write!(out, "nobody ended it, and it is {status}"),
            Self::Disagree { item, journal } => write!(out, "the item is {item}, and the journal has {journal:?}"),
            Self::EscrowShown { status, journal } => {
                write!(out, "the escrow is shown as {status:?}, and the journal has {journal:?}")
            }
            Self::Unasked => write!(out, "it ended as nobody asked for"),
            Self::ToldOtherwise { told, status } => write!(out, "a caller was told {told}, and it is {status}"),
            Self::Entries(count) => write!(out, "its escrow has {count} entries"),
            Self::Key(key) => write!(out, "its escrow was ended under the key {key:?}"),
        }
    }
}

/// Judges one piece of work. `escrow` is the status that the wallet shows.
pub(super) fn judge(story: &Story, item: Option<&ItemShown>, escrow: Option<&str>, life: &[Entry]) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let held = life.first().is_some_and(|entry| is_hold_of(entry, story));
    if !held {
        wrong.push(Wrong::HoldLost);
    }
    if life.len() > 2 {
        wrong.push(Wrong::Entries(life.len()));
    }
    let end = life.get(1);
    let kind = end.map(|entry| entry.kind.clone());
    let journal = kind.as_deref().map_or("held", status_of);
    if escrow != Some(journal) {
        wrong.push(Wrong::EscrowShown { status: escrow.map(str::to_owned), journal: kind.clone() });
    }
    let Some(item) = item else {
        wrong.push(Wrong::ItemLost);
        return wrong;
    };
    let plan = &story.plan;
    let about = [plan.user.clone(), plan.payee.clone(), story.escrow.clone(), plan.amount.to_string()];
    if item.about != about || item.id != story.item {
        wrong.push(Wrong::ItemDiffers);
    }
    if story.is_started && !item.is_started {
        wrong.push(Wrong::StartLost);
    }
    if !agree(item, end, story) {
        wrong.push(Wrong::Disagree { item: item.status.clone(), journal: kind });
    }
    wrong.extend(item.verdict.and_then(|verdict| wrong_key(story, verdict, end)));
    wrong.extend(as_left(story, item));
    wrong.extend(story.told.iter().filter_map(|(_, told)| told_otherwise(told, item)));
    wrong
}

fn is_hold_of(entry: &Entry, story: &Story) -> bool {
    let plan = &story.plan;
    let key = plan.hold_key();
    entry.kind == "escrow_hold"
        && entry.user == plan.user
        && entry.amount == Some(plan.amount)
        && entry.key.as_deref().is_none_or(|found| found == key)
}

fn status_of(kind: &str) -> &'static str {
    match kind {
        "escrow_settle" => "settled",
        "escrow_refund" => "refunded",
        "escrow_partial_settle" => "partial",
        _ => "unknown",
    }
}

/// What an end gives to the payee and to the user.
pub(super) fn parts(verdict: Verdict, amount: CreditUnit) -> (CreditUnit, CreditUnit) {
    match verdict {
        Verdict::Finish => (amount, CreditUnit::ZERO),
        Verdict::Abandon { .. } => (CreditUnit::ZERO, amount),
        Verdict::Partial { settle, refund, .. } => (settle, refund),
    }
}

fn agree(item: &ItemShown, end: Option<&Entry>, story: &Story) -> bool {
    match (item.verdict, end) {
        (None, None) => true,
        (Some(verdict), Some(entry)) => {
            let kind = match verdict {
                Verdict::Finish => "escrow_settle",
                Verdict::Abandon { .. } => "escrow_refund",
                Verdict::Partial { .. } => "escrow_partial_settle",
            };
            let payee = entry.payee.as_deref().is_none_or(|payee| payee == story.plan.payee);
            let moved = (entry.settled, entry.returned) == parts(verdict, story.plan.amount);
            entry.kind == kind && entry.user == story.plan.user && payee && moved
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn wrong_key(story: &Story, verdict: Verdict, end: Option<&Entry>) -> Option<Wrong> {
    let expected = format!("queue-{}-{}", story.item, verdict.operation());
    let key = end?.key.clone();
    (key.as_ref() != Some(&expected)).then_some(Wrong::Key(key))
}

/// Whether it is where its callers, or the rope, left it.
fn as_left(story: &Story, item: &ItemShown) -> Option<Wrong> {
    let status = item.status.clone();
    match (&story.plan.fate, item.verdict) {
        (Fate::Ended(_) | Fate::GivenUp(_) | Fate::Dropped, None) => Some(Wrong::EndLost { status }),
        (Fate::Ended(_) | Fate::GivenUp(_) | Fate::Dropped, Some(verdict)) => {
            (!story.plan.verdicts().contains(&verdict)).then_some(Wrong::Unasked)
        }
        (Fate::Waiting, _) => (status != "queued").then_some(Wrong::Moved { status }),
        (Fate::Working, _) => (status != "in_progress").then_some(Wrong::Moved { status }),
    }
}

fn told_otherwise(told: &Told, item: &ItemShown) -> Option<Wrong> {
    let status = item.status.clone();
    match told {
        Told::Not(current) => (*current != status).then(|| Wrong::ToldOtherwise { told: current.clone(), status }),
        Told::Done(shown) => {
            let read = ItemShown::read(shown);
            let differs = read.as_ref().is_none_or(|read| read.verdict != item.verdict || read.id != item.id);
            differs.then(|| Wrong::ToldOtherwise { told: shown.to_string(), status })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::Plan;
    use super::*;
    use serde_json::json;

    const CAUSE: Cause = Cause::QualityIssue;

    fn credits(text: &str) -> CreditUnit {
        text.parse().unwrap()
    }

    fn shown(status: &str) -> Value {
        let reason = if status == "finished" { "performance_completed" } else { "quality_issue" };
        json!({
            "queueItemId": "qi_1", "userId": "u", "modelId": "p", "escrowId": "e", "amount": "10", "status": status,
            "statusReason": reason, "startedAt": "2026-01-01T00:00:00Z", "settleAmount": "7", "refundAmount": "3",
        })
    }

    fn story(fate: Fate, told: Vec<(Verdict, Told)>) -> Story {
        let plan =
            Plan { name: "n".to_owned(), user: "u".to_owned(), payee: "p".to_owned(), amount: credits("10"), fate };
        Story { plan, escrow: "e".to_owned(), item: "qi_1".to_owned(), is_started: true, told }
    }

    fn hold() -> Entry {
        Entry {
            kind: "escrow_hold".to_owned(),
            key: Some("n-hold".to_owned()),
            user: "u".to_owned(),
            payee: None,
            amount: Some(credits("10")),
            settled: CreditUnit::ZERO,
            returned: CreditUnit::ZERO,
        }
    }

    fn settle() -> Entry {
        let (kind, key) = ("escrow_settle".to_owned(), Some("queue-qi_1-settle".to_owned()));
        Entry { kind, key, payee: Some("p".to_owned()), amount: None, settled: credits("10"), ..hold() }
    }

    fn divide() -> Entry {
        let (kind, key) = ("escrow_partial_settle".to_owned(), Some("queue-qi_1-partial".to_owned()));
        Entry { kind, key, settled: credits("7"), returned: credits("3"), ..settle() }
    }

    fn finished() -> Story {
        story(Fate::Ended(vec![Verdict::Finish]), vec![(Verdict::Finish, Told::Done(shown("finished")))])
    }

    /// The faults of a story, as they are told.
    fn faults(story: &Story, item: Option<Value>, escrow: &str, life: &[Entry]) -> Vec<String> {
        let item = item.map(|item| ItemShown::read(&item).unwrap());
        judge(story, item.as_ref(), Some(escrow), life).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_story_that_all_tell_alike_has_no_fault() {
        let none: [&str; 0] = [];
        assert_eq!(faults(&finished(), Some(shown("finished")), "settled", &[hold(), settle()]), none);
        let partial = Verdict::Partial { settle: credits("7"), refund: credits("3"), cause: CAUSE };
        let raced = vec![(partial, Told::Done(shown("partial"))), (Verdict::Finish, Told::Not("partial".to_owned()))];
        let divided = story(Fate::Ended(vec![partial, Verdict::Finish]), raced);
        assert_eq!(faults(&divided, Some(shown("partial")), "partial", &[hold(), divide()]), none);
        assert_eq!(faults(&story(Fate::Working, vec![]), Some(shown("in_progress")), "held", &[hold()]), none);
    }

    #[test]
    fn every_wrong_story_has_its_fault() {
        let check = |story: &Story, item: Option<Value>, escrow: &str, life: &[Entry], expected: &str| {
            let found = faults(story, item, escrow, life);
            assert!(found.iter().any(|fault| fault.contains(expected)), "{expected}: {found:?}");
        };
        let ended = [hold(), settle()];
        let good = || Some(shown("finished"));
        let with = |field: &str, value: &str| {
            let mut item = shown("finished");
            item[field] = value.into();
            Some(item)
        };
        check(&finished(), None, "settled", &ended, "no such item");
        check(&finished(), good(), "held", &[], "not in the journal");
        check(&finished(), good(), "settled", &[hold(), settle(), settle()], "3 entries");
        check(&finished(), good(), "held", &ended, "shown as");
        check(&finished(), good(), "held", &[hold()], "journal has None");
        check(&finished(), Some(shown("in_progress")), "settled", &ended, "and it is in_progress");
        check(
            &finished(),
            Some(shown("in_progress")),
            "settled",
            &ended,
            "the item is in_progress, and the journal has",
        );
        check(&finished(), with("modelId", "q"), "settled", &ended, "not what was asked for");
        check(
            &finished(),
            good(),
            "settled",
            &[hold(), Entry { payee: Some("q".to_owned()), ..settle() }],
            "journal has",
        );
        check(&finished(), good(), "settled", &[hold(), Entry { settled: credits("9"), ..settle() }], "journal has");
        check(&finished(), good(), "settled", &[hold(), Entry { key: None, ..settle() }], "under the key None");
        check(&finished(), Some(shown("abandoned")), "settled", &ended, "nobody asked for");
        let mut unstarted = shown("finished");
        unstarted["startedAt"] = Value::Null;
        check(&finished(), Some(unstarted), "settled", &ended, "never taken up");
        let waiting = story(Fate::Waiting, vec![]);
        check(&waiting, good(), "settled", &ended, "nobody ended it");
        let refused =
            story(Fate::Ended(vec![Verdict::Finish]), vec![(Verdict::Finish, Told::Not("partial".to_owned()))]);
        check(&refused, good(), "settled", &ended, "a caller was told partial");
        let other = vec![(Verdict::Finish, Told::Done(shown("partial")))];
        check(&story(Fate::Ended(vec![Verdict::Finish]), other), good(), "settled", &ended, "a caller was told {");
    }
}
