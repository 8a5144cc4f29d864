//! `pfoctl gpus`: the names by which other commands and ranks take a GPU.

use clap::Args;
use pfo_protocol::GpuStatus;
use serde::Serialize;

use crate::arguments::DeviceFile;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::status::table::{Cell, Table};

/// List the GPUs of this node by every name that commands take
#[derive(Args)]
pub(crate) struct Gpus {
    /// Print JSON: an array with the driver's index, UUID, PCI bus id, device file and model of each
    #[arg(long)]
    json: bool,
}

impl Gpus {
    /// Asks and prints.
    pub(crate) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        // It says why there is none, where the driver is not loaded.
        pfod.gpus()?;
        let gpus: Vec<_> = pfod.status()?.gpus.iter().map(NamedGpu::of).collect();
        if self.json {
            return output.json(&gpus);
        }
        let look = output.look();
        output.text(&render(&gpus, look))
    }
}

/// A GPU by every name.
#[derive(Serialize)]
struct NamedGpu {
    /// The driver's: a GPU that is lost keeps its own.
    index: u32,
    uuid: String,
    pci_bus_id: String,
    /// By which schedulers count.
    device: Option<String>,
    model: String,
}

impl NamedGpu {
    fn of(gpu: &GpuStatus) -> Self {
        Self {
            index: gpu.index,
            uuid: gpu.uuid.to_string(),
            pci_bus_id: gpu.pci_bus_id.to_string(),
            device: DeviceFile::of(gpu).map(|device| device.to_string()),
            model: gpu.model.clone(),
        }
    }
}

fn render(gpus: &[NamedGpu], look: Look) -> String {
    if gpus.is_empty() {
        return "This node has no GPUs.\n".to_owned();
    }
    let mut table = Table::new(look).right("GPU").left("UUID").left("PCI bus id");
    table = table.left("Device file").left("Model");
    for gpu in gpus {
        table.row([
            Cell::number(gpu.index),
            Cell::text(&gpu.uuid),
            Cell::text(&gpu.pci_bus_id),
            Cell::text(gpu.device.as_deref().unwrap_or("-")),
            Cell::text(&gpu.model),
        ]);
    }
    table.render()
}
