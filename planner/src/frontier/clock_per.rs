//! Frontiers of plans that change clocks seldom: one clock for each kind of instruction of a stage,
//! or one for each stage.
//!
//! Where instructions are shorter than the time that a clock takes to be in force, or where a
//! driver minds being asked, such plans do what they predict and others do not.
//!
//! All clocks begin at their fastest. The one that saves most energy per second that the step
//! becomes longer is lowered next, until none saves any more. A step that a stage waits in anyway
//! does not become longer, so slack is used first.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use crate::choices::pareto::{Cost, falling, lower_hull};
use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::frontier::optimize::{Options, check, kept, row_at, table};
use crate::frontier::{Frontier, Kept};
use crate::parallel::in_parallel;
use crate::pipeline::Pipeline;
use crate::profile::measurement::Measurement;
use crate::progress::Progress;
use crate::waits::per_stage::PerStage;

/// Runs of an operation that can be tried in some seconds; if there would be more, fewer clocks of
/// each group are considered.
const AFFORDABLE: usize = 200_000_000;

/// A longer step than this is longer, in seconds.
const TOLERANCE_S: f64 = 1e-9;

/// The part of a step that has a clock of its own in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockPer {
    /// Every instruction of every microbatch.
    #[default]
    Instruction,
    /// All instructions of a kind on a stage, such as its forwards.
    Kind,
    /// All instructions of a stage, which then never changes its clock.
    Stage,
}

impl ClockPer {
    /// All, from the plans that save most to those that ask least of a driver.
    pub const ALL: [Self; 3] = [Self::Instruction, Self::Kind, Self::Stage];

    /// The name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instruction => "instruction",
            Self::Kind => "kind",
            Self::Stage => "stage",
        }
    }
}

impl fmt::Display for ClockPer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ClockPer {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        let found = Self::ALL.into_iter().find(|per| per.name() == name);
        found.ok_or_else(|| PlanError::BadArgument {
            name: "the part of a step that has a clock of its own",
            value: format!("\"{}\"", excerpt(name)),
            expected: "instruction, kind or stage",
        })
    }
}

impl Frontier {
    /// Makes plans with no more clocks than this: for each instruction as [`Frontier::optimize`]
    /// does, or for each kind or stage. Calls `progress`, from any thread, with the share of the
    /// work that is done (0 to 1).
    ///
    /// # Errors
    /// Those of [`Frontier::optimize`]; [`PlanError::NoCommonClock`] if instructions that are to
    /// have the same clock were measured at none in common.
    pub fn with_clock_per(
        per: ClockPer,
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        options: Options,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<Self, PlanError> {
        if per == ClockPer::Instruction {
            return Self::optimize(pipeline, p2p_power, options, progress);
        }
        let (pipeline, p2p_power) = (&*pipeline.thinned(), &p2p_power.into());
        check(pipeline, p2p_power, options)?;
        // The share of the work that is done after plans with a clock for each kind.
        const KINDS: f64 = 0.8;
        let progress = Progress::new(progress);
        let by_kind = progress.part(0.0, if per == ClockPer::Kind { KINDS } else { 1.0 });
        let mut plans = Groups::new(per, pipeline, p2p_power, AFFORDABLE)?.plans(&by_kind);
        if per == ClockPer::Kind
            && let Ok(stages) = Groups::new(ClockPer::Stage, pipeline, p2p_power, AFFORDABLE)
        {
            plans.extend(stages.plans(&progress.part(KINDS, 1.0)));
        }
        let plans = falling(plans, |plan| plan.cost);
        let last = plans.len() - 1;
        let most = options.plans.min(plans.len());
        let spread = (0..most).map(|place| &plans[place * last / (most - 1).max(1)]);
        let plans = spread.map(|plan| plan.kept.clone()).collect();
        let frontier = Self::new(pipeline.clone(), p2p_power.clone(), None, plans)?;
        Ok(Self { clock_per: Some(per), ..frontier })
    }
}

/// The operations that have one clock together.
struct Group {
    operations: Vec<u32>,
    /// The clocks worth choosing, fastest first.
    clocks: Vec<Mhz>,
}

/// A plan, and which of its clocks each group has.
pub(crate) struct Coarse {
    places: Vec<usize>,
    /// Seconds and effective joules.
    pub(crate) cost: Cost,
    kept: Kept,
}

pub(crate) struct Groups<'a> {
    pipeline: &'a Pipeline,
    p2p_power: &'a PerStage<Watts>,
    groups: Vec<Group>,
}

