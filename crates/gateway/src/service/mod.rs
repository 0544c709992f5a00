//! The service behind every door. It reads, has the engine decide, and shows the answer.

mod keys;
mod limits;
mod obligations;
mod query;
mod queue;

pub(crate) use obligations::Outstanding;

use crate::books::{Books, Health};
use crate::identity::{Identity, IdentityError};
use crate::node::Node;
use crate::queue::Queue;
use crate::rates::{NoRates, RateTable};
use crate::settlement::Settlement;
use crate::wire::answer::{ReceiptBody, line};
use crate::wire::command::{CommandBody, Given};
use crate::wire::error::{Problem, WireError};
use crate::wire::keys::KeysBody;
use crate::wire::limits::LimitsBody;
use crate::wire::object::Object;
use crate::wire::obligations::ObligationsBody;
use crate::wire::question::{BatchBody, QuestionBody};
use crate::wire::queue::QueueBody;
use holdfast_adapters::SystemClock;
use holdfast_domain::charge::Charge;
use holdfast_domain::{Label, Timestamp, Tokens};
use holdfast_engine::{Answer, BATCH_MAX, Clock, Command, Outcome, Refusal, Request};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The longest line that is read.
pub(crate) const LINE_BYTES_MAX: usize = 4 * 1_024 * 1_024;

const COMMANDS: [&str; 14] = [
    "mint",
    "reserve",
    "start",
    "increase",
    "extend",
    "commit",
    "release",
    "void",
    "ack",
    "fail",
    "escrow_hold",
    "escrow_settle",
    "escrow_refund",
    "escrow_partial",
];
const QUESTIONS: [&str; 10] = [
    "balance",
    "balance_as_of",
    "accounts",
    "history",
    "reservation",
    "reservations",
    "escrow",
    "entry",
    "totals",
    "health",
];
const KEYS: [&str; 5] = ["key_new", "keys", "key", "key_revoke", "signing_key_rotate"];
const LIMITS: [&str; 3] = ["limit_set", "limit", "limits"];
const OBLIGATIONS: [&str; 6] =
    ["obligations", "obligation", "obligation_replay", "obligations_replay", "obligation_resolve", "obligations_put"];

const QUEUE: [&str; 9] = [
    "queue_list",
    "queue_item",
    "queue_start",
    "queue_finish",
    "queue_abandon",
    "queue_partial",
    "queue_next",
    "escrow_orphans",
    "escrow_orphan_refund",
];

/// The books, and how to speak of them.
pub(crate) struct Service {
    books: Books,
    /// The data directory: what is not in the books is there.
    data: PathBuf,
    clock: Arc<SystemClock>,
    operator: Label,
    rates: Arc<dyn RateTable>,
    /// How charges are settled with the peer, if there is one.
    settlement: Option<Arc<Settlement>>,
    /// The performance queue, if it is here.
    queue: Option<Arc<Queue>>,
    /// In a data directory it is opened when it is first needed: most commands without a server never do.
    identity: OnceLock<Arc<Identity>>,
}

/// A line that has been understood.
#[derive(Debug)]
pub(crate) enum Asked {
    /// One change.
    Command(CommandBody),
    /// Many changes: each is a command, or the reason why it is none.
    Batch(Vec<Result<CommandBody, WireError>>),
    /// No change.
    Question(QuestionBody),
    /// API keys and signing keys.
    Keys(KeysBody),
    /// Limits of accounts, teams and organisations.
    Limits(LimitsBody),
    /// What the peer is still to be told.
    Obligations(ObligationsBody),
    /// The performance queue.
    Queue(QueueBody),
}

impl Service {
    /// The service of a running node.
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            books: node.books.clone(),
            data: node.data.clone(),
            clock: Arc::clone(&node.clock),
            // Whoever reaches the socket or the directory is the operator.
            operator: "operator".parse().expect("a plain word"),
            rates: Arc::new(NoRates),
            settlement: None,
            queue: None,
            identity: node.identity.clone().map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    /// The same service, with prices.
    pub(crate) fn with_rates(self, rates: Arc<dyn RateTable>) -> Self {
        Self { rates, ..self }
    }

