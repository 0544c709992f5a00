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

/// What a hostile text costs: the bytes that were looked at closely.
fn looked_at(text: &str) -> (TextTokens, usize) {
    let mut counter = Counter::new(Family::O200k.tokenizer());
    let tokens = counter.count(text);
    (tokens, CLOSE_BYTES_MAX - counter.close_left)
}

#[test]
fn a_run_of_the_same_is_looked_at_once() {
    for unit in [" ", "a", "!", "\n", "é", "漢", "a\u{301}"] {
        let (tokens, work) = looked_at(&unit.repeat(1_600_000));
        // The first window, one that differs where the run was cut, and the last.
        assert!(work <= 3 * PIECE_BYTES_MAX, "{unit:?}: {work}");
        assert!(tokens.counted > 0 && tokens.counted + tokens.slack <= tokens.bytes, "{unit:?}: {tokens:?}");
    }
}

/// Letters without end and without a pattern.
fn letters() -> impl FnMut() -> char {
    let mut state = 7_u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + u8::try_from(state >> 24).unwrap() % 26)
    }
}

#[test]
fn only_so_much_is_looked_at_and_the_rest_counts_as_its_bytes() {
    let mut letter = letters();
    let text: String = (0..3 << 20).map(|_| letter()).collect();
    let (tokens, work) = looked_at(&text);
    assert_eq!(work, CLOSE_BYTES_MAX);
    assert!(tokens.counted + tokens.slack >= tokens.bytes * 3 / 4, "{tokens:?}");
    // The same in words that are no words.
    let words: String = (0..3 << 20).map(|at| if at % 20 == 0 { ' ' } else { letter() }).collect();
    let (tokens, work) = looked_at(&words);
    assert!(work <= CLOSE_BYTES_MAX && work > CLOSE_BYTES_MAX - PIECE_BYTES_MAX, "{work}");
    assert!(tokens.counted + tokens.slack >= tokens.bytes * 3 / 4, "{tokens:?}");
    let words = "many short words, and so on. ".repeat(400_000);
    let (tokens, work) = looked_at(&words);
    assert_eq!(work, 0, "each word is a token");
    assert!(tokens.counted + tokens.slack >= number(words.len() - TEXT_BYTES_MAX), "{tokens:?}");
    assert!(tokens.counted + tokens.slack <= tokens.bytes);
}

#[test]
fn several_texts_of_a_request_share_what_is_looked_at() {
    let mut counter = Counter::new(Family::O200k.tokenizer());
    let words = "many short words, and so on. ".repeat(100_000);
    let (first, second) = (counter.count(&words), counter.count(&words));
    assert_eq!(first.slack, 0);
    assert!(second.slack > 0 && counter.text_left == 0, "{second:?}");
}

fn reference(family: Family) -> &'static tiktoken::CoreBpe {
    let name = if family == Family::Cl100k { "cl100k_base" } else { "o200k_base" };
    tiktoken::get_encoding(name).unwrap()
}

#[test]
fn a_long_ordinary_text_is_counted_whole() {
    let text = "The 17 quick foxes — say, \"brown\" ones — jumped;\n\tthen they slept. ".repeat(5_000);
    let tokens = tokens(Family::O200k, &text);
    assert_eq!((tokens.counted, tokens.slack), (number(reference(Family::O200k).count(&text)), 0));
}

#[test]
fn our_own_sources_are_counted_as_by_the_reference() {
    for text in [include_str!("../text.rs"), include_str!("../../prices/built_in.toml"), include_str!("tests.rs")] {
        for family in [Family::O200k, Family::Cl100k] {
            assert_eq!(tokens(family, text).counted, number(reference(family).count(text)));
        }
    }
}

#[test]
fn a_long_s_after_an_apostrophe_ends_a_word() {
    // OpenAI's expression ignores case as Unicode does; the reference's short cut for ASCII does not.
    let pieces: Vec<&str> = Pieces::new("it'\u{17f} cat'S", Pattern::O200k).collect();
    assert_eq!(pieces, ["it'\u{17f}", " cat'S"]);
    let pieces: Vec<&str> = Pieces::new("it'\u{17f}o", Pattern::Cl100k).collect();
    assert_eq!(pieces, ["it", "'\u{17f}", "o"]);
}

/// Characters of every kind, those that the expressions name among them.
fn any_character() -> impl Strategy<Value = char> {
    let named = prop::sample::select(
        "'sStTmMdDrReEvVlL /\r\n\t\u{a0}\u{3000}aA1é É́ǅʰ漢ツ²Ⅷ€!-\u{301}\u{200d}🚀".chars().collect::<Vec<_>>(),
    );
    prop_oneof![6 => named, 1 => any::<char>()].prop_filter("see the long s", |character| *character != '\u{17f}')
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_is_counted_as_by_the_reference(characters in proptest::collection::vec(any_character(), 0..60)) {
        let text: String = characters.into_iter().collect();
        for family in [Family::O200k, Family::Cl100k] {
            let tokens = tokens(family, &text);
            prop_assert_eq!((tokens.counted, tokens.slack), (number(reference(family).count(&text)), 0), "{:?}", family);
        }
    }

    #[test]
    fn pieces_are_the_text(characters in proptest::collection::vec(any_character(), 0..60)) {
        let text: String = characters.into_iter().collect();
        for pattern in [Pattern::O200k, Pattern::Cl100k] {
            prop_assert_eq!(Pieces::new(&text, pattern).collect::<String>(), text.clone());
        }
    }
}

proptest! {
    #[test]
    fn the_bound_holds_for_any_text(
        parts in proptest::collection::vec(("\\PC{0,40}|[a-c]{0,600}|[ \n]{0,600}|[!-/]{0,600}", 1..4usize), 0..6),
    ) {
        let text: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
        for family in [Family::O200k, Family::Cl100k] {
            let whole = number(reference(family).count(&text));
            let tokens = tokens(family, &text);
            prop_assert!(whole <= family.bound(tokens), "{} > {:?}", whole, tokens);
            prop_assert!(family.bound(tokens) <= tokens.bytes);
        }
    }
}
