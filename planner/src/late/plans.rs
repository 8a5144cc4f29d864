//! Plans for late clocks.
//!
//! A plan for prompt clocks loses time and energy where clocks are late: when a stage changes from
//! a slow clock to a fast one, the first part of the fast instruction is slow, and the fast ones
//! are on the critical path. So plans are evaluated with late clocks and improved by changing one
//! or two clocks at a time, while that saves energy in the same time. The search starts from the
//! plans for prompt clocks, so it is never worse than these; from relaxed schedules, rounded with
//! late clocks in mind; from plans of one clock for each kind or stage; and from the highest clocks,
//! which alone reach the fastest time. Where a step is short enough, a search for each deadline leads
//! out of plans that no such change improves.
//!
//! Where the call that sets a clock blocks, each change has a cost, and a change that comes before
//! the last one is in force a higher one: neighbours whose gain is below it get the same clock.

use std::sync::atomic::{AtomicUsize, Ordering};

use pfo_vocabulary::Watts;

use crate::choices::pareto::falling;
use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Choices, Realised};
use crate::late::clocks::LateClocks;
use crate::late::search::Search;
use crate::late::step::{LateStep, Rates};
use crate::parallel::in_parallel;
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::realise::levels_w;
use crate::relaxation::anchor::Anchor;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;

/// Rounds of moves through the whole step. The first few find nearly everything.
const ROUNDS: usize = 6;

/// Moves that shift more operations than this are not worth the time that following them takes.
const FARTHEST: usize = 256;

/// The same for the highest clocks, where slack is everywhere and only one plan is made.
const FARTHEST_FROM_HIGHEST: usize = 2048;

/// Operations of all plans together that are visited where calls block, some tenths of a second. If
/// there are more, only every n-th plan is improved: the plan that is made for one deadline is improved
/// anyway, and is as good if it starts from others that are not.
const AFFORDABLE: usize = 20_000;

/// The same where calls do not block: it takes no longer than all that comes before.
const AFFORDABLE_WITHOUT_CALLS: usize = 2_000;

/// Operations of the plans to start from for one deadline. If there are more, each is improved in one
/// round: only the best of them is improved further.
const AFFORDABLE_FOR_ONE: usize = 2_500;

/// Where only plans this far apart could be improved, none is but the fastest.
const TOO_FAR_APART: usize = 64;

/// The most changes of the searches for one deadline.
const KICKS: usize = 1000;

/// A change and what follows it take about as long as this many visits of each operation.
const KICK_VISITS: usize = 4;

/// Visits in searches for a whole frontier, which only a short step with few plans has.
const SEARCHED_FOR_ALL: usize = 100_000;

/// The same for one plan.
const SEARCHED_FOR_ONE: usize = 300_000;

/// The additional energy, as a share, of the plans that the searches for one deadline may continue
/// from, one search after the other.
const DETOURS: [f64; 4] = [0.0, 5e-4, 2e-3, 5e-3];

pub(crate) struct LatePlans<'a> {
    network: &'a Network,
    choices: &'a Choices,
    late: LateClocks,
    rates: Rates,
}

impl<'a> LatePlans<'a> {
    pub(crate) fn new(
        pipeline: &'a Pipeline,
        tradeoffs: &Tradeoffs,
        choices: &'a Choices,
        p2p_power: &PerStage<Watts>,
    ) -> Self {
        Self {
            network: pipeline.network(),
            choices,
            late: LateClocks::new(pipeline.network()),
            rates: Rates::new(pipeline, tradeoffs, choices, p2p_power),
        }
    }

