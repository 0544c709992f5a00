//! Completing: what the peer has acknowledged, or could not be told, is first written to the journal, then taken from the
//! file. Whatever a crash leaves between the two, the follower finishes from the journal.

use super::desk::Tried;
use super::file::{self, Kept};
use super::{JournalStore, Shared, blocking, unreadable};
use holdfast_domain::delivery::{Left, Word};
use holdfast_domain::{CreditUnit, Label, Reason, Timestamp, charge};
use holdfast_engine::obligations::{Answered, Lease, LeaseLost, Outcome, StoreFailed};
use holdfast_engine::{Action, Answer, Command, Request};
use holdfast_journal::failpoint;
use rusqlite::{Connection, params};
use std::collections::HashSet;
use std::sync::Arc;

/// One that is done with.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) kept: Kept,
    pub(super) tried: Tried,
    /// Why it is given up; `None` if the peer knows it.
    pub(super) dead: Option<Reason>,
}

/// What is to be written about one.
struct Plan {
    done: Done,
    word: Word,
    /// What its charge comes to in all.
    total: CreditUnit,
}

/// What was written about one.
struct Written {
    plan: Plan,
    /// The entry; 0 if there is none.
    offset: u64,
}

impl JournalStore {
    /// Completes leased ones. What is only to be tried again stays in memory.
    pub(super) async fn complete_all(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        // One at a time: two obligations of one charge must see each other.
        let _turn = self.turn.lock().await;
        let mut done = Vec::new();
        let mut answers = Vec::with_capacity(completed.len());
        {
            let mut desk = self.shared.desk();
            for (lease, outcome) in completed {
                let Some((kept, tried)) = desk.begin_completing(*lease) else {
                    answers.push(Err(LeaseLost));
                    continue;
                };
                answers.push(Ok(()));
                let attempts = tried.attempts.saturating_add(1);
                match outcome {
                    Outcome::Delivered => done.push(Done { kept, tried, dead: None }),
                    Outcome::Dead { reason } => {
                        let tried = Tried { attempts, ..tried };
                        done.push(Done { kept, tried, dead: Some(reason.clone()) });
                    }
                    Outcome::Returned { at } => desk.put(kept.seq, lease.id, *at, tried),
                    Outcome::Retry { at, reason } => {
                        let reason = Some(desk.reason(reason));
                        desk.put(kept.seq, lease.id, *at, Tried { attempts, reason });
                    }
                }
            }
        }
        let settled = self.settle(done.clone(), self.dispatcher).await;
        if settled.is_err() {
            let mut desk = self.shared.desk();
            done.iter().for_each(|done| desk.give_back(done.kept.obligation.id));
        }
        settled.map(|()| answers)
    }

    /// Writes to the journal, then to the file. Of a charge with several obligations, one after the other.
    pub(super) async fn settle(&self, mut done: Vec<Done>, actor: Label) -> Answered<()> {
        while !done.is_empty() {
            let mut seen = HashSet::new();
            let (now, later) = done.into_iter().partition(|done| seen.insert(done.kept.obligation.charge));
            self.settle_once(now, actor).await?;
            done = later;
        }
        Ok(())
    }

    async fn settle_once(&self, done: Vec<Done>, actor: Label) -> Answered<()> {
        let shared = Arc::clone(&self.shared);
        let plans = blocking(move || plan(&shared, done)).await?;
        let requests: Vec<Request> = plans.iter().filter_map(|plan| plan.request(actor)).collect();
        let mut entries = Vec::new().into_iter();
        if !requests.is_empty() {
            failpoint::pass("delivery.before_ack");
            let answers = self.entries.submit(requests).await;
            failpoint::pass("delivery.after_ack");
            entries = answers.map_err(|refusal| StoreFailed(refusal.to_string()))?.into_iter();
        }
        let mut written = Vec::with_capacity(plans.len());
        let mut failure = None;
        for plan in plans {
            let answer = if plan.word == Word::None { None } else { entries.next() };
            match offset_of(answer) {
                Ok(offset) => written.push(Written { plan, offset }),
                Err(failed) => failure = Some(failed),
            }
        }
        let shared = Arc::clone(&self.shared);
        blocking(move || write(&shared, &written)).await?;
        failure.map_or(Ok(()), Err)
    }
}

/// The entry that an answer names. A charge that takes no such word (it was taken back, or more was charged since, or its
/// last result has not come) is left as it is: what was told was told.
fn offset_of(answer: Option<Answer>) -> Answered<u64> {
    match answer {
        None => Ok(0),
        Some(Ok(outcome)) => Ok(outcome.receipt().offset),
        Some(Err(refusal)) if refusal.action() == Action::RetryLater => Err(StoreFailed(refusal.to_string())),
        Some(Err(_)) => Ok(0),
    }
}

fn plan(shared: &Shared, done: Vec<Done>) -> Answered<Vec<Plan>> {
    let desk = shared.desk();
    let plan = |done: Done| {
        let (Left { pending, dead }, total) = file::siblings(&desk.reader, &done.kept)?;
        let word = Left { pending, dead: dead.saturating_add(u64::from(done.dead.is_some())) }.word();
        Ok(Plan { done, word, total })
    };
    done.into_iter().map(plan).collect::<rusqlite::Result<_>>().map_err(unreadable)
}

