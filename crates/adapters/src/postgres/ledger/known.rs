//! What a node need not ask for: owners and open lives as it wrote them itself, that a life which begins was not there before, and
//! that a key is new.
//!
//! A round that needs to ask for nothing is **at once**: one way there and back. What it does need to ask for, it looks at without
//! locks. After one of them was refused because somebody else had been there, some rounds ask under locks for owners, payees and
//! budgets: nodes that share accounts are fastest so.
//!
//! None of it is certain, because other nodes write too. All of it is safe to decide on, because `ledger_admit` refuses whatever
//! does not go on from the last entry of its owner, life, payee or budget, begins a life that is there, or uses a key again.
//!
//! # Invariants
//! - What was not loaded leads to entries, which the database checks, or to nothing: an answer without an entry is given only on
//!   what was loaded, and of a round at once only on what was locked.
//! - The offsets of one owner grow: a round at once has a block from after the last entry of everything it looks at.

use super::busy::{Busy, Meets, Touch};
use super::entry::life_name;
use super::place::Place;
use super::rows::{End, Seen};
use holdfast_domain::{OwnerId, Timestamp};
use holdfast_engine::part::{Decided, LifeId, OwnerRow, Wanted};
use holdfast_engine::{Answer, Command, Outcome, Record, Request};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// The most lives that are known. One takes about half a kilobyte.
const LIVES_MAX: usize = 16_384;
/// The most owners that are known. One takes about a quarter of a kilobyte.
const OWNERS_MAX: usize = 65_536;
/// After a guess was wrong, so many rounds ask.
const ASKING: u32 = 64;
/// After a round at once was overtaken, so many rounds lock; twice as many each time that the next one is overtaken as well.
const LOCKING: u32 = 64;
/// The most of them.
const LOCKING_MAX: u32 = 2_048;
/// How long the offsets and the moment that a round leaves can be used. The database refuses them after three seconds.
const SPARE_FOR: Duration = Duration::from_secs(1);
/// How many of them are kept.
const SPARES_MAX: usize = 8;

/// What a node knows, and what its lanes are at.
#[derive(Default)]
pub(super) struct Known {
    /// Open lives that began here, with all their entries.
    lives: HashMap<LifeId, KnownLife>,
    /// Those that began here, the oldest first; most have ended.
    lives_order: VecDeque<LifeId>,
    owners: HashMap<OwnerId, KnownOwner>,
    owners_order: VecDeque<OwnerId>,
    /// What rounds at once can begin with.
    spares: Vec<Spare>,
    /// How many rounds are still to ask about lives that begin, and keys.
    asking: u32,
    /// How many rounds are still to lock, and how many are to after the next failure.
    locking: u32,
    locking_next: u32,
    busy: Busy,
}

struct KnownLife {
    records: Vec<Record>,
    place: Place,
}

#[derive(Clone)]
struct KnownOwner {
    row: OwnerRow,
    end: End,
}

/// Offsets that are nobody else's, and the moment, as a round left them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spare {
    pub(super) first_offset: u64,
    moment: Timestamp,
    since: Instant,
}

impl Spare {
    pub(super) fn new(first_offset: u64, moment: Timestamp) -> Self {
        Self { first_offset, moment, since: Instant::now() }
    }

    /// The moment by the database's clock, or a little before.
    pub(super) fn moment(&self) -> Timestamp {
        let since = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.moment.millis().saturating_add(since))
    }
}

/// What a round looks at.
pub(super) struct Plan {
    /// What is asked for.
    pub(super) wanted: Wanted,
    /// The entries of lives that are known.
    pub(super) records: Vec<Record>,
    /// Owners that are known.
    pub(super) owners: Vec<OwnerRow>,
    /// Where what is known is.
    pub(super) seen: Seen,
    /// What it begins with, if it is at once.
    pub(super) spare: Option<Spare>,
    /// Lives that are not asked for.
    unasked: HashSet<LifeId>,
}

