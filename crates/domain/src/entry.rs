//! The entry: what happened, as a balanced set of postings, with the guards that must hold for it to be admitted.
//!
//! The posting rules are one table, [`Event::postings`]: one arm per kind, no I/O.
//!
//! # Invariants
//! - **Balanced**: [`Postings::balanced`] is the only way to make postings, and it refuses any that do not sum to zero.
//! - **One owner**: an event names one, and its postings name places, so none can post to another's accounts.

use crate::account::Account;
use crate::budget::Budget;
use crate::charge::{self, Finality, Taken};
use crate::escrow;
use crate::id::{ChargeId, EscrowId, OwnerId, PayeeId, Reason};
use crate::money::{Change, CreditUnit, Overflow};
use std::fmt;

/// What happened, to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Credits came into being.
    Minted(Mint),
    /// A charge moved on.
    Charge {
        /// Which charge.
        id: ChargeId,
        /// Whose.
        owner: OwnerId,
        /// How.
        event: charge::Event,
    },
    /// An escrow moved on.
    Escrow {
        /// Which escrow.
        id: EscrowId,
        /// Whose.
        owner: OwnerId,
        /// How.
        event: escrow::Event,
        /// On whose word it ended, if the queue's.
        ruling: Option<escrow::Ruling>,
    },
}

/// Credits that came into being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mint {
    /// For whom.
    pub owner: OwnerId,
    /// How many.
    pub amount: CreditUnit,
    /// Why.
    pub reason: Reason,
}

/// A mint of nothing, which would be an entry without postings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroMint;

/// Decides a mint. Where credits come from is no question here, so only nothing is refused.
pub fn mint(owner: OwnerId, amount: CreditUnit, reason: Reason) -> Result<Event, ZeroMint> {
    if amount.is_zero() { Err(ZeroMint) } else { Ok(Event::Minted(Mint { owner, amount, reason })) }
}

/// The kind of an entry: its name in the journal, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is named like the entry kind that `name` gives")]
pub enum Kind {
    CreditMint,
    BillingReserve,
    BillingStart,
    BillingIncrease,
    BillingExtend,
    BillingCommit,
    BillingRelease,
    BillingAutoRelease,
    BillingVoid,
    BillingFinalizeAck,
    BillingFinalizeFail,
    BillingProgress,
    EscrowHold,
    EscrowSettle,
    EscrowRefund,
    EscrowPartialSettle,
}

