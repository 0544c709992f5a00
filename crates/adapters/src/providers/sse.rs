//! Server-sent events: a stream of bytes cut into whole events, with the bytes kept as they came.
//!
//! # Invariants
//! - However the bytes are chunked, the events are the same, and together they are the bytes that came.
//! - What is held back is bounded: an event longer than the limit is refused.

use bytes::BytesMut;
use memchr::memchr2;
use std::borrow::Cow;

/// What is made room for: many events, and less than a page.
const HELD_BYTES: usize = 4_000;

/// Cuts bytes into events. An event ends with an empty line; lines end with LF, CRLF or CR.
#[derive(Debug)]
pub(crate) struct Splitter {
    held: BytesMut,
    /// Up to here no event ends.
    searched: usize,
    longest: usize,
}

/// An event that is longer than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Splitter {
    pub(crate) fn new(longest: usize) -> Self {
        Self { held: BytesMut::with_capacity(HELD_BYTES), searched: 0, longest }
    }

    /// Takes more bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The bytes of the next whole event, its empty line included.
    pub(crate) fn next(&mut self) -> Result<Option<BytesMut>, TooLong> {
        let end = self.end_of_event();
        match end {
            Some(end) => {
                self.searched = 0;
                Ok(Some(self.held.split_to(end)))
            }
            None if self.held.len() > self.longest => Err(TooLong),
            None => Ok(None),
        }
    }

    /// What is left when no more bytes come: an event that was never ended, or nothing.
    pub(crate) fn rest(&mut self) -> BytesMut {
        self.searched = 0;
        self.held.split()
    }

    /// Where the first event ends, if it is known to: after two line ends in a row.
    fn end_of_event(&mut self) -> Option<usize> {
        let bytes = &self.held;
        let mut at = self.searched;
        while let Some(found) = memchr2(b'\n', b'\r', bytes.get(at..)?) {
            let line_end = at + found;
            let Some(next) = after_line_end(bytes, line_end) else {
                // A CR at the very end may be half of a CRLF: decide when more is here.
                self.searched = line_end;
                return None;
            };
            match bytes.get(next) {
                Some(b'\n' | b'\r') => match after_line_end(bytes, next) {
                    Some(end) => return Some(end),
                    None => {
                        self.searched = line_end;
                        return None;
                    }
                },
                Some(_) => at = next,
                None => {
                    self.searched = line_end;
                    return None;
                }
            }
        }
        self.searched = bytes.len();
        None
    }
}

/// Where the line end at `at` ends itself; unknown if it is a CR and nothing is behind it.
fn after_line_end(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Some(at + 2),
        (Some(b'\r'), None) => None,
        _ => Some(at + 1),
    }
}

/// The data of an event: its `data` lines, joined. An event of comments only has none.
pub(crate) fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut rest = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    let mut data: Option<Cow<'_, [u8]>> = None;
    while !rest.is_empty() {
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[],
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            Some(_) | None => continue,
        };
        match &mut data {
            // Nearly every event has one line of data, which need not be copied.
            None => data = Some(Cow::Borrowed(value)),
            Some(data) => {
                data.to_mut().push(b'\n');
                data.to_mut().extend_from_slice(value);
            }
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::StreamExt;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> (Vec<BytesMut>, BytesMut) {
        let mut splitter = Splitter::new(1_000_000);
        let mut events = Vec::new();
        for chunk in chunks {
            splitter.push(chunk);
            while let Some(event) = splitter.next().unwrap() {
                events.push(event);
            }
        }
        (events, splitter.rest())
    }

    #[test]
    fn an_event_ends_with_an_empty_line_of_any_kind() {
        let (events, rest) =
            split(&[b"data: a\n\nevent: x\r\ndata: b\r\n\r\ndata: c\r\rdata: d\r\n\n: note\n\ndata: e"]);
        let data: Vec<_> = events.iter().map(|event| data(event)).collect();
        let some = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        assert_eq!(data, [some("a"), some("b"), some("c"), some("d"), None]);
        assert_eq!(rest, &b"data: e"[..]);
    }

    #[test]
    fn data_lines_are_joined_and_other_fields_passed_over() {
        assert_eq!(data(b"id: 1\ndata: a\ndatax: no\ndata:b\ndata\n\n"), Some(Cow::Borrowed(&b"a\nb\n"[..])));
        assert_eq!(data(b"\xef\xbb\xbfdata: a\n\n"), Some(Cow::Borrowed(&b"a"[..])));
    }

    #[test]
    fn an_event_without_an_end_is_refused_when_it_is_too_long() {
        let mut splitter = Splitter::new(8);
        splitter.push(b"data: 12345678");
        assert_eq!(splitter.next(), Err(TooLong));
    }

    /// Text of the characters that matter.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let pieces = ["data: ", "data:", "\n", "\r\n", "\r", "\n\n", "a", "é", ": ", "event: x", "{}"];
        proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..40)
            .prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing_and_no_byte_is_lost(stream in streams(), cuts in proptest::collection::vec(0..100_usize, 0..10)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).chain([0, stream.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            let (events, rest) = split(&chunks);
            prop_assert_eq!(split(&bytes), (events.clone(), rest.clone()));
            let mut all: Vec<u8> = events.concat();
            all.extend_from_slice(&rest);
            prop_assert_eq!(all, stream);
        }

        #[test]
        fn another_parser_finds_the_same_data(stream in streams()) {
            // The end of a stream ends no event, and a CR at its end is still undecided: settle both alike.
            let stream = [&stream[..], b"x\n\n"].concat();
            let (events, _) = split(&[&stream]);
            let ours: Vec<Vec<u8>> = events.iter().filter_map(|event| Some(data(event)?.into_owned())).collect();
            let body = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(stream))]);
            let theirs = sse_stream::SseStream::from_bytes_stream(body).map(|event| event.unwrap().data);
            let theirs: Vec<Vec<u8>> = tokio::runtime::Builder::new_current_thread().build().unwrap()
                .block_on(theirs.collect::<Vec<_>>()).into_iter().flatten().map(String::into_bytes).collect();
            prop_assert_eq!(ours, theirs);
        }
    }
}
