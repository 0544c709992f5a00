//! Bytes for storage: variable-length integers and short texts, written to a vector and taken from a slice.

use holdfast_domain::{CreditUnit, Id, IdKind, Text};

/// The most bytes of a number: nine groups of seven bits, and one bit.
const NUMBER_BYTES_MAX: usize = 10;

/// Appends `number` in groups of seven bits, lowest first.
pub(crate) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while let [low, ..] = number.to_le_bytes()
        && number > 0x7f
    {
        bytes.push(low | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Appends a text of at most 255 bytes.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.push(u8::try_from(text.len()).expect("ids and reasons are at most 200 bytes"));
    bytes.extend_from_slice(text);
}

/// The unread rest of a stored value. Every method is `None` where the bytes are not what was written.
pub(crate) struct Taker<'a>(pub(crate) &'a [u8]);

impl<'a> Taker<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for (index, byte) in self.0.iter().enumerate().take(NUMBER_BYTES_MAX) {
            let bits = u64::from(byte & 0x7f);
            // The last group has one bit left.
            if index + 1 == NUMBER_BYTES_MAX && bits > 1 {
                return None;
            }
            number |= bits << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = self.0.get(index + 1..)?;
                // One number, one encoding: a last group of zero bits would be a second one.
                return (*byte != 0 || index == 0).then_some(number);
            }
        }
        None
    }

    pub(crate) fn amount(&mut self) -> Option<CreditUnit> {
        CreditUnit::new(self.number()?).ok()
    }

    pub(crate) fn id<K: IdKind>(&mut self) -> Option<Id<K>> {
        let length = usize::from(self.byte()?);
        Id::from_bytes(self.bytes(length)?).ok()
    }

    pub(crate) fn text(&mut self) -> Option<Text> {
        let length = usize::from(self.byte()?);
        std::str::from_utf8(self.bytes(length)?).ok()?.parse().ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_read_back(number: u64) {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut taker = Taker(&bytes);
            prop_assert_eq!(taker.number(), Some(number));
            prop_assert!(taker.is_empty());
        }

        #[test]
        fn whatever_is_read_has_that_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut taker = Taker(&bytes);
            if let Some(number) = taker.number() {
                let mut again = Vec::new();
                put_number(&mut again, number);
                prop_assert!(bytes.starts_with(&again));
            }
        }
    }
}
