//! EnvPipe as Perseus' evaluation computes it from a profile (the offline baseline of its
//! artifact).
//!
//! The envelope runs at the highest clock; everything else starts at its own least energy. Round by
//! round the slowest clocks of one critical path are raised by one step of the GPU's grid, until
//! that path is the envelope. The original never ends where the last stage is not the heaviest;
//! this ends where nothing is left to raise.

use pfo_vocabulary::{Mhz, Watts};

use super::envpipe::is_on_envelope;
use super::grid::Grid;
use super::outcome::{End, Outcome};
use super::rehearsal::Rehearsal;
use super::unit_time::UnitTime;
use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::profile::measurement::Measurement;
use crate::replay::timeline::predecessors;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;

/// The parameters of offline EnvPipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfflineEnvPipe {
    /// Times are whole multiples of this, rounded down.
    pub unit_time: UnitTime,
    /// The step by which a clock is raised.
    pub raise_step: Mhz,
}

impl Default for OfflineEnvPipe {
    fn default() -> Self {
        Self { unit_time: UnitTime::default(), raise_step: Mhz(15) }
    }
}

/// The limit of the original.
const MOST_ROUNDS: u32 = 10_000;

impl OfflineEnvPipe {
    pub(super) fn outcome(
        &self,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Outcome, PlanError> {
        let grid = Grid::new(pipeline)?;
        let network = pipeline.network();
        let on_envelope: Vec<bool> = network
            .operations
            .iter()
            .map(|operation| is_on_envelope(operation, pipeline))
            .collect();
        let mut step = Rehearsal::new(pipeline, |index| {
            let operation = &network.operations[index];
            let table = pipeline.profile().part_table(
                operation.stage,
                operation.instruction,
                operation.part(),
            );
            if on_envelope[index] { grid.highest() } else { self.cheapest(table) }
        });
        let (rounds, end) = self.raise(network, &grid, &on_envelope, &mut step);
        for (operation, _) in on_envelope.iter().enumerate().filter(|(_, on)| **on) {
            step.set(operation, grid.highest());
        }
        Ok(Outcome::found(vec![step.plan(p2p_power)], 0, rounds, end))
    }

    fn units(&self, time_s: f64) -> u64 {
        (time_s / self.unit_time.seconds()) as u64
    }

    /// The clock of least energy: of those that no other beats in both time and energy, the slowest
    /// in whole units, and of several such the one of most energy.
    fn cheapest(&self, table: &[Measurement]) -> Mhz {
        let mut efficient: Vec<&Measurement> = Vec::new();
        let mut by_time: Vec<&Measurement> = table.iter().collect();
        by_time
            .sort_by(|a, b| a.time_s.total_cmp(&b.time_s).then(a.energy_j.total_cmp(&b.energy_j)));
        for row in by_time {
            if efficient.last().is_none_or(|last| row.energy_j < last.energy_j) {
                efficient.push(row);
            }
        }
        let slowest = efficient.iter().map(|row| self.units(row.time_s)).max();
        efficient
            .into_iter()
            .find(|row| Some(self.units(row.time_s)) == slowest)
            .map_or(Mhz::MAX, |row| row.frequency)
    }

    fn raise(
        &self,
        network: &Network,
        grid: &Grid,
        on_envelope: &[bool],
        step: &mut Rehearsal,
    ) -> (u32, End) {
        for round in 1..=MOST_ROUNDS {
            let mut path = critical_path(network, on_envelope, |index| {
                self.units(step.measured(index).time_s)
            });
            path.retain(|&index| step.is_adjustable(index));
            let clock = |index: usize| step.measured(index).frequency;
            let lowest = path.iter().copied().map(clock).min();
            let slowest: Vec<usize> =
                path.iter().copied().filter(|&index| Some(clock(index)) == lowest).collect();
            let mut has_changed = false;
            for index in slowest {
                let before = step.measured(index);
                step.set(index, grid.raised(before.frequency, self.raise_step));
                has_changed |= step.measured(index) != before;
            }
            if path.iter().all(|&index| on_envelope[index]) {
                return (round, End::Settled);
            }
            if !has_changed {
                return (round, End::Saturated);
            }
        }
        (MOST_ROUNDS, End::Bounded)
    }
}

/// One path of operations without slack, in whole units of time, first to last: of several equally
/// long ones that of the envelope, which the search is to end at.
fn critical_path(
    network: &Network,
    on_envelope: &[bool],
    units: impl Fn(usize) -> u64,
) -> Vec<usize> {
    let n = network.len();
    let mut end = vec![0_u64; n];
    for index in 0..n {
        let start = predecessors(network, index).map(|before| end[before]).max();
        end[index] = start.unwrap_or(0) + units(index);
    }
    // How long the rest of the step takes from the start of each.
    let mut rest = vec![0_u64; n + 1];
    let next = |index: usize| network.successors[index].iter().map(|&after| after as usize);
    for index in (0..n).rev() {
        rest[index] = units(index) + next(index).map(|after| rest[after]).max().unwrap_or(0);
    }
    let length = rest.iter().copied().max().unwrap_or(0);
    let is_critical = |index: usize| end[index] - units(index) + rest[index] == length;
    let first = (0..n).find(|&index| is_critical(index) && end[index] == units(index));
    std::iter::successors(first, |&index| {
        next(index)
            .filter(|&after| after < n)
            .filter(|&after| is_critical(after) && end[after] - units(after) == end[index])
            .max_by_key(|&after| on_envelope[after])
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::power_law;

    /// The pipeline of the reference's simulation: 40 and 80 ms at 1410 MHz, exponent 0.9, cheapest
    /// at 1050 MHz.
    fn outcome(stage_scale: [f64; 4]) -> Outcome {
        let profile = power_law(&stage_scale, [0.04, 0.08], 0.9, &(1050..=1410).step_by(15));
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 16).unwrap();
        OfflineEnvPipe::default().outcome(&pipeline, &Watts(80.0).into()).unwrap()
    }

    #[test]
    fn it_ends_as_the_references_simulation_does() {
        let even = outcome([1.0; 4]);
        assert_eq!((even.end, even.rounds), (End::Settled, 70));
        // "Stuck from iteration 37 on": the round after finds nothing to change.
        let heavy_in_the_middle = outcome([1.0, 1.2, 1.0, 1.0]);
        assert_eq!((heavy_in_the_middle.end, heavy_in_the_middle.rounds), (End::Saturated, 38));
        let heavy_at_the_end = outcome([1.0, 1.0, 1.0, 1.2]);
        assert_eq!(heavy_at_the_end.end, End::Settled);
        assert!(heavy_at_the_end.rounds < even.rounds / 2);
    }

    #[test]
    fn the_cheapest_clock_is_the_slowest_that_pays() {
        let row = |mhz, time_s, energy_j| Measurement { frequency: Mhz(mhz), time_s, energy_j };
        let table = [
            row(900, 0.0600, 12.0),
            row(1000, 0.0549, 10.0),
            row(1100, 0.0541, 11.0),
            row(1200, 0.0500, 13.0),
        ];
        // 900 MHz is slower and dearer; 1000 and 1100 MHz take the same whole milliseconds.
        assert_eq!(OfflineEnvPipe::default().cheapest(&table), Mhz(1100));
    }
}
