//! `holdfast serve`: the data directory's one server, and its control socket.
//!
//! The socket is bound as soon as the lock is held, so that commands given while the server recovers wait for it instead of
//! failing. Nothing is answered before the books are sound.

mod connection;
mod lines;
mod socket;

use crate::failure::Failure;
use crate::node::{self, Node};
use crate::service::Service;
use crate::settings::Settings;
use crate::terminal::{self, Bar};
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

pub(crate) use socket::path as socket_path;

/// The most connections at once.
const CONNECTIONS_MAX: usize = 1_024;
/// The most threads that wait for the disk or the engine on behalf of questions.
const BLOCKING_THREADS_MAX: usize = 64;
/// How long connections have to take their last answers when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(10);
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

/// Serves a data directory until a signal or a failure of the journal.
pub(crate) fn serve(data: &Path, settings: &Settings) -> Result<(), Failure> {
    let lock = node::lock(data)?;
    let (socket, listener) = Socket::bind(data)?;
    let bar = Bar::entries("recovering");
    let node = Node::start(lock, data, settings, &mut |progress| bar.set(progress))?;
    bar.finish();
    terminal::note(&node::describe(&node.report));
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build();
    let runtime = runtime.map_err(Failure::io("start the server's threads"))?;
    let service = Arc::new(Service::of(&node));
    let ended = runtime.block_on(listen(listener, service, &socket));
    // What is left on these threads holds the engine; it has had its time.
    runtime.shutdown_timeout(FAILURE_GRACE);
    drop(socket);
    match ended? {
        Ended::Failed(reason) => Err(Failure::JournalFailed(reason)),
        Ended::Stopped => node.stop(),
    }
}

async fn listen(listener: StdListener, service: Arc<Service>, socket: &Socket) -> Result<Ended, Failure> {
    let listener = UnixListener::from_std(listener).map_err(|error| socket.failure(error))?;
    let signal_of = |kind| signal(kind).map_err(Failure::io("listen for signals"));
    let mut signals = [signal_of(SignalKind::terminate())?, signal_of(SignalKind::interrupt())?];
    let (stop, stopping) = watch::channel(false);
    // Every connection is in this set, and the set is waited for below.
    let mut connections = JoinSet::new();
    terminal::say(&format!("listening on unix:{}", socket.path().display()));
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
        if let Some(reason) = service.failed() {
            return reason;
        }
        tokio::time::sleep(FAILURE_CHECK).await;
    }
}
