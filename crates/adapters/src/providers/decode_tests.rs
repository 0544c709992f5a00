//! Streams as the providers document them, decoded whole and cut at every byte.

use super::*;
use crate::providers::translate::About;
use crate::providers::usage::{Reported, Tokens};
use proptest::prelude::*;
use serde_json::Value;

const CHAT: &str = concat!(
    "data: {\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\"created\":1694268190,\"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
    ": keep-alive\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hell\\u00f6\"},\"finish_reason\":null}]}\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_abc\",\"type\":\"function\",\"function\":{\"name\":\"weather\",\"arguments\":\"\"}}]}}]}\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"city\\\":\"}}]}}]}\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"Bern\\\"}\"}}]}}]}\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":null}\n\n",
    "data: {\"id\":\"chatcmpl-123\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29,\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":3}}}\n\n",
    "data: [DONE]\n\n",
);

const MESSAGES: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_014p7gG3wDgGV9EUtLvnow3U\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-sonnet-4-5\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":472,\"cache_read_input_tokens\":8,\"cache_creation_input_tokens\":5,\"output_tokens\":2},\"content\":[],\"stop_reason\":null}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm.\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"EqQB\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"Okay\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_01T1x1fJ34qAmk2tNTrN7Up6\",\"name\":\"get_weather\",\"input\":{}}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"location\\\":\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\" \\\"Bern\\\"}\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":2}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":89}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_67c9\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[],\"usage\":null,\"error\":null}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"msg_67c9\",\"output_index\":0,\"content_index\":0,\"delta\":\"Hi\",\"sequence_number\":4}\n\n",
    "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"Hi\",\"sequence_number\":5}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":6,\"response\":{\"id\":\"resp_67c9\",\"status\":\"completed\",\"usage\":{\"input_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":7},\"output_tokens\":11,\"output_tokens_details\":{\"reasoning_tokens\":1},\"total_tokens\":48}}}\n\n",
);

fn about() -> About {
    let repeated = serde_json::Map::new();
    About { id: "r1".to_owned(), model: "m".to_owned(), created: 7, repeated }
}

fn decoder(upstream: Dialect, caller: Dialect, pieces: Pieces) -> Decoder {
    let translation = (upstream != caller).then(|| StreamTranslation::new(upstream, caller, about()));
    Decoder::new(upstream, translation, pieces)
}

type Decoded = (Vec<Piece>, Option<ProviderError>);

/// The single pieces of a stream that comes in these chunks and then ends.
fn decoded<'a>(upstream: Dialect, caller: Dialect, chunks: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
    decoded_by(decoder(upstream, caller, Pieces::Single), chunks)
}

/// What a stream that comes in these chunks and then ends is given as.
fn decoded_by<'a>(mut decoder: Decoder, chunks: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
    let mut pieces = Vec::new();
    for chunk in chunks {
        decoder.push(chunk);
        loop {
            match decoder.next() {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => break,
                Err(error) => return (pieces, Some(error)),
            }
            if pieces.last().is_some_and(|piece| piece.last) {
                return (pieces, None);
            }
        }
    }
    match decoder.finish() {
        Ok(piece) => pieces.push(piece),
        Err(error) => return (pieces, Some(error)),
    }
    (pieces, None)
}

fn at_once(upstream: Dialect, caller: Dialect, stream: &str) -> Decoded {
    decoded(upstream, caller, [stream.as_bytes()])
}

fn bytes(pieces: &[Piece]) -> String {
    String::from_utf8(pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect()).unwrap()
}

