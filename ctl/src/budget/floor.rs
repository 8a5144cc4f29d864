//! The power that no budget gets a node, or a job, below: a budget under it is nearly always a slip of the
//! hand, such as `5` for `5kW`, and makes every job several times slower.

use std::fmt;

use pfo_protocol::{BudgetScope, GpuName, GpuStatus, Request, Response};

use crate::daemons::{Connection, Pfod};
use crate::exit::Exit;
use crate::explained::Explained;
use crate::status::quantity::watts;

/// What a board draws idle, as a share of its lowest power limit: an H100 70 of 200 W, an A100 54 of 100 W.
const IDLE_SHARE: f64 = 0.35;

/// What the GPUs of a budget draw on this node even where nothing runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floor {
    /// In watts.
    lowest_w: f64,
    gpus: usize,
    /// By which factor steps may take longer at the lowest clock, if jobs run.
    factor: Option<f64>,
}

/// A budget that cannot be kept, and was not ordered with `--force`.
#[derive(Debug, thiserror::Error)]
#[error("a budget of {} {floor}", watts(*.budget_w))]
pub(crate) struct BelowFloor {
    budget_w: f64,
    pub(super) floor: Floor,
}

impl Explained for BelowFloor {
    fn exit(&self) -> Exit {
        Exit::Refused
    }

    fn remedy(&self) -> Option<String> {
        Some(
            "a number without a unit is in watts: 5kW is 5000; --force sets it nevertheless"
                .to_owned(),
        )
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lowest_w, gpus, factor } = self;
        let of_gpus = if *gpus == 1 { "its GPU".to_owned() } else { format!("its {gpus} GPUs") };
        let lowest = watts(*lowest_w);
        write!(
            formatter,
            "is less than the {lowest} below which no limit brings {of_gpus} on this node"
        )?;
        factor.map_or(Ok(()), |factor| {
            write!(
                formatter,
                ": every job would run at its lowest clock and power limit, its steps up to {factor:.1} times \
                 as long, and the budget would be exceeded nevertheless"
            )
        })
    }
}

impl Floor {
    /// That of the GPUs for which a budget counts here; none if that is not known.
    fn of(scope: &BudgetScope, pfod: &mut Connection<Pfod>) -> Option<Self> {
        let status = pfod.status().ok()?;
        let counts = |gpu: &GpuStatus| {
            let holder = gpu.holder.as_ref();
            match scope {
                BudgetScope::Node | BudgetScope::Fleet => true,
                BudgetScope::User(uid) | BudgetScope::FleetUser(uid) => {
                    holder.is_some_and(|holder| holder.uid == *uid)
                }
                BudgetScope::Job(job) | BudgetScope::FleetJob(job) => {
                    holder.is_some_and(|holder| {
                        holder.job == job.job && job.uid.is_none_or(|uid| uid == holder.uid)
                    })
                }
                BudgetScope::Partition(_) | BudgetScope::FleetPartition(_) => false,
            }
        };
        let gpus: Vec<_> = status.gpus.iter().filter(|gpu| counts(gpu)).collect();
        let lowest_w = gpus.iter().map(|gpu| lowest_w(gpu, pfod)).sum();
        let leased = gpus.iter().filter(|gpu| gpu.leased);
        let factor = leased.filter_map(|gpu| factor(gpu, pfod)).reduce(f64::max);
        (!gpus.is_empty()).then_some(Self { lowest_w, gpus: gpus.len(), factor })
    }
}

/// What a GPU draws idle: one without a job what it draws now, and one with a job that takes no limit
/// nothing that is known.
fn lowest_w(gpu: &GpuStatus, pfod: &mut Connection<Pfod>) -> f64 {
    if !gpu.leased {
        return gpu.power_w.unwrap_or(0.0);
    }
    match pfod.ask(Request::PowerLimits(GpuName::Uuid(gpu.uuid.clone()))) {
        Ok(Response::PowerLimits { lowest_w, .. }) => IDLE_SHARE * f64::from(lowest_w),
        _ => 0.0,
    }
}

fn factor(gpu: &GpuStatus, pfod: &mut Connection<Pfod>) -> Option<f64> {
    match pfod.ask(Request::SmClocks(GpuName::Uuid(gpu.uuid.clone()))) {
        Ok(Response::SmClocks(clocks)) => {
            Some(f64::from(clocks.last()?.0) / f64::from(clocks.first()?.0.max(1)))
        }
        _ => None,
    }
}

/// That a budget can be kept as far as this node is concerned. Returns what it costs if it cannot, and is
/// forced.
///
/// # Errors
/// If it cannot be kept, and is not forced.
pub(super) fn check(
    (scope, budget_w): (&BudgetScope, f64),
    is_forced: bool,
    pfod: &mut Connection<Pfod>,
) -> Result<Option<BelowFloor>, BelowFloor> {
    let below = Floor::of(scope, pfod).filter(|floor| budget_w < floor.lowest_w);
    match below.map(|floor| BelowFloor { budget_w, floor }) {
        Some(below) if !is_forced => Err(below),
        below => Ok(below),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_below_its_floor_says_what_it_would_cost() {
        let floor = Floor { lowest_w: 414.0, gpus: 4, factor: Some(6.71) };
        let below = BelowFloor { budget_w: 5.0, floor };
        insta::assert_snapshot!(below, @"a budget of 5 W is less than the 414 W below which no limit brings its 4 GPUs on this node: every job would run at its lowest clock and power limit, its steps up to 6.7 times as long, and the budget would be exceeded nevertheless");
        let idle = Floor { lowest_w: 54.0, gpus: 1, factor: None };
        let below = BelowFloor { budget_w: 5.0, floor: idle };
        insta::assert_snapshot!(below, @"a budget of 5 W is less than the 54 W below which no limit brings its GPU on this node");
    }
}
