//! `pfoctl plan smooth`: the profile that plans are made from, after something was done about noise.

use clap::Args;

use super::file;
use super::measured::{Measured, TreatmentArguments};
use crate::error::Error;
use crate::output::Output;

/// Write the profile that plans are made from: repeats and ranks combined, noise treated
///
/// `plan evaluate` of a plan over it gives what `plan optimize` with the same arguments predicted.
#[derive(Args)]
pub(crate) struct Smooth {
    /// Time and energy of each instruction, as `plan optimize` takes it
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    #[command(flatten)]
    treatment: TreatmentArguments,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "SMOOTHED.csv")]
    output: String,
}

impl Smooth {
    pub(super) fn run(self, output: &mut Output) -> Result<(), Error> {
        let Measured { profile, .. } = self.treatment.read(&self.profile)?;
        let csv = profile.to_csv();
        if self.output == "-" {
            return output.text(&csv);
        }
        Ok(file::write(&self.output, csv.as_bytes())?)
    }
}
