//! A chat's request as one of Anthropic's messages.
//!
//! System messages are gathered at the front, as Anthropic's own compatible endpoint does; results of tools that follow one
//! another become one message, as Anthropic wants them.

use super::Untranslatable;
use super::fields::Fields;
use serde_json::{Map, Value, json};

pub(super) fn request(body: Map<String, Value>) -> Result<Map<String, Value>, Untranslatable> {
    let mut from = Fields::new(body, "the request");
    let mut to = Map::new();
    let (system, messages) = conversation(from.list("messages")?)?;
    if !system.is_empty() {
        to.insert("system".to_owned(), Value::Array(system));
    }
    to.insert("messages".to_owned(), Value::Array(messages));
    for name in ["model", "max_tokens", "max_completion_tokens", "top_p", "top_k", "thinking", "stream"] {
        from.carry(name, &mut to, name);
    }
    if from.number("temperature").is_some_and(|temperature| temperature > 1.0) {
        return Err("`temperature` goes from 0 to 1 there".to_owned());
    }
    from.carry("temperature", &mut to, "temperature");
    match from.take("stop") {
        Some(Value::String(stop)) => drop(to.insert("stop_sequences".to_owned(), json!([stop]))),
        Some(stops) => drop(to.insert("stop_sequences".to_owned(), stops)),
        None => {}
    }
    if let Some(user) = from.take("user").or(from.take("safety_identifier")) {
        to.insert("metadata".to_owned(), json!({"user_id": user}));
    }
    let tools: Vec<Value> = from.list("tools")?.into_iter().map(tool).collect::<Result<_, _>>()?;
    if !tools.is_empty() {
        to.insert("tools".to_owned(), Value::Array(tools));
    }
    let choice = tool_choice(from.take("tool_choice"), from.take("parallel_tool_calls"))?;
    to.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
    harmless(&mut from);
    from.end()?;
    Ok(to)
}

/// Fields whose default changes nothing.
fn harmless(from: &mut Fields) {
    from.hint("stream_options");
    from.hint("prompt_cache_key");
    from.harmless("n", &[json!(1)]);
    from.harmless("response_format", &[json!({"type": "text"})]);
    from.harmless("logprobs", &[json!(false)]);
    from.harmless("store", &[json!(false)]);
    from.harmless("service_tier", &[json!("auto"), json!("default")]);
    for name in ["presence_penalty", "frequency_penalty"] {
        from.harmless(name, &[json!(0), json!(0.0)]);
    }
    for name in ["logit_bias", "metadata"] {
        from.harmless(name, &[json!({})]);
    }
}

fn conversation(messages: Vec<Value>) -> Result<(Vec<Value>, Vec<Value>), Untranslatable> {
    let mut system = Vec::new();
    let mut turns: Vec<Value> = Vec::new();
    for message in messages {
        let mut from = Fields::of(message, "a message")?;
        let role = from.text("role")?;
        match role.as_str() {
            "system" | "developer" => system.extend(blocks(from.take("content"))?),
            "user" => turns.push(json!({"role": "user", "content": blocks(from.take("content"))?})),
            "assistant" => turns.push(assistant(&mut from)?),
            "tool" => result(&mut from, &mut turns)?,
            _ => return Err(format!("messages of the role `{role}` have no counterpart there")),
        }
        from.end()?;
    }
    Ok((system, turns))
}

fn assistant(from: &mut Fields) -> Result<Value, Untranslatable> {
    let mut content = blocks(from.take("content"))?;
    // What it thought was for that turn only, and cannot be signed again.
    from.harmless("annotations", &[json!([])]);
    from.hint("reasoning_content");
    from.hint("reasoning");
    content.extend(from.take("refusal").map(|refusal| json!({"type": "text", "text": refusal})));
    for call in from.list("tool_calls")? {
        let mut call = Fields::of(call, "a tool call")?;
        let id = call.text("id")?;
        call.hint("type");
        call.hint("index");
        let mut function = Fields::of(call.take("function").unwrap_or_default(), "a tool call's function")?;
        let (name, arguments) = (function.text("name")?, function.text("arguments")?);
        function.end()?;
        call.end()?;
        let input: Map<String, Value> = match arguments.trim() {
            "" => Map::new(),
            text => serde_json::from_str(text)
                .map_err(|_| format!("the arguments of the tool call `{id}` are not a JSON object"))?,
        };
        content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }
    Ok(json!({"role": "assistant", "content": content}))
}

