//! A step of the queue as a note in the journal, and the same bytes for an item in its file.
//!
//! ```text
//!  note      [number of the step │ version 1, kind │ …]   kind 1: an item was put    [item]
//!                                                         kind 2: it was taken up    [id, at]
//!                                                         kind 3: it ended           [id, at, verdict]
//!  item      [id, user, payee, escrow, feature, amount, priority, queued at, metadata, stage]
//! ```
//!
//! Texts have their length before them, numbers are little-endian. A changed meaning is a new version; old ones stay readable.

use holdfast_domain::queue::{Cause, End, Intake, Item, Stage, Verdict};
use holdfast_domain::{CreditUnit, Id, IdKind, ItemId, Timestamp};
use holdfast_engine::queue::METADATA_BYTES_MAX;
use holdfast_engine::{cause_of, cause_tag};
use holdfast_journal::RECORD_BYTES_MAX;

const VERSION: u8 = 1;

// The step's number, version and kind, five ids with their lengths, numbers, the metadata with its length, and the longest stage.
const _: () = assert!(8 + 2 + 5 * 65 + 8 + 4 + 8 + 3 + METADATA_BYTES_MAX + 1 + 9 + 8 + 2 + 16 <= RECORD_BYTES_MAX);

/// One step.
#[expect(clippy::large_enum_variant, reason = "a step is moved once and read in order, and a third of them are puts")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An item was put.
    Put(Item),
    /// It was taken up.
    Start {
        /// Which.
        id: ItemId,
        /// When.
        at: Timestamp,
    },
    /// It ended.
    End {
        /// Which.
        id: ItemId,
        /// When.
        at: Timestamp,
        /// How.
        verdict: Verdict,
    },
}

impl Step {
    /// Which item.
    #[must_use]
    pub const fn id(&self) -> ItemId {
        match self {
            Self::Put(item) => item.intake.id,
            Self::Start { id, .. } | Self::End { id, .. } => *id,
        }
    }

    /// The item after it; `None` if it cannot follow what was there.
    pub(super) fn after(self, before: Option<&Item>) -> Option<Item> {
        match (self, before) {
            (Self::Put(item), None) => Some(item),
            (Self::Start { at, .. }, Some(item)) => item.start(at).ok(),
            (Self::End { at, verdict, .. }, Some(item)) => item.end(verdict, at).ok(),
            (Self::Put(_), Some(_)) | (Self::Start { .. } | Self::End { .. }, None) => None,
        }
    }

    /// Writes it as the note with this number.
    pub(super) fn note(&self, number: u64, bytes: &mut Vec<u8>) {
        bytes.extend(number.to_le_bytes());
        self.encode(bytes);
    }

    /// The number of a note's step, and the step, if it is one. `None` if the note is none of a queue's.
    #[must_use]
    pub fn of_note(note: &[u8]) -> Option<(u64, Option<Self>)> {
        let (number, step) = note.split_first_chunk()?;
        Some((u64::from_le_bytes(*number), Self::decode(step)))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(VERSION);
        match self {
            Self::Put(item) => {
                bytes.push(1);
                put_item(bytes, item);
            }
            Self::Start { id, at } => {
                bytes.push(2);
                put_text(bytes, id.as_bytes());
                put_time(bytes, *at);
            }
            Self::End { id, at, verdict } => {
                bytes.push(3);
                put_text(bytes, id.as_bytes());
                put_time(bytes, *at);
                put_verdict(bytes, *verdict);
            }
        }
    }

    /// Reads a step. `None` if it is not one, or has more to it.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut taker = Taker(bytes);
        (taker.byte()? == VERSION).then_some(())?;
        let step = match taker.byte()? {
            1 => Self::Put(taker.item()?),
            2 => Self::Start { id: taker.id()?, at: taker.time()? },
            3 => Self::End { id: taker.id()?, at: taker.time()?, verdict: taker.verdict()? },
            _ => return None,
        };
        taker.0.is_empty().then_some(step)
    }
}

/// The whole of an item, for the file.
pub(super) fn encode_item(item: &Item) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    put_item(&mut bytes, item);
    bytes
}

