//! Which part of the program a process is: the queue and the wallet are one process, or two that speak over HTTP.

use crate::failure::Failure;
use crate::queue::QueueSettings;
use crate::wallet::Secrets;
use clap::ValueEnum;
use reqwest::Url;

/// What a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Everything.
    All,
    /// The performance queue; its wallet is another process (queue.wallet_url)
    Queue,
    /// Everything but the performance queue
    Wallet,
}

impl Role {
    /// Whether the queue is here.
    pub(crate) const fn has_queue(self) -> bool {
        match self {
            Self::All | Self::Queue => true,
            Self::Wallet => false,
        }
    }

    /// Whether the books are here that callers are charged in.
    pub(crate) const fn has_books(self) -> bool {
        match self {
            Self::All | Self::Wallet => true,
            Self::Queue => false,
        }
    }

    /// Where this process' wallet is, if it is another process. What was said must fit the role.
    pub(crate) fn wallet_elsewhere(self, settings: &QueueSettings) -> Result<Option<&Url>, Failure> {
        let refused = |value: &str, allowed: &str| {
            let name = "HOLDFAST_QUEUE_WALLET_URL (queue.wallet_url)".to_owned();
            Err(Failure::Setting { name, value: value.to_owned(), allowed: allowed.to_owned() })
        };
        match (self, &settings.wallet_url) {
            (Self::Queue, None) => refused("", "the address of the wallet's process with --role queue"),
            (Self::All | Self::Wallet, Some(url)) => {
                refused(url.as_str(), "unset unless with --role queue: this process has a wallet of its own")
            }
            (Self::Queue, Some(url)) => Ok(Some(url)),
            (Self::All | Self::Wallet, None) => Ok(None),
        }
    }

    /// The secret that queue and wallet share. One process can make one up; two cannot.
    pub(crate) fn secrets(self, said: Option<Secrets>) -> Result<Secrets, Failure> {
        match (self, said) {
            (_, Some(secrets)) => Ok(secrets),
            (Self::All, None) => Secrets::random(),
            (Self::Queue | Self::Wallet, None) => Err(Failure::Setting {
                name: "HOLDFAST_QUEUE_SECRET (queue.secret)".to_owned(),
                value: String::new(),
                allowed: "the same secret of at least 32 random bytes for both processes, with --role queue and --role wallet \
                          (as from `openssl rand -base64 48`)"
                    .to_owned(),
            }),
        }
    }
}
