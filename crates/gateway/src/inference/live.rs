//! An answer while it comes: written by the task that works on it, read by everybody who asked for it.
//!
//! # Invariants
//! - Every reader sees every part, in order, whenever it begins to read.
//! - Nobody who reads slowly, or goes away, holds up the writer.

use crate::http::ApiError;
use bytes::{Bytes, BytesMut};
use holdfast_adapters::providers::ProviderError;
use holdfast_domain::{ChargeId, CreditUnit, Usage};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How an answer begins.
#[derive(Debug, Clone)]
pub(crate) enum Head {
    /// With why there is none.
    Refused(Arc<ApiError>),
    /// With all of it.
    Whole {
        /// The provider's status, 2xx.
        status: u16,
        body: Bytes,
    },
    /// With its first parts.
    Stream,
}

/// One part of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Whole events in the caller's dialect.
    pub(crate) bytes: Bytes,
    /// The text in it.
    pub(crate) text: String,
}

impl Part {
    /// An event without text of the answer.
    pub(crate) fn event(bytes: Bytes) -> Self {
        Self { bytes, text: String::new() }
    }
}

/// What an answer cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Money {
    pub(crate) cost: CreditUnit,
    /// What the account can spend after it.
    pub(crate) balance: CreditUnit,
    /// Whether it took the balance below what an operator calls low.
    pub(crate) credits_low: bool,
    pub(crate) usage: Usage,
}

#[derive(Debug)]
struct State {
    /// What it is charged as: that of the attempt which is being made.
    charge: ChargeId,
    /// Whether money was set aside for it.
    held: bool,
    head: Option<Head>,
    parts: Vec<Part>,
    bytes: usize,
    money: Option<Money>,
    /// Why it broke off, if it did.
    broke: Option<Arc<ProviderError>>,
    ended: bool,
    readers: usize,
}

impl State {
    fn push(&mut self, part: Part) {
        self.head.get_or_insert(Head::Stream);
        self.bytes += part.bytes.len() + part.text.len();
        self.parts.push(part);
    }

    /// Keeps the parts in memory of their own: a part that was cut from what a provider sent keeps all of that, which is several
    /// times as much.
    fn compact(&mut self) {
        let mut all = BytesMut::with_capacity(self.parts.iter().map(|part| part.bytes.len()).sum());
        self.parts.iter().for_each(|part| all.extend_from_slice(&part.bytes));
        let mut all = all.freeze();
        self.parts.iter_mut().for_each(|part| part.bytes = all.split_to(part.bytes.len()));
        self.parts.shrink_to_fit();
    }

    /// The part with this number, or that there is none; nothing if it may still come.
    fn part(&self, at: usize) -> Option<Option<Part>> {
        match self.parts.get(at) {
            Some(part) => Some(Some(part.clone())),
            None => self.ended.then_some(None),
        }
    }
}

/// An answer while it comes.
#[derive(Debug)]
pub(crate) struct Live {
    state: Mutex<State>,
    changed: Notify,
}

