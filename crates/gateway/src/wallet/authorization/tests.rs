//! A token is good for what it was signed for and for nothing else. What forgers send is tried on the real program.

use super::*;
use holdfast_domain::escrow::{Command, Ruling};
use holdfast_domain::queue::Cause;
use holdfast_domain::{Key, PayeeId};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_500);

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_millis(NOW.millis().checked_add_signed(seconds * 1_000).unwrap())
}

fn cu(text: &str) -> CreditUnit {
    text.parse().unwrap()
}

fn payee(name: &str) -> PayeeId {
    name.parse().unwrap()
}

/// What the queue says, before it is signed.
fn word(command: Command) -> Instruction {
    let ruling = Ruling { item: "qi_1".parse().unwrap(), cause: Cause::PartialDelivery };
    let key: Key = "queue-qi_1-settle".parse().unwrap();
    let (escrow, user) = ("esc_1".parse().unwrap(), "alice".parse().unwrap());
    Instruction { escrow, user, amount: cu("10.5"), order: Order { command, ruling }, key, token: String::new() }
}

fn signed(secrets: &Secrets, word: Instruction) -> Instruction {
    let token = secrets.sign(word.escrow, word.user, word.amount, &word.order, NOW);
    Instruction { token, ..word }
}

fn words() -> [Instruction; 3] {
    let (settle, refund) = (cu("4"), cu("6.5"));
    let partial = Command::PartialSettle { payee: payee("mia"), settle, refund };
    [Command::Settle { payee: payee("mia") }, Command::Refund, partial].map(word)
}

fn refusal(secrets: &Secrets, instruction: &Instruction, now: Timestamp) -> &'static str {
    secrets.verify(instruction, now).unwrap_err().0
}

/// The claims of a token, as they are written.
fn claims(token: &str) -> serde_json::Value {
    let part = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&part).unwrap()
}

#[test]
fn a_token_says_exactly_what_it_is_for() {
    let secrets = Secrets::random().unwrap();
    for (word, expected) in words().into_iter().zip([
        serde_json::json!({ "operation": "settle", "modelId": "mia", "amount": "10.5" }),
        serde_json::json!({ "operation": "refund", "userId": "alice", "amount": "10.5" }),
        serde_json::json!({
            "operation": "partial", "modelId": "mia", "userId": "alice", "settleAmount": "4", "refundAmount": "6.5",
        }),
    ]) {
        let mut said = claims(&signed(&secrets, word).token);
        assert_eq!(said["jti"].as_str().unwrap().len(), 32);
        let mut all = serde_json::json!({
            "queueItemId": "qi_1", "escrowId": "esc_1", "reason": "partial_delivery", "iss": "holdfast-queue",
            "aud": "holdfast-wallet", "iat": 1_800_000_000_u64, "exp": 1_800_000_300_u64,
            "issuedAt": "2027-01-15T08:00:00.000Z", "expiresAt": "2027-01-15T08:05:00.000Z", "jti": null,
        });
        all.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        said["jti"] = serde_json::Value::Null;
        assert_eq!(said, all);
    }
}

#[test]
fn each_is_good_for_itself_and_for_no_other() {
    let secrets = Secrets::random().unwrap();
    let good = words().map(|word| signed(&secrets, word));
    for (number, token) in good.iter().enumerate() {
        for (other, asked) in good.iter().enumerate() {
            let asked = Instruction { token: token.token.clone(), ..asked.clone() };
            let expected =
                if number == other { Ok(()) } else { Err("it is for another operation (settle, refund or partial)") };
            assert_eq!(secrets.verify(&asked, NOW).map_err(|refused| refused.0), expected, "{number} {other}");
        }
    }
}

