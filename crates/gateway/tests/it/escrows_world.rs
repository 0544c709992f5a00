//! A server whose queue's secret is known, on either engine, and the queue's tokens as the wallet's document says they are made.

use crate::http_world::{Answer, Site, encode};
use crate::settlement_postgres::Outbox;
use crate::world::{Server, World};
use aws_lc_rs::hmac;
use reqwest::blocking::Client;
use serde_json::{Value, json};

pub(crate) const SECRET: &str = "q9Zt3vKx7Lw2Rm8Yb5Nc1Hd6Jf4Gs0Pa-one";
pub(crate) const OTHER_SECRET: &str = "U2hvcnQgYnV0IHJhbmRvbSBlbm91Z2ghIS0t-two";

/// Which engine has the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Embedded,
    Postgres,
}

pub(crate) const ENGINES: [Engine; 2] = [Engine::Embedded, Engine::Postgres];

/// A server in which alice has 100 credits.
pub(crate) struct Bank {
    pub(crate) site: Site,
    pub(crate) outbox: Option<Outbox>,
}

impl Bank {
    pub(crate) fn open(engine: Engine) -> Self {
        match engine {
            Engine::Embedded => Self::with(&[("HOLDFAST_QUEUE_SECRET", SECRET)]),
            Engine::Postgres => {
                let world = World::new();
                let outbox = Outbox::new(&world);
                let site = node(world, &outbox.url());
                let mint = json!({ "op": "mint", "account_id": "alice", "amount_cu": "100", "reason": "start", "key": "start" });
                site.server.client().ok(mint);
                Self { site, outbox: Some(outbox) }
            }
        }
    }

    /// On the embedded engine.
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        Self { site: Site::with_settings(settings), outbox: None }
    }

    /// Has `amount` of alice's set aside, and answers with the escrow's id.
    pub(crate) fn held(&self, key: &str, amount: &str) -> String {
        let answer = self.hold(&json!({
            "userId": "alice", "amount": amount, "featureType": "dance", "idempotencyKey": key,
        }));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["escrowId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn hold(&self, body: &Value) -> Answer {
        self.site.post("/api/v1/escrows", body)
    }

    pub(crate) fn show(&self, escrow: &str) -> Value {
        let answer = self.site.get(&format!("/api/v1/escrows/{escrow}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    /// What alice can spend, and what mia has earned.
    pub(crate) fn money(&self) -> (Value, Value) {
        let of = |who: &str| self.site.get(&format!("/api/v1/wallets/{who}")).body;
        (of("alice")["available"].clone(), of("mia")["earned"].clone())
    }

    pub(crate) fn ask(&self, word: &Word) -> Answer {
        self.site.post(&word.path(), &word.body(&word.token()))
    }
}

/// Another node on the books of a database.
pub(crate) fn node(world: World, url: &str) -> Site {
    let mut command = world.command(&["serve"]);
    command.envs([("HOLDFAST_DATABASE_URL", url), ("HOLDFAST_QUEUE_SECRET", SECRET)]);
    let server: Server = world.serve_with(command);
    let settings = [("HOLDFAST_DATABASE_URL", url)];
    let token = |role| world.ok_with(&["token", "--role", role, "--sub", "tester"], &settings).trim().to_owned();
    let (service, admin) = (token("service"), token("admin"));
    let client = Client::builder().no_proxy().build().unwrap();
    Site { world, server, client, service, admin }
}

/// What the queue may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    Settle,
    Refund,
    Partial,
}

/// What it says about an escrow of alice's.
#[derive(Debug, Clone)]
pub(crate) struct Word {
    pub(crate) says: Says,
    pub(crate) escrow: String,
    pub(crate) amount: u64,
    pub(crate) key: String,
}

impl Word {
    /// About an escrow of 10.
    pub(crate) fn new(says: Says, escrow: &str) -> Self {
        let operation = match says {
            Says::Settle => "settle",
            Says::Refund => "refund",
            Says::Partial => "partial",
        };
        let mut key = format!("queue-qi_{escrow}-{operation}");
        key.truncate(64);
        Self { says, escrow: escrow.to_owned(), amount: 10, key }
    }

    pub(crate) fn by_key(self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self }
    }

    pub(crate) fn path(&self) -> String {
        let operation = match self.says {
            Says::Settle => "settle",
            Says::Refund => "refund",
            Says::Partial => "partial-settle",
        };
        format!("/api/v1/escrows/{}/{operation}", self.escrow)
    }

    /// The fields that the token binds.
    fn bound(&self) -> Value {
        let (whole, item) = (self.amount.to_string(), "qi_1");
        match self.says {
            Says::Settle => json!({
                "queueItemId": item, "modelId": "mia", "amount": whole, "reason": "performance_completed",
            }),
            Says::Refund => json!({
                "queueItemId": item, "userId": "alice", "amount": whole, "reason": "user_disconnected",
            }),
            Says::Partial => json!({
                "queueItemId": item, "userId": "alice", "modelId": "mia", "settleAmount": (self.amount - 3).to_string(),
                "refundAmount": "3", "reason": "partial_delivery",
            }),
        }
    }

    pub(crate) fn claims(&self) -> Value {
        let (now, mut claims) = (jsonwebtoken::get_current_timestamp(), self.bound());
        claims["escrowId"] = json!(self.escrow);
        claims["operation"] = json!(match self.says {
            Says::Settle => "settle",
            Says::Refund => "refund",
            Says::Partial => "partial",
        });
        claims["iss"] = json!("holdfast-queue");
        claims["aud"] = json!("holdfast-wallet");
        claims["jti"] = json!("a-token");
        at(claims, now, now + 300)
    }

    pub(crate) fn token(&self) -> String {
        sign(SECRET, &head(), &self.claims())
    }

    pub(crate) fn body(&self, token: &str) -> Value {
        let mut body = self.bound();
        body["authorizationToken"] = json!(token);
        body["idempotencyKey"] = json!(self.key);
        body
    }
}

/// The same claims, of other times.
pub(crate) fn at(mut claims: Value, iat: u64, exp: u64) -> Value {
    claims["iat"] = json!(iat);
    claims["exp"] = json!(exp);
    claims["issuedAt"] = json!(moment(iat));
    claims["expiresAt"] = json!(moment(exp));
    claims
}

pub(crate) fn head() -> Value {
    json!({ "alg": "HS256", "typ": "queue-authorization+jwt", "kid": "queue" })
}

pub(crate) fn sign(secret: &str, head: &Value, claims: &Value) -> String {
    sign_text(secret.as_bytes(), &head.to_string(), &claims.to_string())
}

/// A token of exactly this head and these claims.
pub(crate) fn sign_text(secret: &[u8], head: &str, claims: &str) -> String {
    let signed = format!("{}.{}", encode(head), encode(claims));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", encode(signature))
}

/// A second as RFC 3339 in UTC: civil from days, after Howard Hinnant.
pub(crate) fn moment(second: u64) -> String {
    let (days, rest) = (second / 86_400 + 719_468, second % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z", era * 400 + year + next)
}
