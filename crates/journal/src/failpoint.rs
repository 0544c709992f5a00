//! Named places where a test can have this process killed, as `kill -9` would.
//!
//! `HOLDFAST_FAILPOINT=name:n` kills the process at the n-th passing of `name`. Without it a failpoint costs one load. They
//! are in the program that users run, because that is the program whose crashes must be survived.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every failpoint there is: the torture run kills at each.
pub const NAMES: &[&str] = &[
    "journal.before_write",
    "journal.mid_write",
    "journal.after_write",
    "journal.after_sync",
    "journal.before_seal",
    "journal.roll_before_header",
    "journal.roll_before_rename",
    "journal.roll_after_rename",
    "engine.before_answer",
    "engine.after_answer",
    "engine.mid_answers",
    "snapshot.before_write",
    "snapshot.before_rename",
    "snapshot.after_rename",
    "keys.before_rename",
    "keys.after_rename",
    "keys.before_merge_swap",
    "read_model.before_commit",
    "read_model.after_commit",
];

/// Those in the life of a paid request.
pub const INFERENCE: &[&str] = &[
    "inference.before_reserve",
    "inference.after_reserve",
    "inference.before_call",
    "inference.mid_stream",
    "inference.before_commit",
    "inference.after_commit",
    "inference.before_end",
    "inference.before_release",
];

/// Those between a commit and the peer's word in the journal.
pub const DELIVERY: &[&str] = &[
    "obligations.before_commit",
    "obligations.after_commit",
    "delivery.before_tell",
    "delivery.after_tell",
    "delivery.before_ack",
    "delivery.after_ack",
];

/// Those in a round of the engine on PostgreSQL.
pub const DATABASE: &[&str] = &["ledger.before_admit", "ledger.after_commit"];

/// Those in an export and an import.
pub const MOVING: &[&str] =
    &["export.mid_entries", "import.mid_entries", "import.before_commit", "import.after_commit"];

/// Those in the log of the queue.
pub const QUEUE: &[&str] = &["queue.before_write", "queue.after_sync", "queue.before_file"];

/// Those between the queue's verdict, the wallet's act and the end of an item.
pub const SEAM: &[&str] = &[
    "queue.before_carry_out",
    "wallet.before_hold",
    "wallet.before_order",
    "wallet.after_order",
    "queue.after_carry_out",
    "queue.after_end",
];

struct Armed {
    name: String,
    at: u64,
    passed: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

fn armed() -> Option<&'static Armed> {
    let read = || {
        let text = std::env::var("HOLDFAST_FAILPOINT").ok()?;
        let (name, at) = text.split_once(':')?;
        Some(Armed { name: name.to_owned(), at: at.parse().ok()?, passed: AtomicU64::new(0) })
    };
    ARMED.get_or_init(read).as_ref()
}

/// Whether `name` is about to kill: the next [`pass`] of it will.
#[must_use]
pub fn is_due(name: &str) -> bool {
    armed()
        .is_some_and(|armed| armed.name == name && armed.passed.load(Ordering::Relaxed).saturating_add(1) == armed.at)
}

/// A named place. Kills the process if it is the one asked for.
pub fn pass(name: &'static str) {
    debug_assert!(
        [NAMES, INFERENCE, DELIVERY, DATABASE, MOVING, QUEUE, SEAM].iter().any(|names| names.contains(&name)),
        "{name} is not listed"
    );
    let Some(armed) = armed().filter(|armed| armed.name == name) else { return };
    if armed.passed.fetch_add(1, Ordering::Relaxed).saturating_add(1) == armed.at {
        // SIGKILL, not abort: nothing may run after it, and no core is written.
        let _sent = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
