//! The guard of one job: compares when it is due, corrects a plan that is too slow, and gives it up when
//! that does not help. What is known of it stands beside what the job runs, so that the agent that compares
//! may be another one each time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pfo_experiment::Usual;
use pfo_fleet::{Guard, Run, Standing};
use pfo_protocol::{JobView, Refusal, RefusalCode, TrialResult};
use pfo_service::unix_s;

use crate::guard::comparison::{Comparisons, Verdict};
use crate::guard::turns::{Lengths, Turns};
use crate::job::{JobKey, running};
use crate::journal;
use crate::ledger::Compared;
use crate::steer::{Stands, Steer, SteerError, no_table};
use crate::straggler::Stragglers;

/// How long to wait after a comparison that came to nothing, and after another one at most.
const SHORTEST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// What a guard may do.
#[derive(Clone, Copy)]
pub(super) struct Allowed<'a> {
    /// The share of the steps that may run at default clocks.
    pub(super) share: f64,
    /// Whether a power budget binds the job now: at default clocks it would draw more than it was given, and
    /// what holds it makes its steps longer.
    pub(super) in_budget: &'a (dyn Fn() -> bool + Sync),
}

/// The guard of one job, as long as it is for this node.
pub(super) struct JobGuard {
    stragglers: Arc<Stragglers>,
    /// The comparisons that `turns` knows of.
    known: Option<(u64, u32)>,
    turns: Turns,
    /// Steps at default clocks that the last comparison took, and the time of a step of the plan (s).
    cost: u64,
    usual_s: Option<f64>,
    pause: Duration,
    not_before: Duration,
}

impl JobGuard {
    pub(super) fn new(stragglers: Arc<Stragglers>) -> Self {
        Self {
            stragglers,
            known: None,
            turns: Turns::from(0, 0.0),
            cost: 0,
            usual_s: None,
            pause: SHORTEST_PAUSE,
            not_before: Duration::ZERO,
        }
    }

    /// Compares if that is due `now`, since any beginning. Returns whether the guard is still for this
    /// node.
    pub(super) async fn look(
        &mut self,
        job: &dyn Steer,
        allowed: Allowed<'_>,
        now: Duration,
    ) -> bool {
        let Ok(stands) = job.stands().await else { return true };
        let Some(guard) = stands.standing.guard.clone() else { return false };
        match job.is_for_this_node(&guard.by_node).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(_) => return true,
        }
        let is_plan = matches!(stands.run, Run::Plan(_)) && !stands.in_trial;
        let step = first_step(&stands.view).filter(|step| *step >= stands.step);
        let (Some(_), Some(step), true) = (running(&stands.view), step, is_plan) else {
            return true;
        };
        if now < self.not_before || (allowed.in_budget)() {
            return true;
        }
        let now_s = now.as_secs_f64();
        self.keep_count(&guard, step, now_s);
        if self.turns.is_due(step, now_s, allowed.share, guard.max_slowdown) {
            match self.compare(job, stands, &guard, allowed.in_budget).await {
                Ok(()) => self.pause = SHORTEST_PAUSE,
                Err(why) => self.failed(job.key(), &why, now),
            }
        }
        true
    }

    /// Continues from all comparisons that are known, those of other nodes included.
    fn keep_count(&mut self, guard: &Guard, step: u64, now_s: f64) {
        let known = Some((guard.began, guard.compared));
        if self.known == known {
            return;
        }
        let verdict = Comparisons::of(&guard.slowdowns).verdict(guard.max_slowdown);
        let soon = guard.slowdowns.is_empty() || verdict == Verdict::Doubtful;
        // Rounded up: with less than their mean, the third comparison would wait for its share of steps.
        let mean = guard.spent.div_ceil(u64::from(guard.compared).max(1));
        let cost = self.cost.max(mean);
        self.turns = Turns::going_on((guard.began, guard.spent, cost), soon, (step, now_s));
        self.turns.expect(self.usual_s);
        self.known = known;
    }

    fn failed(&mut self, key: &JobKey, why: &SteerError, now: Duration) {
        tracing::info!(
            uid = key.uid.0, job = %key.name,
            "the plan of {key} was not compared with default clocks: {why}"
        );
        self.turns.failed();
        self.not_before = now.saturating_add(self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause.saturating_mul(2));
    }

    async fn compare(
        &mut self,
        job: &dyn Steer,
        stands: Stands,
        guard: &Guard,
        in_budget: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), SteerError> {
        let Stands { view, number, run, standing, .. } = stands;
        let mut comparison = job.compare(number);
        let lengths = Lengths::of(self.usual_s.or_else(|| step_s_of(&view)));
        let before = comparison.turn(run.clone(), lengths.plan).await?;
        let default = comparison.turn(Run::DefaultClocks, lengths.default).await?;
        let after = comparison.turn(run.clone(), lengths.plan).await?;
        if in_budget() {
            return Err(nothing_compared("a power budget has held the job meanwhile"));
        }
        let spent = after.step.saturating_sub(default.step);
        let over_at = last_step(&after.trial);
        (self.cost, self.usual_s) = (spent, Some(step_s(&after.trial)));
        let slowdown = slowdown(&default.trial, [&before.trial, &after.trial])?;
        let compared = compared(&run, &default.trial, [&before.trial, &after.trial]);
        let guard = guard.after(spent, Some((slowdown, over_at)));
        let comparisons = Comparisons::of(&guard.slowdowns);
        let (run, standing) = match comparisons.verdict(guard.max_slowdown) {
            Verdict::Broken(slowdown) => {
                self.instead((job, &view), (&run, standing), guard, slowdown, over_at).await
            }
            Verdict::Kept | Verdict::Doubtful => {
                // Whatever made the plan before too slow, this one has proved itself.
                let is_proved = comparisons.are_within(guard.max_slowdown);
                let corrected = guard.corrected.filter(|_| !is_proved);
                (run, Standing { guard: Some(Guard { corrected, ..guard }), ..standing })
            }
        };
        comparison.end((run, standing), compared).await
    }

    /// What the job runs in place of a plan that is too slow: a faster one, once, or default clocks.
    async fn instead(
        &self,
        (job, view): (&dyn Steer, &JobView),
        (run, standing): (&Run, Standing),
        guard: Guard,
        slowdown: f64,
        step: u64,
    ) -> (Run, Standing) {
        let standing = Standing { straggler: None, ..standing };
        let (key, allowed) = (job.key(), guard.max_slowdown);
        let (slower, most) = (100.0 * slowdown, 100.0 * allowed);
        let faster = if guard.corrected.is_some() {
            None
        } else {
            let made = self.corrected((job, view), run, [slowdown, allowed]).await;
            let made = made.inspect_err(|why| {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "no plan takes the place of plan {run} of {key}, which is too slow: {why}"
                );
            });
            made.ok()
        };
        match faster {
            Some(faster) => {
                tracing::warn!(
                    name: journal::GUARDED,
                    uid = key.uid.0, job = %key.name,
                    "{key} changes to plan {faster}: with plan {run} its steps take {slower:.1} % longer \
                     than without, and {most:.1} % were allowed"
                );
                let guard = Guard { corrected: Some(slowdown), ..guard.anew(step) };
                (faster, Standing { guard: Some(guard), ..standing })
            }
            None => {
                tracing::warn!(
                    name: journal::GUARDED,
                    uid = key.uid.0, job = %key.name,
                    "{key} goes back to default clocks: with plan {run} its steps take {slower:.1} % \
                     longer than without, and {most:.1} % were allowed"
                );
                // That it was corrected before says why nothing else was tried.
                let guard = Guard { given_up: Some(slowdown), ..guard };
                (Run::DefaultClocks, Standing { guard: Some(guard), ..standing })
            }
        }
    }

    /// A faster plan.
    async fn corrected(
        &self,
        (job, view): (&dyn Steer, &JobView),
        run: &Run,
        figures: [f64; 2],
    ) -> Result<Run, SteerError> {
        let table = job.plan_of(run).await?.ok_or_else(no_table)?.table;
        let known = self.stragglers.find(job, view).await?;
        let plan = self.stragglers.corrected(&known, table, figures).await?;
        job.publish(plan).await
    }
}

