//! What an answer says and what it used, before any wire format.
//!
//! The contract is that of an echo: the last user message's text comes back. If the request has tools and the text is
//! `call NAME {json}`, that tool is called; if the last message is a tool's result, the result comes back. A token is a
//! word: of all messages for the input, of the answer for the output, so that a test can count them.

use super::request::{Asked, Last};
use serde::{Deserialize, Serialize};

/// Tokens of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt, those from the cache too.
    pub input: u64,
    /// Of these, from the cache.
    pub cached: u64,
    /// Of the answer, those of the reasoning too.
    pub output: u64,
    /// Of these, reasoning.
    pub reasoning: u64,
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// Text, in the pieces in which it is streamed.
    Text(Vec<String>),
    /// A call of a tool.
    Tool { name: String, arguments: String },
}

/// Why the answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Complete,
    /// The caller allowed no more tokens.
    Cut,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) said: Said,
    pub(crate) ending: Ending,
    pub(crate) usage: Usage,
}

/// Cached and reasoning tokens that a script asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extra {
    pub(crate) cached: u64,
    pub(crate) reasoning: u64,
}

impl Answer {
    pub(crate) fn to(asked: &Asked, extra: Extra) -> Self {
        let text = match &asked.last {
            Last::User(text) | Last::ToolResult(text) => text,
        };
        let tool = match &asked.last {
            Last::User(text) if asked.has_tools => tool_call(text),
            Last::User(_) | Last::ToolResult(_) => None,
        };
        let (said, ending) = tool.map_or_else(|| cut(pieces(text), asked.max_tokens), |tool| (tool, Ending::Complete));
        let said_tokens = match &said {
            Said::Text(pieces) => pieces.len() as u64,
            Said::Tool { name, arguments } => words(name) + words(arguments),
        };
        let input = asked.words.max(1);
        let usage = Usage {
            input,
            cached: extra.cached.min(input),
            output: said_tokens + extra.reasoning,
            reasoning: extra.reasoning,
        };
        Self { said, ending, usage }
    }

    /// The whole text; empty for a tool's call.
    pub(crate) fn text(&self) -> String {
        match &self.said {
            Said::Text(pieces) => pieces.concat(),
            Said::Tool { .. } => String::new(),
        }
    }
}

/// How many words a text has.
pub(crate) fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

fn tool_call(text: &str) -> Option<Said> {
    let (name, arguments) = text.trim().strip_prefix("call ")?.split_once(' ')?;
    let is_object = serde_json::from_str::<serde_json::Value>(arguments).is_ok_and(|value| value.is_object());
    is_object.then(|| Said::Tool { name: name.to_owned(), arguments: arguments.to_owned() })
}

/// One piece per word, each with the white space before it; the last also has what stands behind it.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut in_word = true;
    for character in text.chars() {
        let begins_piece = in_word && character.is_whitespace();
        in_word = !character.is_whitespace();
        match pieces.last_mut() {
            Some(piece) if !begins_piece => piece.push(character),
            Some(_) | None => pieces.push(character.to_string()),
        }
    }
    // White space at the end is no word of its own.
    if pieces.len() > 1 && pieces.last().is_some_and(|piece| piece.trim().is_empty()) {
        let rest = pieces.pop().unwrap_or_default();
        if let Some(piece) = pieces.last_mut() {
            piece.push_str(&rest);
        }
    }
    pieces
}

fn cut(mut pieces: Vec<String>, max_tokens: Option<u64>) -> (Said, Ending) {
    let most = max_tokens.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let ending = if pieces.len() > most { Ending::Cut } else { Ending::Complete };
    pieces.truncate(most);
    (Said::Text(pieces), ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str, max_tokens: Option<u64>) -> Asked {
        Asked {
            model: "mock".to_owned(),
            is_stream: false,
            wants_usage: true,
            max_tokens,
            has_tools: true,
            last: Last::User(text.to_owned()),
            words: words(text),
            tag: None,
        }
    }

    #[test]
    fn the_pieces_of_a_text_are_its_words_and_join_to_it() {
        for text in ["one two  three\nfour ", " a", "", "word", "  ", "Grüße, 世界 !"] {
            let pieces = pieces(text);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.len() as u64 <= words(text).max(1), "{pieces:?}");
        }
        assert_eq!(pieces("one two three").len(), 3);
    }

    #[test]
    fn an_answer_has_at_most_the_tokens_that_are_allowed() {
        let answer = Answer::to(&asked("one two three four", Some(2)), Extra::default());
        assert_eq!((answer.text().as_str(), answer.ending), ("one two", Ending::Cut));
        assert_eq!(answer.usage, Usage { input: 4, cached: 0, output: 2, reasoning: 0 });
    }

    #[test]
    fn a_tool_is_called_by_its_name_and_an_object_only() {
        let answer = Answer::to(&asked("call weather {\"city\":\"Oslo\"}", None), Extra { cached: 1, reasoning: 5 });
        let expected = Said::Tool { name: "weather".to_owned(), arguments: "{\"city\":\"Oslo\"}".to_owned() };
        assert_eq!(answer.said, expected);
        assert_eq!(answer.usage, Usage { input: 3, cached: 1, output: 7, reasoning: 5 });
        let answer = Answer::to(&asked("call me later", None), Extra::default());
        assert_eq!(answer.text(), "call me later");
    }
}
