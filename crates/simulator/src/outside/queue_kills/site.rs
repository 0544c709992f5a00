//! Where the run takes place: the processes, their settings, and what is known of their money.

use super::super::OutsideError;
use super::super::gateway::{Gateway, Launch};
use super::super::operator::Operator;
use super::super::wire::Client;
use super::caller::{Door, Doors};
use super::side::{Blow, Side};
use super::story::{BRIEF, Plan};
use super::{Books, Options, Shape};
use crate::rng::Rng;
use crate::servers::PostgresServer;
use holdfast_journal::failpoint;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What each user has at first: more than all work costs.
pub(super) const MINTED: &str = "1000000";
/// Of the run alone, and as long and as mixed as one must be.
const SECRET: &str = "kills:q7Zt0vLr3mXc9uYw2bEa8hJd5kPs1fGn6oTiRxWz";
/// Below the ports that clients get, so that nobody has one while its server is down.
const PORTS: [u64; 2] = [20_000, 30_000];
/// Those of every journal.
const JOURNAL: [&str; 4] = ["journal.before_write", "journal.mid_write", "journal.after_write", "journal.after_sync"];
/// Those of a ledger in a database.
const DATABASE: [&str; 2] = ["ledger.before_admit", "ledger.after_commit"];
/// Those of the ledger's answers.
const ENGINE: [&str; 2] = ["engine.before_answer", "engine.after_answer"];

/// The processes and all that belongs to them.
pub(super) struct Site {
    pub(super) doors: Doors,
    /// Of the process that has the money.
    pub(super) wallet: Operator,
    launches: Vec<(&'static str, Launch)>,
    database: Option<Database>,
}

/// The books that are in one.
struct Database {
    url: String,
    /// Where copies of it go, and how many there are.
    directory: PathBuf,
    copies: AtomicU64,
    _server: PostgresServer,
}

impl Database {
    fn start(options: &Options) -> Result<Option<Self>, OutsideError> {
        if options.books == Books::Directories {
            return Ok(None);
        }
        let directory = options.directory.join("postgres");
        fs::create_dir_all(&directory).map_err(OutsideError::io("make a directory"))?;
        let failed = |error: crate::servers::ServerError| OutsideError::answered("postgres", error.to_string());
        let server = PostgresServer::start(&directory).map_err(failed)?;
        let url = server.url("postgres");
        Operator { database: Some(url.clone()), ..Operator::of(options.holdfast.clone(), PathBuf::new()) }.migrate()?;
        Ok(Some(Self { url, directory: options.directory.clone(), copies: AtomicU64::new(0), _server: server }))
    }
}

impl Site {
    pub(super) async fn start(options: &Options, rng: &mut Rng) -> Result<(Self, Vec<Gateway>), OutsideError> {
        let directory = &options.directory;
        let config = directory.join("holdfast.toml");
        fs::write(&config, "").map_err(OutsideError::io("write the configuration"))?;
        let database = Database::start(options)?;
        let url = database.as_ref().map(|database| database.url.clone());
        let launch = |name: &str, words: &[&str]| {
            let data = directory.join(name);
            let stderr = directory.join(format!("{name}.stderr.txt"));
            let arguments = words.iter().map(|word| (*word).to_owned()).collect();
            let environment = url.iter().map(|url| ("HOLDFAST_DATABASE_URL".to_owned(), url.clone())).collect();
            let launch = Launch::new(options.holdfast.clone(), data, config.clone(), stderr);
            Launch { arguments, environment, ..launch }
        };
        let ports = [free_port(rng)?, free_port(rng)?].map(|port| format!("127.0.0.1:{port}"));
        let settings = [("HOLDFAST_QUEUE_ROPE_DROP", format!("{BRIEF}=1s")), secret()];
        let launches = match options.shape {
            Shape::One => vec![("both", with(launch("both", &["--listen", &ports[0]]), settings))],
            Shape::Two => {
                let keys = public_keys(&launch("queue", &[]), directory).await?;
                let wallet = launch("wallet", &["--role", "wallet", "--listen", &ports[0]]);
                let wallet = with(wallet, [("HOLDFAST_JWKS", keys.display().to_string()), secret()]);
                let url = ("HOLDFAST_QUEUE_WALLET_URL", format!("http://{}", ports[0]));
                let queue = with(launch("queue", &["--role", "queue", "--listen", &ports[1]]), settings);
                vec![("wallet", wallet), ("queue", with(queue, [url]))]
            }
        };
        let operator = |launch: &Launch| Operator {
            database: url.clone(),
            ..Operator::of(launch.program.clone(), launch.data.clone())
        };
        let doors: Vec<Arc<Door>> = launches
            .iter()
            .zip(&ports)
            .map(|((_, launch), port)| Arc::new(Door::new(format!("http://{port}"), operator(launch))))
            .collect();
        let doors = match &doors[..] {
            [wallet, queue] => Doors { wallet: Arc::clone(wallet), queue: Arc::clone(queue) },
            doors => Doors { wallet: Arc::clone(&doors[0]), queue: Arc::clone(&doors[0]) },
        };
        let site = Self { doors, wallet: operator(&launches[0].1), launches, database };
        let running = site.start_again()?;
        let minted = MINTED.parse().map_err(|_| OutsideError::answered("the mint", "an amount that is none"))?;
        for user in Plan::users() {
            site.wallet.mint(&user, minted)?;
        }
        Ok((site, running))
    }

