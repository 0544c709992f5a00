//! Connections to a provider over plain HTTP, each driven by the task that asks on it.
//!
//! A client usually has a task for each connection, which hands every chunk of an answer to the task that reads it, and waits until
//! it was taken. Here whoever reads drives the connection too: nobody is woken in between, and chunks that have come together are
//! read together, so they are passed on together.
//!
//! # Invariants
//! - A connection with an answer that was not read to its end is closed, not used again: dropping an answer drops its request.
//! - A request is sent a second time only if nothing of it was sent the first time.

use super::clients::thread_number;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::header::{HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use reqwest::Url;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tower::Service;

/// How long an unused connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// How often unused connections are looked at: the other side may have closed them.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the formal end of an answer is waited for whose last word has come, to use its connection again.
const END_WITHIN: Duration = Duration::from_secs(1);
/// So much of an answer is given at once at the most, so that no other waits for long.
const TOGETHER_MAX_BYTES: usize = 64 << 10;
/// As the client for other addresses has it: a host that is gone is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
const OURSELVES: HeaderValue = HeaderValue::from_static(concat!("holdfast/", env!("CARGO_PKG_VERSION")));

/// The connections to one host.
#[derive(Debug)]
pub(super) struct Plain {
    origin: Uri,
    host: HeaderValue,
    connector: HttpConnector,
    connect_timeout: Duration,
    /// Those that nobody uses, by the thread that opened them.
    shelves: Vec<Arc<Shelf>>,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    SlowToConnect,
    NotConnected,
    Lost,
}

/// An answer, or its beginning.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// None only while it is dropped.
    rest: Option<Rest>,
    shelf: Arc<Shelf>,
    state: State,
}

/// How much of an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Coming,
    /// Its last word: only the formal end may be missing.
    Complete,
    Ended,
    /// It broke off.
    Lost,
}

/// What is still to be read.
#[derive(Debug)]
struct Rest {
    body: Incoming,
    /// None once it is closed.
    link: Option<Box<Link>>,
}

#[derive(Debug)]
struct Link {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<TcpStream>, Full<Bytes>>,
}

#[derive(Debug, Default)]
struct Shelf(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// The one used last is last.
    links: Vec<(Box<Link>, Instant)>,
    /// Whether somebody looks at them now and then.
    is_watched: bool,
}

impl Plain {
    /// Connections to the host of `url`; `None` if it is reached in another way: with TLS, or through a proxy.
    pub(super) fn new(url: &Url, connect_timeout: Duration) -> Option<Self> {
        let origin: Uri = url.as_str().parse().ok()?;
        if url.scheme() != "http" || Matcher::from_env().intercept(&origin).is_some() {
            return None;
        }
        let name = url.host_str()?;
        let host = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shelves = (0..threads).map(|_| Arc::default()).collect();
        Some(Self { origin, host: host.parse().ok()?, connector, connect_timeout, shelves })
    }

    /// Sends a request to `path`, and takes the beginning of its answer.
    pub(super) async fn ask(&self, path: &Uri, mut headers: HeaderMap, body: Bytes) -> Result<Arrived, NoAnswer> {
        headers.insert(HOST, self.host.clone());
        headers.insert(USER_AGENT, OURSELVES);
        let mut request = Request::post(path.clone()).body(Full::new(body)).map_err(|_| NoAnswer::NotConnected)?;
        *request.headers_mut() = headers;
        let shelf = &self.shelves[thread_number() % self.shelves.len()];
        while let Some(link) = poll_fn(|context| Poll::Ready(shelf.take(context))).await {
            match link.send(request, shelf).await {
                Ok(arrived) => return Ok(arrived),
                // It was closed before anything was sent.
                Err(Some(unsent)) => request = *unsent,
                Err(None) => return Err(NoAnswer::Lost),
            }
        }
        self.connect().await?.send(request, shelf).await.map_err(|_| NoAnswer::Lost)
    }

    async fn connect(&self) -> Result<Box<Link>, NoAnswer> {
        let connecting = self.connector.clone().call(self.origin.clone());
        let connected = tokio::time::timeout(self.connect_timeout, connecting).await;
        let stream = connected.map_err(|_| NoAnswer::SlowToConnect)?.map_err(|_| NoAnswer::NotConnected)?;
        let (sender, connection) = http1::handshake(stream).await.map_err(|_| NoAnswer::NotConnected)?;
        Ok(Box::new(Link { sender, connection }))
    }
}

