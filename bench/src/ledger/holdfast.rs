//! Holdfast itself, as a subject of the benchmark.

use super::{Case, Outcome};
use crate::error::BenchError;
use crate::plan::Plan;
use std::path::Path;

/// What it is.
#[must_use]
pub fn about() -> String {
    "not built yet".to_owned()
}

/// Runs one case.
///
/// # Errors
/// None yet.
pub fn measure(_case: Case, _dir: &Path, _plan: &Plan) -> Result<Outcome, BenchError> {
    Ok(Outcome::Missing("not built yet".to_owned()))
}
