//! Runs steps in order, stops at the first that fails, and says how each went.

use crate::child::StepError;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Something that passes or fails.
pub struct Step {
    /// What it is called in the summary.
    pub name: String,
    /// What it does.
    pub action: Box<dyn FnOnce() -> Result<(), StepError>>,
}

/// Prints a line; that nobody reads it is no reason to fail.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs all steps; the last line counts those that passed and failed.
pub fn run(steps: Vec<Step>) -> ExitCode {
    let mut passed: Vec<(String, Duration)> = Vec::new();
    let mut failure: Option<String> = None;
    for Step { name, action } in steps {
        say(&format!("==> {name}"));
        let began = Instant::now();
        let result = action();
        let took = began.elapsed();
        match result {
            Ok(()) => {
                say(&format!("    {name}: passed in {}", seconds(took)));
                passed.push((name, took));
            }
            Err(error) => {
                failure = Some(format!("failed  {:>9}  {name}: {error}", seconds(took)));
                break;
            }
        }
    }
    say("");
    for (name, took) in &passed {
        say(&format!("passed  {:>9}  {name}", seconds(*took)));
    }
    if let Some(failure) = &failure {
        say(failure);
    }
    say(&format!("{} passed, {} failed", passed.len(), usize::from(failure.is_some())));
    if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs one step that speaks for itself.
pub fn run_quietly(step: Step) -> ExitCode {
    match (step.action)() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {}: {error}", step.name);
            ExitCode::FAILURE
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn the_first_failure_stops_the_run() {
        let reached = Rc::new(Cell::new(0));
        let step = |result: Result<(), StepError>| {
            let reached = Rc::clone(&reached);
            let action = move || {
                reached.set(reached.get() + 1);
                result
            };
            Step { name: "step".to_owned(), action: Box::new(action) }
        };
        let wrong = || Err(StepError::Wrong("no".to_owned()));
        assert_eq!(run(vec![step(Ok(())), step(wrong()), step(Ok(()))]), ExitCode::FAILURE);
        assert_eq!(reached.get(), 2);
        assert_eq!(run(vec![step(Ok(()))]), ExitCode::SUCCESS);
    }
}
