//! Waking those who deliver: what one node puts, another may tell.
//!
//! ```text
//!  put, replay ─▶ News ─▶ NOTIFY on a connection of its own, after the commit ─▶ LISTEN ─▶ the others' bells
//!                                                     a look now and then, in longer pauses ─▶ the bell
//! ```
//!
//! Nothing depends on it but how soon something is told: what is due is in the table. A `NOTIFY` in the paying transaction would
//! make all commits wait for one another (3,230 a second became 620), and one for each put would be many for nothing.
//!
//! # Invariants
//! - A node sends at most one notification for each [`DEBOUNCE`], whatever is put, and does not wake itself by it.
//! - A connection that breaks is opened anew; whoever listens again looks once, because nobody knows what was said meanwhile.

use super::PostgresStore;
use crate::postgres::{Database, DatabaseError, Driver};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::ObligationStore;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

/// What notifications are sent on.
pub const CHANNEL: &str = "holdfast_outbox";
/// How long between two notifications.
pub const DEBOUNCE: Duration = Duration::from_millis(20);
/// How long a connection that cannot be had is not tried for: twice as long each time, up to the last.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long between two looks: twice as long each time that nothing is due, up to the last.
const LOOK: Duration = Duration::from_millis(500);
const LOOK_MAX: Duration = Duration::from_secs(8);

/// That something was put which others may tell.
pub(super) struct News {
    there_is: Notify,
    /// Who says so.
    sender: String,
}

impl News {
    pub(super) fn new() -> Self {
        let mut chance = [0; 8];
        // Without randomness it may be woken by its own word, which costs one look.
        let _filled = aws_lc_rs::rand::fill(&mut chance).is_ok();
        Self { there_is: Notify::new(), sender: format!("{:016x}", u64::from_be_bytes(chance)) }
    }

    /// Never waits. Told many times before it is sent is told once.
    pub(super) fn tell(&self) {
        self.there_is.notify_one();
    }
}

/// A task that ends when nobody holds it.
struct Held(AbortHandle);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PostgresStore {
    /// Says to other nodes that something has become due, a moment later and once for all that come together: for whoever puts
    /// into the outbox by a transaction of its own.
    pub fn announce(&self) {
        self.news.tell();
    }

    /// Rings `bell` when another node has put something, and tells the others what this one puts, until `stopping`.
    pub async fn wake(&self, bell: &Arc<Bell>, mut stopping: watch::Receiver<bool>) {
        tokio::select! {
            () = self.send_news() => {}
            () = self.hear_news(bell) => {}
            () = self.look_now_and_then(bell) => {}
            // If nobody can tell any more, the server is going down too.
            _told = stopping.wait_for(|stopping| *stopping) => {}
        }
    }

    async fn send_news(&self) {
        let mut open: Option<(Client, Held)> = None;
        let mut pause = PAUSE;
        loop {
            self.news.there_is.notified().await;
            let sent = async {
                let (client, held) = match open.take() {
                    Some(open) if !open.0.is_closed() => open,
                    Some(_) | None => self.connect().await?,
                };
                let news: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
                    [(&CHANNEL, Type::TEXT), (&self.news.sender, Type::TEXT)];
                client.query_typed("SELECT pg_notify($1, $2)", &news).await?;
                Ok::<_, DatabaseError>((client, held))
            };
            match timeout(self.pool.limits().answer_within, sent).await {
                Ok(Ok(still_open)) => {
                    (open, pause) = (Some(still_open), PAUSE);
                    sleep(DEBOUNCE).await;
                }
                Ok(Err(_)) | Err(_) => {
                    // The others look now and then.
                    self.news.tell();
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn connect(&self) -> Result<(Client, Held), DatabaseError> {
        let (client, driver) = self.pool.database().open().await?;
        // Ends with whoever holds it.
        Ok((client, Held(tokio::spawn(driver).abort_handle())))
    }

    async fn hear_news(&self, bell: &Arc<Bell>) {
        let mut pause = PAUSE;
        loop {
            let within = self.pool.limits().answer_within;
            if let Ok(Ok((_client, hearing, _held))) = timeout(within, self.listen(self.pool.database(), bell)).await {
                pause = PAUSE;
                bell.ring();
                // It ends when the connection breaks; a panic in it is as much the end of it.
                let _ended = hearing.await.is_ok();
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn listen(
        &self,
        database: &Database,
        bell: &Arc<Bell>,
    ) -> Result<(Client, JoinHandle<()>, Held), DatabaseError> {
        let (client, driver) = database.open().await?;
        let hearing = tokio::spawn(hear(driver, Arc::clone(bell), self.news.sender.clone()));
        let held = Held(hearing.abort_handle());
        client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
        Ok((client, hearing, held))
    }

    async fn look_now_and_then(&self, bell: &Bell) {
        let mut pause = LOOK;
        loop {
            sleep(pause).await;
            let due = self.next_due().await;
            let is_due = due.is_ok_and(|due| due.is_some_and(|due| due <= self.clock.now()));
            if is_due {
                bell.ring();
            }
            pause = if is_due { LOOK } else { (pause * 2).min(LOOK_MAX) };
        }
    }
}

/// Moves the bytes of a connection, and rings for what others say on it.
async fn hear(mut driver: Driver, bell: Arc<Bell>, ourselves: String) {
    while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
        if let AsyncMessage::Notification(said) = message
            && said.payload() != ourselves
        {
            bell.ring();
        }
    }
}
