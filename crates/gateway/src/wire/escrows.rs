//! Escrows on the wire, under the names that the queue's guide has for them.
//!
//! An answer can be read back, so that a queue in another process sees the wallet's escrows as one in the same does.

use super::error::{Problem, WireError};
use super::object::Object;
use super::parse;
use super::time::Moment;
use super::{Named, Shown};
use crate::wallet::{EscrowEnd, EscrowSeen, Instruction, NotAuthorized};
use holdfast_adapters::escrow_metadata::METADATA_BYTES_MAX;
use holdfast_domain::escrow::{self, Escrowed, Hold, Ruling};
use holdfast_domain::queue::{Cause, Order};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, Key, Label, OwnerId, PayeeId};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A request to set money aside.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct HoldBody<'a> {
    #[serde(borrow)]
    user_id: Cow<'a, str>,
    amount: Value,
    #[serde(borrow)]
    feature_type: Cow<'a, str>,
    idempotency_key: Option<String>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    /// The caller's own name for the request, which is not kept.
    request_id: Option<String>,
}

/// A request to set money aside, understood.
pub(crate) struct HoldAsked {
    pub(crate) hold: Hold,
    pub(crate) key: Key,
    pub(crate) metadata: Option<Box<str>>,
}

impl HoldBody<'_> {
    /// What is asked, with the key that a header says.
    pub(crate) fn into_asked(self, header: Option<&str>) -> Result<HoldAsked, Problem> {
        let hold = Hold {
            owner: parse::id("userId", &self.user_id)?,
            amount: parse::amount_or_integer("amount", &self.amount)?,
            feature: parse::id("featureType", &self.feature_type)?,
        };
        request_id(self.request_id.as_deref())?;
        let key = key(header, self.idempotency_key.as_deref())?;
        Ok(HoldAsked { hold, key, metadata: self.metadata.map(object).transpose()? })
    }
}

/// A request of the queue: to settle, to refund, or to do both in part. Which fields it needs depends on that.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OrderBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    escrow_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_amount: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_amount: Option<Value>,
    queue_item_id: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorization_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    /// The caller's own name for the request, and words about it: neither is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

/// What a path asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Settle,
    Refund,
    Partial,
}

impl Operation {
    /// The last part of its path.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Settle => "settle",
            Self::Refund => "refund",
            Self::Partial => "partial-settle",
        }
    }
}

/// What the queue asks, understood; whose escrow it is may be left for the books to say.
pub(crate) struct OrderAsked {
    escrow: EscrowId,
    pub(crate) user: Option<OwnerId>,
    amount: CreditUnit,
    order: Order,
    key: Key,
    token: String,
}

impl OrderAsked {
    /// The instruction about an escrow of this user.
    pub(crate) fn about(self, user: OwnerId) -> Instruction {
        let Self { escrow, amount, order, key, token, .. } = self;
        Instruction { escrow, user, amount, order, key, token }
    }
}

/// Every token that a body says, however badly the rest of it is said.
struct Tokens(Vec<Value>);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InMap;

        impl<'de> Visitor<'de> for InMap {
            type Value = Vec<Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Value>, A::Error> {
                let mut tokens = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "authorizationToken" {
                        tokens.push(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(tokens)
            }
        }

        deserializer.deserialize_map(InMap).map(Self)
    }
}

