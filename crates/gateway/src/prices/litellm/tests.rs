//! What comes of models as LiteLLM's list really has them.

use super::*;

fn choice(leave_out: &[LeaveOut]) -> Choice {
    Choice { only: Vec::new(), leave_out: leave_out.to_vec(), credits_per_usd: CreditsPerUsd::DEFAULT }
}

fn read_one(json: &str, leave_out: &[LeaveOut]) -> Taken {
    let mut taken = read(Path::new("list.json"), json, &choice(leave_out)).unwrap();
    assert_eq!(taken.len(), 1);
    taken.remove(0)
}

/// `input output cached_input cache_write reasoning per_request`, with `-` for what is not there; or why it was skipped.
fn prices(json: &str, leave_out: &[LeaveOut]) -> String {
    match read_one(json, leave_out) {
        Taken::Skipped { why, .. } => why,
        Taken::Imported { model: ModelPrice { rates, .. }, .. } => {
            let shown = |price: Option<Price>| price.map_or("-".to_owned(), |price| price.to_string());
            let request = rates.per_request.map_or("-".to_owned(), |price| price.to_string());
            let [input, output] = [rates.input, rates.output].map(|price| price.to_string());
            let further = [rates.cached_input, rates.cache_write, rates.reasoning].map(shown).join(" ");
            format!("{input} {output} {further} {request}")
        }
    }
}

/// `length: input output`, for each length.
fn longer(json: &str) -> String {
    let Taken::Imported { model, .. } = read_one(json, &[]) else { panic!("imported") };
    let one = |above: &Above| format!("{}: {} {}", above.input_tokens, above.rates.input, above.rates.output);
    model.above.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn notes(json: &str) -> String {
    match read_one(json, &[]) {
        Taken::Skipped { why, .. } => why,
        Taken::Imported { notes, .. } => notes.join("; "),
    }
}

const GPT_4O: &str = r#"{"gpt-4o":{"cache_read_input_token_cost":1.25e-06,"cache_read_input_token_cost_priority":2.125e-06,
    "input_cost_per_token":2.5e-06,"input_cost_per_token_batches":1.25e-06,"input_cost_per_token_priority":4.25e-06,
    "litellm_provider":"openai","max_input_tokens":128000,"max_output_tokens":16384,"max_tokens":16384,"mode":"chat",
    "output_cost_per_token":1e-05,"output_cost_per_token_batches":5e-06,"output_cost_per_token_priority":1.7e-05}}"#;
const CLAUDE: &str = r#"{"claude-sonnet-4-5":{"cache_creation_input_token_cost":3.75e-06,
    "cache_creation_input_token_cost_above_1hr":6e-06,"cache_read_input_token_cost":3e-07,"input_cost_per_token":3e-06,
    "litellm_provider":"anthropic","max_input_tokens":200000,"max_output_tokens":64000,"mode":"chat",
    "output_cost_per_token":1.5e-05,"search_context_cost_per_query":{"search_context_size_high":0.01}}}"#;
const FLASH: &str = r#"{"gemini":{"cache_read_input_token_cost":3e-08,"cache_read_input_token_cost_priority":5.4e-08,
    "input_cost_per_audio_token":1e-06,"input_cost_per_token":3e-07,"mode":"chat","output_cost_per_reasoning_token":2.5e-06,
    "output_cost_per_token":2.5e-06,"input_cost_per_token_priority":5.4e-07,"output_cost_per_token_priority":4.5e-06}}"#;

#[test]
fn the_dearest_tier_is_taken_unless_tiers_cannot_happen() {
    assert_eq!(prices(GPT_4O, &[]), "4.25 17 2.125 - - -");
    assert_eq!(prices(GPT_4O, &[LeaveOut::Tiers]), "2.5 10 1.25 - - -");
    assert!(notes(GPT_4O).contains("input by input_cost_per_token_priority"), "{}", notes(GPT_4O));
}

#[test]
fn limits_and_provider_come_along() {
    let Taken::Imported { model, .. } = read_one(GPT_4O, &[]) else { panic!("imported") };
    assert_eq!((model.context, model.max_output), (Some(128_000), Some(16_384)));
    assert_eq!(model.provider.as_deref(), Some("openai"));
}

#[test]
fn the_dearest_cache_is_taken_unless_it_cannot_happen() {
    assert_eq!(prices(CLAUDE, &[]), "3 15 0.3 6 - -");
    assert_eq!(prices(CLAUDE, &[LeaveOut::HourCache]), "3 15 0.3 3.75 - -");
    assert!(notes(CLAUDE).contains("search_context_cost_per_query is not charged"));
}

#[test]
fn a_kind_of_token_without_a_price_for_the_dearest_case_costs_the_usual_price() {
    // Audio is dearest, and what a cached audio token costs is not said.
    assert_eq!(prices(FLASH, &[]), "1 4.5 - - - -");
    // Thinking at priority is not said either.
    assert_eq!(prices(FLASH, &[LeaveOut::Modalities]), "0.54 4.5 0.054 - - -");
    assert_eq!(prices(FLASH, &[LeaveOut::Modalities, LeaveOut::Tiers]), "0.3 2.5 0.03 - 2.5 -");
}