impl<'a> Groups<'a> {
    /// Groups that can all be tried with this many runs of an operation.
    ///
    /// # Errors
    /// [`PlanError::NoCommonClock`].
    pub(crate) fn new(
        per: ClockPer,
        pipeline: &'a Pipeline,
        p2p_power: &'a PerStage<Watts>,
        affordable: usize,
    ) -> Result<Self, PlanError> {
        let mut members: BTreeMap<(Stage, Option<Instruction>), Vec<u32>> = BTreeMap::new();
        for (index, operation) in (0..).zip(&pipeline.network().operations) {
            if operation.is_run() && !operation.instruction.is_fixed() {
                let kind = (per == ClockPer::Kind).then_some(operation.instruction);
                members.entry((operation.stage, kind)).or_default().push(index);
            }
        }
        let instructions = pipeline.num_instructions();
        let most_clocks = affordable / (members.len() * members.len() * instructions).max(1);
        let group = |operations| Group::new(pipeline, p2p_power, operations, most_clocks.max(2));
        let groups = members.into_values().map(group).collect::<Result<_, _>>()?;
        Ok(Self { pipeline, p2p_power, groups })
    }

    /// The plans, fastest first, each with less effective energy than those before.
    pub(crate) fn plans(&self, progress: &Progress<'_>) -> Vec<Coarse> {
        let steps: usize = self.groups.iter().map(|group| group.clocks.len() - 1).sum();
        let mut plans = vec![self.coarse(vec![0; self.groups.len()])];
        for done in 0..steps {
            progress.say(done as f64 / steps as f64);
            let present = &plans[plans.len() - 1];
            match self.best_step(present, progress) {
                Some(next) => plans.push(next),
                None => break,
            }
        }
        falling(plans, |plan| plan.cost)
    }

    /// The plan with one clock lowered that saves most per second.
    fn best_step(&self, present: &Coarse, progress: &Progress<'_>) -> Option<Coarse> {
        let lower: Vec<usize> = (0..self.groups.len())
            .filter(|&group| present.places[group] + 1 < self.groups[group].clocks.len())
            .collect();
        let tried = in_parallel(
            &lower,
            || (),
            |(), &group| {
                progress.go_on();
                let mut places = present.places.clone();
                places[group] += 1;
                self.coarse(places)
            },
        );
        let rate_w = |next: &Coarse| {
            let longer_s = (next.cost.0 - present.cost.0).max(TOLERANCE_S);
            (present.cost.1 - next.cost.1) / longer_s
        };
        tried.into_iter().max_by(|a, b| rate_w(a).total_cmp(&rate_w(b)))
    }

    fn coarse(&self, places: Vec<usize>) -> Coarse {
        let clocks = self.clocks_at(&places);
        let row = |operation: usize| {
            row_at(self.pipeline, operation, clocks[operation].unwrap_or(Mhz(0)))
        };
        let kept = kept(self.pipeline, self.p2p_power, row);
        let waiting_w = self.p2p_power.total_w(self.pipeline.profile().num_stages());
        let (time_s, energy_j) = (kept.point.iteration_time_s, kept.point.iteration_energy_j);
        Coarse { places, cost: (time_s, energy_j - waiting_w * time_s), kept }
    }

