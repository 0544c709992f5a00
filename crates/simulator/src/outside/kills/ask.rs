//! What clients ask before a kill, and what they saw of the answers.

use super::super::OutsideError;
use super::super::wire::{Client, Heard};
use super::door::Door;
use crate::rng::Rng;
use crate::upstream::Usage;
use holdfast_domain::CreditUnit;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// How a request is asked, and what the upstream does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    Stream,
    /// A stream that ends with its usage.
    StreamWithUsage,
    /// The upstream refuses it.
    Failing,
    /// The upstream breaks the stream off.
    Breaking,
    /// A stream that takes so long that the gateway notes what it has delivered.
    Slow,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Its idempotency key, and its tag at the upstream.
    pub(super) key: String,
    pub(super) door: Door,
    pub(super) kind: Kind,
    pub(super) words: u64,
}

/// What a client saw of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// All of it, with the usage and the cost that it told, if it did.
    Complete { usage: Option<Usage>, cost: Option<CreditUnit> },
    /// An error, whole.
    Refused { status: u16, code: String },
    /// Less.
    Partly,
}

/// A request and what its client saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) plan: Plan,
    pub(super) seen: Seen,
}

impl Asked {
    /// Whether its answer ended where it should not, as those do that the upstream itself does not break off.
    pub(super) fn is_cut(&self) -> bool {
        self.seen == Seen::Partly && self.plan.kind != Kind::Breaking
    }
}

/// `count` requests at one door, of each kind as often as `weights` say (in the order of [`Kind`], without the slow ones).
pub(super) fn plans(rng: &mut Rng, door: Door, prefix: &str, count: usize, weights: [u32; 5]) -> Vec<Plan> {
    let kinds = [Kind::Whole, Kind::Stream, Kind::StreamWithUsage, Kind::Failing, Kind::Breaking];
    let plan = |number| Plan {
        key: format!("{prefix}-{number}"),
        door,
        kind: kinds[rng.weighted(&weights)],
        words: rng.between(1, 30),
    };
    (0..count).map(plan).collect()
}

/// What the upstream is told to do with these requests.
pub(super) fn script(plans: &[Plan]) -> String {
    let line = |plan: &Plan| match plan.kind {
        Kind::Whole | Kind::Stream | Kind::StreamWithUsage => None,
        // Not a status that another attempt could help against.
        Kind::Failing => Some(json!({"do": "status", "status": 400, "tag": plan.key})),
        Kind::Breaking => Some(json!({"do": "break_off", "after_chunks": plan.words / 2, "tag": plan.key})),
        Kind::Slow => Some(json!({"do": "answer", "chunk_delay_ms": 120, "tag": plan.key})),
    };
    Value::from(plans.iter().filter_map(line).collect::<Vec<_>>()).to_string()
}

/// Whom to ask.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) url: String,
    pub(super) api_key: String,
}

/// Asks all of it, so many at a time, whatever becomes of the gateway meanwhile.
pub(super) async fn ask_all(desk: &Desk, plans: Vec<Plan>, width: usize) -> Result<Vec<Asked>, OutsideError> {
    let plans: Arc<[Plan]> = plans.into();
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..width {
        let (desk, plans, next) = (desk.clone(), Arc::clone(&plans), Arc::clone(&next));
        clients.spawn(async move {
            let mut client = Client::new(&desk.url);
            let mut asked = Vec::new();
            while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                let seen = ask(&mut client, &desk, plan).await;
                let is_gone = seen.is_none();
                asked.push(Asked { plan: plan.clone(), seen: seen.unwrap_or(Seen::Partly) });
                if is_gone {
                    break;
                }
            }
            asked
        });
    }
    let mut asked = Vec::new();
    while let Some(ended) = clients.join_next().await {
        asked.extend(ended.map_err(|error| OutsideError::answered("a client", error.to_string()))?);
    }
    Ok(asked)
}

/// None if nothing came at all: the gateway is gone.
async fn ask(client: &mut Client, desk: &Desk, plan: &Plan) -> Option<Seen> {
    let authorization = format!("Bearer {}", desk.api_key);
    let headers = [
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", &plan.key),
    ];
    let heard = client.hear("POST", plan.door.path(), &headers, &plan.door.body(plan)).await;
    heard.ok().map(|heard| seen(plan.door, &heard))
}

