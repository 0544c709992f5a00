//! A queue and its wallet as users run them: one process, two that speak over HTTP, or a node on the books of a PostgreSQL. The
//! same tests run on all.

use crate::http_world::{Answer, read};
use crate::settlement_postgres::Outbox;
use crate::world::{Server, World};
use reqwest::blocking::Client;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};

/// What queue and wallet share where they are two processes.
pub(crate) const SECRET: &str = "a7Qm2xT9rLw4ZkPv8NcYb3HsJd6FgE1uXoRi5WtBq0Mn";

/// How many processes, and where the books are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    One,
    Two,
    /// One process, and the books and items in PostgreSQL.
    Node,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Two, Self::Node];
}

/// A process of it, with a data directory of its own.
pub(crate) struct Half {
    pub(crate) world: World,
    pub(crate) server: Option<Server>,
    pub(crate) token: String,
    words: Vec<&'static str>,
    settings: Vec<(String, String)>,
}

impl Half {
    pub(crate) fn new(words: &[&'static str], settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { world: World::new(), server: None, token: String::new(), words: words.to_vec(), settings }
    }

    /// Starts it, killed at a failpoint if one is named.
    pub(crate) fn start(&mut self, failpoint: Option<&str>) {
        let mut command = self.world.command(&self.words);
        command.envs(self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        if let Some(name) = failpoint {
            command.env("HOLDFAST_FAILPOINT", format!("{name}:1"));
        }
        self.server = Some(self.world.serve_with(command));
        // The keys are where the books are.
        let settings: Vec<_> = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let token = self.world.ok_with(&["token", "--role", "service", "--sub", "tester"], &settings);
        self.token = token.trim().to_owned();
    }

    /// The code with which its start is refused, and what is said.
    pub(crate) fn refused(&self) -> String {
        let mut command = self.world.command(&self.words);
        command.envs(self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Kills it, as a crash would.
    pub(crate) fn crash(&mut self) {
        self.server.take().unwrap().crash();
    }

    /// Waits until it has been killed at its failpoint.
    pub(crate) fn killed(&mut self) {
        let (status, said) = self.server.take().unwrap().wait();
        assert_eq!(status.code(), None, "it was to be killed: {said}");
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.retain(|(other, _)| other != name);
        self.settings.push((name.to_owned(), value.to_owned()));
    }
}

/// A queue and its wallet.
pub(crate) struct Site {
    pub(crate) wallet: Half,
    /// The queue, if it is a process of its own.
    pub(crate) queue: Option<Half>,
    /// The database, if the books are in one.
    pub(crate) database: Option<Outbox>,
    client: Client,
    names: AtomicU64,
}

/// An address that nobody listens on, for processes that must know each other's before they start: below the ports that
/// clients get, so that nobody has it while its server is down.
fn address() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = u64::from(std::process::id()) * 97 + NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.0.0.1:{}", 10_000 + number % 10_000);
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

impl Site {
    /// A site in which alice has 100 credits and bob has 50.
    pub(crate) fn open(mode: Mode, settings: &[(&str, &str)]) -> Self {
        let mut site = Self::shut(mode, settings);
        site.start();
        site
    }

    /// The same, before anything runs.
    pub(crate) fn shut(mode: Mode, settings: &[(&str, &str)]) -> Self {
        let client = Client::builder().no_proxy().build().unwrap();
        let mut database = None;
        let (wallet, queue) = match mode {
            Mode::One => (Half::new(&["serve"], settings), None),
            Mode::Node => {
                let mut wallet = Half::new(&["serve"], settings);
                let books = database.insert(Outbox::new(&wallet.world));
                wallet.set("HOLDFAST_DATABASE_URL", &books.url());
                (wallet, None)
            }
            Mode::Two => {
                let mut wallet = Half::new(&["serve", "--role", "wallet"], settings);
                let mut queue = Half::new(&["serve", "--role", "queue"], settings);
                let (at_wallet, at_queue) = (address(), address());
                wallet.set("HOLDFAST_LISTEN", &at_wallet);
                wallet.set("HOLDFAST_JWKS", &format!("http://{at_queue}/.well-known/jwks.json"));
                queue.set("HOLDFAST_LISTEN", &at_queue);
                queue.set("HOLDFAST_QUEUE_WALLET_URL", &format!("http://{at_wallet}"));
                [&mut wallet, &mut queue].into_iter().for_each(|half| half.set("HOLDFAST_QUEUE_SECRET", SECRET));
                (wallet, Some(queue))
            }
        };
        Self { wallet, queue, database, client, names: AtomicU64::new(0) }
    }

    /// Starts what is not running, and gives its users credits.
    pub(crate) fn start(&mut self) {
        for half in [Some(&mut self.wallet), self.queue.as_mut()].into_iter().flatten() {
            if half.server.is_none() {
                half.start(None);
            }
        }
        for (account, amount) in [("alice", "100"), ("bob", "50")] {
            let mint =
                json!({ "op": "mint", "account_id": account, "amount_cu": amount, "reason": "r", "key": account });
            self.wallet.server().client().ok(mint);
        }
    }

    /// The process with the queue.
    pub(crate) fn queue_half(&self) -> &Half {
        self.queue.as_ref().unwrap_or(&self.wallet)
    }

    pub(crate) fn queue_half_mut(&mut self) -> &mut Half {
        self.queue.as_mut().unwrap_or(&mut self.wallet)
    }

    fn ask(&self, half: &Half, path: &str, body: Option<&Value>, key: Option<&str>) -> Answer {
        let url = format!("{}{path}", half.server().url());
        let mut request = match body {
            Some(body) => self.client.post(url).json(body),
            None => self.client.get(url),
        };
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        read(request.bearer_auth(&half.token).send().unwrap())
    }

    /// Posts to the queue: a path below `/api/v1/queue/`.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(self.queue_half(), &format!("/api/v1/queue/{path}"), Some(body), None)
    }

    pub(crate) fn post_once(&self, path: &str, key: &str, body: &Value) -> Answer {
        self.ask(self.queue_half(), &format!("/api/v1/queue/{path}"), Some(body), Some(key))
    }

    /// Whether a request to the queue got an answer; a process that is killed gives none.
    pub(crate) fn is_answered(&self, path: &str, body: &Value) -> bool {
        let half = self.queue_half();
        let url = format!("{}/api/v1/queue/{path}", half.server().url());
        self.client.post(url).bearer_auth(&half.token).json(body).send().is_ok()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(self.queue_half(), &format!("/api/v1/queue/{path}"), None, None)
    }

    /// Posts to the wallet: a path below `/api/v1/`.
    pub(crate) fn wallet_post(&self, path: &str, body: &Value) -> Answer {
        self.ask(&self.wallet, &format!("/api/v1/{path}"), Some(body), None)
    }

    pub(crate) fn wallet_get(&self, path: &str) -> Answer {
        self.ask(&self.wallet, &format!("/api/v1/{path}"), None, None)
    }

    /// Holds so much of a user's in an escrow.
    pub(crate) fn hold_of(&self, user: &str, amount: &str, feature: &str) -> String {
        let key = format!("hold-{}", self.names.fetch_add(1, Ordering::Relaxed));
        let body = json!({ "userId": user, "amount": amount, "featureType": feature, "idempotencyKey": key });
        let held = self.wallet_post("escrows", &body);
        assert_eq!(held.status, 201, "{held:?}");
        held.body["escrowId"].as_str().unwrap().to_owned()
    }

    /// Holds ten of alice's.
    pub(crate) fn hold(&self) -> String {
        self.hold_of("alice", "10", "solo")
    }

    /// An item of alice's for mia, over ten; its id.
    pub(crate) fn enqueue(&self) -> String {
        let item = self.post("items", &intake(&self.hold()));
        assert_eq!(item.status, 201, "{item:?}");
        item.body["queueItemId"].as_str().unwrap().to_owned()
    }

    /// The same, taken up.
    pub(crate) fn started(&self) -> String {
        let id = self.enqueue();
        self.done(&id, "start", json!({}));
        id
    }

    /// Does something with an item that must succeed.
    pub(crate) fn done(&self, id: &str, what: &str, body: Value) -> Value {
        let answer = self.post(&format!("items/{id}/{what}"), &body);
        assert_eq!(answer.status, 200, "{what} {id}: {answer:?}");
        answer.body
    }

    pub(crate) fn item(&self, id: &str) -> Value {
        let answer = self.get(&format!("items/{id}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    pub(crate) fn status(&self, id: &str) -> String {
        self.item(id)["status"].as_str().unwrap().to_owned()
    }

    /// What alice can spend, what escrows hold of hers, in whole credits, and what mia has earned.
    pub(crate) fn money(&self) -> (String, String, String) {
        let escrows = self.wallet_get("escrows?status=held&limit=1000").body["escrows"].as_array().unwrap().clone();
        let of_alice = escrows.iter().filter(|escrow| escrow["userId"] == "alice");
        let held: u64 = of_alice.map(|escrow| escrow["amount"].as_str().unwrap().parse::<u64>().unwrap()).sum();
        let of = |who: &str, field: &str| {
            let answer = self.wallet_get(&format!("wallets/{who}"));
            answer.body[field].as_str().unwrap_or("0").to_owned()
        };
        (of("alice", "available"), held.to_string(), of("mia", "earned"))
    }

    /// All of the books, which must add up to nothing.
    pub(crate) fn check_books(&self) {
        let totals = self.wallet.server().client().ok(json!({ "op": "totals" }));
        assert_eq!(totals["imbalance"], "0");
    }
}

/// The intake of an escrow of ten of alice's for mia.
pub(crate) fn intake(escrow: &str) -> Value {
    json!({ "userId": "alice", "modelId": "mia", "escrowId": escrow, "amount": "10", "featureType": "solo" })
}

/// The same with some fields otherwise.
pub(crate) fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// What money is, as texts.
pub(crate) fn money(available: &str, held: &str, earned: &str) -> (String, String, String) {
    (available.to_owned(), held.to_owned(), earned.to_owned())
}

/// Runs a test on one process, on two, and on PostgreSQL.
pub(crate) fn everywhere(test: impl Fn(Site)) {
    for mode in Mode::ALL {
        test(Site::open(mode, &[]));
    }
}

/// Every part of a refusal that a program reads.
pub(crate) fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code()), (status, code), "{answer:?}");
}
