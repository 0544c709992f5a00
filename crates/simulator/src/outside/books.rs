//! What the gateway's books say of one request, and whether that is right beside what the upstream did.
//!
//! # Invariants
//! - The verdict is pure: the same two stories get the same verdict, and every wrong pair has its own.

use super::OutsideError;
use super::tariff::Tariff;
use super::wire::Client;
use crate::upstream::Call;
use holdfast_domain::CreditUnit;
use serde_json::Value;
use std::fmt;

/// How a reservation ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Still held.
    Held,
    /// Charged.
    Committed,
    /// Given back whole, by request or by expiry.
    Released,
}

/// One reservation as `GET /v1/requests/{key}` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booked {
    /// How it ended.
    pub ending: Ending,
    /// What was held at first, if it is shown.
    pub held: Option<CreditUnit>,
    /// What was charged.
    pub charged: CreditUnit,
    /// How many commits and releases its life has; 1 if the life is not shown.
    pub endings: usize,
}

impl Booked {
    /// Reads the answer.
    ///
    /// # Errors
    /// If a field that is needed is missing or makes no sense.
    pub fn read(value: &Value) -> Result<Self, OutsideError> {
        let wrong = |what: &str| OutsideError::answered("the reservation", format!("{what} in {value}"));
        let ending = match value["state"].as_str() {
            Some("RESERVE_HELD") => Ending::Held,
            Some("COMMITTED" | "FINALIZE_PENDING" | "FINALIZE_ACKED" | "FINALIZE_FAILED") => Ending::Committed,
            Some("RELEASED" | "AUTO_RELEASED") => Ending::Released,
            _ => return Err(wrong("no known state")),
        };
        let amount = |field: &str| value[field].as_str().and_then(|text| text.parse::<CreditUnit>().ok());
        let charged = match amount("charged_cu") {
            Some(charged) => charged,
            // Nothing is charged where nothing was committed.
            None if ending != Ending::Committed && value["charged_cu"].is_null() => CreditUnit::ZERO,
            None => return Err(wrong("no charged_cu")),
        };
        let ends = |kind: &str| matches!(kind, "billing_commit" | "billing_release" | "billing_auto_release");
        let life = value["life"]
            .as_array()
            .map(|life| life.iter().filter(|entry| entry["kind"].as_str().is_some_and(ends)).count());
        let held = value["life"][0]["held_cu"].as_str().or_else(|| value["held_cu"].as_str());
        let endings = life.unwrap_or(usize::from(ending != Ending::Held));
        Ok(Self { ending, held: held.and_then(|text| text.parse().ok()), charged, endings })
    }
}

/// Asks the books what became of the request with an idempotency key; none if they know of none.
///
/// # Errors
/// If the answer makes no sense.
pub async fn look(client: &mut Client, api_key: &str, key: &str) -> Result<Option<Booked>, OutsideError> {
    let authorization = format!("Bearer {api_key}");
    let path = format!("/v1/requests/{key}");
    let answer = client.send("GET", &path, &[("authorization", &authorization)], "").await?;
    if answer.status == 404 {
        return Ok(None);
    }
    Booked::read(&answer.good(&path)?).map(Some)
}

/// What a key's account can spend.
///
/// # Errors
/// If the answer makes no sense.
pub async fn balance(client: &mut Client, api_key: &str) -> Result<CreditUnit, OutsideError> {
    let authorization = format!("Bearer {api_key}");
    let path = "/v1/credits";
    let value = client.send("GET", path, &[("authorization", &authorization)], "").await?.good(path)?;
    let amount = value["balance_cu"].as_str().and_then(|text| text.parse().ok());
    amount.ok_or_else(|| OutsideError::answered(path, value.to_string()))
}

/// What is wrong with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The upstream was called, and the books know nothing of it.
    NotBooked,
    /// It never ended.
    StillHeld,
    /// It ended more than once, or never.
    Endings(usize),
    /// The upstream reported its usage, and yet all was given back.
    ReleasedThoughUsed,
    /// The upstream used nothing, and yet something was charged.
    ChargedThoughUnused(CreditUnit),
    /// The charge is not the usage at its price.
    WrongCharge {
        /// What it must be.
        expected: CreditUnit,
        /// What it is.
        charged: CreditUnit,
    },
    /// The upstream was called more than once for it.
    CalledTimes(usize),
    /// The usage has no price in range.
    Unpriceable,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBooked => write!(out, "the upstream was called, and the books know nothing of it"),
            Self::StillHeld => write!(out, "the hold never ended"),
            Self::Endings(count) => write!(out, "{count} commits and releases, not one"),
            Self::ReleasedThoughUsed => write!(out, "released, though the upstream reported its usage"),
            Self::ChargedThoughUnused(charged) => write!(out, "charged {charged}, though nothing was used"),
            Self::WrongCharge { expected, charged } => write!(out, "charged {charged}, and it cost {expected}"),
            Self::CalledTimes(count) => write!(out, "{count} calls of the upstream for one request"),
            Self::Unpriceable => write!(out, "the usage has no price in range"),
        }
    }
}