impl OrderBody {
    /// Reads what is asked. Several tokens, or what is no token at all, are refused as tokens, and not as bad form: which of
    /// them is to count is nothing that a reader may choose.
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        serde_json::from_str(text).map(|Object(read)| read).map_err(|error| {
            let tokens = serde_json::from_str(text).map_or_else(|_| Vec::new(), |Tokens(tokens)| tokens);
            match tokens.as_slice() {
                [] | [Value::Null | Value::String(_)] => WireError::Malformed(error.to_string()).into(),
                _ => NotAuthorized::NOT_ONE.into(),
            }
        })
    }

    /// What is asked of the escrow that the path names, with the key that a header says.
    pub(crate) fn into_asked(
        self,
        operation: Operation,
        escrow: EscrowId,
        header: Option<&str>,
    ) -> Result<OrderAsked, Problem> {
        let said: Option<EscrowId> = parse::id_if_any("escrowId", self.escrow_id.as_deref())?;
        if said.is_some_and(|said| said != escrow) {
            return Err(WireError::Malformed("`escrowId` and the path name two escrows".to_owned()).into());
        }
        request_id(self.request_id.as_deref())?;
        self.metadata.as_deref().map(object).transpose()?;
        let key = key(header, self.idempotency_key.as_deref())?;
        let user = parse::id_if_any("userId", self.user_id.as_deref())?;
        let (command, amount) = self.command(operation)?;
        if user.is_none() && operation != Operation::Settle {
            return Err(missing("userId").into());
        }
        let cause = self.reason.parse::<Cause>().map_err(|error| WireError::Reason(error.to_string()))?;
        let ruling = Ruling { item: parse::id("queueItemId", &self.queue_item_id)?, cause };
        let token = self.authorization_token.ok_or(NotAuthorized::MISSING)?;
        Ok(OrderAsked { escrow, user, amount, order: Order { command, ruling }, key, token })
    }

    /// What is to be done, and what the whole escrow must be.
    fn command(&self, operation: Operation) -> Result<(escrow::Command, CreditUnit), WireError> {
        let payee = || -> Result<PayeeId, WireError> {
            parse::id("modelId", self.model_id.as_deref().ok_or_else(|| missing("modelId"))?)
        };
        let amount = |field: &'static str, value: &Option<Value>| {
            parse::amount_or_integer(field, value.as_ref().ok_or_else(|| missing(field))?)
        };
        let unused: &[(&str, bool)] = match operation {
            Operation::Settle => {
                &[("refundAmount", self.refund_amount.is_some()), ("settleAmount", self.settle_amount.is_some())]
            }
            Operation::Refund => &[
                ("modelId", self.model_id.is_some()),
                ("refundAmount", self.refund_amount.is_some()),
                ("settleAmount", self.settle_amount.is_some()),
            ],
            Operation::Partial => &[("amount", self.amount.is_some())],
        };
        if let Some((field, _)) = unused.iter().find(|(_, is_said)| *is_said) {
            return Err(WireError::Malformed(format!("`{field}` does not belong to {}", operation.path())));
        }
        match operation {
            Operation::Settle => Ok((escrow::Command::Settle { payee: payee()? }, amount("amount", &self.amount)?)),
            Operation::Refund => Ok((escrow::Command::Refund, amount("amount", &self.amount)?)),
            Operation::Partial => {
                let settle = amount("settleAmount", &self.settle_amount)?;
                let refund = amount("refundAmount", &self.refund_amount)?;
                let why = || "together with `settleAmount` it is out of range".to_owned();
                let whole = settle.checked_add(refund);
                let whole = whole.map_err(|_| WireError::Amount { field: "refundAmount", why: why() })?;
                Ok((escrow::Command::PartialSettle { payee: payee()?, settle, refund }, whole))
            }
        }
    }

    /// The body that says an instruction, and what it asks for.
    pub(crate) fn of(instruction: &Instruction) -> (Operation, Self) {
        let Instruction { escrow, user, amount, order, key, token } = instruction;
        let text = |amount: CreditUnit| Some(Value::String(amount.to_string()));
        let body = Self {
            escrow_id: Some(escrow.to_string()),
            user_id: Some(user.to_string()),
            queue_item_id: order.ruling.item.to_string(),
            reason: order.ruling.cause.to_string(),
            authorization_token: Some(token.clone()),
            idempotency_key: Some(key.to_string()),
            ..Self::default()
        };
        match order.command {
            escrow::Command::Settle { payee } => {
                (Operation::Settle, Self { model_id: Some(payee.to_string()), amount: text(*amount), ..body })
            }
            escrow::Command::Refund => (Operation::Refund, Self { amount: text(*amount), ..body }),
            escrow::Command::PartialSettle { payee, settle, refund } => {
                let (settle_amount, refund_amount) = (text(settle), text(refund));
                (Operation::Partial, Self { model_id: Some(payee.to_string()), settle_amount, refund_amount, ..body })
            }
        }
    }
}

fn missing(field: &'static str) -> WireError {
    WireError::Malformed(format!("missing field `{field}`"))
}

