//! Holds the peer's book against ours, id by id and cost by cost.

use super::plan::{Fate, Plan, Planned};
use crate::peer::{Book, Row};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// One charge, as our journal tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ours {
    pub(super) account: String,
    /// What was charged in all, in millionths.
    pub(super) charged: u64,
    pub(super) acks: u64,
    /// The state after its last entry.
    pub(super) state: String,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It was acknowledged to its caller, and our journal does not have it so.
    NotInOurJournal(String),
    /// The peer never took it.
    Lost(String),
    /// The peer took it more than once.
    AppliedTwice(String, u64),
    /// The peer took another amount, or of somebody else.
    Differs(String, String),
    /// The peer knows of something that was never charged.
    Invented(String),
    /// The peer has it, and we do not know that it has.
    NotAcknowledged(String, String),
    /// The peer was spoken to as it may not be.
    Complaint(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInOurJournal(id) => write!(f, "{id}: acknowledged, and not in our journal as it was"),
            Self::Lost(id) => write!(f, "{id}: lost, the peer never took it"),
            Self::AppliedTwice(id, times) => write!(f, "{id}: applied twice ({times} times in all)"),
            Self::Differs(id, how) => write!(f, "{id}: {how}"),
            Self::Invented(id) => write!(f, "{id}: the peer was told of what was never charged"),
            Self::NotAcknowledged(id, state) => write!(f, "{id}: delivered, and our books say {state}"),
            Self::Complaint(complaint) => write!(f, "the peer complains: {complaint}"),
        }
    }
}

/// Everything that is wrong.
pub(super) fn judge(plan: &Plan, ours: &HashMap<String, Ours>, book: &Book) -> Vec<Finding> {
    let mut findings = Vec::new();
    for planned in &plan.holds {
        findings.extend(judge_one(planned, ours.get(&planned.id), book.rows.get(&planned.id)));
    }
    let planned: HashSet<&str> = plan.holds.iter().map(|planned| planned.id.as_str()).collect();
    let unplanned = book.rows.keys().filter(|id| !planned.contains(id.as_str()));
    findings.extend(unplanned.map(|id| Finding::Invented(id.clone())));
    findings.extend(book.complaints.iter().cloned().map(Finding::Complaint));
    findings
}

fn judge_one(planned: &Planned, ours: Option<&Ours>, row: Option<&Row>) -> Vec<Finding> {
    let id = || planned.id.clone();
    let Fate::Committed(cost) = planned.fate else {
        return row.map(|_| Finding::Invented(id())).into_iter().collect();
    };
    let mut findings = Vec::new();
    match ours {
        Some(ours) if ours.charged == cost && ours.account == planned.account => {
            if ours.state != ACKED || ours.acks != 1 {
                let said = format!("{} after {} acknowledgements", ours.state, ours.acks);
                findings.push(Finding::NotAcknowledged(id(), said));
            }
        }
        Some(_) | None => findings.push(Finding::NotInOurJournal(id())),
    }
    match row {
        None | Some(Row { applied: 0, .. }) => findings.push(Finding::Lost(id())),
        Some(row) => {
            if row.applied > 1 {
                findings.push(Finding::AppliedTwice(id(), row.applied));
            }
            if row.cost != cost.to_string() || row.tenant != planned.account {
                let how = format!("{cost} of {}, and {} of {} at the peer", planned.account, row.cost, row.tenant);
                findings.push(Finding::Differs(id(), how));
            }
        }
    }
    findings
}

/// The state of a charge that the peer knows.
pub(super) const ACKED: &str = "FINALIZE_ACKED";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// A plan that went well, with its books.
    fn good() -> (Plan, HashMap<String, Ours>, Book) {
        let plan = Plan::new(200, 1, &mut Rng::new(1));
        let mut book = Book::default();
        let mut ours = HashMap::new();
        for planned in &plan.holds {
            let Fate::Committed(cost) = planned.fate else { continue };
            let account = planned.account.clone();
            let row = Row { tenant: account.clone(), cost: cost.to_string(), asked: 2, applied: 1 };
            book.rows.insert(planned.id.clone(), row);
            ours.insert(planned.id.clone(), Ours { account, charged: cost, acks: 1, state: ACKED.to_owned() });
        }
        (plan, ours, book)
    }

    fn check(spoil: impl FnOnce(&mut HashMap<String, Ours>, &mut Book, &str), expected: impl Fn(&Finding) -> bool) {
        let (plan, mut ours, mut book) = good();
        assert_eq!(judge(&plan, &ours, &book), []);
        let id = plan.holds.iter().find(|planned| planned.fate != Fate::Released).unwrap().id.clone();
        spoil(&mut ours, &mut book, &id);
        let findings = judge(&plan, &ours, &book);
        assert!(findings.len() == 1 && expected(&findings[0]), "{findings:?}");
    }

    #[test]
    fn each_difference_is_found_and_named() {
        check(|_, book, id| drop(book.rows.remove(id)), |found| matches!(found, Finding::Lost(_)));
        check(|_, book, id| book.rows.get_mut(id).unwrap().applied = 0, |found| matches!(found, Finding::Lost(_)));
        check(
            |_, book, id| book.rows.get_mut(id).unwrap().applied = 2,
            |found| matches!(found, Finding::AppliedTwice(_, 2)),
        );
        check(
            |_, book, id| book.rows.get_mut(id).unwrap().cost.push('0'),
            |found| matches!(found, Finding::Differs(..)),
        );
        check(
            |_, book, id| book.rows.get_mut(id).unwrap().tenant.push('0'),
            |found| matches!(found, Finding::Differs(..)),
        );
        check(|ours, _, id| drop(ours.remove(id)), |found| matches!(found, Finding::NotInOurJournal(_)));
        check(
            |ours, _, id| ours.get_mut(id).unwrap().state = "COMMITTED".to_owned(),
            |found| matches!(found, Finding::NotAcknowledged(..)),
        );
        check(|ours, _, id| ours.get_mut(id).unwrap().acks = 2, |found| matches!(found, Finding::NotAcknowledged(..)));
        check(
            |_, book, id| {
                let row = book.rows[id].clone();
                book.rows.insert("other".to_owned(), row);
            },
            |found| matches!(found, Finding::Invented(_)),
        );
        check(|_, book, _| book.complaints.push("x".to_owned()), |found| matches!(found, Finding::Complaint(_)));
    }

    #[test]
    fn what_was_released_must_not_reach_the_peer() {
        let (plan, ours, mut book) = good();
        let released = plan.holds.iter().find(|planned| planned.fate == Fate::Released).unwrap();
        let row = Row { tenant: released.account.clone(), cost: "0".to_owned(), asked: 1, applied: 0 };
        book.rows.insert(released.id.clone(), row);
        assert_eq!(judge(&plan, &ours, &book), [Finding::Invented(released.id.clone())]);
    }
}