impl Live {
    pub(crate) fn new(charge: ChargeId) -> Arc<Self> {
        let state = State {
            charge,
            held: false,
            head: None,
            parts: Vec::new(),
            bytes: 0,
            money: None,
            broke: None,
            ended: false,
            readers: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Money is set aside for it, to be charged as this.
    pub(crate) fn held_as(&self, charge: ChargeId) {
        let mut state = self.state();
        (state.charge, state.held) = (charge, true);
    }

    /// There is no answer.
    pub(crate) fn refuse(&self, error: ApiError) {
        self.change(|state| {
            state.head = Some(Head::Refused(Arc::new(error)));
            state.ended = true;
        });
    }

    /// This is the answer.
    pub(crate) fn whole(&self, status: u16, body: Bytes, money: Option<Money>) {
        self.change(|state| {
            state.bytes = body.len();
            (state.head, state.money, state.ended) = (Some(Head::Whole { status, body }), money, true);
        });
    }

    /// The next part of the answer.
    pub(crate) fn push(&self, part: Part) {
        self.change(|state| state.push(part));
    }

    /// These are the last parts, and nothing more comes.
    pub(crate) fn end(
        &self,
        parts: impl IntoIterator<Item = Part>,
        money: Option<Money>,
        broke: Option<ProviderError>,
    ) {
        self.change(|state| {
            state.head.get_or_insert(Head::Stream);
            parts.into_iter().for_each(|part| state.push(part));
            state.compact();
            (state.money, state.broke, state.ended) = (money, broke.map(Arc::new), true);
        });
    }

    /// Whether nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Whether there is no answer.
    pub(crate) fn was_refused(&self) -> bool {
        matches!(self.state().head, Some(Head::Refused(_)))
    }

    /// Whether it came to nothing before anything was done for it.
    pub(crate) fn never_began(&self) -> bool {
        let state = self.state();
        matches!(state.head, Some(Head::Refused(_))) && !state.held
    }

    /// How much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// Whether nobody reads it.
    pub(crate) fn is_deserted(&self) -> bool {
        self.state().readers == 0
    }

    /// Waits until nobody reads it.
    pub(crate) async fn deserted(&self) {
        loop {
            // Before looking, so that a change in between is noticed.
            let changed = self.changed.notified();
            if self.is_deserted() {
                return;
            }
            changed.await;
        }
    }

    /// A reader from the beginning.
    pub(crate) fn read(self: &Arc<Self>) -> Reader {
        self.state().readers += 1;
        Reader { live: Arc::clone(self), at: 0 }
    }
}

/// Reads an answer from its beginning.
#[derive(Debug)]
pub(crate) struct Reader {
    live: Arc<Live>,
    at: usize,
}

impl Reader {
    async fn wait<T>(&self, look: impl Fn(&State) -> Option<T>) -> T {
        loop {
            // Before looking, so that a change in between is noticed.
            let changed = self.live.changed.notified();
            if let Some(found) = look(&self.live.state()) {
                return found;
            }
            changed.await;
        }
    }

    /// How the answer begins.
    pub(crate) async fn head(&self) -> Head {
        self.wait(|state| state.head.clone()).await
    }

    /// The next part; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Part> {
        let part = self.wait(|state| state.part(self.at)).await;
        self.at += usize::from(part.is_some());
        part
    }

    /// The same without waiting; nothing if it may still come.
    pub(crate) fn next_now(&mut self) -> Option<Option<Part>> {
        let part = self.live.state().part(self.at)?;
        self.at += usize::from(part.is_some());
        Some(part)
    }

    /// What it is charged as, once it has begun.
    pub(crate) fn charge(&self) -> ChargeId {
        self.live.state().charge
    }

    /// Why it broke off, if it has ended so.
    pub(crate) fn broke(&self) -> Option<Arc<ProviderError>> {
        self.live.state().broke.clone()
    }

    /// What it cost, once it has ended.
    pub(crate) fn money(&self) -> Option<Money> {
        self.live.state().money
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.live.change(|state| state.readers = state.readers.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge() -> ChargeId {
        "inf_1".parse().unwrap()
    }

    fn part(text: &str) -> Part {
        Part { bytes: Bytes::copy_from_slice(text.as_bytes()), text: text.to_owned() }
    }

    async fn all(mut reader: Reader) -> String {
        let mut text = String::new();
        while let Some(part) = reader.next().await {
            text.push_str(&part.text);
        }
        text
    }

    #[test]
    fn what_is_kept_of_a_stream_does_not_keep_what_it_was_cut_from() {
        let sent = Bytes::from(vec![b'x'; 1 << 16]);
        let live = Live::new("inf_1".parse().unwrap());
        live.push(Part { bytes: sent.slice(..3), text: String::new() });
        live.push(Part { bytes: sent.slice(8..10), text: String::new() });
        assert!(!sent.is_unique());
        live.end([Part { bytes: sent.slice(..1), text: String::new() }], None, None);
        assert!(sent.is_unique());
        let parts: Vec<_> = live.state().parts.iter().map(|part| part.bytes.clone()).collect();
        assert_eq!(parts, ["xxx", "xx", "x"].map(Bytes::from));
    }

    #[tokio::test]
    async fn early_and_late_readers_see_the_same() {
        let live = Live::new(charge());
        let early = tokio::spawn(all(live.read()));
        for text in ["a", "b", "c"] {
            live.push(part(text));
            tokio::task::yield_now().await;
        }
        let middle = tokio::spawn(all(live.read()));
        live.push(part("d"));
        live.end([part("e"), part("f")], None, None);
        assert_eq!(early.await.unwrap(), "abcdef");
        assert_eq!(middle.await.unwrap(), "abcdef");
        assert_eq!(all(live.read()).await, "abcdef");
    }

    #[tokio::test]
    async fn it_is_deserted_when_the_last_reader_has_gone() {
        let live = Live::new(charge());
        let (one, two) = (live.read(), live.read());
        let waiting = tokio::spawn({
            let live = Arc::clone(&live);
            async move { live.deserted().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        waiting.await.unwrap();
    }
}
