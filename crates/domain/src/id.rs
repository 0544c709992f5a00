//! Ids and short texts: parsed once at the door, stored inline, one text per id.
//!
//! An [`Id`] holds its bytes in place, so that a request crosses threads without an allocation. The kinds are types: a
//! charge's id cannot be passed where an owner's is wanted.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest free text (a reason, an actor), in bytes.
pub const TEXT_BYTES_MAX: usize = 200;

/// What an id names.
pub trait IdKind: Copy + Eq + fmt::Debug + 'static {
    /// What to call such an id in a message.
    const NAME: &'static str;
}

macro_rules! id_kinds {
    ($($(#[$doc:meta])* $kind:ident as $alias:ident, $name:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $kind {}
        impl IdKind for $kind {
            const NAME: &'static str = $name;
        }
        $(#[$doc])*
        pub type $alias = Id<$kind>;
    )*};
}

id_kinds! {
    /// Who owns credits: the `{id}` of `user:{id}:available`.
    Owner as OwnerId, "account id";
    /// A charge, which is also the id of the request that it pays for.
    OfCharge as ChargeId, "reservation id";
    /// What the peer is to be told of a charge.
    OfObligation as ObligationId, "obligation id";
    /// An escrow.
    OfEscrow as EscrowId, "escrow id";
    /// A piece of work in the queue, which an escrow pays for.
    OfItem as ItemId, "queue item id";
    /// Who earns an escrow.
    Payee as PayeeId, "payee id";
    /// In whose name a budget is: a key, a user, a team, an organisation.
    OfBudget as BudgetId, "budget id";
    /// A caller's idempotency key.
    OfKey as Key, "idempotency key";
    /// A short tag without spaces: a feature type, a model's name in a path.
    Tag as Label, "label";
}

/// 1 to 64 of `A-Z a-z 0-9 _ -`: nothing that looks like something else, needs escaping, or has two spellings.
#[derive(Clone, Copy)]
pub struct Id<K> {
    len: u8,
    bytes: [u8; ID_BYTES_MAX],
    kind: PhantomData<K>,
}

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnId {
    /// What was expected there: [`IdKind::NAME`].
    pub expected: &'static str,
}

impl fmt::Display for NotAnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} must be 1 to {ID_BYTES_MAX} characters of A-Z a-z 0-9 _ -", self.expected)
    }
}
impl std::error::Error for NotAnId {}

impl<K: IdKind> Id<K> {
    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("only ASCII is ever stored")
    }

    /// The id's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).expect("the length is at most ID_BYTES_MAX")
    }

    /// Reads an id from bytes, as [`FromStr`] does from text.
    pub fn from_bytes(text: &[u8]) -> Result<Self, NotAnId> {
        let refused = NotAnId { expected: K::NAME };
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() | matches!(byte, b'_' | b'-');
        // Without a way out in the middle, many bytes are looked at together.
        let all_plain = || text.iter().fold(true, |all, byte| all & plain(byte));
        if text.is_empty() || text.len() > ID_BYTES_MAX || !all_plain() {
            return Err(refused);
        }
        let mut bytes = [0; ID_BYTES_MAX];
        bytes.get_mut(..text.len()).ok_or(refused)?.copy_from_slice(text);
        let len = u8::try_from(text.len()).map_err(|_| refused)?;
        Ok(Self { len, bytes, kind: PhantomData })
    }
}

impl<K: IdKind> FromStr for Id<K> {
    type Err = NotAnId;
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        Self::from_bytes(text.as_bytes())
    }
}

impl<K: IdKind> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}
impl<K: IdKind> Eq for Id<K> {}
impl<K: IdKind> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K: IdKind> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}
impl<K: IdKind> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}
impl<K: IdKind> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
impl<K: IdKind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A short text for people: one line, no control characters, at most [`TEXT_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Box<str>);

/// Why a person did something.
pub type Reason = Text;

/// Why a text is not a [`Text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAText;

impl fmt::Display for NotAText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a reason is 1 to {TEXT_BYTES_MAX} bytes of text on one line, without control characters")
    }
}
impl std::error::Error for NotAText {}

impl Text {
    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Text {
    type Err = NotAText;
    fn from_str(text: &str) -> Result<Self, NotAText> {
        let fits = (1..=TEXT_BYTES_MAX).contains(&text.len());
        if fits && !text.chars().any(char::is_control) { Ok(Self(text.into())) } else { Err(NotAText) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_plain_ascii_of_bounded_length() {
        let longest = "x".repeat(ID_BYTES_MAX);
        for good in ["a", "0xAbC", "01J-_z", longest.as_str()] {
            assert_eq!(good.parse::<OwnerId>().unwrap().as_str(), good);
        }
        let too_long = "x".repeat(ID_BYTES_MAX.saturating_add(1));
        for bad in
            ["", " ", "a b", "a:b", "a/b", "é", "а", "a\0", "a\n", "\u{200b}a", "\u{202e}a", "../x", too_long.as_str()]
        {
            assert!(bad.parse::<OwnerId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_refused_id_is_called_by_its_name() {
        fn check<K: IdKind>(name: &str) {
            let message = "a b".parse::<Id<K>>().unwrap_err().to_string();
            assert_eq!(message, format!("the {name} must be 1 to 64 characters of A-Z a-z 0-9 _ -"));
        }
        check::<Owner>("account id");
        check::<OfCharge>("reservation id");
        check::<OfEscrow>("escrow id");
        check::<OfItem>("queue item id");
        check::<Payee>("payee id");
        check::<OfBudget>("budget id");
        check::<OfKey>("idempotency key");
        check::<Tag>("label");
    }

    #[test]
    fn ids_are_equal_by_text_alone() {
        assert_eq!("ab".parse::<OwnerId>().unwrap(), OwnerId::from_bytes(b"ab").unwrap());
        assert_ne!("ab".parse::<OwnerId>().unwrap(), "aB".parse::<OwnerId>().unwrap());
    }

    #[test]
    fn a_reason_is_one_bounded_line() {
        assert!("Überweisung vom 3. Mai".parse::<Reason>().is_ok());
        assert!("".parse::<Reason>().is_err());
        assert!("a\nb".parse::<Reason>().is_err());
        assert!("x".repeat(TEXT_BYTES_MAX.saturating_add(1)).parse::<Reason>().is_err());
    }
}
