//! One request: who asks, what for, what the script says, and the answer.

use super::answer::{Answer, Extra, Usage};
use super::body::{Cut, Guard, Out, ReplyBody};
use super::calls::{Call, Progress};
use super::request::{Asked, Embed};
use super::script::{Behaviour, Line};
use super::wire::{Api, Carries, Event, Manner, Reply, Told, error};
use super::{FIXED_MODEL, State, embeddings, fixed};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

type Answered = Response<ReplyBody>;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

pub(super) async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Answered, Infallible> {
    let (head, body) = request.into_parts();
    // A client that is gone before it has sent its body gets an answer that nobody reads.
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let path = head.uri.path();
    if let Some(number) = path.strip_prefix("/__calls/").and_then(|number| number.parse().ok()) {
        let call = serde_json::to_value(state.register.ended(number).await);
        return Ok(whole(StatusCode::OK, &call.unwrap_or_default()));
    }
    if path.starts_with("/__") {
        return Ok(control(&state, &head.method, path, &body));
    }
    let manner = if head.headers.contains_key("anthropic-version") { Manner::Anthropic } else { Manner::OpenAi };
    if !is_let_in(&state, &head.headers) {
        return Ok(failure(manner, StatusCode::UNAUTHORIZED, "Incorrect API key provided."));
    }
    let answered = match (&head.method, path) {
        (&Method::GET, "/v1/models") => whole(
            StatusCode::OK,
            &match manner {
                Manner::OpenAi => embeddings::openai_models(),
                Manner::Anthropic => embeddings::anthropic_models(),
            },
        ),
        (&Method::POST, "/v1/embeddings") => match Embed::read(&body) {
            Ok(asked) => embed(&state, &head.headers, &asked).await,
            Err(wrong) => failure(manner, StatusCode::BAD_REQUEST, &wrong.to_string()),
        },
        (&Method::POST, path) => match Api::of(path).map(|api| (api, Asked::read(&body))) {
            Some((api, Ok(asked))) => {
                let manner = if api == Api::Messages { Manner::Anthropic } else { Manner::OpenAi };
                model(&state, &head.headers, Kind { api, manner, path }, &asked).await
            }
            Some((_, Err(wrong))) => failure(manner, StatusCode::BAD_REQUEST, &wrong.to_string()),
            None => failure(manner, StatusCode::NOT_FOUND, "no such route"),
        },
        _ => failure(manner, StatusCode::NOT_FOUND, "no such route"),
    };
    Ok(answered)
}

fn is_let_in(state: &State, headers: &HeaderMap) -> bool {
    let Some(key) = &state.options.api_key else { return true };
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer == Some(key) || plain == Some(key)
}

/// The routes of the test itself.
fn control(state: &State, method: &Method, path: &str, body: &[u8]) -> Answered {
    let script = || state.script.lock().unwrap_or_else(PoisonError::into_inner);
    match (method, path) {
        (&Method::GET, "/__calls") => {
            let calls = serde_json::to_value(state.register.all());
            return whole(StatusCode::OK, &calls.unwrap_or_default());
        }
        (&Method::DELETE, "/__calls") => state.register.forget(),
        (&Method::POST, "/__script") => match serde_json::from_slice::<Vec<Line>>(body) {
            Ok(lines) => script().append(lines),
            Err(wrong) => return failure(Manner::OpenAi, StatusCode::BAD_REQUEST, &wrong.to_string()),
        },
        (&Method::DELETE, "/__script") => script().clear(),
        (&Method::POST, "/__open") => state.gate.send_modify(|opened| *opened += 1),
        _ => return failure(Manner::OpenAi, StatusCode::NOT_FOUND, "no such route"),
    }
    whole(StatusCode::OK, &json!({"ok": true}))
}

/// Which API, how it tells errors, and where.
struct Kind<'a> {
    api: Api,
    manner: Manner,
    path: &'a str,
}

