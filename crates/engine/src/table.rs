//! Account holders in memory: a row each, found by name, cheap to freeze for a snapshot.
//!
//! Rows and names live in chunks behind reference counts. A frozen copy shares them all and costs a pointer a chunk; the
//! writer then copies a chunk when it first touches it again. So a snapshot of a million accounts holds nobody up.

use crate::lent::Lent;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;

const CHUNK: usize = 1_024;

/// A vector in chunks that can be lent: freezing it is cheap, and writing after that copies one chunk.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Lent<Vec<T>>>,
    length: usize,
}

/// A vector as it stood at one moment.
#[derive(Debug, Clone)]
pub(crate) struct FrozenChunked<T>(Vec<Arc<Vec<T>>>);

impl<T: Clone> Chunked<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), length: 0 }
    }

    /// The number that the next value will have.
    pub(crate) fn next(&self) -> u32 {
        u32::try_from(self.length).expect("four billion accounts or open holds do not fit one machine")
    }

    pub(crate) fn push(&mut self, value: T) {
        if self.length.is_multiple_of(CHUNK) {
            self.chunks.push(Lent::Own(Vec::with_capacity(CHUNK)));
        }
        let last = self.chunks.last_mut().expect("a chunk was just made");
        last.get_mut().push(value);
        self.length += 1;
    }

    /// The value with this number, which has been pushed.
    pub(crate) fn at(&self, number: u32) -> &T {
        let index = number as usize;
        &self.chunks[index / CHUNK].get()[index % CHUNK]
    }

    /// The same, to change.
    pub(crate) fn at_mut(&mut self, number: u32) -> &mut T {
        let index = number as usize;
        &mut self.chunks[index / CHUNK].get_mut()[index % CHUNK]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.get())
    }

    pub(crate) fn freeze(&mut self) -> FrozenChunked<T> {
        FrozenChunked(self.chunks.iter_mut().map(Lent::lend).collect())
    }
}

impl<T> FrozenChunked<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }
}

/// Names packed end to end, one chunk at a time.
#[derive(Debug, Clone, Default)]
struct Names {
    chunks: Vec<Arc<NameChunk>>,
    length: usize,
}

#[derive(Debug, Clone, Default)]
struct NameChunk {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Names {
    fn push(&mut self, name: &[u8]) {
        if self.length.is_multiple_of(CHUNK) {
            if let Some(full) = self.chunks.last_mut() {
                Arc::make_mut(full).bytes.shrink_to_fit();
            }
            self.chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(self.chunks.last_mut().expect("a chunk was just made"));
        chunk.bytes.extend_from_slice(name);
        chunk.ends.push(u32::try_from(chunk.bytes.len()).expect("a thousand names are far below 4 GiB"));
        self.length += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.length).map(|index| self.get(index))
    }

    fn get(&self, index: usize) -> &[u8] {
        let chunk = &self.chunks[index / CHUNK];
        let within = index % CHUNK;
        let start = within.checked_sub(1).map_or(0, |before| chunk.ends[before]);
        &chunk.bytes[start as usize..chunk.ends[within] as usize]
    }
}

/// The number of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row(u32);

impl Row {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Rows found by name.
#[derive(Debug)]
pub(crate) struct Table<T> {
    rows: Chunked<T>,
    names: Names,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// A table as it stood at one moment.
#[derive(Debug, Clone)]
pub(crate) struct FrozenTable<T> {
    rows: FrozenChunked<T>,
    names: Names,
}

impl<T: Clone> Table<T> {
    pub(crate) fn new() -> Self {
        Self {
            rows: Chunked::new(),
            names: Names::default(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<Row> {
        let hash = self.hasher.hash_one(name);
        self.index.find(hash, |row| self.names.get(*row as usize) == name).map(|row| Row(*row))
    }

    /// The row of `name`, made by `new` if there is none.
    pub(crate) fn find_or_insert(&mut self, name: &[u8], new: impl FnOnce() -> T) -> Row {
        if let Some(row) = self.find(name) {
            return row;
        }
        let row = self.rows.next();
        self.rows.push(new());
        self.names.push(name);
        let (names, hasher) = (&self.names, &self.hasher);
        let hash = hasher.hash_one(name);
        self.index.insert_unique(hash, row, |row| hasher.hash_one(names.get(*row as usize)));
        Row(row)
    }

    pub(crate) fn name(&self, row: Row) -> &[u8] {
        self.names.get(row.index())
    }

    pub(crate) fn row(&self, row: Row) -> &T {
        self.rows.at(row.0)
    }

    pub(crate) fn row_mut(&mut self, row: Row) -> &mut T {
        self.rows.at_mut(row.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.length
    }

    pub(crate) fn freeze(&mut self) -> FrozenTable<T> {
        FrozenTable { rows: self.rows.freeze(), names: self.names.clone() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.names.iter().zip(self.rows.iter())
    }
}

impl<T> FrozenTable<T> {
    pub(crate) fn name(&self, row: Row) -> &[u8] {
        self.names.get(row.index())
    }

    pub(crate) fn len(&self) -> usize {
        self.names.length
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.names.iter().zip(self.rows.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_table_does_not_see_later_changes() {
        let mut table = Table::new();
        for number in 0..3_000_u64 {
            table.find_or_insert(format!("owner-{number}").as_bytes(), || number);
        }
        let frozen = table.freeze();
        let row = table.find(b"owner-7").unwrap();
        *table.row_mut(row) = 99;
        table.find_or_insert(b"late", || 1);
        assert_eq!(frozen.len(), 3_000);
        assert!(
            frozen.iter().enumerate().all(|(index, (name, value))| {
                name == format!("owner-{index}").as_bytes() && *value == index as u64
            })
        );
        assert_eq!((*table.row(row), table.len()), (99, 3_001));
        assert_eq!(table.find(b"nobody"), None);
    }
}
