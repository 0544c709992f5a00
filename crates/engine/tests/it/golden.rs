//! Golden records: the bytes of every kind of entry, version 1, as they were first shipped. They must read for ever.
//!
//! A new version adds its own golden records beside these; none is ever changed.

use crate::world::{actor, cu, id, owner};
use holdfast_domain::charge::{self, Finality, OnExpiry, Overrun, Taken, Terms};
use holdfast_domain::escrow::{self, Escrowed, Ruling};
use holdfast_domain::queue::Cause;
use holdfast_domain::{Budget, Budgets, CreditsPerUsd, Event, Mint, Price, Rates, Timestamp};
use holdfast_engine::{Fingerprint, LifeState, Link, OwnerLink, Record};
use holdfast_journal::Location;

const AT: Timestamp = Timestamp::from_millis(1_790_000_000_000);

fn record(event: Event, state: LifeState) -> Record {
    let paid = event.payee().is_some();
    Record {
        offset: 300,
        at: AT,
        actor: actor(),
        key: Some("k-1".parse().unwrap()),
        fingerprint: Fingerprint([0xAB; 16]),
        event,
        state,
        owner: OwnerLink { available: Link { balance: cu("12.5"), previous: 7, number: 3 }, held: cu("0.000001") },
        payee: paid.then(|| Link { balance: cu("2"), previous: 5, number: 2 }),
        life_previous: Some(Location { segment: 2, byte: 128 }),
    }
}

fn of_charge(event: charge::Event, state: charge::State) -> Record {
    record(Event::Charge { id: id("req_1"), owner: owner("alice"), event }, LifeState::Charge(state))
}

fn of_escrow(event: escrow::Event, state: escrow::State) -> Record {
    of_ruled_escrow(event, state, None)
}

fn of_ruled_escrow(event: escrow::Event, state: escrow::State, ruling: Option<Ruling>) -> Record {
    let event = Event::Escrow { id: "esc_1".parse().unwrap(), owner: owner("alice"), event, ruling };
    record(event, LifeState::Escrow(state))
}

fn ruling(cause: Cause) -> Ruling {
    Ruling { item: "qi_1".parse().unwrap(), cause }
}

fn plain_rates() -> Rates {
    Rates {
        input: "0.4".parse().unwrap(),
        output: "15".parse().unwrap(),
        cached_input: None,
        cache_write: None,
        reasoning: None,
        per_request: None,
        credits_per_usd: CreditsPerUsd::DEFAULT,
    }
}

