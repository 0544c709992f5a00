//! Completing: what came of attempts, in one call for each worker's, and what was not tried, in one for each claim and pause.
//!
//! Each call is a transaction of its own. If one of them fails, those before it stay done: whoever asks again is told so by the
//! database, and the others are done then.

use super::held::{Hold, Taken};
use super::rows::{Leased, column, strange, uuid_of};
use super::{Again, PostgresStore};
use crate::postgres::Parameters;
use holdfast_domain::Label;
use holdfast_engine::obligations::{Answered, Lease, LeaseLost, LeaseToken, Outcome};
use std::collections::HashMap;
use tokio_postgres::types::Type;

/// The longest pause that completion and release take: a week.
const PAUSE_MAX_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

const COMPLETE: &str = "SELECT ordinal, status FROM holdfast.complete_outbox_batch($1, $2::uuid[], $3::uuid[], $4, \
     error_texts => $5, retry_delays_ms => $6)";
const RELEASE: &str = "SELECT outbox_id::text FROM holdfast.release_outbox($1::uuid[], $2::uuid, $3)";

/// Attempts of one worker, as columns, with the place of each in what was asked.
#[derive(Default)]
struct Attempts {
    places: Vec<usize>,
    ids: Vec<String>,
    tokens: Vec<String>,
    states: Vec<&'static str>,
    reasons: Vec<Option<String>>,
    pauses_ms: Vec<i32>,
}

/// What is given back of one claim, to be due at one moment.
#[derive(Default)]
struct Returned {
    places: Vec<usize>,
    ids: Vec<String>,
}

/// What is to be said, and to whom it belongs.
#[derive(Default)]
struct Sorted {
    attempts: HashMap<Label, Attempts>,
    returned: HashMap<(LeaseToken, i32), Returned>,
    /// What waits longer than completion takes.
    far: (Vec<String>, Vec<i64>),
}

impl Sorted {
    fn add(&mut self, place: usize, (lease, hold): (&Lease, &Hold), outcome: &Outcome, pause: i64) {
        let short = i32::try_from(pause.min(PAUSE_MAX_MS)).unwrap_or(i32::MAX);
        if pause > PAUSE_MAX_MS {
            self.far.0.push(hold.outbox_id.clone());
            self.far.1.push(pause);
        }
        let (state, reason) = match outcome {
            Outcome::Returned { .. } => {
                let returned = self.returned.entry((lease.token, short)).or_default();
                returned.places.push(place);
                returned.ids.push(hold.outbox_id.clone());
                return;
            }
            Outcome::Delivered => ("DISPATCHED", None),
            Outcome::Retry { reason, .. } => ("RETRYABLE", Some(reason)),
            Outcome::Dead { reason } => ("FAILED", Some(reason)),
        };
        let attempts = self.attempts.entry(hold.worker).or_default();
        attempts.places.push(place);
        attempts.ids.push(hold.outbox_id.clone());
        attempts.tokens.push(uuid_of(lease.token));
        attempts.states.push(state);
        attempts.reasons.push(reason.map(|reason| reason.as_str().to_owned()));
        attempts.pauses_ms.push(short);
    }
}

impl PostgresStore {
    pub(super) async fn complete_all(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        let mut answers = vec![Err(LeaseLost); completed.len()];
        let mut taken = self.held.take(completed.iter().map(|(lease, _)| *lease));
        let mut sorted = Sorted::default();
        for (place, lease, hold) in taken.open() {
            let Some((_, outcome)) = completed.get(place) else { continue };
            let pause = match outcome {
                Outcome::Retry { at, .. } | Outcome::Returned { at } => self.pause(*at),
                Outcome::Delivered | Outcome::Dead { .. } => 0,
            };
            sorted.add(place, (lease, hold), outcome, pause);
        }
        for (worker, attempts) in &sorted.attempts {
            self.record(*worker, attempts, (&mut taken, &mut answers)).await?;
        }
        for ((token, pause), returned) in &sorted.returned {
            self.release(*token, *pause, returned, (&mut taken, &mut answers)).await?;
        }
        // Where that fails, they are due in a week.
        let (ids, pauses_ms) = &sorted.far;
        self.reschedule(ids, pauses_ms).await?;
        Ok(answers)
    }

