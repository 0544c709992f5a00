//! Cuts a text into the pieces within which tokens are looked for: words, numbers, runs of signs or of spaces.
//!
//! OpenAI defines the pieces by a regular expression, of which the first alternative that matches counts. Here each
//! alternative is a function from where a piece begins to where it ends. So the work is linear in the text, and needs none of
//! the memory that a general engine does.

use super::characters::Kind;

/// Which expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Of `o200k_base`: words end where a small letter is followed by a large one, and may have an apostrophe's ending.
    O200k,
    /// Of `cl100k_base`: words are letters of any case, and an apostrophe's ending is a piece of its own.
    Cl100k,
}

/// The pieces of a text, in order; together they are the text.
pub(super) struct Pieces<'a> {
    text: &'a str,
    at: usize,
    pattern: Pattern,
}

impl<'a> Pieces<'a> {
    pub(super) const fn new(text: &'a str, pattern: Pattern) -> Self {
        Self { text, at: 0, pattern }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let here = Here { text: self.text, from: self.at };
        let end = match self.pattern {
            Pattern::O200k => here.o200k()?,
            Pattern::Cl100k => here.cl100k()?,
        };
        let piece = self.text.get(self.at..end)?;
        self.at = end;
        Some(piece)
    }
}

/// Where a piece begins.
#[derive(Clone, Copy)]
struct Here<'a> {
    text: &'a str,
    from: usize,
}

impl Here<'_> {
    fn o200k(self) -> Option<usize> {
        let first = self.kind(self.from)?;
        self.cased_word(first).or_else(|| self.other(first, b"\r\n/"))
    }

    fn cl100k(self) -> Option<usize> {
        let first = self.kind(self.from)?;
        let ending = self.after_ending(self.from);
        ending.or_else(|| self.plain_word(first)).or_else(|| self.other(first, b"\r\n"))
    }

    fn kind(self, at: usize) -> Option<(Kind, usize)> {
        Kind::at(self.text, at)
    }

    fn byte(self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// Where the run of such characters ends that begins at `at`.
    fn run(self, mut at: usize, is_of_it: impl Fn(Kind) -> bool) -> usize {
        while let Some((kind, length)) = self.kind(at)
            && is_of_it(kind)
        {
            at += length;
        }
        at
    }

    /// `[^\r\n\p{L}\p{N}]`: what may stand before the letters of a word. Says where they begin then.
    fn after_lead(self, (kind, length): (Kind, usize)) -> Option<usize> {
        let is_lead = match kind {
            Kind::Sign | Kind::Mark => true,
            Kind::Space => !matches!(self.byte(self.from), Some(b'\r' | b'\n')),
            Kind::Upper | Kind::Lower | Kind::Caseless | Kind::Digit => false,
        };
        is_lead.then_some(self.from + length)
    }

    /// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`, or the same
    /// with `+` and `*` the other way round.
    fn cased_word(self, first: (Kind, usize)) -> Option<usize> {
        let end = match self.after_lead(first) {
            None => self.small_word(self.from).or_else(|| self.large_word(self.from)),
            Some(letters) => self
                .small_word(letters)
                // A mark that no word follows is one.
                .or_else(|| (first.0 == Kind::Mark).then_some(letters))
                .or_else(|| self.large_word(letters)),
        }?;
        Some(self.after_ending(end).unwrap_or(end))
    }

    /// The first of the two, from its letters on.
    fn small_word(self, letters: usize) -> Option<usize> {
        let mut at = letters;
        let mut after_caseless = None;
        while let Some((kind, length)) = self.kind(at) {
            if kind == Kind::Lower {
                return Some(self.run(at, Kind::is_lower));
            }
            if !kind.is_upper() {
                break;
            }
            at += length;
            if kind.is_lower() {
                after_caseless = Some(at);
            }
        }
        // No small letter follows, so the last one that can be both is given back and taken as the small one.
        after_caseless
    }

    /// The second, where the first has not matched.
    fn large_word(self, letters: usize) -> Option<usize> {
        let end = self.run(letters, Kind::is_upper);
        (end > letters).then_some(end)
    }

    /// `[^\r\n\p{L}\p{N}]?\p{L}+`.
    fn plain_word(self, first: (Kind, usize)) -> Option<usize> {
        let letters = self.after_lead(first).unwrap_or(self.from);
        let end = self.run(letters, Kind::is_letter);
        (end > letters).then_some(end)
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, at `at`. The long `ſ` is an `s`, too.
    fn after_ending(self, at: usize) -> Option<usize> {
        let rest = self.text.as_bytes().get(at..)?;
        let (b'\'', ending) = rest.split_first()? else { return None };
        let length = match ending {
            [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => 1,
            [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] | [0xC5, 0xBF, ..] => 2,
            _ => return None,
        };
        Some(at + 1 + length)
    }

    /// `\p{N}{1,3}`, ` ?[^\s\p{L}\p{N}]+[\r\n]*` with these characters at its end, or spaces.
    fn other(self, (kind, length): (Kind, usize), tail: &[u8]) -> Option<usize> {
        match kind {
            Kind::Digit => Some(self.number(self.from + length)),
            Kind::Space => Some(self.signs_after_space(tail).unwrap_or_else(|| self.spaces())),
            Kind::Sign | Kind::Mark | Kind::Upper | Kind::Lower | Kind::Caseless => Some(self.signs(self.from, tail)),
        }
    }

    /// The rest of a number of at most three digits.
    fn number(self, second: usize) -> usize {
        let after = |at: usize| match self.kind(at) {
            Some((Kind::Digit, length)) => at + length,
            Some(_) | None => at,
        };
        let third = after(second);
        if third == second { second } else { after(third) }
    }

    fn signs_after_space(self, tail: &[u8]) -> Option<usize> {
        let signs = self.from + 1;
        let is_space = self.byte(self.from) == Some(b' ');
        let is_sign = is_space && self.kind(signs).is_some_and(|(kind, _)| kind.is_sign());
        is_sign.then(|| self.signs(signs, tail))
    }

    fn signs(self, at: usize, tail: &[u8]) -> usize {
        let mut end = self.run(at, Kind::is_sign);
        while self.byte(end).is_some_and(|byte| tail.contains(&byte)) {
            end += 1;
        }
        end
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line's end; else all but the last, which belongs to what follows it.
    fn spaces(self) -> usize {
        let (mut at, mut last, mut after_line) = (self.from, self.from, None);
        while let Some((Kind::Space, length)) = self.kind(at) {
            last = at;
            at += length;
            if matches!(self.byte(last), Some(b'\r' | b'\n')) {
                after_line = Some(at);
            }
        }
        let is_followed = at < self.text.len() && last > self.from;
        after_line.unwrap_or(if is_followed { last } else { at })
    }
}
