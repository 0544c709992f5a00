//! Setting a server up: the configuration written, tried and taken over, and every setting refused by name.

use crate::world::World;
use std::fs;
use std::process::Command;

/// What a command says that must be refused for a setting.
fn complaint(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[test]
fn what_init_writes_is_served_unchanged_and_never_written_over() {
    let world = World::new();
    let file = world.home().join("holdfast.toml");
    let told = world.ok(&["init"]);
    assert!(told.contains("holdfast serve --config holdfast.toml"), "{told}");
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(world.ok(&["init", "-"]), text);
    assert_eq!(world.refused(&["init"]), "FILE_EXISTS");
    fs::write(&file, "mine").unwrap();
    assert_eq!(
        (world.refused(&["init"]).as_str(), fs::read_to_string(&file).unwrap().as_str()),
        ("FILE_EXISTS", "mine")
    );
    world.ok(&["init", "--force"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert!(world.ok(&["config", "check", "holdfast.toml"]).starts_with("sound: "));
    world.serve_with(world.command(&["serve", "--config", "holdfast.toml"])).stop();
}

#[test]
fn the_file_says_what_the_environment_does_not() {
    let world = World::new();
    let file = world.home().join("h.toml");
    fs::write(&file, "[server]\nlisten = \"127.0.0.1:0\"\nrate_failures = 7\n").unwrap();
    let mut command = world.command(&["serve", "--config", "h.toml"]);
    command.env_remove("HOLDFAST_LISTEN");
    world.serve_with(command).stop();
    let mut command = world.command(&["serve", "--config", "h.toml"]);
    command.env("HOLDFAST_RATE_FAILURES", "0");
    assert!(
        complaint(command).starts_with("error[INVALID_SETTING]: HOLDFAST_RATE_FAILURES is \"0\", and must be a whole")
    );
}

#[test]
fn every_bad_setting_names_itself_what_it_was_and_what_is_allowed() {
    let world = World::new();
    for (name, bad, allowed) in [
        ("HOLDFAST_SEGMENT_BYTES", "12", "a whole number from 65536 to 1073741824"),
        ("HOLDFAST_SNAPSHOT_ENTRIES", "0", "a whole number from 1"),
        ("HOLDFAST_KEYS_IN_MEMORY", "many", "a whole number from 1"),
        ("HOLDFAST_RATE_PER_CREDENTIAL", "-1", "a whole number from 1 to 10000000"),
        ("HOLDFAST_RATE_PER_ADDRESS", "1.5", "a whole number from 1 to 10000000"),
        ("HOLDFAST_RATE_FAILURES", "", "a whole number from 1 to 10000000"),
        ("HOLDFAST_CONNECTIONS_MAX", "0", "a whole number from 1 to 1000000"),
        ("HOLDFAST_CHAT_WARN_BELOW_CU", "ten", "an amount of credits such as 10 or 2.5"),
        ("HOLDFAST_CHAT_RATE", "0", "a whole number from 1 to 10000000"),
        ("HOLDFAST_CHAT_CONNECTIONS_MAX", "0", "a whole number from 1 to 1000000"),
    ] {
        let mut command = world.command(&["serve"]);
        command.env(name, bad);
        let said = complaint(command);
        let expected = format!("error[INVALID_SETTING]: {name} is {bad:?}, and must be {allowed}");
        assert!(said.starts_with(&expected), "{said}");
    }
    let mut command = world.command(&["serve"]);
    command.env("HOLDFAST_PRICES", "nowhere.toml");
    assert!(complaint(command).contains("nowhere.toml"), "the server reads the prices that the commands do");
    for (text, expected) in [
        ("[server]\nrates = 1\n", "server.rates is \"1\", and must be one of listen, jwks"),
        ("[server]\nchat_rate = \"x\"\n", "server.chat_rate is \"x\", and must be a whole number"),
        ("servers = 1\n", "unknown field `servers`"),
        ("[providers.a]\nkind = \"closedai\"\n", "unknown variant `closedai`"),
        ("[providers.a]\nkind = \"openai\"\nmax_concurrent = 0\n", "providers.a.max_concurrent: it is 0"),
        ("[[models]]\nname = \"m\"\ntargets = [{ provider = \"no\", model = \"x\" }]\n", "there is no provider `no`"),
        ("prices = \"no.toml\"\n", "no.toml"),
    ] {
        fs::write(world.home().join("bad.toml"), text).unwrap();
        for words in [&["config", "check", "bad.toml"][..], &["serve", "--config", "bad.toml"]] {
            let said = complaint(world.command(words));
            assert!(said.starts_with("error[") && said.contains(expected), "{text} {said}");
        }
    }
}

const LITELLM: &str = "
model_list:
  - model_name: gpt-4o
    litellm_params: { model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 6 }
  - model_name: gpt-4o
    litellm_params: { model: openai/gpt-4o, api_base: https://eu.example/v1, api_key: os.environ/EU_KEY, order: 1 }
  - model_name: local
    litellm_params: { model: hosted_vllm/llama, api_base: 'http://127.0.0.1:9/v1' }
general_settings: { master_key: sk-1234 }
";

#[test]
fn litellms_configuration_is_taken_over_and_served() {
    let world = World::new();
    fs::write(world.home().join("config.yaml"), LITELLM).unwrap();
    let run = world.run(&["config", "import", "litellm", "config.yaml", "--to", "holdfast.toml"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stderr.contains("`rpm` is not read") && run.stderr.contains("`general_settings` is not read"),
        "{run:?}"
    );
    let text = fs::read_to_string(world.home().join("holdfast.toml")).unwrap();
    assert!(text.contains("key_env = \"EU_KEY\"") && !text.contains("sk-1234") && !text.contains("timeout"), "{text}");
    assert_eq!(world.refused(&["config", "import", "litellm", "config.yaml", "--to", "holdfast.toml"]), "FILE_EXISTS");
    let printed = world.run(&["config", "import", "litellm", "config.yaml"]);
    assert_eq!(printed.stdout, text);
    let checked = world.json(&["config", "check", "holdfast.toml"]);
    assert_eq!((&checked["models"], checked["providers"].as_array().unwrap().len()), (&2.into(), 3));
    assert_eq!(checked["unpriced"].as_array().unwrap().len(), 2, "{checked}");
    world.serve_with(world.command(&["serve", "--config", "holdfast.toml"])).stop();
    fs::write(world.home().join("bad.yaml"), "model_list: [{model_name: a, litellm_params: {model: bedrock/x}}]")
        .unwrap();
    assert_eq!(world.refused(&["config", "import", "litellm", "bad.yaml"]), "INVALID_SETTING");
    assert_eq!(world.refused(&["config", "import", "litellm", "none.yaml"]), "INVALID_SETTING");
}
