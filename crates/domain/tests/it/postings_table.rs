//! The posting rules as a table: what each kind of entry takes from and gives to whom, and the floors it needs.

use crate::table::{credits, id, reason};
use holdfast_domain::charge::{self, Finality, OnExpiry, Overrun, Taken, Terms};
use holdfast_domain::escrow::{self, Escrowed};
use holdfast_domain::{Budgets, CreditUnit, Event, Guard, Mint, Place, Side, Timestamp, Unbalanced, ZeroMint, mint};

#[test]
fn minting_takes_from_the_treasury() {
    let mint = Mint { owner: id("alice"), amount: cu("100"), reason: reason("top-up") };
    check(Event::Minted(mint), "credit_mint: treasury:usdc_received -100, user:alice:available 100; floors:");
}

#[test]
fn setting_aside_moves_from_available_to_held() {
    let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let (amount, expires_at) = (cu("100"), Timestamp::EPOCH);
    check(
        of_charge(charge::Event::Reserved { amount, terms, expires_at, budgets: Budgets::NONE }),
        "billing_reserve: user:alice:available -100, user:alice:held 100; floors: user:alice:available",
    );
    check(
        of_charge(charge::Event::Increased { amount }),
        "billing_increase: user:alice:available -100, user:alice:held 100; floors: user:alice:available",
    );
}

#[test]
fn a_commit_moves_from_held_and_available_to_revenue_and_gives_the_rest_back() {
    for (taken, line) in [
        (
            ("70", "0", "30", "0"),
            "billing_commit: user:alice:held -100, system:revenue 70, user:alice:available 30; floors: user:alice:held",
        ),
        (
            ("100", "20", "0", "10"),
            "billing_commit: user:alice:held -100, system:revenue 120, user:alice:available -20; \
             floors: user:alice:held user:alice:available",
        ),
        (
            ("0", "20", "0", "10"),
            "billing_commit: system:revenue 20, user:alice:available -20; floors: user:alice:available",
        ),
        (("100", "0", "0", "0"), "billing_commit: user:alice:held -100, system:revenue 100; floors: user:alice:held"),
        (
            ("0", "0", "100", "0"),
            "billing_commit: user:alice:held -100, user:alice:available 100; floors: user:alice:held",
        ),
        (("0", "0", "0", "5"), "billing_commit: ; floors:"),
    ] {
        let (from_hold, from_available, returned, uncollected) = taken;
        let taken = Taken {
            from_hold: cu(from_hold),
            from_available: cu(from_available),
            returned: cu(returned),
            uncollected: cu(uncollected),
        };
        for finality in [Finality::Final, Finality::Partial] {
            check(of_charge(charge::Event::Committed { taken, finality }), line);
        }
    }
}

#[test]
fn giving_back_moves_from_held_to_available_and_a_void_from_revenue() {
    let returned = cu("100");
    check(
        of_charge(charge::Event::Released { returned }),
        "billing_release: user:alice:held -100, user:alice:available 100; floors: user:alice:held",
    );
    check(
        of_charge(charge::Event::AutoReleased { returned }),
        "billing_auto_release: user:alice:held -100, user:alice:available 100; floors: user:alice:held",
    );
    check(
        of_charge(charge::Event::Voided { returned, reason: reason("by mistake") }),
        "billing_void: system:revenue -100, user:alice:available 100; floors:",
    );
}

#[test]
fn what_moves_no_money_posts_nothing() {
    check(of_charge(charge::Event::Started), "billing_start: ; floors:");
    check(of_charge(charge::Event::Noted { cost: cu("5") }), "billing_progress: ; floors:");
    check(of_charge(charge::Event::Extended { expires_at: Timestamp::EPOCH }), "billing_extend: ; floors:");
    check(of_charge(charge::Event::Acked), "billing_finalize_ack: ; floors:");
    check(of_charge(charge::Event::Failed { reason: reason("no answer") }), "billing_finalize_fail: ; floors:");
}

