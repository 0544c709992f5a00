//! The private servers of benchmarks. Only one peer runs at a time, so that one's checkpoint or vacuum is not another's latency.

pub mod holdfast;
pub mod litellm;
pub mod postgres;
pub mod redis;
pub mod upstream;

pub use holdfast_simulator::servers::{
    Ending, LOOK_CLOSELY_EVERY, LOOK_EVERY, READY_WITHIN, Server, as_ourselves, beside, find_program, finish,
    private_port, unprivileged,
};
