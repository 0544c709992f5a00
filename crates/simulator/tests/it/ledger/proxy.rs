//! A way to the database that is cut, or stands still, where a test wants it to.

use holdfast_simulator::rng::Rng;
use holdfast_simulator::servers::PostgresServer;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a client says that what it did is to last.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
const ROLLBACK: &[u8] = b"Q\0\0\0\x0dROLLBACK\0";
/// How it says that it begins something that is to last together, or not at all.
const BEGIN: &[u8] = b"Q\0\0\0\x0aBEGIN\0";
/// What is said only of entries that are to be admitted. Without a BEGIN before it, the same statement is the COMMIT.
const KINDS: [&[u8]; 3] = [b"credit_mint", b"billing_", b"escrow_"];
/// How the server says that it has, or has not.
const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// After so many bytes of the client.
    Asked(usize),
    /// After so many bytes of the server.
    Answered(usize),
    /// Instead of passing this COMMIT on, counted from 1.
    BeforeCommit(usize),
    /// As soon as this COMMIT is passed on.
    AfterCommit(usize),
    /// When this COMMIT has been done and answered: the answer does not come through.
    AnswerOfCommit(usize),
    /// Instead of passing this COMMIT on, which comes through later, when its client has long gone.
    Late(usize),
}

/// How a connection ended.
enum Ended {
    ByThem,
    Cut,
    /// It was cut, and this is still to come through.
    Late(Vec<u8>, OwnedWriteHalf),
}

/// What connections meet.
pub(crate) struct Proxy {
    port: u16,
    plan: Arc<Plan>,
}

struct Plan {
    server: u16,
    /// Where those to come are cut; `None` means nowhere.
    chance: Mutex<Option<Rng>>,
    next: Mutex<Vec<Cut>>,
    cuts: AtomicUsize,
    commits_cut: AtomicUsize,
    /// Whether COMMITs, and all that comes after them, wait.
    is_held: watch::Sender<bool>,
    /// How many wait.
    held: watch::Sender<usize>,
    /// Whether what is late may come through, and what the server said to it.
    is_late_through: watch::Sender<bool>,
    said_to_late: watch::Sender<Option<String>>,
}

impl Proxy {
    pub(crate) async fn to(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let plan = Arc::new(Plan {
            server: server.port(),
            chance: Mutex::new(None),
            next: Mutex::default(),
            cuts: AtomicUsize::new(0),
            commits_cut: AtomicUsize::new(0),
            is_held: watch::Sender::new(false),
            held: watch::Sender::new(0),
            is_late_through: watch::Sender::new(false),
            said_to_late: watch::Sender::new(None),
        });
        let port = listener.local_addr().unwrap().port();
        let met = Arc::clone(&plan);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let plan = Arc::clone(&met);
                let cut = plan.draw();
                tokio::spawn(pass(client, plan, cut));
            }
        });
        Self { port, plan }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://node@127.0.0.1:{}/postgres", self.port)
    }

    /// Cuts every connection to come at a place of this seed's.
    pub(crate) fn cut_by(&self, seed: u64) {
        *self.plan.chance.lock().unwrap() = Some(Rng::new(seed));
    }

    /// Cuts the next connections there, in this order.
    pub(crate) fn cut_next(&self, cuts: &[Cut]) {
        self.plan.next.lock().unwrap().extend(cuts.iter().rev());
    }

    /// Cuts none that are to come.
    pub(crate) fn calm(&self) {
        *self.plan.chance.lock().unwrap() = None;
    }

    /// How many were cut, and how many of them at a COMMIT.
    pub(crate) fn cuts(&self) -> (usize, usize) {
        (self.plan.cuts.load(Ordering::SeqCst), self.plan.commits_cut.load(Ordering::SeqCst))
    }

    /// Lets no COMMIT pass.
    pub(crate) fn hold(&self) {
        self.plan.is_held.send_replace(true);
    }

    /// Lets all pass again.
    pub(crate) fn release(&self) {
        self.plan.is_held.send_replace(false);
    }

    /// Lets what is late come through, and gives what the server said to it.
    pub(crate) async fn let_through_late(&self) -> String {
        self.plan.is_late_through.send_replace(true);
        let mut said = self.plan.said_to_late.subscribe();
        said.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    /// Returns when so many COMMITs wait.
    pub(crate) async fn holds(&self, count: usize) {
        self.plan.held.subscribe().wait_for(|held| *held >= count).await.unwrap();
    }
}

