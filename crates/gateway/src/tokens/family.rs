//! Which tokenizer counts for which model, and what its count is worth.

use super::pieces::Pattern;
use super::text::{TextTokens, Tokenizer};
use super::vocabulary;

/// Models that share a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// OpenAI's models since GPT-4o, and the built-in ones.
    O200k,
    /// The same, with images that cost 33 times as much.
    O200kMini,
    /// OpenAI's models before them, and its embeddings.
    Cl100k,
    /// Anthropic's models: their tokenizer is not published.
    Claude,
    /// All others.
    Other,
}

const FAMILIES: [(&str, Family); 16] = [
    ("gpt-4o-mini", Family::O200kMini),
    ("gpt-4o", Family::O200k),
    ("chatgpt-4o", Family::O200k),
    ("gpt-4.1", Family::O200k),
    ("gpt-4.5", Family::O200k),
    ("gpt-5", Family::O200k),
    ("o1", Family::O200k),
    ("o3", Family::O200k),
    ("o4-", Family::O200k),
    ("codex-", Family::O200k),
    ("echo", Family::O200k),
    ("gpt-4", Family::Cl100k),
    ("gpt-3.5", Family::Cl100k),
    ("text-embedding-3", Family::Cl100k),
    ("text-embedding-ada", Family::Cl100k),
    ("claude", Family::Claude),
];

impl Family {
    /// The family of a model by its name, with or without its provider's before it.
    pub(crate) fn of_model(name: &str) -> Self {
        let own = name.rsplit('/').next().unwrap_or(name);
        // Some providers write `us.anthropic.claude-…`.
        if own.contains("claude") {
            return Self::Claude;
        }
        FAMILIES.iter().find(|(prefix, _)| own.starts_with(prefix)).map_or(Self::Other, |(_, family)| *family)
    }

    /// Its tokenizer; of unknown ones, that of the newest kind.
    pub(super) const fn tokenizer(self) -> Tokenizer {
        match self {
            Self::Cl100k => Tokenizer { pattern: Pattern::Cl100k, vocabulary: &vocabulary::CL100K },
            Self::O200k | Self::O200kMini | Self::Claude | Self::Other => {
                Tokenizer { pattern: Pattern::O200k, vocabulary: &vocabulary::O200K }
            }
        }
    }

    /// Whether the tokenizer is the model's own.
    pub(super) const fn is_exact(self) -> bool {
        match self {
            Self::O200k | Self::O200kMini | Self::Cl100k => true,
            Self::Claude | Self::Other => false,
        }
    }

    /// The most tokens that a text can be for these models.
    pub(super) fn bound(self, text: TextTokens) -> u64 {
        let TextTokens { counted, slack, bytes, beyond_ascii } = text;
        let most = if self.is_exact() {
            counted.saturating_add(slack)
        } else {
            counted.saturating_add(slack).saturating_mul(2).saturating_add(beyond_ascii)
        };
        most.min(bytes)
    }

    /// What an image counts as, and the most that it can.
    pub(super) fn image(self, detail: Option<&str>) -> (u64, u64) {
        match (self, detail) {
            // 85 + 170 for each of at most 8 tiles, or 1,536 patches times at most 2.46, or at full size 10,000 patches.
            (Self::O200k | Self::Cl100k, Some("original")) => (24_600, 24_600),
            (Self::O200k | Self::Cl100k, _) => (765, 3_779),
            // 2,833 + 5,667 for each tile.
            (Self::O200kMini, Some("low")) => (2_833, 2_833),
            (Self::O200kMini, _) => (25_501, 48_169),
            (Self::Claude, _) => (1_600, 4_800),
            (Self::Other, _) => (1_600, 16_384),
        }
    }

    /// What a message adds to the bound beside its four usual tokens.
    pub(super) const fn per_message(self) -> u64 {
        if self.is_exact() { 0 } else { 4 }
    }

    /// What a request adds to the bound: what a provider writes around the messages.
    pub(super) const fn per_request(self) -> u64 {
        if self.is_exact() { 16 } else { 128 }
    }

    /// What tools add to the bound, however many: Claude is told how to use them.
    pub(super) const fn for_tools(self) -> u64 {
        match self {
            Self::Claude => 600,
            Self::O200k | Self::O200kMini | Self::Cl100k => 16,
            Self::Other => 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_its_name() {
        for (name, family) in [
            ("gpt-4o", Family::O200k),
            ("openai/gpt-4o-2024-08-06", Family::O200k),
            ("gpt-4o-mini", Family::O200kMini),
            ("gpt-4.1-nano", Family::O200k),
            ("gpt-5-mini", Family::O200k),
            ("o3-mini", Family::O200k),
            ("holdfast/echo", Family::O200k),
            ("gpt-4-turbo", Family::Cl100k),
            ("azure/gpt-3.5-turbo", Family::Cl100k),
            ("text-embedding-3-small", Family::Cl100k),
            ("claude-sonnet-4-5", Family::Claude),
            ("bedrock/us.anthropic.claude-3-haiku", Family::Claude),
            ("llama-3", Family::Other),
            ("gpt-oss-120b", Family::Other),
            ("", Family::Other),
        ] {
            assert_eq!(Family::of_model(name), family, "{name}");
        }
    }
}
