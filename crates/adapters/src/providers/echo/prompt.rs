//! What the echo model needs of a request, read from any dialect.

use super::refusal;
use crate::providers::call::{Call, Dialect};
use crate::providers::error::ProviderError;
use serde_json::Value;

/// A request as the echo model sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// What the last message says.
    pub(super) text: String,
    /// Whether that message is the result of a tool.
    pub(super) is_tool_result: bool,
    /// The names of the tools.
    pub(super) tools: Vec<String>,
    /// The words of all texts.
    pub(super) input_words: u64,
    /// The limit of output.
    pub(super) max_words: Option<u64>,
}

impl Prompt {
    pub(super) fn read(call: &Call) -> Result<Self, ProviderError> {
        let field = |name: &str| -> Result<Value, ProviderError> {
            let value: Option<Value> =
                call.body.read(name).map_err(|error| refusal(400, call.dialect, &error.to_string()))?;
            Ok(value.unwrap_or_default())
        };
        let (conversation, others): (&str, &[&str]) = match call.dialect {
            Dialect::Responses => ("input", &["instructions"]),
            Dialect::ChatCompletions | Dialect::Messages | Dialect::Embeddings => ("messages", &["system"]),
        };
        let conversation = field(conversation)?;
        let mut input_words = words(&conversation);
        for other in others {
            input_words = input_words.saturating_add(words(&field(other)?));
        }
        let last = match &conversation {
            Value::Array(items) => items.iter().rev().find(|item| is_said(item)).or(items.last()),
            Value::String(_) => Some(&conversation),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        let last = last.ok_or_else(|| refusal(400, call.dialect, "the request has no message"))?;
        let text = said(last);
        let tools = field("tools")?;
        let names = tools.as_array().into_iter().flatten().filter_map(tool_name).collect();
        let limits = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
        let own_limit = limits.iter().find_map(|name| field(name).ok()?.as_u64());
        let max_words = call.max_output_tokens.or(own_limit);
        Ok(Self { text, is_tool_result: is_tool_result(last), tools: names, input_words, max_words })
    }
}

/// Whether an item is said to the model, by the user or by a tool.
fn is_said(item: &Value) -> bool {
    item["role"] == "user" || is_tool_result(item)
}

fn is_tool_result(item: &Value) -> bool {
    let holds_result = |blocks: &Vec<Value>| blocks.iter().any(|block| block["type"] == "tool_result");
    item["role"] == "tool"
        || item["type"] == "function_call_output"
        || item["content"].as_array().is_some_and(holds_result)
}

fn tool_name(tool: &Value) -> Option<String> {
    tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned)
}

/// The fields in which a conversation has its texts.
const TEXTS: [&str; 4] = ["content", "text", "output", "input_text"];

/// What a message says: its words, or where it has none of its own the results of tools in it.
fn said(item: &Value) -> String {
    let mut text = String::new();
    let blocks = item["content"].as_array().into_iter().flatten();
    blocks.filter(|block| block["type"] != "tool_result").for_each(|block| write_text(block, &mut text));
    if text.is_empty() {
        write_text(item, &mut text);
    }
    text
}

/// All texts in a part of a conversation, one after the other.
fn write_text(value: &Value, text: &mut String) {
    match value {
        Value::String(part) => {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(part);
        }
        Value::Array(items) => items.iter().for_each(|item| write_text(item, text)),
        Value::Object(fields) => {
            TEXTS.iter().filter_map(|name| fields.get(*name)).for_each(|part| write_text(part, text))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn words(value: &Value) -> u64 {
    let mut text = String::new();
    write_text(value, &mut text);
    u64::try_from(text.split_whitespace().count()).unwrap_or(u64::MAX)
}
