//! The profile that a command works on: read, its noise treated, and what is odd about it told.

use std::io::Write;

use clap::Args;
use pfo_planner::{Combine, Noise, Profile, Treated, Warning, summarised, warnings};
use serde::Serialize;

use super::{Failure, file};
use crate::text::harmless;

/// How a profile becomes one that plans are made from.
#[derive(Args)]
pub(crate) struct TreatmentArguments {
    /// How rows of several data- or tensor-parallel ranks of a stage (columns `dp_rank`, `tp_rank`)
    /// are combined: mean, or slowest for the slowest rank's time and the energy of all; the
    /// P2P-blocking power is then that of all GPUs of a stage
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    /// What is done about measurements that scatter: off; isotonic makes time fall and power rise
    /// with frequency; auto does so where rows scatter by 1 % or more, and only to what that
    /// explains; factor=5% is Perseus' noise factor. Predictions are then replays over the smoothed
    /// profile, which `plan smooth` writes
    #[arg(long, value_name = "HOW", default_value_t = Noise::default())]
    noise: Noise,
}

impl TreatmentArguments {
    /// Reads a profile, and tells on standard error what is odd about it.
    pub(super) fn read(&self, name: &str) -> Result<Measured, Failure> {
        Measured::read(name, self.combine, self.noise)
    }

    /// The same of a profile that was read already; `shown` is what messages call it.
    pub(crate) fn of(&self, csv: &[u8], shown: &str) -> Result<Measured, Failure> {
        Measured::of(csv, shown, self.combine, self.noise)
    }
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
    /// Of a file.
    pub(super) fn read(name: &str, combine: Combine, noise: Noise) -> Result<Self, Failure> {
        Self::of(&file::read(name)?, file::shown(name), combine, noise)
    }

    fn of(csv: &[u8], shown: &str, combine: Combine, noise: Noise) -> Result<Self, Failure> {
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
