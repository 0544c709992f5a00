//! What a node need not ask for: open lives that it has written itself, and that a life which begins was not there before.
//!
//! Neither is certain, because other nodes write too. Both are safe to decide on, because `ledger_admit` refuses whatever does not
//! go on from the last entry of its life, or begins a life that is there; and the database, not the node, says how owners, payees
//! and budgets stand.
//!
//! # Invariants
//! - What was not loaded leads to entries, which the database checks, or to nothing: an answer without an entry is given only on
//!   what was loaded.

use holdfast_engine::part::{Decided, LifeId, Wanted};
use holdfast_engine::{Answer, Command, Outcome, Record, Request};
use std::collections::{HashMap, HashSet, VecDeque};

/// The most lives that are known. One takes about half a kilobyte.
const LIVES_MAX: usize = 16_384;
/// After a guess was wrong, so many rounds ask.
const ASKING: u32 = 64;

/// What a node knows of lives.
#[derive(Default)]
pub(super) struct Known {
    /// Open ones that began here, with all their entries.
    lives: HashMap<LifeId, Vec<Record>>,
    /// Those that began here, the oldest first; most have ended.
    order: VecDeque<LifeId>,
    /// How many rounds are still to ask about those that begin.
    asking: u32,
}

/// What a round looks at.
pub(super) struct Plan {
    /// What is asked for.
    pub(super) wanted: Wanted,
    /// The entries of lives that are known.
    pub(super) records: Vec<Record>,
    /// Lives that are not asked for.
    unasked: HashSet<LifeId>,
}

impl Plan {
    /// To ask for everything.
    pub(super) fn ask(requests: &[&Request]) -> Self {
        let wanted = Wanted::by(requests.iter().copied());
        Self { wanted, records: Vec::new(), unasked: HashSet::new() }
    }

    /// Whether it rests on anything that was not asked for.
    pub(super) fn is_guess(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// Whether any of it must be asked for after all, because something was answered without an entry.
    pub(super) fn is_short(&self, requests: &[&Request], answers: &[Answer]) -> bool {
        let is_guess = |request: &Request| life(&request.command).is_some_and(|life| self.unasked.contains(&life));
        let is_entry = |answer: &Answer| matches!(answer, Ok(Outcome::Applied(_)));
        self.is_guess() && requests.iter().zip(answers).any(|(request, answer)| !is_entry(answer) && is_guess(request))
    }
}

impl Known {
    /// To ask for no more than must be asked for.
    pub(super) fn plan(&mut self, requests: &[&Request]) -> Plan {
        let mut plan = Plan::ask(requests);
        self.asking = self.asking.saturating_sub(1);
        let mut begun = HashSet::new();
        if self.asking == 0 {
            begun.extend(requests.iter().filter_map(|request| begins(&request.command)));
        }
        let Plan { wanted, records, unasked } = &mut plan;
        let mut owned = Vec::new();
        let mut is_asked = |life: LifeId| {
            if let Some(known) = self.lives.get(&life) {
                owned.extend(known.iter().take(1).map(|first| first.event.clone()));
                records.extend_from_slice(known);
            } else if !begun.contains(&life) {
                return true;
            }
            unasked.insert(life);
            false
        };
        wanted.charges.retain(|id| is_asked(LifeId::Charge(*id)));
        wanted.escrows.retain(|id| is_asked(LifeId::Escrow(*id)));
        // With a life go its owner and its budgets: what moves it holds their locks.
        for event in owned {
            wanted.owners.push(event.owner());
            wanted.budgets.extend(event.budgets().iter().map(|budget| budget.id));
        }
        plan.wanted = std::mem::take(&mut plan.wanted).in_order();
        plan
    }

    /// What was decided is durable.
    pub(super) fn learn(&mut self, decided: Decided) {
        for entry in decided.entries {
            let Some(after) = entry.life else { continue };
            let is_open = after.expires_at.is_some() || after.held.units() > 0;
            let Some(previous) = entry.record.life_previous else {
                if is_open {
                    self.begin(after.id, entry.record);
                }
                continue;
            };
            match self.lives.get_mut(&after.id) {
                // Another lane's entry may be between, and not have been heard of yet.
                Some(known) if is_open && known.last().is_some_and(|last| last.offset == previous.pack()) => {
                    known.push(entry.record);
                }
                Some(_) => drop(self.lives.remove(&after.id)),
                None => {}
            }
        }
    }

    fn begin(&mut self, life: LifeId, record: Record) {
        if self.order.len() >= LIVES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.lives.remove(&oldest);
        }
        self.order.push_back(life);
        self.lives.insert(life, vec![record]);
    }

    /// What this plan was made on was not so, or may not have been.
    pub(super) fn forget(&mut self, plan: &Plan) {
        for life in &plan.unasked {
            self.lives.remove(life);
        }
    }

    /// Something that was thought to begin was there, or so it may be.
    pub(super) const fn doubt(&mut self) {
        self.asking = ASKING;
    }
}

/// The life that a command is about.
const fn life(command: &Command) -> Option<LifeId> {
    match command {
        Command::Mint { .. } => None,
        Command::Reserve { charge, .. } | Command::Charge { charge, .. } => Some(LifeId::Charge(*charge)),
        Command::Hold { escrow, .. } | Command::Escrow { escrow, .. } => Some(LifeId::Escrow(*escrow)),
    }
}

/// The life that a command begins.
const fn begins(command: &Command) -> Option<LifeId> {
    match command {
        Command::Reserve { charge, .. } => Some(LifeId::Charge(*charge)),
        Command::Hold { escrow, .. } => Some(LifeId::Escrow(*escrow)),
        Command::Mint { .. } | Command::Charge { .. } | Command::Escrow { .. } => None,
    }
}
