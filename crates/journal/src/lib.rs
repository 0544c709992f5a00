//! The record: an append-only journal of frames in segment files, made durable by group commit.
//!
//! A **frame** is what one sync makes durable: a header, and the records of every command that was waiting. It carries a
//! crc32c of its own bytes and a blake3 hash that covers the frame before it. **Segments** are zero-filled files of fixed
//! size, so that a sync writes data and nothing else. The journal knows nothing of money: records are bytes.
//!
//! ```text
//!  segment file   [ header │ frame │ frame │ seal │ frame │ 0 0 0 0 … ]
//!  frame          [ magic, length, first offset, count, crc32c, hash │ record │ record │ … │ note │ … ]
//!  record, note   [ length, crc32c │ body ]
//! ```
//!
//! A **note** is what another writes beside the records: it shares their sync, and is not counted among them.
//!
//! # Invariants
//! - **One frame per sync, one sync at a time**: frame N+1 exists only if N was synced. So a damaged frame with a good one
//!   after it is corruption (refuse to start), and a damaged last frame was never acknowledged (cut it).
//! - **Failure is final**: after a failed write or sync nothing is written or synced again by this process.
//! - A file is never visible under its name before its content is durable: write, sync, rename, sync the directory.
#![deny(clippy::float_arithmetic, clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]

mod batch;
mod bytes;
mod disk;
pub mod failpoint;
mod frame;
mod journal;
mod local;
mod lock;
mod reader;
mod recover;
mod segment;

pub use batch::{Batch, Cursor, RECORD_BYTES_MAX, RecordTooLong};
pub use bytes::{u16_at, u32_at, u64_at};
pub use disk::{Disk, DiskFile, read_full, write_durably};
pub use frame::{FRAME_HEADER_BYTES, Frame, FrameHeader, GENESIS, Hash, Hex, RECORD_HEADER_BYTES, Record};
pub use journal::{Config, End, Failed, Journal, SEGMENT_BYTES};
pub use local::LocalDisk;
pub use lock::{DirLock, LockError};
pub use reader::{Frames, ReadError, open_segment, read_record, record_in};
pub use recover::{Cut, OpenError, Recovered, Verified, verify};
pub use segment::{JournalId, Location, SEGMENT_HEADER_BYTES};