/// The one key of a request, which a header or the body says.
fn key(header: Option<&str>, body: Option<&str>) -> Result<Key, Problem> {
    if header.zip(body).is_some_and(|(header, body)| header != body) {
        let why = "`idempotencyKey` and the header `Idempotency-Key` differ; give one of them".to_owned();
        return Err(WireError::Malformed(why).into());
    }
    let text = header.or(body).ok_or(holdfast_engine::Refusal::KeyRequired)?;
    Ok(parse::id("idempotencyKey", text)?)
}

/// A caller's own name for a request is taken, bounded, and not looked at.
fn request_id(text: Option<&str>) -> Result<(), WireError> {
    if text.is_some_and(|text| text.len() > 200) {
        return Err(WireError::Malformed("`requestId` is longer than 200 bytes".to_owned()));
    }
    Ok(())
}

/// What a caller says about an escrow, as it was written.
fn object(metadata: &RawValue) -> Result<Box<str>, WireError> {
    let text = metadata.get();
    if !text.starts_with('{') {
        return Err(WireError::Malformed("`metadata` must be a JSON object".to_owned()));
    }
    if text.len() > METADATA_BYTES_MAX {
        return Err(WireError::Malformed(format!("`metadata` is longer than {METADATA_BYTES_MAX} bytes")));
    }
    Ok(text.into())
}

/// An escrow as it stands.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EscrowBody {
    escrow_id: Named<EscrowId>,
    user_id: Named<OwnerId>,
    amount: Shown<CreditUnit>,
    feature_type: Named<Label>,
    status: &'static str,
    created_at: Moment,
    /// Who was paid.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_id: Option<Named<PayeeId>>,
    /// What the payee got.
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_amount: Option<Shown<CreditUnit>>,
    /// What the user got back.
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_amount: Option<Shown<CreditUnit>>,
    /// The item that it paid for.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_item_id: Option<Named<ItemId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processed_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

impl From<EscrowSeen> for EscrowBody {
    fn from(seen: EscrowSeen) -> Self {
        let status = seen.state().name();
        let EscrowSeen { id, owner, escrowed: Escrowed { amount, feature, held_at }, end, metadata } = seen;
        let (payee, settled, refunded) = match end.map(|end| end.event) {
            None | Some(escrow::Event::Held(_)) => (None, None, None),
            Some(escrow::Event::Settled { payee, amount }) => (Some(payee), Some(amount), None),
            Some(escrow::Event::Refunded { amount }) => (None, None, Some(amount)),
            Some(escrow::Event::PartiallySettled { payee, settled, refunded }) => {
                (Some(payee), Some(settled), Some(refunded))
            }
        };
        let ruling = end.and_then(|end| end.ruling);
        Self {
            escrow_id: Named(id),
            user_id: Named(owner),
            amount: Shown(amount),
            feature_type: Named(feature),
            status,
            created_at: Moment(held_at),
            model_id: payee.map(Named),
            settle_amount: settled.map(Shown),
            refund_amount: refunded.map(Shown),
            queue_item_id: ruling.map(|ruling| Named(ruling.item)),
            reason: ruling.map(|ruling| ruling.cause.name()),
            processed_at: end.map(|end| Moment(end.at)),
            metadata: metadata.and_then(|text| RawValue::from_string(text.into_string()).ok()),
        }
    }
}

/// An [`EscrowBody`] as another process reads it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EscrowRead {
    escrow_id: String,
    user_id: String,
    amount: String,
    feature_type: String,
    status: String,
    created_at: String,
    model_id: Option<String>,
    settle_amount: Option<String>,
    refund_amount: Option<String>,
    queue_item_id: Option<String>,
    reason: Option<String>,
    processed_at: Option<String>,
    metadata: Option<Box<RawValue>>,
}

