//! Counts beside those of OpenAI's own library, and texts that would take a naive counter minutes.

use super::*;
use crate::tokens::Family;
use proptest::prelude::*;

/// Texts with their tokens in `o200k_base`, in `cl100k_base`, and in the tokenizer that Anthropic published for Claude 2.
/// The first two are from OpenAI's `tiktoken` 0.14 for Python, the third from `tokenizers` 0.23.
const KNOWN: [(&str, u64, u64, u64); 17] = [
    ("", 0, 0, 0),
    ("Hello, world!", 4, 4, 4),
    ("The quick brown fox jumps over the lazy dog. It's 3.14159 o'clock, isn't it?", 22, 24, 24),
    (
        "fn main() {\n    let total: u64 = (1..=100).filter(|n| n % 3 == 0).sum();\n    println!(\"{total}\");\n}\n",
        37,
        37,
        41,
    ),
    (
        "{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Pittsburgh\",\"unit\":\"celsius\",\"days\":[1,2,3]}}",
        28,
        28,
        29,
    ),
    ("Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.", 17, 20, 24),
    ("敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园散步吧。", 26, 45, 38),
    ("いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ", 22, 32, 32),
    ("यह एक परीक्षण वाक्य है जो टोकन गिनने के लिए लिखा गया है।", 20, 58, 61),
    ("Съешь же ещё этих мягких французских булок, да выпей чаю.", 19, 36, 39),
    ("👩‍👩‍👧‍👦 🚀🚀 ¯\\_(ツ)_/¯ … — “quotes”", 28, 38, 35),
    ("<|endoftext|> is not special here <|im_start|>", 17, 16, 18),
    (
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        25,
        25,
        13,
    ),
    (
        "                                                                                                                                                                                                        x",
        3,
        3,
        4,
    ),
    (
        "1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
        34,
        34,
        11,
    ),
    ("\n\n\t  \r\n   indented\n", 7, 7, 5),
    ("SGVsbG8gd29ybGQhIFRoaXMgaXMgYmFzZTY0IHRleHQgdGhhdCBnb2VzIG9uIGFuZCBvbg==", 45, 48, 42),
];

fn tokens(family: Family, text: &str) -> TextTokens {
    Counter::new(family.tokenizer()).count(text)
}

#[test]
fn texts_have_the_tokens_that_the_makers_of_the_models_count() {
    for (text, o200k, cl100k, _) in KNOWN {
        assert_eq!(tokens(Family::O200k, text).counted, o200k, "{text:?}");
        assert_eq!(tokens(Family::Cl100k, text).counted, cl100k, "{text:?}");
        assert_eq!(Family::O200k.bound(tokens(Family::O200k, text)), o200k, "the bound is the count: {text:?}");
    }
}

#[test]
fn the_bound_for_an_unpublished_tokenizer_covers_one_that_was_published() {
    for (text, .., claude) in KNOWN {
        let bound = Family::Claude.bound(tokens(Family::Claude, text));
        assert!(bound >= claude, "{bound} < {claude}: {text:?}");
        assert!(bound <= text.len() as u64, "{text:?}");
    }
}

/// What a hostile text costs: the bytes that the tokenizer was given.
fn looked_at(text: &str) -> (TextTokens, usize) {
    let mut counter = Counter::new(Family::O200k.tokenizer());
    let tokens = counter.count(text);
    (tokens, TEXT_BYTES_MAX - counter.text_left + HARD_BYTES_MAX - counter.hard_left)
}

#[test]
fn a_run_of_the_same_is_looked_at_once() {
    for unit in [" ", "a", "!", "\n", "é", "漢"] {
        let (tokens, work) = looked_at(&unit.repeat(1_600_000));
        assert!(work <= 2 * RUN_BYTES_MAX, "{unit:?}: {work}");
        assert!(tokens.counted > 0 && tokens.counted + tokens.slack <= tokens.bytes, "{unit:?}: {tokens:?}");
    }
}

#[test]
fn only_so_much_of_long_runs_is_looked_at_and_the_rest_counts_as_its_bytes() {
    // Letters without end and without a pattern.
    let mut state = 7_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + u8::try_from(state >> 24).unwrap() % 26)
    };
    let text: String = (0..2 << 20).map(|_| letter()).collect();
    let (tokens, work) = looked_at(&text);
    assert!(work <= HARD_BYTES_MAX, "{work}");
    assert!(tokens.counted + tokens.slack >= tokens.bytes * 7 / 8, "{tokens:?}");
    // The same in words that are no words: dense.
    let words: String = (0..4 << 20).map(|at| if at % 20 == 0 { ' ' } else { letter() }).collect();
    let (tokens, work) = looked_at(&words);
    assert!(work <= 2 * HARD_BYTES_MAX + 2 * CHUNK_BYTES, "{work}");
    assert!(tokens.counted + tokens.slack >= tokens.bytes * 7 / 8, "{tokens:?}");
    let words = "many short words, and so on. ".repeat(400_000);
    let (tokens, work) = looked_at(&words);
    assert!(work <= TEXT_BYTES_MAX, "{work}");
    assert!(tokens.counted + tokens.slack <= tokens.bytes);
}

#[test]
fn cutting_a_long_ordinary_text_changes_its_count_by_no_more_than_the_slack() {
    let text = "The 17 quick foxes — say, \"brown\" ones — jumped;\n\tthen they slept. ".repeat(5_000);
    let whole = Family::O200k.tokenizer().count(&text) as u64;
    let tokens = tokens(Family::O200k, &text);
    assert!(tokens.slack > 0 && tokens.slack < 80, "{tokens:?}");
    assert!(whole.abs_diff(tokens.counted) <= tokens.slack, "{whole} {tokens:?}");
}

proptest! {
    #[test]
    fn the_bound_holds_for_any_text(
        parts in proptest::collection::vec(("\\PC{0,40}|[a-c]{0,600}|[ \n]{0,600}|[!-/]{0,600}", 1..4usize), 0..6),
    ) {
        let text: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
        for family in [Family::O200k, Family::Cl100k] {
            let whole = family.tokenizer().count(&text) as u64;
            let tokens = tokens(family, &text);
            prop_assert!(whole <= family.bound(tokens), "{} > {:?}", whole, tokens);
            prop_assert!(family.bound(tokens) <= tokens.bytes);
        }
    }
}
