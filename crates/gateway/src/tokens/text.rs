//! Counts the tokens of texts, with work that is bounded whatever the text.
//!
//! A tokenizer first cuts a text into pieces (words, numbers, runs of signs or spaces) and then looks for tokens within each.
//! Most pieces are tokens, which takes one look. To find the tokens of another takes some looks for each byte, and steps as many
//! as the square of its length. So a piece that is longer than any word is cut into windows, a window like the one before it
//! is not looked at again, and only so much of a request is looked at so closely. Whatever is not counts as its bytes.

use super::pieces::{Pattern, Pieces};
use super::vocabulary::{Scratch, Vocabulary};

/// The longest piece that is left whole.
const PIECE_BYTES_MAX: usize = 256;
/// How much of one request is looked at: a million tokens of ordinary text.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// How much of that may be pieces that are no tokens, at 100 to 300 ns a byte: a twentieth of prose or of code is, all of
/// Chinese without commas, and all of letters without sense.
const CLOSE_BYTES_MAX: usize = 1 << 20;

/// What a cut can hide: the pieces on both sides of it.
const SLACK_PER_CUT: u64 = 2;

/// How texts become tokens.
pub(super) struct Tokenizer {
    /// How a text is cut.
    pub(super) pattern: Pattern,
    /// What is looked for in the pieces.
    pub(super) vocabulary: &'static Vocabulary,
}

/// The tokens of one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextTokens {
    /// By the tokenizer; a quarter of the bytes where it did not look.
    pub(super) counted: u64,
    /// How many more there can be, because of cuts and of what was not looked at.
    pub(super) slack: u64,
    /// Bytes of the text, which are never fewer than its tokens.
    pub(super) bytes: u64,
    /// Bytes of it that are not ASCII.
    pub(super) beyond_ascii: u64,
}

/// Counts the texts of one request.
pub(super) struct Counter {
    tokenizer: Tokenizer,
    scratch: Scratch,
    text_left: usize,
    close_left: usize,
}

impl Counter {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, scratch: Scratch::default(), text_left: TEXT_BYTES_MAX, close_left: CLOSE_BYTES_MAX }
    }

    /// The tokens of `text`.
    pub(super) fn count(&mut self, text: &str) -> TextTokens {
        let beyond_ascii = if text.is_ascii() { 0 } else { text.bytes().filter(|byte| !byte.is_ascii()).count() };
        let mut tokens =
            TextTokens { counted: 0, slack: 0, bytes: number(text.len()), beyond_ascii: number(beyond_ascii) };
        let (seen, unseen_rest) = text.split_at(text.floor_char_boundary(self.text_left));
        self.text_left -= seen.len();
        for piece in Pieces::new(seen, self.tokenizer.pattern) {
            if self.tokenizer.vocabulary.contains(piece.as_bytes()) {
                tokens.counted += 1;
            } else if piece.len() <= PIECE_BYTES_MAX {
                self.piece(piece, &mut tokens);
            } else {
                self.long_piece(piece, &mut tokens);
            }
        }
        if !unseen_rest.is_empty() {
            unseen(unseen_rest, &mut tokens);
            tokens.slack += SLACK_PER_CUT;
        }
        tokens
    }

    /// A piece that is no token, or a window of one. Says how many tokens it is, if it is looked at.
    fn piece(&mut self, piece: &str, tokens: &mut TextTokens) -> Option<u64> {
        let Some(left) = self.close_left.checked_sub(piece.len()) else {
            unseen(piece, tokens);
            return None;
        };
        self.close_left = left;
        let count = number(self.tokenizer.vocabulary.count(piece.as_bytes(), &mut self.scratch));
        tokens.counted += count;
        Some(count)
    }

    fn long_piece(&mut self, piece: &str, tokens: &mut TextTokens) {
        let mut last: Option<(&str, u64)> = None;
        let mut rest = piece;
        while !rest.is_empty() {
            let (window, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
            rest = after;
            tokens.slack += SLACK_PER_CUT;
            match last.filter(|(like, _)| *like == window) {
                Some((_, count)) => tokens.counted += count,
                None => last = self.piece(window, tokens).map(|count| (window, count)),
            }
        }
    }
}

/// A text that nobody looks at: its bytes are the bound.
fn unseen(text: &str, tokens: &mut TextTokens) {
    let bytes = number(text.len());
    tokens.counted += bytes / 4;
    tokens.slack += bytes - bytes / 4;
}

fn number(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
