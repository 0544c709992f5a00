//! Rules about the code itself, as tests: what a reviewer would otherwise have to remember.
//!
//! Each rule is a function from text to findings, tried on an example that breaks it, and then on the whole workspace.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

const LONGEST_FILE_LINES: usize = 500;

/// Which crates of the workspace each crate may use. Who is not named here may use none, and no one may use those.
const EDGES: [(&str, &[&str]); 8] = [
    ("crates/domain", &[]),
    ("crates/journal", &["holdfast-domain"]),
    ("crates/engine", &["holdfast-domain", "holdfast-journal"]),
    ("crates/adapters", &["holdfast-domain", "holdfast-journal", "holdfast-engine"]),
    ("crates/gateway", &["holdfast-domain", "holdfast-journal", "holdfast-engine", "holdfast-adapters"]),
    ("crates/simulator", &["holdfast-domain", "holdfast-journal", "holdfast-engine", "holdfast-adapters"]),
    (
        "bench",
        &[
            "holdfast-domain",
            "holdfast-journal",
            "holdfast-engine",
            "holdfast-adapters",
            "holdfast",
            "holdfast-simulator",
        ],
    ),
    ("xtask", &[]),
];

/// What the tests of a crate may use besides.
const TEST_EDGES: [(&str, &str); 1] = [("crates/gateway", "holdfast-simulator")];

/// What a pure core has no use for: floats lose money, the rest is I/O, time or a wire format.
const NOT_IN_DOMAIN: [&str; 6] = ["f32", "f64", "async", "serde", "SystemTime", "Instant"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace is there")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a file of the workspace is readable text")
}

/// Every file under `dir` with this extension, by name.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|has| has == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every Rust file of ours, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let dirs = ["crates", "bench", "xtask"].map(|dir| root().join(dir));
    let paths = dirs.iter().flat_map(|dir| files(dir, "rs"));
    paths.map(|path| (path.strip_prefix(root()).unwrap_or(&path).display().to_string(), read(&path))).collect()
}

fn assert_none(rule: &str, findings: Vec<impl Debug>) {
    assert!(findings.is_empty(), "{rule}: {findings:#?}");
}

/// Applies a rule to every Rust file.
fn check_sources(rule: &str, findings_in: impl Fn(&str) -> Vec<String>) {
    let sources = sources();
    assert!(sources.len() > 10, "the rules looked at nothing");
    let findings = sources.iter().flat_map(|(path, text)| {
        let found = findings_in(text);
        found.into_iter().map(move |finding| format!("{path}: {finding}"))
    });
    assert_none(rule, findings.collect());
}

/// The code of a line: without its comment, and with the insides of its strings left out. Line by line, so a string over
/// several lines counts as code: good enough for rules that look for rare words.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut in_string = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => drop(characters.next()),
            // A quotation mark as a character literal opens no string.
            '"' if !code.ends_with('\'') => {
                in_string = !in_string;
                code.push('"');
            }
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if in_string => {}
            _ => code.push(character),
        }
    }
    code
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !(character.is_alphanumeric() || character == '_'))
}

/// The names under every dependency table of these kinds in a manifest.
fn dependencies(manifest: &str, kinds: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_table = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            // `[dependencies]`, `[target.'…'.dependencies]`, or `[dependencies.NAME]`.
            let table = table.trim_end_matches(']');
            let is_kind = |table: &str| kinds.iter().any(|kind| table.rsplit('.').next() == Some(kind));
            in_table = is_kind(table);
            let named = table.rsplit_once('.').filter(|(parent, _)| is_kind(parent));
            found.extend(named.map(|(_, name)| name.to_owned()));
        } else if in_table && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
            found.push(name.trim_matches('"').to_owned());
        }
    }
    found
}

const ALL_KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

#[test]
fn dependencies_are_found_however_they_are_written() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\n# b = 1\nc = { path = \"..\" }\n\
        [target.'cfg(unix)'.dependencies]\nd = \"1\"\n[dev-dependencies.e]\nversion = \"1\"\n[features]\nf = []\n";
    assert_eq!(dependencies(manifest, &ALL_KINDS), ["a", "c", "d", "e"]);
    assert_eq!(dependencies(manifest, &["dependencies"]), ["a", "c", "d"]);
}

fn in_edge((user, used): &(&str, &str), dir: &Path, name: &str) -> bool {
    dir == Path::new(user) && name == *used
}

#[test]
fn crates_use_only_the_crates_below_them() {
    let manifests = files(&root().join("crates"), "toml")
        .into_iter()
        .chain(["bench", "xtask"].map(|dir| root().join(dir).join("Cargo.toml")));
    let manifests: Vec<PathBuf> = manifests.filter(|path| path.ends_with("Cargo.toml")).collect();
    let mut findings = Vec::new();
    for path in &manifests {
        let dir = path.parent().and_then(|dir| dir.strip_prefix(root()).ok()).expect("a manifest is in a crate");
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| dir == Path::new(name)) else {
            findings.push(format!("{}: say in EDGES what it may use", dir.display()));
            continue;
        };
        let manifest = read(path);
        let for_tests = dependencies(&manifest, &["dev-dependencies"]);
        let for_tests = for_tests.into_iter().filter(|name| !TEST_EDGES.iter().any(|edge| in_edge(edge, dir, name)));
        let used = dependencies(&manifest, &["dependencies", "build-dependencies"]).into_iter().chain(for_tests);
        let ours = used.filter(|name| name.starts_with("holdfast") || name == "xtask");
        let wrong = ours.filter(|name| !allowed.contains(&name.as_str()));
        findings.extend(wrong.map(|name| format!("{} uses {name}", dir.display())));
    }
    assert_none("crates use only those below them", findings);
}

