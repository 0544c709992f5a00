//! What `cargo xtask` is made of; `main` only reads the command line.

pub mod child;
pub mod clients;
pub mod money;
mod pair;
pub mod sdk;
pub mod steps;
pub mod summary;
pub mod tools;
pub mod tour;
pub mod watch;