/// The step that every rank has begun.
fn first_step(job: &JobView) -> Option<u64> {
    job.ranks.iter().map(|rank| rank.step).min().flatten()
}

/// The mean time of a step of its plan, in seconds, if it has run some.
fn step_s_of(job: &JobView) -> Option<f64> {
    let window = job.ranks.first()?.window.filter(|window| window.steps > 0)?;
    Some(window.time_s / window.steps as f64)
}

/// The slowdown of usual steps of the plan.
fn slowdown(default: &TrialResult, plan: [&TrialResult; 2]) -> Result<f64, SteerError> {
    let usual = Usual::of(&plan);
    let default_s = usual.at_default_clocks(default).step_s(default);
    match (default_s, plan.map(|turn| usual.step_s(turn))) {
        (Some(default_s), [Some(before_s), Some(after_s)]) => {
            Ok(Comparisons::slowdown(default_s, [before_s, after_s]))
        }
        _ => Err(nothing_compared("something held up all steps of a turn")),
    }
}

fn nothing_compared(why: &str) -> SteerError {
    let remedy = "wait for the next comparison";
    SteerError::Meanwhile(Refusal::new(RefusalCode::LimitReached, why, remedy))
}

/// What the ledgers of all nodes are to have of it; none if a GPU has no energy counter.
fn compared(
    run: &Run,
    default: &TrialResult,
    plan: [&TrialResult; 2],
) -> Option<pfo_fleet::Compared> {
    let Run::Plan(cut) = run else { return None };
    let compared = Compared::of(default, &plan, unix_s(SystemTime::now()))?;
    Some(compared.shared(cut.label.clone(), cut.predicted.map(|(_, energy_j)| energy_j)))
}

/// The mean time of a step, in seconds.
fn step_s(trial: &TrialResult) -> f64 {
    trial.steps.iter().map(|step| step.time_s).sum::<f64>() / trial.steps.len().max(1) as f64
}

/// The step after the last one that was measured.
fn last_step(trial: &TrialResult) -> u64 {
    trial.first_step.saturating_add(trial.steps.len() as u64)
}