    /// For each operation the clock of its group, if it is in one.
    pub(crate) fn clocks(&self, plan: &Coarse) -> Vec<Option<Mhz>> {
        self.clocks_at(&plan.places)
    }

    fn clocks_at(&self, places: &[usize]) -> Vec<Option<Mhz>> {
        let mut clocks = vec![None; self.pipeline.network().len()];
        for (group, &place) in self.groups.iter().zip(places) {
            for &operation in &group.operations {
                clocks[operation as usize] = Some(group.clocks[place]);
            }
        }
        clocks
    }
}

impl Group {
    fn new(
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
        operations: Vec<u32>,
        most_clocks: usize,
    ) -> Result<Self, PlanError> {
        let tables = || operations.iter().map(|&operation| table(pipeline, operation as usize));
        let mut all: Vec<Mhz> = tables().flatten().map(|row| row.frequency).collect();
        all.sort_unstable();
        all.dedup();
        // A table of a single row has no other clock, and keeps its own.
        let has = |table: &[Measurement], clock| {
            table.len() < 2 || table.iter().any(|row| row.frequency == clock)
        };
        let common = all.into_iter().filter(|&clock| tables().all(|table| has(table, clock)));
        let cost = |clock: Mhz| {
            let row = |&operation: &u32| {
                let operation = operation as usize;
                let row = table(pipeline, operation)[row_at(pipeline, operation, clock).0];
                let waiting_w = p2p_power.of(pipeline.network().operations[operation].stage).0;
                (row.time_s, row.energy_j - waiting_w * row.time_s)
            };
            operations.iter().map(row).fold((0.0, 0.0), |(time_s, effective_j), row| {
                (time_s + row.0, effective_j + row.1)
            })
        };
        let costs: Vec<(Mhz, Cost)> = common.map(|clock| (clock, cost(clock))).collect();
        let hull = lower_hull(falling(costs, |&(_, cost)| cost), |&(_, cost)| cost);
        let every = hull.len().div_ceil(most_clocks).max(1);
        let clocks: Vec<Mhz> = hull.iter().step_by(every).map(|&(clock, _)| clock).collect();
        match clocks.is_empty() {
            true => Err(PlanError::NoCommonClock),
            false => Ok(Self { operations, clocks }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::frontier::deadline::Deadline;
    use crate::plan::Plan;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::step::delays::Delays;
    use crate::test_profiles::{power_law, profile, unequal};

    const POWER: Watts = Watts(80.0);

    fn pipeline(scales: &[f64], switch_latency_s: f64) -> Pipeline {
        let profile = power_law(scales, [0.02, 0.04], 0.8, &(800..=1400).step_by(100));
        let delays = Delays { switch_latency_s, ..Delays::default() };
        let settings = Settings { delays, ..Settings::default() };
        Pipeline::with_settings(&profile, Schedule::OneForwardOneBackward, 6, &settings).unwrap()
    }

    fn frontier(per: ClockPer, pipeline: &Pipeline) -> Frontier {
        Frontier::with_clock_per(per, pipeline, POWER, Options::default(), &|_| {}).unwrap()
    }

    /// The most clocks that a stage, or a kind of instruction of a stage, has in a plan.
    fn most_clocks(plan: &Plan, per: ClockPer) -> usize {
        let mut clocks: BTreeMap<_, BTreeSet<Mhz>> = BTreeMap::new();
        for stage in &plan.stages {
            for planned in &stage.instructions {
                let kind = (per == ClockPer::Kind).then_some(planned.instruction);
                clocks.entry((stage.stage, kind)).or_default().insert(planned.frequency_mhz);
            }
        }
        clocks.values().map(BTreeSet::len).max().unwrap()
    }

    #[test]
    fn a_plan_has_no_more_clocks_than_were_asked_for_and_is_what_its_replay_says() {
        let pipeline = pipeline(&[1.0, 0.9, 1.2], 0.015);
        for per in [ClockPer::Kind, ClockPer::Stage] {
            let frontier = frontier(per, &pipeline);
            assert!(frontier.plans().len() > 5);
            for place in 0..frontier.plans().len() {
                let plan = frontier.plan(place).unwrap();
                assert_eq!(most_clocks(&plan, per), 1, "{per}");
                let replayed = replay(pipeline.profile(), &plan, POWER).unwrap();
                assert_eq!(plan.predicted, Some(replayed.into()));
                assert!(per == ClockPer::Kind || replayed.clock_changes == 0);
            }
        }
    }

    #[test]
    fn every_rung_saves_at_least_as_much_as_the_one_with_fewer_clocks() {
        let pipeline = pipeline(&[1.0, 0.8, 1.1], 0.0);
        let [most, kinds, stages] = ClockPer::ALL.map(|per| frontier(per, &pipeline));
        let fastest_s = most.points().next().unwrap().iteration_time_s;
        for factor in [1.0, 1.02, 1.05, 1.1, 1.2] {
            let [most, kinds, stages] = [&most, &kinds, &stages].map(|frontier| {
                let place = frontier.pick(Deadline::Seconds(factor * fastest_s)).unwrap();
                frontier.plan(place).unwrap().predicted.unwrap().iteration_energy_j
            });
            assert!(most < 1.0001 * kinds && kinds <= stages, "{factor}: {most} {kinds} {stages}");
        }
    }

    // Three clocks of two stages and kinds: few enough to try them all.
    #[test]
    fn plans_are_within_two_percent_of_the_best_of_all() {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&unequal(), schedule, 4).unwrap();
        let power = POWER.into();
        let groups = Groups::new(ClockPer::Kind, &pipeline, &power, AFFORDABLE).unwrap();
        let count = |group: usize| groups.groups[group].clocks.len();
        let mut all = vec![Vec::new()];
        for group in 0..groups.groups.len() {
            let longer = |places: Vec<usize>| {
                (0..count(group)).map(move |place| [places.clone(), vec![place]].concat())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        let all: Vec<Kept> = all.into_iter().map(|places| groups.coarse(places).kept).collect();
        let frontier = frontier(ClockPer::Kind, &pipeline);
        for point in frontier.points() {
            let in_time = all
                .iter()
                .filter(|kept| kept.point.iteration_time_s <= point.iteration_time_s + 1e-9);
            let energies = in_time.map(|kept| kept.point.iteration_energy_j);
            let best_j = energies.fold(f64::INFINITY, f64::min);
            assert!(point.iteration_energy_j < 1.02 * best_j, "{point:?}, not {best_j} J");
        }
    }

    #[test]
    fn kinds_without_a_common_clock_have_a_clock_each_but_no_stage_has_one() {
        let rows = |from: usize| (0..5).map(|i| (0.1 + 0.01 * (i + from) as f64, 9.0)).collect();
        let (forward, backward): (Vec<_>, Vec<_>) = (rows(0), rows(3));
        let uneven = profile(&[[&forward[..2], &backward]]);
        let shifted = uneven.rows().map(|(stage, instruction, mut row)| {
            if instruction == Instruction::Backward {
                row.frequency = Mhz(row.frequency.0 + 1);
            }
            (stage, instruction, row)
        });
        let profile = crate::profile::Profile::from_measurements(shifted).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
        let made = |per| {
            Frontier::with_clock_per(per, &pipeline, POWER, Options::default(), &|_| {}).map(|_| ())
        };
        made(ClockPer::Kind).unwrap();
        assert!(matches!(made(ClockPer::Stage), Err(PlanError::NoCommonClock)));
    }

    #[test]
    fn a_rung_is_read_by_its_name() {
        for per in ClockPer::ALL {
            assert_eq!(per.to_string().parse::<ClockPer>().unwrap(), per);
        }
        let message = "microbatch".parse::<ClockPer>().unwrap_err().to_string();
        assert!(message.contains("microbatch") && message.contains("kind"), "{message}");
    }
}