    /// For each of `prompt` a plan that takes no more time and energy with late clocks, and up to
    /// an eighth more that are faster. `rounded` are plans all along the frontier to start from, and
    /// `seldom` such that change clocks seldom.
    pub(crate) fn make(
        &self,
        anchors: &[Anchor],
        (rounded, seldom): (&[Realised], Vec<Realised>),
        prompt: &[Realised],
        progress: &Progress<'_>,
    ) -> Vec<Realised> {
        let done = AtomicUsize::new(0);
        let all = anchors.len() + rounded.len() + seldom.len() + prompt.len();
        let delays = self.network.delays;
        let affordable = match delays.make_changes_dear() {
            true => AFFORDABLE,
            false => AFFORDABLE_WITHOUT_CALLS,
        };
        let every = Some((all * self.network.len()).div_ceil(affordable));
        let every = every.filter(|every| delays.make_changes_dear() || *every <= TOO_FAR_APART);
        let say = || {
            let done = done.fetch_add(every.unwrap_or(all), Ordering::Relaxed);
            progress.say((done as f64 / all as f64).min(1.0));
        };
        let prompt = in_parallel(
            prompt,
            || self.near_step(),
            |step, plan| {
                progress.go_on();
                step.load(self.choices.all_unpacked(&plan.assignment));
                step.realised()
            },
        );
        let rounded: Vec<&Realised> = rounded.iter().chain(&seldom).collect();
        let known = self.known((anchors, &rounded), (every, ROUNDS), &prompt, progress, &say);
        let seldom = falling(seldom, Realised::cost);
        let kicks = kicks(SEARCHED_FOR_ALL, self.network.len() * prompt.len());
        let deadlines = match delays.make_changes_dear() {
            true => stretched(&known, &prompt),
            false => deadlines(&known, &falling(prompt, Realised::cost)),
        };
        let deadlines: Vec<(usize, f64)> = deadlines.into_iter().enumerate().collect();
        let pass = |known: &[Realised], seldom: &[Realised]| {
            in_parallel(
                &deadlines,
                || self.near_step(),
                |step, &(place, deadline_s)| {
                    if every.is_none_or(|every| place % every > 0) {
                        return in_time(known, deadline_s).clone();
                    }
                    let plan =
                        self.improved_within(step, (known, seldom), deadline_s, kicks, progress);
                    say();
                    plan
                },
            )
        };
        let mut plans = pass(&known, &seldom);
        if kicks > 0 {
            let known = falling(plans.iter().cloned(), Realised::cost);
            plans.extend(pass(&known, &[]));
        }
        plans
    }

    /// Plans to start from for one deadline, in seconds, and the best of them improved: where none
    /// keeps the deadline, the fastest. `prompt` is one for prompt clocks.
    pub(crate) fn at(
        &self,
        (anchors, rounded): (&[Anchor], &[Realised]),
        prompt: &Realised,
        deadline_s: f64,
        progress: &Progress<'_>,
    ) -> Vec<Realised> {
        let mut step = self.near_step();
        step.load(self.choices.all_unpacked(&prompt.assignment));
        let prompt = [step.realised()];
        let rounded: Vec<&Realised> = rounded.iter().collect();
        let visited = (anchors.len() + rounded.len()) * self.network.len();
        let rounds = if visited > AFFORDABLE_FOR_ONE { 1 } else { ROUNDS };
        let from = (anchors, &rounded[..]);
        let mut known = self.known(from, (Some(1), rounds), &prompt, progress, &|| {});
        let deadline_s = deadline_s.max(known[0].time_s);
        let kicks = kicks(SEARCHED_FOR_ONE, self.network.len());
        known.push(self.improved_within(&mut step, (&known, &[]), deadline_s, kicks, progress));
        known
    }

    /// The best of some plans that keeps a deadline, in seconds, improved.
    pub(crate) fn near(
        &self,
        plans: &[Realised],
        deadline_s: f64,
        progress: &Progress<'_>,
    ) -> Realised {
        let mut step = self.near_step();
        let late = plans.iter().map(|plan| {
            step.load(self.choices.all_unpacked(&plan.assignment));
            step.realised()
        });
        let known = falling(late.collect::<Vec<_>>(), Realised::cost);
        let kicks = kicks(SEARCHED_FOR_ONE, self.network.len());
        self.improved_within(&mut step, (&known, &[]), deadline_s, kicks, progress)
    }