fn text(pieces: &[Piece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

/// The data of every event, with its type where it has one.
fn events(pieces: &[Piece]) -> Vec<Value> {
    let text = bytes(pieces);
    let data = text.split("\n\n").filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
}

const STREAMS: [(Dialect, &str); 3] =
    [(Dialect::ChatCompletions, CHAT), (Dialect::Messages, MESSAGES), (Dialect::Responses, RESPONSES)];
const ROUTES: [(Dialect, Dialect, &str); 7] = [
    (Dialect::ChatCompletions, Dialect::ChatCompletions, CHAT),
    (Dialect::Messages, Dialect::Messages, MESSAGES),
    (Dialect::Responses, Dialect::Responses, RESPONSES),
    (Dialect::Messages, Dialect::ChatCompletions, MESSAGES),
    (Dialect::Messages, Dialect::Responses, MESSAGES),
    (Dialect::ChatCompletions, Dialect::Messages, CHAT),
    (Dialect::ChatCompletions, Dialect::Responses, CHAT),
];

#[test]
fn in_the_callers_dialect_the_bytes_are_the_providers_own() {
    for (dialect, stream) in STREAMS {
        let (pieces, error) = at_once(dialect, dialect, stream);
        assert_eq!((bytes(&pieces).as_str(), error), (stream, None), "{dialect:?}");
        assert_eq!(pieces.iter().filter(|piece| piece.last).count(), 1);
        assert!(pieces.last().unwrap().last);
    }
}

#[test]
fn text_and_usage_are_read_beside_the_stream() {
    let told = |stream, dialect| {
        let (pieces, _) = at_once(dialect, dialect, stream);
        (text(&pieces), pieces.last().unwrap().usage.clone())
    };
    let tokens = |input, cached_input, cache_write, output, reasoning| {
        Reported::Tokens(Tokens { input, cached_input, cache_write, output, reasoning })
    };
    assert_eq!(
        told(CHAT, Dialect::ChatCompletions),
        ("Hellöweather{\"city\":\"Bern\"}".to_owned(), tokens(15, 4, 0, 7, 3))
    );
    let messages = ("Hm.Okayget_weather{\"location\": \"Bern\"}".to_owned(), tokens(472, 8, 5, 89, 0));
    assert_eq!(told(MESSAGES, Dialect::Messages), messages);
    assert_eq!(told(RESPONSES, Dialect::Responses), ("Hi".to_owned(), tokens(30, 7, 0, 10, 1)));
    let (pieces, _) = at_once(Dialect::ChatCompletions, Dialect::ChatCompletions, CHAT);
    let only: Vec<usize> = (0..).zip(&pieces).filter(|(_, piece)| piece.only_usage).map(|(index, _)| index).collect();
    assert_eq!(only, [pieces.len() - 2], "the piece before the end tells usage and nothing else");
}

#[test]
fn a_stream_cut_at_any_byte_gives_the_same_pieces() {
    for (upstream, caller, stream) in ROUTES {
        let whole = at_once(upstream, caller, stream);
        for cut in 0..=stream.len() {
            let (left, right) = stream.as_bytes().split_at(cut);
            assert_eq!(decoded(upstream, caller, [left, right]), whole, "{upstream:?} to {caller:?} at {cut}");
        }
        assert_eq!(decoded(upstream, caller, stream.as_bytes().chunks(1)), whole);
    }
}

/// Joined wherever they may be: each of them is what it is, only how they are cut differs.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        let is_plain = |piece: &Piece| !piece.only_usage && !piece.last;
        match all.last_mut().filter(|before| is_plain(before) && is_plain(&piece)) {
            Some(before) => {
                before.bytes = [&before.bytes[..], &piece.bytes[..]].concat().into();
                before.text.push_str(&piece.text);
                before.usage = piece.usage;
            }
            None => all.push(piece),
        }
    }
    all
}

