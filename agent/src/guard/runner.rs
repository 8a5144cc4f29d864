//! The guard of one job: compares when it is due, corrects a plan that is too slow, and gives it up
//! when that does not help.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use pfo_protocol::{
    GuardStatus, JobView, PlanStatus, Refusal, RefusalCode, Request, Response, SwapTarget, Swapped,
    TrialLength, TrialResult, TrialRun,
};
use pfo_service::unix_s;
use tokio::time::{Instant, sleep};

use crate::guard::comparison::{Comparisons, Verdict};
use crate::guard::file::Corrected;
use crate::guard::guards::{GuardMeans, Guards};
use crate::guard::turns::{DEFAULT_TURN, PLAN_TURN, Turns};
use crate::job::{JobKey, running};
use crate::journal;
use crate::ledger::{Compared, Turn};
use crate::pfod::{Asker, Connection, PfodError, unexpected};
use crate::record;
use crate::refusal::not_written;
use crate::straggler::Labelled;

/// How often to look at the job.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a job may have no rank, or no plan, before its guard ends.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// What somebody asked for.
pub(super) struct Asked {
    /// The slowdown that is allowed, as a share of a step's time at default clocks.
    pub(super) limit: f64,
    /// Gone when the guard has ended or another one is in its place.
    pub(super) in_force: Weak<()>,
}

impl Asked {
    fn is_in_force(&self) -> bool {
        self.in_force.strong_count() > 0
    }
}

/// What is known of the plan that runs.
struct Guarded {
    plan: u32,
    turns: Turns,
    comparisons: Comparisons,
}

/// Guards the job until it ends, runs no plan for long, or the agent ends. A comparison of an
/// earlier agent may have been interrupted; its plan runs again.
pub(super) async fn run(
    guards: Weak<Guards>,
    key: JobKey,
    asked: Asked,
    mut interrupted: Option<Labelled>,
) {
    let began = Instant::now();
    let (mut guarded, mut seen) = (None::<Guarded>, began);
    loop {
        sleep(LOOK_EVERY).await;
        let Some(guards) = guards.upgrade().filter(|_| asked.is_in_force()) else { return };
        if seen.elapsed() > PATIENCE {
            guards.end(&key);
            return;
        }
        let Ok(jobs) = guards.means().questions.jobs().await else { continue };
        let Some(job) = jobs.into_iter().find(|job| JobKey::of(job) == key) else { continue };
        if let Some(plan) = interrupted.take() {
            interrupted = resume(&guards, &key, &job, plan).await;
            continue;
        }
        let (Some(plan), Some(step)) = (running(&job), first_step(&job)) else { continue };
        seen = Instant::now();
        // At default clocks it would draw more than it was given.
        if guards.means().budgets.binds(&key) {
            continue;
        }
        let now_s = began.elapsed().as_secs_f64();
        let of_plan = match &mut guarded {
            Some(of_plan) if of_plan.plan == plan.number => of_plan,
            _ => {
                let corrected = guards.corrected(&key, &plan.label);
                guards.report(&key, |status| {
                    let max_slowdown = status.max_slowdown;
                    *status = GuardStatus { max_slowdown, corrected, ..GuardStatus::default() };
                });
                guarded.insert(Guarded::new(plan.number, Turns::from(step, now_s)))
            }
        };
        let share = guards.means().settings.now().config.guard.share();
        if of_plan.turns.is_due(step, now_s, share, asked.limit) {
            of_plan
                .compare(&guards, &key, (&job, plan), &asked, || began.elapsed().as_secs_f64())
                .await;
        }
    }
}

/// The step that every rank has begun.
pub(super) fn first_step(job: &JobView) -> Option<u64> {
    job.ranks.iter().map(|rank| rank.step).min().flatten()
}

impl Guarded {
    fn new(plan: u32, turns: Turns) -> Self {
        Self { plan, turns, comparisons: Comparisons::default() }
    }