impl Kind {
    /// Its name in the journal.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreditMint => "credit_mint",
            Self::BillingReserve => "billing_reserve",
            Self::BillingStart => "billing_start",
            Self::BillingIncrease => "billing_increase",
            Self::BillingExtend => "billing_extend",
            Self::BillingCommit => "billing_commit",
            Self::BillingRelease => "billing_release",
            Self::BillingAutoRelease => "billing_auto_release",
            Self::BillingVoid => "billing_void",
            Self::BillingFinalizeAck => "billing_finalize_ack",
            Self::BillingFinalizeFail => "billing_finalize_fail",
            Self::BillingProgress => "billing_progress",
            Self::EscrowHold => "escrow_hold",
            Self::EscrowSettle => "escrow_settle",
            Self::EscrowRefund => "escrow_refund",
            Self::EscrowPartialSettle => "escrow_partial_settle",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Event {
    /// The kind of entry that records this.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Minted(_) => Kind::CreditMint,
            Self::Charge { event, .. } => match event {
                charge::Event::Reserved { .. } => Kind::BillingReserve,
                charge::Event::Started => Kind::BillingStart,
                charge::Event::Noted { .. } => Kind::BillingProgress,
                charge::Event::Increased { .. } => Kind::BillingIncrease,
                charge::Event::Extended { .. } => Kind::BillingExtend,
                charge::Event::Committed { .. } => Kind::BillingCommit,
                charge::Event::Released { .. } => Kind::BillingRelease,
                charge::Event::AutoReleased { .. } => Kind::BillingAutoRelease,
                charge::Event::Voided { .. } => Kind::BillingVoid,
                charge::Event::Acked => Kind::BillingFinalizeAck,
                charge::Event::Failed { .. } => Kind::BillingFinalizeFail,
            },
            Self::Escrow { event, .. } => match event {
                escrow::Event::Held(_) => Kind::EscrowHold,
                escrow::Event::Settled { .. } => Kind::EscrowSettle,
                escrow::Event::Refunded { .. } => Kind::EscrowRefund,
                escrow::Event::PartiallySettled { .. } => Kind::EscrowPartialSettle,
            },
        }
    }

    /// Whose money it moves.
    #[must_use]
    pub const fn owner(&self) -> OwnerId {
        match self {
            Self::Minted(mint) => mint.owner,
            Self::Charge { owner, .. } | Self::Escrow { owner, .. } => *owner,
        }
    }

    /// What the charge that it begins counts against.
    #[must_use]
    pub fn budgets(&self) -> &[Budget] {
        match self {
            Self::Charge { event: charge::Event::Reserved { budgets, .. }, .. } => budgets.as_slice(),
            Self::Minted(_) | Self::Charge { .. } | Self::Escrow { .. } => &[],
        }
    }

    /// Who is paid by it.
    #[must_use]
    pub const fn payee(&self) -> Option<PayeeId> {
        match self {
            Self::Escrow { event, .. } => match event {
                escrow::Event::Settled { payee, .. } | escrow::Event::PartiallySettled { payee, .. } => Some(*payee),
                escrow::Event::Held(_) | escrow::Event::Refunded { .. } => None,
            },
            Self::Minted(_) | Self::Charge { .. } => None,
        }
    }

    /// The account that stands at `place` in this entry; `None` if the entry has no such place.
    #[must_use]
    pub const fn account(&self, place: Place) -> Option<Account> {
        match (place, self) {
            (Place::Available, _) => Some(Account::Available(self.owner())),
            (Place::Held, _) => Some(Account::Held(self.owner())),
            (Place::Escrow, Self::Escrow { id, .. }) => Some(Account::Escrow(*id)),
            (Place::Payee, _) => match self.payee() {
                Some(payee) => Some(Account::Payee(payee)),
                None => None,
            },
            (Place::Revenue, _) => Some(Account::Revenue),
            (Place::Treasury, _) => Some(Account::Treasury),
            (Place::Escrow, Self::Minted(_) | Self::Charge { .. }) => None,
        }
    }

    /// The accounts that this changes, and by how much.
    pub fn changes(&self) -> Result<impl Iterator<Item = (Account, Change)> + use<'_>, Unbalanced> {
        let postings = self.postings()?;
        Ok(postings.into_iter().filter_map(|posting| Some((self.account(posting.place)?, posting.change))))
    }

    /// The posting rules: which places this changes, and by how much.
    pub fn postings(&self) -> Result<Postings, Unbalanced> {
        match self {
            Self::Minted(Mint { amount, .. }) => moved(*amount, Place::Treasury, Place::Available),
            Self::Charge { event, .. } => charge_postings(event),
            Self::Escrow { event, .. } => escrow_postings(event),
        }
    }
}

fn charge_postings(event: &charge::Event) -> Result<Postings, Unbalanced> {
    let (available, held) = (Place::Available, Place::Held);
    match event {
        charge::Event::Reserved { amount, .. } | charge::Event::Increased { amount } => moved(*amount, available, held),
        charge::Event::Released { returned } | charge::Event::AutoReleased { returned } => {
            moved(*returned, held, available)
        }
        charge::Event::Voided { returned, .. } => moved(*returned, Place::Revenue, available),
        charge::Event::Committed { taken, finality: Finality::Final | Finality::Partial } => commit_postings(taken),
        charge::Event::Started
        | charge::Event::Noted { .. }
        | charge::Event::Extended { .. }
        | charge::Event::Acked
        | charge::Event::Failed { .. } => Ok(Postings::NONE),
    }
}

fn commit_postings(taken: &Taken) -> Result<Postings, Unbalanced> {
    let leaves_hold = taken.from_hold.checked_add(taken.returned)?;
    let back = Change::plus(taken.returned).checked_add(Change::minus(taken.from_available))?;
    Postings::balanced([
        Posting { place: Place::Held, change: Change::minus(leaves_hold) },
        Posting { place: Place::Revenue, change: Change::plus(taken.charged()?) },
        Posting { place: Place::Available, change: back },
    ])
}

