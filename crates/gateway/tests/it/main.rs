//! The program as its users run it: the real binary, its commands, its control socket, and its files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod as_of;
mod bad_input;
mod chat;
mod commands;
mod console;
mod damage;
mod failing_disk;
mod first_start;
mod http_billing;
mod http_keys;
mod http_server;
mod http_tokens;
mod http_world;
mod idle;
mod inference;
mod inference_again;
mod inference_findings;
mod inference_leaving;
mod inference_money;
mod inference_world;
mod invoke;
mod limits;
mod migrate;
mod moving;
mod obligations;
mod prices;
mod serving;
mod settlement;
mod settlement_postgres;
mod settlement_redis;
mod settlement_world;
mod setup;
mod shared_books;
mod tour;
mod world;
