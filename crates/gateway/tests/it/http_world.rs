//! A server of a world over HTTP: a plain client, tokens from the program itself, and keys to forge others with.

use crate::world::{Server, World};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::fs;

/// A server in which alice has 100 credits, and a way to ask it.
pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) service: String,
    pub(crate) admin: String,
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

pub(crate) fn read(response: Response) -> Answer {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Answer { status, headers, body }
}

impl Site {
    pub(crate) fn open() -> Self {
        Self::with_settings(&[])
    }

    pub(crate) fn with_settings(settings: &[(&str, &str)]) -> Self {
        let world = World::with_alice();
        let mut command = world.command(&["serve"]);
        command.envs(settings.iter().copied());
        let server = world.serve_with(command);
        let token = |role| world.ok(&["token", "--role", role, "--sub", "tester"]).trim().to_owned();
        let (service, admin) = (token("service"), token("admin"));
        let client = Client::builder().no_proxy().build().unwrap();
        Self { world, server, client, service, admin }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.url())
    }

    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) fn send(&self, request: RequestBuilder) -> Answer {
        let answer = read(request.send().unwrap());
        assert_eq!(answer.headers["x-request-id"].len(), 26, "{answer:?}");
        if answer.status >= 400 && answer.body.get("error").is_some() {
            let said = answer.body["error"].get("request_id").or(answer.body.get("request_id")).unwrap();
            assert_eq!(said, answer.headers["x-request-id"].to_str().unwrap());
        }
        answer
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(self.bare(Method::GET, path).bearer_auth(&self.service))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.bare(Method::POST, path).bearer_auth(&self.service).json(body))
    }

    pub(crate) fn post_once(&self, path: &str, key: &str, body: &Value) -> Answer {
        let request = self.bare(Method::POST, path).bearer_auth(&self.service).header("idempotency-key", key);
        self.send(request.json(body))
    }

    pub(crate) fn admin(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let request = self.bare(method, path).bearer_auth(&self.admin);
        self.send(match body {
            Some(body) => request.json(body),
            None => request,
        })
    }

    /// Holds an amount of alice's under an id.
    pub(crate) fn hold(&self, id: &str, amount: &str) {
        let body = json!({ "account_id": "alice", "amount_cu": amount, "request_id": id });
        let answer = self.post("/api/v1/reservations", &body);
        assert_eq!(answer.status, 201, "{answer:?}");
    }

    pub(crate) fn balance(&self) -> (Value, Value) {
        let answer = self.get("/api/v1/accounts/alice/balance");
        (answer.body["balance_cu"].clone(), answer.body["held_cu"].clone())
    }

    /// The server's newest signing key, as a thief of its files would have it.
    pub(crate) fn stolen_key(&self) -> (EcdsaKeyPair, String) {
        let files = fs::read_dir(self.world.data().join("identity")).unwrap();
        let newest = files.map(|file| file.unwrap().path()).max().unwrap();
        let (_, kid) = newest.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &fs::read(&newest).unwrap()).unwrap();
        (pair, kid.to_owned())
    }
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A token of exactly this head and these claims.
pub(crate) fn sign(pair: &EcdsaKeyPair, head: &str, claims: &str) -> String {
    let signed = format!("{}.{}", encode(head), encode(claims));
    let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", encode(signature))
}