    /// Plans with late clocks to start from, fastest first with falling energy: the `prompt` ones, and
    /// some made from every n-th of the others, in rounds of moves.
    fn known(
        &self,
        (anchors, rounded): (&[Anchor], &[&Realised]),
        (every, rounds): (Option<usize>, usize),
        prompt: &[Realised],
        progress: &Progress<'_>,
        say: &(dyn Fn() + Sync),
    ) -> Vec<Realised> {
        let improved = |step: &mut LateStep<'_>| {
            let plan = self.improved(step, rounds, progress);
            say();
            plan
        };
        let new = || self.near_step();
        let some: Vec<&Anchor> = every_nth(anchors.iter(), every);
        let mut known = in_parallel(&some, new, |step, anchor| {
            step.carry(&anchor.durations_s, anchor.deadline_s);
            improved(step)
        });
        let some: Vec<&Realised> = every_nth(rounded.iter().copied(), every);
        known.extend(in_parallel(&some, new, |step, plan| {
            step.load(self.choices.all_unpacked(&plan.assignment));
            improved(step)
        }));
        known.push(self.fastest(progress));
        known.extend(prompt.iter().cloned());
        falling(known, Realised::cost)
    }

    /// The best plan that is found for a deadline, in seconds, from the slowest known one that keeps
    /// it, or the fastest, and from the slowest of those that change clocks seldom.
    fn improved_within(
        &self,
        step: &mut LateStep<'_>,
        (known, seldom): (&[Realised], &[Realised]),
        deadline_s: f64,
        kicks: u32,
        progress: &Progress<'_>,
    ) -> Realised {
        let mut found = |start: &Realised| {
            step.load(self.choices.all_unpacked(&start.assignment));
            step.aim_at(deadline_s);
            let mut plan = self.improved(step, ROUNDS, progress);
            for (seed, detour) in (0..).zip(DETOURS).take_while(|_| kicks > 0) {
                progress.go_on();
                plan = Search { deadline_s, detour, kicks, seed }.from(step, &plan);
            }
            plan
        };
        let best = found(in_time(known, deadline_s));
        let other = seldom.iter().rev().find(|plan| plan.time_s <= deadline_s).map(found);
        other.filter(|other| other.effective_j < best.effective_j).unwrap_or(best)
    }

    /// A step of the highest clocks, in which moves do not shift many operations.
    fn near_step(&self) -> LateStep<'_> {
        let mut step = self.step();
        step.move_at_most(FARTHEST);
        step
    }

    /// A step of the highest clocks.
    fn step(&self) -> LateStep<'_> {
        LateStep::new(self.network, self.choices, &self.late, &self.rates)
    }

    /// The best plan that is as fast as the highest clocks.
    fn fastest(&self, progress: &Progress<'_>) -> Realised {
        let mut step = self.step();
        step.move_at_most(FARTHEST_FROM_HIGHEST);
        let fastest_s = step.makespan_s();
        for least_w in levels_w(self.choices.best_rate_w(), self.network.len()) {
            progress.go_on();
            step.aim_at(fastest_s);
            for operation in 0..self.network.len() {
                let present = step.choice(operation);
                let worth =
                    self.choices.worth_slowing_to(operation, present, f64::INFINITY, least_w);
                (present + 1..=worth).rev().any(|slower| step.try_out(&[(operation, slower)]));
            }
        }
        step.aim_at(fastest_s);
        step.move_at_most(FARTHEST);
        self.improved(&mut step, ROUNDS, progress)
    }

    /// The plan of a step after every move that saves energy and keeps the deadline, in at most
    /// this number of rounds.
    fn improved(
        &self,
        step: &mut LateStep<'_>,
        rounds: usize,
        progress: &Progress<'_>,
    ) -> Realised {
        // The last round is the one that saves less than this share.
        const LEAST_SHARE: f64 = 1e-5;
        let deadline_s = step.deadline_s();
        for _ in 0..rounds {
            progress.go_on();
            let before_j = step.effective_j();
            for operation in 0..self.network.len() {
                self.move_alone(step, operation);
            }
            step.aim_at(deadline_s);
            progress.go_on();
            for operation in 0..self.network.len() {
                self.trade(step, operation);
            }
            step.aim_at(deadline_s);
            if before_j - step.effective_j() < LEAST_SHARE * before_j.abs() {
                break;
            }
        }
        step.realised()
    }

    /// Slows an operation down, speeds it up, or gives it the clock of a neighbour on its stage,
    /// which avoids a change of clocks.
    fn move_alone(&self, step: &mut LateStep<'_>, operation: usize) {
        let (fastest, end) = self.choices.of(operation);
        let present = step.choice(operation);
        let slower = (present + 1..end).take_while(|&slower| step.try_out(&[(operation, slower)]));
        if slower.count() == 0 {
            let faster = (fastest..present).rev();
            faster.take_while(|&faster| step.try_out(&[(operation, faster)])).count();
        }
        let neighbours = [self.late.previous(operation), self.late.next(operation)];
        for neighbour in neighbours.into_iter().flatten() {
            let clock = self.choices.get(step.choice(neighbour)).frequency;
            step.try_out(&[(operation, self.choices.nearest(operation, clock))]);
        }
    }

    /// Moves time from an operation to one that waits for it, or the other way round.
    fn trade(&self, step: &mut LateStep<'_>, operation: usize) {
        for other in self.network.successors[operation].map(|other| other as usize) {
            if other == self.network.len() {
                continue;
            }
            for (faster, slower) in [(operation, other), (other, operation)] {
                let (fast, slow) = (step.choice(faster), step.choice(slower));
                if fast > self.choices.of(faster).0 && slow + 1 < self.choices.of(slower).1 {
                    step.try_out(&[(faster, fast - 1), (slower, slow + 1)]);
                }
            }
        }
    }
}

