//! Open lives in memory: a place each, found by the hash of its id, cheap to freeze for a snapshot.
//!
//! Lives that begin one after the other stand next to each other, and most end in the order in which they began. So a long
//! row is fetched ahead of time by the processor, and only the index, which is small, is read all over the place.

use crate::keys::KeyHash;
use crate::table::{Chunked, FrozenChunked};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// A place for a life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot<T> {
    key: KeyHash,
    is_open: bool,
    life: T,
}

/// Open lives of one kind.
#[derive(Debug)]
pub(crate) struct Open<T> {
    slots: Chunked<Slot<T>>,
    /// Places of lives that have ended, to be taken again.
    free: Vec<u32>,
    index: HashTable<u32>,
}

/// The open lives at one moment.
#[derive(Debug, Clone)]
pub(crate) struct FrozenOpen<T> {
    slots: FrozenChunked<Slot<T>>,
    length: usize,
}

/// The hash of a key is the key: it is one already.
const fn hash(key: KeyHash) -> u64 {
    key.0 as u64
}

impl<T: Copy> Open<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Chunked::new(), free: Vec::new(), index: HashTable::new() }
    }

    pub(crate) fn get(&self, key: KeyHash) -> Option<&T> {
        let place = self.index.find(hash(key), |place| self.slots.at(*place).key == key)?;
        Some(&self.slots.at(*place).life)
    }

    /// Puts a life in its new state, and gives `of` its old one, if it was open.
    pub(crate) fn put<V>(&mut self, key: KeyHash, life: T, of: impl FnOnce(&T) -> V) -> Option<V> {
        let slots = &mut self.slots;
        let found =
            self.index.entry(hash(key), |place| slots.at(*place).key == key, |place| hash(slots.at(*place).key));
        let slot = Slot { key, is_open: true, life };
        match found {
            Entry::Occupied(place) => {
                let before = self.slots.at_mut(*place.get());
                let value = of(&before.life);
                *before = slot;
                Some(value)
            }
            Entry::Vacant(place) => {
                let taken = self.free.pop();
                place.insert(taken.unwrap_or_else(|| self.slots.next()));
                match taken {
                    Some(taken) => *self.slots.at_mut(taken) = slot,
                    None => self.slots.push(slot),
                }
                None
            }
        }
    }

    /// Takes out a life that has ended, and gives `of` its last open state.
    pub(crate) fn remove<V>(&mut self, key: KeyHash, of: impl FnOnce(&T) -> V) -> Option<V> {
        let slots = &self.slots;
        let found = self.index.find_entry(hash(key), |place| slots.at(*place).key == key);
        let (place, _) = found.ok()?.remove();
        let slot = self.slots.at_mut(place);
        slot.is_open = false;
        let value = of(&slot.life);
        self.free.push(place);
        Some(value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|slot| slot.is_open).map(|slot| &slot.life)
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn freeze(&mut self) -> FrozenOpen<T> {
        FrozenOpen { slots: self.slots.freeze(), length: self.index.len() }
    }
}

impl<T: Copy> FrozenOpen<T> {
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|slot| slot.is_open).map(|slot| &slot.life)
    }

    pub(crate) const fn len(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map_whose_frozen_copies_stand_still(steps in proptest::collection::vec((0_u128..40, any::<Option<u64>>()), 1..300)) {
            let (mut open, mut model) = (Open::new(), BTreeMap::new());
            let mut frozen = Vec::new();
            for (number, (key, put)) in steps.into_iter().enumerate() {
                // Equal low halves: keys that collide in the index are told apart all the same.
                let key = key << 64;
                let before = match put {
                    Some(value) => (open.put(KeyHash(key), value, |old| *old), model.insert(key, value)),
                    None => (open.remove(KeyHash(key), |old| *old), model.remove(&key)),
                };
                prop_assert_eq!(before.0, before.1);
                prop_assert_eq!(open.get(KeyHash(key)), model.get(&key));
                prop_assert_eq!(open.len(), model.len());
                if number % 50 == 0 {
                    frozen.push((open.freeze(), sorted(model.values())));
                }
            }
            prop_assert_eq!(sorted(open.values()), sorted(model.values()));
            for (frozen, values) in frozen {
                prop_assert_eq!(frozen.len(), values.len());
                prop_assert_eq!(sorted(frozen.values()), values);
            }
        }
    }

    fn sorted<'a>(values: impl Iterator<Item = &'a u64>) -> Vec<u64> {
        let mut values: Vec<_> = values.copied().collect();
        values.sort_unstable();
        values
    }
}
