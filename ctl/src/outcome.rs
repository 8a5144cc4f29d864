//! Outcomes that are printed like any other and that a script still has to take for a failure.

use crate::exit::Exit;
use crate::explained::Explained;
use crate::in_force::NotInForce;
use crate::text::harmless;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadOutcome {
    #[error("pfo could not unlock {count} of {total} GPUs")]
    NotRestored { count: usize, total: usize },
    #[error("{user} may not lease {}", any_of(*.gpus))]
    NoLease { user: String, gpus: usize },
    #[error("{0}")]
    ConfigRefused(String),
    #[error("{}", not_all_changed(*.changed, *.ranks, *.step))]
    NotAllChanged { changed: u32, ranks: u32, step: u64 },
    #[error("{}", not_in_force(.0))]
    NotInForce(Vec<NotInForce>),
    #[error("{late} of {nodes} nodes ran something else from step {step} on")]
    LateNodes { late: u32, nodes: u32, step: u64 },
    #[error("{}", wrong(*.count))]
    Unwell { count: usize },
    #[error("{}", failed(*.count))]
    NotHeld { count: usize },
}

fn any_of(gpus: usize) -> String {
    match gpus {
        1 => "this GPU".to_owned(),
        gpus => format!("any of the {gpus} GPUs"),
    }
}

fn not_all_changed(changed: u32, ranks: u32, step: u64) -> String {
    match changed {
        0 => format!("no rank changed at step {step}: all ended before"),
        _ => format!("{changed} of {ranks} ranks changed at step {step}; the others ended before"),
    }
}

fn not_in_force(ranks: &[NotInForce]) -> String {
    let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    harmless(&format!("not in force on {}", ranks.join("; "))).into_owned()
}

fn wrong(count: usize) -> String {
    match count {
        1 => "1 of the findings above is wrong on this node".to_owned(),
        count => format!("{count} of the findings above are wrong on this node"),
    }
}

fn failed(count: usize) -> String {
    match count {
        1 => "1 of the checks above failed".to_owned(),
        count => format!("{count} of the checks above failed"),
    }
}

impl Explained for BadOutcome {
    fn exit(&self) -> Exit {
        match self {
            Self::NoLease { .. } => Exit::Refused,
            Self::NotInForce(_) => Exit::NotInForce,
            Self::NotRestored { .. }
            | Self::ConfigRefused(_)
            | Self::NotAllChanged { .. }
            | Self::LateNodes { .. }
            | Self::Unwell { .. }
            | Self::NotHeld { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NotRestored { .. } => {
                "a GPU that a rank holds is unlocked when the rank ends; `pfoctl status` says what \
                 is wrong with the others"
            }
            Self::ConfigRefused(_) => {
                "the configuration before it stays in force; correct the file and reload"
            }
            Self::NotInForce(_) => {
                "pfod tries again at each step, and `pfoctl status` shows the reason until it succeeds; \
                 `pfoctl doctor` checks pfod's rights and the driver"
            }
            Self::NotAllChanged { changed: 0, .. } => {
                "a job that comes back changes to it nevertheless; `pfoctl plan swap` or \
                 `rollback` replaces it"
            }
            Self::NotAllChanged { .. } | Self::LateNodes { .. } => {
                "`pfoctl status` shows what runs now"
            }
            Self::NoLease { .. } | Self::Unwell { .. } | Self::NotHeld { .. } => return None,
        };
        Some(remedy.to_owned())
    }
}
