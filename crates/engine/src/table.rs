//! Account holders in memory: a row each, found by name, cheap to freeze for a snapshot.
//!
//! Rows and names live in chunks behind reference counts. A frozen copy shares them all and costs a pointer a chunk; the
//! writer then copies a chunk when it first touches it again. So a snapshot of a million accounts holds nobody up.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;

const CHUNK: usize = 1_024;

/// A vector in shared chunks: cloning it is cheap, and writing to a clone copies one chunk.
#[derive(Debug, Clone)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Arc<Vec<T>>>,
    length: usize,
}

impl<T: Clone> Chunked<T> {
    const fn new() -> Self {
        Self { chunks: Vec::new(), length: 0 }
    }

    fn push(&mut self, value: T) {
        if self.length.is_multiple_of(CHUNK) {
            self.chunks.push(Arc::new(Vec::with_capacity(CHUNK)));
        }
        let last = self.chunks.last_mut().expect("a chunk was just made");
        Arc::make_mut(last).push(value);
        self.length += 1;
    }

    fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Arc::make_mut(self.chunks.get_mut(index / CHUNK)?).get_mut(index % CHUNK)
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
    rows: Chunked<T>,
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
        let row = u32::try_from(self.rows.length).expect("four billion accounts do not fit one machine");
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
        self.rows.get(row.index()).expect("rows are never removed")
    }

    pub(crate) fn row_mut(&mut self, row: Row) -> &mut T {
        self.rows.get_mut(row.index()).expect("rows are never removed")
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.length
    }

    pub(crate) fn freeze(&self) -> FrozenTable<T> {
        FrozenTable { rows: self.rows.clone(), names: self.names.clone() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        (0..self.rows.length).map(|index| (self.names.get(index), self.rows.get(index).expect("within the length")))
    }
}

impl<T: Clone> FrozenTable<T> {
    pub(crate) fn name(&self, row: Row) -> &[u8] {
        self.names.get(row.index())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.length
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        (0..self.rows.length).map(|index| (self.names.get(index), self.rows.get(index).expect("within the length")))
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
