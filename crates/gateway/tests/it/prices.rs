//! `holdfast prices`, with the real program.

use crate::world::World;
use serde_json::json;
use std::fs;

const LIST: &str = r#"{
    "sample_spec": {"input_cost_per_token": 0.0, "mode": "one of: chat"},
    "gpt-4o": {"input_cost_per_token": 2.5e-06, "input_cost_per_token_priority": 4.25e-06, "output_cost_per_token": 1e-05,
        "cache_read_input_token_cost": 1.25e-06, "litellm_provider": "openai", "max_input_tokens": 128000,
        "max_output_tokens": 16384, "mode": "chat"},
    "dall-e-3": {"input_cost_per_pixel": 3.81469e-08, "mode": "image_generation"},
    "llama-free": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "mode": "chat"}
}"#;

/// What is said on standard error about a command that is refused with this code.
fn refused(world: &World, words: &[&str], code: &str) -> String {
    let run = world.run(words);
    assert!(run.code == Some(1) && run.stderr.starts_with(&format!("error[{code}]: ")), "{words:?}: {run:?}");
    run.stderr
}

#[test]
fn a_fresh_data_directory_prices_the_built_in_models_alone() {
    let world = World::new();
    let listed = world.json(&["prices", "list"]);
    let names: Vec<_> = listed["models"].as_array().unwrap().iter().map(|model| model["model"].clone()).collect();
    assert_eq!(names, [json!("echo"), json!("echo-embedding")]);
    assert_eq!(listed["credits_per_usd"], json!(100));
    assert!(refused(&world, &["prices", "show", "gpt-4o"], "INVALID_MODEL").contains("\"gpt-4o\""));
}

#[test]
fn an_import_says_what_it_took_and_what_not_and_keeps_what_was_there() {
    let world = World::new();
    let list = world.home().join("list.json");
    fs::write(&list, LIST).unwrap();
    let file = world.home().join("prices.toml");
    fs::write(
        &file,
        "credits_per_usd = 200\n[models.gpt-4o]\ninput = \"1\"\noutput = \"1\"\naliases = [\"best\"]\n\
        [models.mine]\ninput = \"3\"\noutput = \"4\"\n",
    )
    .unwrap();
    let before = fs::read(&file).unwrap();
    let [list, file] = [&list, &file].map(|path| path.to_str().unwrap());
    let words = ["prices", "import", list, "--prices", file];

    let dry = world.json(&[&words[..], &["--dry-run"]].concat());
    assert_eq!((&dry["written"], &dry["models"]), (&json!(false), &json!(2)));
    assert_eq!(fs::read(file).unwrap(), before);

    let done = world.json(&words);
    assert_eq!(done["written"], json!(true));
    assert_eq!(done["imported"][0]["input"], json!("4.25"));
    assert!(done["imported"][0]["notes"].as_str().unwrap().contains("input_cost_per_token_priority"));
    let skipped: Vec<_> = done["skipped"].as_array().unwrap().iter().map(|model| model["model"].clone()).collect();
    assert_eq!(skipped, [json!("dall-e-3"), json!("llama-free")]);

    let best = world.json(&["prices", "show", "best", "--prices", file]);
    assert_eq!((&best["model"]["model"], &best["model"]["input"]), (&json!("gpt-4o"), &json!("4.25")));
    assert_eq!(best["model"]["credits_per_usd"], json!(200));
    assert_eq!(world.json(&["prices", "show", "mine", "--prices", file])["model"]["output"], json!("4"));

    let once = fs::read(file).unwrap();
    let text = world.ok(&words);
    assert!(text.contains("1 imported, 2 skipped") && text.contains("never free"), "{text}");
    assert_eq!(fs::read(file).unwrap(), once, "the same list gives the same bytes");
}

#[test]
fn bad_files_are_refused_and_change_nothing() {
    let world = World::new();
    let path = |name: &str, text: &str| {
        let path = world.home().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bad = path("bad.toml", "[models.m]\ninput = \"1\"\noutput = 10.0\n");
    let said = refused(&world, &["prices", "check", &bad], "INVALID_PRICES");
    for word in ["bad.toml, line 3", "model \"m\"", "output is 10.0", "as a string"] {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
    let list = path("list.json", LIST);
    refused(&world, &["prices", "import", &list, "--prices", &bad], "INVALID_PRICES");
    let no_list = path("array.json", "[]");
    let target = world.home().join("none.toml");
    refused(&world, &["prices", "import", &no_list, "--prices", target.to_str().unwrap()], "INVALID_PRICE_SOURCE");
    assert!(!target.exists());
    refused(&world, &["prices", "check", "/nowhere/prices.toml"], "PRICES_UNREADABLE");
}

#[test]
fn an_estimate_is_the_most_that_a_request_can_cost() {
    let world = World::new();
    let body = world.home().join("body.json");
    fs::write(&body, json!({ "model": "holdfast/echo", "max_tokens": 100, "messages": [{ "role": "user", "content": "Hello, world!" }] }).to_string()).unwrap();
    let body = body.to_str().unwrap();
    let estimate = world.json(&["prices", "estimate", body]);
    assert_eq!((&estimate["model"], &estimate["input_tokens"]), (&json!("echo"), &json!(11)));
    // 27 tokens at $1 and 100 at $2 a million are 227 micro-dollars.
    assert_eq!((&estimate["input_tokens_max"], &estimate["hold_cu"]), (&json!(27), &json!("0.0227")));
}
