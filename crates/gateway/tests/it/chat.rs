//! Conversations over a WebSocket, by a real client of the real program.

use crate::http_world::Site;
use holdfast_domain::CreditUnit;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::Duration;
use tungstenite::client::IntoClientRequest;
use tungstenite::error::Error;
use tungstenite::handshake::client::Response;
use tungstenite::handshake::{HandshakeError, client::Request};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

pub(crate) struct Talk {
    socket: WebSocket<TcpStream>,
    response: Response,
}

/// A new API key of an account.
pub(crate) fn key_of(site: &Site, account: &str) -> (String, String) {
    let made = site.admin(Method::POST, "/api/v1/admin/keys", Some(&json!({ "account_id": account })));
    let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
    (text("api_key"), text("id"))
}

fn request(site: &Site, headers: &[(&'static str, &str)]) -> Request {
    let url = site.url("/ws/s1").replace("http://", "ws://");
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

fn try_open(site: &Site, headers: &[(&'static str, &str)]) -> Result<Talk, Box<Response>> {
    let address = site.server.url().strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match tungstenite::client(request(site, headers), stream) {
        Ok((socket, response)) => Ok(Talk { socket, response }),
        Err(HandshakeError::Failure(Error::Http(response))) => {
            let (parts, body) = (*response).into_parts();
            Err(Box::new(Response::from_parts(parts, body)))
        }
        Err(error) => unreachable!("{error:?}"),
    }
}

pub(crate) fn open(site: &Site, key: &str) -> Talk {
    try_open(site, &[("authorization", &format!("Bearer {key}"))]).map_err(|_| "refused").unwrap()
}

impl Talk {
    fn send(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).unwrap();
    }

    pub(crate) fn prompt(&mut self, text: &str) {
        self.send(&json!({ "type": "prompt", "text": text }));
    }

    /// The next event.
    fn event(&mut self) -> Value {
        loop {
            match self.socket.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other @ (Message::Binary(_) | Message::Close(_) | Message::Frame(_)) => unreachable!("{other:?}"),
            }
        }
    }

    /// The text of an answer, and its end.
    pub(crate) fn answer(&mut self) -> (String, Value) {
        let mut text = String::new();
        loop {
            let event = self.event();
            match event["type"].as_str().unwrap() {
                "text_delta" => text.push_str(event["delta"].as_str().unwrap()),
                _ => return (text, event),
            }
        }
    }
}

fn amount(value: &Value) -> CreditUnit {
    value.as_str().unwrap().parse().unwrap()
}

/// What a turn must have cost: a dollar a million tokens of input, two of output, a hundred credits to the dollar.
fn price(turn_end: &Value) -> CreditUnit {
    let count = |name: &str| turn_end["usage"][name].as_u64().unwrap();
    CreditUnit::new(count("input_tokens") * 100 + count("output_tokens") * 200).unwrap()
}

#[test]
fn a_turn_is_streamed_charged_exactly_and_remembered() {
    let site = Site::open();
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    assert_eq!(talk.response.status(), 101);
    talk.prompt("one two three");
    let (text, first) = talk.answer();
    assert_eq!((text.as_str(), &first["type"]), ("one two three", &json!("turn_end")), "{first}");
    assert!(first["request_id"].as_str().unwrap().starts_with("inf_"), "{first}");
    assert!(!amount(&first["cost_cu"]).is_zero());
    assert_eq!(amount(&first["cost_cu"]), price(&first));
    let left = "100".parse::<CreditUnit>().unwrap().checked_sub(price(&first)).unwrap();
    assert_eq!(amount(&first["balance_cu"]), left);
    assert_eq!(site.balance(), (first["balance_cu"].clone(), json!("0")));

    // The second prompt brings the first turn along, so it has more input.
    talk.prompt("four five six");
    let (text, second) = talk.answer();
    assert_eq!(text, "four five six");
    let input = |end: &Value| end["usage"]["input_tokens"].as_u64().unwrap();
    assert!(input(&second) > input(&first), "{first} {second}");
    assert_eq!(amount(&second["cost_cu"]), price(&second));
    assert_eq!(amount(&second["balance_cu"]), left.checked_sub(price(&second)).unwrap());

    // Another connection is another conversation.
    let mut other = open(&site, &key);
    other.prompt("one two three");
    assert_eq!(input(&other.answer().1), input(&first));
    let life = site.get(&format!("/api/v1/reservations/{}", first["request_id"].as_str().unwrap()));
    assert_eq!(life.body["charged_cu"], first["cost_cu"], "{life:?}");
    talk.socket.close(None).unwrap();
    site.server.stop();
}

#[test]
fn a_second_prompt_is_refused_while_one_is_answered() {
    let site = Site::open();
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    talk.prompt("[[echo delay_ms=100 words=5]]");
    talk.prompt("now");
    let mut refused = 0;
    let end = loop {
        let event = talk.event();
        match event["type"].as_str().unwrap() {
            "error" => {
                assert_eq!(event["code"], "ALREADY_ANSWERING");
                refused += 1;
            }
            "text_delta" => {}
            _ => break event,
        }
    };
    assert_eq!((&end["type"], refused), (&json!("turn_end"), 1), "{end}");
    let charges = site.world.journal().iter().filter(|entry| entry["kind"] == "billing_commit").count();
    assert_eq!(charges, 1);
    talk.prompt("again");
    assert_eq!(talk.answer().0, "again");
}

#[test]
fn what_cannot_be_understood_is_refused_and_the_conversation_goes_on() {
    let site = Site::open();
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    for (text, code) in [
        ("{", "INVALID_REQUEST"),
        ("[]", "INVALID_REQUEST"),
        (r#"{"type":"shout"}"#, "INVALID_REQUEST"),
        (r#"{"type":"prompt","text":"a","nft_id":"7"}"#, "INVALID_REQUEST"),
        (r#"{"type":"prompt","text":"a","model":"nothing-such"}"#, "INVALID_MODEL"),
        (&json!({ "type": "prompt", "text": "x".repeat(300_000) }).to_string(), "REQUEST_TOO_LARGE"),
    ] {
        talk.socket.send(Message::text(text)).unwrap();
        let event = talk.event();
        assert_eq!((&event["type"], &event["code"]), (&json!("error"), &json!(code)), "{text:.60} {event}");
        assert!(!event["message"].as_str().unwrap().is_empty());
    }
    talk.prompt("[[echo fail=503]]");
    let event = talk.event();
    assert_eq!(event["type"], "error", "{event}");
    talk.prompt("a b c [[echo break_after=2]]");
    let (text, event) = talk.answer();
    assert_eq!((text.trim(), &event["type"]), ("a b", &json!("error")), "{event}");
    assert!(event["code"].as_str().unwrap().starts_with("PROVIDER_"), "{event}");
    assert_eq!(talk.event()["type"], "turn_end", "what was delivered is charged");
    talk.prompt("still here");
    assert_eq!(talk.answer().0, "still here");
    // Longer than the network is read for: the connection ends, and others do not notice.
    let mut other = open(&site, &key);
    let _cut_off = talk.socket.send(Message::text("x".repeat(2_000_000)));
    let ended = loop {
        match talk.socket.read() {
            Ok(Message::Close(frame)) => break frame.is_none_or(|frame| frame.code == CloseCode::Size),
            Ok(_) => {}
            Err(_) => break true,
        }
    };
    assert!(ended);
    other.prompt("hello");
    assert_eq!(other.answer().0, "hello");
}

#[test]
fn without_money_a_prompt_is_blocked_with_the_figures_and_a_low_balance_is_told_once() {
    let site = Site::with_settings(&[("HOLDFAST_CREDITS_LOW_CU", "1000")]);
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    talk.prompt("a");
    let end = talk.answer().1;
    let warning = talk.event();
    assert_eq!(warning, json!({ "type": "credit_warning", "balance_cu": end["balance_cu"], "threshold_cu": "1000" }));
    talk.prompt("b");
    assert_eq!(talk.answer().1["type"], "turn_end");
    talk.prompt("c");
    assert_eq!(talk.event()["type"], "text_delta", "the warning does not come twice");

    site.world.ok(&["mint", "bob", "0.01", "--reason", "test", "--key", "bob"]);
    let mut poor = open(&site, &key_of(&site, "bob").0);
    poor.prompt("hello");
    let event = poor.event();
    assert_eq!((&event["type"], &event["reason"]), (&json!("billing_blocked"), &json!("INSUFFICIENT_BALANCE")));
    assert_eq!(event["available_cu"], "0.01", "{event}");
    let figures = ["required_cu", "deficit_cu"].map(|name| amount(&event[name]));
    assert_eq!(figures[0].checked_sub("0.01".parse().unwrap()).unwrap(), figures[1]);
    assert!(event["max_affordable_output_tokens"].is_u64(), "{event}");
    site.world.ok(&["mint", "bob", "10", "--reason", "test", "--key", "bob-2"]);
    poor.prompt("hello");
    assert_eq!(poor.answer().0, "hello", "and it goes on when there is money");
}

#[test]
fn only_a_good_key_opens_a_conversation_and_none_is_sent_back() {
    let site = Site::open();
    let (key, id) = key_of(&site, "alice");
    let in_protocol = format!("holdfast, holdfast.key.{key}");
    let talk = try_open(&site, &[("sec-websocket-protocol", &in_protocol)]);
    let mut talk = talk.map_err(|_| "refused").unwrap();
    assert_eq!(talk.response.headers()["sec-websocket-protocol"], "holdfast");
    assert!(!format!("{:?}", talk.response).contains(&key[8..]));
    talk.prompt("hello");
    assert_eq!(talk.answer().0, "hello");
    assert!(try_open(&site, &[("x-api-key", &key)]).is_ok());

    let wrong = format!("hf_live_{}", "0".repeat(key.len() - 8));
    let bearer = |token: &str| format!("Bearer {token}");
    let cases: [(&[(&'static str, &str)], u16); 7] = [
        (&[], 401),
        (&[("authorization", &bearer(&wrong))], 401),
        (&[("authorization", &bearer(&site.admin))], 401),
        (&[("authorization", &bearer(&key)), ("x-api-key", &key)], 401),
        (&[("authorization", &bearer(&key)), ("sec-websocket-protocol", &in_protocol)], 401),
        (&[("sec-websocket-protocol", &format!("holdfast, holdfast.key.{wrong}"))], 401),
        (&[("sec-websocket-protocol", &format!("holdfast.key.{key}"))], 400),
    ];
    for (headers, status) in cases {
        let refused = try_open(&site, headers).err().unwrap();
        assert_eq!(refused.status(), status, "{headers:?}");
        assert!(refused.headers().get("sec-websocket-protocol").is_none());
    }
    let plain = site.send(site.bare(Method::GET, "/ws/s1").bearer_auth(&key));
    assert_eq!((plain.status, plain.code()), (400, "INVALID_REQUEST"));

    site.admin(Method::DELETE, &format!("/api/v1/admin/keys/{id}"), None);
    talk.prompt("hello");
    assert_eq!(talk.event()["code"], "AUTH_KEY_REVOKED", "an open conversation ends with its key");
}

#[test]
fn who_leaves_in_the_middle_is_charged_once() {
    let site = Site::open();
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    talk.prompt("[[echo delay_ms=20 words=10]]");
    assert_eq!(talk.event()["type"], "text_delta");
    drop(talk);
    // The answer that is still coming is waited for when the server stops.
    site.server.stop();
    let journal = site.world.journal();
    let kinds: Vec<_> = journal.iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["credit_mint", "billing_reserve", "billing_commit"]);
    let whole: CreditUnit = amount(&journal[2]["charged_cu"]);
    assert!(whole.units() >= 10 * 200, "all ten words are charged: {whole}");
}

#[test]
fn a_flood_of_messages_is_held_back_and_a_stop_says_goodbye() {
    let site = Site::with_settings(&[("HOLDFAST_CHAT_RATE", "1")]);
    let (key, _) = key_of(&site, "alice");
    let mut talk = open(&site, &key);
    for _ in 0..4 {
        talk.send(&json!({}));
    }
    let codes: Vec<_> = (0..4).map(|_| talk.event()["code"].clone()).collect();
    assert_eq!(codes[..2], [json!("INVALID_REQUEST"), json!("INVALID_REQUEST")]);
    assert_eq!(codes[3], "RATE_LIMITED", "{codes:?}");

    site.server.signal(Signal::TERM);
    let closed = loop {
        match talk.socket.read().unwrap() {
            Message::Close(frame) => break frame.unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other @ (Message::Text(_) | Message::Binary(_) | Message::Frame(_)) => unreachable!("{other:?}"),
        }
    };
    assert_eq!(closed.code, CloseCode::Away);
    let _answered = talk.socket.flush();
    let (status, said) = site.server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}
