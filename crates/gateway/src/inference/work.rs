//! The life of one request, in a task of its own: reserve, call, stream, commit.
//!
//! What a `kill -9` leaves behind, point by point:
//!
//! | at | left | settled by |
//! | --- | --- | --- |
//! | `inference.before_reserve` | nothing | |
//! | `inference.after_reserve`, `inference.before_call` | a hold | the next start gives it back |
//! | `inference.mid_stream` | a hold, with what was last noted | the next start charges that |
//! | `inference.before_commit` | the same, after the whole answer but its end | the next start |
//! | `inference.after_commit`, `inference.before_end` | a charge | nothing is left to do |
//! | `inference.before_release` | a hold whose request failed | the next start gives it back |

use super::ask::{Ask, IfGone};
use super::live::{Live, Money, Part};
use super::quote::Quote;
use super::running::Found;
use super::settle::{self, Delivered, Source};
use super::told::{Told, cost_comment, with_cost};
use super::{BYOK_PER_DAY, CHARGE_PREFIX, Inference, Reader};
use crate::http::{ApiError, mailed};
use crate::tokens::{self, Family, Shape};
use crate::wire::error::{Problem, WireError};
use crate::wire::ids;
use bytes::Bytes;
use holdfast_adapters::providers::{
    Call, Delivery, Dialect, PieceStream, Pieces, Pool, ProviderError, Reply, Reported, Tokens,
};
use holdfast_domain::charge::{self, Actual, Charge, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{ChargeId, CreditUnit, Event, Rates, Rounding, Usage};
use holdfast_engine::{Clock, Command, Outcome, Receipt, Refusal, Request, TTL_DEFAULT};
use holdfast_journal::failpoint;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a long stream notes what it has delivered.
const NOTE_EVERY: Duration = Duration::from_secs(3);
/// How long a charge waits at first, and at the longest, before it is tried again on a busy engine.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// A body from this size is counted where it does not hold up other requests.
const LARGE_BODY: usize = 64 << 10;
/// How often one idempotency key may be tried again after a failure that charged nothing.
const ATTEMPTS_MAX: u32 = 32;

/// A request on its way, with the money set aside for it.
struct Job {
    ask: Ask,
    quote: Quote,
    family: Family,
    /// The name that the model is counted under.
    model: String,
    pool: Pool,
    live: Arc<Live>,
    /// What is held; none where the caller brings the provider's key.
    held: Option<Held>,
}

impl Job {
    /// What it is charged as, or would be.
    fn charge(&self) -> ChargeId {
        self.held.map_or(self.ask.charge, |held| held.charge)
    }

    /// What was used, as it is charged: by the frozen rates, or as what it costs by those of the prompt's real length.
    fn actual(&self, held: &Held, usage: Usage) -> Actual {
        let rates = self.quote.rates_of(&usage);
        if rates == held.rates {
            return Actual::Usage(usage);
        }
        // A cost that is out of range is so by the frozen rates too, and refused there.
        rates.cost(usage, Rounding::Down).map_or(Actual::Usage(usage), Actual::Credits)
    }
}

#[derive(Clone, Copy)]
struct Held {
    charge: ChargeId,
    amount: CreditUnit,
    /// The rates that were frozen for it.
    rates: Rates,
    /// What the account could spend before.
    before: CreditUnit,
}

impl Inference {
    /// Has a request answered, or joins it if it is known. The answer is worked on whether it is read or not.
    pub(crate) fn answer(self: &Arc<Self>, ask: Ask, bytes: &Bytes) -> Result<Reader, ApiError> {
        let live = match self.running.find(&ask, Instant::now())? {
            Found::Known(live) => return Ok(live.read()),
            Found::New(live) => live,
        };
        let reader = live.read();
        let (inference, bytes) = (Arc::clone(self), bytes.clone());
        // On the heap from the first: it is large, and each hand-over on the way to its task would copy all of it.
        self.tasks.spawn(mailed(async move {
            if let Err(error) = inference.work(ask, bytes, &live).await {
                live.refuse(error);
            }
        }));
        Ok(reader)
    }

    async fn work(self: &Arc<Self>, ask: Ask, bytes: Bytes, live: &Arc<Live>) -> Result<(), ApiError> {
        let unknown = || WireError::Model(ask.model.chars().take(100).collect());
        let pool = self.providers.resolve(&ask.model).ok_or_else(unknown)?;
        let (ask, pool, quoted) = if bytes.len() < LARGE_BODY {
            let quoted = self.quote(&ask, &pool, &bytes);
            (ask, pool, quoted)
        } else {
            let inference = Arc::clone(self);
            let counting = tokio::task::spawn_blocking(move || {
                let quoted = inference.quote(&ask, &pool, &bytes);
                (ask, pool, quoted)
            });
            counting.await.map_err(|_| Refusal::Stopping)?
        };
        let (quote, family, model) = quoted?;
        let (quote, held) = if ask.wish.provider_key.is_some() {
            self.count_own_key(&ask)?;
            (quote, None)
        } else {
            failpoint::pass("inference.before_reserve");
            let (quote, held) = self.reserve(&ask, quote).await?;
            failpoint::pass("inference.after_reserve");
            live.held_as(held.charge);
            (quote, Some(held))
        };
        let job = Job { ask, quote, family, model, pool, live: Arc::clone(live), held };
        self.call(job).await
    }

    /// The price of the model that is asked for: its own, or the dearest of those that may answer for it; with the name that
    /// it is counted under.
    fn quote(&self, ask: &Ask, pool: &Pool, bytes: &Bytes) -> Result<(Quote, Family, String), ApiError> {
        let own = self.prices.find(&ask.model).ok();
        let name = own.as_ref().map_or(&ask.model, |price| &price.name).clone();
        let mut prices = match own {
            Some(price) => vec![price],
            None => {
                let priced = |(provider, model): (&str, &str)| {
                    self.prices.find(&format!("{provider}/{model}")).or_else(|_| self.prices.find(model))
                };
                let all: Result<Vec<_>, _> = pool.targets().map(priced).collect();
                all.map_err(|_| WireError::Model(ask.model.chars().take(100).collect()))?
            }
        };
        let family = Family::of_model(prices.first().map_or(&ask.model, |price| &price.name));
        let body: Value = serde_json::from_slice(bytes).map_err(|error| WireError::Malformed(error.to_string()))?;
        let (shape, asked) = match ask.dialect {
            Dialect::ChatCompletions => (Shape::Chat, ask.asked_output()?),
            Dialect::Responses => (Shape::Responses, ask.asked_output()?),
            Dialect::Messages => (Shape::Messages, ask.asked_output()?),
            Dialect::Embeddings => (Shape::Embeddings, Some(0)),
        };
        let tokens = tokens::count(shape, family, &body);
        let choices = ask.choices()?;
        let quotes = prices.drain(..).map(|price| Quote::new(price, tokens, asked, choices));
        let mut dearest: Option<(CreditUnit, Quote)> = None;
        for quote in quotes {
            let quote = quote?;
            let (hold, _) = quote.hold()?;
            if dearest.as_ref().is_none_or(|(most, _)| hold > *most) {
                dearest = Some((hold, quote));
            }
        }
        let (_, quote) = dearest.ok_or_else(|| WireError::Model(ask.model.chars().take(100).collect()))?;
        Ok((quote, family, name))
    }

    /// Counts a request with the caller's own provider key: those are not charged, but bounded.
    fn count_own_key(&self, ask: &Ask) -> Result<(), ApiError> {
        if self.tally.count_own_key(ask.caller.account, ask.at.day(), BYOK_PER_DAY) {
            return Ok(());
        }
        Err(ApiError::OwnKeyLimit { per_day: BYOK_PER_DAY })
    }

    /// Sets the money aside. A key whose earlier attempts failed without a charge gets another charge's id.
    async fn reserve(&self, ask: &Ask, mut quote: Quote) -> Result<(Quote, Held), ApiError> {
        if self.settlement.as_ref().is_some_and(|settlement| settlement.must_wait()) {
            return Err(Problem::PeerAway.into());
        }
        let mut charge = ask.charge;
        for attempt in 1..=ATTEMPTS_MAX {
            let (amount, rates) = quote.hold()?;
            let answer = self.submit(ask, Command::Reserve { charge, reserve: terms(ask, rates, amount) }).await;
            match answer {
                Ok(Outcome::Applied(receipt)) => {
                    let before = receipt.available.checked_add(amount).map_err(Refusal::from)?;
                    return Ok((quote, Held { charge, amount, rates, before }));
                }
                Ok(Outcome::Replayed(_)) | Err(Refusal::KeyReused) => {
                    if !self.came_to_nothing(charge).await? {
                        return Err(ApiError::AlreadyAnswered { charge });
                    }
                    charge = charge_again(ask.charge, attempt);
                }
                Err(Refusal::InsufficientBalance { available, required }) => {
                    let affordable = quote.affordable(available);
                    match affordable.filter(|output| ask.wish.fit && *output > 0) {
                        Some(output) => quote = quote.with_output(output),
                        None => return Err(ApiError::TooDear { available, required, affordable }),
                    }
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Refusal::KeyReused.into())
    }

    /// Whether an earlier attempt ended without a charge.
    async fn came_to_nothing(&self, charge: ChargeId) -> Result<bool, ApiError> {
        let found = self.books.charge(charge).await?;
        Ok(found.is_some_and(|(charge, _)| is_nothing(&charge)))
    }

    /// The charge of a request's last attempt, by that of its first.
    pub(crate) async fn last_attempt(&self, first: ChargeId) -> Result<ChargeId, ApiError> {
        // Attempts are only ever added, and only after one that came to nothing, so this need not be one look.
        let mut last = first;
        for attempt in 1..=ATTEMPTS_MAX {
            let next = charge_again(first, attempt);
            if !self.came_to_nothing(last).await? || self.books.charge(next).await?.is_none() {
                break;
            }
            last = next;
        }
        Ok(last)
    }

    async fn submit(&self, ask: &Ask, command: Command) -> Result<Outcome, Refusal> {
        self.books.submit(Request { key: None, actor: ask.caller.credential, command }).await
    }

    async fn call(&self, job: Job) -> Result<(), ApiError> {
        let call = Call {
            dialect: job.ask.dialect,
            body: job.ask.body.clone(),
            delivery: job.ask.delivery,
            // Who pays up to a limit is charged for no event beyond the one that reaches it.
            pieces: match job.ask.wish.if_gone {
                IfGone::DrainUpTo(_) => Pieces::Single,
                IfGone::Drain | IfGone::Cancel => Pieces::Together,
            },
            max_output_tokens: Some(job.quote.output),
            key: job.ask.wish.provider_key.clone(),
            headers: job.ask.wish.headers.clone(),
            request_id: job.charge().to_string(),
            at: job.ask.at,
            deadline: None,
        };
        let shows_usage = call.asks_for_usage() || job.ask.dialect != Dialect::ChatCompletions;
        failpoint::pass("inference.before_call");
        let if_gone = job.ask.wish.if_gone;
        let called = tokio::select! {
            called = job.pool.call(call) => called,
            // Nothing has come yet, so nothing is charged. An answer that is no stream is always waited for.
            () = job.live.deserted(), if if_gone == IfGone::Cancel && job.ask.delivery == Delivery::Stream => {
                Err(left())
            }
        };
        match called {
            Ok(answered) => match answered.reply {
                Reply::Whole(whole) => {
                    let text = || whole.text();
                    let money = self.commit(&job, &whole.usage, text, true).await?;
                    failpoint::pass("inference.before_end");
                    job.live.whole(whole.status, whole.body, money);
                    Ok(())
                }
                Reply::Stream(stream) => self.stream(job, stream, shows_usage).await,
            },
            Err(error) => {
                self.release(&job).await?;
                Err(ApiError::Provider(error, job.ask.dialect))
            }
        }
    }

    async fn stream(&self, job: Job, mut stream: PieceStream, shows_usage: bool) -> Result<(), ApiError> {
        let mut told = Told::new();
        let cancels = job.ask.wish.if_gone == IfGone::Cancel;
        let broke = loop {
            let next = tokio::select! {
                next = stream.next() => next,
                // What has come to its end is not cut off.
                () = job.live.deserted(), if cancels && told.withheld.is_empty() => break Some(left()),
            };
            match next {
                None => break None,
                Some(Err(error)) => break Some(error),
                Some(Ok(piece)) => told.take(piece, &job.live, shows_usage),
            }
            failpoint::pass("inference.mid_stream");
            if told.noted.elapsed() >= NOTE_EVERY {
                self.note(&job, &mut told).await;
            }
            if told.is_drained_enough(job.ask.wish.if_gone, &job.live, (&job.quote, job.family)) {
                break Some(left());
            }
        };
        drop(stream);
        let Told { text, usage, withheld, .. } = told;
        let money = self.commit(&job, &usage, || text, broke.is_none()).await?;
        failpoint::pass("inference.before_end");
        let cost = money.map(|money| Part::event(cost_comment(money)));
        let withheld = withheld.into_iter().map(|part| with_cost(part, money));
        let failed = broke.as_ref().map(|error| Part::event(error.event(job.ask.dialect)));
        job.live.end(cost.into_iter().chain(withheld).chain(failed), money, broke);
        Ok(())
    }

    /// Charges what was used. Whoever is told of the end has been charged.
    async fn commit(
        &self,
        job: &Job,
        reported: &Reported,
        text: impl FnOnce() -> String,
        whole: bool,
    ) -> Result<Option<Money>, ApiError> {
        let Some(held) = job.held else { return Ok(None) };
        // Counting costs more than all the rest, so it is done only where the provider's word does not settle it. One who
        // says that words came of nothing is not believed.
        let told = |tokens: &Tokens| tokens.all_output() > 0 || job.ask.dialect == Dialect::Embeddings;
        let settled = whole && matches!(reported, Reported::Tokens(tokens) if told(tokens));
        let output = if settled { 0 } else { tokens::count_text(job.family, &text()) };
        let whole = settled || (whole && output == 0);
        let delivered = Delivered { input: job.quote.counted, output, whole };
        let (usage, source) = settle::usage(reported, delivered);
        failpoint::pass("inference.before_commit");
        let commit = |actual| Command::Charge {
            charge: held.charge,
            command: charge::Command::Commit { actual, finality: Finality::Final },
        };
        let outcome = match self.see_through(&job.ask, commit(job.actual(&held, usage))).await {
            // Numbers that lead out of range are more than the hold in any case.
            Err(Refusal::InvalidAmount(_)) => self.see_through(&job.ask, commit(Actual::Credits(held.amount))).await,
            answer => answer,
        }?;
        failpoint::pass("inference.after_commit");
        let receipt = outcome.receipt();
        let cost = charged(receipt);
        self.tally.charged(receipt.at.day(), &job.model, cost);
        let clamped = receipt_clamped(receipt);
        if source == Source::Counted || clamped {
            flag(job, reported, clamped);
        }
        let (balance, low) = (receipt.available, self.credits_low);
        let credits_low = held.before >= low && balance < low;
        if credits_low {
            let account = job.ask.caller.account;
            crate::terminal::note(&format!("credits_low: account {account} has {balance} credits, below {low}"));
        }
        Ok(Some(Money { cost, balance, credits_low, usage }))
    }

    async fn release(&self, job: &Job) -> Result<(), ApiError> {
        let Some(held) = job.held else { return Ok(()) };
        failpoint::pass("inference.before_release");
        let command = Command::Charge { charge: held.charge, command: charge::Command::Release };
        self.see_through(&job.ask, command).await.map(drop)?;
        Ok(())
    }

    /// Submits what settles a hold, and again while the engine is too busy: nobody else would settle it before the next
    /// start.
    async fn see_through(&self, ask: &Ask, command: Command) -> Result<Outcome, Refusal> {
        let (mut pause, longest) = BUSY_PAUSE;
        loop {
            match self.submit(ask, command.clone()).await {
                Err(Refusal::Overloaded) => tokio::time::sleep(pause).await,
                answer => return answer,
            }
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    /// Notes what has been delivered so far, so that a crash settles by it.
    async fn note(&self, job: &Job, told: &mut Told) {
        told.noted = Instant::now();
        let Some(held) = job.held else { return };
        let output = tokens::count_text(job.family, &told.text);
        let delivered = Delivered { input: job.quote.counted, output, whole: false };
        let (usage, _) = settle::usage(&told.usage, delivered);
        let command = charge::Command::Note { actual: job.actual(&held, usage) };
        // A note that cannot be made is made later, or the commit says why.
        let _noted = self.submit(&job.ask, Command::Charge { charge: held.charge, command }).await.is_ok();
    }

    /// The clock that requests are dated by.
    pub(crate) fn now(&self) -> holdfast_domain::Timestamp {
        self.clock.now()
    }
}

fn terms(ask: &Ask, rates: Rates, amount: CreditUnit) -> Reserve {
    let terms = Terms { rates: Some(rates), overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let budgets = ask.caller.budgets.clone();
    Reserve { owner: ask.caller.account, amount, terms, ttl: TTL_DEFAULT, budgets }
}

/// The charge of another attempt, after so many that came to nothing.
fn charge_again(first: ChargeId, attempt: u32) -> ChargeId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(first.as_bytes()).update(&attempt.to_le_bytes());
    ids::of_hash(CHARGE_PREFIX, hasher.finalize().as_bytes())
}

/// Whether an attempt ended without a charge.
fn is_nothing(charge: &Charge) -> bool {
    match charge {
        Charge::Released(closed) | Charge::AutoReleased(closed) => closed.charged.is_zero(),
        Charge::Held(_) | Charge::Committed(_) | Charge::Acked(_) | Charge::Failed(_) | Charge::Voided(_) => false,
    }
}

/// Why an answer is cut off that nobody reads. Whoever asks for it again is told.
fn left() -> ProviderError {
    ProviderError::BrokeOff { reason: "its caller went away".to_owned() }
}

fn charged(receipt: &Receipt) -> CreditUnit {
    match &*receipt.event {
        Event::Charge { event: charge::Event::Committed { taken, .. }, .. } => {
            // The sum was in range when it was decided.
            taken.charged().unwrap_or(taken.from_hold)
        }
        Event::Charge { .. } | Event::Minted(_) | Event::Escrow { .. } => CreditUnit::ZERO,
    }
}

/// Whether the provider's numbers came to more than was held.
fn receipt_clamped(receipt: &Receipt) -> bool {
    matches!(&*receipt.event, Event::Charge { event: charge::Event::Committed { taken, .. }, .. }
        if !taken.uncollected.is_zero())
}

/// Says on standard error that a charge is not simply what a provider reported. Nothing of the request is told.
fn flag(job: &Job, reported: &Reported, clamped: bool) {
    let what = match (reported, clamped) {
        (_, true) => "more usage than was held for; charged the hold",
        (Reported::Missing, false) => "no usage; charged the counted tokens",
        (Reported::Nonsense(_), false) => "usage that cannot be; charged the counted tokens",
        (Reported::Tokens(_), false) => "usage that is not what was delivered; charged what was",
    };
    crate::terminal::note(&format!("request {}: the provider of {:?} reported {what}", job.charge(), job.ask.model));
}