/// Reads what [`encode_item`] wrote.
pub(super) fn decode_item(bytes: &[u8]) -> Option<Item> {
    let mut taker = Taker(bytes);
    (taker.byte()? == VERSION).then_some(())?;
    let item = taker.item()?;
    taker.0.is_empty().then_some(item)
}

fn put_item(bytes: &mut Vec<u8>, item: &Item) {
    let Item { intake, queued_at, stage } = item;
    let Intake { id, user, payee, escrow, amount, feature, priority, metadata } = intake;
    for text in [id.as_bytes(), user.as_bytes(), payee.as_bytes(), escrow.as_bytes(), feature.as_bytes()] {
        put_text(bytes, text);
    }
    bytes.extend(amount.units().to_le_bytes());
    bytes.extend(priority.to_le_bytes());
    put_time(bytes, *queued_at);
    match metadata {
        None => bytes.push(0),
        Some(words) => {
            bytes.push(1);
            bytes.extend(u16::try_from(words.len()).expect("metadata is bounded").to_le_bytes());
            bytes.extend_from_slice(words.as_bytes());
        }
    }
    match *stage {
        Stage::Queued { drop_at: None } => bytes.push(1),
        Stage::Queued { drop_at: Some(at) } => {
            bytes.push(2);
            put_time(bytes, at);
        }
        Stage::InProgress { started_at } => {
            bytes.push(3);
            put_time(bytes, started_at);
        }
        Stage::Ended(End { verdict, started_at, ended_at }) => {
            bytes.push(4);
            bytes.push(u8::from(started_at.is_some()));
            if let Some(at) = started_at {
                put_time(bytes, at);
            }
            put_time(bytes, ended_at);
            put_verdict(bytes, verdict);
        }
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.push(u8::try_from(text.len()).expect("an id has at most 64 bytes"));
    bytes.extend_from_slice(text);
}

fn put_time(bytes: &mut Vec<u8>, at: Timestamp) {
    bytes.extend(at.millis().to_le_bytes());
}

fn put_verdict(bytes: &mut Vec<u8>, verdict: Verdict) {
    match verdict {
        Verdict::Finish => bytes.push(1),
        Verdict::Abandon { cause } => bytes.extend([2, cause_tag(cause)]),
        Verdict::Partial { settle, refund, cause } => {
            bytes.extend([3, cause_tag(cause)]);
            bytes.extend(settle.units().to_le_bytes());
            bytes.extend(refund.units().to_le_bytes());
        }
    }
}

/// The unread rest of a record. Every method is `None` where the bytes are not what was written.
struct Taker<'a>(&'a [u8]);

