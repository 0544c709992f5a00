//! The words of `reservations` and `escrows`.

use super::{Once, seconds};
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Reservations {
    /// Hold credits for work to come
    Create(Create),
    /// Say that the work has been sent upstream
    Start { id: String },
    /// Charge what the work cost, and give the rest back
    Commit(Commit),
    /// Give a hold back
    Release { id: String },
    /// Hold more
    Increase {
        id: String,
        /// By how many credits
        #[arg(allow_hyphen_values = true)]
        amount_cu: String,
        #[command(flatten)]
        once: Once,
    },
    /// Hold for longer, counted from now
    Extend {
        id: String,
        /// For how long, such as 90s, 15m, 1h or 2d
        #[arg(value_parser = seconds)]
        ttl: u64,
        #[command(flatten)]
        once: Once,
    },
    /// Take a charge back
    Void {
        id: String,
        /// Why, for the record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Say that the peer has acknowledged the charge
    Ack { id: String },
    /// Say that the peer could not be told of the charge
    Fail {
        id: String,
        /// Its last word
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// A reservation and its whole life, however old
    Show { id: String },
    /// Open reservations, those that end first before the others
    List {
        /// Of this owner only
        #[arg(long)]
        account: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Create {
    /// Whose credits
    pub(in crate::cli) account: String,
    /// How many, such as 12.5
    #[arg(allow_hyphen_values = true)]
    pub(in crate::cli) amount_cu: String,
    /// The reservation's id; a new one if not said
    #[arg(long)]
    pub(in crate::cli) id: Option<String>,
    /// How long the hold lives, such as 90s, 15m, 1h or 2d (24h if not said)
    #[arg(long, value_parser = seconds)]
    pub(in crate::cli) ttl: Option<u64>,
    /// What to do with a cost above the hold
    #[arg(long)]
    pub(in crate::cli) overrun: Option<Overrun>,
    /// What to do with started work that nobody settles
    #[arg(long)]
    pub(in crate::cli) on_expiry: Option<OnExpiry>,
    /// Freeze this price of input tokens, in dollars per million
    #[arg(long, value_name = "USD", requires = "output_price")]
    pub(in crate::cli) input_price: Option<String>,
    /// Freeze this price of output tokens, in dollars per million
    #[arg(long, value_name = "USD", requires = "input_price")]
    pub(in crate::cli) output_price: Option<String>,
    /// Freeze this price of input tokens read from a cache, in dollars per million (the input price if not said)
    #[arg(long, value_name = "USD", requires = "input_price")]
    pub(in crate::cli) cached_input_price: Option<String>,
    /// Freeze this price of input tokens written to a cache, in dollars per million (the input price if not said)
    #[arg(long, value_name = "USD", requires = "input_price")]
    pub(in crate::cli) cache_write_price: Option<String>,
    /// Freeze this price of reasoning tokens, in dollars per million (the output price if not said)
    #[arg(long, value_name = "USD", requires = "input_price")]
    pub(in crate::cli) reasoning_price: Option<String>,
    /// Freeze this price per request, in dollars: charged once, with the final commit by tokens
    #[arg(long, value_name = "USD", requires = "input_price")]
    pub(in crate::cli) request_price: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) once: Once,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(in crate::cli) enum Overrun {
    /// Charge the hold, record the rest as uncollected
    Cap,
    /// Charge the hold, then what is available
    Available,
    /// Refuse the commit
    Refuse,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(in crate::cli) enum OnExpiry {
    /// Give the hold back
    Release,
    /// Charge all of it
    ChargeEstimate,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Commit {
    pub(in crate::cli) id: String,
    /// What it cost in credits; or give the tokens that it used
    #[arg(allow_hyphen_values = true, required_unless_present = "input_tokens")]
    pub(in crate::cli) amount_cu: Option<String>,
    /// Input tokens that it used, cached ones apart, priced by the frozen rates
    #[arg(long, value_name = "N", requires = "output_tokens", conflicts_with = "amount_cu")]
    pub(in crate::cli) input_tokens: Option<u64>,
    /// Output tokens that it used, reasoning apart
    #[arg(long, value_name = "N", requires = "input_tokens", conflicts_with = "amount_cu")]
    pub(in crate::cli) output_tokens: Option<u64>,
    /// Input tokens that were read from a cache
    #[arg(long, value_name = "N", requires = "input_tokens", conflicts_with = "amount_cu")]
    pub(in crate::cli) cached_input_tokens: Option<u64>,
    /// Input tokens that were written to a cache
    #[arg(long, value_name = "N", requires = "input_tokens", conflicts_with = "amount_cu")]
    pub(in crate::cli) cache_write_tokens: Option<u64>,
    /// Reasoning tokens that it used
    #[arg(long, value_name = "N", requires = "input_tokens", conflicts_with = "amount_cu")]
    pub(in crate::cli) reasoning_tokens: Option<u64>,
    /// More is to come: keep the rest held
    #[arg(long)]
    pub(in crate::cli) partial: bool,
    #[command(flatten)]
    pub(in crate::cli) once: Once,
}

const ESCROW_EXAMPLES: &str = "\
Examples:
  holdfast escrows hold alice 15 --feature review --id deal-1   set 15 of alice's credits aside
  holdfast escrows settle deal-1 bob                            bob has earned them
  holdfast escrows show deal-1                                  whose it is, how it ended, and on whose word
  holdfast escrows orphans                                      held for longer than 5 minutes, and no queue item has it
  holdfast escrows refund deal-2                                give one back; asks first on a terminal

What pays for an item of the queue is ended by the queue: holdfast queue finish, abandon or partial.";

#[derive(Debug, Subcommand)]
#[command(after_help = ESCROW_EXAMPLES)]
pub(in crate::cli) enum Escrows {
    /// Hold credits in escrow
    Hold {
        /// Whose credits
        account: String,
        /// How many
        #[arg(allow_hyphen_values = true)]
        amount_cu: String,
        /// What for, in a word
        #[arg(long)]
        feature: String,
        /// The escrow's id; a new one if not said
        #[arg(long)]
        id: Option<String>,
        #[command(flatten)]
        once: Once,
    },
    /// Pay all of it out
    Settle {
        id: String,
        /// Who has earned it
        payee: String,
        #[command(flatten)]
        once: Once,
    },
    /// Give all of it back, if no queue item has it; on a terminal it is asked whether that is meant
    Refund(Refund),
    /// Divide it
    Partial {
        id: String,
        /// Who has earned the settled part
        payee: String,
        /// What the payee gets
        #[arg(allow_hyphen_values = true)]
        settle_cu: String,
        /// What the owner gets back
        #[arg(allow_hyphen_values = true)]
        refund_cu: String,
        #[command(flatten)]
        once: Once,
    },
    /// An escrow as it stands, however old, and how it ended
    Show { id: String },
    /// Escrows that have been held for too long without a queue item, by id
    Orphans {
        /// Those after this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Refund {
    pub(in crate::cli) id: String,
    /// Do not ask whether it is meant
    #[arg(long)]
    pub(in crate::cli) yes: bool,
    /// An idempotency key: the ledger refunds then, past the queue, and an item that has the escrow ends with it
    #[arg(long)]
    pub(in crate::cli) key: Option<String>,
}
