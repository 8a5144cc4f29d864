//! The frontier of a pipeline, made from its profile.
//!
//! A few dozen deadlines are solved and rounded for themselves. Every other plan is spliced from
//! the two of those around it: half a step in one regime and half in the next is better than a
//! whole step rounded on its own.

use std::collections::HashMap;

use pfo_vocabulary::{Mhz, Watts};

use crate::choices::pareto::{falling, lower_hull};
use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Choices, Realised};
use crate::error::PlanError;
use crate::frontier::clock_per::{ClockPer, Groups};
use crate::frontier::{Frontier, Kept, Point};
use crate::late::clocks::with_late_clocks;
use crate::late::plans::LatePlans;
use crate::limits::{SHORT_STEP, VERY_LONG_STEP};
use crate::parallel::{in_parallel_and_say, in_parallel_as_made};
use crate::pipeline::Pipeline;
use crate::profile::measurement::Measurement;
use crate::progress::Progress;
use crate::realise::Realiser;
use crate::realise::exchange::{AFFORDABLE, AFFORDABLE_TOGETHER, Exchange};
use crate::realise::regimes::regimes;
use crate::realise::splice::{Regimes, Splicer};
use crate::relaxation::anchor::{Anchor, anchors, rounded_s};
use crate::relaxation::bound::LowerBound;
use crate::relaxation::events::Events;
use crate::relaxation::prices::prices_w;
use crate::replay::account;
use crate::waits::per_stage::PerStage;

/// Operations that may be run to find plans to start from, where clocks are late.
const WORTH_STARTING_FROM: usize = 20_000_000;

/// The number of plans to make, and their deadlines.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The largest number of plans; where clocks are late, up to an eighth more that are faster.
    pub plans: usize,
    /// How their deadlines are spread.
    pub spread: Spread,
}

impl Default for Options {
    fn default() -> Self {
        Self { plans: 200, spread: Spread::Useful }
    }
}

/// The iteration times that get plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Four of five plans between the fastest and the one of least energy, the rest beyond. Those
    /// beyond are useful when the pipeline waits for a straggler anyway.
    Useful,
    /// Evenly from the fastest to the slowest, for comparing planners.
    Even,
}

impl Frontier {
    /// Makes the plans. Calls `progress`, from any thread, with the share of the work that is done
    /// (0 to 1).
    ///
    /// # Errors
    /// If a power or the number of plans is out of range, or there are several powers, but not one for
    /// each stage.
    pub fn optimize(
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        options: Options,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<Self, PlanError> {
        // The share of the work that is done before plans are replayed, for a large pipeline.
        const MAKING: f64 = 0.97;
        let (pipeline, p2p_power) = (&*pipeline.thinned(), &p2p_power.into());
        check(pipeline, p2p_power, options)?;
        let progress = Progress::new(progress);
        let tradeoffs = Tradeoffs::new(pipeline, p2p_power);
        let choices = Choices::new(&tradeoffs);
        let making = Making { pipeline, p2p_power, tradeoffs: &tradeoffs, choices: &choices };
        let made = making.all(options, &progress.part(0.0, MAKING));
        let made = falling(made, Realised::cost);
        let rows = rows(pipeline, &choices);
        let replay = |(): &mut (), plan: &Realised| {
            kept(pipeline, p2p_power, |operation| {
                rows[choices.unpacked(&plan.assignment, operation) as usize]
            })
        };
        let plans = in_parallel_and_say(&made, || (), replay, &progress.part(MAKING, 1.0));
        let frontier = Self::new(pipeline.clone(), p2p_power.clone(), None, plans)?;
        Ok(Self { clock_per: Some(ClockPer::Instruction), ..frontier })
    }
}

/// Exchanges begin at every third plan about a deadline, too: from some of them they find a better plan
/// than from the one that is spliced.
const STARTS_APART: usize = 3;

/// A step of so few operations gets all the exchanges that each start is worth.
const SMALL_STEP: usize = 160;

/// What plans are made from.
pub(crate) struct Making<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) p2p_power: &'a PerStage<Watts>,
    pub(crate) tradeoffs: &'a Tradeoffs,
    pub(crate) choices: &'a Choices,
}

/// Plans that were rounded one by one, fastest first, and what they were rounded from.
struct Rounded {
    bound: LowerBound,
    /// None where clocks are prompt.
    anchors: Vec<Anchor>,
    plans: Vec<Realised>,
    regimes: Regimes,
}

