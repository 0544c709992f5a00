//! Who has which obligation, and when the others are due: in memory, because a restart may try all of them again.
//!
//! Only what was claimed before is here. What never was (most, after a long outage) is due, and is read from the file in the
//! order of the entries that owe it: so a million of them take no memory.

use super::file::{self, Kept};
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::obligations::{Claimed, Lease, LeaseToken, Standing};
use rusqlite::Connection;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What is known of the attempts.
#[derive(Debug, Clone, Default)]
pub(super) struct Tried {
    pub(super) attempts: u32,
    pub(super) reason: Option<Arc<Reason>>,
}

/// One that waits.
struct Waiting {
    at: Timestamp,
    tried: Tried,
}

/// One in somebody's hands.
pub(super) struct Held {
    pub(super) kept: Kept,
    pub(super) tried: Tried,
    token: LeaseToken,
    worker: Label,
    until: Timestamp,
    /// Whether its completion is being written: it does not run out meanwhile.
    is_completing: bool,
}

pub(super) struct Desk {
    pub(super) reader: Connection,
    /// Whether the journal has been read up to where it ended at the start. Before that, what it acknowledges later would
    /// be told again.
    pub(super) is_ready: bool,
    /// Entries up to this one have been claimed at least once.
    cursor: u64,
    waiting: HashMap<u64, Waiting>,
    due: BTreeSet<(Timestamp, u64)>,
    held: HashMap<ObligationId, Held>,
    expiring: BTreeSet<(Timestamp, ObligationId)>,
    tokens: u128,
    /// The last reason, which most often is the next one's too.
    last_reason: Option<Arc<Reason>>,
}

impl Desk {
    pub(super) fn new(reader: Connection, is_ready: bool) -> Self {
        Self {
            reader,
            is_ready,
            cursor: 0,
            waiting: HashMap::new(),
            due: BTreeSet::new(),
            held: HashMap::new(),
            expiring: BTreeSet::new(),
            tokens: 0,
            last_reason: None,
        }
    }

    /// Leases up to `limit` of those that are due, the longest due first.
    pub(super) fn claim(
        &mut self,
        worker: Label,
        limit: usize,
        lease: Span,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Claimed>> {
        if !self.is_ready {
            return Ok(Vec::new());
        }
        let due = self.due.iter().take_while(|(at, _)| *at <= now).take(limit);
        let mut ready: Vec<(Timestamp, u64, Option<Kept>)> = due.map(|(at, seq)| (*at, *seq, None)).collect();
        let fresh = file::pending_after(&self.reader, self.cursor, limit)?;
        ready.extend(fresh.into_iter().map(|kept| (kept.obligation.created_at, kept.seq, Some(kept))));
        ready.sort_by_key(|(at, seq, _)| (*at, *seq));
        ready.truncate(limit);
        let mut claimed = Vec::with_capacity(ready.len());
        for (_, seq, fresh) in ready {
            if fresh.is_some() {
                self.cursor = self.cursor.max(seq);
            }
            let tried = self.unwait(seq).unwrap_or_default();
            let kept = match fresh {
                Some(kept) => Some(kept),
                None => file::pending_at(&self.reader, seq)?,
            };
            // If it is not there, it was settled a moment ago, and whoever did that is about to say so.
            if let Some(kept) = kept {
                claimed.push(self.hold(kept, tried, worker, now.after(lease)));
            }
        }
        Ok(claimed)
    }

    fn hold(&mut self, kept: Kept, tried: Tried, worker: Label, until: Timestamp) -> Claimed {
        self.tokens += 1;
        let (id, token) = (kept.obligation.id, LeaseToken(self.tokens));
        let claimed = Claimed { obligation: kept.obligation, lease: Lease { id, token }, attempts: tried.attempts };
        self.expiring.insert((until, id));
        self.held.insert(id, Held { kept, tried, token, worker, until, is_completing: false });
        claimed
    }

    /// One whose lease is good, from now on being completed.
    pub(super) fn begin_completing(&mut self, lease: Lease) -> Option<(Kept, Tried)> {
        let held = self.held.get_mut(&lease.id).filter(|held| held.token == lease.token && !held.is_completing)?;
        held.is_completing = true;
        self.expiring.remove(&(held.until, lease.id));
        Some((held.kept, held.tried.clone()))
    }

    /// It could not be written: the lease is as it was.
    pub(super) fn give_back(&mut self, id: ObligationId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.is_completing = false;
            self.expiring.insert((held.until, id));
        }
    }

    /// Gives one up that waits or is held: nobody has it any more.
    pub(super) fn forget(&mut self, seq: u64, id: ObligationId) {
        self.unwait(seq);
        if let Some(held) = self.held.get(&id).filter(|held| held.kept.seq == seq) {
            self.expiring.remove(&(held.until, id));
            self.held.remove(&id);
        }
    }

    /// Puts one on the desk that is due at `at`, whoever had it.
    pub(super) fn put(&mut self, seq: u64, id: ObligationId, at: Timestamp, tried: Tried) {
        self.forget(seq, id);
        // What was never claimed is found in the file.
        if seq <= self.cursor {
            self.due.insert((at, seq));
            self.waiting.insert(seq, Waiting { at, tried });
        }
    }

    fn unwait(&mut self, seq: u64) -> Option<Tried> {
        let Waiting { at, tried } = self.waiting.remove(&seq)?;
        self.due.remove(&(at, seq));
        Some(tried)
    }

    /// Gives back those whose lease ran out, and says how many.
    pub(super) fn repair(&mut self, limit: usize, now: Timestamp) -> usize {
        let over = self.expiring.iter().take_while(|(until, _)| *until <= now).take(limit);
        let over: Vec<ObligationId> = over.map(|(_, id)| *id).collect();
        for id in &over {
            if let Some(Held { kept, tried, .. }) = self.held.get(id) {
                let tried = Tried { attempts: tried.attempts.saturating_add(1), ..tried.clone() };
                self.put(kept.seq, *id, now, tried);
            }
        }
        over.len()
    }

    /// When the next one is due or its lease runs out.
    pub(super) fn next_due(&self) -> rusqlite::Result<Option<Timestamp>> {
        let fresh = if self.is_ready { file::pending_after(&self.reader, self.cursor, 1)? } else { Vec::new() };
        let fresh = fresh.first().map(|kept| kept.obligation.created_at);
        let due = self.due.first().map(|(at, _)| *at);
        let expiring = self.expiring.first().map(|(until, _)| *until);
        Ok([fresh, due, expiring].into_iter().flatten().min())
    }

    /// Where one stands that is pending.
    pub(super) fn standing(&self, kept: &Kept) -> (Standing, Tried) {
        let id = kept.obligation.id;
        if let Some(held) = self.held.get(&id).filter(|held| held.kept.seq == kept.seq) {
            return (Standing::Leased { worker: held.worker, until: held.until }, held.tried.clone());
        }
        match self.waiting.get(&kept.seq) {
            Some(Waiting { at, tried }) => (Standing::Due { at: *at }, tried.clone()),
            None => (Standing::Due { at: kept.obligation.created_at }, Tried::default()),
        }
    }

    /// Whether nobody has it in hand.
    pub(super) fn is_free(&self, id: ObligationId) -> bool {
        !self.held.contains_key(&id)
    }

    /// A reason, kept once for all who share it.
    pub(super) fn reason(&mut self, reason: &Reason) -> Arc<Reason> {
        match &self.last_reason {
            Some(last) if **last == *reason => Arc::clone(last),
            Some(_) | None => Arc::clone(self.last_reason.insert(Arc::new(reason.clone()))),
        }
    }
}
