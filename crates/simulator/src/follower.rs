//! Something that follows the journal's tail, as the read model and the dispatcher do: every entry once, in order.

use crate::check::{Check, Found};
use crate::disk::SimDisk;
use holdfast_engine::{Applied, Located, Projection, ProjectionFailed, Tail};
use holdfast_journal::Location;

/// A follower. What it has applied outlives the process, as a database's commit does.
#[derive(Debug)]
pub(crate) struct Follower {
    applied: Applied,
    wrong: Option<String>,
}

impl Projection for Follower {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn applied(&self) -> Applied {
        self.applied
    }

    fn apply(&mut self, records: &[Located], applied: Applied) -> Result<(), ProjectionFailed> {
        let mut next = self.applied.through + 1;
        for Located { record, .. } in records {
            if record.offset != next {
                self.wrong = Some(format!("a follower was given entry {} and not {next}", record.offset));
            }
            next = record.offset + 1;
        }
        if next != applied.through + 1 {
            self.wrong = Some(format!("a follower has entry {} and is told of {}", next - 1, applied.through));
        }
        self.applied = applied;
        Ok(())
    }
}

impl Follower {
    /// A follower that has seen nothing.
    pub(crate) const fn new() -> Self {
        Self { applied: Applied::NOTHING, wrong: None }
    }

    /// The last entry that it has applied.
    pub(crate) const fn through(&self) -> u64 {
        self.applied.through
    }

    /// Reads on up to `end`, the place and last entry up to which the journal is durable. `false` if it cannot.
    pub(crate) fn follow(&mut self, disk: &SimDisk, end: Location, last: u64) -> Result<bool, Found> {
        let mut tail = Tail::new(disk.clone(), self.applied);
        loop {
            let fed = tail.feed(end, 8, self);
            if let Some(wrong) = self.wrong.take() {
                return Err((Check::WrongEntry, wrong));
            }
            match fed {
                Ok(true) => {}
                Ok(false) if self.applied.through == last => return Ok(true),
                Ok(false) => {
                    let what = format!("a follower ends at entry {}, and {last} is durable", self.applied.through);
                    return Err((Check::WrongEntry, what));
                }
                Err(_) => return Ok(false),
            }
        }
    }
}
