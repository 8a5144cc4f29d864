//! Guards of jobs that have ranks on other nodes. What is known of each stands in the store beside what
//! the job runs, so that the node that compares may be another one each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pfo_fleet::{Guard, Length, Run, Standing};
use pfo_protocol::{JobView, RecordedTrial, Refusal, TrialLength};
use pfo_service::unix_s;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, Stands, WholeComparison, WholeTurn};
use crate::guard::comparison::{Comparisons, Verdict};
use crate::guard::guards::Guards;
use crate::guard::runner::{first_step, step_s};
use crate::guard::turns::{DEFAULT_TURN, PLAN_TURN, Turns};
use crate::job::{JobKey, running};
use crate::journal;
use crate::ledger::{Compared, Turn};

/// How often to look at the jobs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long to wait after a comparison that came to nothing, and after another one at most.
const SHORTEST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// Guards the jobs of a fleet for as long as the agent runs.
pub(crate) async fn run(guards: Arc<Guards>, fleet: Arc<Fleet>) {
    let mut guarding: BTreeMap<JobKey, JoinHandle<()>> = BTreeMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        guarding.retain(|_, task| !task.is_finished());
        let Ok(jobs) = guards.means().questions.jobs().await else { continue };
        for key in fleet.jobs() {
            let Some(job) = jobs.iter().find(|job| JobKey::of(job) == key) else { continue };
            if !guarding.contains_key(&key) && guarded(&fleet, job).await.is_some() {
                let (guards, fleet) = (Arc::clone(&guards), Arc::clone(&fleet));
                guarding.insert(key.clone(), tokio::spawn(WholeGuard::run(guards, fleet, key)));
            }
        }
    }
}

/// What a job runs, and its guard, if it is for this node to compare it.
async fn guarded(fleet: &Fleet, job: &JobView) -> Option<(Stands, Guard)> {
    let stands = fleet.stands(&JobKey::of(job)).await?;
    let guard = stands.standing.guard.clone()?;
    fleet.is_for_this_node(job, &guard.by_node).await.then_some((stands, guard))
}

/// The guard of one job, as long as it is for this node.
struct WholeGuard {
    guards: Arc<Guards>,
    fleet: Arc<Fleet>,
    key: JobKey,
    began: Instant,
    /// The comparisons that `turns` knows of.
    known: Option<(u64, u32)>,
    turns: Turns,
    /// Steps at default clocks that the last comparison took, and the time of a step of the plan (s).
    cost: u64,
    usual_s: Option<f64>,
    pause: Duration,
    not_before: Option<Instant>,
}

