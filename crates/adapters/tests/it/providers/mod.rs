//! Providers from outside: over real sockets against a server that does as it is told, and the echo model.

mod connections;
mod echo;
mod pools;
mod server;
mod streams;
mod wire;

use holdfast_adapters::providers::{
    Body, Call, Config, Delivery, Dialect, Headers, Piece, PieceStream, Pieces, ProviderError, Providers, Reply, Whole,
};
use holdfast_domain::Timestamp;
use serde_json::{Value, json};

/// A call as a gateway makes it.
fn call(dialect: Dialect, delivery: Delivery, body: &Value) -> Call {
    Call {
        dialect,
        body: Body::parse(body.to_string().as_bytes()).unwrap(),
        delivery,
        pieces: Pieces::Together,
        max_output_tokens: None,
        key: None,
        headers: Headers::default(),
        request_id: "r1".to_owned(),
        at: Timestamp::from_millis(1_700_000_000_000),
        deadline: None,
    }
}

fn chat(delivery: Delivery) -> Call {
    call(Dialect::ChatCompletions, delivery, &json!({"model": "x", "messages": [{"role": "user", "content": "Hi"}]}))
}

/// Providers from a configuration in JSON; every key is `sk-operator`.
fn providers(config: Value) -> Providers {
    let config: Config = serde_json::from_value(config).unwrap();
    Providers::from_config(config, |_| Some("sk-operator".to_owned())).unwrap()
}

async fn ask(providers: &Providers, call: Call) -> Result<Reply, ProviderError> {
    providers.resolve("m").unwrap().call(call).await.map(|answered| answered.reply)
}

fn whole(reply: Reply) -> Whole {
    match reply {
        Reply::Whole(whole) => whole,
        Reply::Stream(stream) => panic!("{stream:?}"),
    }
}

fn stream(reply: Reply) -> PieceStream {
    match reply {
        Reply::Stream(stream) => stream,
        Reply::Whole(whole) => panic!("{whole:?}"),
    }
}

/// All pieces, and the error that ended them.
async fn drained(mut stream: PieceStream) -> (Vec<Piece>, Option<ProviderError>) {
    let mut pieces = Vec::new();
    while let Some(next) = stream.next().await {
        match next {
            Ok(piece) => pieces.push(piece),
            Err(error) => return (pieces, Some(error)),
        }
    }
    (pieces, None)
}

fn bytes(pieces: &[Piece]) -> String {
    String::from_utf8(pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect()).unwrap()
}

fn text(pieces: &[Piece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}