impl Link {
    /// Sends a request; gives it back if nothing of it was sent.
    async fn send(
        mut self: Box<Self>,
        request: Request<Full<Bytes>>,
        shelf: &Arc<Shelf>,
    ) -> Result<Arrived, Option<Box<Request<Full<Bytes>>>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut is_open = true;
        let answer = poll_fn(|context| {
            is_open = is_open && self.drive(context);
            answer.as_mut().poll(context)
        });
        let answer = answer.await;
        match answer {
            Ok(answer) => {
                let (parts, body) = answer.into_parts();
                let rest = Some(Rest { body, link: is_open.then_some(self) });
                let (status, headers, shelf) = (parts.status, parts.headers, Arc::clone(shelf));
                Ok(Arrived { status, headers, rest, shelf, state: State::Coming })
            }
            Err(mut error) => Err(error.take_message().map(Box::new)),
        }
    }

    /// Does what can be done now. `false` once it is closed.
    fn drive(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.connection).poll(context).is_pending()
    }

    /// Whether another request can be sent on it.
    fn is_free(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context) && self.sender.is_ready()
    }
}

impl Arrived {
    /// Gives all bytes of the body that have come to `take`, and waits if there are none; `false` at its end. Dropping the future
    /// loses nothing: what was given was given.
    pub(super) async fn chunks(&mut self, mut take: impl FnMut(&[u8])) -> Result<bool, NoAnswer> {
        let mut given = 0;
        poll_fn(|context| {
            loop {
                match self.poll_chunk(context) {
                    Poll::Ready(Ok(Some(bytes))) => {
                        take(&bytes);
                        given += bytes.len();
                    }
                    // An end and a loss are told by themselves, when the rest is asked for.
                    Poll::Ready(Ok(None)) if given == 0 => return Poll::Ready(Ok(false)),
                    Poll::Ready(Err(error)) if given == 0 => return Poll::Ready(Err(error)),
                    Poll::Pending if given == 0 => return Poll::Pending,
                    Poll::Ready(_) | Poll::Pending => return Poll::Ready(Ok(true)),
                }
                if given >= TOGETHER_MAX_BYTES {
                    return Poll::Ready(Ok(true));
                }
            }
        })
        .await
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NoAnswer>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(Ok(None)) };
        match self.state {
            State::Coming | State::Complete => {}
            State::Ended => return Poll::Ready(Ok(None)),
            State::Lost => return Poll::Ready(Err(NoAnswer::Lost)),
        }
        loop {
            match ready!(rest.poll_frame(context)) {
                None => {
                    self.state = State::Ended;
                    return Poll::Ready(Ok(None));
                }
                Some(Err(_)) => {
                    self.state = State::Lost;
                    return Poll::Ready(Err(NoAnswer::Lost));
                }
                // Trailers are no part of it.
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                }
            }
        }
    }

    /// Says that the answer's last word has come.
    pub(super) const fn complete(&mut self) {
        if matches!(self.state, State::Coming) {
            self.state = State::Complete;
        }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        let has_all = matches!(self.state, State::Complete | State::Ended);
        let Some(mut rest) = self.rest.take().filter(|_| has_all) else { return };
        match rest.poll_end(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(link)) => self.shelf.put(link),
            Poll::Ready(None) => {}
            Poll::Pending => {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    let shelf = Arc::clone(&self.shelf);
                    // May safely die: then its connection is closed.
                    drop(runtime.spawn(async move {
                        let end = tokio::time::timeout(END_WITHIN, poll_fn(|context| rest.poll_end(context)));
                        if let Ok(Some(link)) = end.await {
                            shelf.put(link);
                        }
                    }));
                }
            }
        }
    }
}

impl Rest {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        if self.link.as_mut().is_some_and(|link| !link.drive(context)) {
            self.link = None;
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    /// Waits for the end; gives the connection if it can be used again.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<Box<Link>>> {
        while let Some(frame) = ready!(self.poll_frame(context)) {
            if frame.is_err() {
                return Poll::Ready(None);
            }
        }
        Poll::Ready(self.link.take().and_then(|mut link| link.is_free(context).then_some(link)))
    }
}

impl Shelf {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is still open, the one used last first.
    fn take(&self, context: &mut Context<'_>) -> Option<Box<Link>> {
        loop {
            let (mut link, since) = self.idle().links.pop()?;
            if since.elapsed() < IDLE_MAX && link.is_free(context) {
                return Some(link);
            }
        }
    }

    fn put(self: &Arc<Self>, link: Box<Link>) {
        let mut idle = self.idle();
        idle.links.push((link, Instant::now()));
        if !idle.is_watched
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            idle.is_watched = true;
            // May safely die: whoever takes a connection looks at it too.
            drop(runtime.spawn(Arc::clone(self).watch()));
        }
    }

    /// Closes what is too old, or closed on the other side, until nothing is left.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let mut idle = self.idle();
            let mut context = Context::from_waker(Waker::noop());
            idle.links.retain_mut(|(link, since)| since.elapsed() < IDLE_MAX && link.is_free(&mut context));
            if idle.links.is_empty() {
                idle.is_watched = false;
                return;
            }
        }
    }
}