fn records() -> Vec<(&'static str, Record)> {
    use charge::Event as C;
    use charge::State as S;
    let reason = || "by hand".parse().unwrap();
    let price = |text: &str| text.parse::<Price>().unwrap();
    let rates = plain_rates();
    let all_rates = Rates {
        cached_input: Some(price("0.04")),
        cache_write: Some(price("0.5")),
        reasoning: Some(price("16")),
        per_request: Some("0.01".parse().unwrap()),
        ..rates
    };
    let one_more = Rates { cached_input: Some(price("0.04")), ..rates };
    let plain = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let rated = Terms { rates: Some(rates), overrun: Overrun::Available, on_expiry: OnExpiry::ChargeEstimate };
    let further = |rates| Terms { rates: Some(rates), overrun: Overrun::Refuse, on_expiry: OnExpiry::Release };
    let expires_at = Timestamp::from_millis(1_790_000_060_000);
    let taken = Taken { from_hold: cu("3"), from_available: cu("1"), returned: cu("2"), uncollected: cu("0.5") };
    let payee = "bob".parse().unwrap();
    let reserved = |terms| C::Reserved { amount: cu("5"), terms, expires_at, budgets: Budgets::NONE };
    let key = Budget { id: "key_1".parse().unwrap(), per_day: Some(cu("20")), in_total: Some(cu("300")) };
    let team = Budget { id: "team".parse().unwrap(), per_day: None, in_total: Some(cu("4000")) };
    let budgets = Budgets::new(&[key, team]).unwrap();
    vec![
        (
            "credit_mint",
            record(Event::Minted(Mint { owner: owner("alice"), amount: cu("5"), reason: reason() }), LifeState::None),
        ),
        ("billing_reserve", of_charge(reserved(plain), S::Held)),
        ("billing_reserve with rates", of_charge(reserved(rated), S::Held)),
        ("billing_start", of_charge(C::Started, S::Held)),
        ("billing_increase", of_charge(C::Increased { amount: cu("5") }, S::Held)),
        ("billing_extend", of_charge(C::Extended { expires_at }, S::Held)),
        ("billing_commit", of_charge(C::Committed { taken, finality: Finality::Final }, S::Committed)),
        ("billing_commit in part", of_charge(C::Committed { taken, finality: Finality::Partial }, S::Held)),
        ("billing_release", of_charge(C::Released { returned: cu("5") }, S::Released)),
        ("billing_auto_release", of_charge(C::AutoReleased { returned: cu("5") }, S::AutoReleased)),
        ("billing_void", of_charge(C::Voided { returned: cu("5"), reason: reason() }, S::Voided)),
        ("billing_finalize_ack", of_charge(C::Acked, S::Acked)),
        ("billing_finalize_fail", of_charge(C::Failed { reason: reason() }, S::Failed)),
        ("billing_progress", of_charge(C::Noted { cost: cu("1.25") }, S::Held)),
        (
            "billing_reserve with budgets",
            of_charge(C::Reserved { amount: cu("5"), terms: rated, expires_at, budgets }, S::Held),
        ),
        (
            "escrow_hold",
            of_escrow(
                escrow::Event::Held(Escrowed { amount: cu("5"), feature: "chat".parse().unwrap(), held_at: AT }),
                escrow::State::Held,
            ),
        ),
        ("escrow_settle", of_escrow(escrow::Event::Settled { payee, amount: cu("5") }, escrow::State::Settled)),
        ("escrow_refund", of_escrow(escrow::Event::Refunded { amount: cu("5") }, escrow::State::Refunded)),
        (
            "escrow_partial_settle",
            of_escrow(
                escrow::Event::PartiallySettled { payee, settled: cu("2"), refunded: cu("3") },
                escrow::State::Partial,
            ),
        ),
        ("billing_reserve with every price", of_charge(reserved(further(all_rates)), S::Held)),
        ("billing_reserve with a cached price", of_charge(reserved(further(one_more)), S::Held)),
    ]
}

/// Escrows that the queue ended.
fn ruled() -> Vec<(&'static str, Record)> {
    let payee = "bob".parse().unwrap();
    vec![
        (
            "escrow_settle by the queue",
            of_ruled_escrow(
                escrow::Event::Settled { payee, amount: cu("5") },
                escrow::State::Settled,
                Some(ruling(Cause::PerformanceCompleted)),
            ),
        ),
        (
            "escrow_refund by the queue",
            of_ruled_escrow(
                escrow::Event::Refunded { amount: cu("5") },
                escrow::State::Refunded,
                Some(ruling(Cause::RopeDropTimeout)),
            ),
        ),
        (
            "escrow_partial_settle by the queue",
            of_ruled_escrow(
                escrow::Event::PartiallySettled { payee, settled: cu("2"), refunded: cu("3") },
                escrow::State::Partial,
                Some(ruling(Cause::QualityIssue)),
            ),
        ),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_kind_is_written_and_read_as_it_was_first_shipped() {
    let golden = include_str!("golden_v1.txt");
    let written: String = records()
        .iter()
        .chain(&ruled())
        .map(|(name, record)| {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes).as_ref(), Some(record), "{name}");
            format!("{name}: {}\n", hex(&bytes))
        })
        .collect();
    assert_eq!(written, golden);
}

#[test]
fn a_record_with_a_byte_more_less_or_changed_is_never_misread_silently() {
    for (name, record) in records() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..length]), None, "{name} cut to {length}");
        }
        bytes.push(0);
        assert_eq!(Record::decode(&bytes), None, "{name} with a byte more");
        bytes.pop();
        for at in 0..bytes.len() {
            for flipped in [1, 0x80, 0xff] {
                bytes[at] ^= flipped;
                // A changed byte is caught by the checksums; decoding it must only never panic or give the same record.
                assert_ne!(Record::decode(&bytes).as_ref(), Some(&record), "{name} byte {at}");
                bytes[at] ^= flipped;
            }
        }
    }
}
