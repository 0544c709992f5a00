//! What is said in the log about settling, in the words that operators look for.

use crate::terminal;
use holdfast_adapters::obligations::redis::Persistence;
use holdfast_adapters::obligations::{Notice, Notices, line};
use holdfast_adapters::postgres::DatabaseError;
use holdfast_domain::ObligationId;
use holdfast_domain::delivery::{CircuitState, Obligation};
use holdfast_engine::obligations::{Claimed, StoreFailed};

/// An obligation could not be told at once, and waits.
pub(super) fn deferred(claimed: &Claimed, reason: &str, store: &str) {
    let id = claimed.obligation.id;
    let attempt = claimed.attempts.saturating_add(1);
    terminal::note(&format!(
        "[billing-finalize] DLQ: reservation_id={id} reason={reason:?} attempt={attempt} store={store}"
    ));
}

/// So many that had failed before were tried again.
pub(super) fn replayed(replayed: u64, succeeded: u64, remaining: u64) {
    let failed = replayed.saturating_sub(succeeded);
    terminal::note(&format!(
        "[billing-finalize] DLQ replay: replayed={replayed} succeeded={succeeded} failed={failed} remaining={remaining}"
    ));
}

/// An obligation is given up, until somebody replays it.
pub(super) fn given_up(claimed: &Claimed, reason: &str) {
    let Obligation { id, owner, cost, created_at, .. } = claimed.obligation;
    let attempts = claimed.attempts.saturating_add(1);
    terminal::note(&format!(
        "[billing-finalize] DLQ terminal drop: reservation_id={id} attempts={attempts} tenant={owner} \
         actual_cost_micro={} created_at={created_at} reason={reason:?}",
        cost.units()
    ));
}

/// The store did not answer.
pub(super) fn store_failed(failed: &StoreFailed) {
    terminal::note(&format!("[billing-finalize] DLQ STORE FAILURE: {failed}"));
}

/// The store does not have what the journal owes: it was emptied, it dropped something, or it went back in time.
pub(super) fn lost(id: ObligationId, store: &str, pending: u64) {
    terminal::note(&format!(
        "[billing-finalize] DLQ STORE LOSS: {store} does not have reservation_id={id} any more; all {pending} that the \
         journal owes are put again"
    ));
}

/// The store does not have what the journal knows to be given up.
pub(super) fn lost_dead(id: ObligationId, store: &str, count: usize) {
    terminal::note(&format!(
        "[billing-finalize] DLQ STORE LOSS: {store} does not have the dead letter reservation_id={id} any more; {count} such are \
         put again, and tried once more"
    ));
}

/// Obligations that could not even be stored: each whole, in one line, for recovery by hand.
pub(super) fn not_stored(obligations: &[Obligation], failed: &StoreFailed) {
    store_failed(failed);
    for obligation in obligations {
        terminal::note(&line::encode_line(obligation));
    }
}

/// Passes on what a store has to say.
pub(super) struct Notes;

impl Notices for Notes {
    fn tell(&self, notice: &Notice) {
        match notice {
            Notice::Degraded { why } => {
                terminal::note(&format!("[billing-finalize] DLQ store degraded: redis→memory (reason={why:?})"));
            }
            Notice::NotStored(_) | Notice::Recovered { .. } | Notice::Orphans { .. } | Notice::Unreadable { .. } => {
                terminal::note(&notice.line());
            }
        }
    }
}

/// What a Redis says of its persistence, at the start.
pub(super) fn persistence(said: &Persistence) {
    let aof = match said.aof_verified() {
        Some(true) => "verified",
        Some(false) => "off",
        None => "unknown",
    };
    terminal::note(&format!("[billing-finalize] DLQ store: redis (aof={aof})"));
    if let Some(advice) = said.advice() {
        terminal::note(&format!("[billing-finalize] {advice}"));
    }
}

/// Obligations are in a PostgreSQL that answers, at the start.
pub(super) fn in_postgres() {
    terminal::note("[billing-finalize] DLQ store: postgres");
}

/// The database of obligations is not there at the start.
pub(super) fn away(error: &DatabaseError) {
    terminal::note(&format!(
        "[billing-finalize] DLQ store: postgres, which is away: {error}; charges wait in the journal until it answers"
    ));
}

/// The circuit before the peer changed.
pub(super) fn circuit(state: CircuitState) {
    terminal::note(&format!("[billing-finalize] circuit: {}", state.name()));
}
