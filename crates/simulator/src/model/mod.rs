//! A second ledger, written from the specification alone: what every request must be answered, and every balance after
//! it.
//!
//! It is slow and plain on purpose. It shares the vocabulary of the engine (ids, commands, receipts), so that answers
//! can be compared whole, and none of its decisions: no `decide`, no `apply`, no posting rules, no fingerprint.
//!
//! # Invariants
//! - Only what is applied is remembered: a refused request leaves no trace, and its key stays free.
//! - Every entry can be taken back, newest first, because a crash takes back what was never durable.

mod budgets;
mod charges;
mod escrows;
mod history;

pub use history::{Past, PastPayee};

use charges::ChargeRow;
use escrows::EscrowRow;
use history::{LifeBefore, Undo};
use holdfast_domain::charge::{self, Finality, Reserve};
use holdfast_domain::{ChargeId, CreditUnit, EscrowId, Event, Key, Mint, OwnerId, PayeeId, Timestamp, escrow};
use holdfast_engine::{Answer, Command, LifeState, Outcome, Receipt, Refusal, Request};
use std::collections::BTreeMap;

/// The most that any amount or guarded balance may be.
const AMOUNT_MAX: i128 = 1_000_000_000_000_000_000;

/// The second ledger.
#[derive(Debug, Default)]
pub struct Model {
    owners: BTreeMap<OwnerId, OwnerRow>,
    payees: BTreeMap<PayeeId, PayeeRow>,
    charges: BTreeMap<ChargeId, ChargeRow>,
    escrows: BTreeMap<EscrowId, EscrowRow>,
    keys: BTreeMap<Key, u64>,
    system: SystemRow,
    history: Vec<Past>,
    open_holds_max: u32,
}

/// An owner's balances and the end of the owner's history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerRow {
    /// What can be spent.
    pub available: i128,
    /// What is set aside.
    pub held: i128,
    /// The last entry.
    pub last: u64,
    /// How many entries.
    pub entries: u64,
    /// How many holds are open.
    pub open: u32,
}

/// A payee's balance and the end of the payee's history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PayeeRow {
    /// What was earned.
    pub balance: i128,
    /// The last entry.
    pub last: u64,
    /// How many entries.
    pub entries: u64,
}

/// The outer ends of the books, all escrows together, and the time of the newest entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemRow {
    /// `system:revenue`.
    pub revenue: i128,
    /// `treasury:usdc_received`.
    pub treasury: i128,
    /// Every escrow together.
    pub escrowed: i128,
    /// The time of the newest entry, in milliseconds.
    pub last_at: u64,
}

/// An entry about to be admitted.
struct Draft {
    owner: OwnerId,
    event: Event,
    life: Life,
    moves: Moves,
}

/// What an entry does to balances.
#[derive(Debug, Clone, Copy, Default)]
struct Moves {
    available: i128,
    held: i128,
    payee: Option<(PayeeId, i128)>,
    escrowed: i128,
    revenue: i128,
    treasury: i128,
}

/// The life that an entry leads to.
#[derive(Debug, Clone, Copy)]
enum Life {
    None,
    Charge(ChargeId, ChargeRow),
    Escrow(EscrowId, EscrowRow),
}