#[test]
fn events_that_came_together_are_one_piece_and_say_the_same() {
    for (upstream, caller, stream) in ROUTES {
        let together = |chunks: Vec<&[u8]>| decoded_by(decoder(upstream, caller, Pieces::Together), chunks);
        let (single, _) = at_once(upstream, caller, stream);
        let (at_once, error) = together(vec![stream.as_bytes()]);
        assert!(error.is_none() && at_once.len() < single.len(), "{upstream:?} to {caller:?}");
        let first = single.iter().position(|piece| !piece.text.is_empty()).unwrap();
        assert_eq!(at_once[..first], single[..first], "nothing before the first token is joined");
        let expected = joined(single);
        assert_eq!(joined(at_once), expected, "{upstream:?} to {caller:?}");
        for cut in 0..=stream.len() {
            let (left, right) = stream.as_bytes().split_at(cut);
            let (pieces, error) = together(vec![left, right]);
            assert_eq!((joined(pieces), error), (expected.clone(), None), "{upstream:?} to {caller:?} at {cut}");
        }
    }
}

#[test]
fn what_came_before_an_error_is_given_before_it() {
    let error = "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}\n\n";
    let word = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let stream = [&word("a"), &word("b"), error, &word("c")].concat();
    let decoder = decoder(Dialect::ChatCompletions, Dialect::ChatCompletions, Pieces::Together);
    let (pieces, failed) = decoded_by(decoder, [stream.as_bytes()]);
    assert_eq!((pieces.len(), text(&pieces).as_str()), (1, "ab"));
    assert_eq!(bytes(&pieces), [word("a"), word("b")].concat());
    assert_eq!(failed, Some(ProviderError::BrokeOff { reason: "server_error".to_owned() }));
}

#[test]
fn a_stream_that_ends_at_any_byte_gives_its_pieces_and_then_an_error() {
    for (upstream, caller, stream) in ROUTES {
        let (whole, _) = at_once(upstream, caller, stream);
        // A chat that has said that it is finished may leave out its formal end.
        let finished = stream.find("\"finish_reason\":\"tool_calls\"").map_or(stream.len() - 1, |at| at);
        for cut in 0..finished {
            let (pieces, error) = decoded(upstream, caller, [&stream.as_bytes()[..cut]]);
            assert!(
                matches!(error, Some(ProviderError::BrokeOff { .. })),
                "{upstream:?} to {caller:?} at {cut}: {error:?}"
            );
            assert_eq!(pieces, whole[..pieces.len()]);
        }
    }
}

#[test]
fn a_chat_without_a_formal_end_is_given_one() {
    let (pieces, error) =
        at_once(Dialect::ChatCompletions, Dialect::ChatCompletions, CHAT.strip_suffix("data: [DONE]\n\n").unwrap());
    assert_eq!((bytes(&pieces).as_str(), error), (CHAT, None));
    let (pieces, error) =
        at_once(Dialect::ChatCompletions, Dialect::ChatCompletions, CHAT.strip_suffix("\n\n").unwrap());
    assert_eq!((bytes(&pieces).as_str(), error), (CHAT, None));
}

#[test]
fn an_error_inside_a_stream_is_typed_and_quotes_nobody() {
    let check = |dialect, stream: &str, expected: ProviderError| {
        let (_, error) = at_once(dialect, dialect, stream);
        assert_eq!(error, Some(expected), "{stream}");
    };
    let broke = |reason: &str| ProviderError::BrokeOff { reason: reason.to_owned() };
    let overloaded = "event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"Overloaded\"}}\n\n";
    check(Dialect::Messages, overloaded, broke("overloaded_error"));
    let server = "data: {\"error\":{\"message\":\"you said x\",\"type\":\"server_error\",\"code\":null}}\n\n";
    check(Dialect::ChatCompletions, server, broke("server_error"));
    let failed = "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"x\"}}}\n\n";
    check(Dialect::Responses, failed, ProviderError::RateLimited { retry_after: None });
    let (_, error) = at_once(Dialect::ChatCompletions, Dialect::ChatCompletions, "data: {bad}\n\n");
    assert!(matches!(error, Some(ProviderError::Unreadable { .. })));
}

