//! Connections: accepted up to a limit, HTTP/1.1 or HTTP/2 without TLS, and ended in order.
//!
//! The address is taken before the books are recovered, so that a load balancer can ask how far the server is. Until the
//! [`Gate`] is open, every route but `/health` and `/ready` says that the server is starting.

use super::AppState;
use super::error::{ApiError, Shape};
use super::lanes::Lanes;
use super::mail::mailed;
use super::outer::{self, Peer, fresh_id};
use super::settings::{HEAD_BYTES_MAX, HEAD_MAX, HEADERS_MAX, HttpSettings, STREAMS_MAX};
use super::status::readiness;
use super::unread::Unread;
use crate::failure::Failure;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::json;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

/// What an HTTP/2 connection without TLS begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_STEP: Duration = Duration::from_millis(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often those who have been quiet are forgotten.
const UPKEEP_EVERY: Duration = Duration::from_secs(60);
/// How long running requests have when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);

/// What stands behind every connection: the application, once it is there.
pub(crate) struct Gate {
    open: OnceLock<(Router, AppState)>,
}

impl Gate {
    pub(crate) const fn shut() -> Self {
        Self { open: OnceLock::new() }
    }

    /// From now on requests are answered.
    pub(crate) fn open(&self, app: Router, state: AppState) {
        let _once = self.open.set((app, state));
    }

    async fn answer(&self, request: Request) -> Result<Response, Infallible> {
        match self.open.get() {
            Some((app, _)) => app.clone().oneshot(request).await,
            None => Ok(starting(request.uri().path())),
        }
    }
}

fn starting(path: &str) -> Response {
    let response = match path {
        "/health" => Json(json!({ "status": "starting", "version": env!("CARGO_PKG_VERSION") })).into_response(),
        "/ready" => readiness(Some("the server is starting")),
        _ => ApiError::Starting.into_response(),
    };
    outer::finish(response, Shape::of_path(path), fresh_id())
}

/// A bound address.
pub(crate) struct Listener {
    listener: StdListener,
    pub(crate) address: SocketAddr,
    connections_max: usize,
}

