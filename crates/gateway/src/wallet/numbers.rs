//! How often the wallet was shown a token, and how often it was not good.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Checked {
    result: &'static str,
}

/// Tokens that were looked at. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Checks(Family<Checked, Counter>);

impl Default for Checks {
    fn default() -> Self {
        let counted = Family::default();
        // Both are there from the start, so that a rate of failures can be told from none yet.
        for result in ["accepted", "refused"] {
            let _zero = counted.get_or_create(&Checked { result });
        }
        Self(counted)
    }
}

impl Checks {
    pub(super) fn count(&self, is_good: bool) {
        let result = if is_good { "accepted" } else { "refused" };
        self.0.get_or_create(&Checked { result }).inc();
    }

    /// Has them shown.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let about = "Authorization tokens that the wallet looked at, by result";
        registry.register("authorization_checks", about, self.0.clone());
    }
}