/// Every n-th of some plans, or none.
fn every_nth<T>(plans: impl ExactSizeIterator<Item = T>, every: Option<usize>) -> Vec<T> {
    every.map_or_else(Vec::new, |every| plans.step_by(every).collect())
}

/// The changes of each search for some plans of this many operations together.
fn kicks(visits: usize, operations: usize) -> u32 {
    let kicks = (visits / (KICK_VISITS * operations.max(1))).min(KICKS);
    (kicks / DETOURS.len()) as u32
}

/// The slowest plan that keeps a deadline, in seconds; the fastest if none does.
fn in_time(known: &[Realised], deadline_s: f64) -> &Realised {
    &known[known.partition_point(|plan| plan.time_s <= deadline_s).max(1) - 1]
}

/// The times of the plans for prompt clocks, stretched to begin with the fastest plan: where calls
/// block or changes hold up transfers, most plans for prompt clocks are much slower than that.
fn stretched(known: &[Realised], prompt: &[Realised]) -> Vec<f64> {
    let times = || prompt.iter().map(|plan| plan.time_s);
    let (first_s, last_s) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let fastest_s = known[0].time_s;
    let stretch = (last_s - fastest_s) / (last_s - first_s).max(f64::MIN_POSITIVE);
    let deadlines = times().map(|time_s| fastest_s + stretch * (time_s - first_s));
    deadlines.chain([fastest_s]).collect()
}

/// The times of the plans for prompt clocks, and some before the first of them, equally far apart.
fn deadlines(known: &[Realised], prompt: &[Realised]) -> Vec<f64> {
    let mut deadlines: Vec<f64> = prompt.iter().map(|plan| plan.time_s).collect();
    let (fastest_s, first_s) = (known[0].time_s, deadlines[0]);
    let apart_s = (deadlines[deadlines.len() - 1] - first_s) / deadlines.len() as f64;
    let most = 1 + deadlines.len() / 8;
    let more = (((first_s - fastest_s) / apart_s) as usize).min(most);
    let step_s = (first_s - fastest_s) / (more + 1) as f64;
    deadlines.extend((0..=more).map(|i| fastest_s + step_s * i as f64));
    deadlines
}