/// Reads what came.
fn seen(door: Door, Heard { answer, is_whole }: &Heard) -> Seen {
    let is_stream = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    match (answer.status, is_stream) {
        (200, true) => {
            let text = String::from_utf8_lossy(&answer.body);
            // What comes after it is no part of the answer any more.
            if !door.is_ended(&text) {
                return Seen::Partly;
            }
            let comment = text.lines().find_map(|line| line.strip_prefix(": cost_cu=")?.split(' ').next());
            Seen::Complete { usage: door.usage_in_stream(&text), cost: amount(comment) }
        }
        (200, false) if *is_whole => Seen::Complete {
            usage: door.usage(&answer.json()["usage"]),
            cost: amount(answer.header("x-holdfast-cost-cu")),
        },
        (200, false) => Seen::Partly,
        (status, _) if *is_whole => {
            let body = answer.json();
            let code = body["error"]["code"].as_str().or_else(|| body["code"].as_str());
            Seen::Refused { status, code: code.unwrap_or_default().to_owned() }
        }
        _ => Seen::Partly,
    }
}

fn amount(text: Option<&str>) -> Option<CreditUnit> {
    text.and_then(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::wire::Answer;
    use hyper::header::HeaderMap;

    fn heard(status: u16, kind: &str, body: &str, is_whole: bool) -> Heard {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        headers.insert("x-holdfast-cost-cu", "0.5".parse().unwrap());
        Heard { answer: Answer { status, headers, body: body.to_owned().into() }, is_whole }
    }

    #[test]
    fn an_answer_is_complete_with_its_last_byte_or_the_end_of_its_stream() {
        const JSON: &str = "application/json";
        const EVENTS: &str = "text/event-stream";
        let used = Some(Usage { input: 3, cached: 0, output: 2, reasoning: 0 });
        let cost = |text: &str| Some(text.parse().unwrap());
        let check = |door, heard: Heard, expected: Seen| assert_eq!(seen(door, &heard), expected, "{heard:?}");
        let chat = |heard, expected| check(Door::Chat, heard, expected);
        let whole = r#"{"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        chat(heard(200, JSON, whole, true), Seen::Complete { usage: used, cost: cost("0.5") });
        chat(heard(200, JSON, whole, false), Seen::Partly);
        let text = "data: {\"choices\":[{}]}\n\n";
        let told = "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n: cost_cu=0.25 balance_cu=9\n\n";
        let done = "data: [DONE]\n\n";
        chat(heard(200, EVENTS, &format!("{text}{told}"), true), Seen::Partly);
        // The end of the answer is its end, though the connection broke after it.
        chat(heard(200, EVENTS, &format!("{text}{done}"), false), Seen::Complete { usage: None, cost: None });
        let complete = Seen::Complete { usage: used, cost: cost("0.25") };
        chat(heard(200, EVENTS, &format!("{text}{told}{done}"), true), complete.clone());
        let told = "event: message_delta\ndata: {\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}\n\n";
        let stop = ": cost_cu=0.25 balance_cu=9\n\nevent: message_stop\ndata: {}\n\n";
        check(Door::Messages, heard(200, EVENTS, &format!("{told}{stop}"), false), complete.clone());
        check(Door::Messages, heard(200, EVENTS, told, true), Seen::Partly);
        let used = "{\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}}";
        let end = format!(": cost_cu=0.25 balance_cu=9\n\nevent: response.completed\ndata: {used}\n\n");
        check(Door::Responses, heard(200, EVENTS, &end, false), complete);
        let refused = r#"{"error":{"code":"already_answered"}}"#;
        let code = "already_answered".to_owned();
        chat(heard(409, JSON, refused, true), Seen::Refused { status: 409, code });
        chat(heard(409, JSON, refused, false), Seen::Partly);
    }

    #[test]
    fn the_upstream_is_told_of_those_that_it_must_fail_and_of_no_others() {
        let mut rng = Rng::new(7);
        let plans = plans(&mut rng, Door::Chat, "k", 100, [1, 1, 1, 1, 1]);
        let lines: Vec<Value> = serde_json::from_str(&script(&plans)).unwrap();
        let told = |plan: &Plan| lines.iter().any(|line| line["tag"] == plan.key.as_str());
        for plan in &plans {
            assert_eq!(told(plan), matches!(plan.kind, Kind::Failing | Kind::Breaking), "{plan:?}");
        }
        assert!(plans.iter().any(told));
    }
}