impl Listener {
    /// Takes the address that the settings name.
    pub(crate) fn bind(settings: &HttpSettings) -> Result<Self, Failure> {
        let failed = |error| Failure::Listen { address: settings.listen.clone(), error };
        let addresses: Vec<SocketAddr> = settings.listen.to_socket_addrs().map_err(failed)?.collect();
        let listener = StdListener::bind(addresses.as_slice()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, connections_max: settings.connections_max })
    }

    /// Serves until `stopping`, and then what is running for a while longer.
    pub(crate) async fn serve(self, gate: Arc<Gate>, lanes: Arc<Lanes>, mut stopping: watch::Receiver<bool>) {
        let Ok(listener) = TcpListener::from_std(self.listener) else { return };
        // Every connection is in this set, and the set is waited for below.
        let mut connections = JoinSet::new();
        let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
        loop {
            tokio::select! {
                biased;
                () = told(&mut stopping) => break,
                Some(_ended) = connections.join_next() => {}
                _ = upkeep.tick() => if let Some((_, state)) = gate.open.get() {
                    state.limits.forget_quiet();
                },
                accepted = listener.accept(), if connections.len() < self.connections_max => match accepted {
                    Ok((stream, from)) => {
                        let (gate, stopping) = (Arc::clone(&gate), stopping.clone());
                        // One that breaks on its way to a lane is a connection that broke.
                        if let (Some(lane), Ok(stream)) = (lanes.least_busy(), stream.into_std()) {
                            let load = Arc::clone(&lane.load);
                            let served = async move {
                                if let Ok(stream) = TcpStream::from_std(stream) {
                                    connection(stream, from.ip(), gate, stopping).await;
                                }
                                drop(load);
                            };
                            connections.spawn_on(mailed(served), &lane.handle);
                        }
                    }
                    // Out of files or memory: those that are served go on, and end at some time.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
            if let Some((_, state)) = gate.open.get() {
                state.metrics.connected(connections.len());
            }
        }
        drop(listener);
        let all_gone = async { while connections.join_next().await.is_some() {} };
        // Those who are not done in time are left; what was done for them stays done.
        let _in_time = tokio::time::timeout(STOP_GRACE, all_gone).await;
        connections.shutdown().await;
        // Conversations have left their connections; they are told, and waited for, by themselves.
        if let Some((_, state)) = gate.open.get() {
            state.places.finished(STOP_GRACE).await;
        }
    }
}

/// Waits until the server is told to stop.
pub(super) async fn told(stopping: &mut watch::Receiver<bool>) {
    // If nobody can tell any more, the server is going down too.
    let _told = stopping.wait_for(|stopping| *stopping).await.is_ok();
}

/// One connection, until its end.
async fn connection(stream: TcpStream, from: IpAddr, gate: Arc<Gate>, stopping: watch::Receiver<bool>) {
    // Without this a stream of small pieces waits 40 ms for each.
    let _best_effort = stream.set_nodelay(true);
    let mut until = stopping.clone();
    // What has come is looked at before the stop here and below: a request that was sent before it is answered.
    let protocol = tokio::select! {
        biased;
        protocol = tokio::time::timeout(HEAD_MAX, protocol(&stream)) => protocol,
        () = told(&mut until) => return,
    };
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let gate = Arc::clone(&gate);
        async move {
            // Who asks before sending a body does not send it to be thrown away.
            let asks_first = request.headers().contains_key(EXPECT);
            let mut request =
                request.map(|body| if asks_first { Body::new(body) } else { Body::new(Unread::new(body)) });
            request.extensions_mut().insert(Peer(from));
            gate.answer(request).await
        }
    });
    let io = TokioIo::new(stream);
    match protocol {
        Ok(Some(Protocol::Http1)) => {
            let served = http1_builder().serve_connection(io, service).with_upgrades();
            let mut served = pin!(served);
            // A caller that has gone away changes nothing of what was done.
            let _ended = tokio::select! {
                biased;
                ended = served.as_mut() => ended,
                () = told(&mut until) => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            };
        }
        Ok(Some(Protocol::Http2)) => {
            let served = http2_builder().serve_connection(io, service);
            let mut served = pin!(served);
            let _ended = tokio::select! {
                biased;
                ended = served.as_mut() => ended,
                () = told(&mut until) => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            };
        }
        // It said nothing in time, or went away.
        Ok(None) | Err(_) => {}
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    let head_bytes = usize::try_from(HEAD_BYTES_MAX).expect("64 KiB fit");
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_headers(HEADERS_MAX).max_buf_size(head_bytes);
    builder
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    // The streams of a connection run in tasks of their own, which end with it.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(HEAD_MAX);
    builder
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// What a connection begins to speak; `None` if it ends first. Nothing is taken from the stream.
async fn protocol(stream: &TcpStream) -> Option<Protocol> {
    let mut seen = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut seen).await.ok().filter(|length| *length > 0)?;
        let (begun, whole) = (seen.get(..length)?, PREFACE.get(..length)?);
        if begun != whole {
            return Some(Protocol::Http1);
        }
        if length == PREFACE.len() {
            return Some(Protocol::Http2);
        }
        // A part of the preface has come: the rest makes the stream no readier than it is.
        tokio::time::sleep(PREFACE_STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[tokio::test]
    async fn until_the_books_are_sound_the_server_says_only_that_it_starts() {
        let gate = Gate::shut();
        for (path, status, says) in [
            ("/health", StatusCode::OK, "starting"),
            ("/ready", StatusCode::SERVICE_UNAVAILABLE, "starting"),
            ("/api/v1/reservations", StatusCode::SERVICE_UNAVAILABLE, "SERVICE_STARTING"),
            ("/v1/models", StatusCode::SERVICE_UNAVAILABLE, "server_error"),
        ] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = gate.answer(request).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            let body = super::super::read::read(response.into_body(), 4_096).await.unwrap();
            assert!(String::from_utf8(body).unwrap().contains(says), "{path}");
        }
    }
}