    /// The same service, settling with a peer.
    pub(crate) fn with_settlement(self, settlement: Option<Arc<Settlement>>) -> Self {
        Self { settlement, ..self }
    }

    /// The same service, with a performance queue.
    pub(crate) fn with_queue(self, queue: Option<Arc<Queue>>) -> Self {
        Self { queue, ..self }
    }

    /// The performance queue, if it is here.
    pub(crate) const fn queue(&self) -> Option<&Arc<Queue>> {
        self.queue.as_ref()
    }

    /// How charges are settled with the peer, if there is one.
    pub(crate) const fn settlement(&self) -> Option<&Arc<Settlement>> {
        self.settlement.as_ref()
    }

    /// Answers one line. The first poll hands a command to the engine, so lines polled in order are decided in order.
    pub(crate) async fn answer(&self, asked: Asked) -> String {
        match asked {
            Asked::Command(body) => {
                line(self.command(body, self.operator).await.map(|outcome| ReceiptBody::from(&outcome)))
            }
            Asked::Batch(bodies) => self.batch(bodies).await,
            Asked::Question(question) => self.question(question).await,
            Asked::Keys(body) => line(self.keys(body).await),
            Asked::Limits(body) => line(self.limits(body).await),
            Asked::Obligations(body) => line(self.obligations(body, self.operator).await),
            Asked::Queue(body) => line(self.queue_line(body, self.operator).await),
        }
    }

    /// How the engine is, within a tenth of a second.
    pub(crate) async fn health(&self) -> Health {
        self.books.health().await
    }

    /// What is known about callers.
    pub(crate) fn identity(&self) -> Result<Arc<Identity>, IdentityError> {
        if let Some(identity) = self.identity.get() {
            return Ok(Arc::clone(identity));
        }
        let opened = Arc::new(Identity::open(&self.data)?);
        Ok(Arc::clone(self.identity.get_or_init(|| opened)))
    }

    fn given(&self, actor: Label) -> Given<'_> {
        Given { actor, now: self.clock.now(), rates: self.rates.as_ref() }
    }

    /// Has one command done for `actor`.
    pub(crate) async fn command(&self, body: CommandBody, actor: Label) -> Result<Outcome, Problem> {
        let estimated = body.estimated();
        let request = self.limited(body.into_request(self.given(actor))?)?;
        let Some(tokens) = estimated else { return Ok(self.books.submit(request).await?) };
        let answer = self.books.submit(request.clone()).await;
        Ok(self.or_as_frozen(answer, &request, tokens).await?)
    }

    /// A retry of an estimated reservation is still the same request when prices have changed since: it is tried with the
    /// rates that the first one froze.
    async fn or_as_frozen(&self, answer: Answer, request: &Request, (input, output): (Tokens, Tokens)) -> Answer {
        let (Err(Refusal::KeyReused), Command::Reserve { charge, reserve }) = (&answer, &request.command) else {
            return answer;
        };
        let (id, mut reserve) = (*charge, reserve.clone());
        let Some(charge) = self.books.charge(id).await? else { return answer };
        let frozen = match charge.0 {
            Charge::Held(hold) => hold.terms.rates,
            Charge::Committed(closed)
            | Charge::Acked(closed)
            | Charge::Failed(closed)
            | Charge::Voided(closed)
            | Charge::Released(closed)
            | Charge::AutoReleased(closed) => closed.terms.rates,
        };
        let Some(rates) = frozen else { return answer };
        reserve.terms.rates = Some(rates);
        reserve.amount = rates.bound(input, output)?;
        self.books.submit(Request { command: Command::Reserve { charge: id, reserve }, ..request.clone() }).await
    }

    /// Has many commands done for `actor`, in order. Each stands for itself.
    pub(crate) async fn commands(
        &self,
        bodies: Vec<Result<CommandBody, WireError>>,
        actor: Label,
    ) -> Result<Vec<Result<Outcome, Problem>>, Refusal> {
        if bodies.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLarge);
        }
        let given = self.given(actor);
        let mut requests = Vec::with_capacity(bodies.len());
        // What each answer will be: known already, or the next of the engine's.
        let mut answers = Vec::with_capacity(bodies.len());
        let mut estimates = Vec::new();
        for (number, body) in bodies.into_iter().enumerate() {
            let understood = body.map_err(Problem::from).and_then(|body| {
                let estimated = body.estimated();
                let request = self.limited(body.into_request(given)?)?;
                estimates.extend(estimated.map(|tokens| (number, tokens, request.clone())));
                Ok(request)
            });
            answers.push(understood.map(|request| requests.push(request)));
        }
        let mut decided = self.books.submit_batch(requests).await?.into_iter();
        let mut next = || decided.next().unwrap_or(Err(Refusal::JournalFailed));
        let known = answers.into_iter().map(|known| known.and_then(|()| Ok(next()?)));
        let mut answers: Vec<Result<Outcome, Problem>> = known.collect();
        for (number, usage, request) in estimates {
            if let Some(answer) = answers.get_mut(number)
                && matches!(answer, Err(Problem::Refused(Refusal::KeyReused)))
            {
                *answer = self.or_as_frozen(Err(Refusal::KeyReused), &request, usage).await.map_err(Problem::from);
            }
        }
        Ok(answers)
    }

    async fn batch(&self, bodies: Vec<Result<CommandBody, WireError>>) -> String {
        let answers = match self.commands(bodies, self.operator).await {
            Ok(answers) => answers,
            Err(refusal) => return refuse(refusal),
        };
        let lines = answers.into_iter().map(|answer| line(answer.map(|outcome| ReceiptBody::from(&outcome))));
        let lines: Vec<String> = lines.collect();
        format!(r#"{{"ok":true,"answers":[{}]}}"#, lines.join(","))
    }
}

