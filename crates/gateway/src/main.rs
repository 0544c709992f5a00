//! The program `holdfast`.

use std::process::ExitCode;

// Answers are made by the writer and freed by their callers: this allocator frees across threads much faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    holdfast::main()
}
