//! "Money behaviour measured": each thing that gateways get wrong with money, done to this one from outside.
//!
//! What a request holds is asked of the gateway itself (a refusal says what it `required`); what it costs follows from the
//! upstream's own account of the call. The upstream's gate keeps calls open until everybody was let in or refused, so that how
//! many run at once is a fact and not luck.

use super::OutsideError;
use super::books;
use super::hangups::calls;
use super::operator::Operator;
use super::tariff::Tariff;
use super::wire::{Answer, Client};
use crate::upstream::{Call, Progress};
use holdfast_domain::CreditUnit;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long anything that must happen may take.
const WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const TEXT: &str = "one two three four five six seven eight nine ten";

/// The gateway, the upstream behind it, and an operator.
#[derive(Debug, Clone)]
pub struct World {
    /// The gateway's `http://ADDRESS`.
    pub base_url: String,
    /// The upstream's.
    pub upstream_url: String,
    /// Who mints and makes keys.
    pub operator: Operator,
    /// What is asked for.
    pub model: String,
    /// Its prices.
    pub tariff: Tariff,
    /// Makes the accounts of one run differ from those of another.
    pub run: u64,
}

/// One thing that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// 50 concurrent calls on a small budget: exactly what it covers.
    SmallBudget,
    /// One call that costs more than there is.
    Dearer,
    /// Two keys of one account.
    TwoKeys,
    /// Three posts with one `Idempotency-Key`.
    OneKeyThrice,
    /// An SDK that tries again.
    SdkRetry,
    /// 64 parallel requests on a balance for 10.
    SixtyFourOnTen,
}

/// All of them.
pub const ROWS: [Row; 6] =
    [Row::SmallBudget, Row::Dearer, Row::TwoKeys, Row::OneKeyThrice, Row::SdkRetry, Row::SixtyFourOnTen];

impl Row {
    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmallBudget => "50 concurrent calls on a budget for 4",
            Self::Dearer => "one call dearer than the budget",
            Self::TwoKeys => "two keys, one account, 32 calls each on a budget for 5",
            Self::OneKeyThrice => "3 posts with one Idempotency-Key",
            Self::SdkRetry => "an SDK's retry of a call that it gave up",
            Self::SixtyFourOnTen => "64 parallel requests on a balance for 10",
        }
    }

    /// Does it; answers what was seen.
    ///
    /// # Errors
    /// If it does not hold.
    pub async fn run(self, world: &World) -> Result<String, OutsideError> {
        let stage = Stage::new(world, self).await?;
        match self {
            Self::SmallBudget => stage.crowd(Crowd { keys: 1, calls: 50, covers: 4 }).await,
            Self::Dearer => stage.dearer().await,
            Self::TwoKeys => stage.crowd(Crowd { keys: 2, calls: 64, covers: 5 }).await,
            Self::OneKeyThrice => stage.one_key_thrice().await,
            Self::SdkRetry => stage.sdk_retry().await,
            Self::SixtyFourOnTen => stage.crowd(Crowd { keys: 1, calls: 64, covers: 10 }).await,
        }
    }
}

/// How many ask, and how many can be paid for.
#[derive(Debug, Clone, Copy)]
struct Crowd {
    keys: usize,
    calls: usize,
    covers: u64,
}

/// An account of its own for one row, and what a request of it holds.
struct Stage<'a> {
    world: &'a World,
    account: String,
    tag: String,
    hold: CreditUnit,
}

fn wrong(said: impl Into<String>) -> OutsideError {
    OutsideError::answered("the gateway", said)
}

fn times(amount: CreditUnit, count: u64) -> Result<CreditUnit, OutsideError> {
    (0..count)
        .try_fold(CreditUnit::ZERO, |sum, _| sum.checked_add(amount))
        .map_err(|_| wrong("a hold that cannot be added up"))
}

