//! The entry: what happened, as a balanced set of postings, with the guards that must hold for it to be admitted.
//!
//! The posting rules are one table, [`Event::postings`]: one arm per kind, no I/O.
//!
//! # Invariants
//! - **Balanced**: [`Postings::balanced`] is the only way to make postings, and it refuses any that do not sum to zero.
//! - **One owner**: [`Entry::of`] refuses an event that names another owner inside than the one whose accounts it posts to.

use crate::account::{Account, Side};
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

    /// Whether the event inside, where it names an owner too, names the same one.
    fn names_one_owner(&self) -> bool {
        match self {
            Self::Charge { owner, event: charge::Event::Reserved { owner: inside, .. }, .. }
            | Self::Escrow { owner, event: escrow::Event::Held(escrow::Escrowed { owner: inside, .. }), .. } => {
                owner == inside
            }
            Self::Minted(_) | Self::Charge { .. } | Self::Escrow { .. } => true,
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

    /// The postings of the entry that records this, if it can be one.
    pub fn entry_postings(&self) -> Result<Postings, EntryError> {
        if !self.names_one_owner() {
            return Err(EntryError::OwnerMismatch);
        }
        Ok(self.postings()?)
    }

    /// The posting rules: which accounts this changes, and by how much.
    pub fn postings(&self) -> Result<Postings, Unbalanced> {
        match self {
            Self::Minted(Mint { owner, amount, .. }) => moved(*amount, Account::Treasury, Account::Available(*owner)),
            Self::Charge { owner, event, .. } => charge_postings(*owner, event),
            Self::Escrow { id, owner, event } => escrow_postings(*id, *owner, event),
        }
    }
}

fn charge_postings(owner: OwnerId, event: &charge::Event) -> Result<Postings, Unbalanced> {
    let (available, held) = (Account::Available(owner), Account::Held(owner));
    match event {
        charge::Event::Reserved { amount, .. } | charge::Event::Increased { amount } => moved(*amount, available, held),
        charge::Event::Released { returned } | charge::Event::AutoReleased { returned } => {
            moved(*returned, held, available)
        }
        charge::Event::Voided { returned, .. } => moved(*returned, Account::Revenue, available),
        charge::Event::Committed { taken, finality: Finality::Final | Finality::Partial } => {
            commit_postings(owner, taken)
        }
        charge::Event::Started
        | charge::Event::Extended { .. }
        | charge::Event::Acked
        | charge::Event::Failed { .. } => Ok(Postings::NONE),
    }
}

fn commit_postings(owner: OwnerId, taken: &Taken) -> Result<Postings, Unbalanced> {
    let leaves_hold = taken.from_hold.checked_add(taken.returned)?;
    let back = Change::plus(taken.returned).checked_add(Change::minus(taken.from_available))?;
    Postings::balanced([
        Posting { account: Account::Held(owner), change: Change::minus(leaves_hold) },
        Posting { account: Account::Revenue, change: Change::plus(taken.charged()?) },
        Posting { account: Account::Available(owner), change: back },
    ])
}

fn escrow_postings(id: EscrowId, owner: OwnerId, event: &escrow::Event) -> Result<Postings, Unbalanced> {
    let (available, escrow) = (Account::Available(owner), Account::Escrow(id));
    match *event {
        escrow::Event::Held(escrow::Escrowed { amount, .. }) => moved(amount, available, escrow),
        escrow::Event::Settled { payee, amount } => moved(amount, escrow, Account::Payee(payee)),
        escrow::Event::Refunded { amount } => moved(amount, escrow, available),
        escrow::Event::PartiallySettled { payee, settled, refunded } => Postings::balanced([
            Posting { account: escrow, change: Change::minus(settled.checked_add(refunded)?) },
            Posting { account: Account::Payee(payee), change: Change::plus(settled) },
            Posting { account: available, change: Change::plus(refunded) },
        ]),
    }
}

/// A plain move of `amount` from one account to another.
fn moved(amount: CreditUnit, from: Account, to: Account) -> Result<Postings, Unbalanced> {
    Postings::balanced([
        Posting { account: from, change: Change::minus(amount) },
        Posting { account: to, change: Change::plus(amount) },
    ])
}

/// A signed change of one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posting {
    /// Which account.
    pub account: Account,
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

    /// Each posting.
    pub fn iter(&self) -> impl Iterator<Item = &Posting> {
        self.postings.iter().flatten()
    }

    /// The floors that they must not break: every guarded account that they take from.
    pub fn floors(&self) -> impl Iterator<Item = Guard> {
        let takes = |posting: &&Posting| posting.change < Change::ZERO && posting.account.side() == Side::Guarded;
        self.iter().filter(takes).map(|posting| Guard::Floor(posting.account))
    }
}

/// What must be true for an entry to be admitted, besides the state that it was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The account must not end below zero.
    Floor(Account),
}

/// What happened, with its postings and one owner: ready to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    event: Event,
    postings: Postings,
}

impl Entry {
    /// The entry that records `event`.
    pub fn of(event: Event) -> Result<Self, EntryError> {
        let postings = event.entry_postings()?;
        Ok(Self { event, postings })
    }

    /// What happened.
    #[must_use]
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// The event itself, once the entry has been admitted.
    #[must_use]
    pub fn into_event(self) -> Event {
        self.event
    }

    /// What it posts.
    #[must_use]
    pub const fn postings(&self) -> &Postings {
        &self.postings
    }

    /// The floors that it must not break.
    pub fn floors(&self) -> impl Iterator<Item = Guard> {
        self.postings.floors()
    }
}

/// Why an event cannot be an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryError {
    /// Its postings do not sum to zero, or their sum is out of range.
    Unbalanced,
    /// It is said to be of one owner, and names another inside.
    OwnerMismatch,
}

impl From<Unbalanced> for EntryError {
    fn from(Unbalanced: Unbalanced) -> Self {
        Self::Unbalanced
    }
}
