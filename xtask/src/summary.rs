//! Runs steps, stops at the first that fails, and says how each went.

use crate::child::StepError;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Something that passes or fails.
pub struct Step {
    /// What it is called in the summary.
    pub name: String,
    /// What it does.
    pub action: Box<dyn FnOnce() -> Result<(), StepError> + Send>,
}

/// What comes after another in a run.
pub enum Stage {
    /// A step by itself.
    Step(Step),
    /// Rows of steps, all at the same time; those of a row one after the other.
    Rows(Vec<Vec<Step>>),
}

/// Prints a line; that nobody reads it is no reason to fail.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs all of it; the last line counts the steps that passed and failed.
pub fn run(stages: Vec<Stage>) -> ExitCode {
    let tally = Tally::default();
    for stage in stages {
        match stage {
            Stage::Step(step) => tally.run(vec![step]),
            Stage::Rows(rows) => thread::scope(|scope| {
                for row in rows {
                    scope.spawn(|| tally.run(row));
                }
            }),
        }
    }
    let (passed, failed) = (lock(&tally.passed), lock(&tally.failed));
    say("");
    for (name, took) in &*passed {
        say(&format!("passed  {:>9}  {name}", seconds(*took)));
    }
    failed.iter().for_each(|failure| say(failure));
    say(&format!("{} passed, {} failed", passed.len(), failed.len()));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How the steps went so far. Nothing is begun after a failure; what runs beside the step that failed is waited for.
#[derive(Default)]
struct Tally {
    passed: Mutex<Vec<(String, Duration)>>,
    failed: Mutex<Vec<String>>,
}

impl Tally {
    fn run(&self, steps: Vec<Step>) {
        for Step { name, action } in steps {
            if !lock(&self.failed).is_empty() {
                return;
            }
            say(&format!("==> {name}"));
            let began = Instant::now();
            let result = action();
            let took = began.elapsed();
            match result {
                Ok(()) => {
                    say(&format!("    {name}: passed in {}", seconds(took)));
                    lock(&self.passed).push((name, took));
                }
                Err(error) => {
                    say(&format!("    {name}: failed"));
                    lock(&self.failed).push(format!("failed  {:>9}  {name}: {error}", seconds(took)));
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};

    /// Steps that pass or fail, and how many of them were begun.
    #[derive(Default)]
    struct Steps(Arc<AtomicU32>);

    impl Steps {
        fn step(&self, result: Result<(), StepError>) -> Step {
            let begun = Arc::clone(&self.0);
            let action = move || {
                begun.fetch_add(1, Ordering::Relaxed);
                result
            };
            Step { name: "step".to_owned(), action: Box::new(action) }
        }

        fn good(&self) -> Step {
            self.step(Ok(()))
        }

        fn bad(&self) -> Step {
            self.step(Err(StepError::Wrong("no".to_owned())))
        }

        fn begun(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn the_first_failure_stops_the_run() {
        let steps = Steps::default();
        let stages = [steps.good(), steps.bad(), steps.good()].map(Stage::Step).into();
        assert_eq!(run(stages), ExitCode::FAILURE);
        assert_eq!(steps.begun(), 2);
        assert_eq!(run(vec![Stage::Step(steps.good())]), ExitCode::SUCCESS);
    }

    #[test]
    fn a_failure_in_one_row_ends_that_row_and_all_that_comes_after() {
        let steps = Steps::default();
        let rows = vec![vec![steps.bad(), steps.good(), steps.good()], vec![]];
        assert_eq!(run(vec![Stage::Rows(rows), Stage::Step(steps.good())]), ExitCode::FAILURE);
        assert_eq!(steps.begun(), 1);
        let rows = vec![vec![steps.good(), steps.good()], vec![steps.good()]];
        assert_eq!(run(vec![Stage::Rows(rows), Stage::Step(steps.good())]), ExitCode::SUCCESS);
        assert_eq!(steps.begun(), 1 + 4);
    }

    #[test]
    fn rows_run_at_the_same_time() {
        let meets = |here: mpsc::Sender<()>, there: mpsc::Receiver<()>| {
            let action = move || {
                here.send(()).map_err(|_| StepError::Wrong("the other has gone".to_owned()))?;
                there.recv_timeout(Duration::from_secs(10)).map_err(|_| StepError::Wrong("nobody came".to_owned()))
            };
            vec![Step { name: "meets the other".to_owned(), action: Box::new(action) }]
        };
        let ((to_one, one), (to_other, other)) = (mpsc::channel(), mpsc::channel());
        let rows = vec![meets(to_other, one), meets(to_one, other)];
        assert_eq!(run(vec![Stage::Rows(rows)]), ExitCode::SUCCESS);
    }
}
