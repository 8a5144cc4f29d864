//! `pfoctl policy explain`: who may lease which GPUs, on which terms, and which line says so.

use clap::Subcommand;
use pfo_protocol::{GpuName, LeaseTerms, PolicyVerdict, Request, Response, User};

use crate::connection::Connection;
use crate::error::Error;
use crate::output::Output;
use crate::socket::Sockets;
use crate::text::harmless;
use crate::user;

/// What to do with the policy.
#[derive(Subcommand)]
pub(crate) enum Policy {
    /// Say which GPUs a user may lease, on which terms, and which line of the configuration decided.
    ///
    /// The exit code is 4 if the user may lease none of them.
    Explain {
        /// The user, by name or number, with all groups that it has [default: this process]
        #[arg(long, value_name = "USER", value_parser = user::parse_with_groups)]
        user: Option<User>,

        /// Only this GPU, by UUID or PCI bus id [default: every GPU of the node]
        #[arg(long, value_name = "UUID|PCI")]
        gpu: Option<GpuName>,

        /// Print JSON: an array with each GPU, what decided, and the terms or null
        #[arg(long)]
        json: bool,
    },
}

impl Policy {
    /// Asks and tells.
    pub(crate) fn run(self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let Self::Explain { user, gpu, json } = self;
        let name = user.as_ref().map_or_else(user::own_name, |user| user::name_of(user.uid));
        let mut connection = Connection::open(sockets)?;
        let verdicts = match connection.ask(Request::PolicyExplain { who: user, gpu })? {
            Response::Policy(verdicts) => verdicts,
            other => return Err(connection.other_answer(&format!("{other:?}"))),
        };
        if json {
            output.json(&verdicts)?;
        } else {
            let text: String = verdicts.iter().map(|verdict| told(&name, verdict)).collect();
            output.text(&text)?;
        }
        match verdicts.iter().any(|verdict| verdict.terms.is_some()) {
            true => Ok(()),
            false => Err(Error::NoLease { user: name, gpus: verdicts.len() }),
        }
    }
}

fn told(user: &str, verdict: &PolicyVerdict) -> String {
    let PolicyVerdict { index, gpu, decided_by, terms } = verdict;
    let gpu = format!("GPU {index}, {} ({}, {})", gpu.model, gpu.uuid, gpu.pci_bus_id);
    let lines = match terms {
        Some(terms) => {
            let terms = in_words(terms);
            format!("{gpu}\n  yes, {user} may lease it: {decided_by}\n  {terms}")
        }
        None => format!("{gpu}\n  no, {user} may not lease it: {decided_by}"),
    };
    lines.lines().map(|line| format!("{}\n", harmless(line))).collect()
}

fn in_words(terms: &LeaseTerms) -> String {
    let LeaseTerms { min_mhz, max_mhz, changes_per_second, idle_limit_s, .. } = terms;
    let power = match terms.min_power_limit_w {
        0 => "any power limit that the board takes".to_owned(),
        min_w => format!("power limits from {min_w} W"),
    };
    let restored = match terms.restore_to_mhz {
        None => "the driver's default".to_owned(),
        Some((min, max)) => format!("{min} to {max} MHz"),
    };
    let process = if terms.require_process { ", a process on the GPU required" } else { "" };
    format!(
        "{min_mhz} to {max_mhz} MHz, {changes_per_second} changes/s, restored to {restored}\n  \
         {power}, none above what the GPU has without pfo\n  \
         {} sessions per user, idle limit {idle_limit_s} s{process}",
        terms.sessions_per_user
    )
}
