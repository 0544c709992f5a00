//! The way to the books: the server of the data directory if one runs, else the directory itself.

use crate::control::socket_path;
use crate::failure::Failure;
use crate::node::{self, Local, Node, Running};
use crate::service::{Asked, Service, refuse};
use crate::settings::Settings;
use crate::terminal;
use holdfast_adapters::postgres::ledger::Settles;
use holdfast_journal::DirLock;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// How long a command waits for another one, or for a server that is just starting or stopping.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);
/// How long a command waits for the server's answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// What to do where there is no data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    Make,
    Refuse,
}

/// A way to ask.
pub(super) enum Door {
    /// A server.
    Server(BufReader<UnixStream>),
    /// Nobody serves the directory: this process does, for as long as it takes.
    Own(Box<Own>),
}

pub(super) struct Own {
    node: Node,
    service: Arc<Service>,
    runtime: Runtime,
}

impl Door {
    /// Finds the way to `data`.
    pub(super) fn open(data: &Path, settings: &Settings, if_missing: IfMissing) -> Result<Self, Failure> {
        let began = Instant::now();
        loop {
            if let Some(stream) = connect(data)? {
                return Ok(Self::Server(BufReader::new(stream)));
            }
            let is_there = settings.database.is_some() || data.join("journal").is_dir();
            if if_missing == IfMissing::Refuse && !is_there {
                return Err(Failure::NoData(data.to_owned()));
            }
            match node::lock(data) {
                Ok(lock) => {
                    return Own::start(lock, data, settings).map(|own| Self::Own(Box::new(own)));
                }
                Err(Failure::InUse { .. }) if began.elapsed() < PATIENCE => thread::sleep(STEP),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Asks one thing and gives the line that answers it.
    pub(super) fn ask(&mut self, request: &Value) -> Result<String, Failure> {
        let line = request.to_string();
        match self {
            Self::Server(stream) => ask_server(stream, &line).map_err(|_| Failure::ServerGone),
            Self::Own(own) => Ok(match Asked::read(line.as_bytes()) {
                Ok(asked) => own.runtime.block_on(own.service.answer(asked)),
                Err(error) => refuse(error),
            }),
        }
    }

    /// Leaves. What this process opened is closed in order.
    pub(super) fn close(self) -> Result<(), Failure> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Own(own) => {
                let Own { node, service, runtime } = *own;
                drop((service, runtime));
                node.stop()
            }
        }
    }
}

impl Own {
    fn start(lock: DirLock, data: &Path, settings: &Settings) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io("start a thread"))?;
        // Whether or not there is a peer: what a command commits waits for one.
        let node = Node::open(lock, data, settings, (&runtime, Settles::Yes), &mut |_| {})?;
        if let Running::Embedded(Local { report, .. }) = &node.engine
            && (report.recovered.verified.tail.is_some() || report.bad_snapshots > 0)
        {
            terminal::note(&node.describe());
        }
        let service = Arc::new(Service::of(&node));
        Ok(Self { node, service, runtime })
    }
}

/// The server of a data directory; `None` if there is none.
pub(super) fn connect(data: &Path) -> Result<Option<UnixStream>, Failure> {
    let path = socket_path(data);
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(Failure::Socket { path, error }),
    }
}

/// Sends a line to a server and reads the one that answers it.
pub(super) fn ask_server(stream: &mut BufReader<UnixStream>, line: &str) -> io::Result<String> {
    stream.get_ref().set_read_timeout(Some(ANSWER_MAX))?;
    stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    match answer.strip_suffix('\n') {
        Some(answer) => Ok(answer.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
