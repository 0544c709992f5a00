//! Where calls come in: a listener that is there, or away for a while.

use super::{Presence, State, connection};
use crate::rng::Rng;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

const BACKLOG: u32 = 1_024;
const BIND_AGAIN_AFTER: Duration = Duration::from_millis(5);
const PRESENCE_SEED: u64 = 0x676f_6e65;

/// Serves until `stopping`; what is being answered then is broken off.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    address: SocketAddr,
    state: Arc<State>,
    mut stopping: watch::Receiver<bool>,
) {
    tokio::select! {
        // If nobody can say so any more, it is over too.
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = come_and_go(listener, address, state) => {}
    }
}

async fn come_and_go(listener: std::net::TcpListener, address: SocketAddr, state: Arc<State>) {
    let Ok(mut listener) = TcpListener::from_std(listener) else { return };
    let mut rng = Rng::new(state.options.seed ^ PRESENCE_SEED);
    loop {
        let calls = match state.options.presence {
            Presence::Steady => u64::MAX,
            Presence::ComesAndGoes { calls, .. } => rng.between(calls / 2, calls + calls / 2),
        };
        // With it go all connections, in the middle of whatever they are doing.
        accept(&listener, &state, calls).await;
        drop(listener);
        state.books().book.absences += 1;
        if let Presence::ComesAndGoes { away, .. } = state.options.presence {
            let longest = u64::try_from(away.as_millis()).unwrap_or(u64::MAX);
            tokio::time::sleep(Duration::from_millis(rng.between(1, longest.max(1)))).await;
        }
        listener = loop {
            match bind(address) {
                Ok(listener) => break listener,
                Err(_somebody_has_it) => tokio::time::sleep(BIND_AGAIN_AFTER).await,
            }
        };
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of before may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves so many calls.
async fn accept(listener: &TcpListener, state: &Arc<State>, calls: u64) {
    let called = watch::Sender::new(0_u64);
    let mut enough = called.subscribe();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // The sender is our own, so this cannot fail.
            _ = enough.wait_for(|called| *called >= calls) => return,
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let called = called.clone();
                let count = move || called.send_modify(|called| *called += 1);
                connections.spawn(connection::serve(stream, Arc::clone(state), count));
            } else {
                // Out of file descriptors, say: those who wait are served when others have gone.
                tokio::task::yield_now().await;
            },
        }
    }
}
