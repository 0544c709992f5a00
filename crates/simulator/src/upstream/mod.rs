//! A model provider for tests and benchmarks: a real HTTP server that speaks OpenAI's and Anthropic's APIs.
//!
//! It echoes (see `answer`), whole or streamed, counts words as tokens, remembers what it did with every call, and does wrong
//! what a script tells it to. The model [`FIXED_MODEL`] always gives the same answer of 20 chunks, prepared once: the
//! benchmark's. A model whose name begins with `no-such` does not exist.
//!
//! | route | |
//! | --- | --- |
//! | `GET /__calls` | every call so far: [`Calls`] |
//! | `GET /__calls/N` | the call of that number, once it has ended |
//! | `DELETE /__calls` | forgets their details |
//! | `POST /__script` | appends a list of [`Line`]s for coming calls |
//! | `DELETE /__script` | forgets the script |
//! | `POST /__open` | lets the calls go on that wait at a gate |
//!
//! # Invariants
//! - The same calls in the same order get the same answers: nothing depends on time or chance.

mod answer;
mod anthropic;
mod body;
mod calls;
mod chat;
mod embeddings;
mod fixed;
mod handle;
mod request;
mod responses;
mod script;
mod wire;

pub use answer::Usage;
pub use calls::{Call, Calls, Keep, Progress};
pub use script::{Behaviour, Line, Nonsense};

use calls::Register;
use fixed::Fixed;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use script::Script;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// When everything was created: a fixed moment, because answers do not depend on time.
const CREATED: u64 = 1_735_689_600;
/// The names that the list of models has; others are answered too.
const MODELS: [&str; 2] = ["mock", "mock-embedding"];
/// The model with the answer prepared once.
pub const FIXED_MODEL: &str = "mock-fixed";
/// How many chunks that answer has.
pub const FIXED_CHUNKS: usize = 20;

/// How the server is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// The key that calls must have, if any.
    pub api_key: Option<String>,
    /// Before each event of a stream.
    pub chunk_delay: Duration,
    /// What is remembered of calls.
    pub keep: Keep,
}

impl Options {
    /// For a test: any port, no key, no delay, every detail.
    #[must_use]
    pub fn for_test() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { listen, api_key: None, chunk_delay: Duration::ZERO, keep: Keep::Details }
    }
}

/// What all connections share.
struct State {
    options: Options,
    register: Register,
    script: Mutex<Script>,
    gate: watch::Sender<u64>,
    fixed: Fixed,
}

/// A server that listens and does not serve yet.
pub struct Bound {
    listener: TcpListener,
    state: Arc<State>,
}

impl Bound {
    /// Listens.
    ///
    /// # Errors
    /// If the address is not free.
    pub async fn new(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let register = Register::new(options.keep);
        let (gate, _) = watch::channel(0);
        let state = State { options, register, script: Mutex::default(), gate, fixed: Fixed::new() };
        Ok(Self { listener, state: Arc::new(state) })
    }

    /// `http://ADDRESS`.
    ///
    /// # Errors
    /// If the system does not know.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Serves until `stop` is ready; what is being answered then is broken off.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => {}
            () = self.accept() => {}
        }
    }

    async fn accept(self) {
        loop {
            // Out of file descriptors, say: those who wait are served when others have gone.
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            // May safely die: a connection of a server that ends.
            tokio::spawn(connection(stream, Arc::clone(&self.state)));
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    // Without this a stream's small chunks wait 40 ms for the other side's acknowledgement.
    let _without_it_only_slower = stream.set_nodelay(true);
    let service = service_fn(move |request| handle::handle(Arc::clone(&state), request));
    // That a client hangs up is noted by the call's guard.
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// A server within a test; ends when dropped.
pub struct Running {
    /// `http://ADDRESS`.
    pub url: String,
    task: JoinHandle<()>,
}

impl Running {
    /// Serves in the background.
    ///
    /// # Errors
    /// If the address is not free.
    pub async fn start(options: Options) -> io::Result<Self> {
        let bound = Bound::new(options).await?;
        let url = bound.url()?;
        // Ended by `drop`.
        let task = tokio::spawn(bound.serve(std::future::pending()));
        Ok(Self { url, task })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