impl Plan {
    fn request(&self, actor: Label) -> Option<Request> {
        let charged = Some(self.total);
        let command = match (self.word, &self.done.dead) {
            (Word::None, _) => return None,
            (Word::Acked, _) => charge::Command::Ack { charged },
            (Word::Failed, Some(reason)) => charge::Command::Fail { reason: reason.clone(), charged },
            (Word::Failed, None) => {
                let reason = "another part of the charge could not be told".parse().expect("a short text");
                charge::Command::Fail { reason, charged }
            }
        };
        let charge = self.done.kept.obligation.charge;
        Some(Request { key: None, actor, command: Command::Charge { charge, command } })
    }
}

fn write(shared: &Shared, written: &[Written]) -> Answered<()> {
    let mut writer = shared.writer();
    let mut count = writer.count;
    let mut take = |connection: &mut Connection| {
        let transaction = connection.transaction()?;
        for Written { plan: Plan { done, total, word }, offset } in written {
            let Done { kept, tried, dead } = done;
            let seq = kept.seq.cast_signed();
            if let Some(reason) = dead {
                let copy = "INSERT OR IGNORE INTO dead SELECT seq, id, charge, owner, cost, total, created_at, \
                            max(failed_at, ?2), ?3, ?4 FROM pending WHERE seq = ?1";
                let row = params![seq, offset.cast_signed(), tried.attempts, reason.as_str()];
                count.dead += u64::from(transaction.prepare_cached(copy)?.execute(row)? > 0);
                // The follower may have been here first, and does not know how often it was tried.
                let note = "UPDATE dead SET failed_at = max(failed_at, ?2), attempts = ?3, reason = ?4 WHERE seq = ?1";
                transaction.prepare_cached(note)?.execute(row)?;
            }
            let undied = match dead {
                Some(_) => 0,
                None => transaction.prepare_cached("DELETE FROM dead WHERE seq = ?1")?.execute([seq])?,
            };
            count.dead = count.dead.saturating_sub(u64::from(undied > 0));
            let gone = transaction.prepare_cached("DELETE FROM pending WHERE seq = ?1")?.execute([seq])?;
            count.pending = count.pending.saturating_sub(u64::from(gone > 0));
            if *word != Word::Acked {
                carry(&transaction, kept, *total)?;
            }
        }
        transaction.commit()
    };
    take(&mut writer.connection).map_err(unreadable)?;
    writer.count = count;
    shared.publish(count);
    drop(writer);
    let mut desk = shared.desk();
    for Written { plan, .. } in written {
        desk.forget(plan.done.kept.seq, plan.done.kept.obligation.id);
    }
    Ok(())
}

/// The last of a charge's obligations has the word for all of them, so it must know what they came to.
fn carry(connection: &Connection, kept: &Kept, total: CreditUnit) -> rusqlite::Result<()> {
    let charge = kept.obligation.charge;
    for table in ["pending", "dead"] {
        for of_charge in ["id = ?1 AND charge IS NULL", "charge = ?1"] {
            let update = format!("UPDATE {table} SET total = max(total, ?2) WHERE {of_charge}");
            connection.prepare_cached(&update)?.execute(params![charge.as_str(), total.units().cast_signed()])?;
        }
    }
    Ok(())
}

/// Brings a dead one back, and says which it was.
pub(super) fn revive(shared: &Shared, kept: &Kept, now: Timestamp) -> Answered<()> {
    let mut writer = shared.writer();
    let seq = kept.seq.cast_signed();
    let moved = |connection: &mut Connection| {
        let transaction = connection.transaction()?;
        let copy = "INSERT OR IGNORE INTO pending SELECT seq, id, charge, owner, cost, total, created_at, failed_at \
                    FROM dead WHERE seq = ?1";
        let added = transaction.execute(copy, [seq])?;
        transaction.execute("DELETE FROM dead WHERE seq = ?1", [seq])?;
        transaction.commit()?;
        Ok(added > 0)
    };
    if moved(&mut writer.connection).map_err(unreadable)? {
        writer.count.pending += 1;
        writer.count.dead = writer.count.dead.saturating_sub(1);
    }
    shared.publish(writer.count);
    drop(writer);
    shared.desk().put(kept.seq, kept.obligation.id, now, Tried::default());
    shared.bell.ring();
    Ok(())
}

/// Takes a dead one out for good.
pub(super) fn bury(shared: &Shared, kept: &Kept, total: CreditUnit) -> Answered<()> {
    let mut writer = shared.writer();
    let gone = writer.connection.execute("DELETE FROM dead WHERE seq = ?1", [kept.seq.cast_signed()]);
    let gone = gone.and_then(|gone| carry(&writer.connection, kept, total).map(|()| gone)).map_err(unreadable)?;
    writer.count.dead = writer.count.dead.saturating_sub(u64::from(gone > 0));
    shared.publish(writer.count);
    Ok(())
}
