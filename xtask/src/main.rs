//! `cargo xtask …`: the project's own commands. `cargo xtask test` is what the continuous integration runs, and all it runs.

use std::process::ExitCode;
use xtask::steps::{self, Length};
use xtask::{summary, watch};

const HELP: &str = "\
cargo xtask test [--long]          everything that must hold before a commit; --long simulates and tortures for longer
cargo xtask test --only STEP       one step of it alone, by the name that it is listed by
cargo xtask bench NAME [--quick]   measures and writes target/bench/NAME.json; --quick ends within a minute
cargo xtask help                   this text";

#[derive(Debug, PartialEq, Eq)]
enum Task<'a> {
    Test(Length),
    /// One step, by its name.
    Only(&'a str),
    /// The words that go to the benchmark program as they are.
    Bench(&'a [&'a str]),
    Help,
    /// Not for people: see `watch`.
    Watch {
        tag: &'a str,
    },
    Unknown,
}

fn parse<'a>(words: &'a [&'a str]) -> Task<'a> {
    match words {
        ["test"] => Task::Test(Length::Usual),
        ["test", "--long"] => Task::Test(Length::Long),
        ["test", "--only", step] => Task::Only(step),
        ["bench", name, ..] if !name.starts_with('-') => Task::Bench(&words[1..]),
        ["help" | "--help" | "-h"] => Task::Help,
        [watch::COMMAND, tag] => Task::Watch { tag },
        _ => Task::Unknown,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match parse(&words) {
        Task::Test(length) => summary::run(steps::test(length)),
        Task::Only(name) => {
            let steps = steps::only(name);
            if steps.is_empty() {
                eprintln!("xtask: no step of the test is called {name:?}");
                return ExitCode::from(2);
            }
            summary::run(steps)
        }
        Task::Bench(words) => summary::run_quietly(steps::bench(words)),
        Task::Help => {
            summary::say(HELP);
            ExitCode::SUCCESS
        }
        Task::Watch { tag } => {
            watch::keep(tag);
            ExitCode::SUCCESS
        }
        Task::Unknown => {
            eprintln!("xtask: no such command: {}\n\n{HELP}", words.join(" "));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Task<'_>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(parse(&words), expected, "{line}");
    }

    #[test]
    fn commands_are_understood_whole_or_not_at_all() {
        check("test", Task::Test(Length::Usual));
        check("test --long", Task::Test(Length::Long));
        check("test --only money", Task::Only("money"));
        check("test --only", Task::Unknown);
        check("test --lnog", Task::Unknown);
        check("bench ledger --quick", Task::Bench(&["ledger", "--quick"]));
        check("bench", Task::Unknown);
        check("bench --quick", Task::Unknown);
        check("help", Task::Help);
        check("", Task::Unknown);
    }
}