impl<'a> Making<'a> {
    /// Plans all along the frontier.
    fn all(&self, options: Options, progress: &Progress<'_>) -> Vec<Realised> {
        // The share of the work that is done after the plans were rounded, for a large pipeline.
        const ROUNDING: f64 = 0.9;
        // The shares of the work that are done after plans for prompt clocks, and after those of few
        // clocks, where plans for late clocks start from them.
        const PROMPT: f64 = 0.1;
        const SELDOM: f64 = 0.15;
        let prompt = progress.part(0.0, if self.has_late_clocks() { PROMPT } else { 1.0 });
        let Rounded { bound, anchors, plans, regimes } =
            self.rounded(None, &prompt.part(0.0, ROUNDING));

        let more_s = rounded_s(self.pipeline);
        let ends_s = [bound.cheapest_s() + more_s, bound.slowest_s() + more_s];
        let deadlines = deadlines(self.realiser().fastest_s(), ends_s, options);
        let new = || Splicer::new(self.realiser(), &regimes, &plans);
        let between = |splicer: &mut Splicer<'_>, deadline_s: &f64| splicer.at(*deadline_s);
        let made = in_parallel_and_say(&deadlines, new, between, &prompt.part(ROUNDING, 1.0));
        if !self.has_late_clocks() {
            return made;
        }
        let are_dear = self.pipeline.network().delays.make_changes_dear();
        let seldom = match are_dear {
            true => self.seldom_changed(&progress.part(PROMPT, SELDOM)),
            false => Vec::new(),
        };
        self.late().make(&anchors, (&plans, seldom), &made, &progress.part(SELDOM, 1.0))
    }

    /// A plan that is as fast as any.
    pub(super) fn fastest(&self) -> Realised {
        let network = self.pipeline.network();
        let operations = 0..network.len();
        let time_s = |op| self.choices.get(self.choices.fastest(op)).time_s;
        let durations_s: Vec<f64> = operations.map(time_s).collect();
        let fastest_s = network.makespan(|operation| durations_s[operation]);
        self.realiser().round(&durations_s, fastest_s)
    }

    /// Plans for one deadline, in seconds: some that keep it, and where none does, the fastest.
    pub(crate) fn at(&self, deadline_s: f64, progress: &Progress<'_>) -> Vec<Realised> {
        // Plans to improve from where clocks are late.
        const WORTH_IMPROVING: usize = 1;
        let Rounded { anchors, mut plans, regimes, .. } = self.rounded(Some(deadline_s), progress);
        let mut realiser = self.realiser();
        let deadline_s = deadline_s.max(realiser.fastest_s());
        let made = Splicer::new(realiser, &regimes, &plans).at(deadline_s);
        if !self.has_late_clocks() {
            return vec![self.exchanged(made, std::iter::empty(), deadline_s, progress)];
        }
        let distance_s = |plan: &Realised| (plan.time_s - deadline_s).abs();
        plans.sort_by(|a, b| distance_s(a).total_cmp(&distance_s(b)));
        plans.truncate(WORTH_IMPROVING);
        self.late().at((&anchors, &plans), &made, deadline_s, progress)
    }

    /// A plan for one deadline, in seconds, made from some about it, at least one of which keeps it.
    pub(super) fn near(
        &self,
        plans: Vec<Realised>,
        deadline_s: f64,
        progress: &Progress<'_>,
    ) -> Realised {
        if self.has_late_clocks() {
            return self.late().near(&plans, deadline_s, progress);
        }
        let plans = falling(plans, Realised::cost);
        let hull = lower_hull(plans.iter().cloned(), Realised::cost);
        let regimes = Regimes(hull);
        let mut realiser = self.realiser();
        let spliced = Splicer::new(self.realiser(), &regimes, &plans).at(deadline_s);
        let mut redistributed =
            |plan: &Realised| realiser.redistribute(plan, deadline_s, (0, 1), progress);
        let plan = redistributed(&spliced);
        let in_time = plans.iter().filter(|plan| plan.time_s <= deadline_s);
        let others = in_time.step_by(STARTS_APART).map(redistributed);
        self.exchanged(plan, others, deadline_s, progress)
    }