impl<'a> Taker<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Zero or one, and nothing else.
    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn id<K: IdKind>(&mut self) -> Option<Id<K>> {
        let length = usize::from(self.byte()?);
        Id::from_bytes(self.bytes(length)?).ok()
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.array().map(u64::from_le_bytes).map(Timestamp::from_millis)
    }

    fn amount(&mut self) -> Option<CreditUnit> {
        CreditUnit::new(u64::from_le_bytes(self.array()?)).ok()
    }

    fn cause(&mut self) -> Option<Cause> {
        cause_of(self.byte()?)
    }

    fn verdict(&mut self) -> Option<Verdict> {
        match self.byte()? {
            1 => Some(Verdict::Finish),
            2 => Some(Verdict::Abandon { cause: self.cause()? }),
            3 => {
                let (cause, settle, refund) = (self.cause()?, self.amount()?, self.amount()?);
                Some(Verdict::Partial { settle, refund, cause })
            }
            _ => None,
        }
    }

    fn metadata(&mut self) -> Option<Option<Box<str>>> {
        if !self.flag()? {
            return Some(None);
        }
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let words = std::str::from_utf8(self.bytes(length)?).ok()?;
        Some(Some(words.into()))
    }

    fn stage(&mut self) -> Option<Stage> {
        match self.byte()? {
            1 => Some(Stage::Queued { drop_at: None }),
            2 => Some(Stage::Queued { drop_at: Some(self.time()?) }),
            3 => Some(Stage::InProgress { started_at: self.time()? }),
            4 => {
                let started_at = if self.flag()? { Some(self.time()?) } else { None };
                let (ended_at, verdict) = (self.time()?, self.verdict()?);
                Some(Stage::Ended(End { verdict, started_at, ended_at }))
            }
            _ => None,
        }
    }

    fn item(&mut self) -> Option<Item> {
        let (id, user, payee) = (self.id()?, self.id()?, self.id()?);
        let (escrow, feature, amount) = (self.id()?, self.id()?, self.amount()?);
        let priority = i32::from_le_bytes(self.array()?);
        let (queued_at, metadata) = (self.time()?, self.metadata()?);
        let intake = Intake { id, user, payee, escrow, amount, feature, priority, metadata };
        Some(Item { intake, queued_at, stage: self.stage()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_journal::Hex;

    fn item(stage: Stage) -> Item {
        let intake = Intake {
            id: "qi_1".parse().unwrap(),
            user: "alice".parse().unwrap(),
            payee: "model-a".parse().unwrap(),
            escrow: "esc_1".parse().unwrap(),
            amount: CreditUnit::new(1_000_000).unwrap(),
            feature: "song".parse().unwrap(),
            priority: -2,
            metadata: Some("{\"a\":1}".into()),
        };
        Item { intake, queued_at: Timestamp::from_millis(1_700_000_000_000), stage }
    }

    fn steps() -> Vec<Step> {
        let (id, at) = ("qi_1".parse().unwrap(), Timestamp::from_millis(1_700_000_000_001));
        let units = |units| CreditUnit::new(units).unwrap();
        let partial =
            Verdict::Partial { settle: units(400_000), refund: units(600_000), cause: Cause::PartialDelivery };
        vec![
            Step::Put(item(Stage::Queued { drop_at: Some(at) })),
            Step::Start { id, at },
            Step::End { id, at, verdict: Verdict::Finish },
            Step::End { id, at, verdict: Verdict::Abandon { cause: Cause::RopeDropTimeout } },
            Step::End { id, at, verdict: partial },
        ]
    }

    fn encoded(step: &Step) -> Vec<u8> {
        let mut bytes = Vec::new();
        step.encode(&mut bytes);
        bytes
    }

    #[test]
    fn records_of_version_1_are_these_bytes() {
        let golden = include_str!("golden_v1.txt");
        let written: Vec<String> = steps().iter().map(|step| Hex(&encoded(step)).to_string()).collect();
        assert_eq!(written, golden.lines().collect::<Vec<_>>(), "a stored record's meaning never changes");
    }

    #[test]
    fn what_is_written_reads_back_and_nothing_less_or_more_does() {
        for step in steps() {
            let mut bytes = encoded(&step);
            assert_eq!(Step::decode(&bytes), Some(step));
            for length in 0..bytes.len() {
                assert_eq!(Step::decode(&bytes[..length]), None, "the first {length} bytes");
            }
            bytes.push(0);
            assert_eq!(Step::decode(&bytes), None);
        }
    }

    #[test]
    fn an_item_in_any_stage_reads_back() {
        let at = Timestamp::from_millis(5);
        let verdict = Verdict::Abandon { cause: Cause::QualityIssue };
        for stage in [
            Stage::Queued { drop_at: None },
            Stage::InProgress { started_at: at },
            Stage::Ended(End { verdict, started_at: None, ended_at: at }),
            Stage::Ended(End { verdict: Verdict::Finish, started_at: Some(at), ended_at: at }),
        ] {
            let item = item(stage);
            assert_eq!(decode_item(&encode_item(&item)), Some(item));
        }
    }

    #[test]
    fn the_longest_item_fits_a_record() {
        let mut longest = item(Stage::Queued { drop_at: Some(Timestamp::from_millis(u64::MAX)) });
        let text = "x".repeat(64);
        longest.intake = Intake {
            id: text.parse().unwrap(),
            user: text.parse().unwrap(),
            payee: text.parse().unwrap(),
            escrow: text.parse().unwrap(),
            feature: text.parse().unwrap(),
            metadata: Some("x".repeat(METADATA_BYTES_MAX).into()),
            ..longest.intake
        };
        let bytes = encoded(&Step::Put(longest.clone()));
        assert!(bytes.len() <= RECORD_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Step::decode(&bytes), Some(Step::Put(longest)));
    }
}