impl EscrowRead {
    /// The escrow that it shows; `None` if it shows none that there can be.
    pub(crate) fn read(self) -> Option<EscrowSeen> {
        let at = |text: &str| text.parse().ok().map(|Moment(at)| at);
        let amount = |text: &Option<String>| text.as_deref()?.parse::<CreditUnit>().ok();
        let payee = self.model_id.as_deref().and_then(|text| text.parse().ok());
        let (settled, refunded) = (amount(&self.settle_amount), amount(&self.refund_amount));
        let event = match self.status.as_str() {
            "held" => None,
            "settled" => Some(escrow::Event::Settled { payee: payee?, amount: settled? }),
            "refunded" => Some(escrow::Event::Refunded { amount: refunded? }),
            "partial" => {
                Some(escrow::Event::PartiallySettled { payee: payee?, settled: settled?, refunded: refunded? })
            }
            _ => return None,
        };
        let ruling = match (self.queue_item_id, self.reason) {
            (Some(item), Some(cause)) => Some(Ruling { item: item.parse().ok()?, cause: cause.parse().ok()? }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return None,
        };
        let end = match event {
            Some(event) => Some(EscrowEnd { event, ruling, at: at(self.processed_at.as_deref()?)? }),
            None => None,
        };
        Some(EscrowSeen {
            id: self.escrow_id.parse().ok()?,
            owner: self.user_id.parse().ok()?,
            escrowed: Escrowed {
                amount: self.amount.parse().ok()?,
                feature: self.feature_type.parse().ok()?,
                held_at: at(&self.created_at)?,
            },
            end,
            metadata: self.metadata.map(|metadata| metadata.get().into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_domain::Timestamp;

    fn cu(text: &str) -> CreditUnit {
        text.parse().unwrap()
    }

    fn seen(end: Option<EscrowEnd>) -> EscrowSeen {
        EscrowSeen {
            id: "esc_1".parse().unwrap(),
            owner: "alice".parse().unwrap(),
            escrowed: Escrowed {
                amount: cu("10.5"),
                feature: "dance".parse().unwrap(),
                held_at: Timestamp::from_millis(7),
            },
            end,
            metadata: Some(r#"{"a": 1.10}"#.into()),
        }
    }

    #[test]
    fn an_escrow_that_is_shown_reads_back_as_it_was() {
        let payee = "mia".parse().unwrap();
        let ruling = Some(Ruling { item: "qi_1".parse().unwrap(), cause: Cause::QualityIssue });
        let at = Timestamp::from_millis(1_700_000_000_123);
        for (event, ruling) in [
            (escrow::Event::Settled { payee, amount: cu("10.5") }, ruling),
            (escrow::Event::Settled { payee, amount: cu("10.5") }, None),
            (escrow::Event::Refunded { amount: cu("10.5") }, ruling),
            (escrow::Event::PartiallySettled { payee, settled: cu("10.5"), refunded: cu("0") }, ruling),
        ] {
            let ended = seen(Some(EscrowEnd { event, ruling, at }));
            let text = serde_json::to_string(&EscrowBody::from(ended.clone())).unwrap();
            let back: EscrowRead = serde_json::from_str(&text).unwrap();
            assert_eq!(back.read(), Some(ended), "{text}");
        }
        let text = serde_json::to_string(&EscrowBody::from(seen(None))).unwrap();
        let back: EscrowRead = serde_json::from_str(&text).unwrap();
        assert_eq!(back.read(), Some(seen(None)));
        let strange: EscrowRead = serde_json::from_str(&text.replace("held", "settled")).unwrap();
        assert_eq!(strange.read(), None, "settled, and nobody was paid");
    }

    #[test]
    fn an_instruction_that_is_said_is_understood_as_it_was_meant() {
        let payee = "mia".parse().unwrap();
        for command in [
            escrow::Command::Settle { payee },
            escrow::Command::Refund,
            escrow::Command::PartialSettle { payee, settle: cu("4"), refund: cu("6.5") },
        ] {
            let ruling = Ruling { item: "qi_1".parse().unwrap(), cause: Cause::PartialDelivery };
            let order = Order { command, ruling };
            let (escrow, user, key) =
                ("esc_1".parse().unwrap(), "alice".parse().unwrap(), "queue-qi_1-x".parse().unwrap());
            let meant = Instruction { escrow, user, amount: cu("10.5"), order, key, token: "t".to_owned() };
            let (operation, body) = OrderBody::of(&meant);
            let said = OrderBody::read(&serde_json::to_string(&body).unwrap()).map_err(|error| error.to_string());
            let asked = said.unwrap().into_asked(operation, escrow, None).map_err(|error| error.to_string()).unwrap();
            assert_eq!(asked.user, Some(user));
            let Instruction { escrow, user, amount, order, key, token } = asked.about(user);
            let same = (escrow, user, amount, order, key, token);
            assert_eq!(same, (meant.escrow, meant.user, meant.amount, meant.order, meant.key, meant.token));
        }
    }
}