#[test]
fn anthropics_stream_becomes_a_chats() {
    let (pieces, _) = at_once(Dialect::Messages, Dialect::ChatCompletions, MESSAGES);
    let events = events(&pieces);
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"].get(0)).map(|choice| &choice["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    assert_eq!(deltas[1]["reasoning_content"], "Hm.");
    assert_eq!(deltas[2]["content"], "Okay");
    let call = &deltas[3]["tool_calls"][0];
    assert_eq!(
        (&call["id"], &call["function"]["name"]),
        (&Value::from("toolu_01T1x1fJ34qAmk2tNTrN7Up6"), &Value::from("get_weather"))
    );
    assert_eq!(deltas[5]["tool_calls"][0]["function"]["arguments"], " \"Bern\"}");
    let finish = events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(finish, Some("tool_calls"));
    let [usage, done] = &events[events.len() - 2..] else { panic!("two events at least") };
    assert_eq!(usage["usage"]["prompt_tokens"], 485, "all input, cached or not");
    assert_eq!(usage["usage"]["completion_tokens"], 89);
    assert_eq!(done, "[DONE]");
}

#[test]
fn a_chats_stream_becomes_anthropics() {
    let (pieces, _) = at_once(Dialect::ChatCompletions, Dialect::Messages, CHAT);
    let events = events(&pieces);
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[2]["delta"]["text"], "Hellö");
    assert_eq!(events[4]["content_block"]["name"], "weather");
    assert_eq!((&events[4]["index"], &events[6]["index"]), (&Value::from(1), &Value::from(1)));
    let end = &events[8];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"]["input_tokens"], 15);
    assert_eq!(end["usage"]["cache_read_input_tokens"], 4);
    assert_eq!(end["usage"]["output_tokens"], 10);
    assert!(bytes(&pieces).contains("event: message_stop\ndata: {"), "an event has its name on a line too");
}

#[test]
fn a_chats_stream_becomes_a_response_and_so_does_anthropics() {
    for (upstream, stream, calls) in
        [(Dialect::ChatCompletions, CHAT, "weather"), (Dialect::Messages, MESSAGES, "get_weather")]
    {
        let (pieces, _) = at_once(upstream, Dialect::Responses, stream);
        let events = events(&pieces);
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        assert_eq!(
            kinds,
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed"
            ]
        );
        let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
        assert_eq!(numbers, (0..14).collect::<Vec<u64>>());
        let output = &events[13]["response"]["output"];
        assert_eq!((&output[0]["type"], &output[1]["name"]), (&Value::from("message"), &Value::from(calls)));
        assert_eq!(output[1]["arguments"], events[11]["arguments"]);
        assert!(events[13]["response"]["usage"]["output_tokens"].is_u64());
    }
}

#[test]
fn tool_calls_that_are_mixed_have_no_place_in_other_dialects() {
    let part = |index: u32, head: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":{index},{head}\"function\":{{\"name\":\"a\",\"arguments\":\"1\"}}}}]}}}}]}}\n\n"
        )
    };
    let stream = [part(0, "\"id\":\"x\","), part(1, "\"id\":\"y\","), part(0, "")].concat();
    for caller in [Dialect::Messages, Dialect::Responses] {
        let (_, error) = at_once(Dialect::ChatCompletions, caller, &stream);
        assert!(matches!(error, Some(ProviderError::Unreadable { .. })), "{caller:?}: {error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_chunking_gives_the_same_pieces(route in 0..ROUTES.len(), cuts in proptest::collection::vec(0..4_000_usize, 0..30)) {
        let (upstream, caller, stream) = ROUTES[route];
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).chain([0, stream.len()]).collect();
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|pair| &stream.as_bytes()[pair[0]..pair[1]]);
        prop_assert_eq!(decoded(upstream, caller, chunks), at_once(upstream, caller, stream));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), route in 0..ROUTES.len()) {
        let (upstream, caller, _) = ROUTES[route];
        let stream = [b"data: ", &bytes[..], b"\n\n"].concat();
        let (pieces, error) = decoded(upstream, caller, [&stream[..]]);
        prop_assert!(error.is_some() || pieces.last().is_some_and(|piece| piece.last));
    }
}