async fn model(state: &Arc<State>, headers: &HeaderMap, kind: Kind<'_>, asked: &Asked) -> Answered {
    let Kind { api, manner, path } = kind;
    let behaviour = take(state, asked.tag.as_deref());
    let (told, extra) = usage_of(behaviour.as_ref());
    let is_fixed = asked.model == FIXED_MODEL;
    let answer = if is_fixed { fixed::answer() } else { Answer::to(asked, extra) };
    let mut gate = state.gate.subscribe();
    let number = state.register.add(|number| Call {
        number,
        route: path.to_owned(),
        model: asked.model.clone(),
        tag: asked.tag.clone(),
        request_id: request_id(headers),
        max_tokens: asked.max_tokens,
        stream: asked.is_stream,
        status: None,
        behaviour: behaviour.clone(),
        usage: Some(answer.usage),
        usage_sent: false,
        chunks_sent: 0,
        progress: Progress::Running,
    });
    let guard = Guard::new(Arc::clone(state), number);
    if let Some(refused) = refusal(behaviour.as_ref(), manner, &asked.model) {
        return refuse(refused, guard);
    }
    wait(behaviour.as_ref(), &mut gate).await;
    let reply = Reply { number, model: &asked.model, answer: &answer, told: &told, wants_usage: asked.wants_usage };
    let mut out = match (is_fixed && behaviour.is_none(), asked.is_stream) {
        (true, true) => Out::stream(state.fixed.events(api, asked)),
        (true, false) => Out::known(state.fixed.events(api, asked)),
        (false, true) => Out::stream(api.events(&reply).into()),
        (false, false) => Out::whole(api.whole(&reply)),
    };
    out.usage_is_true = told == Told::Truth;
    if asked.is_stream {
        out.delay = state.options.chunk_delay;
    }
    if let Some(Behaviour::Gate { after_chunks: Some(after_chunks) }) = behaviour {
        // The sender lives as long as the server.
        let opened = async move { gate.changed().await.unwrap_or(()) };
        out.gate = Some((after_chunks, Box::pin(opened)));
    }
    let content_type = if asked.is_stream { EVENTS } else { JSON };
    answered(behaviour.as_ref(), out, content_type, guard)
}

async fn embed(state: &Arc<State>, headers: &HeaderMap, asked: &Embed) -> Answered {
    let behaviour = take(state, asked.tag.as_deref());
    let (told, _) = usage_of(behaviour.as_ref());
    let input = embeddings::input_tokens(asked);
    let usage = Usage { input, cached: 0, output: 0, reasoning: 0 };
    let mut gate = state.gate.subscribe();
    let number = state.register.add(|number| Call {
        number,
        route: "/v1/embeddings".to_owned(),
        model: asked.model.clone(),
        tag: asked.tag.clone(),
        request_id: request_id(headers),
        max_tokens: None,
        stream: false,
        status: None,
        behaviour: behaviour.clone(),
        usage: Some(usage),
        usage_sent: false,
        chunks_sent: 0,
        progress: Progress::Running,
    });
    let guard = Guard::new(Arc::clone(state), number);
    if let Some(refused) = refusal(behaviour.as_ref(), Manner::OpenAi, &asked.model) {
        return refuse(refused, guard);
    }
    wait(behaviour.as_ref(), &mut gate).await;
    // Only its shape matters to the one that is replaced or spoilt.
    let answer = Answer { usage, ..fixed::answer() };
    let reply = Reply { number, model: &asked.model, answer: &answer, told: &told, wants_usage: true };
    let shown = reply.usage(|usage| embeddings::usage(usage.input));
    let mut out = Out::whole(embeddings::embeddings(asked, shown).to_string().into());
    out.usage_is_true = told == Told::Truth;
    answered(behaviour.as_ref(), out, JSON, guard)
}

fn take(state: &State, tag: Option<&str>) -> Option<Behaviour> {
    state.script.lock().unwrap_or_else(PoisonError::into_inner).take(tag)
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let names = ["x-holdfast-request-id", "x-client-request-id", "x-request-id", "idempotency-key"];
    names.iter().find_map(|name| Some(headers.get(*name)?.to_str().ok()?.to_owned()))
}

fn usage_of(behaviour: Option<&Behaviour>) -> (Told, Extra) {
    match behaviour {
        Some(Behaviour::NoUsage) => (Told::Nothing, Extra::default()),
        Some(Behaviour::Usage { usage }) => (Told::Instead(usage.clone()), Extra::default()),
        Some(Behaviour::NonsenseUsage { kind }) => (Told::Spoilt(*kind), Extra::default()),
        Some(Behaviour::Answer { cached_tokens, reasoning_tokens, .. }) => {
            (Told::Truth, Extra { cached: *cached_tokens, reasoning: *reasoning_tokens })
        }
        Some(_) | None => (Told::Truth, Extra::default()),
    }
}

/// What is waited for before the status line.
async fn wait(behaviour: Option<&Behaviour>, gate: &mut tokio::sync::watch::Receiver<u64>) {
    match behaviour {
        // The client's end drops us.
        Some(Behaviour::Hang { after_chunks: None }) => std::future::pending().await,
        Some(Behaviour::Gate { after_chunks: None }) => {
            // The sender lives as long as the server.
            let _opened = gate.changed().await;
        }
        Some(Behaviour::Answer { first_delay_ms, .. }) if *first_delay_ms > 0 => {
            tokio::time::sleep(Duration::from_millis(*first_delay_ms)).await;
        }
        Some(_) | None => {}
    }
}