    /// Starts all of them, the wallet first.
    pub(super) fn start_again(&self) -> Result<Vec<Gateway>, OutsideError> {
        self.launches.iter().map(|(_, launch)| launch.start()).collect()
    }

    /// Who is killed how, so that all blows together are as many as was said.
    pub(super) fn sides(&self, kills: u64, rng: &mut Rng) -> Vec<Side> {
        let named = || failpoint::QUEUE.iter().chain(failpoint::SEAM).copied();
        let of = |prefix: &'static str| named().filter(move |name| name.starts_with(prefix));
        let between =
            |prefix: &'static str| failpoint::SEAM.iter().copied().filter(move |name| name.starts_with(prefix));
        let side = |(name, launch): &(&'static str, Launch)| {
            let (points, count): (Vec<_>, _) = match (*name, &self.database) {
                ("wallet", None) => (of("wallet.").chain(JOURNAL).chain(ENGINE).collect(), kills / 2),
                // Its steps are in a journal too.
                ("queue", None) => (of("queue.").chain(JOURNAL).collect(), kills - kills / 2),
                (_, None) => (of("").chain(JOURNAL).chain(ENGINE).collect(), kills),
                ("wallet", Some(_)) => (between("wallet.").chain(DATABASE).collect(), kills / 2),
                ("queue", Some(_)) => (between("queue.").collect(), kills - kills / 2),
                (_, Some(_)) => (between("").chain(DATABASE).collect(), kills),
            };
            Side { name, launch: launch.clone(), blows: Blow::plan(&points, count, &mut rng.fork()) }
        };
        self.launches.iter().map(side).collect()
    }

    /// Has the queue lose all that it had, as if its disk were gone.
    pub(super) fn forget(&self) -> Result<(), OutsideError> {
        let [_, (_, Launch { data, .. })] = &self.launches[..] else {
            return Err(OutsideError::answered(
                "this run",
                "a queue that loses its journal needs a process of its own",
            ));
        };
        fs::remove_dir_all(data.join("journal")).map_err(OutsideError::io("remove the queue's journal"))?;
        // Derived from it; they may not be there yet.
        for name in ["snapshots", "keys"] {
            let _not_there = fs::remove_dir_all(data.join(name));
        }
        for file in ["queue.db", "read-model.sqlite"] {
            for part in ["", "-wal", "-shm"] {
                let _not_there = fs::remove_file(data.join(format!("{file}{part}")));
            }
        }
        Ok(())
    }

    /// Has the journal of the money checked, byte by byte.
    pub(super) fn verify(&self) -> Result<(), OutsideError> {
        self.journal()?.verify()
    }

    /// Where the journal of the money is, or a copy of the database as one.
    pub(super) fn journal(&self) -> Result<Operator, OutsideError> {
        let Some(database) = &self.database else { return Ok(self.wallet.clone()) };
        let number = database.copies.fetch_add(1, Ordering::Relaxed);
        self.wallet.copy_to(database.directory.join(format!("copy-{number}")))
    }
}

fn secret() -> (&'static str, String) {
    ("HOLDFAST_QUEUE_SECRET", SECRET.to_owned())
}

fn with<const N: usize>(mut launch: Launch, settings: [(&str, String); N]) -> Launch {
    launch.environment.extend(settings.map(|(name, value)| (name.to_owned(), value)));
    launch
}

/// A port that nobody has.
fn free_port(rng: &mut Rng) -> Result<u16, OutsideError> {
    const TRIES: usize = 100;
    let mut ports = (0..TRIES).filter_map(|_| u16::try_from(rng.between(PORTS[0], PORTS[1])).ok());
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.ok_or_else(|| OutsideError::answered("this machine", "no free port"))
}

/// A file of the keys that the queue signs with, which the wallet is to trust.
async fn public_keys(queue: &Launch, directory: &Path) -> Result<PathBuf, OutsideError> {
    let gateway = queue.start()?;
    let answer = Client::new(&gateway.url).send("GET", "/.well-known/jwks.json", &[], "").await?;
    let keys = answer.good("the queue's keys")?;
    let path = directory.join("queue.jwks.json");
    fs::write(&path, keys.to_string()).map_err(OutsideError::io("write the queue's keys"))?;
    Ok(path)
}