    /// A plan for one deadline, in seconds, or, if the step is short, a better one that is found
    /// from it or from others that keep the deadline. In a longer step the others are not made.
    fn exchanged(
        &self,
        plan: Realised,
        mut others: impl Iterator<Item = Realised>,
        deadline_s: f64,
        progress: &Progress<'_>,
    ) -> Realised {
        let network = self.pipeline.network();
        if network.len() > SHORT_STEP {
            return plan;
        }
        let deadline_s = deadline_s.max(plan.time_s);
        let events = Events::new(network);
        let price_w = prices_w(&events, self.tradeoffs, deadline_s, progress);
        let is_small = network.len() <= SMALL_STEP;
        let mut visits_left = if is_small { AFFORDABLE } else { AFFORDABLE_TOGETHER };
        let mut improved = |plan| {
            let exchange = Exchange::new(self.choices, &events, &price_w, deadline_s, visits_left);
            let (plan, left) = exchange.improved(network, plan, progress);
            if !is_small {
                visits_left = left;
            }
            (plan, visits_left)
        };
        let (mut best, mut left) = improved(plan);
        while let Some(plan) = (left > 0).then(|| others.next()).flatten() {
            let (plan, now_left) = improved(plan);
            left = now_left;
            if plan.effective_j < best.effective_j {
                best = plan;
            }
        }
        best
    }

    /// Rounded plans all along the frontier, or about a deadline in seconds.
    fn rounded(&self, near_s: Option<f64>, progress: &Progress<'_>) -> Rounded {
        // The share of the time that goes by until the relaxed problem is solved. In a very long step
        // most plans are rounded meanwhile.
        const SOLVING: f64 = 0.35;
        const SOLVING_VERY_LONG: f64 = 0.85;
        let is_very_long = self.pipeline.network().len() > VERY_LONG_STEP;
        let solving_part = if is_very_long { SOLVING_VERY_LONG } else { SOLVING };
        let solving = progress.part(0.0, solving_part);
        let solve = |pass: &mut dyn FnMut(Anchor)| {
            anchors(self.pipeline, self.p2p_power, self.tradeoffs, near_s, pass, &solving)
        };
        let round = |realiser: &mut Realiser<'_>, anchor: Anchor| {
            solving.go_on();
            let plan = realiser.round(&anchor.durations_s, anchor.deadline_s);
            (self.has_late_clocks().then_some(anchor), plan)
        };
        let (bound, rounded) = in_parallel_as_made(solve, || self.realiser(), round);
        let (anchors, plans): (Vec<Option<Anchor>>, Vec<Realised>) = rounded.into_iter().unzip();
        let anchors = anchors.into_iter().flatten().collect();
        let network = self.pipeline.network();
        let improving = progress.part(solving_part, 1.0);
        let (plans, regimes) = regimes(network, self.choices, plans, &improving);
        progress.say(1.0);
        Rounded { bound, anchors, plans, regimes }
    }

    pub(super) fn has_late_clocks(&self) -> bool {
        self.pipeline.network().delays.make_changes_late()
    }

    fn realiser(&self) -> Realiser<'a> {
        Realiser::new(self.pipeline.network(), self.choices)
    }

    fn late(&self) -> LatePlans<'a> {
        LatePlans::new(self.pipeline, self.tradeoffs, self.choices, self.p2p_power)
    }

    /// Plans that change clocks seldom, to improve from where clocks are late.
    fn seldom_changed(&self, progress: &Progress<'_>) -> Vec<Realised> {
        let mut plans = Vec::new();
        for per in [ClockPer::Kind, ClockPer::Stage] {
            let groups = Groups::new(per, self.pipeline, self.p2p_power, WORTH_STARTING_FROM);
            let Ok(groups) = groups else { continue };
            for coarse in groups.plans(progress) {
                let clocks = groups.clocks(&coarse);
                let assignment = clocks.iter().enumerate().map(|(op, clock)| match clock {
                    Some(clock) => self.choices.nearest(op, *clock),
                    None => self.choices.fastest(op),
                });
                let (time_s, effective_j) = coarse.cost;
                let assignment: Vec<u32> = assignment.collect();
                let assignment = self.choices.packed(&assignment);
                plans.push(Realised { time_s, effective_j, assignment });
            }
        }
        plans
    }
}

/// The times of the plans: from the fastest to the one of least energy, and to the slowest.
fn deadlines(fastest_s: f64, [cheapest_s, slowest_s]: [f64; 2], options: Options) -> Vec<f64> {
    let evenly = |from: f64, to: f64, count: usize| {
        (1..=count).map(move |i| from + (to - from).max(0.0) * i as f64 / count as f64)
    };
    let rest = options.plans - 1;
    let mut deadlines = vec![fastest_s];
    match options.spread {
        Spread::Even => deadlines.extend(evenly(fastest_s, slowest_s, rest)),
        Spread::Useful => {
            let beyond = rest / 5;
            deadlines.extend(evenly(fastest_s, cheapest_s, rest - beyond));
            deadlines.extend(evenly(cheapest_s, slowest_s, beyond));
        }
    }
    deadlines
}

