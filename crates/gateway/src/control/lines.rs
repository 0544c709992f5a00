//! Lines from a stream, each of bounded length: what is longer is passed over to its end, never kept.

use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// One line of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Its bytes, without the end.
    Whole(Vec<u8>),
    /// It was longer than allowed.
    TooLong,
}

/// Reads lines. A call that is dropped half way loses nothing: the next one goes on.
pub(super) struct Lines<R> {
    reader: R,
    max: usize,
    begun: Vec<u8>,
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) const fn new(reader: R, max: usize) -> Self {
        Self { reader, max, begun: Vec::new(), too_long: false }
    }

    /// The next line; `None` at the end. A last line without an end counts.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let bytes = self.reader.fill_buf().await?;
            if bytes.is_empty() {
                let nothing = self.begun.is_empty() && !self.too_long;
                return Ok(if nothing { None } else { Some(self.take()) });
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
            if self.begun.len() + piece.len() > self.max {
                self.too_long = true;
                self.begun = Vec::new();
            }
            if !self.too_long {
                self.begun.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(self.take()));
            }
        }
    }

    fn take(&mut self) -> Line {
        let begun = std::mem::take(&mut self.begun);
        if std::mem::take(&mut self.too_long) { Line::TooLong } else { Line::Whole(begun) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(text: &str, expected: &[Option<&str>]) {
        let mut lines = Lines::new(tokio::io::BufReader::with_capacity(3, text.as_bytes()), 5);
        for expected in expected {
            let expected = expected.map_or(Line::TooLong, |text| Line::Whole(text.into()));
            assert_eq!(lines.next().await.unwrap(), Some(expected), "{text:?}");
        }
        assert_eq!(lines.next().await.unwrap(), None, "{text:?}");
    }

    #[tokio::test]
    async fn long_lines_are_passed_over_and_the_others_come_whole() {
        check("", &[]).await;
        check("ab\ncdefg\n", &[Some("ab"), Some("cdefg")]).await;
        check("\n\n", &[Some(""), Some("")]).await;
        check("abcdef\nx\n", &[None, Some("x")]).await;
        check("x\nabcdefghijkl", &[Some("x"), None]).await;
        check("no end", &[None]).await;
        check("end", &[Some("end")]).await;
    }
}
