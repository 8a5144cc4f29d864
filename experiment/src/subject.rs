//! A job that an experiment measures: trial after trial, again when a daemon restarts meanwhile.

use std::time::Duration;

use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, JobSelector, JobStatus, PlanStatus, Rank, RecordedTrial,
    Request, Response, SamplePage, Status, TrialLength, TrialResult, TrialRun,
};

use crate::bench::{Bench, BenchError, Phase, Progress};
use crate::error::TuneError;
use crate::trouble::Trouble;
use crate::window::{NoEnergy, Window};

/// How often a trial is repeated because the energy of a step is not known: a node that was away, or a
/// busy one, reads a counter late now and then.
const ENERGY_REPEATS: u32 = 2;

/// The job, and the bench on which it is measured.
pub(crate) struct Subject<'a, B> {
    bench: &'a mut B,
    job: JobSelector,
    /// Those of the first trial. Trials of other ranks cannot be compared with it.
    ranks: Option<Vec<Rank>>,
    /// What a step took last, in seconds.
    step_s: Option<f64>,
    progress: Progress,
}

impl<'a, B: Bench> Subject<'a, B> {
    pub(crate) fn new(bench: &'a mut B, job: JobSelector) -> Self {
        let now = "looking at the job".to_owned();
        let (done, remaining_s, saving) = (0.0, None, None);
        let progress = Progress { phase: Phase::Profile, now, done, remaining_s, saving };
        Self { bench, job, ranks: None, step_s: None, progress }
    }

    pub(crate) fn selector(&self) -> JobSelector {
        self.job.clone()
    }

    pub(crate) fn job(&self) -> JobName {
        self.job.job.clone()
    }

