//! `holdfast serve`: the data directory's one server, with its control socket and its HTTP address.
//!
//! The socket is bound as soon as the lock is held, so that commands given while the server recovers wait for it instead of
//! failing. Over HTTP the server says that it is starting. Nothing else is answered before the books are sound.

mod connection;
mod lines;
mod socket;
mod welcome;

use crate::books::Books;
use crate::config::FileConfig;
use crate::failure::Failure;
use crate::http::{self, AppState, Gate, HttpSettings, Lanes, Listener};
use crate::identity::{Identity, LeftBehind};
use crate::inference::{self, Inference, Tally};
use crate::node::{self, Node};
use crate::prices::Looked;
use crate::queue::{self, Queue, QueueSettings};
use crate::role::Role;
use crate::service::Service;
use crate::settings::Settings;
use crate::settlement::{Settlement, SettlementSettings, Tasks};
use crate::terminal::{self, Bar};
use crate::wallet::{Secrets, Wallet};
use holdfast_adapters::postgres::ledger::Settles;
use socket::Socket;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use welcome::Welcome;

pub(crate) use socket::path as socket_path;

/// The most connections at once.
const CONNECTIONS_MAX: usize = 1_024;
/// The most threads that wait for the disk or the engine on behalf of questions.
const BLOCKING_THREADS_MAX: usize = 64;
/// How long connections have to take their last answers when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long requests over HTTP have: what they have themselves, and a moment more.
const HTTP_GRACE: Duration = Duration::from_secs(31);
/// How long they have when the journal has failed.
const FAILURE_GRACE: Duration = Duration::from_millis(400);
/// How often the server looks whether the journal has failed.
const FAILURE_CHECK: Duration = Duration::from_millis(100);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

// A failed journal ends the process within a second.
const _: () = assert!(FAILURE_GRACE.as_millis() + FAILURE_CHECK.as_millis() < 1_000);

/// Why the server ends.
enum Ended {
    /// It was told to.
    Stopped,
    /// The journal failed.
    Failed(String),
}

/// How a server is set up.
pub(crate) struct Plan {
    pub(crate) http: HttpSettings,
    pub(crate) settlement: Option<SettlementSettings>,
    pub(crate) queue: QueueSettings,
    /// What queue and wallet share.
    pub(crate) secrets: Secrets,
    pub(crate) role: Role,
}

/// Serves a data directory until a signal or a failure of the journal.
pub(crate) fn serve(
    data: &Path,
    settings: &Settings,
    plan: Plan,
    config: FileConfig,
    prices: Option<&Path>,
) -> Result<(), Failure> {
    let Plan { http, settlement, queue, secrets, role } = plan;
    let lock = node::lock(data)?;
    let (socket, listener) = Socket::bind(data)?;
    let http_listener = Listener::bind(&http)?;
    let prices = config.open_prices(data, prices)?;
    let providers = config.providers()?;
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build();
    let runtime = runtime.map_err(Failure::io("start the server's threads"))?;
    let (stop, stopping) = watch::channel(false);
    let (gate, address) = (Arc::new(Gate::shut()), http_listener.address);
    // Waited for when the server stops; if it cannot start, it may die with the process.
    let lanes = Lanes::start(BLOCKING_THREADS_MAX, FAILURE_GRACE).map_err(Failure::io("start the server's threads"))?;
    let lanes = Arc::new(lanes);
    let serving_http = runtime.spawn(http_listener.serve(Arc::clone(&gate), Arc::clone(&lanes), stopping.clone()));
    let bar = Bar::entries("recovering");
    // Whether or not this node has a peer: another one may, or this one later, and nothing that is owed is forgotten.
    let mut node = Node::open(lock, data, settings, (&runtime, Settles::Yes), &mut |progress| bar.set(progress))?;
    bar.finish();
    terminal::note(&node.describe());
    runtime.block_on(settle_orphans(&node.books))?;
    let service = Service::of(&node).with_rates(Arc::new(prices.clone()));
    let identity = service.identity()?;
    if settings.database.is_some() {
        tell_of_left_behind(data, &identity)?;
    }
    let start = |settings| Settlement::start(&mut node, data, settings, &identity, (&runtime, stopping.clone()));
    let (settlement, settling) = settlement.as_ref().map(start).transpose()?.unzip();
    let secrets = Arc::new(secrets);
    let wallet = Arc::new(Wallet::of(&node, Arc::clone(&secrets))?);
    let queue = queue::open(&node, (role, queue), (&wallet, secrets), identity, &runtime)?;
    let service = Arc::new(service.with_settlement(settlement.clone()).with_queue(queue.clone()));
    let (books, clock) = (node.books.clone(), Arc::clone(&node.clock));
    let tally = Tally::open(data, crate::identity::now().day());
    let inference = Inference::new((books, clock), prices.clone(), providers, http.credits_low, settlement, tally);
    let state = AppState::new(Arc::clone(&service), Arc::clone(&inference), wallet, (&http, stopping.clone()))?;
    // They end with the runtime.
    let _watching = runtime.spawn(prices.watch(tell_of_prices));
    let _following = runtime.spawn(Arc::clone(&state.identity).follow());
    let welcome = Welcome::prepare(data, &state.identity);
    gate.open(http::app(&state, role), state);
    queue.iter().for_each(|queue| queue.run(&runtime, &stopping));
    let ready = Ready { listener, socket: &socket, url: format!("http://{address}"), welcome };
    let ended = runtime.block_on(async {
        let ended = listen(ready, service, stop).await;
        let grace = if matches!(ended, Ok(Ended::Failed(_))) { FAILURE_GRACE } else { HTTP_GRACE };
        // Answers whose callers have gone are still charged.
        let all = async {
            (serving_http.await.is_ok(), inference.finished().await, finished(settling).await, left(&queue).await)
        };
        let _in_time = tokio::time::timeout(grace, all).await;
        drop(inference);
        ended
    });
    // What is left on these threads holds the engine; it has had its time.
    runtime.shutdown_timeout(FAILURE_GRACE);
    Arc::into_inner(lanes).into_iter().for_each(Lanes::stop);
    drop((socket, gate, queue));
    match ended? {
        Ended::Failed(reason) => Err(Failure::JournalFailed(reason)),
        Ended::Stopped => node.stop(),
    }
}