/// The line that refuses.
pub(crate) fn refuse(problem: impl Into<Problem>) -> String {
    line::<()>(Err(problem.into()))
}

/// The refusal of a line that is badly said, whatever the books are.
pub(crate) fn refused_unasked(line: &str) -> Option<String> {
    let given = Given { actor: "nobody".parse().expect("a plain word"), now: Timestamp::EPOCH, rates: &NoRates };
    match Asked::read(line.as_bytes()) {
        Ok(Asked::Command(body)) => body.into_request(given).err().map(refuse),
        Ok(Asked::Limits(body)) => body.into_task().err().map(refuse),
        Ok(Asked::Obligations(body)) => body.into_task().err().map(refuse),
        Ok(Asked::Queue(body)) => body.into_task().err().map(refuse),
        Ok(Asked::Batch(_) | Asked::Question(_) | Asked::Keys(_)) => None,
        Err(error) => Some(refuse(error)),
    }
}

impl Asked {
    /// Understands a line.
    pub(crate) fn read(line: &[u8]) -> Result<Self, WireError> {
        let text = std::str::from_utf8(line).map_err(|error| WireError::Malformed(format!("not UTF-8: {error}")))?;
        let op = op(text)?;
        if op == "batch" {
            let BatchBody { requests, .. } = shape(text)?;
            return Ok(Self::Batch(requests.into_iter().map(command).collect()));
        }
        if QUESTIONS.contains(&op.as_ref()) {
            return shape(text).map(Self::Question);
        }
        if COMMANDS.contains(&op.as_ref()) {
            return shape(text).map(Self::Command);
        }
        if KEYS.contains(&op.as_ref()) {
            return shape(text).map(Self::Keys);
        }
        if LIMITS.contains(&op.as_ref()) {
            return shape(text).map(Self::Limits);
        }
        if OBLIGATIONS.contains(&op.as_ref()) {
            return shape(text).map(Self::Obligations);
        }
        if QUEUE.contains(&op.as_ref()) {
            return shape(text).map(Self::Queue);
        }
        Err(unknown(&op))
    }
}

/// A line's `op`, whatever else it says.
pub(crate) fn op(text: &str) -> Result<Cow<'_, str>, WireError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        op: Cow<'a, str>,
    }
    shape::<Head<'_>>(text).map(|head| head.op)
}

fn command(text: &RawValue) -> Result<CommandBody, WireError> {
    let op = op(text.get())?;
    if COMMANDS.contains(&op.as_ref()) { shape(text.get()) } else { Err(unknown(&op)) }
}

