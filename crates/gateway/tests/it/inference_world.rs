//! A shop: a real server whose models are a scripted upstream's, buyers with credits, and what both sides remember.
//!
//! The upstream echoes the last message and counts words as tokens. A dollar is a hundred credits, so a price of one dollar
//! a million tokens is a hundred millionths of a credit a token.

use crate::http_world::Site;
use crate::world::Server;
use holdfast_domain::CreditUnit;
use holdfast_simulator::upstream::{Call, Calls, Options, Running};
use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// The server's own key for the upstream.
pub(crate) const OUR_KEY: &str = "sk-ours";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";

/// In millionths of a credit a token: 250 of input, 125 cached, 1,000 of output, 2,000 of reasoning; `claude-x`: 300, 30
/// cached, 375 to the cache, 1,500; embeddings: 2. `pair` has no price of its own: its targets are 100 and 200 of input,
/// 300 and 400 of output. `tiered`: 100 of both, and 200 and 300 if the prompt is longer than 200 tokens.
const PRICES: &str = r#"
[models."gpt-4o"]
input = "2.5"
cached_input = "1.25"
output = "10"
reasoning = "20"
[models."claude-x"]
input = "3"
cached_input = "0.3"
cache_write = "3.75"
output = "15"
[models."text-embedding-3-small"]
input = "0.02"
output = "0.02"
[models."first"]
input = "1"
output = "3"
[models."second"]
input = "2"
output = "4"
[models."tiered"]
input = "1"
output = "1"
[[models."tiered".above]]
input_tokens = 200
input = "2"
output = "3"
"#;

fn config(upstream: &str) -> String {
    format!(
        r#"
prices = "prices.toml"
[providers.mock]
kind = "openai"
base_url = "{upstream}/v1"
key_env = "MOCK_KEY"
responses = "native"
[providers.claude]
kind = "anthropic"
base_url = "{upstream}"
key_env = "MOCK_KEY"
[[models]]
name = "gpt-4o"
targets = [{{ provider = "mock", model = "mock" }}]
[[models]]
name = "claude-x"
targets = [{{ provider = "claude", model = "mock" }}]
[[models]]
name = "text-embedding-3-small"
targets = [{{ provider = "mock", model = "mock-embedding" }}]
[[models]]
name = "tiered"
targets = [{{ provider = "mock", model = "mock" }}]
[[models]]
name = "pair"
targets = [{{ provider = "mock", model = "first" }}, {{ provider = "mock", model = "second", priority = 1 }}]
"#
    )
}

const CONFIG: &str = "holdfast.toml";

const fn settings(config: &str) -> [(&str, &str); 2] {
    [("HOLDFAST_CONFIG", config), ("MOCK_KEY", OUR_KEY)]
}

/// See the module.
pub(crate) struct Shop {
    pub(crate) site: Site,
    upstream: Running,
    client: Client,
    buyers: AtomicU32,
    files: TempDir,
    // Last, because the upstream lives on it.
    _runtime: Runtime,
}

impl Shop {
    pub(crate) fn open() -> Self {
        Self::with_upstream_key(OUR_KEY)
    }

    /// A shop whose upstream lets in only who has this key.
    pub(crate) fn with_upstream_key(key: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = Options { api_key: Some(key.to_owned()), ..Options::for_test() };
        let upstream = runtime.block_on(Running::start(options)).unwrap();
        let files = tempfile::tempdir().unwrap();
        fs::write(files.path().join("prices.toml"), PRICES).unwrap();
        fs::write(files.path().join(CONFIG), config(&upstream.url)).unwrap();
        let site = Site::with_settings(&settings(files.path().join(CONFIG).to_str().unwrap()));
        let client = site.client.clone();
        Self { site, upstream, client, buyers: AtomicU32::new(0), files, _runtime: runtime }
    }

    /// A new account with credits, and its key.
    pub(crate) fn buyer(&self, credits: &str) -> Buyer<'_> {
        self.limited_buyer(credits, json!({}))
    }

    /// The same, with limits of the key.
    pub(crate) fn limited_buyer(&self, credits: &str, limits: Value) -> Buyer<'_> {
        let account = format!("buyer-{}", self.buyers.fetch_add(1, Ordering::Relaxed));
        self.mint(&account, credits, "first");
        self.key_of(account, limits)
    }

    /// Credits an account once for each word.
    pub(crate) fn mint(&self, account: &str, credits: &str, word: &str) {
        let mint = json!({ "account_id": account, "amount_cu": credits, "reason": "test" });
        let minted = self.site.bare(Method::POST, "/api/v1/admin/mint").bearer_auth(&self.site.admin);
        let minted = self.site.send(minted.header("idempotency-key", format!("{account}-{word}")).json(&mint));
        assert!(minted.status < 300, "{minted:?}");
    }

    /// Another key of an account.
    pub(crate) fn key_of(&self, account: String, mut limits: Value) -> Buyer<'_> {
        limits["account_id"] = json!(account);
        let made = self.site.admin(Method::POST, "/api/v1/admin/keys", Some(&limits));
        let key = made.body["api_key"].as_str().unwrap().to_owned();
        self.buyer_with(account, key)
    }

    /// A buyer whose key is known.
    pub(crate) const fn buyer_with(&self, account: String, key: String) -> Buyer<'_> {
        Buyer { shop: self, account, key }
    }

    fn control(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.upstream.url))
    }

    /// What the upstream does with the next calls.
    pub(crate) fn script(&self, lines: Value) {
        let answer = self.control(Method::POST, "/__script").json(&lines).send().unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().unwrap());
    }

    /// Lets the calls go on that wait at the upstream's gate.
    pub(crate) fn open_gate(&self) {
        assert_eq!(self.control(Method::POST, "/__open").send().unwrap().status(), 200);
    }

    /// The calls that the upstream got.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.control(Method::GET, "/__calls").send().unwrap().json::<Calls>().unwrap().calls
    }

    pub(crate) fn last_call(&self) -> Call {
        self.calls().pop().unwrap()
    }

    /// Waits for the end of a call of the upstream's.
    pub(crate) fn ended_call(&self, number: u64) -> Call {
        self.control(Method::GET, &format!("/__calls/{number}")).send().unwrap().json().unwrap()
    }

    /// A charge and its whole life.
    pub(crate) fn charge(&self, id: &str) -> Value {
        let found = self.site.get(&format!("/api/v1/reservations/{id}"));
        assert_eq!(found.status, 200, "{found:?}");
        found.body
    }

    /// The number of the journal's last entry.
    pub(crate) fn entries(&self) -> u64 {
        self.site.get("/health").body["durable"].as_u64().unwrap()
    }

    /// The shop after its server has ended in this way, and begun again.
    pub(crate) fn again_after(self, end: impl FnOnce(Server)) -> Self {
        let Self { site, files, .. } = self;
        let Site { world, server, client, service, admin } = site;
        end(server);
        let mut command = world.command(&["serve"]);
        command.envs(settings(files.path().join(CONFIG).to_str().unwrap()));
        let server = world.serve_with(command);
        Self { site: Site { world, server, client, service, admin }, files, ..self }
    }

    /// Stops the server, which first finishes what it works on: what it said on standard error, and its journal.
    pub(crate) fn close(self) -> (String, Vec<Value>) {
        let Self { site: Site { world, server, .. }, .. } = self;
        let said = server.stop();
        world.ok(&["journal", "verify"]);
        (said, world.journal())
    }
}

