//! What has been said on a connection. The oldest is forgotten when it grows too long: the model would be paid to read it.

use serde_json::{Value, json};
use std::collections::VecDeque;

/// The turns that are remembered.
const TURNS_MAX: usize = 64;
/// The text that is remembered, in bytes.
const BYTES_MAX: usize = 512 * 1_024;

#[derive(Debug)]
struct Said {
    prompt: String,
    answer: String,
}

impl Said {
    fn bytes(&self) -> usize {
        self.prompt.len() + self.answer.len()
    }
}

/// The turns so far, oldest first.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    turns: VecDeque<Said>,
    bytes: usize,
}

impl Conversation {
    /// The messages to send for a new prompt.
    pub(super) fn messages(&self, prompt: &str) -> Value {
        let mut messages = Vec::with_capacity(self.turns.len() * 2 + 1);
        for Said { prompt, answer } in &self.turns {
            messages.push(json!({ "role": "user", "content": prompt }));
            messages.push(json!({ "role": "assistant", "content": answer }));
        }
        messages.push(json!({ "role": "user", "content": prompt }));
        Value::Array(messages)
    }

    /// Remembers a turn.
    pub(super) fn remember(&mut self, prompt: String, answer: String) {
        let said = Said { prompt, answer };
        self.bytes += said.bytes();
        self.turns.push_back(said);
        while self.turns.len() > TURNS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.turns.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_turns_are_forgotten_whole() {
        let mut conversation = Conversation::default();
        for number in 0..TURNS_MAX + 3 {
            conversation.remember(format!("q{number}"), format!("a{number}"));
        }
        let messages = conversation.messages("now");
        let messages = messages.as_array().unwrap();
        assert_eq!(messages.len(), TURNS_MAX * 2 + 1);
        assert_eq!((&messages[0]["content"], &messages[1]["content"]), (&json!("q3"), &json!("a3")));
        assert_eq!(messages.last().unwrap()["content"], "now");
        conversation.remember("long".to_owned(), "x".repeat(BYTES_MAX - 4));
        assert_eq!(conversation.messages("").as_array().unwrap().len(), 3, "only the last fits");
        conversation.remember("longer".to_owned(), "x".repeat(BYTES_MAX));
        assert_eq!((conversation.messages("").as_array().unwrap().len(), conversation.bytes), (1, 0));
    }
}
