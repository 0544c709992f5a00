//! Connections over plain HTTP: used again where that is safe, and no request is sent twice.

use super::server::{Act, END, Server, chunk};
use super::*;
use std::time::Duration;

const SAID: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#;
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const HELLO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A whole answer after which the connection may stay open.
fn whole_answer() -> Act {
    let length = SAID.len();
    Act::Send(format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{SAID}"))
}

fn streamed(end: &str) -> Act {
    Act::Send(format!("{STREAM}{}{end}", chunk(&[HELLO, DONE].concat())))
}

fn one(server: &Server) -> Providers {
    providers(json!({
        "providers": {"p": {"kind": "openai", "base_url": server.url, "key_env": "KEY"}},
        "models": [{"name": "m", "targets": [{"provider": "p", "model": "up"}]}]
    }))
}

/// On which connection each request came.
fn connections(server: &Server) -> Vec<usize> {
    server.seen().iter().map(|seen| seen.connection).collect()
}

/// Long enough for what the other side did to its end of a connection to be known here.
async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn an_answer_that_was_read_to_its_end_leaves_its_connection_to_the_next_request() {
    let (first, second) = (vec![whole_answer(), Act::StayOpen], vec![streamed(END), Act::StayOpen]);
    let server = Server::start(vec![first.clone(), second, first]).await;
    let providers = one(&server);
    assert_eq!(whole(ask(&providers, chat(Delivery::Whole)).await.unwrap()).body, SAID.as_bytes());
    let (pieces, error) = drained(stream(ask(&providers, chat(Delivery::Stream)).await.unwrap())).await;
    assert_eq!((text(&pieces).as_str(), error), ("Hello", None));
    a_moment().await;
    assert_eq!(whole(ask(&providers, chat(Delivery::Whole)).await.unwrap()).body, SAID.as_bytes());
    assert_eq!(connections(&server), [0, 0, 0]);
}

#[tokio::test]
async fn a_stream_whose_last_word_has_come_but_never_its_end_does_not_keep_the_next_request_waiting() {
    let server = Server::start(vec![vec![streamed(""), Act::StayOpen], vec![whole_answer(), Act::StayOpen]]).await;
    let providers = one(&server);
    let (pieces, error) = drained(stream(ask(&providers, chat(Delivery::Stream)).await.unwrap())).await;
    assert_eq!((text(&pieces).as_str(), error), ("Hello", None));
    assert_eq!(whole(ask(&providers, chat(Delivery::Whole)).await.unwrap()).body, SAID.as_bytes());
    assert_eq!(connections(&server), [0, 1], "what is not at its end is not used again");
}

#[tokio::test]
async fn a_connection_that_was_closed_while_nobody_used_it_is_not_used_again() {
    let server = Server::start(vec![vec![whole_answer()]]).await;
    let providers = one(&server);
    for _ in 0..3 {
        assert_eq!(whole(ask(&providers, chat(Delivery::Whole)).await.unwrap()).body, SAID.as_bytes());
        a_moment().await;
    }
    assert_eq!(connections(&server), [0, 1, 2]);
}

#[tokio::test]
async fn a_request_that_may_have_been_read_is_not_sent_again() {
    // The second comes on a connection that was good for the first, and is read; then the connection is closed.
    let server = Server::start(vec![vec![whole_answer(), Act::StayOpen], vec![], vec![whole_answer()]]).await;
    let providers = one(&server);
    assert_eq!(whole(ask(&providers, chat(Delivery::Whole)).await.unwrap()).body, SAID.as_bytes());
    a_moment().await;
    let lost = ask(&providers, chat(Delivery::Whole)).await.unwrap_err();
    assert!(matches!(lost, ProviderError::Unavailable { .. }), "{lost:?}");
    assert_eq!(connections(&server), [0, 0]);
}
