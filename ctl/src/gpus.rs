//! `pfoctl gpus`: the names that a GPU may be given in other commands and by a rank.

use clap::Args;
use pfo_protocol::{GpuListing, Request, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::socket::Sockets;
use crate::status::table::{Cell, Table};

/// List the GPUs of this node with their full names
#[derive(Args)]
pub(crate) struct Gpus {
    /// Print JSON: an array with the UUID, PCI bus id and model of each
    #[arg(long)]
    json: bool,
}

impl Gpus {
    /// Asks and prints.
    pub(crate) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let mut connection = Connection::open(sockets)?;
        match connection.ask(Request::Gpus)? {
            Response::Gpus(gpus) if self.json => output.json(&gpus),
            Response::Gpus(gpus) => {
                let look = output.look();
                output.text(&render(&gpus, look))
            }
            other => Err(connection.other_answer(&format!("{other:?}"))),
        }
    }
}

fn render(gpus: &[GpuListing], look: Look) -> String {
    if gpus.is_empty() {
        return "This node has no GPUs.\n".to_owned();
    }
    let mut table = Table::new(look).left("UUID").left("PCI bus id").left("Model");
    for gpu in gpus {
        table.row([
            Cell::text(gpu.uuid.as_str()),
            Cell::text(gpu.pci_bus_id.as_str()),
            Cell::text(&gpu.model),
        ]);
    }
    table.render()
}
