//! Counts the tokens of texts, with work that is bounded whatever the text.
//!
//! A tokenizer first cuts a text into pieces (words, numbers, runs of signs or spaces) and then looks for tokens within each.
//! Ordinary pieces are short and quick. A piece of a megabyte costs seconds, so a run that is longer than any word is cut into
//! windows, and a window like the one before it is not looked at again. Long runs and dense text (which no language is: letters
//! without sense, of which every two or three are a token) cost twenty times as much as ordinary text, so only so much of
//! them is looked at. Whatever is not looked at counts as its bytes.

use tiktoken::CoreBpe;

/// The longest run of one kind of character that is left whole.
const RUN_BYTES_MAX: usize = 256;
/// The longest text that the tokenizer is given at once.
const CHUNK_BYTES: usize = 16 << 10;
/// How much of one request the tokenizer is given: a million tokens of ordinary text.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// How much of that may be long runs or dense.
const HARD_BYTES_MAX: usize = 256 << 10;
/// Text with fewer bytes than this to a token is dense; English has four or five.
const DENSE_BYTES_PER_TOKEN: usize = 3;
// A run that is cut must not be a chunk of its own.
const _: () = assert!(RUN_BYTES_MAX < CHUNK_BYTES);

/// What a cut can hide: the pieces on both sides of it.
const SLACK_PER_CUT: u64 = 2;

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
    tokenizer: &'static CoreBpe,
    text_left: usize,
    hard_left: usize,
}

impl Counter {
    pub(super) const fn new(tokenizer: &'static CoreBpe) -> Self {
        Self { tokenizer, text_left: TEXT_BYTES_MAX, hard_left: HARD_BYTES_MAX }
    }

    /// The tokens of `text`.
    pub(super) fn count(&mut self, text: &str) -> TextTokens {
        let beyond_ascii = if text.is_ascii() { 0 } else { text.bytes().filter(|byte| !byte.is_ascii()).count() };
        let mut tokens =
            TextTokens { counted: 0, slack: 0, bytes: number(text.len()), beyond_ascii: number(beyond_ascii) };
        for stretch in (Stretches { rest: text }) {
            match stretch {
                Stretch::Ordinary { text, is_last } => {
                    self.ordinary(text, &mut tokens);
                    tokens.slack += if is_last { 0 } else { SLACK_PER_CUT };
                }
                Stretch::Run(run) => self.run(run, &mut tokens),
            }
        }
        tokens
    }

    fn ordinary(&mut self, text: &str, tokens: &mut TextTokens) {
        let Some(left) = self.text_left.checked_sub(text.len()).filter(|_| self.hard_left > 0) else {
            return unseen(text, tokens);
        };
        let count = self.tokenizer.count(text);
        self.text_left = left;
        if count.saturating_mul(DENSE_BYTES_PER_TOKEN) > text.len() {
            self.hard_left = self.hard_left.saturating_sub(text.len());
        }
        tokens.counted += number(count);
    }

    fn run(&mut self, run: &str, tokens: &mut TextTokens) {
        let mut last: Option<(&str, u64)> = None;
        let mut rest = run;
        while !rest.is_empty() {
            let (window, after) = rest.split_at(rest.floor_char_boundary(RUN_BYTES_MAX));
            rest = after;
            let known = last.filter(|(like, _)| *like == window).map(|(_, count)| count);
            let left = self.hard_left.checked_sub(window.len());
            let count = match (known, left) {
                (Some(count), _) => count,
                (None, Some(left)) => {
                    self.hard_left = left;
                    number(self.tokenizer.count(window))
                }
                (None, None) => {
                    unseen(window, tokens);
                    continue;
                }
            };
            last = Some((window, count));
            tokens.counted += count;
            tokens.slack += SLACK_PER_CUT;
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

/// A part of a text.
enum Stretch<'a> {
    /// Short pieces, as most text is.
    Ordinary { text: &'a str, is_last: bool },
    /// One run of one kind of character that is longer than any word.
    Run(&'a str),
}

/// What a tokenizer tells apart first.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Kind {
    Letter,
    Digit,
    Space,
    Sign,
}

impl Kind {
    fn of(character: char) -> Self {
        match character {
            'a'..='z' | 'A'..='Z' => Self::Letter,
            // Digits come in threes, so a run of them is no long piece.
            '0'..='9' => Self::Digit,
            ' ' | '\n' | '\r' | '\t' => Self::Space,
            '\0'..='\x7f' => Self::Sign,
            _ if character.is_alphabetic() => Self::Letter,
            _ if character.is_whitespace() => Self::Space,
            _ if character.is_numeric() => Self::Digit,
            _ => Self::Sign,
        }
    }
}

/// The stretches of a text, in order.
struct Stretches<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Stretches<'a> {
    type Item = Stretch<'a>;

    fn next(&mut self) -> Option<Stretch<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.ordinary_end();
        if end > 0 {
            let (text, after) = self.rest.split_at(end);
            self.rest = after;
            return Some(Stretch::Ordinary { text, is_last: after.is_empty() });
        }
        let (run, after) = self.rest.split_at(self.run_end());
        self.rest = after;
        Some(Stretch::Run(run))
    }
}

impl Stretches<'_> {
    /// Where a long run begins, or where there is enough for once.
    fn ordinary_end(&self) -> usize {
        if self.rest.len() <= RUN_BYTES_MAX {
            return self.rest.len();
        }
        let mut run: (Option<Kind>, usize) = (None, 0);
        for (at, character) in self.rest.char_indices() {
            let kind = Kind::of(character);
            if run.0 != Some(kind) || kind == Kind::Digit {
                if at >= CHUNK_BYTES {
                    return at;
                }
                run = (Some(kind), at);
            } else if at - run.1 >= RUN_BYTES_MAX {
                return run.1;
            }
        }
        self.rest.len()
    }

    /// Where the run that the rest begins with ends.
    fn run_end(&self) -> usize {
        let mut characters = self.rest.char_indices();
        let kind = characters.next().map(|(_, first)| Kind::of(first));
        let other = characters.find(|(_, character)| Some(Kind::of(*character)) != kind);
        other.map_or(self.rest.len(), |(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
