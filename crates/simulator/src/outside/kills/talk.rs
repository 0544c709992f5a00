//! Conversations over a WebSocket. A prompt has no idempotency key, so it is found in the journal by the charge that its end or
//! the upstream's call names, and it cannot be asked again as the same one.

use super::super::OutsideError;
use super::super::tariff::Tariff;
use super::super::wire::authority;
use super::ask::Desk;
use super::door::{MODEL, words};
use super::judge::Life;
use crate::rng::Rng;
use crate::upstream::Call;
use holdfast_domain::CreditUnit;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};

/// A model that the upstream does not have.
pub(super) const MISSING: &str = "missing";
/// No answer takes as long.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    words: u64,
    model: &'static str,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// Its end, with what it was charged as, and how much.
    Ended { charge: String, cost: CreditUnit },
    /// That there is no answer.
    Refused,
    /// Less: the gateway is gone.
    Cut,
}

/// The conversations of so many callers, of so many prompts each; in a hundred prompts `failing` that the upstream fails.
pub(super) fn prompts(rng: &mut Rng, callers: usize, each: usize, failing: u64) -> Vec<Vec<Prompt>> {
    let mut prompt = || {
        let model = if rng.between(1, 100) <= failing { MISSING } else { MODEL };
        Prompt { words: rng.between(1, 30), model }
    };
    (0..callers).map(|_| (0..each).map(|_| prompt()).collect()).collect()
}

/// Holds all conversations at the same time, whatever becomes of the gateway meanwhile.
pub(super) async fn talk_all(desk: &Desk, conversations: Vec<Vec<Prompt>>) -> Result<Vec<Told>, OutsideError> {
    let talks: Vec<_> = conversations
        .into_iter()
        .map(|prompts| {
            let desk = desk.clone();
            tokio::task::spawn_blocking(move || talk(&desk, &prompts))
        })
        .collect();
    let mut told = Vec::new();
    for talk in talks {
        told.extend(talk.await.map_err(|error| OutsideError::answered("a caller", error.to_string()))?);
    }
    Ok(told)
}

fn talk(desk: &Desk, prompts: &[Prompt]) -> Vec<Told> {
    let Some(mut socket) = open(desk) else { return vec![Told::Cut] };
    let mut all = Vec::new();
    for prompt in prompts {
        let told = say(&mut socket, prompt).unwrap_or(Told::Cut);
        let is_cut = told == Told::Cut;
        all.push(told);
        if is_cut {
            break;
        }
    }
    all
}

fn open(desk: &Desk) -> Option<WebSocket<TcpStream>> {
    let authority = authority(&desk.url);
    let mut request = format!("ws://{authority}/ws/kills").into_client_request().ok()?;
    let bearer = format!("Bearer {}", desk.api_key);
    request.headers_mut().insert("authorization", bearer.parse().ok()?);
    let stream = TcpStream::connect(authority).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    tungstenite::client(request, stream).ok().map(|(socket, _)| socket)
}

/// None if the connection broke.
fn say(socket: &mut WebSocket<TcpStream>, Prompt { words: count, model }: &Prompt) -> Option<Told> {
    let prompt = json!({"type": "prompt", "text": words(*count), "model": model});
    socket.send(Message::text(prompt.to_string())).ok()?;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let event: Value = serde_json::from_str(&text).ok()?;
        let field = |name: &str| event[name].as_str();
        match field("type") {
            Some("turn_end") => {
                let charge = field("request_id")?.to_owned();
                return Some(Told::Ended { charge, cost: field("cost_cu")?.parse().ok()? });
            }
            Some("error" | "billing_blocked") => return Some(Told::Refused),
            _ => {}
        }
    }
}

/// What is wrong with conversations, beside what the upstream did and what the journal has of them.
pub(super) fn judge(told: &[Told], calls: &[Call], lives: &BTreeMap<String, Life>, tariff: &Tariff) -> Vec<String> {
    let call_of = |charge: &str| calls.iter().find(|call| call.request_id.as_deref() == Some(charge));
    let cost_of = |call: &Call| match call.status {
        Some(200) => call.usage.and_then(|usage| tariff.cost(usage)).unwrap_or(CreditUnit::ZERO),
        Some(_) | None => CreditUnit::ZERO,
    };
    let mut wrong = Vec::new();
    for told in told {
        let Told::Ended { charge, cost } = told else { continue };
        let charged = lives.get(charge).filter(|life| life.commits == 1).map(|life| life.charged);
        let used = call_of(charge).map(cost_of);
        if charged != Some(*cost) || used != Some(*cost) {
            wrong.push(format!("{charge}: told {cost}, charged {charged:?}, and it cost {used:?}"));
        }
    }
    for call in calls {
        if !call.request_id.as_ref().is_some_and(|id| lives.contains_key(id)) {
            wrong.push(format!("call {} of {:?} is not in the books", call.number, call.request_id));
        }
    }
    for (charge, life) in lives {
        let most = call_of(charge).map_or(CreditUnit::ZERO, cost_of);
        if (life.reserves, life.commits + life.releases) != (1, 1) || life.charged > most {
            wrong.push(format!("{charge}: {life:?}, and at most {most} was done"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Progress, Usage};
    use holdfast_domain::CreditsPerUsd;

    fn call(charge: &str, status: u16) -> Call {
        Call {
            number: 1,
            route: "/v1/chat/completions".to_owned(),
            model: MODEL.to_owned(),
            tag: None,
            request_id: Some(charge.to_owned()),
            max_tokens: None,
            stream: true,
            status: Some(status),
            behaviour: None,
            usage: Some(Usage { input: 10, cached: 0, output: 5, reasoning: 0 }),
            usage_sent: true,
            chunks_sent: 5,
            progress: Progress::Finished,
        }
    }

    #[test]
    fn a_prompt_is_right_only_if_its_end_the_upstream_and_the_journal_say_the_same() {
        let [input, output] = ["1", "2"].map(|price| price.parse().unwrap());
        let tariff = Tariff { input, output, credits_per_usd: CreditsPerUsd::DEFAULT };
        let cost = |text: &str| text.parse::<CreditUnit>().unwrap();
        let told = |text: &str| Told::Ended { charge: "inf_a".to_owned(), cost: cost(text) };
        let life =
            |commits, charged: &str| Life { reserves: 1, commits, releases: 1 - commits, charged: cost(charged) };
        let check = |told: &[Told], calls: &[Call], life: Option<Life>, wrong: usize| {
            let lives = life.map(|life| ("inf_a".to_owned(), life)).into_iter().collect();
            let found = judge(told, calls, &lives, &tariff);
            assert_eq!(found.len(), wrong, "{told:?} {calls:?} {lives:?}: {found:?}");
        };
        let called = [call("inf_a", 200)];
        check(&[told("0.002")], &called, Some(life(1, "0.002")), 0);
        check(&[told("0.003")], &called, Some(life(1, "0.002")), 1);
        check(&[told("0.002")], &called, Some(life(0, "0")), 1);
        check(&[told("0.002")], &[], Some(life(1, "0.002")), 2);
        check(&[Told::Cut], &called, None, 1);
        check(&[Told::Cut], &called, Some(life(0, "0")), 0);
        check(&[Told::Cut], &called, Some(life(1, "0.003")), 1);
        check(&[Told::Refused], &[call("inf_a", 404)], Some(life(1, "0.001")), 1);
        check(&[Told::Cut], &called, Some(Life { releases: 1, ..life(1, "0.002") }), 1);
    }
}