fn unknown(op: &str) -> WireError {
    let (commands, questions) = (COMMANDS.join(", "), QUESTIONS.join(", "));
    let (keys, limits, obligations) = (KEYS.join(", "), LIMITS.join(", "), OBLIGATIONS.join(", "));
    let queue = QUEUE.join(", ");
    WireError::Malformed(format!(
        "there is no op {op:?}; the commands are {commands}; the questions are {questions}; about keys there are {keys}; \
         about limits there are {limits}; about what the peer is to be told there are {obligations}; \
         about the performance queue there are {queue}; batch takes commands only"
    ))
}

pub(crate) fn shape<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, WireError> {
    let Object(read) = serde_json::from_str(text).map_err(|error| WireError::Malformed(error.to_string()))?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node;
    use crate::settings::{KEYS_STALE_AFTER, Settings};
    use holdfast_domain::{CreditUnit, CreditsPerUsd, Overflow, Rates};
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// One model, whose price can change.
    struct Table(Mutex<&'static str>);

    impl RateTable for Table {
        fn bound(&self, model: &str, input: u64, output: u64) -> Option<Result<(CreditUnit, Rates), Overflow>> {
            let price = self.0.lock().unwrap().parse().unwrap();
            let rates = Rates {
                input: price,
                output: price,
                cached_input: None,
                cache_write: None,
                reasoning: None,
                per_request: None,
                credits_per_usd: CreditsPerUsd::DEFAULT,
            };
            (model == "echo").then(|| Ok((rates.bound(input, output)?, rates)))
        }
    }

    async fn ask(service: &Service, line: Value) -> Value {
        let asked = Asked::read(line.to_string().as_bytes()).unwrap();
        serde_json::from_str(&service.answer(asked).await).unwrap()
    }

    #[tokio::test]
    async fn a_reservation_by_model_freezes_its_price_and_is_the_same_when_prices_have_changed() {
        let data = tempfile::tempdir().unwrap();
        let settings = Settings {
            database: None,
            keys_stale_after: KEYS_STALE_AFTER,
            segment_bytes: 65_536,
            snapshot_entries: 1_000,
            keys_in_memory: None,
        };
        let node = Node::start(node::lock(data.path()).unwrap(), data.path(), &settings, &mut |_| {}).unwrap();
        let table = Arc::new(Table(Mutex::new("10")));
        let service = Service::of(&node).with_rates(Arc::clone(&table) as _);
        let mint = json!({ "op": "mint", "account_id": "alice", "amount_cu": "100", "reason": "r", "key": "k" });
        ask(&service, mint).await;
        let reserve = |id: &str, model: &str, most: u64| {
            json!({
                "op": "reserve", "account_id": "alice", "request_id": id,
                "model": model, "input_tokens": 1_000, "max_tokens": most,
            })
        };
        let held = ask(&service, reserve("a", "echo", 1_000)).await;
        // 2,000 tokens at 10 dollars a million are 2 cents.
        assert_eq!((&held["outcome"], &held["amount_cu"]), (&json!("applied"), &json!("2")));
        *table.0.lock().unwrap() = "20";
        let again = ask(&service, reserve("a", "echo", 1_000)).await;
        assert_eq!((&again["outcome"], &again["offset"]), (&json!("replayed"), &held["offset"]));
        let batch = json!({ "op": "batch", "requests": [reserve("a", "echo", 1_000), reserve("b", "echo", 1_000)] });
        let batch = ask(&service, batch).await;
        assert_eq!((&batch["answers"][0]["offset"], &batch["answers"][1]["amount_cu"]), (&held["offset"], &json!("4")));
        let other = ask(&service, reserve("a", "echo", 2_000)).await;
        assert_eq!(other["error"]["code"], "ALREADY_USED_KEY");
        let unpriced = ask(&service, reserve("c", "other", 1)).await;
        assert_eq!(unpriced["error"]["code"], "INVALID_MODEL");
        let usage = json!({ "input_tokens": 500, "output_tokens": 500 });
        let committed = ask(&service, json!({ "op": "commit", "id": "a", "usage": usage })).await;
        assert_eq!(committed["charged_cu"], "1", "the frozen price counts");
        drop(service);
        node.stop().unwrap();
    }
}
