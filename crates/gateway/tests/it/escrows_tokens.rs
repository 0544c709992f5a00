//! Forged words of the queue: none moves any money, and the good one still does.

use crate::escrows_world::{Bank, ENGINES, Engine, OTHER_SECRET, SECRET, Says, Word, at, head, sign, sign_text};
use crate::http_world::{Answer, encode, sign as sign_with_key};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Method;
use serde_json::{Value, json};

/// What is sent: to which path, with which fields, and with which token.
struct Forged {
    name: String,
    path: String,
    body: Value,
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

fn without(mut object: Value, name: &str) -> Value {
    object.as_object_mut().unwrap().remove(name);
    object
}

/// A sound request with another token.
fn token_of(word: &Word, name: &str, token: String) -> Forged {
    Forged { name: format!("{:?}: {name}", word.says), path: word.path(), body: word.body(&token) }
}

/// Tokens that were signed for something else than what is asked.
fn for_something_else(words: &[Word; 3], other: &str) -> Vec<Forged> {
    let mut forged = Vec::new();
    for asked in words {
        for signed in words.iter().filter(|signed| signed.says != asked.says) {
            forged.push(token_of(asked, &format!("a token to {:?}", signed.says), signed.token()));
            // All that the other says, and the right operation besides.
            let claims = with(signed.claims(), "operation", asked.claims()["operation"].clone());
            forged.push(token_of(asked, &format!("{:?} renamed", signed.says), sign(SECRET, &head(), &claims)));
        }
        let claims = asked.claims();
        let mut says = |name: &str, value: Value| {
            let token = sign(SECRET, &head(), &with(claims.clone(), name, value));
            forged.push(token_of(asked, &format!("another {name}"), token));
        };
        says("escrowId", json!(other));
        says("queueItemId", json!("qi_2"));
        says("reason", json!("quality_issue"));
        says("operation", json!("SETTLE"));
        says("operation", json!("pay"));
        match asked.says {
            Says::Settle => says("modelId", json!("eve")),
            Says::Refund => says("userId", json!("eve")),
            Says::Partial => {
                says("modelId", json!("eve"));
                says("userId", json!("eve"));
                says("settleAmount", json!("10"));
                says("refundAmount", json!("10"));
            }
        }
        if asked.says != Says::Partial {
            says("amount", json!("9"));
            says("amount", json!("10.0"));
            says("settleAmount", json!("10"));
        }
    }
    forged
}

/// A good token, and a request that asks for something else.
fn asked_for_something_else(words: &[Word; 3]) -> Vec<Forged> {
    let changes = [
        (Says::Settle, "modelId", json!("eve")),
        (Says::Settle, "amount", json!("9")),
        (Says::Settle, "queueItemId", json!("qi_2")),
        (Says::Settle, "reason", json!("quality_issue")),
        (Says::Settle, "userId", json!("eve")),
        (Says::Refund, "userId", json!("eve")),
        (Says::Refund, "amount", json!("11")),
        (Says::Refund, "queueItemId", json!("qi_2")),
        (Says::Refund, "reason", json!("performance_completed")),
        (Says::Partial, "settleAmount", json!("8")),
        (Says::Partial, "refundAmount", json!("4")),
        (Says::Partial, "modelId", json!("eve")),
        (Says::Partial, "userId", json!("eve")),
    ];
    let forged = changes.into_iter().map(|(says, name, value)| {
        let word = words.iter().find(|word| word.says == says).unwrap();
        let body = with(word.body(&word.token()), name, value);
        Forged { name: format!("{says:?}: asks for another {name}"), path: word.path(), body }
    });
    forged.collect()
}

fn of_another_time(word: &Word) -> Vec<Forged> {
    let (now, claims) = (jsonwebtoken::get_current_timestamp(), word.claims());
    let times = |iat: u64, exp: u64| sign(SECRET, &head(), &at(claims.clone(), iat, exp));
    let says = |name: &str, value: Value| sign(SECRET, &head(), &with(claims.clone(), name, value));
    let tokens = vec![
        ("expired", times(now - 400, now - 100)),
        ("expired just beyond the leeway", times(now - 331, now - 31)),
        ("from the future", times(now + 60, now + 120)),
        ("too long a life", times(now, now + 301)),
        ("a life of a year", times(now, now + 31_536_000)),
        ("an old one, renewed by exp alone", times(now - 3_600, now + 60)),
        ("exp before iat", times(now, now - 1)),
        ("exp at iat", times(now, now)),
        ("exp a text", says("exp", json!("9999999999"))),
        ("exp null", says("exp", Value::Null)),
        ("exp negative", says("exp", json!(-1))),
        ("exp a fraction", says("exp", json!(now as f64 + 60.5))),
        ("exp enormous", says("exp", json!(u64::MAX))),
        ("iat a text", says("iat", json!(now.to_string()))),
        ("iat of 1970", says("iat", json!(0))),
        ("another issuedAt", says("issuedAt", json!("2020-01-01T00:00:00Z"))),
        ("another expiresAt", says("expiresAt", json!("2100-01-01T00:00:00Z"))),
        ("expiresAt a number", says("expiresAt", json!(now + 300))),
        ("issuedAt no moment", says("issuedAt", json!("now"))),
    ];
    tokens.into_iter().map(|(name, token)| token_of(word, name, token)).collect()
}

fn with_other_claims(word: &Word) -> Vec<Forged> {
    let claims = word.claims();
    let says = |name: &str, value: Value| sign(SECRET, &head(), &with(claims.clone(), name, value));
    let text = |text: &str| sign_text(SECRET.as_bytes(), &head().to_string(), text);
    let mut tokens: Vec<(String, String)> = [
        ("another issuer", says("iss", json!("holdfast"))),
        ("issuer in capitals", says("iss", json!("HOLDFAST-QUEUE"))),
        ("issuer a list", says("iss", json!(["holdfast-queue"]))),
        ("another audience", says("aud", json!("holdfast"))),
        ("audience a list", says("aud", json!(["holdfast-wallet"]))),
        ("an empty jti", says("jti", json!(""))),
        ("a long jti", says("jti", json!("j".repeat(200)))),
        ("jti a number", says("jti", json!(1))),
        ("amount a number", says("amount", json!(10))),
        ("amount null", says("amount", Value::Null)),
        ("modelId a list", says("modelId", json!(["mia", "eve"]))),
        ("userId null", says("userId", Value::Null)),
        ("userId besides", says("userId", json!("alice"))),
        ("an unknown claim", says("admin", json!(true))),
        ("operation true", says("operation", json!(true))),
        ("a doubled payee", text(&claims.to_string().replacen('{', r#"{"modelId":"eve","#, 1))),
        ("claims that are a list", text("[]")),
        ("claims that are no JSON", text("claims")),
        ("no claims at all", text("{}")),
    ]
    .map(|(name, token)| (name.to_owned(), token))
    .into();
    for name in claims.as_object().unwrap().keys() {
        tokens.push((format!("no {name}"), sign(SECRET, &head(), &without(claims.clone(), name))));
    }
    tokens.into_iter().map(|(name, token)| token_of(word, &name, token)).collect()
}

fn with_another_head(word: &Word) -> Vec<Forged> {
    let claims = word.claims();
    let heads = |name: &str, value: Value| sign(SECRET, &with(head(), name, value), &claims);
    let unsigned = |algorithm: &str| {
        let head = with(head(), "alg", json!(algorithm)).to_string();
        format!("{}.{}.", encode(head), encode(claims.to_string()))
    };
    let tokens = vec![
        ("alg none", unsigned("none")),
        ("alg nOnE", unsigned("nOnE")),
        ("alg NONE, signed", heads("alg", json!("NONE"))),
        ("alg none, and a word for a signature", format!("{}AAAA", unsigned("none"))),
        ("alg hs256", heads("alg", json!("hs256"))),
        ("alg HS384", heads("alg", json!("HS384"))),
        ("alg HS512", heads("alg", json!("HS512"))),
        ("alg ES256", heads("alg", json!("ES256"))),
        ("alg RS256", heads("alg", json!("RS256"))),
        ("alg a list", heads("alg", json!(["HS256"]))),
        ("no alg", sign(SECRET, &without(head(), "alg"), &claims)),
        ("typ JWT", heads("typ", json!("JWT"))),
        ("typ of a service token", heads("typ", json!("at+jwt"))),
        ("typ in capitals", heads("typ", json!("QUEUE-AUTHORIZATION+JWT"))),
        ("no typ", sign(SECRET, &without(head(), "typ"), &claims)),
        ("an unknown kid", heads("kid", json!("other"))),
        ("an empty kid", heads("kid", json!(""))),
        ("kid a path", heads("kid", json!("../../../../dev/null"))),
        ("kid of SQL", heads("kid", json!("x' UNION SELECT 'key' --"))),
        ("kid a number", heads("kid", json!(1))),
        ("a long kid", heads("kid", json!("k".repeat(2_000)))),
        ("no kid", sign(SECRET, &without(head(), "kid"), &claims)),
        ("its own jwk", heads("jwk", json!({ "kty": "oct", "k": encode(SECRET) }))),
        ("a jku", heads("jku", json!("https://example.com/keys"))),
        ("a crit", heads("crit", json!(["exp"]))),
        (
            "a doubled alg",
            sign_text(
                SECRET.as_bytes(),
                &head().to_string().replacen('{', r#"{"alg":"none","#, 1),
                &claims.to_string(),
            ),
        ),
        (
            "a head that is a list",
            sign_text(SECRET.as_bytes(), r#"["HS256","queue-authorization+jwt","queue"]"#, &claims.to_string()),
        ),
    ];
    tokens.into_iter().map(|(name, token)| token_of(word, name, token)).collect()
}

/// The key that everybody can read, as a point of its curve.
fn point(published: &Value) -> Vec<u8> {
    let part = |name: &str| URL_SAFE_NO_PAD.decode(published[name].as_str().unwrap()).unwrap();
    [vec![4], part("x"), part("y")].concat()
}

/// The same as a file has it: an algorithm, a curve and the point.
fn pem(published: &Value) -> String {
    const P256: &[u8] =
        b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\0";
    let text = STANDARD.encode([P256, &point(published)].concat());
    let (first, second) = text.split_at(64);
    format!("-----BEGIN PUBLIC KEY-----\n{first}\n{second}\n-----END PUBLIC KEY-----\n")
}

fn with_another_signature(bank: &Bank, word: &Word) -> Vec<Forged> {
    let (good, claims) = (word.token(), word.claims());
    let parts: Vec<&str> = good.split('.').collect();
    let [first, second, signature] = parts[..] else { unreachable!("three parts") };
    let published = bank.site.send(bank.site.bare(Method::GET, "/.well-known/jwks.json")).body["keys"][0].clone();
    let (pair, kid) = bank.site.stolen_key();
    let eve = encode(with(claims.clone(), "modelId", json!("eve")).to_string());
    let tokens = vec![
        ("HS256 with the published key", sign(&published.to_string(), &head(), &claims)),
        ("HS256 with the published point", sign(published["x"].as_str().unwrap(), &head(), &claims)),
        ("HS256 with the published key as a file has it", sign(&pem(&published), &head(), &claims)),
        (
            "HS256 with the bytes of the published key",
            sign_text(&point(&published), &head().to_string(), &claims.to_string()),
        ),
        ("HS256 with an empty secret", sign("", &head(), &claims)),
        ("HS256 with a secret of another wallet", sign(OTHER_SECRET, &head(), &claims)),
        ("HS256 with the name of the secret", sign("queue", &head(), &claims)),
        ("a token for services", bank.site.service.clone()),
        ("a token for admins", bank.site.admin.clone()),
        (
            "ES256 with the server's own key",
            sign_with_key(
                &pair,
                &with(with(head(), "alg", json!("ES256")), "kid", json!(kid)).to_string(),
                &claims.to_string(),
            ),
        ),
        ("other claims under the signature", format!("{first}.{eve}.{signature}")),
        (
            "a changed signature",
            format!("{first}.{second}.{}", signature.replacen(|letter: char| letter != 'A', "A", 1)),
        ),
        ("a signature of zeros", format!("{first}.{second}.{}", encode([0; 32]))),
        ("a short signature", format!("{first}.{second}.{}", &signature[..20])),
        ("an empty signature", format!("{first}.{second}.")),
        ("no signature", format!("{first}.{second}")),
        ("a fourth part", format!("{good}.{signature}")),
        ("a padded signature", format!("{good}=")),
        ("two tokens with a comma", format!("{good},{good}")),
        ("two tokens with a space", format!("{good} {good}")),
        ("a space before it", format!(" {good}")),
        ("the scheme before it", format!("Bearer {good}")),
        ("a line after it", format!("{good}\n")),
        ("nothing", String::new()),
        ("only dots", "..".to_owned()),
        ("a word", "token".to_owned()),
        ("a huge one", format!("{first}.{}.{signature}", "A".repeat(30_000))),
    ];
    tokens.into_iter().map(|(name, token)| token_of(word, name, token)).collect()
}

fn refuse(bank: &Bank, forged: &Forged) -> Answer {
    let answer = bank.site.post(&forged.path, &forged.body);
    let (name, said) = (&forged.name, answer.body.to_string());
    assert_eq!((answer.status, answer.code()), (403, "INVALID_AUTHORIZATION"), "{name}: {answer:?}");
    assert!(!said.contains(SECRET) && !said.contains("eyJ"), "{name}: {said}");
    answer
}

#[test]
fn every_forged_word_of_the_queue_is_refused_and_moves_nothing() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let (escrow, other) = (bank.held("h1", "10"), bank.held("h2", "10"));
        let words = [Says::Settle, Says::Refund, Says::Partial].map(|says| Word::new(says, &escrow));
        let mut forged = for_something_else(&words, &other);
        forged.extend(asked_for_something_else(&words));
        forged.extend(of_another_time(&words[0]));
        forged.extend(with_other_claims(&words[0]));
        forged.extend(with_another_head(&words[0]));
        if engine == Engine::Embedded {
            // The key that is stolen for these is in the data directory.
            forged.extend(with_another_signature(&bank, &words[0]));
        }
        let missing = without(words[0].body(""), "authorizationToken");
        forged.push(Forged { name: "no token".to_owned(), path: words[0].path(), body: missing });
        assert!(forged.len() >= 120, "{}", forged.len());
        let before = (bank.money(), bank.show(&escrow), bank.show(&other));
        for forged in &forged {
            refuse(&bank, forged);
        }
        assert_eq!((bank.money(), bank.show(&escrow), bank.show(&other)), before, "{engine:?}");
        // Signed for the other escrow, and sent to this one.
        let lent = Word::new(Says::Settle, &other).token();
        assert_eq!(bank.site.post(&words[0].path(), &words[0].body(&lent)).status, 403);
        assert_eq!(bank.ask(&words[0]).status, 200, "the good one is good");
        assert_eq!(bank.money(), (json!("80"), json!("10")));
    }
}

#[test]
fn what_the_queue_signed_wrongly_is_not_carried_out() {
    let bank = Bank::open(Engine::Embedded);
    let escrow = bank.held("h1", "10");
    // Token and request agree, and the escrow is another.
    for (amount, says) in [(9, Says::Settle), (11, Says::Settle), (1, Says::Refund)] {
        let word = Word { amount, ..Word::new(says, &escrow) };
        let refused = bank.ask(&word);
        assert_eq!((refused.status, refused.code()), (403, "INVALID_AUTHORIZATION"), "{amount} {refused:?}");
        assert!(refused.body["error"]["message"].as_str().unwrap().ends_with("the escrow holds another amount"));
    }
    let word = Word::new(Says::Refund, &escrow);
    let claims = with(word.claims(), "userId", json!("eve"));
    let body = with(word.body(&sign(SECRET, &head(), &claims)), "userId", json!("eve"));
    let refused = bank.site.post(&word.path(), &body);
    assert_eq!((refused.status, refused.code()), (403, "INVALID_AUTHORIZATION"), "{refused:?}");
    assert_eq!((bank.show(&escrow)["status"].clone(), bank.money().0), (json!("held"), json!("90")));
}

#[test]
fn a_token_that_was_used_moves_nothing_again() {
    let bank = Bank::open(Engine::Embedded);
    let escrow = bank.held("h1", "10");
    let word = Word::new(Says::Settle, &escrow);
    let token = word.token();
    let send = |key: &str| bank.site.post(&word.path(), &word.clone().by_key(key).body(&token));
    let first = send("k1");
    assert_eq!(first.status, 200, "{first:?}");
    let again = send("k1");
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let other = send("k2");
    assert_eq!((other.status, other.code()), (409, "ESCROW_ALREADY_PROCESSED"));
    assert_eq!(bank.money(), (json!("90"), json!("10")));
    // A used key is no way to another escrow either.
    let second = Word::new(Says::Settle, &bank.held("h2", "10")).by_key("k1");
    let refused = bank.ask(&second);
    assert_eq!((refused.status, refused.code()), (409, "ALREADY_USED_KEY"));
    assert_eq!(bank.show(&second.escrow)["status"], "held");
}

#[test]
fn two_tokens_at_once_are_none_whichever_of_them_is_good() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let (escrow, before) = (bank.held("h1", "10"), bank.money());
        for says in [Says::Settle, Says::Refund, Says::Partial] {
            let word = Word::new(says, &escrow);
            let (good, bad) = (word.token(), sign(OTHER_SECRET, &head(), &word.claims()));
            for (first, second) in [(&good, &good), (&good, &bad), (&bad, &good)] {
                // One after the other in two fields of one name, and both in one field.
                let body = word.body(second).to_string();
                let doubled = body.replacen('{', &format!(r#"{{"authorizationToken":"{first}","#), 1);
                let listed = with(word.body(first), "authorizationToken", json!([first, second])).to_string();
                for body in [doubled, listed] {
                    let request = bank.site.bare(Method::POST, &word.path()).bearer_auth(&bank.site.service);
                    let refused = bank.site.send(request.header("content-type", "application/json").body(body));
                    assert_eq!((refused.status, refused.code()), (403, "INVALID_AUTHORIZATION"), "{refused:?}");
                }
            }
        }
        assert_eq!((bank.show(&escrow)["status"].clone(), bank.money()), (json!("held"), before), "{engine:?}");
    }
}

#[test]
fn only_services_reach_the_wallet() {
    let bank = Bank::open(Engine::Embedded);
    let escrow = bank.held("h1", "10");
    let word = Word::new(Says::Settle, &escrow);
    let key = bank.site.world.json(&["keys", "new", "--account", "alice"])["api_key"].as_str().unwrap().to_owned();
    for (method, path) in [
        (Method::POST, "/api/v1/escrows".to_owned()),
        (Method::GET, "/api/v1/escrows".to_owned()),
        (Method::GET, format!("/api/v1/escrows/{escrow}")),
        (Method::GET, "/api/v1/wallets/alice".to_owned()),
        (Method::POST, word.path()),
    ] {
        let ask = |credential: Option<&str>| {
            let request = bank.site.bare(method.clone(), &path);
            let request = credential.into_iter().fold(request, |request, credential| request.bearer_auth(credential));
            let answer = bank.site.send(request.json(&word.body(&word.token())));
            (answer.status, answer.code().to_owned())
        };
        assert_eq!(ask(None), (401, "AUTH_MISSING".to_owned()), "{path}");
        assert_eq!(ask(Some(&bank.site.admin)), (403, "ACCESS_ROLE".to_owned()), "{path}");
        assert_eq!(ask(Some(&key)), (401, "AUTH_WRONG_KIND".to_owned()), "{path}");
        // The queue's word is no credential.
        assert_eq!(ask(Some(&word.token())).0, 401, "{path}");
    }
    assert_eq!(bank.show(&escrow)["status"], "held");
}