fn escrow_postings(event: &escrow::Event) -> Result<Postings, Unbalanced> {
    let (available, escrow) = (Place::Available, Place::Escrow);
    match *event {
        escrow::Event::Held(escrow::Escrowed { amount, .. }) => moved(amount, available, escrow),
        escrow::Event::Settled { amount, .. } => moved(amount, escrow, Place::Payee),
        escrow::Event::Refunded { amount } => moved(amount, escrow, available),
        escrow::Event::PartiallySettled { settled, refunded, .. } => Postings::balanced([
            Posting { place: escrow, change: Change::minus(settled.checked_add(refunded)?) },
            Posting { place: Place::Payee, change: Change::plus(settled) },
            Posting { place: available, change: Change::plus(refunded) },
        ]),
    }
}

/// A plain move of `amount` from one place to another.
fn moved(amount: CreditUnit, from: Place, to: Place) -> Result<Postings, Unbalanced> {
    Postings::balanced([
        Posting { place: from, change: Change::minus(amount) },
        Posting { place: to, change: Change::plus(amount) },
    ])
}

/// Where in the books an entry posts: an account, but for the name. An entry has one owner, and at most one payee and one
/// escrow, so the place and the entry together name the account ([`Event::account`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// What the owner can spend.
    Available,
    /// What the owner's open reservations have set aside.
    Held,
    /// The escrow.
    Escrow,
    /// What the payee has earned.
    Payee,
    /// [`Account::Revenue`].
    Revenue,
    /// [`Account::Treasury`].
    Treasury,
}

impl Place {
    /// Whether a balance there may go below zero. Only the books' outer ends may: everybody else spends what they have.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            Self::Available | Self::Held | Self::Escrow | Self::Payee => Side::Guarded,
            Self::Revenue | Self::Treasury => Side::Open,
        }
    }
}

/// Whether a balance has a floor of zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Never below zero, under any concurrency.
    Guarded,
    /// May be negative: it stands for the world outside the books.
    Open,
}

/// A signed change at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posting {
    /// Where.
    pub place: Place,
    /// By how much.
    pub change: Change,
}

/// The most postings that an entry has.
const POSTINGS_MAX: usize = 3;

/// The postings of one entry: they sum to zero, and none of them is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postings {
    postings: [Option<Posting>; POSTINGS_MAX],
}

/// Postings that do not sum to zero, or whose sum is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unbalanced;

impl From<Overflow> for Unbalanced {
    fn from(Overflow: Overflow) -> Self {
        Self
    }
}

impl Postings {
    /// An entry that moves no money.
    pub const NONE: Self = Self { postings: [None; POSTINGS_MAX] };

    /// The postings, if they balance. Changes of zero are left out.
    pub fn balanced<const N: usize>(postings: [Posting; N]) -> Result<Self, Unbalanced> {
        const { assert!(N <= POSTINGS_MAX, "an entry has at most three postings") };
        let mut sum = Change::ZERO;
        let mut kept = [None; POSTINGS_MAX];
        let mut free = kept.iter_mut();
        for posting in postings {
            sum = sum.checked_add(posting.change)?;
            if posting.change != Change::ZERO {
                *free.next().ok_or(Unbalanced)? = Some(posting);
            }
        }
        if sum == Change::ZERO { Ok(Self { postings: kept }) } else { Err(Unbalanced) }
    }

    /// The change at one place.
    #[must_use]
    pub fn at(&self, place: Place) -> Change {
        self.iter().find(|posting| posting.place == place).map_or(Change::ZERO, |posting| posting.change)
    }

    /// Each posting.
    pub fn iter(&self) -> impl Iterator<Item = &Posting> {
        self.postings.iter().flatten()
    }

    /// The floors that they must not break: every guarded place that they take from.
    pub fn floors(&self) -> impl Iterator<Item = Guard> {
        let takes = |posting: &&Posting| posting.change < Change::ZERO && posting.place.side() == Side::Guarded;
        self.iter().filter(takes).map(|posting| Guard::Floor(posting.place))
    }
}

impl IntoIterator for Postings {
    type Item = Posting;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Posting>, POSTINGS_MAX>>;
    fn into_iter(self) -> Self::IntoIter {
        self.postings.into_iter().flatten()
    }
}

/// What must be true for an entry to be admitted, besides the state that it was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The balance must not end below zero.
    Floor(Place),
}
