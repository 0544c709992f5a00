//! What `cargo xtask` is made of; `main` only reads the command line.

pub mod child;
pub mod money;
pub mod sdk;
pub mod steps;
pub mod summary;
pub mod tools;
pub mod tour;
pub mod watch;
