//! The README's tour, as it stands there.

use crate::world::{BINARY, SEGMENT_BYTES};
use std::path::Path;
use std::process::Command;

#[test]
fn the_tour_of_the_readme_works_when_pasted() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let (_, after) = readme.split_once("<!-- tour -->\n```sh\n").unwrap();
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
    for said in ["replayed", "FINALIZE_PENDING", "sound: every frame", "escrow_settle", "67.5"] {
        assert!(stdout.contains(said), "{said} is not in {stdout}");
    }
}