/// Why nothing is done.
enum No {
    /// Because of the request itself.
    Refused(Refusal),
    /// Because of the state; a repetition of what led there gets its first answer again.
    WrongState { last: u64, refusal: Refusal },
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Amounts of zero or out of range; the text is for people and is not compared.
const fn invalid_amount() -> Refusal {
    Refusal::InvalidAmount("")
}

fn unit(amount: i128) -> CreditUnit {
    let units = u64::try_from(amount).ok();
    units.and_then(|units| CreditUnit::new(units).ok()).expect("the range is checked before an amount is made")
}

fn units(amount: CreditUnit) -> i128 {
    i128::from(amount.units())
}

/// Whether two commands ask for the same. An escrow's id is made up by whoever asks, and limits are set by others, so they
/// are no part of the question.
fn is_same(one: &Command, two: &Command) -> bool {
    match (one, two) {
        (Command::Reserve { charge: one, reserve: asked }, Command::Reserve { charge: two, reserve: again }) => {
            one == two && *asked == Reserve { budgets: asked.budgets.clone(), ..again.clone() }
        }
        (Command::Hold { hold: one, .. }, Command::Hold { hold: two, .. }) => one == two,
        (
            Command::Hold { .. }
            | Command::Mint { .. }
            | Command::Reserve { .. }
            | Command::Charge { .. }
            | Command::Escrow { .. },
            _,
        ) => one == two,
    }
}

/// Whether the same words can be meant twice, so that only a key tells a repetition from a second wish.
const fn can_be_meant_twice(command: &Command) -> bool {
    matches!(
        command,
        Command::Mint { .. }
            | Command::Hold { .. }
            | Command::Charge {
                command: charge::Command::Increase { .. }
                    | charge::Command::Extend { .. }
                    | charge::Command::Commit { finality: Finality::Partial, .. },
                ..
            }
    )
}

impl Model {
    /// A ledger without entries.
    #[must_use]
    pub fn new(open_holds_max: u32) -> Self {
        Self { open_holds_max, ..Self::default() }
    }

    /// What `request` must be answered at this moment of the wall clock; what it does is done when this returns.
    pub fn decide(&mut self, request: &Request, clock_ms: u64) -> Answer {
        let now = clock_ms.max(self.system.last_at);
        if let Some(&offset) = request.key.as_ref().and_then(|key| self.keys.get(key)) {
            let past = self.past(offset).ok_or(Refusal::KeyReused)?;
            let same = is_same(&past.request.command, &request.command);
            return if same { Ok(Outcome::Replayed(past.receipt.clone())) } else { Err(Refusal::KeyReused) };
        }
        if request.key.is_none() && can_be_meant_twice(&request.command) {
            return Err(Refusal::KeyRequired);
        }
        match self.draft(request, now) {
            Ok(draft) => self.admit(draft, request, now),
            Err(No::Refused(refusal)) => Err(refusal),
            // A key that was never used makes it another request, whatever its body.
            Err(No::WrongState { refusal, .. }) if request.key.is_some() => Err(refusal),
            Err(No::WrongState { last, refusal }) => {
                let first = self.life(last).find(|past| is_same(&past.request.command, &request.command));
                first.map(|past| Outcome::Replayed(past.receipt.clone())).ok_or(refusal)
            }
        }
    }

    fn draft(&self, request: &Request, now: u64) -> Result<Draft, No> {
        match &request.command {
            Command::Mint { amount, .. } if amount.is_zero() => Err(invalid_amount().into()),
            Command::Mint { owner, amount, reason } => Ok(Draft {
                owner: *owner,
                event: Event::Minted(Mint { owner: *owner, amount: *amount, reason: reason.clone() }),
                life: Life::None,
                moves: Moves { available: units(*amount), treasury: -units(*amount), ..Moves::default() },
            }),
            Command::Reserve { charge, reserve } => self.reserve(*charge, reserve, now),
            Command::Charge { charge, command } => self.move_charge(*charge, command, now),
            Command::Hold { escrow, hold } => self.hold(*escrow, hold, Timestamp::from_millis(now)),
            Command::Escrow { escrow, command, ruling } => {
                self.move_escrow(*escrow, (*command, *ruling), request.key.is_some())
            }
        }
    }