/// Compares the two stories of one request; none if they agree.
#[must_use]
pub fn verdict(booked: Option<&Booked>, calls: &[&Call], tariff: &Tariff) -> Option<Fault> {
    if calls.len() > 1 {
        return Some(Fault::CalledTimes(calls.len()));
    }
    let call = calls.first();
    let Some(booked) = booked else { return call.map(|_| Fault::NotBooked) };
    if booked.ending == Ending::Held {
        return Some(Fault::StillHeld);
    }
    if booked.endings != 1 {
        return Some(Fault::Endings(booked.endings));
    }
    let usage = call.and_then(|call| call.usage);
    let Some(usage) = usage else {
        return Some(booked.charged).filter(|charged| !charged.is_zero()).map(Fault::ChargedThoughUnused);
    };
    // One whose usage did not come is charged by what was delivered, which only the gateway knows.
    if !call.is_some_and(|call| call.usage_sent) {
        return None;
    }
    if booked.ending == Ending::Released {
        return Some(Fault::ReleasedThoughUsed);
    }
    match tariff.cost(usage) {
        Some(expected) if expected == booked.charged => None,
        Some(expected) => Some(Fault::WrongCharge { expected, charged: booked.charged }),
        None => Some(Fault::Unpriceable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Progress, Usage as Used};
    use holdfast_domain::CreditsPerUsd;
    use serde_json::json;

    fn tariff() -> Tariff {
        let [input, output] = ["1", "2"].map(|price| price.parse().unwrap());
        Tariff { input, output, credits_per_usd: CreditsPerUsd::DEFAULT }
    }

    fn call(usage_sent: bool) -> Call {
        Call {
            number: 1,
            route: "/v1/chat/completions".to_owned(),
            model: "mock".to_owned(),
            tag: Some("t".to_owned()),
            request_id: None,
            max_tokens: None,
            stream: true,
            status: Some(200),
            behaviour: None,
            usage: Some(Used { input: 10, cached: 0, output: 5, reasoning: 0 }),
            usage_sent,
            chunks_sent: 5,
            progress: Progress::Finished,
        }
    }

    fn booked(ending: Ending, charged: &str) -> Booked {
        Booked { ending, held: None, charged: charged.parse().unwrap(), endings: 1 }
    }

    #[test]
    fn a_charge_is_the_reported_usage_at_its_price_and_nothing_else() {
        let (sent, unsent) = (call(true), call(false));
        let check = |booked: Option<Booked>, calls: &[&Call], expected: Option<Fault>| {
            assert_eq!(verdict(booked.as_ref(), calls, &tariff()), expected);
        };
        // (10 × 1 + 5 × 2) / 10⁶ dollars × 100.
        let right = booked(Ending::Committed, "0.002");
        check(Some(right.clone()), &[&sent], None);
        check(Some(right.clone()), &[&unsent], None);
        check(Some(booked(Ending::Released, "0")), &[&unsent], None);
        check(Some(booked(Ending::Released, "0")), &[], None);
        check(None, &[], None);
        check(None, &[&sent], Some(Fault::NotBooked));
        check(Some(right.clone()), &[&sent, &sent], Some(Fault::CalledTimes(2)));
        check(Some(Booked { endings: 2, ..right.clone() }), &[&sent], Some(Fault::Endings(2)));
        check(Some(booked(Ending::Held, "0")), &[&sent], Some(Fault::StillHeld));
        check(Some(booked(Ending::Released, "0")), &[&sent], Some(Fault::ReleasedThoughUsed));
        let (expected, charged) = (right.charged, "0.001".parse().unwrap());
        check(Some(booked(Ending::Committed, "0.001")), &[&sent], Some(Fault::WrongCharge { expected, charged }));
        check(Some(right.clone()), &[], Some(Fault::ChargedThoughUnused(right.charged)));
    }

    #[test]
    fn a_reservation_is_read_as_it_is_shown() {
        let life =
            json!([{"kind": "billing_reserve", "held_cu": "3"}, {"kind": "billing_start"}, {"kind": "billing_commit"}]);
        let shown = json!({"state": "FINALIZE_PENDING", "held_cu": "0", "charged_cu": "1.5", "life": life});
        let read = Booked::read(&shown).unwrap();
        assert_eq!(read, Booked { held: Some("3".parse().unwrap()), ..booked(Ending::Committed, "1.5") });
        assert_eq!(Booked::read(&json!({"state": "RELEASED"})).unwrap(), booked(Ending::Released, "0"));
        assert!(Booked::read(&json!({"state": "COMMITTED"})).is_err(), "a commit shows its charge");
        assert!(Booked::read(&json!({"state": "LOST", "charged_cu": "1"})).is_err());
    }
}