/// An answer that is no answer of a model.
struct Refusal {
    status: StatusCode,
    body: Bytes,
    header: Option<(hyper::header::HeaderName, String)>,
}

fn refusal(behaviour: Option<&Behaviour>, manner: Manner, model: &str) -> Option<Refusal> {
    let told = |status: StatusCode, message: &str| Refusal {
        status,
        body: error(manner, status.as_u16(), message).to_string().into(),
        header: None,
    };
    match behaviour {
        Some(Behaviour::Status { status, retry_after_s }) => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let header = retry_after_s.map(|seconds| (RETRY_AFTER, seconds.to_string()));
            Some(Refusal { header, ..told(status, "the script says so") })
        }
        Some(Behaviour::Redirect { location }) => {
            let header = Some((LOCATION, location.clone()));
            Some(Refusal { status: StatusCode::TEMPORARY_REDIRECT, body: Bytes::new(), header })
        }
        Some(Behaviour::Garbage) => {
            let body = Bytes::from_static(b"{\"id\": \xff\xfe garbage, not json");
            Some(Refusal { status: StatusCode::OK, body, header: None })
        }
        _ if model.starts_with("no-such") => {
            Some(told(StatusCode::NOT_FOUND, &format!("The model `{model}` does not exist")))
        }
        Some(_) | None => None,
    }
}

/// Nothing was used.
fn refuse(refusal: Refusal, guard: Guard) -> Answered {
    guard.state.register.note(guard.number, |call| {
        call.usage = None;
        call.status = Some(refusal.status.as_u16());
    });
    let mut out = Out::whole(refusal.body);
    out.usage_is_true = false;
    let mut response = respond(refusal.status, JSON, ReplyBody::new(out, Some(guard)));
    let header = refusal.header.and_then(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)));
    response.headers_mut().extend(header);
    response
}

/// The answer with what the script does to it on its way.
fn answered(behaviour: Option<&Behaviour>, mut out: Out, content_type: &str, guard: Guard) -> Answered {
    let is_whole = out.length.is_some();
    let mut content_type = content_type;
    match behaviour {
        Some(Behaviour::BreakOff { after_chunks }) => out = cut(out, *after_chunks, Cut::Break),
        Some(Behaviour::Hang { after_chunks: Some(after_chunks) }) => out = cut(out, *after_chunks, Cut::Hang),
        Some(Behaviour::SlowBytes { bytes, delay_ms }) => {
            out = out.slowly(*bytes, Duration::from_millis(*delay_ms));
        }
        Some(Behaviour::ContentType { value }) => content_type = value,
        Some(Behaviour::Huge { bytes }) => out = padded(out, *bytes),
        Some(Behaviour::Answer { chunk_delay_ms, .. }) if !is_whole && *chunk_delay_ms > 0 => {
            out.delay = Duration::from_millis(*chunk_delay_ms);
        }
        Some(_) | None => {}
    }
    guard.state.register.note(guard.number, |call| call.status = Some(StatusCode::OK.as_u16()));
    respond(StatusCode::OK, content_type, ReplyBody::new(out, Some(guard)))
}

/// A whole answer is cut in its middle, however many chunks are said.
fn cut(out: Out, after_chunks: usize, cut: Cut) -> Out {
    let Some(length) = out.length else { return Out { cut: Some((after_chunks, cut)), ..out } };
    let bytes: Bytes = out.events.iter().flat_map(|event| event.bytes.clone()).collect();
    let half = Event { bytes: bytes.slice(..bytes.len() / 2), carries: Carries::Piece };
    Out { length: Some(length), cut: Some((1, cut)), ..Out::known(Arc::new([half])) }
}

/// White space before a whole answer, comments before a stream.
fn padded(out: Out, bytes: usize) -> Out {
    let is_stream = out.length.is_none();
    let padding: Bytes = if is_stream {
        [b": ".as_slice(), &vec![b'x'; bytes], b"\n\n"].concat().into()
    } else {
        vec![b' '; bytes].into()
    };
    let length = out.length.map(|length| length + padding.len() as u64);
    let padding = Event { bytes: padding, carries: Carries::Nothing };
    let events = std::iter::once(padding).chain(out.events.iter().cloned()).collect();
    Out { events, length, ..out }
}

fn respond(status: StatusCode, content_type: &str, body: ReplyBody) -> Answered {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_str(content_type).unwrap_or_else(|_| HeaderValue::from_static(JSON));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn whole(status: StatusCode, value: &Value) -> Answered {
    respond(status, JSON, ReplyBody::new(Out::whole(value.to_string().into()), None))
}

fn failure(manner: Manner, status: StatusCode, message: &str) -> Answered {
    whole(status, &error(manner, status.as_u16(), message))
}
