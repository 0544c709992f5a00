//! The programs, each with its arguments.

pub(crate) mod delivery;
pub(crate) mod gateway_kills;
pub(crate) mod hangups;
pub(crate) mod money_behaviour;
pub(crate) mod queue_kills;
pub(crate) mod simulate;
pub(crate) mod torture;
pub(crate) mod upstream;
