//! The upstream over the network: that it misbehaves exactly as it is told, and says afterwards what it did.

use holdfast_simulator::outside::OutsideError;
use holdfast_simulator::outside::hangups::calls;
use holdfast_simulator::outside::wire::{Answer, Client};
use holdfast_simulator::upstream::{Call, FIXED_MODEL, Options, Progress, Running};
use serde_json::{Value, json};
use std::future::Future;
use tokio::runtime::Builder;

struct World {
    upstream: Running,
    client: Client,
}

impl World {
    async fn with(options: Options) -> Self {
        let upstream = Running::start(options).await.unwrap();
        let client = Client::new(&upstream.url);
        Self { upstream, client }
    }

    async fn script(&mut self, lines: Value) {
        let answer = self.client.send("POST", "/__script", &[], &lines.to_string()).await.unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.json());
    }

    async fn ask(&mut self, stream: bool) -> Result<Answer, OutsideError> {
        self.ask_model("mock", stream).await
    }

    async fn ask_model(&mut self, model: &str, stream: bool) -> Result<Answer, OutsideError> {
        let messages = json!([{"role": "user", "content": "one two three four"}]);
        let options = json!({"include_usage": true});
        let body = json!({"model": model, "messages": messages, "stream": stream, "stream_options": options});
        self.client.send("POST", "/v1/chat/completions", &[], &body.to_string()).await
    }

    async fn last_call(&self) -> Call {
        let mut client = Client::new(&self.upstream.url);
        calls(&mut client).await.unwrap().calls.pop().unwrap()
    }
}

fn play<F: Future<Output = ()>>(story: impl FnOnce(World) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { story(World::with(Options::for_test()).await).await });
}

#[test]
fn an_answer_is_remembered_with_its_usage_whole_and_streamed() {
    play(|mut world| async move {
        for stream in [false, true] {
            let answer = world.ask(stream).await.unwrap();
            assert_eq!(answer.status, 200);
            let call = world.last_call().await;
            assert_eq!((call.progress, call.usage_sent, call.stream), (Progress::Finished, true, stream));
            assert_eq!(call.usage.map(|usage| (usage.input, usage.output)), Some((4, 4)));
        }
    });
}

#[test]
fn an_error_comes_as_often_as_it_was_scripted_and_uses_nothing() {
    play(|mut world| async move {
        world.script(json!([{"do": "status", "status": 429, "retry_after_s": 7, "times": 2}])).await;
        for _ in 0..2 {
            let answer = world.ask(false).await.unwrap();
            assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
            assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
            assert_eq!(world.last_call().await.usage, None);
        }
        assert_eq!(world.ask(false).await.unwrap().status, 200);
    });
}

#[test]
fn a_stream_breaks_off_after_so_many_chunks_and_its_usage_is_not_sent() {
    play(|mut world| async move {
        for (stream, chunks) in [(true, 2), (false, 1)] {
            world.script(json!([{"do": "break_off", "after_chunks": 2}])).await;
            assert!(world.ask(stream).await.is_err(), "the answer looked whole");
            let call = world.last_call().await;
            assert_eq!(call.progress, Progress::BrokenOff);
            assert_eq!((call.chunks_sent, call.usage_sent), (chunks, false));
        }
    });
}

#[test]
fn a_call_that_hangs_is_noted_as_hung_up_once_its_client_is_gone() {
    play(|mut world| async move {
        for (number, line) in (1..).zip([json!({"do": "hang"}), json!({"do": "hang", "after_chunks": 1})]) {
            world.script(json!([line])).await;
            let url = world.upstream.url.clone();
            let asked = tokio::spawn(async move {
                let body = json!({"model": "mock", "messages": [{"role": "user", "content": "a b c"}], "stream": true});
                Client::new(&url).send("POST", "/v1/chat/completions", &[], &body.to_string()).await.map(drop)
            });
            while calls(&mut world.client).await.unwrap().calls.len() < number {
                tokio::task::yield_now().await;
            }
            asked.abort();
            while world.last_call().await.progress == Progress::Running {
                tokio::task::yield_now().await;
            }
            assert_eq!(world.last_call().await.progress, Progress::HungUp);
        }
    });
}