/// What a round left.
pub(super) struct Left {
    pub(super) decided: Decided,
    /// Where it is.
    pub(super) seen: Seen,
    pub(super) spare: Spare,
}

impl Plan {
    /// To ask for everything.
    pub(super) fn ask(requests: &[&Request]) -> Self {
        let wanted = Wanted::by(requests.iter().copied());
        let (records, owners, seen) = (Vec::new(), Vec::new(), Seen::default());
        Self { wanted, records, owners, seen, spare: None, unasked: HashSet::new() }
    }

    /// Whether it rests on anything that was not asked for, or not locked.
    pub(super) fn is_guess(&self) -> bool {
        self.spare.is_some() || !self.unasked.is_empty()
    }

    /// Whether there is nothing to ask for.
    pub(super) const fn asks_nothing(&self) -> bool {
        let Wanted { owners, payees, budgets, charges, escrows, keys } = &self.wanted;
        owners.is_empty()
            && payees.is_empty()
            && budgets.is_empty()
            && charges.is_empty()
            && escrows.is_empty()
            && keys.is_empty()
    }

    /// Whether any of it must be asked for after all, because something was answered without an entry.
    pub(super) fn is_short(&self, requests: &[&Request], answers: &[Answer]) -> bool {
        let is_unasked = |request: &Request| life(&request.command).is_some_and(|life| self.unasked.contains(&life));
        let is_guess = |request: &Request| self.spare.is_some() || is_unasked(request);
        let is_entry = |answer: &Answer| matches!(answer, Ok(Outcome::Applied(_)));
        self.is_guess() && requests.iter().zip(answers).any(|(request, answer)| !is_entry(answer) && is_guess(request))
    }
}

