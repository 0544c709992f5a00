//! From a provider's bytes to pieces: cut into events, read beside, passed through or translated.
//!
//! # Invariants
//! - Where the provider speaks the caller's dialect, the pieces are the provider's bytes.
//! - However the bytes are chunked, the events are the same; in how few pieces they are given is all that differs.
//! - What is told after the charge, usage and the end, is never in one piece with what comes before it.

use super::call::{Dialect, Pieces};
use super::error::ProviderError;
use super::reader::{Reader, Reading};
use super::reply::Piece;
use super::sse::{self, Splitter};
use super::translate::StreamTranslation;
use super::usage::Reported;
use bytes::BytesMut;

/// The longest event that is taken: a whole answer with pictures in one event.
const EVENT_MAX_BYTES: usize = 16 * 1_024 * 1_024;

/// Turns the bytes of one stream into pieces.
#[derive(Debug)]
pub(crate) struct Decoder {
    splitter: Splitter,
    reader: Reader,
    upstream: Dialect,
    translation: Option<StreamTranslation>,
    pieces: Pieces,
    /// What follows the piece that was given last and could not be a part of it.
    behind: Option<Result<Piece, ProviderError>>,
}

/// One event, or several in a row; their text is told apart.
#[derive(Debug)]
struct Events {
    bytes: BytesMut,
    usage: Reported,
    reading: Reading,
}

impl Events {
    /// Whether they may be in one piece with others.
    const fn are_plain(&self) -> bool {
        !self.reading.only_usage && !self.reading.last
    }

    fn piece(self, text: String) -> Piece {
        let Self { bytes, usage, reading: Reading { only_usage, last } } = self;
        // Translated, usage is part of what a caller of that dialect expects anyway, except in a chat.
        Piece { bytes: bytes.freeze(), text, usage, only_usage, last }
    }
}

impl Decoder {
    /// A decoder of an upstream's dialect, with what translates it if the caller's is another.
    pub(crate) fn new(upstream: Dialect, translation: Option<StreamTranslation>, pieces: Pieces) -> Self {
        let (splitter, reader) = (Splitter::new(EVENT_MAX_BYTES), Reader::new(upstream));
        Self { splitter, reader, upstream, translation, pieces, behind: None }
    }

    /// Takes more bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.splitter.push(bytes);
    }

    /// The next piece that is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, ProviderError> {
        if let Some(behind) = self.behind.take() {
            return behind.map(Some);
        }
        let mut text = String::new();
        let Some(mut events) = self.event(&mut text)? else { return Ok(None) };
        // What has no text is given alone: whoever holds back what comes before the first token counts such pieces.
        while self.pieces == Pieces::Together && events.are_plain() && !text.is_empty() {
            let before = text.len();
            match self.event(&mut text) {
                Ok(None) => break,
                Ok(Some(next)) if next.are_plain() => {
                    events.bytes.unsplit(next.bytes);
                    events.usage = next.usage;
                }
                Ok(Some(next)) => self.behind = Some(Ok(next.piece(text.split_off(before)))),
                Err(error) => {
                    text.truncate(before);
                    self.behind = Some(Err(error));
                }
            }
            if self.behind.is_some() {
                break;
            }
        }
        Ok(Some(events.piece(text)))
    }

    /// The next event that is whole; its text is written behind `text`.
    fn event(&mut self, text: &mut String) -> Result<Option<Events>, ProviderError> {
        let too_long = |sse::TooLong| ProviderError::Unreadable { reason: "an event of it is too long".to_owned() };
        while let Some(event) = self.splitter.next().map_err(too_long)? {
            let Some(data) = sse::data(&event) else {
                // A comment keeps the connection alive; it has no dialect.
                return Ok(Some(self.events(event, Reading::default())));
            };
            let before = text.len();
            let reading = self.reader.read(&data, text)?;
            let bytes = match &mut self.translation {
                None => event,
                Some(translation) => translation.event(&data)?,
            };
            // An event may have no counterpart in the caller's dialect.
            if !bytes.is_empty() || reading.last || text.len() > before {
                return Ok(Some(self.events(bytes, reading)));
            }
        }
        Ok(None)
    }

    /// The last piece, when no more bytes come and none was the last.
    pub(crate) fn finish(&mut self) -> Result<Piece, ProviderError> {
        let rest = self.splitter.rest();
        let rest_is_end = self.upstream == Dialect::ChatCompletions && sse::data(&rest).as_deref() == Some(b"[DONE]");
        if !self.reader.finished() || !(rest_is_end || rest.iter().all(u8::is_ascii_whitespace)) {
            return Err(ProviderError::BrokeOff { reason: "the stream ended before the answer did".to_owned() });
        }
        // Some servers say that the model has finished, and leave out the formal end.
        let bytes = match &mut self.translation {
            None => BytesMut::from(&b"data: [DONE]\n\n"[..]),
            Some(translation) => translation.event(b"[DONE]")?,
        };
        Ok(self.events(bytes, Reading { last: true, ..Reading::default() }).piece(String::new()))
    }

    fn events(&self, bytes: BytesMut, reading: Reading) -> Events {
        Events { bytes, usage: self.reader.usage().clone(), reading }
    }
}

/// Writes one event.
pub(crate) fn write_event(out: &mut BytesMut, name: Option<&str>, data: &str) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
