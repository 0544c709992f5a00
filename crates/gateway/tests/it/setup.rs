//! Setting a server up: the configuration written, tried and taken over, every setting refused by name, and the doctor.

use crate::world::World;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

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
        ("HOLDFAST_CREDITS_LOW_CU", "ten", "an amount of credits such as 10 or 2.5"),
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

/// What the doctor says, and how it ends. Where the tests run, the disk may be one in memory.
fn doctor(world: &World, words: &[&str], settings: &[(&str, &str)]) -> (Option<i32>, Value) {
    let words: Vec<&str> = ["doctor", "--json"].iter().chain(words).copied().collect();
    let mut command = world.command(&words);
    command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY").envs(settings.iter().copied());
    let output = command.output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn verdict<'a>(answer: &'a Value, check: &str) -> (&'a str, &'a Value) {
    let found = answer["checks"].as_array().unwrap().iter().find(|line| line["check"] == check);
    let line = found.unwrap_or_else(|| unreachable!("{check} is not in {answer}"));
    assert_eq!(line["verdict"] == "pass", line["advice"] == "", "what does not pass says what to do: {line}");
    (line["verdict"].as_str().unwrap(), line)
}

#[test]
fn the_doctor_looks_with_a_server_and_without_and_before_the_first_start() {
    let world = World::new();
    let (_, before) = doctor(&world, &[], &[]);
    for check in ["data directory", "journal", "clock", "configuration", "prices", "address", "provider echo"] {
        assert_eq!(verdict(&before, check).0, "pass", "{before}");
    }
    assert!(!world.data().exists(), "looking makes nothing");
    world.ok(&["mint", "alice", "1", "--reason", "r"]);
    fs::set_permissions(world.data(), fs::Permissions::from_mode(0o700)).unwrap();
    let server = world.serve();
    let pid = server.pid().to_string();
    let (code, served) = doctor(&world, &[], &[]);
    for check in ["data directory", "server", "journal", "clock", "signing key", "API keys"] {
        assert_eq!(verdict(&served, check).0, "pass", "{served}");
    }
    assert!(verdict(&served, "server").1["found"].as_str().unwrap().contains(&pid));
    let worst = served["worst"].as_str().unwrap();
    assert_eq!(
        code,
        Some(match worst {
            "pass" => 0,
            "warn" => 3,
            _ => 1,
        }),
        "{served}"
    );
    assert_eq!(served["ok"], worst != "fail");
    server.stop();
    let (_, alone) = doctor(&world, &[], &[]);
    assert_eq!((verdict(&alone, "journal").0, verdict(&alone, "server").0), ("pass", "pass"));
    let table = world.run(&["doctor"]).stdout;
    assert!(table.lines().any(|line| line.starts_with("pass  journal")), "{table}");
}

#[test]
fn the_doctor_finds_what_is_wrong_and_ends_with_it() {
    let world = World::with_alice();
    world.serve().stop();
    let identity = fs::read_dir(world.data().join("identity")).unwrap().next().unwrap().unwrap().path();
    for (path, mode, check, expected) in [
        (world.data(), 0o777, "data directory", "fail"),
        (world.data(), 0o755, "data directory", "warn"),
        (identity, 0o644, "signing key", "fail"),
        (world.data().join("identity.db"), 0o644, "signing key", "fail"),
    ] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let (code, answer) = doctor(&world, &[], &[]);
        assert_eq!(verdict(&answer, check).0, expected, "{answer}");
        assert!(code == Some(1) || expected == "warn", "{answer}");
        fs::set_permissions(&path, before).unwrap();
    }
    fs::write(world.home().join("c.toml"), "[providers.a]\nkind = \"openai\"\nkey_env = \"A_KEY\"\n[[models]]\nname = \"m\"\ntargets = [{ provider = \"a\", model = \"x\" }]\n").unwrap();
    let (_, answer) = doctor(&world, &["--config", "c.toml"], &[]);
    assert_eq!((verdict(&answer, "provider a").0, verdict(&answer, "prices").0), ("warn", "warn"), "{answer}");
    let (code, answer) = doctor(&world, &["--config", "none.toml"], &[]);
    assert_eq!((code, verdict(&answer, "configuration").0), (Some(1), "fail"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, answer) = doctor(&world, &["--listen", &address], &[]);
    assert_eq!((code, verdict(&answer, "address").0), (Some(1), "fail"));
    let segment = world.segment(1);
    let mut bytes = fs::read(&segment).unwrap();
    bytes[300] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let (code, answer) = doctor(&world, &[], &[]);
    assert_eq!((code, verdict(&answer, "journal").0), (Some(1), "fail"), "{answer}");
}

/// A provider that takes one key; where it listens.
fn provider(requests: usize) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("GET /v1/models HTTP/1.1\r\n"), "{head}");
            let status = if head.contains("Bearer good\r\n") { "200 OK" } else { "401 Unauthorized" };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}").unwrap();
        }
    });
    (url, serving)
}

#[test]
fn the_doctor_asks_providers_only_when_told_to() {
    let world = World::new();
    let (url, serving) = provider(2);
    fs::write(
        world.home().join("c.toml"),
        format!("[providers.a]\nkind = \"openai\"\nkey_env = \"A_KEY\"\nbase_url = \"{url}\"\n"),
    )
    .unwrap();
    let look = |key: &str, words: &[&str]| {
        let words: Vec<&str> = ["--config", "c.toml"].iter().chain(words).copied().collect();
        doctor(&world, &words, &[("A_KEY", key), ("NO_PROXY", "127.0.0.1")]).1
    };
    assert_eq!(verdict(&look("wrong", &[]), "provider a").0, "pass", "nobody is asked");
    assert_eq!(verdict(&look("good", &["--online"]), "provider a").0, "pass");
    let refused = look("wrong", &["--online"]);
    assert_eq!(verdict(&refused, "provider a").0, "fail");
    assert!(!refused.to_string().contains("wrong"), "no key is told");
    serving.join().unwrap();
    assert_eq!(verdict(&look("good", &["--online"]), "provider a").0, "fail", "nobody listens there now");
}
