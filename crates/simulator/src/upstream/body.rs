//! The body of an answer as it goes out: event by event, at its pace, and cut where the script says.
//!
//! # Invariants
//! - However a call ends, the register learns it: when the last byte is handed over, when the script breaks it off, or when
//!   the body is dropped before, which only a client that hangs up does.

use super::State;
use super::calls::Progress;
use super::wire::{Carries, Event};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Notes how a call ends.
pub(super) struct Guard {
    pub(super) state: Arc<State>,
    pub(super) number: u64,
    ended: bool,
}

impl Guard {
    pub(super) const fn new(state: Arc<State>, number: u64) -> Self {
        Self { state, number, ended: false }
    }

    fn end(&mut self, progress: Progress) {
        self.ended = true;
        self.state.register.note(self.number, |call| call.progress = progress);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Progress::HungUp);
        }
    }
}

/// What happens where a body is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Break,
    Hang,
}

/// Ready when the gate opens.
type Opened = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What goes out, and how.
pub(super) struct Out {
    pub(super) events: Arc<[Event]>,
    /// Before each event.
    pub(super) delay: Duration,
    /// After so many pieces.
    pub(super) cut: Option<(usize, Cut)>,
    /// What is waited for after so many pieces.
    pub(super) gate: Option<(usize, Opened)>,
    /// Whether the usage in it is the truth.
    pub(super) usage_is_true: bool,
    /// A stream says nothing of its length.
    pub(super) length: Option<u64>,
}

impl Out {
    /// One event with a known length: what is not a stream.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::known(Arc::new([Event { bytes, carries: Carries::Usage }]))
    }

    pub(super) fn known(events: Arc<[Event]>) -> Self {
        let length = events.iter().map(|event| event.bytes.len() as u64).sum();
        Self { length: Some(length), ..Self::stream(events) }
    }

    pub(super) const fn stream(events: Arc<[Event]>) -> Self {
        Self { events, delay: Duration::ZERO, cut: None, gate: None, usage_is_true: true, length: None }
    }

    /// The same bytes, a few at a time.
    pub(super) fn slowly(mut self, bytes: usize, delay: Duration) -> Self {
        let fragments = self.events.iter().flat_map(|event| {
            let count = event.bytes.len().div_ceil(bytes.max(1));
            event.bytes.chunks(bytes.max(1)).enumerate().map(move |(index, fragment)| Event {
                bytes: event.bytes.slice_ref(fragment),
                carries: if index + 1 == count { event.carries } else { Carries::Nothing },
            })
        });
        self.events = fragments.collect();
        self.delay = delay;
        self
    }
}

/// See the module.
pub(super) struct ReplyBody {
    out: Out,
    next: usize,
    pieces: usize,
    timer: Option<Pin<Box<Sleep>>>,
    has_paused: bool,
    /// None for what is no call of a model.
    guard: Option<Guard>,
}

impl ReplyBody {
    pub(super) const fn new(out: Out, guard: Option<Guard>) -> Self {
        Self { out, next: 0, pieces: 0, timer: None, has_paused: false, guard }
    }

    fn is_cut(&self) -> Option<Cut> {
        self.out.cut.filter(|(after, _)| self.pieces >= *after).map(|(_, cut)| cut)
    }

    /// Lets what was sent leave before more comes, as a model does: else hyper would join all of it in one write.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.out.delay.is_zero() {
            let delay = self.out.delay;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(delay)));
            ready!(timer.as_mut().poll(context));
            self.timer = None;
        } else if self.out.length.is_none() && self.next > 0 && !self.has_paused {
            self.has_paused = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_paused = false;
        Poll::Ready(())
    }

    fn note_sent(&mut self, carries: Carries) {
        if carries == Carries::Piece {
            self.pieces += 1;
        }
        let is_true_usage = carries == Carries::Usage && self.out.usage_is_true;
        let Some(guard) = &mut self.guard else { return };
        if carries != Carries::Nothing {
            let pieces = self.pieces;
            guard.state.register.note(guard.number, |call| {
                call.chunks_sent = pieces;
                call.usage_sent |= is_true_usage;
            });
        }
        if self.next == self.out.events.len() && self.out.cut.is_none() {
            guard.end(Progress::Finished);
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if let Some((_, opened)) = this.out.gate.as_mut().filter(|(after, _)| this.pieces >= *after) {
            ready!(opened.as_mut().poll(context));
            this.out.gate = None;
        }
        ready!(this.poll_pause(context));
        // A cut that never came because there were too few pieces comes at the end.
        let is_over = this.next == this.out.events.len();
        match this.is_cut().or_else(|| this.out.cut.filter(|_| is_over).map(|(_, cut)| cut)) {
            // Nothing wakes this: the client's end drops it.
            Some(Cut::Hang) => return Poll::Pending,
            Some(Cut::Break) => {
                if let Some(guard) = &mut this.guard {
                    guard.end(Progress::BrokenOff);
                }
                return Poll::Ready(Some(Err(io::Error::other("broken off as the script says"))));
            }
            None => {}
        }
        let Some(event) = this.out.events.get(this.next) else { return Poll::Ready(None) };
        let (bytes, carries) = (event.bytes.clone(), event.carries);
        this.next += 1;
        this.note_sent(carries);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.next == self.out.events.len() && self.out.cut.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.out.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
