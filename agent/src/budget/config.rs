//! `[budget]` of the configuration.

use pfo_service::Within;
use serde::Deserialize;

/// `[budget]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BudgetConfig {
    /// Seconds from one look at the counters to the next.
    pub(super) every_s: Within<1, 3600>,
    /// Watts that count for each GPU of the node, beside what it draws.
    pub(super) site_w_per_gpu: Within<0, 100_000>,
    /// Whether owners may set the weights of their jobs.
    pub(crate) owners_set_weights: bool,
    /// Whether owners may set the floors of their jobs.
    pub(crate) owners_set_floors: bool,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            every_s: Within::of::<2>(),
            site_w_per_gpu: Within::of::<0>(),
            owners_set_weights: false,
            owners_set_floors: false,
        }
    }
}
