//! Notes beside the entries: whoever waits for either is told, whatever comes at the same time, and what was told is there after a
//! restart.

use crate::world::{World, mint, open};
use holdfast_engine::{Margin, Noted, Notes};
use holdfast_journal::{Batch, Frames, Location};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Notes that are numbers, and who waits for each.
#[derive(Default)]
struct Numbers {
    open: Mutex<Open>,
    last: AtomicUsize,
    frames: AtomicUsize,
    failed: Mutex<Option<String>>,
}

#[derive(Default)]
struct Open {
    notes: Vec<usize>,
    waiting: Vec<Sender<()>>,
}

impl Numbers {
    /// Writes the next number, and waits until it is durable. Only the first who waits rings: the frame is for all of them.
    fn note(&self, margin: &Margin) -> Result<usize, String> {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let (teller, told) = channel();
        let is_first = {
            let mut open = self.open.lock().unwrap();
            open.notes.push(number);
            open.waiting.push(teller);
            open.waiting.len() == 1
        };
        if is_first && !margin.write_alone() && !margin.ring() {
            return Err("no frame will come".to_owned());
        }
        told.recv().map(|()| number).map_err(|gone| gone.to_string())
    }

    /// Writes the next number for nobody.
    fn leave(&self) -> usize {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        self.open.lock().unwrap().notes.push(number);
        number
    }
}

impl Notes for Numbers {
    fn has_any(&self) -> bool {
        !self.open.lock().unwrap().notes.is_empty()
    }

    fn is_waited_for(&self) -> bool {
        !self.open.lock().unwrap().waiting.is_empty()
    }

    fn write(self: Arc<Self>, frame: &mut Batch) -> Option<Noted> {
        let Open { notes, waiting } = std::mem::take(&mut *self.open.lock().unwrap());
        if notes.is_empty() {
            return None;
        }
        self.frames.fetch_add(1, Ordering::SeqCst);
        for note in notes {
            frame.push_note(&(note as u64).to_le_bytes()).unwrap();
        }
        let tell = move |_| waiting.into_iter().for_each(|told| told.send(()).unwrap());
        Some(Noted { waiting: 0, tell: Box::new(tell) })
    }

    fn fail(&self, why: &str) {
        *self.failed.lock().unwrap() = Some(why.to_owned());
        self.open.lock().unwrap().waiting.clear();
    }
}

fn join(world: &World) -> (Margin, Arc<Numbers>) {
    let (margin, numbers) = (world.engine.margin(), Arc::new(Numbers::default()));
    margin.join(Arc::clone(&numbers) as Arc<dyn Notes>);
    (margin, numbers)
}

/// The numbers that are in the journal, in order of size.
fn noted(world: &World) -> Vec<u64> {
    let (_, end) = world.engine.margin().journal();
    let mut frames = Frames::starting(world.disk.clone(), Location::START);
    let mut noted = Vec::new();
    while let Some(frame) = frames.next(end.location).unwrap() {
        noted.extend(frame.notes().map(|note| u64::from_le_bytes(note.unwrap().try_into().unwrap())));
    }
    noted.sort_unstable();
    noted
}

#[test]
fn all_who_wait_for_notes_or_entries_are_told_and_all_of_it_is_there_after_a_restart() {
    const EACH: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (margin, numbers) = join(&world);
    thread::scope(|scope| {
        for number in 0..4 {
            let (world, margin, numbers) = (&world, &margin, &numbers);
            scope.spawn(move || (0..EACH).for_each(|_| assert!(numbers.note(margin).is_ok())));
            scope.spawn(move || {
                for count in 0..EACH {
                    let _credited = world.submit(mint(&format!("{number}-{count}"), "alice", "1")).unwrap();
                }
            });
        }
    });
    let frames = numbers.frames.load(Ordering::SeqCst);
    assert!((1..=4 * EACH).contains(&frames), "{frames} frames for {} notes", 4 * EACH);
    margin.leave();
    assert_eq!(Arc::strong_count(&numbers), 1, "who has left is let go");
    assert!(noted(&world).into_iter().eq(1..=4 * EACH as u64));
    world.engine.stop().unwrap();
    let again = open(directory.path());
    assert_eq!(again.balance("alice").0, (4 * EACH).to_string());
    assert!(noted(&again).into_iter().eq(1..=4 * EACH as u64));
}

#[test]
fn a_ring_that_comes_with_a_request_is_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (margin, numbers) = join(&world);
    for count in 0..500 {
        // Nothing comes after these two that could wake anybody for the other.
        thread::scope(|scope| {
            scope.spawn(|| numbers.note(&margin).unwrap());
            scope.spawn(|| world.submit(mint(&format!("with-{count}"), "alice", "1")).unwrap());
        });
    }
    assert_eq!(world.balance("alice").0, "500");
    world.engine.stop().unwrap();
}

#[test]
fn what_nobody_waits_for_is_written_too() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (_margin, numbers) = join(&world);
    let (left, since) = (numbers.leave(), Instant::now());
    while noted(&world) != [left as u64] {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody writes it");
        thread::sleep(Duration::from_millis(5));
    }
    // The last of them goes with the engine.
    let last = numbers.leave();
    world.engine.stop().unwrap();
    assert_eq!(noted(&open(directory.path())), [left as u64, last as u64]);
}

#[test]
fn an_engine_that_has_stopped_says_that_no_frame_will_come() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (margin, numbers) = join(&world);
    let _number = numbers.note(&margin).unwrap();
    world.engine.stop().unwrap();
    assert!(!margin.ring());
}
