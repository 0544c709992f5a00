//! The rules of the domain, from outside: every state × every command as tables, and the invariants as properties.

mod budgets;
mod charge_table;
mod escrow_table;
mod postings_table;
mod progress;
mod properties;
mod queue_properties;
mod queue_table;
mod queue_world;
mod table;
mod world;
