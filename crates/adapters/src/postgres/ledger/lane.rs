//! The lanes: each has a connection, takes all that waits, and has it decided in one round (group commit).
//!
//! While one lane's commit is being synced, what comes meanwhile collects for the next. Requests on the same accounts in two
//! lanes, or on two nodes, wait for each other in the database.
//!
//! # Invariants
//! - Whoever is answered that it was done, it is durable.
//! - A round whose end is not known is never taken for failed: the next one looks, under the same locks, whether it was admitted.

use super::session::{Failed, Round, Session};
use super::{Shared, Trouble};
use crate::postgres::Database;
use holdfast_engine::{Answer, Refusal, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The most requests of one round. More are taken only if one caller brings them together.
const ROUND_MAX: usize = 1_000;
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
    let mut lane = Lane { shared, database, session: None };
    while let Some(jobs) = lane.shared.take(ROUND_MAX).await {
        lane.serve(jobs).await;
    }
}

struct Lane {
    shared: Arc<Shared>,
    database: Database,
    session: Option<Session>,
}

/// The answers to a round's requests, or that it was refused as a whole.
enum Served {
    Answers(Vec<Answer>),
    Refused,
}

impl Lane {
    async fn serve(&mut self, jobs: Vec<Job>) {
        let requests: Vec<&Request> = jobs.iter().flat_map(Job::requests).collect();
        match self.decide(&requests).await {
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
                Box::pin(self.serve(first)).await;
                Box::pin(self.serve(second)).await;
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
    async fn decide(&mut self, requests: &[&Request]) -> Served {
        let began = Instant::now();
        let mut doubts: Vec<(u64, Vec<Answer>)> = Vec::new();
        let mut tries = 0_u32;
        while began.elapsed() < TRY_FOR {
            match self.round(requests, &doubts).await {
                Ok(Round::Answered { answers, owes }) => {
                    if owes {
                        self.shared.owes.notify_one();
                    }
                    return Served::Answers(answers);
                }
                Ok(Round::Admitted(offset)) => {
                    let found = doubts.into_iter().find(|(doubt, _)| *doubt == offset);
                    return found.map_or(Served::Refused, |(_, answers)| Served::Answers(answers));
                }
                Err(Failed::Overtaken) => self.shared.trouble(&Trouble::Overtaken),
                Err(Failed::Refused(said)) => {
                    self.shared.trouble(&Trouble::Refused(said));
                    return Served::Refused;
                }
                Err(Failed::Lost(said)) => {
                    self.session = None;
                    self.shared.trouble(&Trouble::Lost(said));
                }
                Err(Failed::InDoubt { offset, answers }) => {
                    self.session = None;
                    doubts.push((offset, answers));
                    self.shared.trouble(&Trouble::InDoubt);
                }
            }
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
        Served::Answers(requests.iter().map(|_| Err(Refusal::DatabaseUnavailable)).collect())
    }

    async fn round(&mut self, requests: &[&Request], doubts: &[(u64, Vec<Answer>)]) -> Result<Round, Failed> {
        let session = match &mut self.session {
            Some(session) if !session.is_closed() => session,
            none => {
                let connected = Session::connect(&self.database).await;
                none.insert(connected.map_err(|error| Failed::Lost(error.to_string()))?)
            }
        };
        let in_doubt: Vec<i64> = doubts.iter().map(|(offset, _)| offset.cast_signed()).collect();
        let round = session.round(requests, &in_doubt, self.shared.rules, &self.shared.time).await?;
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
