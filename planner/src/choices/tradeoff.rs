//! Tradeoffs: the time and effective energy of each clock that is worth choosing.
//!
//! Only *effective* energy counts, e − P·t: the power P that the GPU draws while it waits is paid
//! in any case. Filtering by raw energy, as Perseus does, loses slow clocks that still save energy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use crate::choices::pareto::{Cost, falling, lower_hull};
use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::profile::parts::Part;
use crate::step::operation::Role;
use crate::waits::per_stage::PerStage;

/// A clock worth choosing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) time_s: f64,
    pub(crate) effective_j: f64,
    pub(crate) frequency: Mhz,
}

impl Choice {
    fn cost(&self) -> Cost {
        (self.time_s, self.effective_j)
    }
}

/// The clocks worth choosing for one instruction of one stage.
#[derive(Clone, Debug)]
pub(crate) struct Tradeoff {
    /// Fastest first; each is slower than the one before and takes less effective energy.
    pub(crate) choices: Vec<Choice>,
    /// The indices of those on the lower convex hull.
    pub(crate) hull: Vec<u16>,
}

impl Tradeoff {
    /// Keeps the rows of a table that no other row beats in both time and effective energy.
    pub(crate) fn new(table: &[Measurement], p2p_power: Watts) -> Self {
        let measured = table.iter().map(|row| Choice {
            time_s: row.time_s,
            effective_j: row.energy_j - p2p_power.0 * row.time_s,
            frequency: row.frequency,
        });
        let choices = falling(measured, Choice::cost);
        let hull = lower_hull(0..choices.len() as u16, |&i| choices[usize::from(i)].cost());
        Self { choices, hull }
    }

    /// The measured tradeoff of one kind of operation.
    pub(crate) fn of_kind(pipeline: &Pipeline, kind: Kind, p2p_power: &PerStage<Watts>) -> Self {
        let profile = pipeline.profile();
        match kind {
            Kind::Measured(stage, instruction, part) => {
                let p2p_power = *p2p_power.of(stage);
                Self::measured(profile, (stage, instruction, part), p2p_power)
            }
            Kind::Transfer => Self::unplanned(pipeline.network().delays.transfer_time_s),
            Kind::Junction => Self::unplanned(0.0),
        }
    }

    /// A tradeoff of choices from fast to slow that are all on their hull.
    pub(crate) fn convex(choices: Vec<Choice>) -> Self {
        let hull = (0..).take(choices.len()).collect();
        Self { choices, hull }
    }

    /// The effective energy, in joules, of a mixture of clocks on the hull that takes this long.
    pub(crate) fn mixed_j(&self, time_s: f64) -> f64 {
        let on_hull = |index: usize| &self.choices[usize::from(self.hull[index])];
        let slower = self.hull.partition_point(|&i| self.choices[usize::from(i)].time_s < time_s);
        if slower == 0 {
            return on_hull(0).effective_j;
        }
        if slower == self.hull.len() {
            return on_hull(slower - 1).effective_j;
        }
        let (fast, slow) = (on_hull(slower - 1), on_hull(slower));
        let share = (time_s - fast.time_s) / (slow.time_s - fast.time_s);
        fast.effective_j + share * (slow.effective_j - fast.effective_j)
    }

    /// The tradeoff of a stage's instruction; a fixed one has a single choice.
    pub(crate) fn measured(
        profile: &Profile,
        (stage, instruction, part): (Stage, Instruction, Part),
        p2p_power: Watts,
    ) -> Self {
        let table = profile.part_table(stage, instruction, part);
        match table.first() {
            Some(first) if instruction.is_fixed() => {
                let fixed = profile.part_at(stage, instruction, part, first.frequency);
                Self::new(fixed.as_slice(), p2p_power)
            }
            _ => Self::new(table, p2p_power),
        }
    }

    /// The tradeoff of a transfer or junction. The energy of the stages that wait for it counts as
    /// waiting.
    fn unplanned(time_s: f64) -> Self {
        let choice = Choice { time_s, effective_j: 0.0, frequency: Mhz(0) };
        Self { choices: vec![choice], hull: vec![0] }
    }
}

/// The kinds of operations; all of one kind share a tradeoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A stage's instruction of a part of the step that was measured apart.
    Measured(Stage, Instruction, Part),
    /// A transfer between stages.
    Transfer,
    /// A junction, which takes no time.
    Junction,
}

