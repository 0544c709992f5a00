//! The kinds of characters that tokenizers tell apart, by the Unicode tables of the regular expressions that define them.

/// Which kind of character one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All that is none of the others.
    Sign,
    /// A letter that is large, or begins large (`Lu`, `Lt`).
    Upper,
    /// A letter that is small (`Ll`).
    Lower,
    /// A letter that is neither (`Lm`, `Lo`).
    Caseless,
    /// Something that changes the letter before it (`M`).
    Mark,
    /// `N`.
    Digit,
    /// `\s`.
    Space,
}

/// In the order of the build script's numbers.
const KINDS: [Kind; 7] = [Kind::Sign, Kind::Upper, Kind::Lower, Kind::Caseless, Kind::Mark, Kind::Digit, Kind::Space];

/// The block of kinds for each 256 characters.
static BLOCKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/characters.blocks"));
static BLOCK_KINDS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/characters.kinds"));

const ASCII: [Kind; 128] = {
    let mut kinds = [Kind::Sign; 128];
    let mut byte = 0;
    while byte < 128_u8 {
        kinds[byte as usize] = match byte {
            b'A'..=b'Z' => Kind::Upper,
            b'a'..=b'z' => Kind::Lower,
            b'0'..=b'9' => Kind::Digit,
            b'\t'..=b'\r' | b' ' => Kind::Space,
            _ => Kind::Sign,
        };
        byte += 1;
    }
    kinds
};

impl Kind {
    /// The kind of the character that begins at `at`, and its bytes; none at the end of the text.
    #[inline]
    pub(super) fn at(text: &str, at: usize) -> Option<(Self, usize)> {
        let first = *text.as_bytes().get(at)?;
        match ASCII.get(usize::from(first)) {
            Some(kind) => Some((*kind, 1)),
            None => text.get(at..)?.chars().next().map(|character| (Self::of(character), character.len_utf8())),
        }
    }

    fn of(character: char) -> Self {
        let [.., high, middle, low] = u32::from(character).to_be_bytes();
        let block = BLOCKS.get(usize::from(high) << 8 | usize::from(middle)).copied().unwrap_or_default();
        let kind = BLOCK_KINDS.get(usize::from(block) << 8 | usize::from(low)).copied().unwrap_or_default();
        KINDS.get(usize::from(kind)).copied().unwrap_or(Self::Sign)
    }

    /// Whether words may begin with it: `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
    pub(super) const fn is_upper(self) -> bool {
        matches!(self, Self::Upper | Self::Caseless | Self::Mark)
    }

    /// Whether words may go on with it: `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
    pub(super) const fn is_lower(self) -> bool {
        matches!(self, Self::Lower | Self::Caseless | Self::Mark)
    }

    /// `\p{L}`.
    pub(super) const fn is_letter(self) -> bool {
        matches!(self, Self::Upper | Self::Lower | Self::Caseless)
    }

    /// `[^\s\p{L}\p{N}]`.
    pub(super) const fn is_sign(self) -> bool {
        matches!(self, Self::Sign | Self::Mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_for_ascii_is_that_of_all_characters() {
        for byte in 0..128_u8 {
            let text = char::from(byte).to_string();
            assert_eq!(Kind::at(&text, 0), Some((Kind::of(char::from(byte)), 1)), "{byte}");
        }
    }

    #[test]
    fn characters_are_of_the_kinds_that_unicode_says() {
        for (character, kind) in [
            ('É', Kind::Upper),
            ('ǅ', Kind::Upper),
            ('ß', Kind::Lower),
            ('ʰ', Kind::Caseless),
            ('漢', Kind::Caseless),
            ('\u{301}', Kind::Mark),
            ('²', Kind::Digit),
            ('Ⅷ', Kind::Digit),
            ('\u{3000}', Kind::Space),
            ('€', Kind::Sign),
            ('🚀', Kind::Sign),
            ('\u{200d}', Kind::Sign),
            (char::MAX, Kind::Sign),
        ] {
            assert_eq!(Kind::of(character), kind, "{character:?}");
        }
        // Where the standard library has the same sets, they agree; it may know a newer Unicode, which has more digits.
        for character in '\0'..=char::MAX {
            let kind = Kind::of(character);
            assert_eq!(kind == Kind::Space, character.is_whitespace(), "{character:?}");
            assert!(kind != Kind::Digit || character.is_numeric(), "{character:?}");
        }
    }
}