#[test]
fn prices_by_length_of_prompt_are_taken_over_as_such() {
    let qwen = r#"{"q":{"mode":"chat","tiered_pricing":[
        {"input_cost_per_token":1.2e-06,"output_cost_per_token":6e-06,"range":[0,32000.0]},
        {"input_cost_per_token":2.4e-06,"output_cost_per_token":1.2e-05,"range":[32000.0,128000.0]}]}}"#;
    assert_eq!((prices(qwen, &[]), longer(qwen)), ("1.2 6 - - - -".to_owned(), "32000: 2.4 12".to_owned()));
    assert_eq!(notes(qwen), "");
    let long = r#"{"l":{"mode":"chat","input_cost_per_token":1e-06,"input_cost_per_token_above_128k_tokens":2e-06,
        "output_cost_per_token":1e-06}}"#;
    assert_eq!((prices(long, &[]), longer(long)), ("1 1 - - - -".to_owned(), "128000: 2 1".to_owned()));
    let only_long =
        r#"{"l":{"mode":"chat","input_cost_per_token_above_128k_tokens":2e-06,"output_cost_per_token":1e-06}}"#;
    assert_eq!((prices(only_long, &[]), longer(only_long)), ("2 1 - - - -".to_owned(), String::new()));
    let no_range = r#"{"q":{"mode":"chat","tiered_pricing":[{"input_cost_per_token":1e-06,"output_cost_per_token":6e-06},
        {"input_cost_per_token":2e-06,"output_cost_per_token":1.2e-05}]}}"#;
    assert_eq!((prices(no_range, &[]), longer(no_range)), ("2 12 - - - -".to_owned(), String::new()));
}

#[test]
fn what_is_dearer_for_a_short_prompt_is_so_for_a_long_one_whose_price_is_not_said() {
    let mixed = r#"{"m":{"mode":"chat","input_cost_per_token":1e-06,"input_cost_per_token_priority":5e-06,
        "input_cost_per_token_above_200k_tokens":2e-06,"output_cost_per_token":1e-06,"output_cost_per_token_above_200k_tokens":3e-06}}"#;
    assert_eq!((prices(mixed, &[]), longer(mixed)), ("5 1 - - - -".to_owned(), "200000: 5 3".to_owned()));
}

#[test]
fn prices_per_request_and_of_searches_that_always_happen_are_charged() {
    let request = r#"{"r":{"mode":"chat","input_cost_per_token":1e-06,"output_cost_per_token":1e-06,"input_cost_per_request":0.005}}"#;
    assert_eq!(prices(request, &[]), "1 1 - - - 0.005");
    let sonar = r#"{"perplexity/sonar":{"mode":"chat","input_cost_per_token":1e-06,"output_cost_per_token":1e-06,
        "search_context_cost_per_query":{"search_context_size_high":0.012,"search_context_size_low":0.005}}}"#;
    assert_eq!(prices(sonar, &[]), "1 1 - - - 0.012");
}

#[test]
fn an_embedding_needs_no_price_of_output() {
    let embedding = r#"{"e":{"mode":"embedding","input_cost_per_token":2e-08,"output_cost_per_token":0.0}}"#;
    assert_eq!(prices(embedding, &[]), "0.02 0.02 - - - -");
}

#[test]
fn a_model_that_cannot_be_priced_is_skipped_and_why_is_told() {
    let free = r#"{"m":{"mode":"chat","input_cost_per_token":0,"output_cost_per_token":0}}"#;
    let half = r#"{"m":{"mode":"chat","input_cost_per_token":1e-06}}"#;
    let image = r#"{"m":{"mode":"image_generation","output_cost_per_image":0.04}}"#;
    let pictures = r#"{"m":{"mode":"chat","input_cost_per_token":1e-06,"output_cost_per_token":1e-06,"output_cost_per_image":0.04}}"#;
    let citations = r#"{"m":{"mode":"chat","input_cost_per_token":1e-06,"output_cost_per_token":1e-06,"citation_cost_per_token":2e-06}}"#;
    let nonsense = r#"{"m":{"mode":"chat","input_cost_per_token":-1e-06,"output_cost_per_token":1e-06}}"#;
    let absurd = r#"{"m":{"mode":"chat","input_cost_per_token":2,"output_cost_per_token":1e-06}}"#;
    let research =
        r#"{"o3-deep-research":{"mode":"responses","input_cost_per_token":1e-06,"output_cost_per_token":1e-06}}"#;
    for (json, word) in [
        (free, "no price per token of input"),
        (half, "no price per token of output"),
        (image, "image_generation"),
        (pictures, "output_cost_per_image is 0.04"),
        (citations, "citation_cost_per_token is 2e-06"),
        (nonsense, "input_cost_per_token is -1e-06"),
        (absurd, "above a dollar per token"),
        (research, "each search costs extra"),
        (r#"{"m":7}"#, "not an object"),
        (r#"{"m":{}}"#, "not charged by tokens"),
        (r#"{"a b":{"mode":"chat"}}"#, "spaces"),
    ] {
        let why = prices(json, &[]);
        assert!(why.contains(word), "{why:?} does not say {word:?}");
    }
    assert_eq!(prices(pictures, &[LeaveOut::Modalities]), "1 1 - - - -");
}

#[test]
fn only_the_chosen_models_are_looked_at() {
    let list = r#"{"sample_spec":{},"gpt-4o":{},"gpt-5":{},"claude":{}}"#;
    let count = |only: &[&str]| {
        let only = only.iter().map(|prefix| (*prefix).to_owned()).collect();
        read(Path::new("l"), list, &Choice { only, ..choice(&[]) }).unwrap().len()
    };
    assert_eq!((count(&[]), count(&["gpt-"]), count(&["gpt-5", "cl"]), count(&["x"])), (3, 2, 2, 0));
    let error = read(Path::new("l.json"), "[]", &choice(&[])).unwrap_err();
    assert_eq!(error.code(), "INVALID_PRICE_SOURCE");
}