/// The tradeoffs of all operations of a step.
#[derive(Clone, Debug)]
pub(crate) struct Tradeoffs {
    pub(crate) list: Vec<Tradeoff>,
    /// For each operation, the index of its tradeoff in the list.
    pub(crate) of: Vec<u16>,
}

impl Tradeoffs {
    /// The measured tradeoffs.
    pub(crate) fn new(pipeline: &Pipeline, p2p_power: &PerStage<Watts>) -> Self {
        let Ok(tradeoffs) = Self::by_kind(pipeline, |kind| {
            Ok::<_, Infallible>(Tradeoff::of_kind(pipeline, kind, p2p_power))
        });
        tradeoffs
    }

    /// Tradeoffs that `make` makes for each kind of operation.
    pub(crate) fn by_kind<E>(
        pipeline: &Pipeline,
        mut make: impl FnMut(Kind) -> Result<Tradeoff, E>,
    ) -> Result<Self, E> {
        let mut list = Vec::new();
        let mut known = HashMap::new();
        let mut of = Vec::with_capacity(pipeline.network().len());
        for operation in &pipeline.network().operations {
            let kind = match operation.role {
                Role::Instruction => {
                    let (stage, instruction) = (operation.stage, operation.instruction);
                    let part = pipeline.profile().part_of(stage, instruction, operation.part());
                    Kind::Measured(stage, instruction, part)
                }
                Role::Transfer => Kind::Transfer,
                Role::Junction => Kind::Junction,
            };
            of.push(match known.entry(kind) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    list.push(make(kind)?);
                    // At most 11 instructions of each of at most 2048 parts, and two.
                    *entry.insert(list.len() as u16 - 1)
                }
            });
        }
        Ok(Self { list, of })
    }

    pub(crate) fn get(&self, operation: usize) -> &Tradeoff {
        &self.list[usize::from(self.of[operation])]
    }

    /// The effective energy, in joules, with every operation at its cheapest clock.
    pub(crate) fn least_effective_j(&self) -> f64 {
        let cheapest = self.list.iter().map(|tradeoff| tradeoff.choices.last());
        let cheapest: Vec<f64> =
            cheapest.map(|choice| choice.map_or(0.0, |c| c.effective_j)).collect();
        self.of.iter().map(|&index| cheapest[usize::from(index)]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(u32, f64, f64)]) -> Vec<Measurement> {
        rows.iter()
            .map(|&(mhz, time_s, energy_j)| Measurement { frequency: Mhz(mhz), time_s, energy_j })
            .collect()
    }

    fn clocks(tradeoff: &Tradeoff) -> Vec<u32> {
        tradeoff.choices.iter().map(|choice| choice.frequency.0).collect()
    }

    #[test]
    fn a_clock_that_is_slower_and_dearer_is_dropped_even_if_it_is_the_highest() {
        let rows = table(&[(1000, 2.0, 10.0), (1500, 1.0, 20.0), (1700, 1.1, 22.0)]);
        assert_eq!(clocks(&Tradeoff::new(&rows, Watts(0.0))), [1500, 1000]);
    }

    #[test]
    fn a_clock_that_costs_more_energy_is_kept_if_waiting_would_cost_still_more() {
        let rows = table(&[(1000, 2.0, 21.0), (1500, 1.0, 20.0)]);
        assert_eq!(clocks(&Tradeoff::new(&rows, Watts(0.0))), [1500]);
        assert_eq!(clocks(&Tradeoff::new(&rows, Watts(5.0))), [1500, 1000]);
    }

    #[test]
    fn the_hull_leaves_out_what_lies_above_the_line_between_its_neighbours() {
        let rows = table(&[(4, 1.0, 10.0), (3, 2.0, 9.0), (2, 3.0, 4.0), (1, 4.0, 3.0)]);
        let tradeoff = Tradeoff::new(&rows, Watts(0.0));
        assert_eq!(tradeoff.choices.len(), 4);
        assert_eq!(tradeoff.hull, [0, 2, 3]);
    }

    #[test]
    fn of_equally_fast_clocks_the_cheaper_one_is_kept() {
        let rows = table(&[(1000, 1.0, 10.0), (1500, 1.0, 9.0)]);
        assert_eq!(clocks(&Tradeoff::new(&rows, Watts(0.0))), [1500]);
    }
}