impl WholeGuard {
    async fn run(guards: Arc<Guards>, fleet: Arc<Fleet>, key: JobKey) {
        let mut guard = Self {
            guards,
            fleet,
            key,
            began: Instant::now(),
            known: None,
            turns: Turns::from(0, 0.0),
            cost: 0,
            usual_s: None,
            pause: SHORTEST_PAUSE,
            not_before: None,
        };
        while guard.look().await {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Compares if that is due. Returns whether the guard is still for this node.
    async fn look(&mut self) -> bool {
        let means = self.guards.means();
        let Ok(job) = means.questions.job(&self.key).await else { return true };
        let Some(job) = job else { return false };
        let Some((stands, guard)) = guarded(&self.fleet, &job).await else { return false };
        let is_plan = matches!(stands.run, Run::Plan(_)) && !stands.in_trial;
        let step = first_step(&job).filter(|step| *step >= stands.step);
        let (Some(_), Some(step), true) = (running(&job), step, is_plan) else { return true };
        let waits = self.not_before.is_some_and(|then| Instant::now() < then);
        if waits || means.budgets.binds(&self.key) {
            return true;
        }
        let share = means.settings.now().config.guard.share();
        let now_s = self.began.elapsed().as_secs_f64();
        self.keep_count(&guard, step, now_s);
        if self.turns.is_due(step, now_s, share, guard.max_slowdown) {
            match self.compare(&job, stands, &guard).await {
                Ok(()) => (self.pause, self.not_before) = (SHORTEST_PAUSE, None),
                Err(why) => self.failed(&why),
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
        let cost = self.cost.max(guard.spent.checked_div(guard.compared.into()).unwrap_or(0));
        self.turns = Turns::going_on((guard.began, guard.spent, cost), soon, (step, now_s));
        self.turns.expect(self.usual_s);
        self.known = known;
    }

    fn failed(&mut self, why: &Refusal) {
        tracing::info!(
            uid = self.key.uid.0, job = %self.key.name,
            "the plan of {} was not compared with default clocks: {why}", self.key
        );
        self.turns.failed();
        self.not_before = Instant::now().checked_add(self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause.saturating_mul(2));
    }

    async fn compare(
        &mut self,
        job: &JobView,
        stands: Stands,
        guard: &Guard,
    ) -> Result<(), Refusal> {
        let Stands { number, run, standing, .. } = stands;
        let mut comparison = WholeComparison::of(&self.fleet, &self.key, number);
        let before = comparison.turn(run.clone(), length(PLAN_TURN)).await?;
        let default = comparison.turn(Run::DefaultClocks, length(DEFAULT_TURN)).await?;
        let after = comparison.turn(run.clone(), length(PLAN_TURN)).await?;
        let (default_s, plan_s) = (mean_s(&default), [mean_s(&before), mean_s(&after)]);
        let spent = after.step.saturating_sub(default.step);
        let over_at = last_step(&after.recorded);
        (self.cost, self.usual_s) = (spent, Some(plan_s[1]));
        let slowdown = Comparisons::slowdown(default_s, plan_s);
        let compared = compared(&run, &default, [&before, &after]);
        let guard = guard.after(spent, Some((slowdown, over_at)));
        let comparisons = Comparisons::of(&guard.slowdowns);
        let (run, standing) = match comparisons.verdict(guard.max_slowdown) {
            Verdict::Broken(slowdown) => {
                self.instead(job, (&run, standing), guard, slowdown, over_at).await
            }
            verdict => {
                // Whatever made the plan before too slow, this one has proved itself.
                let is_proved = verdict == Verdict::Kept && comparisons.are_enough();
                let corrected = guard.corrected.filter(|_| !is_proved);
                (run, Standing { guard: Some(Guard { corrected, ..guard }), ..standing })
            }
        };
        comparison.end((run, standing), compared).await
    }

    /// What the job runs in place of a plan that is too slow: a faster one, once, or default clocks.
    async fn instead(
        &self,
        job: &JobView,
        (run, standing): (&Run, Standing),
        guard: Guard,
        slowdown: f64,
        step: u64,
    ) -> (Run, Standing) {
        let standing = Standing { straggler: None, ..standing };
        let (key, allowed) = (&self.key, guard.max_slowdown);
        let (slower, most) = (100.0 * slowdown, 100.0 * allowed);
        let faster = if guard.corrected.is_some() {
            None
        } else {
            let made = self.corrected(job, run, [slowdown, allowed]).await;
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
                    "{key} changes to plan {faster} on all of its nodes: with plan {run} its steps \
                     take {slower:.1} % longer than without, and {most:.1} % were allowed"
                );
                let guard = Guard { corrected: Some(slowdown), ..guard.anew(step) };
                (faster, Standing { guard: Some(guard), ..standing })
            }
            None => {
                tracing::warn!(
                    name: journal::GUARDED,
                    uid = key.uid.0, job = %key.name,
                    "{key} goes back to default clocks on all of its nodes: with plan {run} its steps \
                     take {slower:.1} % longer than without, and {most:.1} % were allowed"
                );
                let guard = Guard { corrected: None, given_up: Some(slowdown), ..guard };
                (Run::DefaultClocks, Standing { guard: Some(guard), ..standing })
            }
        }
    }

    /// A faster plan, which the store has.
    async fn corrected(&self, job: &JobView, run: &Run, figures: [f64; 2]) -> Result<Run, Refusal> {
        let plan = self.fleet.plan_of(&self.key, run).await?;
        let table = plan.ok_or_else(crate::guard::runner::no_table)?.table;
        let stragglers = &self.guards.means().stragglers;
        // Whoever compares need not be where it was loaded.
        stragglers.find_whole(&self.fleet, job).await?;
        let plan = stragglers.corrected(&self.key, table, figures).await?;
        self.fleet.publish(&self.key, job, plan.label, &plan.table).await
    }
}

fn length(TrialLength { settling_steps, steps }: TrialLength) -> Length {
    Length { settling_steps, steps, samples: false }
}

/// What the ledgers of all nodes are to have of it; none if a GPU has no energy counter.
fn compared(run: &Run, default: &WholeTurn, plan: [&WholeTurn; 2]) -> Option<pfo_fleet::Compared> {
    let Run::Plan(cut) = run else { return None };
    let trial = |turn: &WholeTurn| turn.recorded.trial.clone();
    let [before, after] = plan.map(trial);
    let (default, plan) = (Turn::of(&[&trial(default)])?, Turn::of(&[&before, &after])?);
    let compared = Compared { at_unix_s: unix_s(SystemTime::now()), default, plan };
    Some(compared.shared(cut.label.clone(), cut.predicted.map(|(_, energy_j)| energy_j)))
}

/// The mean time of a step, in seconds.
fn mean_s(turn: &WholeTurn) -> f64 {
    step_s(&turn.recorded.trial)
}

/// The step after the last one that was measured.
fn last_step(recorded: &RecordedTrial) -> u64 {
    recorded.trial.first_step.saturating_add(recorded.trial.steps.len() as u64)
}
