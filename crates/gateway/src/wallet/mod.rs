//! The wallet: it sets money aside in escrow, and moves it on when the queue says so.
//!
//! ```text
//!  queue: decides ──▶ Instruction (every field in the clear, and a token that binds them)
//!                          │ one process, or two over HTTP
//!                          ▼
//!  wallet: token good? ──▶ amount and user are the escrow's? ──▶ books: an entry with the queue's ruling
//! ```
//!
//! # Invariants
//! - The wallet never decides: nothing leaves an escrow here but on a token that is good for just that.
//! - What is said about an escrow is kept before it is held, and is that of the request which held it.

pub(crate) mod authorization;
mod numbers;
mod secrets;

pub(crate) use authorization::NotAuthorized;
pub(crate) use numbers::Checks;
pub(crate) use secrets::Secrets;

use crate::books::{Books, EscrowLife};
use crate::failure::Failure;
use crate::identity;
use crate::node::{Node, Running};
use crate::wire::ids;
use holdfast_adapters::escrow_metadata::{EscrowMetadata, IfThere, Kept, MetadataFailed};
use holdfast_domain::escrow::{self, Escrow, Escrowed, Hold, Ruling};
use holdfast_domain::queue::Order;
use holdfast_domain::{Account, Change, CreditUnit, EscrowId, Event, Key, Label, OwnerId, PayeeId, Timestamp};
use holdfast_engine::{Balance, Command, Outcome, Refusal, Request};
use holdfast_journal::failpoint;
use std::sync::Arc;

/// What the ids of escrows begin with that follow from their keys.
const PREFIX: &str = "esc_";

/// An escrow as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EscrowSeen {
    pub(crate) id: EscrowId,
    /// Who pays.
    pub(crate) owner: OwnerId,
    pub(crate) escrowed: Escrowed,
    /// How it ended, if it has.
    pub(crate) end: Option<EscrowEnd>,
    /// What the caller said about it: a JSON object.
    pub(crate) metadata: Option<Box<str>>,
}

/// The end of an escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EscrowEnd {
    pub(crate) event: escrow::Event,
    /// On whose word; an operator's has none.
    pub(crate) ruling: Option<Ruling>,
    pub(crate) at: Timestamp,
}

impl EscrowSeen {
    /// The escrow itself.
    pub(crate) fn escrow(&self) -> Escrow {
        match self.state() {
            escrow::State::Held => Escrow::Held(self.escrowed),
            escrow::State::Settled => Escrow::Settled(self.escrowed),
            escrow::State::Refunded => Escrow::Refunded(self.escrowed),
            escrow::State::Partial => Escrow::Partial(self.escrowed),
        }
    }

    /// The state that it is in.
    pub(crate) fn state(&self) -> escrow::State {
        match self.end.map(|end| end.event) {
            None | Some(escrow::Event::Held(_)) => escrow::State::Held,
            Some(escrow::Event::Settled { .. }) => escrow::State::Settled,
            Some(escrow::Event::Refunded { .. }) => escrow::State::Refunded,
            Some(escrow::Event::PartiallySettled { .. }) => escrow::State::Partial,
        }
    }
}

/// One word of the queue to the wallet: every bound field in the clear, and the token that binds them.
#[derive(Clone)]
pub(crate) struct Instruction {
    pub(crate) escrow: EscrowId,
    /// Who pays.
    pub(crate) user: OwnerId,
    /// What the escrow holds.
    pub(crate) amount: CreditUnit,
    pub(crate) order: Order,
    /// The same word again is known by it.
    pub(crate) key: Key,
    pub(crate) token: String,
}

/// Whether an earlier request did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replayed {
    /// This one did.
    No,
    /// An earlier one with the same key did; nothing was written now.
    Yes,
}

/// What somebody has here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Balances {
    /// As one who pays; `None` if never credited.
    pub(crate) owner: Option<Balance>,
    /// As one who is paid; `None` if never paid.
    pub(crate) earned: Option<Change>,
}

