//! The experiment that finds the plan for a running job, and proves on the job that it keeps its promise.

mod candidates;
pub(crate) mod changes;
mod curves;
mod held_up;
mod instruction_times;
mod learning;
mod limit_search;
mod microbatches;
mod own_order;
mod p2p_power;
mod planned_power;
mod preflight;
mod profile_source;
mod search;
mod switching;
mod transfers;
mod tuned_job;
mod useful_clocks;
mod with_plans;
mod with_power_limits;

use pfo_planner::{Plan, Zeus, ZeusSearch};
use pfo_protocol::{
    AgentRequest, AgentResponse, JobSelector, RecordedTrial, SamplePage, TrialLength, TrialResult,
    TrialRun,
};

use self::tuned_job::{Proof, TunedJob};
use crate::bench::Bench;
use crate::error::TuneError;
use crate::report::{Kept, Report};
use crate::subject::{Subject, unexpected};
use crate::terms::{Knob, System, TuneOrder};

pub use self::preflight::preflight;
pub use self::profile_source::described;

/// The largest frontier that a guard is given, in bytes. What else is in the request takes far less than
/// the difference: a job's name and a label.
const LARGEST_FRONTIER: usize = pfo_protocol::LARGEST_PAYLOAD - 4096;

/// A job that was tuned.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// What was measured and decided.
    pub report: Report,
    /// The plan that was kept; none at default clocks, and of power limits.
    pub plan: Option<Plan>,
    /// The frontier that the plan is from.
    pub frontier: Option<Vec<u8>>,
}

/// A job that is being tuned.
struct Tuning<'s, 'b, B> {
    subject: &'s mut Subject<'b, B>,
    order: &'s TuneOrder,
    /// Whether the agents of several nodes measure the job together.
    spans_nodes: bool,
}

/// Tunes a job: the plan and default clocks take turns on it. A plan that makes the job slower than allowed
/// is replaced by a faster one. Where a plan saves less than predicted, plans that change clocks less often
/// are tried, too, and the one that saves most is kept. If none saves energy, the job stays at default
/// clocks.
///
/// # Errors
/// If the job cannot be measured or planned for. It then returns to default clocks when the bench is dropped.
pub async fn tune<B: Bench>(
    bench: &mut B,
    job: JobSelector,
    order: &TuneOrder,
) -> Result<Tuned, TuneError> {
    let mut subject = Subject::new(bench, job);
    let spans_nodes = subject.spans_nodes().await?;
    let mut tuning = Tuning { subject: &mut subject, order, spans_nodes };
    let terms = &order.terms;
    let (report, kept) = match (terms.policy, terms.knob) {
        (System::ZeusGlobal, Knob::PowerLimit) => tuning.limit_power(ZeusSearch::Global).await?,
        (System::ZeusPerStage, Knob::PowerLimit) => {
            tuning.limit_power(ZeusSearch::PerStage).await?
        }
        _ => tuning.plan().await?,
    };
    let Kept { plan, frontier } = kept;
    let mut tuned = Tuned { report, plan, frontier };
    if terms.guard && tuned.report.kept.is_some() {
        tuned.guard(&mut subject, terms.max_slowdown).await;
    }
    Ok(tuned)
}

impl Tuned {
    /// Leaves a guard on the plan that is kept.
    async fn guard<B: Bench>(&mut self, subject: &mut Subject<'_, B>, max_slowdown: f64) {
        let job = subject.selector();
        let guard = AgentRequest::Guard { job, max_slowdown: Some(max_slowdown) };
        match subject.agent(guard).await {
            Ok(AgentResponse::Guarded(guard)) => self.report.guard = guard,
            Ok(other) => self.report.unguarded = Some(unexpected(&other).to_string()),
            Err(error) => self.report.unguarded = Some(error.to_string()),
        }
        // A guard that has no frontier gives a plan up instead, so that is no failure.
        let frontier = self.frontier.clone().filter(|_| self.report.guard.is_some());
        if let Some(frontier) = frontier.filter(|bytes| bytes.len() <= LARGEST_FRONTIER) {
            let (job, label) = (subject.selector(), "tuned".to_owned());
            let loaded =
                subject.agent_within(AgentRequest::FrontierLoad { job, label, frontier }, None);
            self.report.correctable = loaded.await.is_ok();
        }
    }
}

impl<'b, B: Bench> Tuning<'_, 'b, B> {
    /// The proof of what is tried, beside the trial at default clocks that was run before.
    fn proving(&mut self, baseline: &TrialResult) -> Result<TunedJob<'_, 'b, B>, TuneError> {
        let terms = &self.order.terms;
        let window = self.subject.window(baseline)?;
        let (max_slowdown, rounds) = (terms.max_slowdown, terms.rounds);
        let turn = terms.turn(window.time_s());
        let policy = terms.policy.name().to_owned();
        let report = Report::new(self.subject.job(), policy, max_slowdown, &window);
        Ok(TunedJob::new(self.subject, report, Proof { max_slowdown, rounds, turn }))
    }

    /// Zeus, which chooses among what is within the allowed slowdown of a step at default clocks.
    fn zeus(&self, default_s: f64) -> Zeus {
        let terms = &self.order.terms;
        let slowest_s = (1.0 + candidates::aim(terms.max_slowdown, 0.0)) * default_s;
        Zeus { slowest_s: Some(slowest_s), ..terms.zeus() }
    }

    /// Measures default clocks, and again with more steps if these are over too soon.
    async fn baseline(&mut self) -> Result<RecordedTrial, TuneError> {
        self.begin_baseline();
        let trial = self.default_clocks(f64::INFINITY).await?;
        match self.longer(&trial.trial) {
            Some(step_s) => self.default_clocks(step_s).await,
            None => Ok(trial),
        }
    }

    /// The same, with each instruction by itself.
    async fn baseline_with_samples(
        &mut self,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), TuneError> {
        self.begin_baseline();
        let (run, turn) = (TrialRun::DefaultClocks, self.length(f64::INFINITY));
        let trial = self.subject.trial_with_samples(&run, turn).await?;
        match self.longer(&trial.0.trial) {
            Some(step_s) => self.subject.trial_with_samples(&run, self.length(step_s)).await,
            None => Ok(trial),
        }
    }

    fn begin_baseline(&mut self) {
        let now = "measuring default clocks".to_owned();
        self.subject.begin(crate::bench::Phase::DefaultClocks, now);
    }

    async fn default_clocks(&mut self, step_s: f64) -> Result<RecordedTrial, TuneError> {
        self.subject.trial(&TrialRun::DefaultClocks, self.length(step_s)).await
    }

    fn length(&self, step_s: f64) -> TrialLength {
        self.order.terms.baseline(step_s)
    }

    /// What a step takes, if that is so little that more of them have to be measured.
    fn longer(&self, trial: &TrialResult) -> Option<f64> {
        // Of steps that are over before the counter moves, only the time is known.
        let took_s: f64 = trial.steps.iter().map(|step| step.time_s).sum();
        let step_s = took_s / trial.steps.len() as f64;
        (self.length(step_s).steps > self.length(f64::INFINITY).steps).then_some(step_s)
    }
}