    /// Records attempts. It may be asked for again: what is recorded already is answered as that.
    async fn record(
        &self,
        worker: Label,
        attempts: &Attempts,
        (taken, answers): (&mut Taken<'_>, &mut [Result<(), LeaseLost>]),
    ) -> Answered<()> {
        let Attempts { places, ids, tokens, states, reasons, pauses_ms } = attempts;
        let parameters: Parameters<'_> = &[
            (&worker.as_str(), Type::TEXT),
            (ids, Type::TEXT_ARRAY),
            (tokens, Type::TEXT_ARRAY),
            (states, Type::TEXT_ARRAY),
            (reasons, Type::TEXT_ARRAY),
            (pauses_ms, Type::INT4_ARRAY),
        ];
        for row in self.ask(COMPLETE, parameters, Again::Yes).await? {
            let ordinal = usize::try_from(column::<i32>(&row, 0)?).ok().and_then(|ordinal| ordinal.checked_sub(1));
            let place = ordinal.and_then(|ordinal| places.get(ordinal)).ok_or_else(|| strange("an answer"))?;
            let answer = answers.get_mut(*place).ok_or_else(|| strange("an answer"))?;
            *answer = match column::<&str>(&row, 1)? {
                // It can only have been us: whose answer was lost.
                "DISPATCHED" | "FAILED" | "RETRYABLE" | "ALREADY_RECORDED" => Ok(()),
                _ => Err(LeaseLost),
            };
            taken.answered(*place);
        }
        Ok(())
    }

    async fn release(
        &self,
        token: LeaseToken,
        pause_ms: i32,
        returned: &Returned,
        (taken, answers): (&mut Taken<'_>, &mut [Result<(), LeaseLost>]),
    ) -> Answered<()> {
        let (ids, token) = (&returned.ids, uuid_of(token));
        let parameters: Parameters<'_> = &[(ids, Type::TEXT_ARRAY), (&token, Type::TEXT), (&pause_ms, Type::INT4)];
        let rows = self.ask(RELEASE, parameters, Again::Yes).await?;
        let released = rows.iter().map(|row| column::<String>(row, 0)).collect::<Answered<Vec<_>>>()?;
        for (place, id) in returned.places.iter().zip(ids) {
            if let Some(answer) = answers.get_mut(*place).filter(|_| released.contains(id)) {
                *answer = Ok(());
            }
            taken.answered(*place);
        }
        if pause_ms == 0 {
            self.news.tell();
        }
        Ok(())
    }

    /// Gives up what was claimed and cannot be told.
    pub(super) async fn give_up(&self, worker: Label, leased: &[Leased], why: &str) -> Answered<()> {
        let attempts = leased.iter().fold(Attempts::default(), |mut attempts, leased| {
            attempts.ids.push(leased.outbox_id.clone());
            attempts.tokens.push(uuid_of(leased.token));
            attempts.states.push("FAILED");
            attempts.reasons.push(Some(why.to_owned()));
            attempts.pauses_ms.push(0);
            attempts
        });
        let Attempts { ids, tokens, states, reasons, pauses_ms, .. } = &attempts;
        let parameters: Parameters<'_> = &[
            (&worker.as_str(), Type::TEXT),
            (ids, Type::TEXT_ARRAY),
            (tokens, Type::TEXT_ARRAY),
            (states, Type::TEXT_ARRAY),
            (reasons, Type::TEXT_ARRAY),
            (pauses_ms, Type::INT4_ARRAY),
        ];
        self.ask(COMPLETE, parameters, Again::Yes).await.map(drop)
    }
}
