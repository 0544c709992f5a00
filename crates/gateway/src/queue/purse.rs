//! The seam between the queue and the wallet: the same words whether the wallet is in this process or in another.

use super::remote::RemoteWallet;
use crate::wallet::{EscrowSeen, Instruction, Replayed, Wallet, WalletFailed};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{EscrowId, Label, OwnerId};
use holdfast_engine::{Action, Refusal};
use std::sync::Arc;

/// The way to the wallet. What is asked of another process is so in a box: it is large, and would be moved about with every request
/// to the wallet here too.
pub(crate) enum Purse {
    /// In this process.
    Here(Arc<Wallet>),
    /// In another one.
    There(RemoteWallet),
}

/// Why the wallet did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurseFailed {
    /// It would not, or could not: in its own words.
    #[error(transparent)]
    Wallet(#[from] WalletFailed),
    /// The wallet in another process does not take our word.
    #[error("{0}")]
    NotAuthorized(String),
    /// It does not answer. Whether it was done is known when it does again.
    #[error("the wallet does not answer: {0}; ask again in a moment")]
    Away(String),
}

impl PurseFailed {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Wallet(failed) => failed.code(),
            Self::NotAuthorized(_) => "INVALID_AUTHORIZATION",
            Self::Away(_) => "SERVICE_WALLET_UNREACHABLE",
        }
    }

    /// What to do about it.
    pub(crate) const fn action(&self) -> Action {
        match self {
            Self::Wallet(WalletFailed::Refused(refusal)) => refusal.action(),
            Self::Wallet(WalletFailed::NotAuthorized(_)) | Self::NotAuthorized(_) => Action::FixRequest,
            Self::Wallet(WalletFailed::Metadata(_)) | Self::Away(_) => Action::RetryLater,
        }
    }

    /// Whether another was there at the same moment, and the same word in a moment will do.
    pub(super) const fn is_a_collision(&self) -> bool {
        match self {
            Self::Wallet(failed) => failed.is_retryable(),
            Self::NotAuthorized(_) | Self::Away(_) => false,
        }
    }

    /// Whether the escrow has ended on another word: of another kind, or of the same with another reason or division.
    pub(super) const fn says_it_has_ended(&self) -> bool {
        matches!(self, Self::Wallet(WalletFailed::Refused(Refusal::EscrowAlreadyProcessed(_) | Refusal::KeyReused)))
    }

    /// Whether it was answered, and the answer is no.
    pub(super) const fn is_a_refusal(&self) -> bool {
        matches!(self.action(), Action::FixRequest | Action::Pay)
    }
}

impl Purse {
    /// Whether the wallet is in this process.
    pub(super) const fn is_here(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(_) => false,
        }
    }

    /// An escrow and whose it is, without how it ended.
    pub(super) async fn standing(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, PurseFailed> {
        match self {
            Self::Here(wallet) => Ok(wallet.standing(id).await?),
            Self::There(wallet) => Ok(Box::pin(wallet.escrow(id)).await?.map(|seen| (seen.escrow(), seen.owner))),
        }
    }

    /// An escrow, open or closed, however old.
    pub(super) async fn escrow(&self, id: EscrowId) -> Result<Option<EscrowSeen>, PurseFailed> {
        match self {
            Self::Here(wallet) => Ok(wallet.escrow(id).await?),
            Self::There(wallet) => Box::pin(wallet.escrow(id)).await,
        }
    }

    /// Has the wallet do what the queue has decided. The same word again gives the first answer.
    pub(super) async fn carry_out(
        &self,
        instruction: &Instruction,
        actor: Label,
    ) -> Result<(EscrowSeen, Replayed), PurseFailed> {
        match self {
            Self::Here(wallet) => Ok(wallet.carry_out(instruction, actor).await?),
            Self::There(wallet) => Box::pin(wallet.carry_out(instruction)).await,
        }
    }

    /// Escrows that hold money, in the order of their ids, after a given one, at most so many.
    pub(super) async fn held(&self, after: Option<EscrowId>, at_most: usize) -> Result<Vec<EscrowSeen>, PurseFailed> {
        match self {
            Self::Here(wallet) => Ok(wallet.held(after, at_most).await?),
            Self::There(wallet) => Box::pin(wallet.held(after, at_most)).await,
        }
    }
}
