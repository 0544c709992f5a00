//! Accounts: who holds a balance, and how it is written.

use crate::id::{EscrowId, Id, IdKind, OwnerId, PayeeId};
use std::fmt;
use std::str::FromStr;

/// A named balance in credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// `user:{id}:available`: what an owner can spend.
    Available(OwnerId),
    /// `user:{id}:held`: what an owner's open reservations have set aside.
    Held(OwnerId),
    /// `escrow:{id}`: what one escrow has set aside.
    Escrow(EscrowId),
    /// `payee:{id}:available`: what a payee has earned.
    Payee(PayeeId),
    /// `system:revenue`: what committed charges brought in.
    Revenue,
    /// `treasury:usdc_received`: the source of every credit, so always at or below zero.
    Treasury,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available(id) => write!(f, "user:{id}:available"),
            Self::Held(id) => write!(f, "user:{id}:held"),
            Self::Escrow(id) => write!(f, "escrow:{id}"),
            Self::Payee(id) => write!(f, "payee:{id}:available"),
            Self::Revenue => f.write_str("system:revenue"),
            Self::Treasury => f.write_str("treasury:usdc_received"),
        }
    }
}

/// A text that names no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnAccount;

impl fmt::Display for NotAnAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an account is user:{id}:available, user:{id}:held, escrow:{id}, payee:{id}:available, system:revenue or \
             treasury:usdc_received",
        )
    }
}
impl std::error::Error for NotAnAccount {}

impl FromStr for Account {
    type Err = NotAnAccount;

    fn from_str(text: &str) -> Result<Self, NotAnAccount> {
        let mut parts = text.split(':');
        let shape = (parts.next(), parts.next(), parts.next(), parts.next());
        match shape {
            (Some("user"), Some(id), Some("available"), None) => read(id).map(Self::Available),
            (Some("user"), Some(id), Some("held"), None) => read(id).map(Self::Held),
            (Some("escrow"), Some(id), None, None) => read(id).map(Self::Escrow),
            (Some("payee"), Some(id), Some("available"), None) => read(id).map(Self::Payee),
            (Some("system"), Some("revenue"), None, None) => Ok(Self::Revenue),
            (Some("treasury"), Some("usdc_received"), None, None) => Ok(Self::Treasury),
            (_, _, _, _) => Err(NotAnAccount),
        }
    }
}

fn read<K: IdKind>(id: &str) -> Result<Id<K>, NotAnAccount> {
    id.parse().map_err(|_| NotAnAccount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_reads_back_from_its_text() {
        for text in [
            "user:alice:available",
            "user:alice:held",
            "escrow:e1",
            "payee:bob:available",
            "system:revenue",
            "treasury:usdc_received",
        ] {
            assert_eq!(text.parse::<Account>().unwrap().to_string(), text);
        }
        for bad in
            ["", "user", "user:alice", "user:alice:spent", "user::held", "user:a:held:x", "escrow:a:b", "system:x"]
        {
            assert_eq!(bad.parse::<Account>(), Err(NotAnAccount), "{bad:?}");
        }
    }
}
