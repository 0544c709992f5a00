//! The echo model's answer: planned at once, then given whole or spoken word by word. It is made as a chat and goes through
//! the same translation as a provider's.

use super::control::{Control, Misreport};
use super::prompt::Prompt;
use crate::providers::call::{Call, Dialect};
use crate::providers::error::ProviderError;
use crate::providers::reply::{Piece, Whole};
use crate::providers::translate::{self, About, ChatStep, ToCaller};
use crate::providers::usage::{Reported, TOKENS_MAX, of_openai};
use bytes::BytesMut;
use serde_json::{Value, json};

/// What is said.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// Words, each with the white space around it.
    Text(Vec<String>),
    /// So many words.
    Counted(u32),
    /// A tool's name, then the words of its arguments.
    Call(Vec<String>),
}

/// An answer before it is given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    content: Content,
    /// How many of its words are said.
    words: u32,
    /// Whether that is all of them.
    complete: bool,
    input_words: u64,
}

impl Plan {
    pub(super) fn new(prompt: &Prompt, control: &Control) -> Self {
        let content = match (tool_call(prompt), control.words) {
            (Some(call), _) => Content::Call(call),
            (None, Some(count)) => Content::Counted(count),
            (None, None) => Content::Text(split(&prompt.text)),
        };
        let all = match &content {
            Content::Text(words) | Content::Call(words) => u32::try_from(words.len()).unwrap_or(u32::MAX),
            Content::Counted(count) => *count,
        };
        let most = prompt.max_words.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX));
        Self { content, words: all.min(most), complete: all <= most, input_words: prompt.input_words }
    }

    /// How many words are said.
    pub(super) const fn words(&self) -> u32 {
        self.words
    }

    fn word(&self, index: u32) -> String {
        match &self.content {
            Content::Text(words) | Content::Call(words) => {
                usize::try_from(index).ok().and_then(|index| words.get(index)).cloned().unwrap_or_default()
            }
            Content::Counted(_) if index == 0 => "word0".to_owned(),
            Content::Counted(_) => format!(" word{index}"),
        }
    }

    fn is_call(&self) -> bool {
        matches!(self.content, Content::Call(_))
    }

    fn finish_reason(&self) -> &'static str {
        match (self.complete, self.is_call()) {
            (false, _) => "length",
            (true, true) => "tool_calls",
            (true, false) => "stop",
        }
    }

    /// The usage in a chat's shape, as the control wants it told.
    fn usage(&self, control: &Control) -> Option<Value> {
        let times = if control.usage == Misreport::Tenfold { 10 } else { 1 };
        let input = self.input_words.saturating_mul(times);
        let cached = control.cached.min(input);
        let output = u64::from(self.words).saturating_add(control.reasoning).saturating_mul(times);
        let told = match control.usage {
            Misreport::Missing => return None,
            Misreport::Exact | Misreport::Tenfold => json!(output),
            Misreport::Negative => json!(-1),
            Misreport::Fraction => json!(1.5),
            Misreport::Absurd => json!(TOKENS_MAX * 2),
        };
        Some(json!({
            "prompt_tokens": input, "completion_tokens": told, "total_tokens": input.saturating_add(output),
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": control.reasoning.saturating_mul(times)},
        }))
    }

    /// The whole answer at once.
    pub(super) fn whole(&self, control: &Control, call: &Call, model: &str) -> Result<Whole, ProviderError> {
        if control.break_after.is_some_and(|after| after < self.words) {
            return Err(asked_break());
        }
        let about = About::of(call, model);
        let text = |from: u32| (from..self.words).map(|index| self.word(index)).collect::<String>();
        let message = match self.is_call() {
            false => json!({"role": "assistant", "content": text(0), "refusal": null}),
            true => {
                let function = json!({"name": self.word(0), "arguments": text(1)});
                let call = json!({"id": call_id(&about), "type": "function", "function": function});
                json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]})
            }
        };
        let usage = self.usage(control);
        let reported = usage.as_ref().map_or(Reported::Missing, of_openai);
        let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": self.finish_reason()});
        let mut chat = json!({
            "id": format!("chatcmpl-{}", about.id), "object": "chat.completion", "created": about.created,
            "model": about.model, "choices": [choice],
        });
        if let Some(usage) = usage {
            chat["usage"] = usage;
        }
        let body = chat.to_string();
        let body = match call.dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => body.into(),
            Dialect::Messages | Dialect::Responses => {
                translate::whole(body.as_bytes(), Dialect::ChatCompletions, call.dialect, &about)?
            }
        };
        Ok(Whole { status: 200, body, dialect: call.dialect, usage: reported })
    }
}

