//! Time as a port: the engine asks, and never looks for itself.

use holdfast_domain::Timestamp;

/// Something that knows what time it is.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}
