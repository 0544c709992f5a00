//! Embeddings of the echo model: a vector of length one, made of a hash of the text. Equal texts are equal, others far away.

use super::control::read_controls;
use super::{failure, refusal};
use crate::providers::call::{Call, Dialect};
use crate::providers::error::ProviderError;
use crate::providers::reply::Whole;
use crate::providers::usage::{Reported, of_openai};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const DIMENSIONS_DEFAULT: u64 = 256;
const DIMENSIONS_MAX: u64 = 4_096;
const INPUTS_MAX: usize = 2_048;

pub(super) fn answer(call: &Call, model: &str) -> Result<Whole, ProviderError> {
    let refused = |message: &str| refusal(400, Dialect::Embeddings, message);
    let read = |name: &str| -> Result<Value, ProviderError> {
        Ok(call.body.read(name).map_err(|error| refused(&error.to_string()))?.unwrap_or_default())
    };
    let control = read_controls(model, &mut String::new()).map_err(|message| refused(&message))?;
    if let Some(status) = control.fail {
        return Err(failure(status, &control, Dialect::Embeddings));
    }
    let dimensions = read("dimensions")?;
    let dimensions = if dimensions.is_null() { Some(DIMENSIONS_DEFAULT) } else { dimensions.as_u64() };
    let dimensions = dimensions.filter(|count| (1..=DIMENSIONS_MAX).contains(count));
    let dimensions = dimensions.ok_or_else(|| refused("`dimensions` may be 1 to 4096"))?;
    let dimensions = usize::try_from(dimensions).unwrap_or(1);
    let format = match read("encoding_format")?.as_str().unwrap_or("float") {
        "float" => Format::Float,
        "base64" => Format::Base64,
        _ => return Err(refused("`encoding_format` may be float or base64")),
    };
    let inputs = inputs(read("input")?).ok_or_else(|| refused("`input` must be a text, a list of texts, or tokens"))?;
    let tokens: u64 = inputs.iter().map(|(_, tokens)| *tokens).fold(0, u64::saturating_add);
    let data: Vec<Value> =
        inputs.iter().enumerate().map(|(index, (text, _))| item(index, &vector(text, dimensions), format)).collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let reported: Reported = of_openai(&usage);
    let body = json!({"object": "list", "data": data, "model": model, "usage": usage});
    Ok(Whole { status: 200, body: body.to_string().into(), dialect: Dialect::Embeddings, usage: reported })
}

/// The texts to embed, each with its tokens: words of a text, or the tokens themselves.
fn inputs(input: Value) -> Option<Vec<(String, u64)>> {
    let one = |value: &Value| match value {
        Value::String(text) => Some((text.clone(), u64::try_from(text.split_whitespace().count()).ok()?)),
        Value::Array(tokens) if tokens.iter().all(Value::is_u64) => {
            Some((value.to_string(), u64::try_from(tokens.len()).ok()?))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    };
    match input.as_array().filter(|items| !items.iter().all(Value::is_u64) || items.is_empty()) {
        Some(items) if items.is_empty() || items.len() > INPUTS_MAX => None,
        Some(items) => items.iter().map(one).collect(),
        None => one(&input).map(|input| vec![input]),
    }
}

/// Bytes of a hash that never ends, as numbers from -1 to 1, scaled to the length of one.
fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let mut bytes = vec![0_u8; dimensions * 2];
    blake3::Hasher::new().update(text.as_bytes()).finalize_xof().fill(&mut bytes);
    let number = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / f32::from(i16::MAX);
    let raw: Vec<f32> = bytes.chunks_exact(2).map(number).collect();
    let length = raw.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    raw.into_iter().map(|number| number / length).collect()
}

/// How a vector is written.
#[derive(Debug, Clone, Copy)]
enum Format {
    Float,
    /// The bytes of little-endian floats, as OpenAI's SDKs ask for it.
    Base64,
}

fn item(index: usize, vector: &[f32], format: Format) -> Value {
    let embedding = match format {
        Format::Base64 => {
            json!(STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()))
        }
        Format::Float => json!(vector),
    };
    json!({"object": "embedding", "index": index, "embedding": embedding})
}