pub(crate) fn check(
    pipeline: &Pipeline,
    p2p_power: &PerStage<Watts>,
    options: Options,
) -> Result<(), PlanError> {
    let num_stages = pipeline.profile().num_stages();
    p2p_power.check(num_stages)?;
    let is_power = |power: &&Watts| power.0.is_finite() && power.0 >= 0.0;
    if let Some(power) = p2p_power.each(num_stages).find(|power| !is_power(power)) {
        return Err(PlanError::BadArgument {
            name: "the P2P-blocking power",
            value: power.to_string(),
            expected: "watts of at least 0",
        });
    }
    if !(2..=Frontier::MAX_PLANS).contains(&options.plans) {
        return Err(PlanError::BadArgument {
            name: "the number of plans",
            value: options.plans.to_string(),
            expected: "between 2 and 100000",
        });
    }
    Ok(())
}

/// A row of an operation's table by its index, and what was measured there.
pub(crate) type Row = (usize, Option<Measurement>);

/// The row of every choice, found once for all plans.
fn rows(pipeline: &Pipeline, choices: &Choices) -> Vec<Row> {
    let mut rows = vec![(0, None); choices.all().len()];
    for (index, operation) in pipeline.network().operations.iter().enumerate() {
        let (fastest, end) = choices.of(index);
        if operation.is_run() && rows[fastest as usize].1.is_none() {
            for choice in fastest..end {
                rows[choice as usize] = row_at(pipeline, index, choices.get(choice).frequency);
            }
        }
    }
    rows
}

/// A plan of these rows of the profile, replayed.
pub(crate) fn kept(
    pipeline: &Pipeline,
    p2p_power: &PerStage<Watts>,
    row: impl Fn(usize) -> Row,
) -> Kept {
    let network = pipeline.network();
    let mut row_of = vec![0; network.len()];
    let mut measured = network.all_unplanned();
    for (index, operation) in network.operations.iter().enumerate() {
        if operation.is_run() {
            let (row, at_row) = row(index);
            row_of[index] = row as u8;
            measured[index] = at_row;
        }
    }
    let measured: Vec<Measurement> = measured.into_iter().flatten().collect();
    let run = with_late_clocks(network, pipeline.profile(), measured, &HashMap::new());
    let replay = account(network, &run, &p2p_power.into());
    Kept {
        point: Point {
            iteration_time_s: replay.iteration_time_s,
            iteration_energy_j: replay.iteration_energy_j,
        },
        rows: network.stages.iter().flatten().map(|&op| row_of[op as usize]).collect(),
    }
}

/// The rows of an operation; none, if it is a transfer.
pub(crate) fn table(pipeline: &Pipeline, operation: usize) -> &[Measurement] {
    let operation = &pipeline.network().operations[operation];
    pipeline.profile().part_table(operation.stage, operation.instruction, operation.part())
}