impl Plan {
    fn draw(&self) -> Cut {
        if let Some(cut) = self.next.lock().unwrap().pop() {
            return cut;
        }
        let mut chance = self.chance.lock().unwrap();
        let Some(rng) = chance.as_mut() else { return Cut::Never };
        let commit = usize::try_from(rng.between(1, 4)).unwrap();
        match rng.below(8) {
            0 => Cut::Asked(rng.index(40_000)),
            1 => Cut::Answered(rng.index(40_000)),
            2 => Cut::BeforeCommit(commit),
            3..=5 => Cut::AfterCommit(commit),
            _ => Cut::AnswerOfCommit(commit),
        }
    }

    async fn wait_while_held(&self) {
        let mut is_held = self.is_held.subscribe();
        if *is_held.borrow() {
            self.held.send_modify(|held| *held += 1);
            is_held.wait_for(|is_held| !is_held).await.unwrap();
            self.held.send_modify(|held| *held -= 1);
        }
    }
}

/// Passes bytes on until the connection ends or is cut.
async fn pass(client: TcpStream, plan: Arc<Plan>, cut: Cut) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", plan.server)).await else { return };
    let (from_client, to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let commits = watch::Sender::new(0);
    let ended = tokio::select! {
        ended = asking(from_client, to_server, &plan, cut, &commits) => ended,
        ended = answering(&mut from_server, to_client, cut, &commits) => ended,
    };
    if !matches!(ended, Ended::ByThem) {
        let at_commit = !matches!(cut, Cut::Never | Cut::Asked(_) | Cut::Answered(_));
        plan.commits_cut.fetch_add(usize::from(at_commit), Ordering::SeqCst);
        plan.cuts.fetch_add(1, Ordering::SeqCst);
    }
    if let Ended::Late(late, mut to_server) = ended {
        plan.is_late_through.subscribe().wait_for(|is_through| *is_through).await.unwrap();
        to_server.write_all(&late).await.unwrap();
        let (mut said, mut piece) = (Vec::new(), vec![0; 65_536]);
        while !said.ends_with(&READY) {
            let length = from_server.read(&mut piece).await.unwrap();
            assert!(length > 0, "the server has something to say to it");
            said.extend_from_slice(&piece[..length]);
        }
        plan.said_to_late.send_replace(Some(String::from_utf8_lossy(&said).into_owned()));
    }
}

/// What the client says.
async fn asking(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    plan: &Plan,
    cut: Cut,
    commits: &watch::Sender<usize>,
) -> Ended {
    let (mut piece, mut passed, mut has_begun) = (vec![0; 65_536], 0, false);
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let says = |what: &[u8]| piece[..length].windows(what.len()).any(|part| part == what);
        has_begun |= says(BEGIN);
        let is_commit = says(COMMIT) || (!has_begun && KINDS.into_iter().any(says));
        has_begun &= !is_commit && !says(ROLLBACK);
        if is_commit {
            plan.wait_while_held().await;
            commits.send_modify(|count| *count += 1);
        }
        if cut == Cut::BeforeCommit(*commits.borrow()) {
            return Ended::Cut;
        }
        if cut == Cut::Late(*commits.borrow()) {
            return Ended::Late(piece[..length].to_vec(), to);
        }
        passed += length;
        if matches!(cut, Cut::Asked(most) if passed > most) {
            let _gone = to.write_all(&piece[..length / 2]).await;
            return Ended::Cut;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return Ended::ByThem;
        }
        if cut == Cut::AfterCommit(*commits.borrow()) {
            return Ended::Cut;
        }
    }
    Ended::ByThem
}

/// What the server says.
async fn answering(
    from: &mut OwnedReadHalf,
    mut to: OwnedWriteHalf,
    cut: Cut,
    commits: &watch::Sender<usize>,
) -> Ended {
    let (mut piece, mut passed) = (vec![0; 65_536], 0);
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if cut == Cut::AnswerOfCommit(*commits.borrow()) {
            if piece[..length].ends_with(&READY) {
                return Ended::Cut;
            }
            continue;
        }
        passed += length;
        if matches!(cut, Cut::Answered(most) if passed > most) {
            let _gone = to.write_all(&piece[..length / 2]).await;
            return Ended::Cut;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return Ended::ByThem;
        }
    }
    Ended::ByThem
}
