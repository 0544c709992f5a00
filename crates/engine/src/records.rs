//! Reading records back by their place: from the batch being filled, from batches not yet durable, else from the disk.

use crate::error::Refusal;
use crate::record::Record;
use holdfast_journal::{Batch, Disk, Location, open_segment, read_record, record_in};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Segment files kept open for look-ups.
const OPEN_FILES_MAX: usize = 64;

/// Frames whose memory is kept for others.
const SPARE_FRAMES_MAX: usize = 2;

/// A frame that has been decided and is not known to be durable yet.
struct Pending {
    start: Location,
    end: Location,
    frame: Vec<u8>,
}

/// Every record there is, wherever it is now.
pub(crate) struct Records<D: Disk> {
    disk: D,
    pending: VecDeque<Pending>,
    /// The memory of frames that have become durable, for those to come.
    memory: Vec<Vec<u8>>,
    files: RefCell<BTreeMap<u32, D::File>>,
}

impl<D: Disk> Records<D> {
    pub(crate) const fn new(disk: D) -> Self {
        Self { disk, pending: VecDeque::new(), memory: Vec::new(), files: RefCell::new(BTreeMap::new()) }
    }

    /// Keeps a closed batch readable until it is durable.
    pub(crate) fn keep(&mut self, batch: &Batch) {
        if batch.count() > 0 {
            let (start, end) = (batch.start(), batch.end().location);
            let mut frame = self.memory.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(batch.frame());
            self.pending.push_back(Pending { start, end, frame });
        }
    }

    /// Lets go of what is on the disk now.
    pub(crate) fn durable(&mut self, end: Location) {
        while let Some(Pending { frame, .. }) = self.pending.pop_front_if(|pending| pending.end <= end) {
            if self.memory.len() < SPARE_FRAMES_MAX {
                self.memory.push(frame);
            }
        }
    }

    /// The record at `location`.
    pub(crate) fn read(&self, location: Location, batch: &Batch) -> Result<Record, Refusal> {
        let unreadable = || Refusal::Unreadable(format!("no entry at {location}"));
        let in_batch = (location >= batch.start()).then(|| record_in(batch.frame(), batch.start(), location)).flatten();
        let in_memory = in_batch.or_else(|| {
            let pending = self.pending.iter().find(|pending| (pending.start..pending.end).contains(&location))?;
            record_in(&pending.frame, pending.start, location)
        });
        match in_memory {
            Some(body) => Record::decode(body).ok_or_else(unreadable),
            None => Record::decode(&self.read_disk(location)?).ok_or_else(unreadable),
        }
    }

    fn read_disk(&self, location: Location) -> Result<Vec<u8>, Refusal> {
        let unreadable = |error: &dyn std::fmt::Display| Refusal::Unreadable(error.to_string());
        let mut files = self.files.borrow_mut();
        if !files.contains_key(&location.segment) {
            if files.len() >= OPEN_FILES_MAX {
                files.pop_first();
            }
            let opened: io::Result<D::File> = open_segment(&self.disk, location.segment);
            files.insert(location.segment, opened.map_err(|error| unreadable(&error))?);
        }
        let file = files.get(&location.segment).ok_or(Refusal::UnknownCharge)?;
        read_record(file, location).map_err(|error| unreadable(&error))
    }
}
