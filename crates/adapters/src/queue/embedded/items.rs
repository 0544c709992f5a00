//! The items in memory: all that have not ended, and those that have until the file has them. No I/O.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use holdfast_domain::queue::{Item, Rank, Stage, State};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::Counts;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque, btree_map};
use std::ops::Bound;

/// The memory of so many items is kept for those that come, when they are forgotten.
const SPARE_MAX: usize = 4_096;

/// An item, and the record that must be durable before anybody is told of it. That of an end need not be.
pub(super) struct Kept {
    pub(super) item: Item,
    pub(super) after: u64,
}

/// Items in one state, by rank.
#[derive(Default)]
struct Shelf {
    all: BTreeSet<Rank>,
    of_payee: BTreeSet<(PayeeId, Rank)>,
}

/// The items in memory.
#[derive(Default)]
pub(super) struct Items {
    /// In boxes: an item is large, and those that have ended stay until the file has them, so a table of the items themselves would be
    /// more than the processor keeps at hand.
    by_id: HashMap<ItemId, Box<Kept>>,
    open: Open,
    /// Those that have ended, with the record that says so, in the order of the records.
    ended: VecDeque<(u64, ItemId)>,
    /// Boxes of those that were forgotten. Thousands are forgotten at once, and as many come within the next second.
    #[expect(clippy::vec_box, reason = "what is kept is the boxes: they go back into the table as they are")]
    spare: Vec<Box<Kept>>,
}

/// Where those that have not ended are found.
#[derive(Default)]
struct Open {
    queued: Shelf,
    in_progress: Shelf,
    by_escrow: HashMap<EscrowId, ItemId>,
    by_drop: BTreeSet<(Timestamp, ItemId)>,
    /// How many came at each moment.
    by_age: BTreeMap<Timestamp, usize>,
}

impl Shelf {
    fn change(&mut self, item: &Item, change: Change) {
        let (rank, payee) = (item.rank(), item.intake.payee);
        match change {
            Change::In => {
                self.all.insert(rank);
                self.of_payee.insert((payee, rank));
            }
            Change::Out => {
                self.all.remove(&rank);
                self.of_payee.remove(&(payee, rank));
            }
        }
    }

    fn after(&self, payee: Option<PayeeId>, after: Option<Rank>, at_most: usize) -> Vec<Rank> {
        match payee {
            None => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                self.all.range((from, Bound::Unbounded)).take(at_most).copied().collect()
            }
            Some(payee) => self.of(payee, after).take(at_most).collect(),
        }
    }

    fn of(&self, payee: PayeeId, after: Option<Rank>) -> impl Iterator<Item = Rank> {
        let from = match after {
            Some(rank) => Bound::Excluded((payee, rank)),
            None => Bound::Included((payee, first_rank())),
        };
        let ranked = self.of_payee.range((from, Bound::Unbounded));
        ranked.take_while(move |(of, _)| *of == payee).map(|(_, rank)| *rank)
    }
}

/// The first rank that an item can have.
fn first_rank() -> Rank {
    (std::cmp::Reverse(i32::MAX), Timestamp::EPOCH, ItemId::from_bytes(b"-").expect("a plain character"))
}

#[derive(Clone, Copy)]
enum Change {
    In,
    Out,
}

impl Open {
    /// What changes when an item is put or ends.
    fn register(&mut self, item: &Item, change: Change) {
        let (id, escrow) = (item.intake.id, item.intake.escrow);
        let came_then = self.by_age.entry(item.queued_at);
        match change {
            Change::In => {
                self.by_escrow.insert(escrow, id);
                *came_then.or_default() += 1;
            }
            Change::Out => {
                self.by_escrow.remove(&escrow);
                if let btree_map::Entry::Occupied(mut many) = came_then {
                    *many.get_mut() -= 1;
                    if *many.get() == 0 {
                        many.remove();
                    }
                }
            }
        }
    }

    /// What changes with every state.
    fn shelve(&mut self, item: &Item, change: Change) {
        let (shelf, drop_at) = match item.stage {
            Stage::Queued { drop_at } => (&mut self.queued, drop_at),
            Stage::InProgress { .. } => (&mut self.in_progress, None),
            Stage::Ended(_) => return,
        };
        shelf.change(item, change);
        if let Some(drop_at) = drop_at {
            match change {
                Change::In => self.by_drop.insert((drop_at, item.intake.id)),
                Change::Out => self.by_drop.remove(&(drop_at, item.intake.id)),
            };
        }
    }
}

impl Items {
    pub(super) fn get(&self, id: ItemId) -> Option<&Kept> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    /// The item that has not ended and has this escrow.
    pub(super) fn of_escrow(&self, escrow: EscrowId) -> Option<&Kept> {
        self.open.by_escrow.get(&escrow).and_then(|id| self.get(*id))
    }