/// An operation's row at a clock; the first one, if it has none there.
pub(crate) fn row_at(pipeline: &Pipeline, operation: usize, clock: Mhz) -> Row {
    let table = table(pipeline, operation);
    let row = table.binary_search_by_key(&clock, |row| row.frequency).unwrap_or(0);
    let operation = &pipeline.network().operations[operation];
    let profile = pipeline.profile();
    let (stage, instruction, part) = (operation.stage, operation.instruction, operation.part());
    (row, profile.part_at(stage, instruction, part, table[row].frequency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::deadline::Deadline;
    use crate::profile::Profile;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::{Instruction, Stage};

    fn pipeline(profile: &Profile) -> Pipeline {
        Pipeline::new(profile, Schedule::OneForwardOneBackward, 6).unwrap()
    }

    fn optimized(power_w: f64, plans: usize) -> Result<Frontier, PlanError> {
        let options = Options { plans, spread: Spread::Useful };
        Frontier::optimize(&pipeline(&unequal()), Watts(power_w), options, &|_| {})
    }

    #[test]
    fn fastest_and_least_energy_are_the_ends_of_the_points() {
        let frontier = optimized(80.0, 30).unwrap();
        let plans: Vec<Point> = frontier.plans().collect();
        let points: Vec<Point> = frontier.points().collect();
        assert_eq!(plans[frontier.pick(Deadline::Fastest).unwrap()], points[0]);
        assert_eq!(plans[frontier.pick(Deadline::MinEnergy).unwrap()], points[points.len() - 1]);
        assert_eq!(plans[frontier.pick(Deadline::Factor(1.0)).unwrap()], points[0]);
    }

    #[test]
    fn a_deadline_beyond_the_least_energy_gets_the_plan_of_least_energy() {
        let frontier = optimized(80.0, 30).unwrap();
        let cheapest = frontier.pick(Deadline::MinEnergy).unwrap();
        assert_eq!(frontier.pick(Deadline::Seconds(1e6)).unwrap(), cheapest);
    }

    #[test]
    fn a_deadline_gets_the_last_point_that_keeps_it() {
        let frontier = optimized(80.0, 30).unwrap();
        let points: Vec<Point> = frontier.points().collect();
        let between = (points[1].iteration_time_s + points[2].iteration_time_s) / 2.0;
        let picked = frontier.pick(Deadline::Seconds(between)).unwrap();
        assert_eq!(frontier.plans().nth(picked), Some(points[1]));
    }

    #[test]
    fn a_deadline_before_the_fastest_is_refused_with_both_times() {
        let frontier = optimized(80.0, 10).unwrap();
        let fastest_s = frontier.points().next().unwrap().iteration_time_s;
        let message = frontier.pick(Deadline::Seconds(0.25)).unwrap_err().to_string();
        assert!(message.contains("0.25 s"), "{message}");
        assert!(message.contains("takes 1.23 s"), "{message}");
        let just = Deadline::Seconds(fastest_s * (1.0 - 1e-12));
        let message = frontier.pick(just).unwrap_err().to_string();
        assert!(message.contains(&format!("{fastest_s} s")), "{message}");
    }

    #[test]
    fn no_more_plans_are_kept_than_were_asked_for() {
        for plans in [2, 3, 10] {
            assert!(optimized(80.0, plans).unwrap().plans().len() <= plans);
        }
    }

    #[test]
    fn a_place_without_a_plan_is_refused_with_the_number_of_plans() {
        let frontier = optimized(80.0, 5).unwrap();
        let message = frontier.plan(99).unwrap_err().to_string();
        assert!(message.contains("99") && message.contains(&frontier.plans().len().to_string()));
    }

    #[test]
    fn a_power_or_a_number_of_plans_without_sense_is_refused_with_its_value() {
        for power_w in [-1.0, f64::NAN, f64::INFINITY] {
            let message = optimized(power_w, 10).unwrap_err().to_string();
            assert!(message.contains(&format!("{power_w} W")), "{message}");
        }
        for plans in [0, 1, 1_000_000] {
            let message = optimized(80.0, plans).unwrap_err().to_string();
            assert!(message.contains(&plans.to_string()), "{message}");
        }
    }

    #[test]
    fn a_table_of_more_clocks_than_a_frontier_holds_is_thinned_between_its_ends() {
        let row = |mhz: u32, instruction| {
            let time_s = 100.0 / f64::from(mhz);
            let energy_j = time_s * (100.0 + 200.0 * (f64::from(mhz) / 1400.0).powi(3));
            (Stage(0), instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
        };
        let table = |kind| (1001..=1400).map(move |mhz| row(mhz, kind));
        let kinds = [Instruction::Forward, Instruction::Backward];
        let profile = Profile::from_measurements(kinds.into_iter().flat_map(table)).unwrap();
        let of = |per| {
            let options = Options::default();
            Frontier::with_clock_per(per, &pipeline(&profile), Watts(50.0), options, &|_| {})
        };
        for per in ClockPer::ALL {
            let frontier = of(per).unwrap();
            let kept = frontier.pipeline().profile().table(Stage(0), Instruction::Forward);
            assert_eq!(kept.len(), Frontier::MAX_TABLE_ROWS);
            assert_eq!((kept[0].frequency, kept[255].frequency), (Mhz(1001), Mhz(1400)));
            let read = Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap();
            let fastest = read.plan(0).unwrap();
            assert_eq!(fastest.stages[0].instructions[0].frequency_mhz, Mhz(1400));
        }
    }

    #[test]
    fn progress_never_goes_back_on_one_thread_and_stays_within_bounds() {
        let seen = std::sync::Mutex::new(Vec::new());
        let options = Options { plans: 5, spread: Spread::Useful };
        let note = |done| seen.lock().unwrap().push(done);
        Frontier::optimize(&pipeline(&unequal()), Watts(80.0), options, &note).unwrap();
        let seen = seen.into_inner().unwrap();
        assert!(seen.len() > 5 && seen.iter().all(|done| (0.0..=1.0).contains(done)));
    }
}