impl Known {
    /// To ask for no more than must be asked for.
    pub(super) fn plan(&mut self, requests: &[&Request], meets: Meets) -> Plan {
        let mut plan = Plan::ask(requests);
        self.asking = self.asking.saturating_sub(1);
        let mut begun = HashSet::new();
        if self.asking == 0 {
            begun.extend(requests.iter().filter_map(|request| begins(&request.command)));
        }
        let Plan { wanted, records, seen, unasked, .. } = &mut plan;
        let mut owned = Vec::new();
        let mut is_asked = |life: LifeId| {
            if let Some(known) = self.lives.get(&life) {
                owned.extend(known.records.iter().take(1).map(|first| first.event.clone()));
                records.extend_from_slice(&known.records);
                seen.lives.insert(life_name(life), known.place);
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
        if meets == Meets::Nobody {
            self.at_once(&mut plan);
        }
        plan
    }

    /// Takes for known what is, if the round can be at once.
    fn at_once(&mut self, plan: &mut Plan) {
        if self.locking > 0 {
            self.locking -= 1;
            return;
        }
        let Some(spare) = self.spare() else { return };
        let known: Vec<&KnownOwner> = plan.wanted.owners.iter().filter_map(|id| self.owners.get(id)).collect();
        if known.iter().any(|owner| owner.row.last >= spare.first_offset) {
            return;
        }
        for KnownOwner { row, end } in known {
            plan.owners.push(*row);
            plan.seen.owners.insert(row.id.to_string(), end.clone());
        }
        plan.wanted.owners.retain(|id| !self.owners.contains_key(id));
        if self.asking == 0 {
            plan.wanted.keys.clear();
        }
        plan.spare = Some(spare);
    }

    /// The newest that can still be used.
    fn spare(&mut self) -> Option<Spare> {
        self.spares.retain(|spare| spare.since.elapsed() < SPARE_FOR);
        let newest = (0..self.spares.len()).max_by_key(|place| self.spares.get(*place).map(|spare| spare.first_offset));
        newest.map(|place| self.spares.swap_remove(place))
    }

    /// What was decided is durable.
    pub(super) fn learn(&mut self, left: Left, plan: &Plan) {
        let Left { decided, mut seen, spare } = left;
        if self.spares.len() < SPARES_MAX {
            self.spares.push(spare);
        }
        if plan.spare.is_some() {
            self.locking_next = LOCKING;
        }
        for owner in &decided.owners {
            match seen.owners.remove(owner.after.id.as_str()) {
                Some(end) => self.remember(KnownOwner { row: owner.after, end }),
                None => drop(self.owners.remove(&owner.after.id)),
            }
        }
        for entry in decided.entries {
            let Some(after) = entry.life else { continue };
            let place = seen.lives.get(&life_name(after.id)).copied();
            let is_open = after.expires_at.is_some() || after.held.units() > 0;
            let Some(place) = place.filter(|_| is_open) else {
                self.lives.remove(&after.id);
                continue;
            };
            let Some(previous) = entry.record.life_previous else {
                self.begin(after.id, KnownLife { records: vec![entry.record], place });
                continue;
            };
            match self.lives.get_mut(&after.id) {
                // Another lane's entry may be between, and not have been heard of yet.
                Some(known) if known.records.last().is_some_and(|last| last.offset == previous.pack()) => {
                    known.records.push(entry.record);
                    known.place = place;
                }
                Some(_) => drop(self.lives.remove(&after.id)),
                None => {}
            }
        }
    }

    fn remember(&mut self, owner: KnownOwner) {
        let id = owner.row.id;
        // What another lane has heard of since is newer.
        if self.owners.get(&id).is_some_and(|known| known.row.last > owner.row.last) {
            return;
        }
        if self.owners.insert(id, owner).is_none() {
            self.owners_order.push_back(id);
            if self.owners_order.len() > OWNERS_MAX
                && let Some(oldest) = self.owners_order.pop_front()
            {
                self.owners.remove(&oldest);
            }
        }
    }

    fn begin(&mut self, id: LifeId, life: KnownLife) {
        if self.lives_order.len() >= LIVES_MAX
            && let Some(oldest) = self.lives_order.pop_front()
        {
            self.lives.remove(&oldest);
        }
        self.lives_order.push_back(id);
        self.lives.insert(id, life);
    }

    /// What this plan was made on was not so, or may not have been.
    pub(super) fn forget(&mut self, plan: &Plan) {
        for life in &plan.unasked {
            self.lives.remove(life);
        }
        for owner in &plan.owners {
            self.owners.remove(&owner.id);
        }
    }

    /// Something that was thought to begin was there, or so it may be; or somebody else was at what the plan took for known.
    pub(super) fn doubt(&mut self, plan: &Plan) {
        if plan.spare.is_none() {
            self.asking = ASKING;
            return;
        }
        let rounds = self.locking_next.clamp(LOCKING, LOCKING_MAX);
        (self.locking, self.locking_next) = (rounds, rounds.saturating_mul(2));
    }

    /// What a request is known to move.
    fn touches(&self, request: &Request) -> Vec<Touch> {
        let wanted = Wanted::by([request]);
        let mut touches: Vec<Touch> = wanted.owners.iter().map(|id| Touch::Owner(*id)).collect();
        touches.extend(wanted.payees.iter().map(|id| Touch::Payee(*id)));
        touches.extend(wanted.budgets.iter().map(|id| Touch::Budget(*id)));
        let known = life(&request.command).and_then(|life| self.lives.get(&life)?.records.first());
        if let Some(first) = known {
            touches.push(Touch::Owner(first.event.owner()));
            touches.extend(first.event.budgets().iter().map(|budget| Touch::Budget(budget.id)));
        }
        touches
    }

    /// What requests are known to move, and whether another lane is at any of it.
    pub(super) fn meets(&self, requests: &[Request]) -> (Vec<Touch>, Meets) {
        let touches: Vec<Touch> = requests.iter().flat_map(|request| self.touches(request)).collect();
        let meets = if touches.iter().any(|touch| self.busy.is_at(touch)) { Meets::Others } else { Meets::Nobody };
        (touches, meets)
    }

    /// Which lanes are at what.
    pub(super) const fn busy(&mut self) -> &mut Busy {
        &mut self.busy
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
