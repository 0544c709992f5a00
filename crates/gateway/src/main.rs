//! The program `holdfast`.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast::main()
}
