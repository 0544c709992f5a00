//! Streams over a real socket: passed through, cut, and let go.

use super::server::{Act, END, STREAM, Server, chunk};
use super::*;
use holdfast_adapters::providers::{Reported, Tokens};
use std::sync::Arc;
use tokio::sync::Notify;

const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const HELLO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\r\n\r\n";
const WORLD: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" world\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn config(urls: &[&str]) -> Value {
    let provider = |url: &&str| json!({"kind": "openai", "base_url": url, "key_env": "KEY", "max_concurrent": 1, "max_waiting": 0});
    let providers: serde_json::Map<String, Value> =
        (0..).zip(urls).map(|(number, url)| (format!("p{number}"), provider(url))).collect();
    let targets: Vec<Value> = (0..urls.len())
        .map(|number| json!({"provider": format!("p{number}"), "model": "up", "priority": number}))
        .collect();
    json!({"providers": providers, "models": [{"name": "m", "targets": targets}]})
}

#[tokio::test]
async fn slow_bytes_become_the_same_pieces() {
    let events = [ROLE, HELLO, ": note\n\n", WORLD, STOP, USAGE, DONE].concat();
    let server = Server::start(vec![vec![Act::Trickle(format!("{STREAM}{}{END}", chunk(&events)))]]).await;
    let stream = stream(ask(&providers(config(&[&server.url])), chat(Delivery::Stream)).await.unwrap());
    let (pieces, error) = drained(stream).await;
    assert_eq!((bytes(&pieces), error), (events, None));
    assert_eq!(text(&pieces), "Hello world");
    // What came together is one piece, but never with what is told after the charge.
    let [.., stop, usage, last] = &pieces[..] else { panic!("three pieces at least: {pieces:?}") };
    assert!(last.last && usage.only_usage && !stop.only_usage && pieces.len() <= 7);
    assert_eq!(last.usage, Reported::Tokens(Tokens { input: 3, output: 2, ..Tokens::default() }));
    assert_eq!(server.seen()[0].body["stream_options"], json!({"include_usage": true}));
}

#[tokio::test]
async fn a_stream_that_is_cut_after_its_first_token_is_an_error_and_not_tried_elsewhere() {
    // Cut in the chunked body, and cut where the body ends properly but the answer does not.
    for end in ["", END] {
        let cut = Server::start(vec![vec![Act::Send(format!(
            "{STREAM}{}{end}",
            chunk(&[ROLE, HELLO, &WORLD[..20]].concat())
        ))]])
        .await;
        let spare =
            Server::start(vec![vec![Act::Send(format!("{STREAM}{}{END}", chunk(&[HELLO, STOP, DONE].concat())))]])
                .await;
        let stream = stream(ask(&providers(config(&[&cut.url, &spare.url])), chat(Delivery::Stream)).await.unwrap());
        let (pieces, error) = drained(stream).await;
        assert_eq!(bytes(&pieces), [ROLE, HELLO].concat());
        assert!(matches!(error, Some(ProviderError::BrokeOff { .. })), "{error:?}");
        assert_eq!(spare.seen().len(), 0);
    }
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_token_is_tried_elsewhere() {
    let error = "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}\n\n";
    for begin in [String::new(), chunk(ROLE), chunk(&[ROLE, error].concat()), END.to_owned(), chunk("data: {bad}\n\n")]
    {
        let cut = Server::start(vec![vec![Act::Send(format!("{STREAM}{begin}"))]]).await;
        let events = [ROLE, HELLO, STOP, DONE].concat();
        let spare = Server::start(vec![vec![Act::Send(format!("{STREAM}{}{END}", chunk(&events)))]]).await;
        let pool = providers(config(&[&cut.url, &spare.url])).resolve("m").unwrap();
        let answered = pool.call(chat(Delivery::Stream)).await.unwrap();
        assert_eq!((answered.provider.as_str(), answered.target, answered.attempts.len()), ("p1", 1, 1), "{begin}");
        let (pieces, error) = drained(stream(answered.reply)).await;
        assert_eq!((bytes(&pieces), error), (events, None), "nothing of the first stream is in the second");
    }
}

#[tokio::test]
async fn dropping_a_stream_drops_the_connection_and_frees_its_place() {
    let closed = Arc::new(Notify::new());
    let open = vec![Act::Send(format!("{STREAM}{}", chunk(HELLO))), Act::AwaitClose(Arc::clone(&closed))];
    let server = Server::start(vec![open]).await;
    let providers = providers(config(&[&server.url]));
    for _ in 0..3 {
        let mut stream = stream(ask(&providers, chat(Delivery::Stream)).await.unwrap());
        assert_eq!(stream.next().await.unwrap().unwrap().text, "Hello");
        let second = ask(&providers, chat(Delivery::Stream)).await.unwrap_err();
        assert_eq!(second, ProviderError::Overloaded, "one call at a time, none waits");
        drop(stream);
        closed.notified().await;
    }
}

#[tokio::test]
async fn waiting_for_a_piece_may_be_given_up_without_losing_it() {
    let server = Server::start(vec![vec![Act::Trickle(format!(
        "{STREAM}{}{END}",
        chunk(&[HELLO, WORLD, STOP, DONE].concat())
    ))]])
    .await;
    let mut stream = stream(ask(&providers(config(&[&server.url])), chat(Delivery::Stream)).await.unwrap());
    let mut heard = String::new();
    loop {
        // A poll that finds nothing is dropped, wherever it is.
        tokio::select! {
            biased;
            next = stream.next() => match next {
                Some(piece) => heard.push_str(&piece.unwrap().text),
                None => break,
            },
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(heard, "Hello world");
}
