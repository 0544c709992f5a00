//! What the torture asks of the server: requests that can be told apart for ever, in the journal too.

use super::amount::Micro;

/// A request. Its number is its key, and the id of the reservation or escrow that it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) body: Body,
}

/// What is asked. Charges and escrows are named by the number of the order that began them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Mint { account: u64, amount: Micro },
    Reserve { account: u64, amount: Micro, ttl_s: u64 },
    Start { charge: u64 },
    Increase { charge: u64, amount: Micro },
    Commit { charge: u64, actual: Micro },
    Release { charge: u64 },
    Void { charge: u64 },
    Ack { charge: u64 },
    Hold { account: u64, amount: Micro },
    Settle { escrow: u64, payee: u64 },
    Refund { escrow: u64 },
    Split { escrow: u64, payee: u64, settle: Micro, refund: Micro },
}

impl Order {
    /// The request as a line of the protocol, without its end.
    pub(crate) fn line(&self) -> String {
        let Self { number, body } = self;
        let key = self.key().map(|key| format!(r#","key":"{key}""#)).unwrap_or_default();
        let rest = match body {
            Body::Mint { account, amount } => {
                format!(r#""op":"mint","account":"a{account}","amount_cu":"{amount}","reason":"torture""#)
            }
            Body::Reserve { account, amount, ttl_s } => format!(
                r#""op":"reserve","account":"a{account}","amount_cu":"{amount}","request_id":"r{number}","ttl_s":{ttl_s}"#
            ),
            Body::Start { charge } => format!(r#""op":"start","id":"r{charge}""#),
            Body::Increase { charge, amount } => {
                format!(r#""op":"increase","id":"r{charge}","amount_cu":"{amount}""#)
            }
            Body::Commit { charge, actual } => format!(r#""op":"commit","id":"r{charge}","actual_cu":"{actual}""#),
            Body::Release { charge } => format!(r#""op":"release","id":"r{charge}""#),
            Body::Void { charge } => format!(r#""op":"void","id":"r{charge}","reason":"torture""#),
            Body::Ack { charge } => format!(r#""op":"ack","id":"r{charge}""#),
            Body::Hold { account, amount } => format!(
                r#""op":"escrow_hold","account":"a{account}","amount_cu":"{amount}","feature":"chat","escrow_id":"e{number}""#
            ),
            Body::Settle { escrow, payee } => {
                format!(r#""op":"escrow_settle","escrow_id":"e{escrow}","payee":"p{payee}""#)
            }
            Body::Refund { escrow } => format!(r#""op":"escrow_refund","escrow_id":"e{escrow}""#),
            Body::Split { escrow, payee, settle, refund } => format!(
                r#""op":"escrow_partial","escrow_id":"e{escrow}","payee":"p{payee}","settle_cu":"{settle}","refund_cu":"{refund}""#
            ),
        };
        format!("{{{rest}{key}}}")
    }

    /// The idempotency key. Of the requests that may have one and need none, half go without, and are known by what they
    /// act on.
    pub(crate) fn key(&self) -> Option<String> {
        let keyed = match self.body {
            Body::Mint { .. }
            | Body::Increase { .. }
            | Body::Hold { .. }
            | Body::Settle { .. }
            | Body::Refund { .. }
            | Body::Split { .. } => true,
            Body::Reserve { .. } | Body::Commit { .. } => self.number.is_multiple_of(2),
            Body::Start { .. } | Body::Release { .. } | Body::Void { .. } | Body::Ack { .. } => false,
        };
        keyed.then(|| format!("k{}", self.number))
    }

    /// The kind of its entry in the journal.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.body {
            Body::Mint { .. } => "credit_mint",
            Body::Reserve { .. } => "billing_reserve",
            Body::Start { .. } => "billing_start",
            Body::Increase { .. } => "billing_increase",
            Body::Commit { .. } => "billing_commit",
            Body::Release { .. } => "billing_release",
            Body::Void { .. } => "billing_void",
            Body::Ack { .. } => "billing_finalize_ack",
            Body::Hold { .. } => "escrow_hold",
            Body::Settle { .. } => "escrow_settle",
            Body::Refund { .. } => "escrow_refund",
            Body::Split { .. } => "escrow_partial_settle",
        }
    }

    /// The charge or escrow that its entry is about, as the journal names it.
    pub(crate) fn subject(&self) -> Option<String> {
        match self.body {
            Body::Mint { .. } => None,
            Body::Reserve { .. } => Some(format!("r{}", self.number)),
            Body::Hold { .. } => Some(format!("e{}", self.number)),
            Body::Start { charge }
            | Body::Increase { charge, .. }
            | Body::Commit { charge, .. }
            | Body::Release { charge }
            | Body::Void { charge }
            | Body::Ack { charge } => Some(format!("r{charge}")),
            Body::Settle { escrow, .. } | Body::Refund { escrow } | Body::Split { escrow, .. } => {
                Some(format!("e{escrow}"))
            }
        }
    }

    /// What the entry of this order, and of no other, is known by.
    pub(crate) fn identity(&self) -> String {
        identity(self.kind(), self.key().as_deref(), self.subject().as_deref())
    }
}

/// What an entry is known by: its key if it has one, else what was done to what.
pub(crate) fn identity(kind: &str, key: Option<&str>, subject: Option<&str>) -> String {
    key.map_or_else(|| format!("{kind} of {}", subject.unwrap_or("nothing")), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_a_json_object_and_has_an_identity_of_its_own() {
        let amount = Micro(1_500_000);
        let bodies = [
            Body::Mint { account: 1, amount },
            Body::Reserve { account: 1, amount, ttl_s: 1 },
            Body::Start { charge: 1 },
            Body::Increase { charge: 1, amount },
            Body::Commit { charge: 1, actual: amount },
            Body::Release { charge: 1 },
            Body::Void { charge: 1 },
            Body::Ack { charge: 1 },
            Body::Hold { account: 1, amount },
            Body::Settle { escrow: 1, payee: 1 },
            Body::Refund { escrow: 1 },
            Body::Split { escrow: 1, payee: 1, settle: amount, refund: amount },
        ];
        let mut identities = std::collections::BTreeSet::new();
        for (number, body) in (3..).step_by(2).zip(bodies) {
            let order = Order { number, body };
            let line: serde_json::Value = serde_json::from_str(&order.line()).unwrap();
            assert_eq!(line.get("key").and_then(|key| key.as_str()), order.key().as_deref());
            assert!(identities.insert(order.identity()), "{order:?}");
        }
    }
}
