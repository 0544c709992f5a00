//! A request of `responses` as a chat's. Nothing is stored here, so whatever builds on a stored response is refused.

use super::Untranslatable;
use super::fields::Fields;
use serde_json::{Map, Value, json};

pub(super) fn request(body: Map<String, Value>) -> Result<Map<String, Value>, Untranslatable> {
    let mut from = Fields::new(body, "the request");
    let mut to = Map::new();
    let mut messages = Vec::new();
    if let Some(instructions) = from.take("instructions") {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match from.take("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => items.into_iter().try_for_each(|item| self::item(item, &mut messages))?,
        Some(_) | None => return Err("`input` must be a text or a list of items".to_owned()),
    }
    to.insert("messages".to_owned(), Value::Array(messages));
    from.carry("max_output_tokens", &mut to, "max_tokens");
    for name in ["model", "stream", "temperature", "top_p", "user", "parallel_tool_calls", "service_tier"] {
        from.carry(name, &mut to, name);
    }
    for name in ["prompt_cache_key", "safety_identifier"] {
        from.carry(name, &mut to, name);
    }
    tools(&mut from, &mut to)?;
    if let Some(text) = from.take("text") {
        format(text, &mut to)?;
    }
    if let Some(reasoning) = from.take("reasoning") {
        let mut reasoning = Fields::of(reasoning, "`reasoning`")?;
        reasoning.carry("effort", &mut to, "reasoning_effort");
        reasoning.harmless("summary", &[json!("auto")]);
        reasoning.end()?;
    }
    // They are shown again in the answer, or are about a stream's padding.
    from.hint("metadata");
    from.hint("stream_options");
    from.harmless("store", &[json!(false)]);
    from.harmless("background", &[json!(false)]);
    from.harmless("truncation", &[json!("disabled")]);
    // No reasoning is shown, so none needs to be shown encrypted.
    from.harmless("include", &[json!([]), json!(["reasoning.encrypted_content"])]);
    from.end()?;
    Ok(to)
}

fn item(item: Value, messages: &mut Vec<Value>) -> Result<(), Untranslatable> {
    let mut from = Fields::of(item, "an item")?;
    let kind = match from.take("type") {
        Some(Value::String(kind)) => kind,
        Some(_) | None => "message".to_owned(),
    };
    from.hint("id");
    from.hint("status");
    match kind.as_str() {
        "message" => {
            let role = from.text("role")?;
            let content = content(from.take("content"))?;
            messages.push(json!({"role": role, "content": content}));
        }
        "function_call" => {
            let (id, name, arguments) = (from.text("call_id")?, from.text("name")?, from.text("arguments")?);
            call(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}), messages);
        }
        "function_call_output" => {
            let id = from.text("call_id")?;
            let output = content(from.take("output"))?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        }
        // What a model thought in an earlier turn is for that model only.
        "reasoning" => return Ok(()),
        _ => return Err(format!("items of the type `{kind}` have no counterpart there")),
    }
    from.end()
}

/// Calls of one turn belong into one message.
fn call(call: Value, messages: &mut Vec<Value>) {
    match messages.last_mut().filter(|message| message["role"] == "assistant") {
        Some(message) => match message["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        },
        None => messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
    }
}

fn content(content: Option<Value>) -> Result<Value, Untranslatable> {
    let parts = match content {
        Some(Value::Array(parts)) => parts,
        Some(Value::String(text)) => return Ok(json!(text)),
        Some(_) | None => return Err("`content` must be a text or a list of parts".to_owned()),
    };
    let parts: Vec<Value> = parts.into_iter().map(part).collect::<Result<_, _>>()?;
    // The plain form is understood by every server.
    let plain = parts.iter().all(|part| part["type"] == "text");
    let text = || parts.iter().filter_map(|part| part["text"].as_str()).collect::<String>();
    Ok(if plain { json!(text()) } else { json!(parts) })
}

fn part(part: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(part, "a content part")?;
    let kind = from.text("type")?;
    let to = match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            from.hint("annotations");
            from.hint("logprobs");
            json!({"type": "text", "text": from.text("text")?})
        }
        "refusal" => json!({"type": "text", "text": from.text("refusal")?}),
        "input_image" => {
            let mut image = json!({"url": from.text("image_url")?});
            if let Some(detail) = from.take("detail") {
                image["detail"] = detail;
            }
            json!({"type": "image_url", "image_url": image})
        }
        _ => return Err(format!("content of the type `{kind}` has no counterpart there")),
    };
    from.end()?;
    Ok(to)
}

fn tools(from: &mut Fields, to: &mut Map<String, Value>) -> Result<(), Untranslatable> {
    let tools: Vec<Value> = from.list("tools")?.into_iter().map(tool).collect::<Result<_, _>>()?;
    if !tools.is_empty() {
        to.insert("tools".to_owned(), Value::Array(tools));
    }
    let choice = match from.take("tool_choice") {
        None => return Ok(()),
        Some(Value::String(word)) => json!(word),
        Some(choice) => match choice["name"].as_str() {
            Some(name) if choice["type"] == "function" => json!({"type": "function", "function": {"name": name}}),
            Some(_) | None => return Err("this tool choice has no counterpart there".to_owned()),
        },
    };
    to.insert("tool_choice".to_owned(), choice);
    Ok(())
}

fn tool(tool: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(tool, "a tool")?;
    let kind = from.text("type")?;
    if kind != "function" {
        return Err(format!("tools of the type `{kind}` have no counterpart there"));
    }
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict"] {
        from.carry(name, &mut function, name);
    }
    from.end()?;
    Ok(json!({"type": "function", "function": function}))
}

/// The format of the answer's text.
fn format(text: Value, to: &mut Map<String, Value>) -> Result<(), Untranslatable> {
    let mut text = Fields::of(text, "`text`")?;
    text.carry("verbosity", to, "verbosity");
    if let Some(format) = text.take("format") {
        let mut format = Fields::of(format, "`text.format`")?;
        let kind = format.text("type")?;
        match kind.as_str() {
            "text" => {}
            "json_object" => drop(to.insert("response_format".to_owned(), json!({"type": "json_object"}))),
            "json_schema" => {
                let mut schema = Map::new();
                for name in ["name", "description", "schema", "strict"] {
                    format.carry(name, &mut schema, name);
                }
                to.insert("response_format".to_owned(), json!({"type": "json_schema", "json_schema": schema}));
            }
            _ => return Err(format!("the text format `{kind}` has no counterpart there")),
        }
        format.end()?;
    }
    text.end()
}
