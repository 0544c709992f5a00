//! A data directory under torture: what is on it, what was asked of it, and how it is loaded and stopped.

use super::client::{Client, Haul, Pace};
use super::history::History;
use super::janitor::Janitor;
use super::mix::Mix;
use super::server::{Death, Launch, Layout, Server};
use holdfast_simulator::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How many clients load the server at once.
const CLIENTS: usize = 3;

/// What all parts of a run share.
pub(crate) struct Context {
    pub(crate) holdfast: PathBuf,
    pub(crate) janitor: Janitor,
}

/// A data directory and its record.
pub(crate) struct Site {
    /// What is removed with it, and kept with a violation.
    pub(crate) directory: PathBuf,
    data: PathBuf,
    stderr: PathBuf,
    layout: Layout,
    pub(crate) history: History,
    mix: Mix,
    endowed: bool,
}

/// How the server ended, and what the clients complain of.
pub(crate) struct Loaded<T> {
    /// How it ended by itself, if it did before its time was up.
    pub(crate) death: Option<Death>,
    pub(crate) finished: T,
    pub(crate) complaints: Vec<String>,
    /// How many of the requests sent were acknowledged.
    pub(crate) acknowledged: u64,
    /// How many acknowledged requests were repeated under load and answered as before.
    pub(crate) repeated: u64,
}

impl Site {
    /// A site in `directory`, with its data in `data` below it.
    pub(crate) fn new(directory: &Path, data: PathBuf, layout: Layout) -> Self {
        let stderr = directory.join("stderr.txt");
        let (history, mix) = (History::default(), Mix::new());
        Self { directory: directory.to_owned(), data, stderr, layout, history, mix, endowed: false }
    }

    /// How its server is started.
    pub(crate) fn launch<'a>(&self, context: &'a Context) -> Launch<'a> {
        Launch {
            holdfast: &context.holdfast,
            data: self.data.clone(),
            stderr: self.stderr.clone(),
            layout: self.layout,
            failpoint: None,
            strace: None,
            janitor: &context.janitor,
        }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn mix(&self) -> &Mix {
        &self.mix
    }

    /// The greatest offset that a client was told.
    pub(crate) const fn seen(&self) -> u64 {
        self.history.seen
    }
}

/// How a server is loaded.
pub(crate) struct Load {
    pub(crate) pace: Pace,
    pub(crate) window: Duration,
}

/// What clients gathered while a server was loaded.
pub(crate) struct Gathered<T> {
    pub(crate) death: Option<Death>,
    pub(crate) finished: T,
    hauls: Vec<Haul>,
}

impl Site {
    /// Loads `server` until it ends or the window is over, and then has `finish` do what is to be done to it, while the
    /// clients go on.
    pub(crate) fn load<T>(
        &self,
        server: &mut Server<'_>,
        load: &Load,
        rng: &mut Rng,
        finish: impl FnOnce(&mut Server<'_>) -> T,
    ) -> Gathered<T> {
        let stop = AtomicBool::new(false);
        let socket = server.socket();
        let Load { pace, window } = *load;
        let client = Client { socket: &socket, mix: &self.mix, history: &self.history, pace, stop: &stop };
        let mut first = if self.endowed { Vec::new() } else { self.mix.endow() };
        thread::scope(|scope| {
            let spawn = |_| {
                let (rng, first, client) = (rng.fork(), std::mem::take(&mut first), &client);
                scope.spawn(move || client.run(rng, first))
            };
            let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
            let death = server.wait_end(window);
            let finished = finish(server);
            stop.store(true, Ordering::Relaxed);
            let hauls = clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
            Gathered { death, finished, hauls }
        })
    }

    /// Takes what the clients gathered into the record.
    pub(crate) fn take_in<T>(&mut self, gathered: Gathered<T>) -> Loaded<T> {
        let Gathered { death, finished, hauls } = gathered;
        let mut loaded = Loaded { death, finished, complaints: Vec::new(), acknowledged: 0, repeated: 0 };
        self.endowed = true;
        for haul in hauls {
            loaded.acknowledged += haul.sent.iter().filter(|sent| sent.is_done()).count() as u64;
            loaded.repeated += haul.repeated;
            loaded.complaints.extend(haul.complaints);
            self.history.sent.extend(haul.sent);
            self.history.seen = self.history.seen.max(haul.seen);
        }
        loaded
    }
}