    async fn compare(
        &mut self,
        guards: &Arc<Guards>,
        key: &JobKey,
        (job, plan): (&JobView, &PlanStatus),
        asked: &Asked,
        now_s: impl Fn() -> f64,
    ) {
        let compared = match compare(guards, key, plan).await {
            Ok(Some(compared)) => compared,
            Ok(None) => return self.turns.failed(),
            Err(error) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "the plan of {key} was not compared with default clocks: {error}"
                );
                return self.turns.failed();
            }
        };
        let InTurns { default_s, plan_s, last_step, number, energies } = compared;
        if let Some(compared) = energies {
            guards.means().ledger.take(job, plan, compared);
        }
        if !asked.is_in_force() {
            return;
        }
        let limit = asked.limit;
        self.plan = number;
        self.comparisons.take(default_s, plan_s);
        let (verdict, slowdown) = (self.comparisons.verdict(limit), self.comparisons.mean());
        let is_corrected = guards.corrected(key, &plan.label).is_some();
        self.turns.compared(last_step, now_s(), plan_s[1], verdict == Verdict::Doubtful);
        guards.report(key, |status| {
            (status.slowdown, status.compared_at_step) = (slowdown, Some(last_step));
        });
        match verdict {
            Verdict::Broken(slowdown) if is_corrected => {
                give_up(guards, key, &plan.label, [slowdown, limit]).await;
            }
            Verdict::Broken(slowdown) => self.end(guards, key, plan, [slowdown, limit]).await,
            // Whatever made the plan before too slow, this one has proved itself.
            Verdict::Kept if is_corrected && self.comparisons.are_enough() => {
                note_corrected(guards, key, None);
            }
            Verdict::Kept | Verdict::Doubtful => {}
        }
    }

    /// Corrects a plan that is too slow, or gives it up.
    async fn end(
        &mut self,
        guards: &Arc<Guards>,
        key: &JobKey,
        plan: &PlanStatus,
        figures: [f64; 2],
    ) {
        match correct(guards, key, &plan.label, figures).await {
            // As many comparisons may follow at once as did for the plan before.
            Ok(number) => *self = Self::new(number, self.turns.anew()),
            Err(why) => {
                tracing::info!(
                    uid = key.uid.0, job = %key.name,
                    "no plan takes the place of plan {} of {key}, which is too slow: {why}",
                    plan.label
                );
                give_up(guards, key, &plan.label, figures).await;
            }
        }
    }
}

/// What the turns of a comparison took.
struct InTurns {
    default_s: f64,
    plan_s: [f64; 2],
    last_step: u64,
    /// The number that the plan has from then on.
    number: u32,
    /// For the ledger of savings; none if a GPU has no energy counter.
    energies: Option<Compared>,
}

/// Compares the plan with default clocks, and lets the job run it again, whatever happens. None for
/// a plan that cannot be run again from its clock table.
async fn compare(
    guards: &Guards,
    key: &JobKey,
    plan: &PlanStatus,
) -> Result<Option<InTurns>, PfodError> {
    let means = guards.means();
    let Some(table) = means.questions.plan(key.selector()).await? else { return Ok(None) };
    let plan = Labelled { label: plan.label.clone(), table };
    let noted = guards.note(key, |record| record.comparing = Some(plan.clone()));
    noted.map_err(|error| not_written("that a plan is compared", &error))?;
    let compared = take_turns(means, key, &plan).await;
    if compared.is_err() {
        let _ = swap(means, key, to(plan)).await;
    }
    if let Err(error) = guards.note(key, |record| record.comparing = None) {
        tracing::warn!(
            uid = key.uid.0, job = %key.name,
            "a restart of the agent will bring {key} to the plan that was compared: {error}"
        );
    }
    compared.map(Some)
}

/// Lets a job run the plan again that an earlier agent compared, unless somebody has decided
/// otherwise since. Returns the plan if that has to be tried again.
async fn resume(guards: &Guards, key: &JobKey, job: &JobView, plan: Labelled) -> Option<Labelled> {
    if job.plan.is_none() && job.measured_by.is_none() {
        match swap(guards.means(), key, to(plan.clone())).await {
            Err(PfodError::Away(_)) => return Some(plan),
            Ok(_) | Err(PfodError::Refused(_)) => {}
        }
    }
    let _ = guards.note(key, |record| record.comparing = None);
    None
}

fn to(Labelled { label, table }: Labelled) -> SwapTarget {
    SwapTarget::Table { label, table }
}

async fn swap(means: &GuardMeans, key: &JobKey, target: SwapTarget) -> Result<Response, PfodError> {
    let mut connection = means.pfod.on_behalf(owner(key)).await?;
    let job = key.selector();
    connection.ask(Request::PlanSwap { job, target, at_step: None, after: None, wait: false }).await
}

