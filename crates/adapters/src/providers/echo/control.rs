//! How the echo model is told to misbehave.
//!
//! By the model's name, `echo:delay_ms=20,fail=503`, for a target of a pool; or by a text in the last message,
//! `[[echo delay_ms=20 fail=503]]`, which is taken out of the answer and wins over the name.

use std::time::Duration;

/// What the echo model is told, beside what to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// `delay_ms=N`: wait this long before each word.
    pub delay: Duration,
    /// `fail=STATUS`: fail before the first word, 400 to 599.
    pub fail: Option<u16>,
    /// `retry_after=SECONDS`: what a failure with 429 says.
    pub retry_after_s: Option<u64>,
    /// `break_after=N`: break off after this many words.
    pub break_after: Option<u32>,
    /// `words=N`: answer with this many words instead of the text.
    pub words: Option<u32>,
    /// `cached=N`: so many of the input tokens came from a cache.
    pub cached: u64,
    /// `reasoning=N`: so many tokens of reasoning beside the words.
    pub reasoning: u64,
    /// `usage=none|negative|fraction|absurd|tenfold`: what is reported instead of the truth.
    pub usage: Misreport,
}

/// What is reported as usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misreport {
    /// The truth.
    Exact,
    /// Nothing.
    Missing,
    /// A negative count.
    Negative,
    /// A fraction.
    Fraction,
    /// More than there can be.
    Absurd,
    /// Ten times the truth.
    Tenfold,
}

const DELAY_MAX_MS: u64 = 60_000;
const WORDS_MAX: u32 = 1_000_000;

const NONE: Control = Control {
    delay: Duration::ZERO,
    fail: None,
    retry_after_s: None,
    break_after: None,
    words: None,
    cached: 0,
    reasoning: 0,
    usage: Misreport::Exact,
};

/// Reads the settings in a model's name and in a text, and takes them out of the text.
pub(super) fn read_controls(model: &str, text: &mut String) -> Result<Control, String> {
    let mut control = NONE;
    if let Some((_, settings)) = model.split_once(':') {
        settings.split(',').try_for_each(|setting| control.set(setting))?;
    }
    if let Some(start) = text.find("[[echo")
        && let Some(length) = text.get(start..).and_then(|rest| rest.find("]]"))
    {
        let settings = text.get(start + "[[echo".len()..start + length).unwrap_or("").to_owned();
        settings.split_whitespace().try_for_each(|setting| control.set(setting))?;
        text.replace_range(start..start + length + "]]".len(), "");
        *text = text.trim().to_owned();
    }
    Ok(control)
}

impl Control {
    fn set(&mut self, setting: &str) -> Result<(), String> {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("echo: `{setting}` is not NAME=VALUE"))?;
        let number = |max: u64| {
            let number = value.trim().parse::<u64>().ok().filter(|number| *number <= max);
            number.ok_or_else(|| format!("echo: {name} is `{value}`; it may be 0 to {max}"))
        };
        let small = |max: u32| number(u64::from(max)).map(|number| u32::try_from(number).unwrap_or(max));
        match name.trim() {
            "delay_ms" => self.delay = Duration::from_millis(number(DELAY_MAX_MS)?),
            "fail" => match number(599)? {
                status @ 400..=599 => self.fail = u16::try_from(status).ok(),
                _ => return Err(format!("echo: fail is `{value}`; it may be 400 to 599")),
            },
            "retry_after" => self.retry_after_s = Some(number(1_000_000)?),
            "break_after" => self.break_after = Some(small(WORDS_MAX)?),
            "words" => self.words = Some(small(WORDS_MAX)?),
            "cached" => self.cached = number(u64::from(u32::MAX))?,
            "reasoning" => self.reasoning = number(u64::from(u32::MAX))?,
            "usage" => {
                self.usage = match value {
                    "exact" => Misreport::Exact,
                    "none" => Misreport::Missing,
                    "negative" => Misreport::Negative,
                    "fraction" => Misreport::Fraction,
                    "absurd" => Misreport::Absurd,
                    "tenfold" => Misreport::Tenfold,
                    _ => {
                        return Err(format!(
                            "echo: usage is `{value}`; it may be none, negative, fraction, absurd or tenfold"
                        ));
                    }
                };
            }
            _ => return Err(format!("echo: there is no setting `{name}`")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_wins_over_a_name_and_is_taken_out() {
        let mut text = "hello [[echo fail=503 usage=none]]".to_owned();
        let control = read_controls("echo:delay_ms=5,fail=429", &mut text).unwrap();
        let expected = Control { delay: Duration::from_millis(5), fail: Some(503), usage: Misreport::Missing, ..NONE };
        assert_eq!((control, text.as_str()), (expected, "hello"));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for settings in ["fail=200", "words=9999999", "delay_ms=-1", "usage=odd", "x=1", "fail"] {
            let mut text = format!("[[echo {settings}]]");
            assert!(read_controls("echo", &mut text).is_err(), "{settings}");
            assert!(read_controls(&format!("echo:{settings}"), &mut String::new()).is_err(), "{settings}");
        }
        let mut text = "no [[echo end".to_owned();
        assert_eq!(read_controls("echo", &mut text), Ok(NONE));
    }
}
