//! From a provider's bytes to pieces: cut into events, read beside, passed through or translated.
//!
//! # Invariants
//! - Where the provider speaks the caller's dialect, the pieces are the provider's bytes.
//! - However the bytes are chunked, the pieces are the same.

use super::call::Dialect;
use super::error::ProviderError;
use super::reader::{Reader, Reading};
use super::reply::Piece;
use super::sse::{self, Splitter};
use super::translate::StreamTranslation;
use bytes::{Bytes, BytesMut};

/// The longest event that is taken: a whole answer with pictures in one event.
const EVENT_MAX_BYTES: usize = 16 * 1_024 * 1_024;

/// Turns the bytes of one stream into pieces.
#[derive(Debug)]
pub(crate) struct Decoder {
    splitter: Splitter,
    reader: Reader,
    upstream: Dialect,
    translation: Option<StreamTranslation>,
}

impl Decoder {
    /// A decoder of an upstream's dialect, with what translates it if the caller's is another.
    pub(crate) fn new(upstream: Dialect, translation: Option<StreamTranslation>) -> Self {
        Self { splitter: Splitter::new(EVENT_MAX_BYTES), reader: Reader::new(upstream), upstream, translation }
    }

    /// Takes more bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.splitter.push(bytes);
    }

    /// The next piece that is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, ProviderError> {
        let too_long = |sse::TooLong| ProviderError::Unreadable { reason: "an event of it is too long".to_owned() };
        while let Some(event) = self.splitter.next().map_err(too_long)? {
            let Some(data) = sse::data(&event) else {
                // A comment keeps the connection alive; it has no dialect.
                return Ok(Some(self.piece(event, Reading::default())));
            };
            let reading = self.reader.read(&data)?;
            let bytes = match &mut self.translation {
                None => event,
                Some(translation) => translation.event(&data)?,
            };
            // An event may have no counterpart in the caller's dialect.
            if !bytes.is_empty() || reading.last || !reading.text.is_empty() {
                return Ok(Some(self.piece(bytes, reading)));
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
        let end = Bytes::from_static(b"data: [DONE]\n\n");
        let bytes = match &mut self.translation {
            None => end,
            Some(translation) => translation.event(b"[DONE]")?,
        };
        Ok(self.piece(bytes, Reading { last: true, ..Reading::default() }))
    }

    fn piece(&self, bytes: Bytes, reading: Reading) -> Piece {
        let Reading { text, only_usage, last } = reading;
        // Translated, usage is part of what a caller of that dialect expects anyway, except in a chat.
        Piece { bytes, text, usage: self.reader.usage().clone(), only_usage, last }
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