impl<'a> Stage<'a> {
    async fn new(world: &'a World, row: Row) -> Result<Self, OutsideError> {
        let name = match row {
            Row::SmallBudget => "small",
            Row::Dearer => "dear",
            Row::TwoKeys => "keys",
            Row::OneKeyThrice => "once",
            Row::SdkRetry => "retry",
            Row::SixtyFourOnTen => "crowd",
        };
        let tag = format!("money-{}-{name}", world.run);
        let mut stage = Self { world, account: tag.clone(), tag, hold: CreditUnit::ZERO };
        stage.hold = stage.hold_of_a_request().await?;
        Ok(stage)
    }

    /// From a refusal on an account with next to nothing.
    async fn hold_of_a_request(&self) -> Result<CreditUnit, OutsideError> {
        let poor = format!("{}-poor", self.account);
        let one = CreditUnit::new(1).map_err(|_| wrong("no smallest amount"))?;
        self.world.operator.mint(&poor, one)?;
        let key = self.world.operator.new_key(&poor)?;
        let answer = self.ask(&key, &[]).await?;
        refusal(&answer).map(|refusal| refusal.required)
    }

    fn body(&self) -> String {
        let messages = json!([{"role": "user", "content": TEXT}]);
        json!({"model": self.world.model, "messages": messages, "max_tokens": 64, "user": self.tag}).to_string()
    }

    async fn ask(&self, key: &str, headers: &[(&str, &str)]) -> Result<Answer, OutsideError> {
        ask(&self.world.base_url, key, headers, &self.body()).await
    }

    async fn control(&self, path: &str, body: &str) -> Result<(), OutsideError> {
        Client::new(&self.world.upstream_url).send("POST", path, &[], body).await?.good("the upstream").map(drop)
    }