    /// The job in a status; none if it has no ranks on the node.
    pub(crate) fn in_status<'s>(&self, status: &'s Status) -> Option<&'s JobStatus> {
        let owner = self.job.uid;
        let is_meant = |job: &&JobStatus| {
            job.job == self.job.job && owner.is_none_or(|owner| owner == job.uid)
        };
        status.jobs.iter().find(is_meant)
    }

    /// What the experiment does from now on.
    pub(crate) fn begin(&mut self, phase: Phase, now: String) {
        self.progress.phase = phase;
        self.show(now, 0.0, None);
    }

    /// How far that is; `left` are the steps that it will still take.
    pub(crate) fn show(&mut self, now: String, done: f64, left: Option<u64>) {
        self.progress.now = now;
        self.progress.done = done;
        self.progress.remaining_s =
            self.step_s.zip(left).map(|(step_s, left)| step_s * left as f64);
        self.bench.show(self.progress.clone());
    }

    pub(crate) fn saves(&mut self, saving: f64) {
        self.progress.saving = Some(saving);
    }

    pub(crate) fn remark(&mut self, line: String) {
        self.bench.remark(line);
    }

    /// Computes something that takes a while.
    pub(crate) async fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TuneError> {
        Ok(self.bench.compute(work).await?)
    }

    /// Asks the agent, through a restart of a daemon.
    pub(crate) async fn agent(
        &mut self,
        request: AgentRequest,
    ) -> Result<AgentResponse, TuneError> {
        let mut trouble = Trouble::default();
        loop {
            match self.bench.agent(request.clone(), None).await {
                Ok(answer) => return Ok(answer),
                Err(error) => trouble.wait_out(error.into(), self.bench).await?,
            }
        }
    }

    /// Asks the agent once, for no longer than this.
    pub(crate) async fn agent_within(
        &mut self,
        request: AgentRequest,
        within: Option<Duration>,
    ) -> Result<AgentResponse, BenchError> {
        self.bench.agent(request, within).await
    }

    /// Whether the experiment was interrupted, and the job was not measured since.
    pub(crate) fn is_resumed(&self) -> bool {
        self.bench.is_resumed()
    }

    /// Waits until it is time to ask again.
    pub(crate) async fn wait_out(
        &mut self,
        trouble: &mut Trouble,
        error: TuneError,
    ) -> Result<(), TuneError> {
        trouble.wait_out(error, self.bench).await
    }

    /// Asks `pfod`, through its restart.
    pub(crate) async fn pfod(&mut self, request: Request) -> Result<Response, TuneError> {
        let mut trouble = Trouble::default();
        loop {
            match self.bench.pfod(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => trouble.wait_out(error.into(), self.bench).await?,
            }
        }
    }

    /// Asks `pfod` what it may not know.
    pub(crate) async fn pfod_once(&mut self, request: Request) -> Option<Response> {
        self.bench.pfod(request).await.ok()
    }

    pub(crate) async fn status(&mut self) -> Result<Status, TuneError> {
        match self.pfod(Request::Status).await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs one trial. It begins again when the job is back if a daemon restarts meanwhile, and a few
    /// times if a counter was not read in time.
    pub(crate) async fn trial(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
    ) -> Result<RecordedTrial, TuneError> {
        Ok(self.recorded(run, length, false).await?.0)
    }

    /// The same, with each instruction by itself.
    pub(crate) async fn trial_with_samples(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), TuneError> {
        let (trial, pages) = self.recorded(run, length, true).await?;
        for of_rank in pages.chunk_by(|page, next| page.rank == next.rank) {
            if let Some(SamplePage { rank, dropped: dropped @ 1.., .. }) = of_rank.first() {
                self.bench.remark(format!(
                    "pfo-agent had no room for {dropped} more instructions of rank {rank}; measure \
                     fewer steps at once"
                ));
            }
        }
        Ok((trial, pages))
    }

    /// Time and energy of the steps of a trial.
    pub(crate) fn window(&self, trial: &TrialResult) -> Result<Window, TuneError> {
        Window::of(trial).map_err(|NoEnergy| TuneError::NoEnergy { job: self.job() })
    }

    /// Runs a plan and ends the hold; the job continues with the plan.
    pub(crate) async fn keep(&mut self, plan: &TrialRun) -> Result<Option<PlanStatus>, TuneError> {
        loop {
            self.trial(plan, TrialLength { settling_steps: 1, steps: 1 }).await?;
            match self.end(true).await {
                // It is at default clocks, and the trial has to be run again.
                Err(error) if is_over(&error) => {}
                ended => return ended,
            }
        }
    }

    /// Ends the hold; the job changes to default clocks.
    pub(crate) async fn let_go(&mut self) -> Result<(), TuneError> {
        match self.end(false).await {
            // Then it has changed already.
            Err(error) if is_over(&error) => Ok(()),
            ended => ended.map(drop),
        }
    }

    async fn end(&mut self, keep: bool) -> Result<Option<PlanStatus>, TuneError> {
        let job = self.job.clone();
        match self.bench.agent(AgentRequest::RecordingEnd { job, keep }, None).await? {
            AgentResponse::RecordingEnded(plan) => Ok(plan),
            other => Err(unexpected(&other)),
        }
    }

    async fn recorded(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
        samples: bool,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), TuneError> {
        let (mut trouble, mut repeats) = (Trouble::default(), 0);
        loop {
            match self.try_trial(run, length, samples).await {
                Ok(done) if lacks_energy(&done.0.trial) => {
                    self.check_meters().await?;
                    if repeats >= ENERGY_REPEATS {
                        return Ok(done);
                    }
                    repeats += 1;
                }
                Ok(done) => return Ok(done),
                Err(error) => trouble.wait_out(error, self.bench).await?,
            }
        }
    }

    async fn try_trial(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
        samples: bool,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), TuneError> {
        let (job, run) = (self.job.clone(), run.clone());
        let request = AgentRequest::Record { job, run, length, samples };
        let trial = match self.bench.agent(request, None).await? {
            AgentResponse::Recorded(trial) => *trial,
            other => return Err(unexpected(&other)),
        };
        let ranks: Vec<Rank> = trial.trial.ranks.iter().map(|rank| rank.rank).collect();
        let (before, now) = (self.ranks.get_or_insert_with(|| ranks.clone()), ranks);
        if *before != now {
            let (before, now) = (before.len(), now.len());
            return Err(TuneError::OtherRanks { job: self.job(), before, now });
        }
        self.step_s = trial.trial.steps.last().map(|step| step.time_s).or(self.step_s);
        let pages = if samples { self.samples().await? } else { Vec::new() };
        Ok((trial, pages))
    }

    /// The instructions that the last trial saw.
    async fn samples(&mut self) -> Result<Vec<SamplePage>, TuneError> {
        let mut pages = Vec::new();
        loop {
            match self.bench.agent(AgentRequest::Samples(self.job.clone()), None).await? {
                AgentResponse::Samples(Some(page)) => pages.push(page),
                AgentResponse::Samples(None) => return Ok(pages),
                other => return Err(unexpected(&other)),
            }
        }
    }
}

/// The error for the answer to another request.
pub(crate) fn unexpected(answer: &impl std::fmt::Debug) -> TuneError {
    let mut answer = format!("{answer:?}");
    answer.truncate(answer.floor_char_boundary(80));
    TuneError::Unexpected(answer)
}

/// Whether the hold ended before it was to end: its daemon is away, or came back without it.
fn is_over(error: &TuneError) -> bool {
    use pfo_protocol::RefusalCode::UnknownJob;
    error.is_unreachable()
        || matches!(error, TuneError::Refused(refusal) if refusal.code == UnknownJob)
}

/// Whether the energy of a step is not known although there are counters.
fn lacks_energy(trial: &TrialResult) -> bool {
    let has_counters = trial.ranks.iter().any(|rank| rank.energy_j.is_some());
    has_counters && trial.steps.iter().any(|step| step.energy_j.is_none())
}