fn result(from: &mut Fields, turns: &mut Vec<Value>) -> Result<(), Untranslatable> {
    let id = from.text("tool_call_id")?;
    from.hint("name");
    let result = json!({"type": "tool_result", "tool_use_id": id, "content": blocks(from.take("content"))?});
    let results = turns.last_mut().and_then(|turn| turn["content"].as_array_mut());
    match results.filter(|results| results.iter().any(|block| block["type"] == "tool_result")) {
        Some(results) => results.push(result),
        None => turns.push(json!({"role": "user", "content": [result]})),
    }
    Ok(())
}

/// Content as blocks. Anthropic takes no empty text.
fn blocks(content: Option<Value>) -> Result<Vec<Value>, Untranslatable> {
    match content {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![json!({"type": "text", "text": text})]),
        Some(Value::Array(parts)) => parts.into_iter().map(block).collect(),
        Some(_) => Err("`content` must be a text or a list of parts".to_owned()),
    }
}

fn block(part: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(part, "a content part")?;
    let kind = from.text("type")?;
    let mut to = Map::new();
    match kind.as_str() {
        "text" | "refusal" => {
            to.insert("type".to_owned(), json!("text"));
            to.insert("text".to_owned(), json!(from.text(&kind)?));
        }
        "image_url" => {
            let mut image = Fields::of(from.take("image_url").unwrap_or_default(), "an `image_url`")?;
            // How closely to look is a hint.
            image.hint("detail");
            let url = image.text("url")?;
            image.end()?;
            to.insert("type".to_owned(), json!("image"));
            to.insert("source".to_owned(), source(&url)?);
        }
        _ => return Err(format!("content of the type `{kind}` has no counterpart there")),
    }
    from.carry("cache_control", &mut to, "cache_control");
    from.end()?;
    Ok(Value::Object(to))
}

/// A picture's source from its URL.
fn source(url: &str) -> Result<Value, Untranslatable> {
    let Some(data) = url.strip_prefix("data:") else { return Ok(json!({"type": "url", "url": url})) };
    let parts = data.split_once(',').and_then(|(kind, data)| Some((kind.strip_suffix(";base64")?, data)));
    let (media_type, data) = parts.ok_or("a picture's data URL must be base64")?;
    Ok(json!({"type": "base64", "media_type": media_type, "data": data}))
}

fn tool(tool: Value) -> Result<Value, Untranslatable> {
    let mut from = Fields::of(tool, "a tool")?;
    let kind = from.text("type")?;
    if kind != "function" {
        return Err(format!("tools of the type `{kind}` have no counterpart there"));
    }
    let mut function = Fields::of(from.take("function").unwrap_or_default(), "a tool's function")?;
    let mut to = Map::new();
    to.insert("name".to_owned(), json!(function.text("name")?));
    function.carry("description", &mut to, "description");
    let schema = function.take("parameters").unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    to.insert("input_schema".to_owned(), schema);
    function.harmless("strict", &[json!(false)]);
    function.carry("strict", &mut to, "strict");
    function.end()?;
    from.carry("cache_control", &mut to, "cache_control");
    from.end()?;
    Ok(Value::Object(to))
}

fn tool_choice(choice: Option<Value>, parallel: Option<Value>) -> Result<Option<Value>, Untranslatable> {
    let mut choice = match choice {
        None => None,
        Some(Value::String(word)) => Some(match word.as_str() {
            "auto" => json!({"type": "auto"}),
            "none" => json!({"type": "none"}),
            "required" => json!({"type": "any"}),
            _ => return Err(format!("the tool choice `{word}` has no counterpart there")),
        }),
        Some(choice) => match choice["function"]["name"].as_str() {
            Some(name) if choice["type"] == "function" => Some(json!({"type": "tool", "name": name})),
            Some(_) | None => return Err("this tool choice has no counterpart there".to_owned()),
        },
    };
    if parallel == Some(json!(false)) {
        let choice = choice.get_or_insert_with(|| json!({"type": "auto"}));
        if choice["type"] != "none" {
            choice["disable_parallel_tool_use"] = json!(true);
        }
    }
    Ok(choice)
}