/// An account with a key.
pub(crate) struct Buyer<'a> {
    shop: &'a Shop,
    pub(crate) account: String,
    pub(crate) key: String,
}

/// Headers of one request.
pub(crate) type With<'a> = &'a [(&'a str, &'a str)];

impl Buyer<'_> {
    fn request(&self, method: Method, path: &str, headers: With<'_>) -> RequestBuilder {
        let request = self.shop.site.bare(method, path).bearer_auth(&self.key);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    }

    /// Sends a body, and returns with the head of the answer.
    pub(crate) fn begin(&self, path: &str, body: &Value, headers: With<'_>) -> Coming {
        let response = self.request(Method::POST, path, headers).json(body).send().unwrap();
        Coming {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            rest: BufReader::new(response),
        }
    }

    pub(crate) fn ask(&self, path: &str, body: &Value, headers: With<'_>) -> Told {
        self.begin(path, body, headers).rest()
    }

    /// A body as it is, which need not be JSON.
    pub(crate) fn ask_text(&self, path: &str, body: &str) -> Told {
        let request = self.request(Method::POST, path, &[("content-type", "application/json")]);
        Told::read(request.body(body.to_owned()).send().unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> Told {
        Told::read(self.request(Method::GET, path, &[]).send().unwrap())
    }

    /// What it can spend, and what is held.
    pub(crate) fn balance(&self) -> (CreditUnit, CreditUnit) {
        let credits = self.get("/v1/credits").json();
        assert_eq!(credits["account_id"], self.account.as_str());
        (amount(&credits["balance_cu"]), amount(&credits["held_cu"]))
    }
}

/// An answer of which more comes.
pub(crate) struct Coming {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    rest: BufReader<Response>,
}

impl Coming {
    /// The next event of a stream.
    pub(crate) fn event(&mut self) -> String {
        let mut event = String::new();
        while !event.ends_with("\n\n") {
            assert_ne!(self.rest.read_line(&mut event).unwrap(), 0, "it ended within {event:?}");
        }
        event
    }

    pub(crate) fn rest(mut self) -> Told {
        let mut text = String::new();
        self.rest.read_to_string(&mut text).unwrap();
        Told { status: self.status, headers: self.headers, text }
    }
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Told {
    pub(crate) fn read(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().unwrap() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| unreachable!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The charge.
    pub(crate) fn id(&self) -> &str {
        self.header("x-holdfast-request-id")
    }

    /// Asserts a refusal of this status and code, in whichever shape; its `error`.
    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        let error = self.json()["error"].clone();
        assert_eq!((self.status, error["code"].as_str()), (status, Some(code)), "{self:?}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        error
    }

    /// The data of the events of a stream.
    pub(crate) fn data(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    /// The data as JSON, but for the formal end.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.data().into_iter().filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The cost and the balance that a stream tells in a comment, once.
    pub(crate) fn cost_comment(&self) -> (CreditUnit, CreditUnit) {
        let comments: Vec<&str> = self.text.lines().filter_map(|line| line.strip_prefix(": cost_cu=")).collect();
        let [comment] = comments[..] else { unreachable!("{self:?}") };
        let (cost, balance) = comment.split_once(" balance_cu=").unwrap();
        (cost.parse().unwrap(), balance.parse().unwrap())
    }
}

pub(crate) fn amount(value: &Value) -> CreditUnit {
    value.as_str().unwrap_or_else(|| unreachable!("{value}")).parse().unwrap()
}

/// So many millionths of a credit.
pub(crate) fn millionths(units: u64) -> CreditUnit {
    CreditUnit::new(units).unwrap()
}

pub(crate) fn credits(text: &str) -> CreditUnit {
    text.parse().unwrap()
}

/// A chat with one message.
pub(crate) fn chat(text: &str) -> Value {
    json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": text }] })
}

/// A body with more fields.
pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

pub(crate) fn streamed(body: Value) -> Value {
    with(body, json!({ "stream": true, "stream_options": { "include_usage": true } }))
}