#[test]
fn every_bound_field_is_compared() {
    let secrets = Secrets::random().unwrap();
    let [settle, refund, partial] = words().map(|word| signed(&secrets, word));
    let with = |said: &Instruction, command| Instruction { order: Order { command, ..said.order }, ..said.clone() };
    let of_item = |said: &Instruction, item: &str| {
        let ruling = Ruling { item: item.parse().unwrap(), ..said.order.ruling };
        Instruction { order: Order { ruling, ..said.order }, ..said.clone() }
    };
    let because = |said: &Instruction, cause| {
        let ruling = Ruling { cause, ..said.order.ruling };
        Instruction { order: Order { ruling, ..said.order }, ..said.clone() }
    };
    let divided = |name: &str, settle: &str, refund: &str| {
        with(&partial, Command::PartialSettle { payee: payee(name), settle: cu(settle), refund: cu(refund) })
    };
    let (another, nobody) = ("esc_2".parse().unwrap(), "bob".parse().unwrap());
    for said in [&settle, &refund, &partial] {
        assert_eq!(
            refusal(&secrets, &Instruction { escrow: another, ..said.clone() }, NOW),
            "it is for another escrow"
        );
        assert_eq!(refusal(&secrets, &of_item(said, "qi_2"), NOW), "it is for another queue item");
        assert_eq!(refusal(&secrets, &because(said, Cause::QualityIssue), NOW), "it is for another reason");
    }
    for (asked, why) in [
        (with(&settle, Command::Settle { payee: payee("eve") }), "it is for another payee (`modelId`)"),
        (Instruction { amount: cu("10"), ..settle.clone() }, "it is for another amount"),
        (Instruction { amount: cu("10"), ..refund.clone() }, "it is for another amount"),
        (Instruction { user: nobody, ..refund.clone() }, "it is for another user (`userId`)"),
        (Instruction { user: nobody, ..partial.clone() }, "it is for another user (`userId`)"),
        (divided("eve", "4", "6.5"), "it is for another payee (`modelId`)"),
        (divided("mia", "6.5", "4"), "it is for another amount"),
        (divided("mia", "10.5", "0"), "it is for another amount"),
    ] {
        assert_eq!(refusal(&secrets, &asked, NOW), why);
    }
    // Who pays is no part of a token that pays out; the wallet asks the books.
    assert_eq!(secrets.verify(&Instruction { user: nobody, ..settle }, NOW), Ok(()));
}

#[test]
fn a_token_lives_five_minutes_give_or_take_the_clocks() {
    let secrets = Secrets::random().unwrap();
    let [settle, ..] = words().map(|word| signed(&secrets, word));
    for seconds in [-30, 0, 299, 300, 329] {
        assert_eq!(secrets.verify(&settle, later(seconds)), Ok(()), "{seconds}");
    }
    assert_eq!(refusal(&secrets, &settle, later(-31)), "it was issued in the future");
    for seconds in [330, 331, 1_000_000] {
        assert!(refusal(&secrets, &settle, later(seconds)).starts_with("it has expired"), "{seconds}");
    }
}

#[test]
fn another_secret_is_worth_nothing() {
    let (ours, theirs) = (Secrets::random().unwrap(), Secrets::random().unwrap());
    let [settle, ..] = words().map(|word| signed(&theirs, word));
    assert_eq!(refusal(&ours, &settle, NOW), "its signature is not that of the secret that it names");
    let refused = ours.verify(&settle, NOW).unwrap_err();
    assert_eq!(refused.code(), "INVALID_AUTHORIZATION");
    assert!(!refused.to_string().contains(&settle.token));
}

#[test]
fn what_is_as_we_sign_it_reads_as_good_too() {
    let secrets = Secrets::random().unwrap();
    let long = "x".repeat(64);
    let longest = Instruction {
        escrow: long.parse().unwrap(),
        user: long.parse().unwrap(),
        amount: cu("1000000000000"),
        order: Order {
            command: Command::PartialSettle {
                payee: payee(&long),
                settle: cu("999999999999.999999"),
                refund: cu("0.000001"),
            },
            ruling: Ruling { item: long.parse().unwrap(), cause: Cause::PerformerDeclined },
        },
        ..word(Command::Refund)
    };
    for said in words().into_iter().chain([longest]).map(|word| signed(&secrets, word)) {
        assert!(said.token.len() <= TOKEN_BYTES, "{}", said.token.len());
        assert!(secrets.is_as_we_sign_it(&said, NOW.millis() / 1_000));
        // The same words in another order are another token, and as good: that one is read.
        let respelled = Instruction { token: resigned(&secrets, &said.token), ..said };
        assert!(!secrets.is_as_we_sign_it(&respelled, NOW.millis() / 1_000));
        assert_eq!(secrets.verify(&respelled, NOW), Ok(()));
    }
}

/// A token with the same claims by their names, signed anew.
fn resigned(secrets: &Secrets, token: &str) -> String {
    let (_, secret) = secrets.signer();
    let mut again = format!("{}.{}", secret.head, URL_SAFE_NO_PAD.encode(claims(token).to_string()));
    let signature = hmac::sign(&secret.key, again.as_bytes());
    again.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut again);
    again
}

#[test]
fn no_letter_of_a_token_can_be_another() {
    let secrets = Secrets::random().unwrap();
    let [settle, ..] = words().map(|word| signed(&secrets, word));
    for place in 0..settle.token.len() {
        let mut token = settle.token.clone().into_bytes();
        token[place] = if token[place] == b'A' { b'Q' } else { b'A' };
        let changed = Instruction { token: String::from_utf8(token).unwrap(), ..settle.clone() };
        assert!(!secrets.is_as_we_sign_it(&changed, NOW.millis() / 1_000), "{place}");
        assert!(secrets.verify(&changed, NOW).is_err(), "{place}");
    }
    for length in 0..settle.token.len() {
        let cut = Instruction { token: settle.token[..length].to_owned(), ..settle.clone() };
        assert!(secrets.verify(&cut, NOW).is_err(), "{length}");
    }
}
