//! How many tokens of input a request has, before anybody is asked: for the hold, which must cover what it will cost.
//!
//! A tokenizer of the model's family counts the text ([`Family`]); `counted` is the estimate, and `bound` is what the hold is
//! made for:
//!
//! | part of the request | `bound` |
//! | --- | --- |
//! | text, OpenAI's models | their own tokenizer's count (`o200k_base`, `cl100k_base`) |
//! | text, Claude and unknown models | twice the `o200k_base` count plus every byte that is not ASCII; at most the bytes |
//! | a message | 4 tokens (8 for unknown models); a name 1 more; the whole 3 + 16 (3 + 128 for Claude and unknown models) |
//! | tools, schemas | names and texts as above, 3 tokens per field, 16 per tool; 600 once for Claude, 1,500 per built-in tool |
//! | an image | OpenAI 3,779 (48,169 for `gpt-4o-mini`, 24,600 at `original` detail), Claude 4,800, others 16,384 |
//! | a sound | a token per 50 bytes |
//!
//! No token of a byte-level tokenizer is shorter than a byte, so the bytes of a text bound its tokens whatever the model.
//! Where the provider reads what is not in the request (a stored conversation, a file, the pages of a web search), nothing
//! here can bound it: [`InputTokens::hidden`] names the field, and the model's context has to be the bound.
//!
//! The tokenizers are OpenAI's, counting only ([`text`], [`pieces`], [`vocabulary`]): their tables are part of the program, so
//! nobody waits for them, and of memory they take the four megabytes that they have in its file. A kilobyte of prose takes
//! 10 to 20 µs.
//!
//! # Invariants
//! - The work is bounded: see [`text`]. Text beyond what is looked at counts as its bytes.

mod body;
mod characters;
mod family;
mod pieces;
mod text;
mod vocabulary;

pub(crate) use body::{Shape, count};
pub(crate) use family::Family;

/// The tokens of a text that a model of `family` wrote, as well as they can be counted here.
pub(crate) fn count_text(family: Family, text: &str) -> u64 {
    text::Counter::new(family.tokenizer()).count(text).counted
}

/// The tokens of a request's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InputTokens {
    /// The best estimate.
    pub(crate) counted: u64,
    /// As many at most, as far as the request itself says.
    pub(crate) bound: u64,
    /// A field that makes the provider read what is not in the request, so that `bound` does not hold.
    pub(crate) hidden: Option<&'static str>,
}
