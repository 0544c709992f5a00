//! A run: keys sorted by hash in one immutable file, with a filter in front and a fence every few kilobytes.

use super::filter::{self, BLOCK_BYTES};
use super::{KeyHash, Range};
use holdfast_journal::{Disk, DiskFile, Location, failpoint, u32_at, u64_at};
use std::io;

/// The directory of the runs, below the data directory.
pub(super) const DIRECTORY: &str = "keys";
const MAGIC: u64 = u64::from_le_bytes(*b"HFkeys01");
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 24;
/// Entries between two fences: what one look-up reads.
const FENCE_EVERY: usize = 128;
const BUFFER_BYTES: usize = ENTRY_BYTES * FENCE_EVERY * 256;

/// A key and the place of its newest record.
pub(super) type KeyEntry = (KeyHash, Location);

/// An open run.
pub(crate) struct Run<F> {
    file: F,
    pub(super) range: Range,
    pub(super) tier: u8,
    count: u64,
    fences: Vec<u64>,
    filter: Filter,
    blocks: u64,
}

/// Where a run's filter is: in memory while there is room for it there, else in the file.
enum Filter {
    Memory(Vec<u8>),
    File { at: u64 },
}

pub(super) fn file_name(range: Range) -> String {
    format!("{DIRECTORY}/{:020}-{:020}.run", range.after, range.through)
}

pub(super) fn range_of(name: &str) -> Option<Range> {
    let (after, through) = name.strip_suffix(".run")?.split_once('-')?;
    Some(Range { after: after.parse().ok()?, through: through.parse().ok()? })
}

/// Writes a run of `entries`, which come in order and without repeats.
pub(super) fn write<D: Disk>(
    disk: &D,
    range: Range,
    tier: u8,
    at_most: u64,
    entries: impl Iterator<Item = io::Result<KeyEntry>>,
) -> io::Result<()> {
    let name = file_name(range);
    let temporary = format!("{name}.tmp");
    let file = disk.create(&temporary)?;
    let blocks = filter::blocks_for(at_most);
    let mut filter = vec![0; blocks as usize * BLOCK_BYTES];
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let (mut count, mut crc, mut at) = (0_u64, 0, HEADER_BYTES as u64);
    let mut flush = |buffer: &mut Vec<u8>, crc: &mut u32| -> io::Result<()> {
        file.write_at(buffer, at)?;
        at += buffer.len() as u64;
        *crc = crc32c::crc32c_append(*crc, buffer);
        buffer.clear();
        Ok(())
    };
    for entry in entries {
        let (key, location) = entry?;
        buffer.extend_from_slice(&key.0.to_be_bytes());
        buffer.extend_from_slice(&location.pack().to_be_bytes());
        let block = filter::block_of(key, blocks) as usize * BLOCK_BYTES;
        filter::insert(&mut filter[block..block + BLOCK_BYTES], key);
        count += 1;
        if buffer.len() >= BUFFER_BYTES {
            flush(&mut buffer, &mut crc)?;
        }
    }
    flush(&mut buffer, &mut crc)?;
    flush(&mut filter, &mut crc)?;
    file.write_at(&header(range, tier, count, blocks, crc), 0)?;
    file.sync()?;
    failpoint::pass("keys.before_rename");
    disk.rename(&temporary, &name)?;
    disk.sync_directory(DIRECTORY)?;
    failpoint::pass("keys.after_rename");
    Ok(())
}

fn header(range: Range, tier: u8, count: u64, blocks: u64, crc: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    for number in [MAGIC, range.after, range.through, count, blocks, u64::from(tier)] {
        header.extend(number.to_le_bytes());
    }
    header.extend(crc.to_le_bytes());
    header.resize(HEADER_BYTES - 4, 0);
    let crc = crc32c::crc32c(&header);
    header.extend(crc.to_le_bytes());
    header
}