/// Waits until what is being told to the peer is told.
async fn finished(settling: Option<Tasks>) {
    if let Some(settling) = settling {
        settling.finished().await;
    }
}

/// Waits until no end of a queue item is under way.
async fn left(queue: &Option<Arc<Queue>>) {
    if let Some(queue) = queue {
        queue.finished().await;
    }
}

/// Settles the holds of requests that a crash interrupted.
async fn settle_orphans(books: &Books) -> Result<(), Failure> {
    let settled = inference::sweep(books).await.map_err(|refusal| Failure::JournalFailed(refusal.to_string()))?;
    if settled > 0 {
        terminal::note(&format!("settled {settled} requests that the last run left unfinished"));
    }
    Ok(())
}

/// Says that keys and limits which lie in the data directory are not used, if there are some.
fn tell_of_left_behind(data: &Path, shared: &Identity) -> Result<(), Failure> {
    if let Some((keys, limits)) = LeftBehind::find(data, shared)?.counts() {
        terminal::note(&format!(
            "{keys} API keys and {limits} limits of {} are not used: those of the database are, and it does not have them; \
             `holdfast keys import` copies them there",
            data.display()
        ));
    }
    Ok(())
}

fn tell_of_prices(looked: &Looked) {
    match looked {
        Looked::Unchanged => {}
        Looked::Loaded { models } => terminal::note(&format!("read the prices of {models} models")),
        Looked::Refused(error) => terminal::note(&format!("the prices stay as they were: {error}")),
    }
}

/// What callers are waited for on.
struct Ready<'a> {
    listener: StdListener,
    socket: &'a Socket,
    url: String,
    welcome: Option<Welcome>,
}

async fn listen(ready: Ready<'_>, service: Arc<Service>, stop: watch::Sender<bool>) -> Result<Ended, Failure> {
    let Ready { listener, socket, url, welcome } = ready;
    let listener = UnixListener::from_std(listener).map_err(|error| socket.failure(error))?;
    let signal_of = |kind| signal(kind).map_err(Failure::io("listen for signals"));
    let mut signals = [signal_of(SignalKind::terminate())?, signal_of(SignalKind::interrupt())?];
    let stopping = stop.subscribe();
    // Every connection is in this set, and the set is waited for below.
    let mut connections = JoinSet::new();
    terminal::note(&format!("commands are taken on {}", socket.path().display()));
    terminal::say(&format!("listening on {url}"));
    // It writes to the disk, and may die with the process: the next start tells another key then.
    let _telling = tokio::task::spawn_blocking(move || welcome.map(|welcome| welcome.tell(&url)));
    let ended = loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection::serve(stream, Arc::clone(&service), stopping.clone()));
                }
                // Out of files or memory: those that are served go on, and end at some time.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_ended) = connections.join_next() => {}
            () = any(&mut signals) => break Ended::Stopped,
            reason = failure(&service) => break Ended::Failed(reason),
        }
    };
    drop(listener);
    stop.send_replace(true);
    let grace = match &ended {
        Ended::Stopped => STOP_GRACE,
        Ended::Failed(_) => FAILURE_GRACE,
    };
    let all_gone = async { while connections.join_next().await.is_some() {} };
    // Those who do not read their answers in time are left; what was done for them stays done.
    let _in_time = tokio::time::timeout(grace, all_gone).await;
    connections.shutdown().await;
    Ok(ended)
}

async fn any(signals: &mut [Signal; 2]) {
    let [terminate, interrupt] = signals;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Waits until the journal has failed.
async fn failure(service: &Service) -> String {
    loop {
        if let Some(reason) = service.health().await.failed {
            return reason;
        }
        tokio::time::sleep(FAILURE_CHECK).await;
    }
}