/// Why the wallet did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WalletFailed {
    #[error(transparent)]
    NotAuthorized(#[from] NotAuthorized),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Metadata(#[from] MetadataFailed),
}

impl WalletFailed {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::NotAuthorized(refused) => refused.code(),
            Self::Refused(refusal) => refusal.code(),
            Self::Metadata(failed) => failed.code(),
        }
    }

    /// Whether others were in the way, nothing was done, and the same request in a moment may well be.
    pub(crate) const fn is_retryable(&self) -> bool {
        matches!(self, Self::Refused(Refusal::Overtaken))
    }
}

/// The wallet in this process.
pub(crate) struct Wallet {
    books: Books,
    secrets: Arc<Secrets>,
    metadata: EscrowMetadata,
    checks: Checks,
}

impl Wallet {
    /// The wallet of a running node, which acts on tokens that these secrets signed.
    pub(crate) fn of(node: &Node, secrets: Arc<Secrets>) -> Result<Self, Failure> {
        let metadata = match &node.engine {
            Running::Embedded(_) => EscrowMetadata::in_directory(&node.data)?,
            Running::Postgres(ledger) => EscrowMetadata::in_database(ledger.database().clone()),
        };
        Ok(Self { books: node.books.clone(), secrets, metadata, checks: Checks::default() })
    }

    /// How often tokens were good, and how often not.
    pub(crate) const fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Sets money aside. The same key gives the same escrow.
    pub(crate) async fn hold(
        &self,
        hold: Hold,
        key: Key,
        metadata: Option<Box<str>>,
        actor: Label,
    ) -> Result<(EscrowSeen, Replayed), WalletFailed> {
        let escrow = ids::of_key(PREFIX, key);
        let kept = match &metadata {
            Some(metadata) => Some(self.metadata.put(escrow, metadata.clone(), IfThere::Stays).await?),
            None => None,
        };
        failpoint::pass("wallet.before_hold");
        let request = Request { key: Some(key), actor, command: Command::Hold { escrow, hold } };
        let outcome = self.books.submit(request).await?;
        // What was there is of a request that was refused: of all with this key, this one held the money.
        if let (Outcome::Applied(_), Some(Kept::WasThere), Some(metadata)) = (&outcome, kept, &metadata) {
            let _replaced = self.metadata.put(escrow, metadata.clone(), IfThere::IsReplaced).await?;
        }
        let (id, owner, escrowed) = match &*outcome.receipt().event {
            Event::Escrow { id, owner, event: escrow::Event::Held(escrowed), .. } => (*id, *owner, *escrowed),
            Event::Escrow { .. } | Event::Minted(_) | Event::Charge { .. } => return Err(Refusal::KeyReused.into()),
        };
        let metadata = match &outcome {
            Outcome::Applied(_) => metadata,
            Outcome::Replayed(_) => self.said(id).await?,
        };
        Ok((EscrowSeen { id, owner, escrowed, end: None, metadata }, replayed(&outcome)))
    }

    /// Does what the queue says, if it is the queue who says it and the escrow is the one that it means.
    pub(crate) async fn carry_out(
        &self,
        instruction: &Instruction,
        actor: Label,
    ) -> Result<(EscrowSeen, Replayed), WalletFailed> {
        let checked = self.secrets.verify(instruction, identity::now());
        self.checks.count(checked.is_ok());
        checked?;
        let Instruction { escrow, user, amount, order, key, .. } = *instruction;
        let (life, owner) = self.books.escrow(escrow).await?.ok_or(Refusal::UnknownEscrow)?;
        let escrowed = *life.escrowed();
        if owner != user {
            return Err(NotAuthorized("the escrow is another user's").into());
        }
        // Whether two parts add up to it is for the rules of an escrow to say.
        let is_whole = !matches!(order.command, escrow::Command::PartialSettle { .. });
        if is_whole && escrowed.amount != amount {
            return Err(NotAuthorized("the escrow holds another amount").into());
        }
        failpoint::pass("wallet.before_order");
        let command = Command::Escrow { escrow, command: order.command, ruling: Some(order.ruling) };
        let outcome = self.books.submit(Request { key: Some(key), actor, command }).await?;
        failpoint::pass("wallet.after_order");
        let receipt = outcome.receipt();
        let end = match &*receipt.event {
            Event::Escrow { event, ruling, .. } => EscrowEnd { event: *event, ruling: *ruling, at: receipt.at },
            Event::Minted(_) | Event::Charge { .. } => return Err(Refusal::KeyReused.into()),
        };
        // The money has moved, and that is what the caller must learn: what was said about it can be asked for again.
        let metadata = self.said(escrow).await.unwrap_or_default();
        Ok((EscrowSeen { id: escrow, owner, escrowed, end: Some(end), metadata }, replayed(&outcome)))
    }