impl<F: DiskFile> Run<F> {
    /// Opens a run and checks all of it; `None` if it is damaged. `filter_budget` is what may still be kept in memory.
    pub(super) fn open<D: Disk<File = F>>(
        disk: &D,
        range: Range,
        filter_budget: &mut usize,
    ) -> io::Result<Option<Self>> {
        let file = disk.open(&file_name(range))?;
        let mut header = [0; HEADER_BYTES];
        let read = file.read_at(&mut header, 0)?;
        let fields = [0, 8, 16, 24, 32, 40].map(|at| u64_at(&header, at).unwrap_or(0));
        let [magic, after, through, count, blocks, tier] = fields;
        let sound = read == HEADER_BYTES
            && Some(crc32c::crc32c(&header[..HEADER_BYTES - 4])) == u32_at(&header, HEADER_BYTES - 4)
            && (magic, after, through) == (MAGIC, range.after, range.through);
        if !sound {
            return Ok(None);
        }
        let Some((fences, filter, crc)) = load(&file, count, blocks, filter_budget)? else { return Ok(None) };
        let sound = Some(crc) == u32_at(&header, 48);
        let tier = u8::try_from(tier).unwrap_or(u8::MAX);
        Ok(sound.then_some(Self { file, range, tier, count, fences, filter, blocks }))
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// What its filter takes of the memory for filters.
    pub(super) const fn filter_bytes(&self) -> usize {
        match &self.filter {
            Filter::Memory(filter) => filter.len(),
            Filter::File { .. } => 0,
        }
    }

    /// The place of a key's newest record in this run.
    pub(super) fn get(&self, key: KeyHash) -> io::Result<Option<Location>> {
        if !self.may_contain(key)? {
            return Ok(None);
        }
        let high = (key.0 >> 64) as u64;
        // Equal high halves can straddle a fence, so the page before the first greater fence is not enough: begin at the
        // last fence below, and read on while pages begin with the same half.
        let mut page = self.fences.partition_point(|fence| *fence < high).saturating_sub(1);
        loop {
            let found = self.search_page(page, key)?;
            page += 1;
            if found.is_some() || self.fences.get(page).is_none_or(|fence| *fence > high) {
                return Ok(found);
            }
        }
    }

    /// A byte of what a look-up of `key` begins with, if that is in memory.
    pub(super) fn glance(&self, key: KeyHash) -> Option<u8> {
        match &self.filter {
            Filter::Memory(filter) => filter.get(filter::block_of(key, self.blocks) as usize * BLOCK_BYTES).copied(),
            Filter::File { .. } => None,
        }
    }

    fn may_contain(&self, key: KeyHash) -> io::Result<bool> {
        let at = filter::block_of(key, self.blocks) as usize * BLOCK_BYTES;
        match &self.filter {
            Filter::Memory(filter) => Ok(filter::may_contain(&filter[at..at + BLOCK_BYTES], key)),
            Filter::File { at: start } => {
                let mut block = [0; BLOCK_BYTES];
                self.file.read_at(&mut block, start + at as u64)?;
                Ok(filter::may_contain(&block, key))
            }
        }
    }

    fn search_page(&self, page: usize, key: KeyHash) -> io::Result<Option<Location>> {
        let first = (page * FENCE_EVERY) as u64;
        let entries = self.count.saturating_sub(first).min(FENCE_EVERY as u64) as usize;
        let mut bytes = [0; ENTRY_BYTES * FENCE_EVERY];
        let bytes = &mut bytes[..entries * ENTRY_BYTES];
        let read = self.file.read_at(bytes, (HEADER_BYTES + page * FENCE_EVERY * ENTRY_BYTES) as u64)?;
        if read < bytes.len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a run of the key index is cut short"));
        }
        let (rows, _) = bytes.as_chunks::<ENTRY_BYTES>();
        let found = rows.binary_search_by(|row| row[..16].cmp(&key.0.to_be_bytes()));
        Ok(found.ok().map(|index| entry_of(&rows[index]).1))
    }

    /// Every entry in order, read in large pieces.
    pub(super) fn iter(&self) -> impl Iterator<Item = io::Result<KeyEntry>> {
        let mut buffer: Vec<u8> = Vec::new();
        let mut used = 0;
        (0..self.count).map(move |index| {
            if used == buffer.len() {
                let rest = (self.count - index) as usize * ENTRY_BYTES;
                buffer.resize(rest.min(BUFFER_BYTES), 0);
                let read = self.file.read_at(&mut buffer, HEADER_BYTES as u64 + index * ENTRY_BYTES as u64)?;
                used = 0;
                if read < buffer.len() {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a run of the key index is cut short"));
                }
            }
            used += ENTRY_BYTES;
            let row = buffer[used - ENTRY_BYTES..used].first_chunk().expect("a whole row");
            Ok(entry_of(row))
        })
    }
}

fn entry_of(row: &[u8; ENTRY_BYTES]) -> KeyEntry {
    let key = u128::from_be_bytes(*row.first_chunk().expect("16 of 24 bytes"));
    let packed = u64::from_be_bytes(*row.last_chunk().expect("8 of 24 bytes"));
    (KeyHash(key), Location::unpack(packed))
}

/// Reads a run's body once: fences, filter and checksum. `None` if the file is shorter than its header says.
fn load<F: DiskFile>(
    file: &F,
    count: u64,
    blocks: u64,
    budget: &mut usize,
) -> io::Result<Option<(Vec<u64>, Filter, u32)>> {
    let body = (count as usize).checked_mul(ENTRY_BYTES);
    let filter_bytes = (blocks as usize).checked_mul(BLOCK_BYTES);
    let Some((body, filter_bytes)) = body.zip(filter_bytes) else { return Ok(None) };
    if file.length()? != (HEADER_BYTES + body + filter_bytes) as u64 {
        return Ok(None);
    }
    let mut fences = Vec::with_capacity((count as usize).div_ceil(FENCE_EVERY));
    let mut crc = 0;
    let mut buffer = vec![0; body.min(BUFFER_BYTES)];
    let mut done = 0;
    while done < body {
        let piece = (body - done).min(BUFFER_BYTES);
        file.read_at(&mut buffer[..piece], (HEADER_BYTES + done) as u64)?;
        crc = crc32c::crc32c_append(crc, &buffer[..piece]);
        let pages = buffer[..piece].chunks(ENTRY_BYTES * FENCE_EVERY);
        fences.extend(pages.map(|page| u64::from_be_bytes(*page.first_chunk().expect("a page has an entry"))));
        done += piece;
    }
    let at = (HEADER_BYTES + body) as u64;
    let mut filter = vec![0; filter_bytes];
    file.read_at(&mut filter, at)?;
    crc = crc32c::crc32c_append(crc, &filter);
    let filter = if filter_bytes <= *budget {
        *budget -= filter_bytes;
        Filter::Memory(filter)
    } else {
        Filter::File { at }
    };
    Ok(Some((fences, filter, crc)))
}
