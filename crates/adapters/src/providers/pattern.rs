//! Events of a chat that differ from an earlier one in their words only: nearly all of a stream. They need not be parsed again.
//!
//! # Invariants
//! - What is known of an event in this way is what parsing it would have said: the same bytes up to the words lead a parser into
//!   the same string, words without quotes and escapes keep it there, and the same bytes follow.

/// An event, without its words.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    before: Vec<u8>,
    /// Empty as long as nothing was learnt: behind words stands a quote at least.
    after: Vec<u8>,
}

impl Pattern {
    /// Learns from an event that says nothing but these words, which are a part of its own bytes.
    pub(crate) fn learn(&mut self, data: &[u8], words: &str) {
        let begin = words.as_ptr().addr().checked_sub(data.as_ptr().addr());
        let parts = begin.and_then(|begin| {
            let (before, rest) = data.split_at_checked(begin)?;
            Some((before, rest.strip_prefix(words.as_bytes())?))
        });
        self.before.clear();
        self.after.clear();
        if let Some((before, after)) =
            parts.filter(|(before, after)| before.ends_with(b"\"") && after.starts_with(b"\""))
        {
            self.before.extend_from_slice(before);
            self.after.extend_from_slice(after);
        }
    }

    /// The words of an event that is like what was learnt; none if it must be parsed.
    pub(crate) fn words<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        let words =
            data.strip_suffix(&self.after[..]).filter(|_| !self.after.is_empty())?.strip_prefix(&self.before[..])?;
        let is_plain = words.iter().all(|byte| *byte >= b' ' && !matches!(byte, b'"' | b'\\'));
        std::str::from_utf8(words).ok().filter(|_| is_plain)
    }
}
