//! From what a provider reports to what is charged: pure.

use holdfast_adapters::providers::Reported;
use holdfast_domain::Usage;

/// Where the numbers of a charge are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The provider reported them.
    Reported,
    /// The provider reported none, or nonsense, or broke off: the delivered text was counted.
    Counted,
}

/// What was delivered, as far as it can be counted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// The tokens of the request.
    pub(crate) input: u64,
    /// The tokens of the text that came.
    pub(crate) output: u64,
    /// Whether the answer came to its end.
    pub(crate) whole: bool,
}

/// The usage to charge. A whole answer is charged as reported. One that broke off is charged for what was delivered, with
/// the provider's own count of the input where it told it.
pub(crate) fn usage(reported: &Reported, delivered: Delivered) -> (Usage, Source) {
    let counted = Usage { input: delivered.input, output: delivered.output, ..Usage::NONE };
    match reported {
        Reported::Tokens(tokens) => {
            let told = Usage {
                input: tokens.input,
                cached_input: tokens.cached_input,
                cache_write: tokens.cache_write,
                output: tokens.output,
                reasoning: tokens.reasoning,
            };
            if delivered.whole {
                return (told, Source::Reported);
            }
            let input_told = tokens.all_input() > 0;
            let input = if input_told { told } else { counted };
            // A count that runs behind the text is not what was delivered; one that is ahead of it has hidden reasoning.
            let output = if tokens.all_output() >= delivered.output { told } else { counted };
            (Usage { output: output.output, reasoning: output.reasoning, ..input }, Source::Counted)
        }
        Reported::Missing | Reported::Nonsense(_) => (counted, Source::Counted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_adapters::providers::Tokens;

    const WHOLE: Delivered = Delivered { input: 10, output: 20, whole: true };
    const BROKEN: Delivered = Delivered { whole: false, ..WHOLE };

    fn told(input: u64, output: u64, reasoning: u64) -> Reported {
        Reported::Tokens(Tokens { input, cached_input: 3, cache_write: 0, output, reasoning })
    }

    #[test]
    fn a_whole_answer_is_charged_as_reported() {
        let expected = Usage { input: 7, cached_input: 3, cache_write: 0, output: 5, reasoning: 2 };
        assert_eq!(usage(&told(7, 5, 2), WHOLE), (expected, Source::Reported));
    }

    #[test]
    fn without_a_count_that_can_be_used_the_delivered_text_is_counted() {
        let expected = (Usage { input: 10, output: 20, ..Usage::NONE }, Source::Counted);
        assert_eq!(usage(&Reported::Missing, WHOLE), expected);
        assert_eq!(usage(&Reported::Nonsense("-3".to_owned()), WHOLE), expected);
        assert_eq!(usage(&Reported::Missing, BROKEN), expected);
    }

    #[test]
    fn an_answer_that_broke_off_is_charged_for_what_was_delivered() {
        let behind = Usage { input: 7, cached_input: 3, cache_write: 0, output: 20, reasoning: 0 };
        assert_eq!(usage(&told(7, 1, 0), BROKEN), (behind, Source::Counted));
        let ahead = Usage { input: 7, cached_input: 3, cache_write: 0, output: 21, reasoning: 4 };
        assert_eq!(usage(&told(7, 21, 4), BROKEN), (ahead, Source::Counted));
    }
}