async fn take_turns(
    means: &GuardMeans,
    key: &JobKey,
    Labelled { label, table }: &Labelled,
) -> Result<InTurns, PfodError> {
    let mut hold = means.pfod.on_behalf(owner(key)).await?;
    let run = || TrialRun::Plan { label: label.clone(), table: table.clone() };
    let before = trial(means, &mut hold, key, run(), PLAN_TURN).await?;
    let default = trial(means, &mut hold, key, TrialRun::DefaultClocks, DEFAULT_TURN).await?;
    let after = trial(means, &mut hold, key, run(), PLAN_TURN).await?;
    let end = Request::TrialsEnd { job: key.selector(), keep: true };
    let kept = match hold.ask(end).await? {
        Response::TrialsEnded(kept) => kept,
        other => return Err(unexpected(&other)),
    };
    let turns = Turn::of(&[&default]).zip(Turn::of(&[&before, &after]));
    Ok(InTurns {
        default_s: step_s(&default),
        plan_s: [step_s(&before), step_s(&after)],
        last_step: after.first_step.saturating_add(after.steps.len() as u64),
        number: kept.map_or(0, |plan| plan.number),
        energies: turns.map(|(default, plan)| Compared {
            at_unix_s: unix_s(SystemTime::now()),
            default,
            plan,
        }),
    })
}

fn owner(key: &JobKey) -> Asker {
    Asker { uid: key.uid, pid: None, administrator: false }
}

async fn trial(
    means: &GuardMeans,
    hold: &mut Connection,
    key: &JobKey,
    run: TrialRun,
    length: TrialLength,
) -> Result<TrialResult, PfodError> {
    let order = record::Order { run, length, room: None };
    Ok(record::run(&means.pfod, hold, key, order).await?.0.trial)
}

/// The mean time of a step, in seconds.
pub(super) fn step_s(trial: &TrialResult) -> f64 {
    trial.steps.iter().map(|step| step.time_s).sum::<f64>() / trial.steps.len().max(1) as f64
}

/// Swaps to a plan that is made for what is allowed. Returns its number.
async fn correct(
    guards: &Guards,
    key: &JobKey,
    label: &str,
    [slowdown, limit]: [f64; 2],
) -> Result<u32, PfodError> {
    let means = guards.means();
    let Some(table) = means.questions.plan(key.selector()).await? else {
        return Err(no_table().into());
    };
    let plan = means.stragglers.corrected(key, table, [slowdown, limit]).await?;
    let now = plan.label.clone();
    note_corrected(guards, key, Some(Corrected { label: now.clone(), slowdown }));
    let number = match swap(means, key, to(plan)).await? {
        Response::Swapped(Swapped { plan: Some(plan), .. }) => plan.number,
        other => return Err(unexpected(&other)),
    };
    guards.report(key, |status| {
        (status.slowdown, status.corrected) = (None, Some(slowdown));
    });
    tracing::warn!(
        name: journal::GUARDED,
        uid = key.uid.0, job = %key.name,
        "{key} changes to plan {now}: with plan {label} its steps take {:.1} % longer than without, \
         and {:.1} % were allowed",
        100.0 * slowdown, 100.0 * limit
    );
    Ok(number)
}

/// Notes which plan took the place of one that was too slow, and may do so only once.
fn note_corrected(guards: &Guards, key: &JobKey, corrected: Option<Corrected>) {
    if let Err(error) = guards.note(key, |record| record.corrected = corrected) {
        tracing::warn!(
            uid = key.uid.0, job = %key.name,
            "a restart of the agent will not know whether the plan of {key} was corrected: {error}"
        );
    }
}

pub(super) fn no_table() -> Refusal {
    let message = "its clocks are not known";
    Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
}

async fn give_up(guards: &Guards, key: &JobKey, label: &str, [slowdown, limit]: [f64; 2]) {
    note_corrected(guards, key, None);
    let swapped = swap(guards.means(), key, SwapTarget::DefaultClocks).await;
    let (slower, allowed) = (100.0 * slowdown, 100.0 * limit);
    match swapped {
        Ok(_) => {
            guards.report(key, |status| status.given_up = Some(slowdown));
            tracing::warn!(
                name: journal::GUARDED,
                uid = key.uid.0, job = %key.name,
                "{key} goes back to default clocks: with plan {label} its steps take {slower:.1} % \
                 longer than without, and {allowed:.1} % were allowed"
            );
        }
        Err(error) => tracing::warn!(
            name: journal::GUARDED,
            uid = key.uid.0, job = %key.name,
            "with plan {label} the steps of {key} take {slower:.1} % longer than without, and \
             {allowed:.1} % were allowed; it could not be brought to default clocks: {error}"
        ),
    }
}
