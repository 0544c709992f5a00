//! Tokens: the good one is let in, and every kind of forgery that we could think of is not.

use crate::http_world::{Answer, Site, encode, sign};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use reqwest::Method;
use serde_json::{Value, json};

const PATH: &str = "/api/v1/accounts/alice/balance";

fn now() -> u64 {
    jsonwebtoken::get_current_timestamp()
}

fn claims() -> Value {
    let now = now();
    json!({
        "iss": "holdfast", "aud": "holdfast", "sub": "tester", "role": "service", "iat": now, "nbf": now, "exp": now + 60,
    })
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn without(mut claims: Value, name: &str) -> Value {
    claims.as_object_mut().unwrap().remove(name);
    claims
}

struct Forger {
    pair: EcdsaKeyPair,
    kid: String,
}

impl Forger {
    fn head(&self) -> Value {
        json!({ "alg": "ES256", "typ": "JWT", "kid": self.kid })
    }

    /// Signed with the right key, whatever it says.
    fn token(&self, head: &Value, claims: &Value) -> String {
        sign(&self.pair, &head.to_string(), &claims.to_string())
    }

    /// Sound but for these claims.
    fn says(&self, claims: Value) -> String {
        self.token(&self.head(), &claims)
    }

    /// Sound but for this field of the head.
    fn heads(&self, name: &str, value: Value) -> String {
        self.token(&with(self.head(), name, value), &claims())
    }

    fn good(&self) -> String {
        self.says(claims())
    }

    fn forged_heads(&self) -> Vec<(&'static str, String)> {
        let good = self.good();
        let (_, rest) = good.split_once('.').unwrap();
        let (body, signature) = rest.split_once('.').unwrap();
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" });
        let unsigned = |alg: &str| format!("{}.{body}.", encode(json!({ "alg": alg, "kid": self.kid }).to_string()));
        let head = |text: &str| format!("{}.{body}.{signature}", encode(text));
        vec![
            ("alg none, no signature", unsigned("none")),
            ("alg None", unsigned("None")),
            ("alg NONE", unsigned("NONE")),
            ("alg none, with the signature", format!("{}{signature}", unsigned("none"))),
            ("alg none, signed", self.heads("alg", json!("none"))),
            ("alg HS256, signed as ES256", self.heads("alg", json!("HS256"))),
            ("alg ES384", self.heads("alg", json!("ES384"))),
            ("alg RS256", self.heads("alg", json!("RS256"))),
            ("alg PS256", self.heads("alg", json!("PS256"))),
            ("alg EdDSA", self.heads("alg", json!("EdDSA"))),
            ("alg ES256K", self.heads("alg", json!("ES256K"))),
            ("alg es256", self.heads("alg", json!("es256"))),
            ("alg empty", self.heads("alg", json!(""))),
            ("alg a number", self.heads("alg", json!(256))),
            ("alg a list", self.heads("alg", json!(["ES256"]))),
            ("no alg", self.token(&without(self.head(), "alg"), &claims())),
            ("another type", self.heads("typ", json!("JWE"))),
            ("type a number", self.heads("typ", json!(1))),
            ("unknown kid", self.heads("kid", json!("hf-000000000000000000000000"))),
            ("empty kid", self.heads("kid", json!(""))),
            ("long kid", self.heads("kid", json!("k".repeat(200)))),
            ("kid a path", self.heads("kid", json!("../../../../dev/null"))),
            ("kid of SQL", self.heads("kid", json!("x' UNION SELECT 'key' --"))),
            ("kid a number", self.heads("kid", json!(1))),
            ("no kid", self.token(&without(self.head(), "kid"), &claims())),
            ("its own jwk", self.heads("jwk", jwk)),
            ("a jku", self.heads("jku", json!("https://example.com/jwks.json"))),
            ("an x5u", self.heads("x5u", json!("https://example.com/cert.pem"))),
            ("an x5c", self.heads("x5c", json!(["AAAA"]))),
            ("a crit", self.heads("crit", json!(["exp"]))),
            ("an unencoded payload", self.heads("b64", json!(false))),
            ("a compressed payload", self.heads("zip", json!("DEF"))),
            ("a head that is a list", head("[]")),
            ("a head that is no JSON", head("not json")),
            ("a doubled alg", head(&format!(r#"{{"alg":"none","alg":"ES256","kid":"{}"}}"#, self.kid))),
            ("an empty head", format!(".{body}.{signature}")),
            ("a head of other letters", format!("!!!.{body}.{signature}")),
            ("a padded head", format!("{}==.{body}.{signature}", good.split('.').next().unwrap())),
        ]
    }

    fn forged_claims(&self) -> Vec<(&'static str, String)> {
        let now = now();
        let says = |name: &str, value: Value| self.says(with(claims(), name, value));
        let times = |iat: u64, nbf: u64, exp: u64| {
            self.says(with(with(with(claims(), "iat", json!(iat)), "nbf", json!(nbf)), "exp", json!(exp)))
        };
        let doubled = claims().to_string().replacen('{', r#"{"role":"admin","#, 1);
        vec![
            ("expired", times(now - 200, now - 200, now - 60)),
            ("expired just beyond the leeway", times(now - 60, now - 60, now - 7)),
            ("not yet good", times(now, now + 60, now + 120)),
            ("issued in the future", times(now + 60, now, now + 120)),
            ("too long a life", times(now, now, now + 301)),
            ("a life of a year", times(now, now, now + 31_536_000)),
            ("an old token, renewed by exp alone", times(now - 3_600, now - 3_600, now + 60)),
            ("exp before iat", times(now + 4, now, now + 3)),
            ("no exp", self.says(without(claims(), "exp"))),
            ("no nbf", self.says(without(claims(), "nbf"))),
            ("no iat", self.says(without(claims(), "iat"))),
            ("no iss", self.says(without(claims(), "iss"))),
            ("no aud", self.says(without(claims(), "aud"))),
            ("no sub", self.says(without(claims(), "sub"))),
            ("no role", self.says(without(claims(), "role"))),
            ("exp a text", says("exp", json!((now + 60).to_string()))),
            ("exp null", says("exp", Value::Null)),
            ("exp negative", says("exp", json!(-1))),
            ("exp a fraction", says("exp", json!(now as f64 + 60.5))),
            ("exp enormous", says("exp", json!(u64::MAX))),
            ("nbf a text", says("nbf", json!(now.to_string()))),
            ("nbf true", says("nbf", json!(true))),
            ("iat a text", says("iat", json!("now"))),
            ("iss another", says("iss", json!("someone-else"))),
            ("iss empty", says("iss", json!(""))),
            ("iss in capitals", says("iss", json!("HOLDFAST"))),
            ("iss a number", says("iss", json!(1))),
            ("aud another", says("aud", json!("someone-else"))),
            ("aud an empty list", says("aud", json!([]))),
            ("aud a list of others", says("aud", json!(["a", "b"]))),
            ("aud an object", says("aud", json!({ "holdfast": true }))),
            ("sub empty", says("sub", json!(""))),
            ("sub a number", says("sub", json!(7))),
            ("sub with spaces", says("sub", json!("a b"))),
            ("sub null", says("sub", Value::Null)),
            ("role unknown", says("role", json!("root"))),
            ("role in capitals", says("role", json!("SERVICE"))),
            ("role a list", says("role", json!(["service", "admin"]))),
            ("a doubled role", sign(&self.pair, &self.head().to_string(), &doubled)),
            ("claims that are a list", sign(&self.pair, &self.head().to_string(), "[]")),
            ("claims that are no JSON", sign(&self.pair, &self.head().to_string(), "claims")),
        ]
    }

    fn forged_signatures(&self) -> Vec<(&'static str, String)> {
        let good = self.good();
        let (head, rest) = good.split_once('.').unwrap();
        let (body, signature) = rest.split_once('.').unwrap();
        let random = SystemRandom::new();
        let stranger = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let other_curve = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
        let other = other_curve.sign(&random, format!("{head}.{body}").as_bytes()).unwrap();
        let hmac = |secret: &[u8]| {
            let head = encode(json!({ "alg": "HS256", "typ": "JWT", "kid": self.kid }).to_string());
            let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
            let tag = aws_lc_rs::hmac::sign(&key, format!("{head}.{body}").as_bytes());
            format!("{head}.{body}.{}", encode(tag))
        };
        let admin = encode(with(claims(), "role", json!("admin")).to_string());
        let flipped = signature.replacen(|letter: char| letter != 'A', "A", 1);
        vec![
            ("HS256 with the public key", hmac(self.pair.public_key().as_ref())),
            ("HS256 with an empty secret", hmac(b"")),
            ("signed by a stranger", sign(&stranger, &self.head().to_string(), &claims().to_string())),
            ("signed on another curve", format!("{head}.{body}.{}", encode(other))),
            ("other claims under the signature", format!("{head}.{admin}.{signature}")),
            ("a changed signature", format!("{head}.{body}.{flipped}")),
            ("a signature of zeros", format!("{head}.{body}.{}", encode([0; 64]))),
            ("a short signature", format!("{head}.{body}.{}", &signature[..40])),
            ("a long signature", format!("{head}.{body}.{signature}AAAA")),
            ("no signature", format!("{head}.{body}.")),
            ("no signature and no dot", format!("{head}.{body}")),
            ("a fourth part", format!("{good}.{signature}")),
            ("an empty fourth part", format!("{good}.")),
            ("no claims", format!("{head}..{signature}")),
            ("only dots", "..".to_owned()),
            ("claims and head swapped", format!("{body}.{head}.{signature}")),
            ("a huge token", format!("{head}.{}.{signature}", "A".repeat(30_000))),
            ("a letter after it", format!("{good}x")),
            ("a word", "token".to_owned()),
        ]
    }
}

fn forger(site: &Site) -> Forger {
    let (pair, kid) = site.stolen_key();
    Forger { pair, kid }
}

fn ask(site: &Site, authorization: &[String]) -> Answer {
    let request = site.bare(Method::GET, PATH);
    site.send(authorization.iter().fold(request, |request, value| request.header("authorization", value)))
}

#[test]
fn every_forged_token_is_refused_and_the_good_one_is_not() {
    let site = Site::open();
    let forger = forger(&site);
    let good = forger.good();
    assert_eq!(ask(&site, &[format!("Bearer {good}")]).status, 200);
    assert_eq!(ask(&site, &[format!("Bearer {}", site.service)]).status, 200);
    let many = forger.says(with(claims(), "aud", json!(["other", "holdfast"])));
    assert_eq!(ask(&site, &[format!("Bearer {many}")]).status, 200);

    let mut forged = forger.forged_heads();
    forged.extend(forger.forged_claims());
    forged.extend(forger.forged_signatures());
    let mut headers: Vec<(&str, Vec<String>)> =
        forged.into_iter().map(|(name, token)| (name, vec![format!("Bearer {token}")])).collect();
    headers.extend([
        ("nothing", vec![]),
        ("no scheme", vec![good.clone()]),
        ("no token", vec!["Bearer ".to_owned()]),
        ("the scheme alone", vec!["Bearer".to_owned()]),
        ("the scheme in small letters", vec![format!("bearer {good}")]),
        ("the scheme in capitals", vec![format!("BEARER {good}")]),
        ("two spaces", vec![format!("Bearer  {good}")]),
        ("a tab", vec![format!("Bearer\t{good}")]),
        ("no space", vec![format!("Bearer{good}")]),
        ("another scheme", vec![format!("Token {good}")]),
        ("basic", vec![format!("Basic {}", encode(format!("x:{good}")))]),
        ("two tokens in one", vec![format!("Bearer {good} {good}")]),
        ("two tokens with a comma", vec![format!("Bearer {good},{good}")]),
        ("the header twice", vec![format!("Bearer {good}"), format!("Bearer {good}")]),
        ("a good one after a bad one", vec!["Bearer bad".to_owned(), format!("Bearer {good}")]),
        ("a good one before a bad one", vec![format!("Bearer {good}"), "Bearer bad".to_owned()]),
    ]);
    assert!(headers.len() >= 60, "{}", headers.len());
    for (name, values) in &headers {
        let answer = ask(&site, values);
        assert_eq!(answer.status, 401, "{name}: {answer:?}");
        assert!(answer.code().starts_with("AUTH_"), "{name}: {answer:?}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        // Nothing of the credential comes back.
        assert!(!answer.body.to_string().contains(&good[good.len() - 40..]), "{name}");
    }
    assert_eq!(ask(&site, &[format!("Bearer {good}")]).status, 200);
}

#[test]
fn a_token_of_one_role_is_worth_nothing_on_the_others_routes() {
    let site = Site::open();
    let body = json!({ "account_id": "alice", "amount_cu": "1", "reason": "r" });
    let minted = site.send(site.bare(Method::POST, "/api/v1/admin/mint").bearer_auth(&site.service).json(&body));
    assert_eq!((minted.status, minted.code()), (403, "ACCESS_ROLE"));
    let looked = site.send(site.bare(Method::GET, PATH).bearer_auth(&site.admin));
    assert_eq!((looked.status, looked.code()), (403, "ACCESS_ROLE"));
    let used = site.send(site.bare(Method::GET, "/v1/key").bearer_auth(&site.service));
    assert_eq!((used.status, &used.body["error"]["code"]), (401, &json!("auth_wrong_kind")));
    assert_eq!(site.world.entries(), 1);
}

#[test]
fn a_token_lives_on_through_a_rotation_and_the_new_key_is_published() {
    let site = Site::open();
    let keys = || site.send(site.bare(Method::GET, "/.well-known/jwks.json")).body["keys"].clone();
    let before = keys();
    assert_eq!(before.as_array().unwrap().len(), 1);
    assert!(before[0].get("d").is_none(), "the private half stays private");
    let old = site.service.clone();
    site.world.ok(&["keys", "rotate"]);
    let after = keys();
    assert_eq!((after.as_array().unwrap().len(), &after[1]), (2, &before[0]));
    let new = site.world.ok(&["token", "--role", "service"]).trim().to_owned();
    for token in [&old, &new] {
        assert_eq!(ask(&site, &[format!("Bearer {token}")]).status, 200);
    }
    assert_eq!(forger(&site).kid, after[0]["kid"].as_str().unwrap());
}

#[test]
fn a_peers_keys_are_trusted_for_the_peers_issuer_only_and_read_anew_when_an_unknown_one_is_named() {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = pair.public_key().as_ref();
    let jwk = |kid: &str| json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": encode(&point[1..33]), "y": encode(&point[33..]) });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jwks.json");
    std::fs::write(
        &file,
        json!({ "keys": [jwk("peer-1"), { "kty": "RSA", "kid": "other", "n": "AA", "e": "AQAB" }] }).to_string(),
    )
    .unwrap();
    let site = Site::with_settings(&[("HOLDFAST_JWKS", file.to_str().unwrap()), ("HOLDFAST_JWKS_ISSUER", "peer")]);
    let token = |kid: &str, issuer: &str| {
        let head = json!({ "alg": "ES256", "kid": kid }).to_string();
        format!("Bearer {}", sign(&pair, &head, &with(claims(), "iss", json!(issuer)).to_string()))
    };
    assert_eq!(ask(&site, &[token("peer-1", "peer")]).status, 200);
    assert_eq!(ask(&site, &[token("peer-1", "holdfast")]).status, 401);
    let ours = forger(&site);
    assert_eq!(ask(&site, &[format!("Bearer {}", ours.says(with(claims(), "iss", json!("peer"))))]).status, 401);
    assert_eq!(ask(&site, &[format!("Bearer {}", ours.good())]).status, 200);
    // The peer takes a new key, and the old one back.
    std::fs::write(&file, json!({ "keys": [jwk("peer-2")] }).to_string()).unwrap();
    assert_eq!(ask(&site, &[token("peer-2", "peer")]).status, 200);
    assert_eq!(ask(&site, &[token("peer-1", "peer")]).status, 401);
}

#[test]
fn the_token_command_signs_without_a_server_and_refuses_long_lives() {
    let world = crate::world::World::new();
    let token = world.ok(&["token", "--role", "admin", "--sub", "ops", "--ttl", "90s"]);
    assert_eq!(token.trim().split('.').count(), 3);
    assert_eq!(world.json(&["token", "--role", "service"])["expires_in_s"], json!(300));
    assert_eq!(world.refused(&["token", "--role", "service", "--ttl", "6m"]), "INVALID_SETTING");
    assert_eq!(world.refused(&["token", "--role", "service", "--ttl", "0"]), "INVALID_SETTING");
    assert_eq!(world.refused(&["token", "--role", "service", "--sub", "a b"]), "INVALID_SETTING");
    assert_eq!(world.run(&["token", "--role", "root"]).code, Some(2));
}
