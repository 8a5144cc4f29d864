//! What is odd about a profile, though it can be planned with.
//!
//! What is found is a matter for who measured: planning goes on. Instructions of fixed time are not
//! looked at: their rows are all the same measurement, whatever the clock.

pub(crate) mod finding;
mod frequencies;
pub(crate) mod summary;
mod values;

use crate::noise::Smoothed;
use crate::profile::Profile;
use finding::Warning;

/// All that is odd about a profile as it was measured, of which this much was smoothed.
pub fn warnings(measured: &Profile, smoothed: &[Smoothed]) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = measured.left_out().iter().map(Warning::left_out).collect();
    warnings.extend(frequencies::warnings(measured));
    warnings.extend(values::warnings(measured, smoothed));
    warnings
}