#[test]
fn a_gate_holds_calls_until_it_is_opened() {
    play(|mut world| async move {
        world.script(json!([{"do": "gate"}])).await;
        let mut other = Client::new(&world.upstream.url);
        let opening = async {
            while calls(&mut other).await.unwrap().calls.is_empty() {
                tokio::task::yield_now().await;
            }
            let waiting = calls(&mut other).await.unwrap().calls.pop().unwrap();
            assert_eq!((waiting.progress, waiting.status), (Progress::Running, None));
            other.send("POST", "/__open", &[], "").await.unwrap();
        };
        let (answer, ()) = tokio::join!(world.ask(false), opening);
        assert_eq!(answer.unwrap().status, 200);
    });
}

#[test]
fn a_gate_in_the_middle_holds_a_stream_and_its_end_can_be_waited_for() {
    play(|mut world| async move {
        world.script(json!([{"do": "gate", "after_chunks": 2}])).await;
        let mut other = Client::new(&world.upstream.url);
        let opening = async {
            let mut waiting = calls(&mut other).await.unwrap().calls;
            while waiting.first().is_none_or(|call| call.chunks_sent < 2) {
                tokio::task::yield_now().await;
                waiting = calls(&mut other).await.unwrap().calls;
            }
            assert_eq!((waiting[0].progress, waiting[0].chunks_sent), (Progress::Running, 2));
            other.send("POST", "/__open", &[], "").await.unwrap();
            let ended = other.send("GET", "/__calls/1", &[], "").await.unwrap().json();
            assert_eq!((&ended["progress"], &ended["chunks_sent"]), (&json!("finished"), &json!(4)));
        };
        let (answer, ()) = tokio::join!(world.ask(true), opening);
        assert_eq!(answer.unwrap().status, 200);
    });
}

#[test]
fn answers_come_wrong_in_every_other_way_that_is_scripted() {
    play(|mut world| async move {
        world.script(json!([{"do": "content_type", "value": "text/html"}])).await;
        assert_eq!(world.ask(false).await.unwrap().header("content-type"), Some("text/html"));
        world.script(json!([{"do": "redirect", "location": "http://elsewhere/"}])).await;
        let answer = world.ask(false).await.unwrap();
        assert_eq!((answer.status, answer.header("location")), (307, Some("http://elsewhere/")));
        world.script(json!([{"do": "garbage"}])).await;
        let answer = world.ask(false).await.unwrap();
        assert_eq!((answer.status, answer.json()), (200, Value::Null));
        world.script(json!([{"do": "huge", "bytes": 100_000, "times": 2}])).await;
        for stream in [false, true] {
            assert!(world.ask(stream).await.unwrap().body.len() > 100_000);
        }
        world.script(json!([{"do": "slow_bytes", "bytes": 40, "delay_ms": 1, "times": 2}])).await;
        for stream in [false, true] {
            let slow = world.ask(stream).await.unwrap();
            assert_eq!(slow.body.len(), world.ask(stream).await.unwrap().body.len());
        }
        world.script(json!([{"do": "no_usage"}, {"do": "usage", "usage": {"prompt_tokens": "many"}}])).await;
        assert_eq!(world.ask(false).await.unwrap().json()["usage"], Value::Null);
        assert!(!world.last_call().await.usage_sent);
        assert_eq!(world.ask(false).await.unwrap().json()["usage"]["prompt_tokens"], "many");
        assert!(!world.last_call().await.usage_sent);
    });
}

#[test]
fn a_key_is_asked_for_in_the_manner_of_each_api() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::with(Options { api_key: Some("secret".to_owned()), ..Options::for_test() }).await;
        assert_eq!(world.ask(false).await.unwrap().json()["error"]["code"], "invalid_api_key");
        let anthropic = [("anthropic-version", "2023-06-01"), ("x-api-key", "wrong")];
        let answer = world.client.send("GET", "/v1/models", &anthropic, "").await.unwrap();
        assert_eq!((answer.status, &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
        for right in [("authorization", "Bearer secret"), ("x-api-key", "secret")] {
            assert_eq!(world.client.send("GET", "/v1/models", &[right], "").await.unwrap().status, 200);
        }
    });
}

#[test]
fn the_fixed_model_answers_the_same_every_time() {
    play(|mut world| async move {
        for stream in [false, true] {
            let first = world.ask_model(FIXED_MODEL, stream).await.unwrap();
            let second = world.ask_model(FIXED_MODEL, stream).await.unwrap();
            assert_eq!(first.body, second.body);
            let text = String::from_utf8(first.body.to_vec()).unwrap();
            assert!(text.contains("word-01") && text.contains("word-20") && text.contains("usage"), "{text}");
        }
        assert_eq!(world.ask_model("no-such-model", false).await.unwrap().json()["error"]["code"], "model_not_found");
    });
}
