//! Notes of steps, one behind the other in one piece of memory, which is kept: thousands of small pieces that come and go every second
//! cost more than the steps, and what the allocator gives back of them to the system is cleared again when it is next used.

use super::record::Step;

/// The most that is kept when it is not used: more than a busy queue has from one filing to the next.
const KEPT_BYTES: usize = 4 * 1_024 * 1_024;
/// As many notes have about that.
const KEPT_NOTES: usize = 32 * 1_024;

/// Notes, in order.
#[derive(Debug, Default)]
pub(super) struct Notes {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Notes {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a step as the note with this number.
    pub(super) fn push(&mut self, step: &Step, number: u64) {
        step.note(number, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Those after the first `count`.
    pub(super) fn after(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let ends = self.ends.get(count..).unwrap_or_default();
        ends.iter().scan(self.end_of(count), |from, end| self.bytes.get(std::mem::replace(from, *end)..*end))
    }

    /// Where the first `count` of them end.
    fn end_of(&self, count: usize) -> usize {
        count.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
    }

    /// Takes the first `count` of them out, in place of what `taken` had. Only those that stay are copied.
    pub(super) fn take(&mut self, count: usize, taken: &mut Self) {
        taken.bytes.clear();
        taken.bytes.shrink_to(KEPT_BYTES);
        taken.ends.clear();
        taken.ends.shrink_to(KEPT_NOTES);
        std::mem::swap(self, taken);
        for note in taken.after(count) {
            self.bytes.extend_from_slice(note);
            self.ends.push(self.bytes.len());
        }
        taken.bytes.truncate(taken.end_of(count));
        taken.ends.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_domain::Timestamp;

    fn step(number: u64) -> Step {
        let id = "i".repeat(1 + number as usize % 40).parse().unwrap();
        Step::Start { id, at: Timestamp::from_millis(number) }
    }

    fn numbers(notes: &Notes, after: usize) -> Vec<u64> {
        let read = |note: &[u8]| {
            let (number, read) = Step::of_note(note).unwrap();
            assert_eq!(read, Some(step(number)));
            number
        };
        notes.after(after).map(read).collect()
    }

    #[test]
    fn what_is_taken_out_is_the_first_and_what_stays_is_the_rest() {
        let (mut notes, mut taken) = (Notes::default(), Notes::default());
        let mut next = 0;
        let mut first = 0;
        for (more, out) in [(5, 0), (0, 5), (7, 3), (4, 7), (2, 1), (0, 2), (100, 99), (1, 2)] {
            for _ in 0..more {
                notes.push(&step(next), next);
                next += 1;
            }
            assert_eq!(numbers(&notes, 0), (first..next).collect::<Vec<_>>());
            notes.take(out, &mut taken);
            let end = first + out as u64;
            assert_eq!(numbers(&taken, 0), (first..end).collect::<Vec<_>>());
            assert_eq!((taken.len(), taken.is_empty()), (out, out == 0));
            first = end;
            assert_eq!(numbers(&notes, 0), (first..next).collect::<Vec<_>>());
        }
        assert!(notes.is_empty());
        (0..4).for_each(|number| notes.push(&step(number), number));
        assert_eq!(numbers(&notes, 3), [3]);
        assert!(numbers(&notes, 4).is_empty());
    }
}
