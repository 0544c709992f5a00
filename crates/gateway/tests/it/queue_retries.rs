//! How often the queue says its word to a wallet that refuses it: again if somebody else was there at the same moment, and for
//! no other reason. The wallet is a stand-in that answers as a test says.

use crate::http_world::{Answer, read};
use crate::queue_world::{Half, SECRET, intake, refused};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the wallet says to the settlements that it is asked for, and when it was asked with which key.
#[derive(Default)]
struct Script {
    /// The codes that it refuses the next ones with; then it does it.
    refusals: Vec<(u16, &'static str)>,
    asked: Vec<(Instant, Value)>,
}

type Shared = Arc<Mutex<Script>>;

fn escrow(id: &str) -> Value {
    json!({
        "escrowId": id, "userId": "alice", "amount": "10", "featureType": "solo", "status": "held",
        "createdAt": "2026-01-01T00:00:00.000Z",
    })
}

async fn settle(State(script): State<Shared>, Path(id): Path<String>, body: String) -> (StatusCode, String) {
    let body: Value = serde_json::from_str(&body).unwrap();
    let mut script = script.lock().unwrap();
    script.asked.push((Instant::now(), body["idempotencyKey"].clone()));
    if !script.refusals.is_empty() {
        let (status, code) = script.refusals.remove(0);
        let said = json!({ "error": { "code": code, "message": "no", "details": { "state": "settled" } } });
        return (StatusCode::from_u16(status).unwrap(), said.to_string());
    }
    let mut done = escrow(&id);
    for (field, value) in [("status", "settled"), ("modelId", "mia"), ("settleAmount", "10")] {
        done[field] = json!(value);
    }
    done["queueItemId"] = body["queueItemId"].clone();
    done["reason"] = body["reason"].clone();
    done["processedAt"] = json!("2026-01-01T00:01:00.000Z");
    (StatusCode::OK, done.to_string())
}

/// A queue whose wallet is the stand-in.
struct Site {
    queue: Half,
    script: Shared,
    _runtime: tokio::runtime::Runtime,
}

impl Site {
    fn open() -> Self {
        let script = Shared::default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shown = |Path(id): Path<String>| async move { escrow(&id).to_string() };
        let app = Router::new()
            .route("/api/v1/escrows", get(|| async { r#"{"escrows":[],"next":null}"# }))
            .route("/api/v1/escrows/{id}", get(shown))
            .route("/api/v1/escrows/{id}/settle", post(settle))
            .with_state(Arc::clone(&script));
        runtime.spawn(async move { axum::serve(listener, app).await });
        let settings = [("HOLDFAST_QUEUE_WALLET_URL", url.as_str()), ("HOLDFAST_QUEUE_SECRET", SECRET)];
        let mut queue = Half::new(&["serve", "--role", "queue"], &settings);
        queue.start(None);
        Self { queue, script, _runtime: runtime }
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let url = format!("{}/api/v1/queue/{path}", self.queue.server().url());
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        read(client.post(url).bearer_auth(&self.queue.token).json(body).send().unwrap())
    }

    /// Has a new item finished by a wallet with these refusals: its id, the answer, and when the wallet was asked.
    fn finish(&self, name: &str, refusals: &[(u16, &'static str)]) -> (String, Answer, Vec<Instant>) {
        let made = self.post("items", &intake(&format!("esc_{name}")));
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.body["queueItemId"].as_str().unwrap().to_owned();
        assert_eq!(self.post(&format!("items/{id}/start"), &json!({})).status, 200);
        *self.script.lock().unwrap() = Script { refusals: refusals.to_vec(), asked: Vec::new() };
        let answer = self.post(&format!("items/{id}/finish"), &json!({}));
        let asked = std::mem::take(&mut self.script.lock().unwrap().asked);
        let key = json!(format!("queue-{id}-settle"));
        assert!(asked.iter().all(|(_, said)| *said == key), "every word has the item's key: {asked:?}");
        (id, answer, asked.into_iter().map(|(at, _)| at).collect())
    }
}

const OVERTAKEN: (u16, &str) = (409, "OPTIMISTIC_LOCK");

#[test]
fn a_word_that_another_was_faster_than_is_said_three_times_each_later_than_the_last() {
    let site = Site::open();
    let (_, done, asked) = site.finish("twice", &[OVERTAKEN; 2]);
    assert_eq!((done.status, asked.len()), (200, 3), "{done:?}");
    // A pause is never shorter than it is: 100 ms, and twice as long.
    for (pair, pause) in asked.windows(2).zip([100, 200]) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(pause), "{asked:?}");
    }
    let (id, answer, asked) = site.finish("always", &[OVERTAKEN; 3]);
    refused(&answer, 409, "OPTIMISTIC_LOCK");
    assert_eq!(asked.len(), 3);
    // Whoever asks again gets it done: nothing was, before.
    let again = site.post(&format!("items/{id}/finish"), &json!({}));
    assert_eq!((again.status, &again.body["status"]), (200, &json!("finished")));
}

#[test]
fn what_the_wallet_refuses_for_good_is_said_once_and_comes_through() {
    let site = Site::open();
    for (name, status, code) in [
        ("forged", 403, "INVALID_AUTHORIZATION"),
        ("gone", 404, "ESCROW_NOT_FOUND"),
        ("ended", 409, "ESCROW_ALREADY_PROCESSED"),
    ] {
        let (id, answer, asked) = site.finish(name, &[(status, code)]);
        refused(&answer, status, code);
        assert_eq!(asked.len(), 1, "{code}");
        let item = reqwest::blocking::Client::new()
            .get(format!("{}/api/v1/queue/items/{id}", site.queue.server().url()))
            .bearer_auth(&site.queue.token);
        assert_eq!(read(item.send().unwrap()).body["status"], "in_progress", "{code}");
    }
}
