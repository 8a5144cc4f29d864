//! The profile that a command works on: read, its noise treated, with warnings about what is odd.

use std::io::Write;

use clap::Args;
use pfo_experiment::Terms;
use pfo_planner::{Combine, Noise, Profile, Treated, Warning, summarised, warnings};
use serde::Serialize;

use super::file;
use crate::failure::Failure;
use crate::text::harmless;

/// How a profile becomes one that plans are made from.
#[derive(Args)]
pub(crate) struct TreatmentArguments {
    /// How to combine rows of several data- or tensor-parallel ranks of a stage (columns `dp_rank`,
    /// `tp_rank`): mean, or slowest, which takes the time of the slowest rank and the energy of
    /// all; the P2P-blocking power is then that of all GPUs of a stage
    #[arg(long, value_name = "HOW", default_value_t = Combine::Mean)]
    combine: Combine,

    /// How to treat measurements that scatter: off; isotonic, which makes time fall and power rise with
    /// the clock; auto, which gives stages that run the same layers one shape of the curve, each at its own
    /// level, and is then isotonic only where rows still scatter by 1 % or more, and only as far as scatter
    /// explains; or factor=5%, the noise factor of Perseus. Predictions are then replays over the smoothed
    /// profile, which `plan smooth` writes
    #[arg(long, value_name = "HOW", default_value_t = Noise::default())]
    noise: Noise,
}

impl TreatmentArguments {
    /// Reads a profile, and prints warnings about it on standard error.
    pub(crate) fn read(&self, name: &str) -> Result<Measured, Failure> {
        Measured::read(name, self.combine, self.noise)
    }

    /// Puts what they say into the terms of a tune.
    pub(crate) fn fill(&self, terms: &mut Terms) {
        terms.combine = self.combine;
        terms.noise = self.noise;
    }
}

/// A profile to plan with, and warnings about its measurements.
pub(crate) struct Measured {
    pub(crate) profile: Profile,
    pub(crate) warnings: Vec<Warning>,
}

/// A warning as JSON has it.
#[derive(Debug, Serialize)]
pub(crate) struct PrintedWarning {
    #[serde(flatten)]
    warning: Warning,
    message: String,
}

impl Measured {
    pub(crate) fn read(name: &str, combine: Combine, noise: Noise) -> Result<Self, Failure> {
        Self::of(&file::read(name)?, file::shown(name), combine, noise)
    }

    pub(crate) fn of(
        csv: &[u8],
        shown: &str,
        combine: Combine,
        noise: Noise,
    ) -> Result<Self, Failure> {
        let measured =
            Profile::from_csv_combined(csv, combine).map_err(Failure::bad_file(shown))?;
        let Treated { profile, smoothed } = noise.treat(&measured);
        let warnings = warnings(&measured, &smoothed);
        for line in summarised(&warnings) {
            warn(&format!("{shown}: {line}"));
        }
        if !smoothed.is_empty() {
            warn(&format!(
                "{shown}: predictions are replays over the smoothed profile; `pfoctl plan smooth` \
                 writes it, and --noise off takes the measured profile"
            ));
        }
        Ok(Self { profile, warnings })
    }

    pub(crate) fn printed_warnings(&self) -> Vec<PrintedWarning> {
        let printed = |warning: &Warning| PrintedWarning {
            warning: warning.clone(),
            message: warning.to_string(),
        };
        self.warnings.iter().map(printed).collect()
    }
}

/// A reader that is gone is no error: the answer matters more.
fn warn(line: &str) {
    let _ = writeln!(std::io::stderr(), "pfoctl: {}", harmless(line));
}
