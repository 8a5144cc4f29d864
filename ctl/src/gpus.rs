//! `pfoctl gpus`: the names by which other commands and ranks take a GPU.

use clap::Args;
use pfo_protocol::GpuListing;

use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::status::table::{Cell, Table};

/// List the GPUs of this node by every name that commands take
#[derive(Args)]
pub(crate) struct Gpus {
    /// Print JSON: an array with the UUID, PCI bus id and model of each
    #[arg(long)]
    json: bool,
}

impl Gpus {
    /// Asks and prints.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let gpus = daemons.pfod()?.gpus()?;
        if self.json {
            return output.json(&gpus);
        }
        let look = output.look();
        output.text(&render(&gpus, look))
    }
}

fn render(gpus: &[GpuListing], look: Look) -> String {
    if gpus.is_empty() {
        return "This node has no GPUs.\n".to_owned();
    }
    let mut table = Table::new(look).right("GPU").left("UUID").left("PCI bus id").left("Model");
    for (index, gpu) in gpus.iter().enumerate() {
        table.row([
            Cell::number(index as u64),
            Cell::text(gpu.uuid.as_str()),
            Cell::text(gpu.pci_bus_id.as_str()),
            Cell::text(&gpu.model),
        ]);
    }
    table.render()
}
