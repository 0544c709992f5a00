//! A small HTTP server on a real socket that answers each request as a script says, and remembers what it was sent.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What to do on a connection, one after the other; then it is closed, unless it is said to stay open.
#[derive(Clone)]
pub(crate) enum Act {
    /// Send these bytes at once.
    Send(String),
    /// Send these bytes one by one.
    Trickle(String),
    /// Wait until the client goes away, then tell it.
    AwaitClose(Arc<Notify>),
    /// Take another request on the same connection.
    StayOpen,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: serde_json::Value,
    /// The number of the connection that it came on.
    pub(crate) connection: usize,
}

pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A whole answer.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    vec![Act::Send(format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    ))]
}

/// The head of a stream that lasts until the connection closes, which ends it without a word: chunked, it is known to be cut.
pub(crate) const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";

/// Bytes as one chunk.
pub(crate) fn chunk(bytes: &str) -> String {
    format!("{:x}\r\n{bytes}\r\n", bytes.len())
}

/// What ends a chunked body properly.
pub(crate) const END: &str = "0\r\n\r\n";

impl Server {
    /// Answers request number N with script number N; the last script goes on for ever.
    pub(crate) async fn start(scripts: Vec<Vec<Act>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let remembered = Arc::clone(&seen);
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((socket, _)) = listener.accept().await else { break };
                let (scripts, seen) = (scripts.clone(), Arc::clone(&remembered));
                tokio::spawn(async move { serve(socket, connection, &scripts, &seen).await });
            }
        });
        Self { url, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(mut socket: TcpStream, connection: usize, scripts: &[Vec<Act>], seen: &Mutex<Vec<Seen>>) -> Option<()> {
    while let Some((head, body)) = receive(&mut socket).await {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(Seen { head, body, connection });
            seen.len() - 1
        };
        let script = scripts.get(number).or(scripts.last())?;
        for act in script {
            play(act, &mut socket).await?;
        }
        if !matches!(script.last(), Some(Act::StayOpen)) {
            return socket.shutdown().await.ok();
        }
    }
    None
}

async fn play(act: &Act, socket: &mut TcpStream) -> Option<()> {
    match act {
        Act::Send(bytes) => socket.write_all(bytes.as_bytes()).await.ok()?,
        Act::Trickle(bytes) => {
            socket.set_nodelay(true).ok()?;
            for byte in bytes.as_bytes() {
                socket.write_all(&[*byte]).await.ok()?;
                tokio::task::yield_now().await;
            }
        }
        Act::AwaitClose(closed) => {
            while !matches!(socket.read(&mut [0; 64]).await, Ok(0) | Err(_)) {}
            closed.notify_one();
        }
        Act::StayOpen => {}
    }
    Some(())
}

/// The head of a request, in small letters, and its body.
async fn receive(socket: &mut TcpStream) -> Option<(String, serde_json::Value)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
    while bytes.len() < end + length {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, serde_json::from_slice(&bytes[end..]).ok()?))
}