    /// The upstream's calls of this row, once they are as many and as far as `enough` wants.
    async fn wait_calls(&self, enough: impl Fn(&[Call]) -> bool) -> Result<Vec<Call>, OutsideError> {
        let mut upstream = Client::new(&self.world.upstream_url);
        let began = Instant::now();
        loop {
            let mut found = calls(&mut upstream).await?.calls;
            found.retain(|call| call.tag.as_deref() == Some(&self.tag));
            if enough(&found) {
                return Ok(found);
            }
            if began.elapsed() > WITHIN {
                let what = format!("the calls that were expected, beside {}", found.len());
                return Err(OutsideError::TooLate { what, seconds: WITHIN.as_secs() });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The balance falls to what was minted less what the calls cost, and goes no further.
    async fn check_balance(&self, minted: CreditUnit, calls: &[Call]) -> Result<CreditUnit, OutsideError> {
        let costs = calls.iter().filter_map(|call| call.usage).map(|usage| self.world.tariff.cost(usage));
        let left = costs.into_iter().try_fold(minted, |left, cost| left.checked_sub(cost?).ok());
        let left = left.ok_or_else(|| wrong("calls dearer than the budget"))?;
        let key = self.world.operator.new_key(&self.account)?;
        let mut client = Client::new(&self.world.base_url);
        let began = Instant::now();
        loop {
            let balance = books::balance(&mut client, &key).await?;
            if balance == left {
                return Ok(left);
            }
            if began.elapsed() > WITHIN {
                return Err(wrong(format!("a balance of {balance}, and by the calls it is {left}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Exactly as many are served as the balance covers, and the others are told what is missing.
    async fn crowd(&self, crowd: Crowd) -> Result<String, OutsideError> {
        // Not a multiple of the hold, so that a rest cannot be mistaken for another's.
        let half = CreditUnit::new(self.hold.units() / 2).map_err(|_| wrong("half a hold out of range"))?;
        let minted = times(self.hold, crowd.covers)?.checked_add(half).map_err(|_| wrong("too much money"))?;
        self.world.operator.mint(&self.account, minted)?;
        let keys = (0..crowd.keys).map(|_| self.world.operator.new_key(&self.account));
        let keys = keys.collect::<Result<Vec<String>, _>>()?;
        self.control("/__script", &json!([{"do": "gate", "times": crowd.calls, "tag": self.tag}]).to_string()).await?;
        let mut asked = JoinSet::new();
        for (_, key) in (0..crowd.calls).zip(keys.iter().cycle()) {
            let (url, key, body) = (self.world.base_url.clone(), key.clone(), self.body());
            asked.spawn(async move { ask(&url, &key, &[], &body).await });
        }
        let covers = usize::try_from(crowd.covers).unwrap_or(usize::MAX);
        let mut answers = Vec::new();
        // Those who are refused are answered while all who are served still wait at the gate.
        while answers.len() < crowd.calls.saturating_sub(covers) {
            answers.extend(self.next(&mut asked).await?);
        }
        let running = |calls: &[Call]| calls.iter().filter(|call| call.progress == Progress::Running).count();
        self.wait_calls(|calls| running(calls) == covers).await?;
        self.control("/__open", "").await?;
        while let Some(answer) = self.next(&mut asked).await? {
            answers.push(answer);
        }
        let served = answers.iter().filter(|answer| answer.status == 200).count();
        let refused = answers.iter().map(refusal).filter(Result::is_ok).count();
        if (served, refused) != (covers, crowd.calls - covers) {
            let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
            return Err(wrong(format!("{served} served and {refused} refused well: {statuses:?}")));
        }
        let calls = self.wait_calls(|calls| calls.len() == covers && running(calls) == 0).await?;
        let left = self.check_balance(minted, &calls).await?;
        Ok(format!("{served} served, {refused} refused with 402 and the deficit, {left} left of {minted}"))
    }

    /// The next answer of a crowd; none if all have come.
    async fn next(&self, asked: &mut JoinSet<Result<Answer, OutsideError>>) -> Result<Option<Answer>, OutsideError> {
        let late = || OutsideError::TooLate { what: "an answer".to_owned(), seconds: WITHIN.as_secs() };
        let next = tokio::time::timeout(WITHIN, asked.join_next()).await.map_err(|_| late())?;
        next.map(|ended| ended.map_err(|error| wrong(error.to_string()))?).transpose()
    }

    async fn dearer(&self) -> Result<String, OutsideError> {
        let one = CreditUnit::new(1).map_err(|_| wrong("no smallest amount"))?;
        let minted = self.hold.checked_sub(one).map_err(|_| wrong("a hold of nothing"))?;
        self.world.operator.mint(&self.account, minted)?;
        let key = self.world.operator.new_key(&self.account)?;
        let refusal = refusal(&self.ask(&key, &[]).await?)?;
        if (refusal.required, refusal.available) != (self.hold, minted) {
            return Err(wrong(format!("required {} of {}", refusal.required, refusal.available)));
        }
        let calls = self.wait_calls(|_| true).await?;
        if !calls.is_empty() {
            return Err(wrong("a refusal, after the upstream was called"));
        }
        self.check_balance(minted, &[]).await?;
        Ok(format!("refused: {} required, {minted} there", self.hold))
    }

    async fn one_key_thrice(&self) -> Result<String, OutsideError> {
        let minted = times(self.hold, 10)?;
        self.world.operator.mint(&self.account, minted)?;
        let key = self.world.operator.new_key(&self.account)?;
        let headers = [("idempotency-key", self.tag.as_str())];
        // Two at once, which join, and one afterwards, which replays.
        let (first, second) = tokio::join!(self.ask(&key, &headers), self.ask(&key, &headers));
        let answers = [first?, second?, self.ask(&key, &headers).await?];
        if answers.iter().any(|answer| answer.status != 200 || answer.json()["id"] != answers[0].json()["id"]) {
            let statuses = answers.map(|answer| answer.status);
            return Err(wrong(format!("answers that differ: {statuses:?}")));
        }
        self.one_call(minted, 1).await
    }

    async fn sdk_retry(&self) -> Result<String, OutsideError> {
        let minted = times(self.hold, 10)?;
        self.world.operator.mint(&self.account, minted)?;
        let key = self.world.operator.new_key(&self.account)?;
        self.control("/__script", &json!([{"do": "gate", "times": 1, "tag": self.tag}]).to_string()).await?;
        let (url, asked_with, body) = (self.world.base_url.clone(), key.clone(), self.body());
        let first = async move { ask(&url, &asked_with, &[("x-stainless-retry-count", "0")], &body).await };
        let first = tokio::spawn(first);
        self.wait_calls(|calls| calls.len() == 1).await?;
        // The SDK's time is over: it hangs up and asks again.
        first.abort();
        let retry_headers = [("x-stainless-retry-count", "1")];
        let (answer, opened) = tokio::join!(self.ask(&key, &retry_headers), self.control("/__open", ""));
        opened?;
        let answer = answer?;
        if answer.status != 200 {
            return Err(wrong(format!("{} to the retry", answer.status)));
        }
        self.one_call(minted, 1).await
    }

    async fn one_call(&self, minted: CreditUnit, expected: usize) -> Result<String, OutsideError> {
        let is_over = |calls: &[Call]| calls.iter().all(|call| call.progress != Progress::Running);
        let calls = self.wait_calls(is_over).await?;
        if calls.len() != expected {
            return Err(wrong(format!("{} calls of the upstream, not {expected}", calls.len())));
        }
        let left = self.check_balance(minted, &calls).await?;
        Ok(format!("one call of the upstream, one charge, {left} left of {minted}"))
    }
}

async fn ask(url: &str, key: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer, OutsideError> {
    let authorization = format!("Bearer {key}");
    let own = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let headers = [&own, headers].concat();
    Client::new(url).send("POST", "/v1/chat/completions", &headers, body).await
}

/// What a refusal for want of money says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refusal {
    required: CreditUnit,
    available: CreditUnit,
}

/// Reads a refusal, and checks its manners.
fn refusal(answer: &Answer) -> Result<Refusal, OutsideError> {
    let body = answer.json();
    let error = &body["error"];
    let amount = |field: &str| error[field].as_str().and_then(|text| text.parse::<CreditUnit>().ok());
    let has_manners = answer.status == 402
        && error["type"] == "insufficient_quota"
        && error["code"] == "insufficient_balance"
        && answer.header("x-should-retry") == Some("false");
    match (has_manners, amount("required"), amount("available")) {
        (true, Some(required), Some(available)) if available < required => Ok(Refusal { required, available }),
        _ => Err(wrong(format!("not a refusal for want of money: {} {body}", answer.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hyper::header::{HeaderMap, HeaderValue};

    fn answer(status: u16, error: serde_json::Value, retry: &'static str) -> Answer {
        let headers = HeaderMap::from_iter([("x-should-retry".parse().unwrap(), HeaderValue::from_static(retry))]);
        Answer { status, headers, body: Bytes::from(json!({ "error": error }).to_string()) }
    }

    #[test]
    fn only_a_refusal_with_all_its_manners_counts() {
        let error = json!({
            "type": "insufficient_quota", "code": "insufficient_balance", "required": "2.5", "available": "1",
        });
        let good = refusal(&answer(402, error.clone(), "false")).unwrap();
        assert_eq!(good, Refusal { required: "2.5".parse().unwrap(), available: "1".parse().unwrap() });
        assert!(refusal(&answer(429, error.clone(), "false")).is_err());
        assert!(refusal(&answer(402, error.clone(), "true")).is_err());
        for (field, value) in [("required", json!(2.5)), ("available", json!("3")), ("code", json!("other"))] {
            let mut error = error.clone();
            error[field] = value;
            assert!(refusal(&answer(402, error, "false")).is_err(), "{field}");
        }
    }
}
