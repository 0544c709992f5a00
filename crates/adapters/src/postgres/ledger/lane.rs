//! The lanes: each has a connection, takes all that waits, and has it decided in one round (group commit).
//!
//! While one lane's commit is being synced, what comes meanwhile collects for the next. A request on an account that another lane
//! is at waits until that has ended ([`super::busy`]); two nodes wait for each other in the database.
//!
//! # Invariants
//! - Whoever is answered that it was done, it is durable.
//! - A round whose end is not known is never taken for failed: the next one looks, under the same locks, whether it was admitted.
//! - That others were in the way is said only of requests of which it is known that they were not done.

use super::busy::{Meets, Touch};
use super::known::Plan;
use super::session::{Doubt, Failed, Round, Session};
use super::{Shared, Trouble};
use crate::postgres::Database;
use holdfast_engine::{Answer, Refusal, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long the same requests are tried before their callers are told to ask again.
const TRY_FOR: Duration = Duration::from_secs(20);
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Requests of one caller.
pub(super) enum Job {
    One(Box<Request>, oneshot::Sender<Answer>),
    Many(Vec<Request>, oneshot::Sender<Vec<Answer>>),
}

impl Job {
    pub(super) fn requests(&self) -> &[Request] {
        match self {
            Self::One(request, _) => std::slice::from_ref(request),
            Self::Many(requests, _) => requests,
        }
    }

    fn answer(self, answers: Vec<Answer>) {
        // A caller that has gone away is not told.
        match self {
            Self::One(_, reply) => {
                let answer = answers.into_iter().next().unwrap_or(Err(Refusal::DatabaseUnavailable));
                let _gone = reply.send(answer);
            }
            Self::Many(_, reply) => {
                let _gone = reply.send(answers);
            }
        }
    }
}

/// A lane, until the ledger is dropped.
pub(super) async fn run(shared: Arc<Shared>, database: Database) {
    let mut lane = Lane { shared, database, session: None, touches: Vec::new() };
    while let Some(Taken { jobs, touches, meets }) = lane.shared.take().await {
        let count = jobs.iter().map(|job| job.requests().len()).sum();
        lane.touches = touches;
        lane.serve(jobs, meets).await;
        lane.shared.deciding.fetch_sub(count, Ordering::Relaxed);
    }
}

/// What a lane takes at once.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) jobs: Vec<Job>,
    /// What they are known to move.
    pub(super) touches: Vec<Touch>,
    pub(super) meets: Meets,
}

struct Lane {
    shared: Arc<Shared>,
    database: Database,
    session: Option<Session>,
    /// What it keeps the other lanes from.
    touches: Vec<Touch>,
}

/// The answers to a round's requests, or that it was refused as a whole.
enum Served {
    Answers(Vec<Answer>),
    Refused,
}

impl Lane {
    async fn serve(&mut self, jobs: Vec<Job>, meets: Meets) {
        let requests: Vec<&Request> = jobs.iter().flat_map(Job::requests).collect();
        match self.decide(&requests, meets).await {
            Served::Answers(answers) => {
                let mut answers = answers.into_iter();
                for job in jobs {
                    let count = job.requests().len();
                    job.answer(answers.by_ref().take(count).collect());
                }
            }
            // One of them may be to blame, and is soon alone: each half is tried by itself.
            Served::Refused if jobs.len() > 1 => {
                let mut first = jobs;
                let second = first.split_off(first.len() / 2);
                Box::pin(self.serve(first, Meets::Others)).await;
                Box::pin(self.serve(second, Meets::Others)).await;
            }
            Served::Refused => {
                for job in jobs {
                    let answers = job.requests().iter().map(|_| Err(Refusal::DatabaseUnavailable)).collect();
                    job.answer(answers);
                }
            }
        }
    }

    /// Tries until there is an answer, within bounds.
    async fn decide(&mut self, requests: &[&Request], meets: Meets) -> Served {
        let began = Instant::now();
        let mut doubts: Vec<Doubt> = Vec::new();
        let mut plan = self.shared.known().plan(requests, meets);
        let (mut tries, mut last) = (0_u32, Refusal::DatabaseUnavailable);
        while began.elapsed() < TRY_FOR {
            let round = self.round(requests, &plan, &doubts).await;
            last = match &round {
                Err(Failed::Overtaken) if doubts.is_empty() => Refusal::Overtaken,
                Ok(_) | Err(_) => Refusal::DatabaseUnavailable,
            };
            let was_at_once = plan.spare.is_some();
            if round.is_err() {
                self.let_go();
            }
            match round {
                Ok(Round::Answered { answers, left, owes }) => {
                    if let Some(left) = left {
                        self.shared.known().learn(*left, &plan);
                    }
                    self.let_go();
                    if owes {
                        self.shared.owes.notify_one();
                    }
                    return Served::Answers(answers);
                }
                Ok(Round::Admitted(first)) => {
                    self.let_go();
                    let found = doubts.into_iter().find(|doubt| doubt.first == first);
                    return found.map_or(Served::Refused, |doubt| Served::Answers(doubt.answers));
                }
                Err(Failed::Short) => {
                    self.asks(requests, &mut plan);
                    continue;
                }
                Err(Failed::Overtaken) => {
                    self.shared.known().doubt(&plan);
                    self.shared.trouble(&Trouble::Overtaken);
                    if was_at_once {
                        self.asks(requests, &mut plan);
                        continue;
                    }
                }
                Err(Failed::Refused(said)) => {
                    self.shared.trouble(&Trouble::Refused(said));
                    // What may have been done is not tried apart, which would not know of it.
                    if doubts.is_empty() {
                        return Served::Refused;
                    }
                }
                Err(Failed::Lost(said)) => {
                    self.session = None;
                    self.shared.trouble(&Trouble::Lost(said));
                }
                Err(Failed::InDoubt(doubt)) => {
                    self.session = None;
                    doubts.push(doubt);
                    self.shared.trouble(&Trouble::InDoubt);
                }
            }
            self.asks(requests, &mut plan);
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
        Served::Answers(requests.iter().map(|_| Err(last.clone())).collect())
    }

    /// Others may be at it: what is not decided at the first attempt is left to the database's locks.
    fn let_go(&mut self) {
        self.shared.known().busy().end(&self.touches);
        self.touches.clear();
    }

    /// Nothing is taken for known any more.
    fn asks(&self, requests: &[&Request], plan: &mut Plan) {
        self.shared.known().forget(plan);
        *plan = Plan::ask(requests);
    }

    async fn round(&mut self, requests: &[&Request], plan: &Plan, doubts: &[Doubt]) -> Result<Round, Failed> {
        let session = match &mut self.session {
            Some(session) if !session.is_closed() => session,
            none => {
                let connected = Session::connect_to_decide(&self.database).await;
                none.insert(connected.map_err(|error| Failed::Lost(error.to_string()))?)
            }
        };
        let round = session.round(requests, plan, doubts, self.shared.rules, &self.shared.time).await?;
        self.shared.reached();
        Ok(round)
    }
}

/// Doubles from a millisecond on, somewhere between half of it and all of it, so that two who met do not meet again.
fn pause(tries: u32) -> Duration {
    let half = Duration::from_millis(1 << tries.min(9)).min(PAUSE_MAX) / 2;
    let mut chance = [0];
    // Without chance they may meet again, and then pause for longer.
    let _same_for_all = aws_lc_rs::rand::fill(&mut chance).is_err();
    half + half * u32::from(chance[0]) / u32::from(u8::MAX)
}