#[test]
fn domain_depends_on_nothing_and_knows_no_floats_time_or_wire() {
    let domain = root().join("crates/domain");
    assert_none("domain depends on nothing", dependencies(&read(&domain.join("Cargo.toml")), &["dependencies"]));
    let mut findings = Vec::new();
    for path in files(&domain.join("src"), "rs") {
        let text = read(&path);
        for (number, line) in (1..).zip(text.lines()) {
            let code = code(line);
            let found = words(&code).filter(|word| NOT_IN_DOMAIN.contains(word));
            findings.extend(found.map(|word| format!("{}:{number}: {word}", path.display())));
        }
    }
    assert_none("domain is pure", findings);
}

#[test]
fn comments_and_strings_are_not_code() {
    let check = |line: &str, expected: &str| assert_eq!(code(line).trim_end(), expected);
    check("let a = 1; // f64", "let a = 1;");
    check("let a = \"f64 \\\" // f32\"; b()", "let a = \"\"; b()");
    check("/// serde", "");
    check("let quote = '\"'; f64", "let quote = '\"'; f64");
}

#[test]
fn every_file_says_first_what_it_is() {
    check_sources("a file opens with `//!`", |text| {
        if text.starts_with("//!") { Vec::new() } else { vec!["line 1".to_owned()] }
    });
}

/// Lines before the tests, which may be as long as they like.
fn lines_of_code(text: &str) -> usize {
    text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count()
}

#[test]
fn no_file_is_too_long_to_read() {
    let long = |(path, text): (String, String)| (path, lines_of_code(&text));
    let sources = sources().into_iter().filter(|(path, _)| !path.contains("/tests/")).map(long);
    assert_none(
        "files have at most 500 lines, tests apart",
        sources.filter(|(_, lines)| *lines > LONGEST_FILE_LINES).collect(),
    );
    assert_eq!(lines_of_code("a\nb\n#[cfg(test)]\nmod tests {}\n"), 2);
}

/// An attribute that silences a lint for good; `expect` complains when it is no longer needed.
fn silenced_lints(text: &str) -> Vec<String> {
    let silences = |code: &str| code.contains("[allow(") || (code.contains("cfg_attr(") && code.contains(" allow("));
    let lines = (1..).zip(text.lines().map(code));
    lines.filter(|(_, code)| silences(code)).map(|(number, _)| format!("line {number}")).collect()
}

#[test]
fn lints_are_expected_with_a_reason_never_silenced() {
    assert_eq!(silenced_lints("fn a() {}\n#[allow(x)]\n#![allow(x)]\n#[cfg_attr(y, allow(x))]\n").len(), 3);
    assert_eq!(silenced_lints("// #[allow(x)]\nuse_it(allow(x));\n"), Vec::<String>::new());
    check_sources("lints are not silenced", silenced_lints);
}

fn leftovers(text: &str) -> Vec<String> {
    let marks = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];
    let lines = (1..).zip(text.lines().map(code));
    let found = lines.filter_map(|(number, code)| Some((number, *marks.iter().find(|mark| code.contains(**mark))?)));
    found.map(|(number, mark)| format!("line {number}: {mark}")).collect()
}

#[test]
fn nothing_is_left_unfinished_or_untested() {
    assert_eq!(leftovers("todo!()\n    unimplemented!(\"x\")\n#[ignore = \"slow\"]\n").len(), 3);
    check_sources("no leftovers", leftovers);
}

/// The codes that `fn code` answers: every string in the body of every function of that signature.
fn error_codes(text: &str) -> Vec<String> {
    let mut codes = Vec::new();
    for body in text.split("fn code(").skip(1) {
        let Some((signature, body)) = body.split_once('{') else { continue };
        if !signature.trim_end().ends_with("&'static str") || signature.contains(';') {
            continue;
        }
        let mut depth = 1;
        for line in body.lines() {
            let code = code(line);
            let strings = line.split('"').skip(1).step_by(2);
            // Comments have no strings that matter: their line has no code.
            codes.extend(strings.filter(|_| code.contains('"')).map(str::to_owned));
            depth += code.matches('{').count();
            depth -= code.matches('}').count().min(depth);
            if depth == 0 {
                break;
            }
        }
    }
    codes
}

#[test]
fn every_error_code_has_its_page_and_every_page_its_code() {
    let example = "impl A {\n    pub const fn code(&self) -> &'static str {\n        match self {\n            Self::B { .. } => \"B\",\n\
        \x20           // Not \"X\".\n            Self::C => {\n                \"C_C\"\n            }\n            Self::D(d) => d.code(),\n        }\n    }\n\
        \x20   fn name(&self) -> &'static str {\n        \"no\"\n    }\n}\ntrait T {\n    fn code(&self) -> &'static str;\n}\nfn x() { \"no\"; }\n";
    assert_eq!(error_codes(example), ["B", "C_C"]);

    let sources = sources().into_iter().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/"));
    let codes: BTreeSet<String> = sources.flat_map(|(_, text)| error_codes(&text)).collect();
    let pages = files(&root().join("docs/errors"), "md");
    let pages: BTreeSet<String> =
        pages.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    assert_none("every code has docs/errors/CODE.md", codes.difference(&pages).collect());
    assert_none("every page in docs/errors names a code", pages.difference(&codes).collect());
}
