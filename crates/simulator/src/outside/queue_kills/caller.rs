//! A caller: asks until it gets an answer, whoever dies meanwhile, and remembers what it was told.
//!
//! # Invariants
//! - A call whose answer was lost is asked again as it was. Only an answer that decides something ends it.

use super::super::OutsideError;
use super::super::operator::Operator;
use super::super::wire::{Answer, Client};
use super::story::{Fate, Plan, Story, Told, request};
use holdfast_domain::queue::Verdict;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Somebody is always started again before.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(4);
/// A token lives for five minutes.
const TOKEN_FRESH: Duration = Duration::from_secs(200);

/// One of the two services, as callers see it.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) url: String,
    operator: Operator,
    token: Mutex<Option<(String, Instant)>>,
}

impl Door {
    pub(super) const fn new(url: String, operator: Operator) -> Self {
        Self { url, operator, token: Mutex::new(None) }
    }

    /// A token that is good for a while.
    fn token(&self) -> Result<String, OutsideError> {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((token, _)) = kept.as_ref().filter(|(_, since)| since.elapsed() < TOKEN_FRESH) {
            return Ok(token.clone());
        }
        let token = self.operator.service_token("callers")?;
        *kept = Some((token.clone(), Instant::now()));
        Ok(token)
    }
}

/// Both services; the same door twice if they are one process.
#[derive(Debug, Clone)]
pub(super) struct Doors {
    pub(super) wallet: Arc<Door>,
    pub(super) queue: Arc<Door>,
}

/// What all callers share.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) doors: Doors,
    pub(super) seed: u64,
    /// The number of the next piece of work.
    pub(super) next: Arc<AtomicU64>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Desk {
    /// Does one piece of work after the other until it is stopped; the last one is done to its end.
    pub(super) async fn work(self) -> Result<Vec<Story>, OutsideError> {
        let mut stories = Vec::new();
        let (mut wallet, mut queue) = (Asker::new(&self.doors.wallet), Asker::new(&self.doors.queue));
        while !self.stop.load(Ordering::Relaxed) {
            let plan = Plan::new(self.seed, self.next.fetch_add(1, Ordering::Relaxed));
            stories.push(self.tell(&mut wallet, &mut queue, plan).await?);
        }
        Ok(stories)
    }

    async fn tell(&self, wallet: &mut Asker, queue: &mut Asker, plan: Plan) -> Result<Story, OutsideError> {
        let held = wallet.ask("POST", "/api/v1/escrows", None, &plan.hold()).await?.good("a hold")?;
        let escrow = text(&held, "escrowId")?;
        let key = format!("{}-intake", plan.name);
        let put = queue.ask("POST", "/api/v1/queue/items", Some(&key), &plan.intake(&escrow)).await?;
        let item = text(&put.good("an intake")?, "queueItemId")?;
        let mut story = Story { plan, escrow, item, is_started: false, told: Vec::new() };
        if matches!(story.plan.fate, Fate::Ended(_) | Fate::Working) {
            let answer = queue.ask("POST", &path(&story.item, "start"), None, &json!({})).await?;
            // Nobody else starts it: a start that was asked again finds it done.
            if current(&answer).as_deref() != Some("in_progress") {
                answer.good("a start")?;
            }
            story.is_started = true;
        }
        let verdicts = match &story.plan.fate {
            Fate::Ended(verdicts) | Fate::GivenUp(verdicts) => verdicts.clone(),
            Fate::Dropped | Fate::Waiting | Fate::Working => Vec::new(),
        };
        story.told = match verdicts[..] {
            [verdict] => vec![(verdict, end(queue, &story.item, verdict).await?)],
            _ => self.end_at_once(&story.item, verdicts).await?,
        };
        Ok(story)
    }

    async fn end_at_once(&self, item: &str, verdicts: Vec<Verdict>) -> Result<Vec<(Verdict, Told)>, OutsideError> {
        let mut asking = JoinSet::new();
        for verdict in verdicts {
            let (mut queue, item) = (Asker::new(&self.doors.queue), item.to_owned());
            asking.spawn(async move { end(&mut queue, &item, verdict).await.map(|told| (verdict, told)) });
        }
        let mut all = Vec::new();
        while let Some(asked) = asking.join_next().await {
            all.push(asked.map_err(|error| OutsideError::answered("a caller", error.to_string()))??);
        }
        Ok(all)
    }
}

/// Asks for an end until it is decided.
pub(super) async fn end(queue: &mut Asker, item: &str, verdict: Verdict) -> Result<Told, OutsideError> {
    let (word, body) = request(verdict);
    let answer = queue.ask("POST", &path(item, word), None, &body).await?;
    match current(&answer) {
        Some(current) => Ok(Told::Not(current)),
        None => answer.good(word).map(Told::Done),
    }
}

pub(super) fn path(item: &str, word: &str) -> String {
    format!("/api/v1/queue/items/{item}/{word}")
}

/// The state in which an item is, according to an answer that it does not allow what was asked.
fn current(answer: &Answer) -> Option<String> {
    let body = answer.json();
    let error = &body["error"];
    let is_state = answer.status == 409 && error["code"] == "INVALID_QUEUE_STATE";
    let said = [&error["current"], &error["details"]["current"], &body["current"]].into_iter().find_map(Value::as_str);
    is_state.then(|| said.unwrap_or("unsaid").to_owned())
}

fn text(value: &Value, field: &str) -> Result<String, OutsideError> {
    let none = || OutsideError::answered(field, value.to_string());
    value[field].as_str().map(str::to_owned).ok_or_else(none)
}

/// A client that does not give up.
pub(super) struct Asker {
    door: Arc<Door>,
    client: Client,
}

impl Asker {
    pub(super) fn new(door: &Arc<Door>) -> Self {
        Self { door: Arc::clone(door), client: Client::new(&door.url) }
    }

    /// Asks until the answer decides something.
    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<Answer, OutsideError> {
        let began = Instant::now();
        let body = if method == "GET" { String::new() } else { body.to_string() };
        loop {
            let authorization = format!("Bearer {}", self.door.token()?);
            let mut headers = vec![("authorization", authorization.as_str()), ("content-type", "application/json")];
            headers.extend(key.map(|key| ("idempotency-key", key)));
            let answer = self.client.send(method, path, &headers, &body).await;
            match answer {
                Ok(answer) if is_decided(&answer) => return Ok(answer),
                // Nobody was there, it died while it answered, or it could not ask the other.
                Ok(_) | Err(_) if began.elapsed() < ANSWERED_WITHIN => tokio::time::sleep(ASK_AGAIN_AFTER).await,
                Ok(answer) => return answer.good(path).map(|_| answer),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_decided(answer: &Answer) -> bool {
    answer.status < 500 && answer.json()["error"]["code"] != "OPTIMISTIC_LOCK"
}