#[test]
fn an_escrow_moves_from_its_owner_to_its_payee_or_back() {
    let (payee, amount) = (id("bob"), cu("100"));
    check(
        of_escrow(escrow::Event::Held(Escrowed { amount, feature: id("solo"), held_at: Timestamp::EPOCH })),
        "escrow_hold: user:alice:available -100, escrow:e1 100; floors: user:alice:available",
    );
    check(
        of_escrow(escrow::Event::Settled { payee, amount }),
        "escrow_settle: escrow:e1 -100, payee:bob:available 100; floors: escrow:e1",
    );
    check(
        of_escrow(escrow::Event::Refunded { amount }),
        "escrow_refund: escrow:e1 -100, user:alice:available 100; floors: escrow:e1",
    );
    check(
        of_escrow(escrow::Event::PartiallySettled { payee, settled: cu("70"), refunded: cu("30") }),
        "escrow_partial_settle: escrow:e1 -100, payee:bob:available 70, user:alice:available 30; floors: escrow:e1",
    );
    check(
        of_escrow(escrow::Event::PartiallySettled { payee, settled: cu("0"), refunded: cu("100") }),
        "escrow_partial_settle: escrow:e1 -100, user:alice:available 100; floors: escrow:e1",
    );
}

#[test]
fn only_what_pays_an_escrow_out_names_a_payee() {
    let (payee, amount) = (id("bob"), cu("100"));
    let divided = escrow::Event::PartiallySettled { payee, settled: cu("70"), refunded: cu("30") };
    assert_eq!(of_escrow(escrow::Event::Settled { payee, amount }).payee(), Some(payee));
    assert_eq!(of_escrow(divided).payee(), Some(payee));
    assert_eq!(of_escrow(escrow::Event::Refunded { amount }).payee(), None);
    assert_eq!(of_charge(charge::Event::Acked).payee(), None);
}

#[test]
fn only_the_outer_ends_of_the_books_may_be_negative() {
    let guarded = |place: Place| place.side() == Side::Guarded;
    assert!([Place::Available, Place::Held, Place::Escrow, Place::Payee].into_iter().all(guarded));
    assert!(![Place::Revenue, Place::Treasury].into_iter().any(guarded));
}

#[test]
fn an_entry_names_only_the_accounts_that_it_has() {
    let acked = of_charge(charge::Event::Acked);
    assert_eq!((acked.account(Place::Escrow), acked.account(Place::Payee)), (None, None));
    let refunded = of_escrow(escrow::Event::Refunded { amount: cu("1") });
    assert!(refunded.account(Place::Escrow).is_some() && refunded.account(Place::Payee).is_none());
}

#[test]
fn an_entry_whose_sum_is_out_of_range_is_refused() {
    let most = cu("1000000000000");
    let taken = Taken { from_hold: most, from_available: most, returned: cu("0"), uncollected: cu("0") };
    let event = of_charge(charge::Event::Committed { taken, finality: Finality::Final });
    assert_eq!(event.postings(), Err(Unbalanced));
}

#[test]
fn a_mint_of_nothing_is_refused() {
    let of = |amount| mint(id("alice"), cu(amount), reason("top-up"));
    assert_eq!(of("0"), Err(ZeroMint));
    for amount in ["0.000001", "1000000000000"] {
        let minted = Mint { owner: id("alice"), amount: cu(amount), reason: reason("top-up") };
        assert_eq!(of(amount), Ok(Event::Minted(minted)));
    }
}

/// The entry of `event` is `kind: account change, …; floors: account …`, in this order.
fn check(event: Event, line: &str) {
    let postings = event.postings().expect("the rules balance");
    let changes: Vec<_> =
        event.changes().expect("the same postings").map(|(account, change)| format!("{account} {change}")).collect();
    let account = |place| event.account(place).expect("what an entry posts to, it names");
    let floors = postings.floors().map(|Guard::Floor(place)| format!(" {}", account(place)));
    assert_eq!(format!("{}: {}; floors:{}", event.kind(), changes.join(", "), floors.collect::<String>()), line);
    assert_eq!(event.owner(), id("alice"));
}

fn of_charge(event: charge::Event) -> Event {
    Event::Charge { id: id("c1"), owner: id("alice"), event }
}

fn of_escrow(event: escrow::Event) -> Event {
    Event::Escrow { id: id("e1"), owner: id("alice"), event, ruling: None }
}

fn cu(text: &str) -> CreditUnit {
    credits(text).expect("an amount")
}
