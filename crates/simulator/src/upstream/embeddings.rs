//! OpenAI's embeddings and the lists of models on the wire.

use super::answer::words;
use super::request::Embed;
use super::{CREATED, FIXED_MODEL, MODELS};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How long a vector is.
const DIMENSIONS: usize = 8;

/// A vector that depends on the text alone. Every number is a small fraction of two, exact as text and as 32 bits.
fn vector(text: &str) -> [f32; DIMENSIONS] {
    let hash = blake3::hash(text.as_bytes());
    let mut bytes = hash.as_bytes().iter();
    [(); DIMENSIONS].map(|()| (f32::from(*bytes.next().unwrap_or(&0)) - 128.0) / 128.0)
}

/// The tokens that an embedding uses.
pub(super) fn input_tokens(asked: &Embed) -> u64 {
    asked.texts.iter().map(|text| words(text)).sum::<u64>().max(1)
}

pub(super) fn embeddings(asked: &Embed, usage: Option<Value>) -> Value {
    let shown = |text: &String| {
        let vector = vector(text);
        if asked.is_base64 {
            json!(STANDARD.encode(vector.map(f32::to_le_bytes).as_flattened()))
        } else {
            json!(vector)
        }
    };
    let data = asked.texts.iter().enumerate();
    let data = data.map(|(index, text)| json!({"object": "embedding", "index": index, "embedding": shown(text)}));
    let value = json!({"object": "list", "model": asked.model, "data": data.collect::<Vec<_>>()});
    super::wire::with(value, "usage", usage)
}

pub(super) fn usage(tokens: u64) -> Value {
    json!({"prompt_tokens": tokens, "total_tokens": tokens})
}

fn names() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain([FIXED_MODEL])
}

pub(super) fn openai_models() -> Value {
    let model = |id| json!({"id": id, "object": "model", "created": CREATED, "owned_by": "upstream"});
    json!({"object": "list", "data": names().map(model).collect::<Vec<_>>()})
}

pub(super) fn anthropic_models() -> Value {
    let model = |id| json!({"type": "model", "id": id, "display_name": id, "created_at": "2025-01-01T00:00:00Z"});
    let data: Vec<Value> = names().map(model).collect();
    json!({"data": data, "has_more": false, "first_id": MODELS[0], "last_id": FIXED_MODEL})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_are_of_the_same_vector_and_it_depends_on_the_text_alone() {
        let asked = |is_base64| Embed { model: "m".to_owned(), texts: vec!["a b".to_owned()], is_base64, tag: None };
        let floats = embeddings(&asked(false), None);
        let text = embeddings(&asked(true), None);
        let bytes = STANDARD.decode(text["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let decoded: Vec<f32> = bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        assert_eq!(json!(decoded), floats["data"][0]["embedding"]);
        assert_eq!(decoded, vector("a b"));
        assert_ne!(vector("a b"), vector("a c"));
    }
}
