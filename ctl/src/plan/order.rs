//! `pfoctl plan order`: writes the order of a schedule as a file.

use clap::Args;

use crate::error::Error;
use crate::output::Output;
use crate::planning::file;
use crate::planning::measured::TreatmentArguments;
use crate::planning::pipeline::PipelineArguments;

/// Write the order of each stage's instructions as a file for --order, to change it
#[derive(Args)]
pub(crate) struct Order {
    /// Time and energy of each instruction, as `plan optimize` takes it
    #[arg(value_name = "PROFILE.csv")]
    profile: String,

    #[command(flatten)]
    treatment: TreatmentArguments,

    #[command(flatten)]
    pipeline: PipelineArguments,

    /// The file to write; - is standard output
    #[arg(short, long, value_name = "ORDER.json", default_value = "-")]
    output: String,
}

impl Order {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let measured = self.treatment.read(&self.profile)?;
        let json = self.pipeline.order_of(&measured.profile)?.to_json();
        if self.output == "-" {
            return output.text(&json);
        }
        Ok(file::write(&self.output, json.as_bytes())?)
    }
}
