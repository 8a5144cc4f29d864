//! What looks wrong in a profile that can still be planned with.
//!
//! Findings are for the person who measured; planning continues. Instructions of fixed time are not
//! checked: all their rows measure the same at any clock.

pub(crate) mod finding;
mod frequencies;
pub(crate) mod summary;
mod values;

use crate::noise::Smoothed;
use crate::profile::Profile;
use finding::{Finding, Warning};

/// All findings about a measured profile, given what was smoothed.
pub fn warnings(measured: &Profile, smoothed: &[Smoothed]) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = measured.left_out().iter().map(Warning::left_out).collect();
    warnings.extend(measured.unheld().iter().map(|unheld| Warning {
        stage: unheld.stage,
        instruction: unheld.instruction,
        finding: Finding::Unheld { useful_mhz: unheld.useful, highest_mhz: unheld.highest },
    }));
    warnings.extend(frequencies::warnings(measured));
    warnings.extend(values::warnings(measured, smoothed));
    warnings
}
