//! `pfoctl policy explain`: who may lease which GPUs, on which terms, and by which rule.

use clap::Subcommand;
use pfo_protocol::{LeaseTerms, PolicyVerdict, Request, Response, User};

use crate::arguments::{GpuArgument, resolve_option};
use crate::daemons::Daemons;
use crate::error::Error;
use crate::outcome::BadOutcome;
use crate::output::Output;
use crate::text::harmless;
use crate::user;

/// What to do about the policy.
#[derive(Subcommand)]
pub(crate) enum Policy {
    /// Show which GPUs a user may lease, on which terms, and by which line of the configuration
    ///
    /// The exit code is 4 if the user may not lease any of them.
    Explain {
        /// The user, by name or number, with all of its groups [default: yourself, with the groups
        /// of this process]
        #[arg(long, value_name = "USER", value_parser = user::parse_with_groups)]
        user: Option<User>,

        /// Answer as if the user asked from this control group, for rules that name one
        #[arg(long, value_name = "PATH", requires = "user")]
        cgroup: Option<String>,

        /// Only this GPU, by index, UUID or PCI bus id [default: every GPU of the node]
        #[arg(long, value_name = "GPU")]
        gpu: Option<GpuArgument>,

        /// Print JSON: an array with each GPU, the rule that decided, and the terms or null
        #[arg(long)]
        json: bool,
    },
}

impl Policy {
    /// Asks and prints.
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let Self::Explain { user, cgroup, gpu, json } = self;
        let user = user.map(|user| User { cgroup, ..user });
        let name = user.as_ref().map_or_else(user::own_name, |user| user::name_of(user.uid));
        let mut pfod = daemons.pfod()?;
        let gpu = resolve_option(gpu.as_ref(), &mut pfod)?;
        let verdicts = match pfod.ask(Request::PolicyExplain { who: user, gpu })? {
            Response::Policy(verdicts) => verdicts,
            other => return Err(pfod.unexpected(&other).into()),
        };
        if json {
            output.json(&verdicts)?;
        } else {
            let alike = verdicts.chunk_by(|one, next| {
                (&one.gpu.model, &one.decided_by, &one.terms)
                    == (&next.gpu.model, &next.decided_by, &next.terms)
            });
            let text: String = alike.map(|alike| explained(&name, alike)).collect();
            output.text(&text)?;
            if let Some(drained) = pfod.status()?.daemon.drained {
                let reason = harmless(&drained.reason);
                let until = "no lease is granted before `pfoctl undrain`";
                output.text(&format!("The node is drained ({reason}): {until}.\n"))?;
            }
        }
        match verdicts.iter().any(|verdict| verdict.terms.is_some()) {
            true => Ok(()),
            false => Err(BadOutcome::NoLease { user: name, gpus: verdicts.len() }.into()),
        }
    }
}

/// What is decided of neighbours of one model of which the same is decided.
fn explained(user: &str, alike: &[PolicyVerdict]) -> String {
    let Some(PolicyVerdict { index, gpu, decided_by, terms }) = alike.first() else {
        return String::new();
    };
    let (gpu, them) = match alike {
        [_, .., last] => (format!("GPUs {index} to {}, {}", last.index, gpu.model), "them"),
        _ => (format!("GPU {index}, {} ({}, {})", gpu.model, gpu.uuid, gpu.pci_bus_id), "it"),
    };
    let lines = match terms {
        Some(terms) => {
            let terms = in_words(terms);
            format!("{gpu}\n  yes, {user} may lease {them}: {decided_by}\n  {terms}")
        }
        None => format!("{gpu}\n  no, {user} may not lease {them}: {decided_by}"),
    };
    lines.lines().map(|line| format!("{}\n", harmless(line))).collect()
}

fn in_words(terms: &LeaseTerms) -> String {
    let LeaseTerms { min_mhz, max_mhz, changes_per_second, idle_limit_s, .. } = terms;
    let power = match terms.min_power_limit_w {
        0 => "any power limit that the board supports".to_owned(),
        min_w => format!("power limits from {min_w} W"),
    };
    let restored = match terms.restore_to_mhz {
        None => "the driver's default".to_owned(),
        Some((min, max)) => format!("{} to {max}", min.0),
    };
    let device = match terms.require_device {
        true => "only to a process that can open its device file",
        false => "to any process",
    };
    let process = if terms.require_process { ", while it computes on the GPU" } else { "" };
    format!(
        "{} to {max_mhz}, {changes_per_second} changes/s, restored to {restored}\n  \
         {power}, none above the one that the GPU has without pfo\n  \
         {} sessions per user, idle limit {idle_limit_s} s\n  {device}{process}",
        min_mhz.0, terms.sessions_per_user
    )
}
