//! `pfoctl plan smooth`: writes the profile that plans are made from, after its noise was treated.

use clap::Args;

use crate::error::Error;
use crate::output::Output;
use crate::planning::file;
use crate::planning::measured::{Measured, TreatmentArguments};

/// Write the profile that plans are made from: repeats and ranks combined, noise treated
///
/// `plan evaluate` over it gives the predictions of `plan optimize` with the same arguments, unless the
/// column chunk has several numbers and the schedule has no chunks.
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
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let Measured { profile, .. } = self.treatment.read(&self.profile)?;
        let csv = profile.to_csv();
        if self.output == "-" {
            return output.text(&csv);
        }
        Ok(file::write(&self.output, csv.as_bytes())?)
    }
}
