//! A model's pool of targets: which is asked, what happens when it fails, and who is left alone for a while.
//!
//! # Invariants
//! - Another target is tried only before the first token, and never for a fault of the caller's.
//! - A trial of a half-open breaker ends in an outcome, also if its call is dropped.

use super::breaker::{Admission, Breaker, Outcome, POLICY};
use super::call::Call;
use super::choice::{Rank, order};
use super::echo;
use super::error::{Health, ProviderError};
use super::gate::Gate;
use super::http::{Received, Upstream};
use super::reply::{PieceStream, Reply, Source};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// One provider with its gate.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) name: String,
    pub(crate) backend: Backend,
    pub(crate) gate: Gate,
    /// For models that are not configured one by one.
    pub(crate) breaker: SharedBreaker,
}

/// How a provider is asked.
#[derive(Debug)]
pub(crate) enum Backend {
    Http(Box<Upstream>),
    Echo,
}

/// A breaker that calls share.
#[derive(Debug, Clone)]
pub(crate) struct SharedBreaker(Arc<Mutex<Breaker>>);

impl SharedBreaker {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Breaker::new(POLICY))))
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Breaker) -> T) -> T {
        // A breaker is one plain value: it is whole even if someone panicked.
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for a call to go through.
    fn admit(&self) -> Result<Ward, ProviderError> {
        let now = Instant::now();
        let trial = match self.with(|breaker| breaker.admit(now)) {
            Admission::Admitted => false,
            Admission::Trial => true,
            Admission::Refused { until } => {
                let reason = "it failed too often and is left alone for a while".to_owned();
                let retry_after = until.map(|until| until.saturating_duration_since(now));
                return Err(ProviderError::Unavailable { reason, retry_after });
            }
        };
        Ok(Ward { breaker: self.clone(), trial })
    }
}

/// A call's tie to its target's breaker.
#[derive(Debug)]
pub(crate) struct Ward {
    breaker: SharedBreaker,
    /// It tries a half-open breaker, and nothing is known yet.
    trial: bool,
}

impl Ward {
    /// Tells the breaker what is known.
    pub(crate) fn report(&self, health: Health) {
        let outcome = match health {
            Health::Well => Outcome::Well,
            Health::Ill(retry_after) => Outcome::Ill { retry_after },
            Health::Unknown => return,
        };
        self.breaker.with(|breaker| breaker.record(outcome, Instant::now()));
    }

    fn settle(mut self, health: Health) -> Self {
        self.report(health);
        if health != Health::Unknown {
            self.trial = false;
        }
        self
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        if self.trial {
            self.breaker.with(|breaker| breaker.record(Outcome::TrialAbandoned, Instant::now()));
        }
    }
}

/// One that may answer.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) provider: Arc<Provider>,
    pub(crate) model: String,
    pub(crate) rank: Rank,
    pub(crate) breaker: SharedBreaker,
}

/// The targets of one model. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    pub(crate) targets: Arc<[Target]>,
    pub(crate) seed: RandomState,
}

/// A call that was answered, or whose answer has begun.
#[derive(Debug)]
pub struct Answered {
    /// The answer.
    pub reply: Reply,
    /// The provider that gives it.
    pub provider: String,
    /// The place of its target in the pool's configuration.
    pub target: usize,
    /// The model's name there.
    pub upstream_model: String,
    /// Those that failed before it, in order.
    pub attempts: Vec<Attempt>,
}

/// A target that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The provider.
    pub provider: String,
    /// The model's name there.
    pub upstream_model: String,
    /// Why.
    pub error: ProviderError,
}

impl Pool {
    /// All that may answer, as provider and model there: a hold must cover the dearest of them.
    pub fn targets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.targets.iter().map(|target| (target.provider.name.as_str(), target.model.as_str()))
    }

    /// Asks the targets in turn until one answers; a stream counts as an answer with its first token.
    ///
    /// # Errors
    /// The caller's own fault at once; else what the last target said. The one that says most wins over an open breaker.
    pub async fn call(&self, call: Call) -> Result<Answered, ProviderError> {
        let ranks: Vec<Rank> = self.targets.iter().map(|target| target.rank).collect();
        let mut attempts: Vec<Attempt> = Vec::new();
        for index in order(&ranks, self.seed.hash_one(&call.request_id)) {
            let Some(target) = self.targets.get(index) else { continue };
            let (provider, upstream_model) = (target.provider.name.clone(), target.model.clone());
            match target.call(&call).await {
                Ok(reply) => return Ok(Answered { reply, provider, target: index, upstream_model, attempts }),
                Err(error) if !error.another_target_may_answer() => return Err(error),
                Err(error) => attempts.push(Attempt { provider, upstream_model, error }),
            }
        }
        Err(worst(attempts))
    }
}

/// The error that a caller of a failed pool is told: the last that is about more than an open breaker or a full gate.
fn worst(attempts: Vec<Attempt>) -> ProviderError {
    let mut errors: Vec<ProviderError> = attempts.into_iter().map(|attempt| attempt.error).collect();
    let telling = errors.iter().rposition(|error| {
        !matches!(
            error,
            ProviderError::Unavailable { .. } | ProviderError::Overloaded | ProviderError::KeyMissing { .. }
        )
    });
    let none = || ProviderError::Unavailable { reason: "the model has no targets".to_owned(), retry_after: None };
    telling.map(|index| errors.swap_remove(index)).or_else(|| errors.pop()).unwrap_or_else(none)
}

impl Target {
    async fn call(&self, call: &Call) -> Result<Reply, ProviderError> {
        let ward = self.breaker.admit()?;
        let answered = self.ask(call).await;
        let health = match (&answered, &self.provider.backend) {
            (Ok(_), _) => Health::Well,
            (Err(error), Backend::Http(_)) => error.health(),
            // It fails when it is told to; one caller's wish must not turn others away.
            (Err(_), Backend::Echo) => Health::Unknown,
        };
        let ward = ward.settle(health);
        Ok(match (answered?, &self.provider.backend) {
            (Reply::Stream(stream), Backend::Http(_)) => Reply::Stream(stream.watched(ward)),
            (reply, _) => reply,
        })
    }

    async fn ask(&self, call: &Call) -> Result<Reply, ProviderError> {
        let permit = self.provider.gate.enter(call.deadline).await?;
        match &self.provider.backend {
            Backend::Http(upstream) => match upstream.call(call, &self.model).await? {
                Received::Whole(whole) => Ok(Reply::Whole(whole)),
                Received::Incoming(incoming) => {
                    let source = Source::Http(incoming);
                    Ok(Reply::Stream(PieceStream::begun(source, Some(permit)).await?))
                }
            },
            Backend::Echo => match echo::call(call, &self.model).await? {
                echo::Answer::Whole(whole) => Ok(Reply::Whole(whole)),
                echo::Answer::Speech(speech) => {
                    Ok(Reply::Stream(PieceStream::begun(Source::Echo(speech), Some(permit)).await?))
                }
            },
        }
    }
}
