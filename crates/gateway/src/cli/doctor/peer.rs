//! The peer: whether one is told of charges, from where, and, if asked for, whether it is there.

use super::Finding;
use crate::config::FileConfig;
use crate::failure::Failure;
use crate::settlement::{SettlementSettings, StoreChoice};
use holdfast_adapters::postgres::{self, Database, Limits, Pool};
use reqwest::{Client, redirect};
use std::time::Duration;
use tokio::runtime::Builder;

/// How long the peer has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Checks the peer and the store; online, if that is wanted.
pub(super) fn check(config: &FileConfig, online: bool) -> Vec<Finding> {
    match config.said().and_then(|said| SettlementSettings::read(&said)) {
        Err(failure) => vec![Finding::failed("peer", &failure)],
        Ok(None) => vec![Finding::pass("peer", "none: charges wait until [peer] url names one")],
        Ok(Some(settings)) => vec![peer(&settings, online), store(&settings.store, online)],
    }
}

fn peer(settings: &SettlementSettings, online: bool) -> Finding {
    let url = &settings.peer.url;
    if !online {
        return Finding::pass("peer", format!("{url} is told of every charge; --online asks whether it is there"));
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let client = Client::builder().timeout(ANSWER_MAX).redirect(redirect::Policy::none()).build();
    let (Ok(runtime), Ok(client)) = (runtime, client) else {
        return Finding::warn("peer", "could not be asked", "try again");
    };
    // Whatever it answers, it is there; nothing is told to it.
    match runtime.block_on(async { client.head(url).send().await }) {
        Ok(_) => Finding::pass("peer", format!("{url} answers")),
        Err(_) => {
            Finding::fail("peer", format!("{url} cannot be reached"), "check peer.url, the network, and its firewall")
        }
    }
}

fn store(choice: &StoreChoice, online: bool) -> Finding {
    match choice {
        StoreChoice::Journal => Finding::pass("obligations", "derived from the journal"),
        StoreChoice::Memory => Finding::warn(
            "obligations",
            "in memory: dead letters are forgotten with the process",
            "leave billing.obligations unsaid, unless this is for development",
        ),
        StoreChoice::Redis(_) => Finding::pass("obligations", "in Redis; /health says whether it keeps them"),
        StoreChoice::Postgres(_) if !online => {
            Finding::pass("obligations", "in PostgreSQL; --online asks whether its schema is ours")
        }
        StoreChoice::Postgres(database) => in_postgres(database),
    }
}

/// Asks the database whether it can be used.
fn in_postgres(database: &Database) -> Finding {
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        return Finding::warn("obligations", "the database could not be asked", "try again");
    };
    let pool = Pool::new(database.clone(), Limits::USUAL);
    let checked = runtime.block_on(async { postgres::check(&mut pool.lend().await?, &postgres::SETTLES).await });
    match checked {
        Ok(()) => Finding::pass("obligations", "in PostgreSQL, whose schema is the one of this program"),
        Err(error) => Finding::failed("obligations", &Failure::Database(error)),
    }
}