    /// Puts an item as it is after the record `offset`.
    pub(super) fn set(&mut self, item: Item, offset: u64) {
        let (id, has_ended) = (item.intake.id, item.state().is_end());
        if has_ended {
            self.ended.push_back((offset, id));
        }
        match self.by_id.entry(id) {
            Entry::Vacant(entry) => {
                if !has_ended {
                    self.open.register(&item, Change::In);
                    self.open.shelve(&item, Change::In);
                }
                let kept = Kept { item, after: offset };
                entry.insert(match self.spare.pop() {
                    Some(mut place) => {
                        *place = kept;
                        place
                    }
                    None => Box::new(kept),
                });
            }
            Entry::Occupied(mut entry) => {
                let before = entry.get_mut();
                self.open.shelve(&before.item, Change::Out);
                if has_ended {
                    self.open.register(&before.item, Change::Out);
                } else {
                    self.open.shelve(&item, Change::In);
                    before.after = offset;
                }
                before.item = item;
            }
        }
    }

    /// Forgets those that ended by record `through` or before, `at_most` so many: the file has them. How many there were.
    pub(super) fn forget_ended(&mut self, through: u64, at_most: usize) -> usize {
        let before = self.ended.len();
        while let Some((offset, id)) = self.ended.front().copied()
            && offset <= through
            && before - self.ended.len() < at_most
        {
            self.ended.pop_front();
            if let Some(mut kept) = self.by_id.remove(&id)
                && self.spare.len() < SPARE_MAX
            {
                kept.item.intake.metadata = None;
                self.spare.push(kept);
            }
        }
        before - self.ended.len()
    }

    /// How many that have ended the file has not got.
    pub(super) fn unfiled(&self) -> usize {
        self.ended.len()
    }

    /// The first of a payee's waiting items that is not overdue.
    pub(super) fn next_of(&self, payee: PayeeId, now: Timestamp) -> Option<&Item> {
        let waiting = self.open.queued.of(payee, None).filter_map(|(.., id)| self.by_id.get(&id));
        waiting.map(|kept| &kept.item).find(|item| !item.is_overdue(now))
    }

    /// Items that have not ended, by rank: of one state, or of both.
    pub(super) fn open(
        &self,
        state: Option<State>,
        payee: Option<PayeeId>,
        after: Option<Rank>,
        at_most: usize,
    ) -> Vec<Item> {
        let shelves: &[&Shelf] = match state {
            Some(State::Queued) => &[&self.open.queued],
            Some(State::InProgress) => &[&self.open.in_progress],
            None => &[&self.open.queued, &self.open.in_progress],
            Some(State::Finished | State::Abandoned | State::Partial) => &[],
        };
        let mut ranks: Vec<Rank> = shelves.iter().flat_map(|shelf| shelf.after(payee, after, at_most)).collect();
        ranks.sort_unstable();
        ranks.truncate(at_most);
        ranks.iter().filter_map(|(.., id)| self.by_id.get(id)).map(|kept| kept.item.clone()).collect()
    }

    /// Those that have ended so and that the file may not have, in no order.
    pub(super) fn ended(&self, state: State, payee: Option<PayeeId>) -> Vec<Item> {
        let items = self.ended.iter().filter_map(|(_, id)| self.by_id.get(id)).map(|kept| &kept.item);
        let wanted = items.filter(|item| item.state() == state && payee.is_none_or(|payee| item.intake.payee == payee));
        wanted.cloned().collect()
    }

    /// Those that nobody took up in time, the longest overdue first.
    pub(super) fn overdue(&self, now: Timestamp, at_most: usize) -> Vec<Item> {
        let due = self.open.by_drop.iter().take_while(|(at, _)| *at <= now).take(at_most);
        due.filter_map(|(_, id)| self.by_id.get(id)).map(|kept| kept.item.clone()).collect()
    }

    /// Which of these escrows one of them has.
    pub(super) fn linked(&self, escrows: &[EscrowId]) -> HashSet<EscrowId> {
        let ended = self.ended.iter().filter_map(|(_, id)| self.by_id.get(id)).map(|kept| kept.item.intake.escrow);
        let ended: HashSet<EscrowId> = ended.collect();
        let is_here = |escrow: &&EscrowId| self.open.by_escrow.contains_key(*escrow) || ended.contains(escrow);
        escrows.iter().filter(is_here).copied().collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let count = |shelf: &Shelf| u64::try_from(shelf.all.len()).unwrap_or(u64::MAX);
        let oldest = self.open.by_age.first_key_value().map(|(at, _)| *at);
        Counts { queued: count(&self.open.queued), in_progress: count(&self.open.in_progress), oldest }
    }
}
