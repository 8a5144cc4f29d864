//! The profile that a command works on: read, its noise treated, and what is odd about it told.

use std::io::Write;

use clap::Args;
use pfo_planner::{Combine, Noise, Profile, Treated, Warning, summarised, warnings};
use serde::Serialize;

use super::{Failure, file};
use crate::text::harmless;

/// What is done about noise.
#[derive(Args)]
pub(crate) struct NoiseArgument {
    /// What is done about measurements that scatter: off; isotonic makes time fall and power rise
    /// with frequency; auto does so where rows scatter by 1 % or more, and only to what that
    /// explains; factor=5% is Perseus' noise factor. Predictions are then replays over the smoothed
    /// profile, which `plan smooth` writes
    #[arg(long, value_name = "HOW", default_value_t = Noise::default())]
    pub(crate) noise: Noise,
}

/// A profile to plan with, and what is odd about what was measured.
pub(crate) struct Measured {
    pub(crate) profile: Profile,
    pub(crate) warnings: Vec<Warning>,
}

/// A warning as JSON has it.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    #[serde(flatten)]
    warning: Warning,
    message: String,
}

impl Measured {
    /// Reads a profile, and tells on standard error what is odd about it.
    pub(crate) fn read(name: &str, combine: Combine, noise: Noise) -> Result<Self, Failure> {
        Self::of(&file::read(name)?, file::shown(name), combine, noise)
    }

    /// The same of a profile that was read already; `shown` is what messages call it.
    pub(crate) fn of(
        csv: &[u8],
        shown: &str,
        combine: Combine,
        noise: Noise,
    ) -> Result<Self, Failure> {
        let measured = Profile::from_csv_combined(csv, combine)
            .map_err(|source| Failure::BadFile { name: shown.to_owned(), source })?;
        let Treated { profile, smoothed } = noise.treat(&measured);
        let warnings = warnings(&measured, &smoothed);
        for line in summarised(&warnings) {
            tell(&format!("{shown}: {line}"));
        }
        if !smoothed.is_empty() {
            tell(&format!(
                "{shown}: predictions are replays over the smoothed profile; `pfoctl plan smooth` \
                 writes it, --noise off takes the measured one"
            ));
        }
        Ok(Self { profile, warnings })
    }

    pub(crate) fn told(&self) -> Vec<Told> {
        let told =
            |warning: &Warning| Told { warning: warning.clone(), message: warning.to_string() };
        self.warnings.iter().map(told).collect()
    }
}

/// Nobody may be reading it; the answer matters more.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "pfoctl: {}", harmless(line));
}