/// The tool call that the text asks for: the tool's name and the words of its arguments.
fn tool_call(prompt: &Prompt) -> Option<Vec<String>> {
    let asked = prompt.text.split_once("call ").filter(|_| !prompt.is_tool_result)?.1;
    let name = prompt.tools.iter().filter(|name| asked.starts_with(name.as_str())).max_by_key(|name| name.len())?;
    let rest = asked.strip_prefix(name.as_str())?;
    let arguments = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
    let arguments = arguments.and_then(Result::ok).filter(Value::is_object).unwrap_or_else(|| json!({}));
    let mut words = vec![name.clone()];
    words.extend(split(&arguments.to_string()));
    Some(words)
}

/// Cuts a text into words; each keeps the white space before it, the last also what is behind it.
fn split(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut in_word = false;
    for character in text.chars() {
        let space = character.is_whitespace();
        if words.is_empty() || (space && in_word) {
            words.push(String::new());
        }
        in_word = !space;
        if let Some(word) = words.last_mut() {
            word.push(character);
        }
    }
    if let Some(rest) = words.pop_if(|word| word.trim().is_empty()) {
        match words.last_mut() {
            Some(word) => word.push_str(&rest),
            None => return Vec::new(),
        }
    }
    words
}

fn call_id(about: &About) -> String {
    format!("call_{}", about.id)
}

fn asked_break() -> ProviderError {
    ProviderError::BrokeOff { reason: "it was asked to".to_owned() }
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Role,
    Word(u32),
    Finish,
    Usage,
    Done,
}

/// An answer that is being spoken.
#[derive(Debug)]
pub(crate) struct Speech {
    plan: Plan,
    control: Control,
    about: About,
    to: ToCaller,
    next: Next,
    usage: Reported,
}

impl Speech {
    pub(super) fn new(plan: Plan, control: Control, call: &Call, model: &str) -> Self {
        let about = About::of(call, model);
        let to = ToCaller::new(call.dialect, about.clone());
        Self { plan, control, about, to, next: Next::Role, usage: Reported::Missing }
    }

    /// The next piece. Dropping the future loses nothing: it waits before it changes anything.
    pub(crate) async fn next(&mut self) -> Result<Piece, ProviderError> {
        loop {
            let mut text = String::new();
            if let Next::Word(index) = self.next {
                if self.control.break_after.is_some_and(|after| after <= index) {
                    return Err(asked_break());
                }
                if !self.control.delay.is_zero() {
                    tokio::time::sleep(self.control.delay).await;
                }
                text = self.plan.word(index);
            }
            let (now, step) = (self.next, self.step(&text));
            let mut bytes = BytesMut::new();
            if let Some(step) = step {
                self.to.write(&step, &mut bytes)?;
            }
            let last = now == Next::Done;
            if last || !bytes.is_empty() {
                let only_usage = now == Next::Usage;
                return Ok(Piece { bytes: bytes.freeze(), text, usage: self.usage.clone(), only_usage, last });
            }
        }
    }

    /// The step that comes now, as a chat's; and goes on to the one after it.
    fn step(&mut self, word: &str) -> Option<ChatStep> {
        let after_word = |index: u32| if index < self.plan.words { Next::Word(index) } else { Next::Finish };
        let (step, next) = match self.next {
            Next::Role => {
                (Some(self.delta(&json!({"role": "assistant", "content": "", "refusal": null}))), after_word(0))
            }
            Next::Word(index) => {
                let delta = match (self.plan.is_call(), index) {
                    (false, _) => json!({"content": word}),
                    (true, 0) => {
                        let function = json!({"name": word, "arguments": ""});
                        json!({"tool_calls": [{"index": 0, "id": call_id(&self.about), "type": "function", "function": function}]})
                    }
                    (true, _) => json!({"tool_calls": [{"index": 0, "function": {"arguments": word}}]}),
                };
                (Some(self.delta(&delta)), after_word(index + 1))
            }
            Next::Finish => {
                let finish = self.plan.finish_reason();
                let choice = json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish}]);
                (Some(self.chunk(choice, None)), Next::Usage)
            }
            Next::Usage => {
                let usage = self.plan.usage(&self.control);
                self.usage = usage.as_ref().map_or(Reported::Missing, of_openai);
                (usage.map(|usage| self.chunk(json!([]), Some(usage))), Next::Done)
            }
            Next::Done => (Some(ChatStep::Done), Next::Done),
        };
        self.next = next;
        step
    }

    fn delta(&self, delta: &Value) -> ChatStep {
        self.chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]), None)
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> ChatStep {
        let About { id, model, created, .. } = &self.about;
        let id = format!("chatcmpl-{id}");
        let mut chunk = json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices});
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        ChatStep::Chunk(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_white_space_and_make_up_the_text() {
        for text in ["", " ", "a", "a b", " a  b\n", "a\n\nb c", "é ü"] {
            let words = split(text);
            assert_eq!(words.len(), text.split_whitespace().count(), "{text:?}");
            assert!(words.is_empty() || words.concat() == text, "{text:?}: {words:?}");
        }
    }
}
