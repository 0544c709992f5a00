//! Steps as they are run: what passes, what fails, and that nothing survives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtask::child::{Output, Runner, StepError};
use xtask::tour;

const LIMIT: Duration = Duration::from_secs(60);
/// Writes the ids of a process that stays in the group and of one that leaves it, then lives on.
const SCRIPT: &str = "#!/bin/sh\nsleep 600 & echo $! > stays\nsetsid sleep 600 & echo $! > leaves\n";

fn runner(limit: Duration) -> Runner {
    Runner { xtask: PathBuf::from(env!("CARGO_BIN_EXE_xtask")), limit, output: Output::Shown }
}

fn empty_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

fn shell(script: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir);
    command
}

/// Waits until `is_so`, for as long as a step may take to end.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

fn id_in(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().filter(|text| text.ends_with('\n')).map(|text| text.trim().to_owned())
}

/// A zombie counts as gone: its parent is whoever adopts orphans here.
fn is_gone(id: &str) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_program_passes_by_its_exit_code() {
    let dir = empty_dir("exit-code");
    let run = |script| runner(LIMIT).run(shell(script, &dir));
    assert!(run("true").is_ok());
    assert!(matches!(run("exit 3"), Err(StepError::Ended(status)) if status.code() == Some(3)));
    assert!(matches!(runner(LIMIT).run(Command::new("/nonexistent")), Err(StepError::NotRun { .. })));
}

#[test]
fn what_a_program_leaves_behind_is_ended() {
    let dir = empty_dir("leftovers");
    runner(LIMIT).run(shell(SCRIPT, &dir)).expect("the script itself ends at once");
    for name in ["stays", "leaves"] {
        let id = id_in(&dir.join(name)).expect("the script wrote it");
        assert!(is_gone(&id), "{name} still runs");
    }
}

#[test]
fn a_server_serves_until_it_is_dropped_and_must_say_where() {
    let dir = empty_dir("server");
    let serving = runner(LIMIT).serve(shell("echo $$ > id; echo listening on http://there; exec sleep 1000", &dir));
    let serving = serving.unwrap();
    assert_eq!(serving.url, "http://there");
    let id = id_in(&dir.join("id")).unwrap();
    assert!(!is_gone(&id));
    drop(serving);
    assert!(is_gone(&id));
    assert!(matches!(runner(LIMIT).serve(shell("echo no", &dir)), Err(StepError::Wrong(_))));
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let dir = empty_dir("endless");
    let result = runner(Duration::from_millis(100)).run(shell("echo $$ > stays; exec sleep 600", &dir));
    assert!(matches!(result, Err(StepError::TimedOut(_))));
    // A busy machine may not have got as far as writing its id.
    assert!(id_in(&dir.join("stays")).is_none_or(|id| is_gone(&id)));
}

#[test]
fn killing_xtask_ends_the_step_and_all_it_started() {
    let dir = empty_dir("killed");
    let cargo = dir.join("cargo");
    fs::write(&cargo, format!("{SCRIPT}wait\n").replace("> ", &format!("> {}/", dir.display()))).expect("written");
    let mut command = Command::new("chmod");
    assert!(command.arg("+x").arg(&cargo).status().is_ok_and(|status| status.success()));

    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let mut xtask = command.args(["bench", "x"]).env("CARGO", &cargo).stdin(Stdio::null()).spawn().expect("xtask runs");
    let files = ["stays", "leaves"].map(|name| dir.join(name));
    wait_until("the step never started", || files.iter().all(|file| id_in(file).is_some()));
    // Without a chance to tidy up: `kill -9`.
    xtask.kill().expect("it runs");
    xtask.wait().expect("it was killed");
    let ids = files.map(|file| id_in(&file).expect("it was there"));
    wait_until("the step outlived xtask", || ids.iter().all(|id| is_gone(id)));
}

#[test]
fn a_tour_fails_by_its_exit_code_or_by_what_it_prints() {
    let dir = empty_dir("tour");
    let check = |script: &str| {
        let readme = dir.join("README.md");
        fs::write(&readme, format!("<!-- tour -->\n```sh\n{script}\n```\n")).expect("written");
        tour::run(&readme, &dir, &runner(LIMIT))
    };
    assert!(check("test -z \"$(ls)\"; echo \"$PATH\" | grep -q '^[^:]*/tour:'; echo fine >&2").is_ok());
    assert!(matches!(check("false; true"), Err(StepError::Ended(_))));
    assert!(matches!(check("echo 'Error: no' >&2"), Err(StepError::Wrong(_))));
    assert!(matches!(check("unset_variable=$unset"), Err(StepError::Ended(_))));
}
