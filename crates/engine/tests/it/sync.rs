//! What the model of `turns.rs` waits with: a scheduler's locks, which try another order of the threads each time, and never
//! wake anybody because time has passed. So whoever is not woken sleeps for ever, and the scheduler says so.

use shuttle::sync as scheduled;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::LockResult;
use std::time::Duration;

pub(crate) use std::sync::PoisonError;

/// A moment in a world in which no time passes.
#[derive(Clone, Copy)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) const fn now() -> Self {
        Self
    }

    pub(crate) const fn elapsed(self) -> Duration {
        Duration::ZERO
    }
}

/// What is odd about the condition variables, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    Nothing,
    /// Now and then one wakes for nothing, as real ones may.
    WakesForNothing,
    /// One lets go of the lock, and only then begins to listen: a bug.
    ListensTooLate,
    /// A call in three wakes nobody: a bug.
    LosesCalls,
}

thread_local! {
    // The scheduler runs all threads of a model on the one that began it.
    static ODD: Cell<Odd> = const { Cell::new(Odd::Nothing) };
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// Has every condition variable of this thread's models behave so.
pub(crate) fn plant(odd: Odd) {
    ODD.set(odd);
}

/// Whether the plant is this one, and its turn has come: every third time.
fn is_due(odd: Odd) -> bool {
    COUNT.set(COUNT.get().wrapping_add(1));
    ODD.get() == odd && COUNT.get().is_multiple_of(3)
}

pub(crate) struct Mutex<T>(scheduled::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    held: scheduled::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(scheduled::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard { mutex: self, held: self.0.lock().unwrap() })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

pub(crate) struct Condvar(scheduled::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(scheduled::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        if is_due(Odd::WakesForNothing) {
            return Ok(guard);
        }
        if ODD.get() == Odd::ListensTooLate {
            let mutex = guard.mutex;
            drop(guard);
            guard = mutex.lock()?;
        }
        let MutexGuard { mutex, held } = guard;
        Ok(MutexGuard { mutex, held: self.0.wait(held).unwrap() })
    }

    /// Waits for a call: no time passes here.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        assert!(!patience.is_zero(), "a wait without patience is a spin");
        let Ok(guard) = self.wait(guard) else { unreachable!("a model ends where one of its threads panics") };
        Ok((guard, ()))
    }

    pub(crate) fn notify_one(&self) {
        if !is_due(Odd::LosesCalls) {
            self.0.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
