//! A request of Anthropic's messages as a chat's.

use super::Untranslatable;
use super::fields::Fields;
use serde_json::{Map, Value, json};

pub(super) fn request(body: Map<String, Value>) -> Result<Map<String, Value>, Untranslatable> {
    let mut from = Fields::new(body, "the request");
    let mut to = Map::new();
    let mut messages = Vec::new();
    if let Some(system) = from.take("system") {
        messages.push(json!({"role": "system", "content": text_only(system, "`system`")?}));
    }
    for message in from.list("messages")? {
        let mut message = Fields::of(message, "a message")?;
        let role = message.text("role")?;
        let content = message.take("content");
        message.end()?;
        match role.as_str() {
            "user" => user(content, &mut messages)?,
            "assistant" => messages.push(assistant(content)?),
            "system" => messages
                .push(json!({"role": "system", "content": text_only(content.unwrap_or_default(), "`content`")?})),
            _ => return Err(format!("messages of the role `{role}` have no counterpart there")),
        }
    }
    to.insert("messages".to_owned(), Value::Array(messages));
    for name in ["model", "max_tokens", "temperature", "top_p", "stream"] {
        from.carry(name, &mut to, name);
    }
    from.carry("stop_sequences", &mut to, "stop");
    if let Some(metadata) = from.take("metadata") {
        let mut metadata = Fields::of(metadata, "`metadata`")?;
        metadata.carry("user_id", &mut to, "user");
        metadata.end()?;
    }
    let tools: Vec<Value> = from.list("tools")?.into_iter().map(tool).collect::<Result<_, _>>()?;
    if !tools.is_empty() {
        to.insert("tools".to_owned(), Value::Array(tools));
    }
    if let Some(choice) = from.take("tool_choice") {
        tool_choice(choice, &mut to)?;
    }
    from.hint("cache_control");
    from.harmless("thinking", &[json!({"type": "disabled"})]);
    from.harmless("service_tier", &[json!("auto"), json!("standard_only")]);
    from.end()?;
    Ok(to)
}

/// The text of a text, or of text blocks. How to cache them is a hint.
fn text_only(content: Value, place: &'static str) -> Result<String, Untranslatable> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let texts: Vec<String> =
                blocks.into_iter().map(|block| text_block(block, place)).collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(format!("{place} must be a text or a list of blocks"))
        }
    }
}

fn text_block(block: Value, place: &'static str) -> Result<String, Untranslatable> {
    let mut from = Fields::of(block, place)?;
    let kind = from.text("type")?;
    if kind != "text" {
        return Err(format!("a block of the type `{kind}` in {place} has no counterpart there"));
    }
    let text = from.text("text")?;
    from.hint("cache_control");
    from.harmless("citations", &[json!([])]);
    from.end()?;
    Ok(text)
}

fn blocks(content: Option<Value>) -> Result<Vec<Value>, Untranslatable> {
    match content {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![json!({"type": "text", "text": text})]),
        Some(Value::Array(blocks)) => Ok(blocks),
        Some(_) => Err("`content` must be a text or a list of blocks".to_owned()),
    }
}

/// A user's turn: results of tools first, for they answer the message before; then what the user says.
fn user(content: Option<Value>, messages: &mut Vec<Value>) -> Result<(), Untranslatable> {
    let mut parts = Vec::new();
    for block in blocks(content)? {
        match block["type"].as_str() {
            Some("tool_result") => messages.push(result(block)?),
            Some("image") => parts.push(image(block)?),
            Some(_) | None => parts.push(json!({"type": "text", "text": text_block(block, "a user's message")?})),
        }
    }
    match parts.as_slice() {
        [] => {}
        // The plain form is understood by every server.
        [part] if part["type"] == "text" => messages.push(json!({"role": "user", "content": part["text"]})),
        _ => messages.push(json!({"role": "user", "content": parts})),
    }
    Ok(())
}

fn image(block: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(block, "an image")?;
    from.hint("type");
    from.hint("cache_control");
    let mut source = Fields::of(from.take("source").unwrap_or_default(), "an image's source")?;
    from.end()?;
    let kind = source.text("type")?;
    let url = match kind.as_str() {
        "base64" => format!("data:{};base64,{}", source.text("media_type")?, source.text("data")?),
        "url" => source.text("url")?,
        _ => return Err(format!("an image's source of the type `{kind}` has no counterpart there")),
    };
    source.end()?;
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}

fn result(block: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(block, "a tool's result")?;
    from.hint("type");
    from.hint("cache_control");
    let id = from.text("tool_use_id")?;
    let text = text_only(from.take("content").unwrap_or_default(), "a tool's result")?;
    // A chat has no mark for a tool that failed; the words must say it.
    let failed = from.take("is_error") == Some(json!(true));
    let text = if failed { format!("Error: {text}") } else { text };
    from.end()?;
    Ok(json!({"role": "tool", "tool_call_id": id, "content": text}))
}

fn assistant(content: Option<Value>) -> Result<Value, Untranslatable> {
    let mut texts = Vec::new();
    let mut calls = Vec::new();
    for block in blocks(content)? {
        match block["type"].as_str() {
            // Signed by and for one provider, and only for its own turn.
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => {
                let mut from = Fields::of(block, "a tool's use")?;
                from.hint("type");
                from.hint("cache_control");
                let (id, name) = (from.text("id")?, from.text("name")?);
                let arguments = from.take("input").unwrap_or_else(|| json!({})).to_string();
                from.end()?;
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
            Some(_) | None => texts.push(text_block(block, "an assistant's message")?),
        }
    }
    let content = if texts.is_empty() { Value::Null } else { json!(texts.concat()) };
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    Ok(message)
}

fn tool(tool: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(tool, "a tool")?;
    from.harmless("type", &[json!("custom")]);
    from.hint("cache_control");
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(from.text("name")?));
    from.carry("description", &mut function, "description");
    from.carry("input_schema", &mut function, "parameters");
    from.carry("strict", &mut function, "strict");
    from.end()?;
    Ok(json!({"type": "function", "function": function}))
}

fn tool_choice(choice: Value, to: &mut Map<String, Value>) -> Result<(), Untranslatable> {
    let mut from = Fields::of(choice, "`tool_choice`")?;
    let kind = from.text("type")?;
    let choice = match kind.as_str() {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({"type": "function", "function": {"name": from.text("name")?}}),
        _ => return Err(format!("the tool choice `{kind}` has no counterpart there")),
    };
    to.insert("tool_choice".to_owned(), choice);
    if from.take("disable_parallel_tool_use") == Some(json!(true)) {
        to.insert("parallel_tool_calls".to_owned(), json!(false));
    }
    from.end()
}
