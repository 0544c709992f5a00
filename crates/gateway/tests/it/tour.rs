//! The tours of the README and of the queue's page, as they stand there.

use crate::world::{BINARY, SEGMENT_BYTES};
use std::path::Path;
use std::process::Command;

/// Pastes the tour of a page into a shell in an empty directory; what it says.
fn pasted(page: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let (_, after) = text.split_once("<!-- tour -->\n```sh\n").unwrap();
    let (script, _) = after.split_once("\n```\n").unwrap();
    let home = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = Path::new(BINARY).parent().unwrap().display();
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(home.path())
        .env("PATH", format!("{programs}:{path}"))
        .env("HOLDFAST_SEGMENT_BYTES", SEGMENT_BYTES)
        .env("HOLDFAST_LISTEN", "127.0.0.1:0")
        .env_remove("HOLDFAST_DATA")
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(stderr, "");
    stdout
}

#[test]
fn the_tour_of_the_readme_works_when_pasted() {
    let said = pasted("README.md");
    for expected in ["replayed", "FINALIZE_PENDING", "sound: every frame", "escrow_settle", "67.5"] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
}

#[test]
fn the_tour_of_the_queue_works_when_pasted() {
    let said = pasted("docs/queue.md");
    for expected in ["\"status\":\"in_progress\"", "performance_completed", "quality_issue", "admin_cancelled"] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    // 10 earned, 6 of 10 earned, 10 given back.
    assert!(said.contains("\"earned\":\"16\"") && said.contains("\"available\":\"84\""), "{said}");
}
