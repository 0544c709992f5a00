//! What the upstream is told to do with coming calls, instead of answering them well.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;

/// What happens to one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Behaviour {
    /// A good answer, at another speed if said.
    Answer {
        /// Before each chunk of a stream.
        #[serde(default)]
        chunk_delay_ms: u64,
        /// Before the status line.
        #[serde(default)]
        first_delay_ms: u64,
        /// Cached and reasoning tokens to report within the usage.
        #[serde(default)]
        cached_tokens: u64,
        /// Reasoning tokens, on top of those of the text.
        #[serde(default)]
        reasoning_tokens: u64,
    },
    /// A good answer, once `POST /__open` was called.
    Gate {
        /// A stream waits after so many chunks; before the status line if none is said.
        #[serde(default)]
        after_chunks: Option<usize>,
    },
    /// An error status before the first token.
    Status {
        /// Which.
        status: u16,
        /// Sent as `Retry-After`.
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// The connection breaks after so many chunks of the stream, or before the end of a whole answer.
    BreakOff {
        /// How many chunks are sent whole.
        after_chunks: usize,
    },
    /// An answer that does not say what it used.
    NoUsage,
    /// An answer whose usage is this, whatever it is.
    Usage {
        /// Stands where the usage stands.
        usage: Value,
    },
    /// A usage that cannot be right.
    NonsenseUsage {
        /// In which way.
        kind: Nonsense,
    },
    /// The answer's bytes, a few at a time.
    SlowBytes {
        /// How many at a time.
        bytes: usize,
        /// How long between.
        delay_ms: u64,
    },
    /// Nothing comes any more until the client hangs up.
    Hang {
        /// After so many chunks; before the status line if none is said.
        #[serde(default)]
        after_chunks: Option<usize>,
    },
    /// A good answer under a wrong content type.
    ContentType {
        /// Which.
        value: String,
    },
    /// 307 to somewhere else.
    Redirect {
        /// Where to.
        location: String,
    },
    /// A good answer after so many bytes of white space, or comments in a stream.
    Huge {
        /// How many.
        bytes: usize,
    },
    /// Bytes that are not JSON, under a good status.
    Garbage,
}

impl Behaviour {
    /// A good answer at full speed.
    pub const GOOD: Self = Self::Answer { chunk_delay_ms: 0, first_delay_ms: 0, cached_tokens: 0, reasoning_tokens: 0 };
}

/// How a usage is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nonsense {
    /// Below zero.
    Negative,
    /// Ten times what was used.
    TenTimes,
    /// Text where numbers belong.
    Strings,
}

/// One line of a script: what to do, how often, and to whose calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What to do.
    #[serde(flatten)]
    pub behaviour: Behaviour,
    /// How many calls it is for.
    #[serde(default = "once")]
    pub times: u64,
    /// Only calls with this tag (`user`, or Anthropic's `metadata.user_id`); else any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

const fn once() -> u64 {
    1
}

/// The lines not yet used up, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Script(VecDeque<Line>);

impl Script {
    pub(crate) fn append(&mut self, lines: Vec<Line>) {
        self.0.extend(lines.into_iter().filter(|line| line.times > 0));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What to do with a call of this tag: the first line that fits is used once.
    pub(crate) fn take(&mut self, tag: Option<&str>) -> Option<Behaviour> {
        let fits = |line: &Line| line.tag.is_none() || line.tag.as_deref() == tag;
        let position = self.0.iter().position(fits)?;
        let line = self.0.get_mut(position)?;
        line.times = line.times.saturating_sub(1);
        let behaviour = line.behaviour.clone();
        if line.times == 0 {
            self.0.remove(position);
        }
        Some(behaviour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        let mut script = Script::default();
        script.append(serde_json::from_str(text).unwrap());
        script
    }

    #[test]
    fn lines_are_used_in_order_as_often_as_they_say_and_only_by_whom_they_fit() {
        let mut script = script(
            r#"[{"do":"status","status":500,"times":2},{"do":"garbage","tag":"a"},{"do":"break_off","after_chunks":3}]"#,
        );
        let error = Behaviour::Status { status: 500, retry_after_s: None };
        assert_eq!(script.take(Some("b")), Some(error.clone()));
        assert_eq!(script.take(None), Some(error));
        assert_eq!(script.take(Some("b")), Some(Behaviour::BreakOff { after_chunks: 3 }));
        assert_eq!(script.take(Some("b")), None);
        assert_eq!(script.take(Some("a")), Some(Behaviour::Garbage));
        assert_eq!(script.take(Some("a")), None);
    }

    #[test]
    fn a_line_that_makes_no_sense_is_refused() {
        for bad in [r#"[{"do":"explode"}]"#, r#"[{"do":"status"}]"#, r#"[{"status":500}]"#] {
            assert!(serde_json::from_str::<Vec<Line>>(bad).is_err(), "{bad}");
        }
    }
}