    /// An escrow and whose it is, without how it ended and what was said about it: what the books know at once.
    pub(crate) async fn standing(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, WalletFailed> {
        Ok(self.books.escrow(id).await?)
    }

    /// An escrow, open or closed, however old.
    pub(crate) async fn escrow(&self, id: EscrowId) -> Result<Option<EscrowSeen>, WalletFailed> {
        let Some(life) = self.books.escrow_life(id).await? else { return Ok(None) };
        let (end, metadata) = (end_of(&life), self.said(id).await?);
        Ok(Some(EscrowSeen { id, owner: life.owner, escrowed: *life.escrow.escrowed(), end, metadata }))
    }

    /// Escrows that hold money, in the order of their ids, after a given one, at most so many.
    pub(crate) async fn held(&self, after: Option<EscrowId>, at_most: usize) -> Result<Vec<EscrowSeen>, WalletFailed> {
        let open = self.books.open_escrows(after, at_most).await?;
        let mut said = self.metadata.find(open.iter().map(|(id, ..)| *id).collect()).await?;
        let seen = |(id, owner, escrowed)| EscrowSeen { id, owner, escrowed, end: None, metadata: said.remove(&id) };
        Ok(open.into_iter().map(seen).collect())
    }

    /// What somebody has as one who pays and as one who is paid; `None` if never seen.
    pub(crate) async fn balances(&self, owner: OwnerId, payee: PayeeId) -> Result<Option<Balances>, WalletFailed> {
        let owner = self.books.balance(owner).await?;
        let earned = self.books.account(Account::Payee(payee)).await?;
        Ok((owner.is_some() || earned.is_some()).then_some(Balances { owner, earned }))
    }

    /// What a caller said about an escrow.
    async fn said(&self, id: EscrowId) -> Result<Option<Box<str>>, WalletFailed> {
        Ok(self.metadata.find(vec![id]).await?.remove(&id))
    }
}

const fn replayed(outcome: &Outcome) -> Replayed {
    match outcome {
        Outcome::Applied(_) => Replayed::No,
        Outcome::Replayed(_) => Replayed::Yes,
    }
}

/// How an escrow ended, from the entries of its life.
fn end_of(life: &EscrowLife) -> Option<EscrowEnd> {
    let last = life.entries.last()?;
    match last.event {
        Event::Escrow { event: escrow::Event::Held(_), .. } | Event::Minted(_) | Event::Charge { .. } => None,
        Event::Escrow { event, ruling, .. } => Some(EscrowEnd { event, ruling, at: last.at }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_overtaken_may_try_again() {
        for (failed, code, is_retryable) in [
            (WalletFailed::from(Refusal::Overtaken), "OPTIMISTIC_LOCK", true),
            (Refusal::DatabaseUnavailable.into(), "SERVICE_DATABASE_UNAVAILABLE", false),
            (Refusal::EscrowAlreadyProcessed(escrow::State::Held).into(), "ESCROW_ALREADY_PROCESSED", false),
            (NotAuthorized::MISSING.into(), "INVALID_AUTHORIZATION", false),
        ] {
            assert_eq!((failed.code(), failed.is_retryable()), (code, is_retryable), "{failed}");
        }
    }
}
