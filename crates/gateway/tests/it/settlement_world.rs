//! A peer of a world's server: a real HTTP server that answers as a test says, and a book of what it was told.

use crate::world::{Client, Server, World};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the peer was told once.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) body: Value,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
}

impl Told {
    pub(crate) fn id(&self) -> &str {
        self.body["reservation_id"].as_str().unwrap()
    }
}

type Answers = dyn Fn(&Told, usize) -> Response + Send + Sync;

struct Book {
    told: Mutex<Vec<Told>>,
    more: Condvar,
    /// What to answer, by what was told and how often that was told before.
    answers: Box<Answers>,
}

/// A peer that listens.
pub(crate) struct Peer {
    pub(crate) url: String,
    book: Arc<Book>,
    _runtime: tokio::runtime::Runtime,
}

/// An answer with this status and nothing else.
pub(crate) fn status(code: u16) -> Response {
    let mut response = Response::new(axum::body::Body::empty());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

async fn finalize(State(book): State<Arc<Book>>, headers: HeaderMap, body: String) -> Response {
    let told = Told { body: serde_json::from_str(&body).unwrap(), headers, at: Instant::now() };
    let mut all = book.told.lock().unwrap();
    let before = all.iter().filter(|earlier| earlier.id() == told.id()).count();
    all.push(told.clone());
    drop(all);
    book.more.notify_all();
    (book.answers)(&told, before)
}

impl Peer {
    /// A peer that answers 200, and 409 to what it knows.
    pub(crate) fn good() -> Self {
        Self::answering(|_, before| status(if before == 0 { 200 } else { 409 }))
    }

    pub(crate) fn answering(answers: impl Fn(&Told, usize) -> Response + Send + Sync + 'static) -> Self {
        let book = Arc::new(Book { told: Mutex::default(), more: Condvar::new(), answers: Box::new(answers) });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().route("/api/internal/finalize", post(finalize)).with_state(Arc::clone(&book));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { url, book, _runtime: runtime }
    }

    /// All that it was told, once it was told so often.
    pub(crate) fn told(&self, times: usize) -> Vec<Told> {
        let told = self.book.told.lock().unwrap();
        let waited = self.book.more.wait_timeout_while(told, PATIENCE, |told| told.len() < times).unwrap();
        assert!(!waited.1.timed_out(), "the peer was told {} times, and not {times}", waited.0.len());
        waited.0.clone()
    }
}

/// A server of `world` that settles with `peer`, and does not wait long between attempts.
pub(crate) fn serve(world: &World, peer: &str, settings: &[(&str, &str)]) -> Server {
    let mut command = world.command(&["serve"]);
    command.env("HOLDFAST_PEER_URL", peer).env("HOLDFAST_PEER_RETRY_QUICK_MS", "20,20,20");
    command.env("HOLDFAST_PEER_RETRY_SLOW_MS", "20").envs(settings.iter().copied());
    world.serve_with(command)
}

/// Reserves 5 credits of alice's and charges 2.5 of them.
pub(crate) fn charge(client: &mut Client, id: &str) {
    client.ok(json!({ "op": "reserve", "account_id": "alice", "request_id": id, "amount_cu": "5" }));
    client.ok(json!({ "op": "commit", "id": id, "actual_cu": "2.5" }));
}

/// The state of a charge.
pub(crate) fn state(client: &mut Client, id: &str) -> String {
    client.ok(json!({ "op": "reservation", "id": id }))["state"].as_str().unwrap().to_owned()
}

/// Waits until a charge is in a state: the peer's word is written a moment after it is given.
pub(crate) fn becomes(client: &mut Client, id: &str, expected: &str) {
    until(|| state(client, id), |state| state == expected);
}

/// Waits until something is as expected, and shows what it is if that does not come.
pub(crate) fn until<T: std::fmt::Debug>(mut look: impl FnMut() -> T, expected: impl Fn(&T) -> bool) -> T {
    let since = Instant::now();
    loop {
        let seen = look();
        if expected(&seen) {
            return seen;
        }
        assert!(since.elapsed() < PATIENCE, "it stays {seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The billing part of a server's health.
pub(crate) fn billing(server: &Server) -> Value {
    let answer = reqwest::blocking::get(format!("{}/health", server.url())).unwrap();
    answer.json::<Value>().unwrap()["billing"].clone()
}
