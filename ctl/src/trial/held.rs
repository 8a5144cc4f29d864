//! A job that is held for measuring: trial after trial over one connection, and over another one if
//! the daemon restarts meanwhile.

use std::time::Duration;

use pfo_protocol::{
    AgentRequest, AgentResponse, JobName, Rank, RecordedTrial, SamplePage, TrialLength,
    TrialResult, TrialRun,
};

use super::interrupt::Interrupt;
use super::measuring::Measuring;
use super::trouble::Trouble;
use super::{TrialError, waiting};
use crate::arguments::JobArguments;
use crate::daemons::{Agent, Connection, Daemons, Patience};
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::progress::Progress;
use crate::status::quantity::span;
use crate::text::harmless;

/// How often a trial is repeated because the energy of a step is not known: a node that was away, or a
/// busy one, reads a counter late now and then.
const ENERGY_REPEATS: u32 = 2;

/// How long a trial may take before it is looked at why, and how often then: it is no trial's business to
/// have the GPUs read.
const PATIENCE: Duration = Duration::from_secs(5);
const RHYTHM: Duration = Duration::from_secs(30);

/// A job whose clocks are this connection's to change.
pub(crate) struct Held<'a, D> {
    daemons: &'a Daemons,
    job: &'a JobArguments,
    connection: Connection<D>,
    interrupt: Interrupt,
    progress: Progress,
    /// Those of the first trial. Trials of other ranks cannot be compared with it.
    ranks: Option<Vec<Rank>>,
    /// What a step took last, in seconds.
    step_s: Option<f64>,
}

impl<'a, D: Measuring> Held<'a, D> {
    /// Connects. The daemon is asked for nothing yet, and the job is not held before its first
    /// trial.
    pub(crate) fn new(
        daemons: &'a Daemons,
        job: &'a JobArguments,
        interrupt: Interrupt,
        what: &'static str,
    ) -> Result<Self, Error> {
        let connection = interrupt.connect(daemons)?;
        let progress = Progress::new(what);
        Ok(Self { daemons, job, connection, interrupt, progress, ranks: None, step_s: None })
    }

    pub(crate) fn job(&self) -> &'a JobName {
        self.job.name()
    }

    /// The connection that holds the job, for requests about its trials.
    pub(crate) fn connection(&mut self) -> &mut Connection<D> {
        &mut self.connection
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How long these steps will take, such as `about 2 min 10 s`; none before the first trial.
    pub(crate) fn takes(&self, steps: u64) -> Option<String> {
        self.step_s.map(|step_s| format!("about {}", span(step_s * steps as f64)))
    }

    /// Runs one trial. It begins again when the job is back if the daemon restarts meanwhile, and a few
    /// times if a counter was not read in time.
    pub(crate) fn trial(&mut self, run: &TrialRun, length: TrialLength) -> Result<D::Trial, Error> {
        let attempt = |held: &mut Self| {
            held.try_trial(D::trial_request(held.job.selector(), run.clone(), length))
        };
        self.until_done(attempt, D::windows)
    }

    fn until_done<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Error>,
        windows: impl Fn(&T) -> &TrialResult,
    ) -> Result<T, Error> {
        let (mut trouble, mut repeats) = (Trouble::default(), 0);
        loop {
            let tried = attempt(self);
            let error = match self.interrupt.or(self.job.name(), tried) {
                Ok(done) if repeats < ENERGY_REPEATS && lacks_energy(windows(&done)) => {
                    repeats += 1;
                    continue;
                }
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let is_away = error.exit() == Exit::Unreachable;
            trouble.wait_out(error, &self.progress)?;
            if is_away && let Ok(connection) = self.interrupt.connect(self.daemons) {
                self.connection = connection;
            }
        }
    }

    /// Ends the hold; the job changes to default clocks.
    pub(crate) fn let_go(&mut self) -> Result<(), Error> {
        match self.end() {
            // Then it has changed already.
            Err(error) if error.exit() == Exit::Unreachable => Ok(()),
            ended => ended,
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        let response = self.connection.ask(D::end_request(self.job.selector()));
        let response = self.interrupt.or(self.job.name(), response.map_err(Error::from))?;
        D::ended(response).map_err(|other| self.connection.unexpected(&other).into())
    }

    fn try_trial(&mut self, request: D::Request) -> Result<D::Trial, Error> {
        self.connection.send(request)?;
        self.say_why_it_waits();
        let response = self.connection.receive(Patience::Unlimited)?;
        let trial = D::trial(response).map_err(|other| self.connection.unexpected(&other))?;
        let windows = D::windows(&trial);
        let ranks: Vec<Rank> = windows.ranks.iter().map(|rank| rank.rank).collect();
        let (before, now) = (self.ranks.get_or_insert_with(|| ranks.clone()), ranks);
        if *before != now {
            let job = self.job.name().clone();
            let (before, now) = (before.len(), now.len());
            return Err(TrialError::OtherRanks { job, before, now }.into());
        }
        self.step_s = windows.steps.last().map(|step| step.time_s).or(self.step_s);
        Ok(trial)
    }
}

impl<D: Measuring> Held<'_, D> {
    /// Returns when there is an answer. What keeps the job's ranks from a trial is said once.
    fn say_why_it_waits(&self) {
        let mut patience = PATIENCE;
        let mut said = None;
        while !self.connection.is_answered(patience) {
            patience = RHYTHM;
            // If pfod is away, the connection that waits says so.
            let Some(status) = self.daemons.pfod().ok().and_then(|mut pfod| pfod.status().ok())
            else {
                continue;
            };
            let why = self.job.find(&status.jobs).and_then(waiting::why);
            if let Some(why) = why.filter(|why| said.as_ref() != Some(why)) {
                let job = self.job.name();
                self.progress
                    .tell(&harmless(&format!("pfoctl: job {job} is not measured yet: {why}")));
                said = Some(why);
            }
        }
    }
}

impl Held<'_, Agent> {
    /// Runs one trial, and hands out each instruction by itself, too.
    pub(crate) fn trial_with_samples(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), Error> {
        let attempt = |held: &mut Self| {
            let (job, run) = (held.job.selector(), run.clone());
            let request = AgentRequest::Record { job, run, length, samples: true };
            Ok((held.try_trial(request)?, held.samples()?))
        };
        let (trial, pages) = self.until_done(attempt, |(trial, _)| Agent::windows(trial))?;
        for of_rank in pages.chunk_by(|page, next| page.rank == next.rank) {
            if let Some(SamplePage { rank, dropped: dropped @ 1.., .. }) = of_rank.first() {
                self.progress.tell(&format!(
                    "pfoctl: pfo-agent had no room for {dropped} more instructions of rank {rank}; \
                     measure fewer steps at once"
                ));
            }
        }
        Ok((trial, pages))
    }

    /// The instructions that the last trial saw.
    fn samples(&mut self) -> Result<Vec<SamplePage>, Error> {
        let mut pages = Vec::new();
        loop {
            match self.connection.ask(AgentRequest::Samples(self.job.selector()))? {
                AgentResponse::Samples(Some(page)) => pages.push(page),
                AgentResponse::Samples(None) => return Ok(pages),
                other => return Err(self.connection.unexpected(&other).into()),
            }
        }
    }
}

/// Whether the energy of a step is not known although there are counters.
fn lacks_energy(trial: &TrialResult) -> bool {
    let has_counters = trial.ranks.iter().any(|rank| rank.energy_j.is_some());
    has_counters && trial.steps.iter().any(|step| step.energy_j.is_none())
}