    /// Admits an entry if no balance leaves its range, and remembers how to take it back.
    fn admit(&mut self, draft: Draft, request: &Request, now: u64) -> Answer {
        let Draft { owner: id, event, life, moves } = draft;
        let before = self.owners.get(&id).copied();
        let offset = self.history.len() as u64 + 1;
        let mut owner = before.unwrap_or_default();
        if before.is_some_and(|row| row.available + moves.available < 0) {
            let (available, required) = (unit(owner.available), unit(-moves.available));
            return Err(Refusal::InsufficientBalance { available, required });
        }
        let mut system = self.system;
        system.revenue += moves.revenue;
        system.treasury += moves.treasury;
        system.escrowed += moves.escrowed;
        system.last_at = now;
        let previous = (owner.last, owner.entries);
        owner.available += moves.available;
        owner.held += moves.held;
        (owner.last, owner.entries) = (offset, owner.entries + 1);
        let payee = moves.payee.map(|(id, amount)| {
            let before = self.payees.get(&id).copied();
            let row = before.unwrap_or_default();
            (id, before, PayeeRow { balance: row.balance + amount, last: offset, entries: row.entries + 1 })
        });
        let in_range = |balance: i128| (0..=AMOUNT_MAX).contains(&balance);
        let guarded = [owner.available, owner.held, payee.map_or(0, |(_, _, row)| row.balance)];
        let open = [system.revenue, system.treasury, system.escrowed];
        if !guarded.into_iter().all(in_range)
            || !open.into_iter().all(|balance| i64::try_from(balance).is_ok())
            || !self.usage_stays_in_range(&event, moves.available, now)
        {
            return Err(invalid_amount());
        }
        let undo = Undo {
            owner: (id, before),
            payee: payee.map(|(id, before, _)| (id, before)),
            life: self.put_life(life, offset, &mut owner),
            system: self.system,
        };
        self.owners.insert(id, owner);
        if let Some((id, _, row)) = payee {
            self.payees.insert(id, row);
        }
        self.system = system;
        if let Some(key) = request.key {
            self.keys.insert(key, offset);
        }
        let receipt = Receipt {
            offset,
            at: Timestamp::from_millis(now),
            event: Box::new(event),
            state: life.state(),
            available: unit(owner.available),
            held: unit(owner.held),
        };
        let payee = payee.map(|(_, before, row)| {
            let before = before.unwrap_or_default();
            PastPayee { balance: row.balance, previous: before.last, number: row.entries }
        });
        self.history.push(Past::new(request.clone(), receipt.clone(), moves.available, previous, payee, undo));
        Ok(Outcome::Applied(receipt))
    }

    /// Puts a life where its entry leads it, and says what it was before.
    fn put_life(&mut self, life: Life, offset: u64, owner: &mut OwnerRow) -> LifeBefore {
        match life {
            Life::None => LifeBefore::None,
            Life::Charge(id, row) => {
                let before = self.charges.insert(id, ChargeRow { last: offset, ..row });
                let was_open = before.is_some_and(|row| row.is_open());
                owner.open = owner.open + u32::from(row.is_open()) - u32::from(was_open);
                LifeBefore::Charge(id, before)
            }
            Life::Escrow(id, row) => LifeBefore::Escrow(id, self.escrows.insert(id, EscrowRow { last: offset, ..row })),
        }
    }
}

impl Life {
    const fn state(&self) -> LifeState {
        match self {
            Self::None => LifeState::None,
            Self::Charge(_, row) => LifeState::Charge(row.state),
            Self::Escrow(_, row) => LifeState::Escrow(row.state),
        }
    }
}

/// What the auditor and the workload look at.
impl Model {
    /// Every owner.
    pub fn owners(&self) -> impl Iterator<Item = (&OwnerId, &OwnerRow)> {
        self.owners.iter()
    }

    /// Every payee.
    pub fn payees(&self) -> impl Iterator<Item = (&PayeeId, &PayeeRow)> {
        self.payees.iter()
    }

    /// One owner.
    #[must_use]
    pub fn owner(&self, id: OwnerId) -> Option<&OwnerRow> {
        self.owners.get(&id)
    }

    /// The outer ends of the books.
    #[must_use]
    pub const fn system(&self) -> &SystemRow {
        &self.system
    }

    /// Every escrow that still holds something, and how much.
    pub fn open_escrows(&self) -> impl Iterator<Item = (EscrowId, i128)> {
        self.escrows
            .iter()
            .filter(|(_, row)| row.state == escrow::State::Held)
            .map(|(id, row)| (*id, units(row.amount)))
    }

    /// Every escrow with its state.
    pub fn escrows(&self) -> impl Iterator<Item = (EscrowId, escrow::State)> {
        self.escrows.iter().map(|(id, row)| (*id, row.state))
    }

    /// Every key that was used, and the entry that it made.
    pub fn keys(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.keys.iter().map(|(key, offset)| (key, *offset))
    }

    /// What an escrow holds or held.
    #[must_use]
    pub fn escrow_amount(&self, id: EscrowId) -> Option<CreditUnit> {
        self.escrows.get(&id).map(|row| row.amount)
    }
}
