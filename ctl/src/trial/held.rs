//! A job that is held for measuring: trial after trial over one connection, and over another one if
//! the daemon restarts meanwhile.

use pfo_protocol::{
    JobName, PlanStatus, Request, Response, SamplePage, TrialLength, TrialResult, TrialRun,
};

use super::interrupt::Interrupt;
use super::trouble::Trouble;
use crate::connection::{Connection, Patience};
use crate::error::Error;
use crate::exit::Exit;
use crate::job::JobArguments;
use crate::progress::Progress;
use crate::socket::Sockets;
use crate::status::quantity::span;

/// A job whose clocks are this connection's to change.
pub(crate) struct Held<'a> {
    sockets: &'a Sockets,
    job: &'a JobArguments,
    connection: Connection,
    interrupt: Interrupt,
    progress: Progress,
    /// Of the first trial; later ones are of the same, or nothing could be compared.
    ranks: Option<Vec<u32>>,
    /// What a step took last, in seconds.
    step_s: Option<f64>,
}

impl<'a> Held<'a> {
    /// Connects. The daemon is asked for nothing yet, and the job not held before its first trial.
    pub(crate) fn new(
        sockets: &'a Sockets,
        job: &'a JobArguments,
        interrupt: Interrupt,
        what: &'static str,
    ) -> Result<Self, Error> {
        let connection = interrupt.connect(sockets)?;
        let progress = Progress::new(what);
        Ok(Self { sockets, job, connection, interrupt, progress, ranks: None, step_s: None })
    }

    /// The job's name.
    pub(crate) fn job(&self) -> &'a JobName {
        self.job.name()
    }

    /// The connection that holds the job, for what is asked about its trials.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Asks something that has nothing to do with a trial; again if the daemon restarts meanwhile.
    pub(crate) fn patiently<T>(
        &mut self,
        mut ask: impl FnMut(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.until_done(|held| ask(&mut held.connection))
    }

    /// Where to say how far this is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How long so many steps take in words, such as `about 2 min 10 s`; nothing before the first
    /// trial.
    pub(crate) fn takes(&self, steps: u64) -> Option<String> {
        self.step_s.map(|step_s| format!("about {}", span(step_s * steps as f64)))
    }

    /// Runs one trial. If the daemon restarts meanwhile it begins again when the job is back.
    pub(crate) fn trial(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
    ) -> Result<TrialResult, Error> {
        self.until_done(|held| held.try_trial(run, length, false))
    }

    /// The same, and each instruction by itself.
    pub(crate) fn trial_with_samples(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
    ) -> Result<(TrialResult, Vec<SamplePage>), Error> {
        let (trial, pages) =
            self.until_done(|held| Ok((held.try_trial(run, length, true)?, held.samples()?)))?;
        for of_rank in pages.chunk_by(|page, next| page.rank == next.rank) {
            if let Some(SamplePage { rank, dropped: dropped @ 1.., .. }) = of_rank.first() {
                self.progress.tell(&format!(
                    "pfoctl: the daemon had no room for {dropped} more instructions of rank {rank}; \
                     measure fewer steps at once"
                ));
            }
        }
        Ok((trial, pages))
    }

    fn until_done<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut trouble = Trouble::default();
        loop {
            let tried = attempt(self);
            let error = match self.interrupt.or(self.job.name(), tried) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let is_away = error.exit() == Exit::Unreachable;
            trouble.wait_out(error, &self.progress)?;
            if is_away && let Ok(connection) = self.interrupt.connect(self.sockets) {
                self.connection = connection;
            }
        }
    }

    /// Runs a plan, and lets go of the job, which goes on with it.
    pub(crate) fn keep(&mut self, plan: &TrialRun) -> Result<Option<PlanStatus>, Error> {
        loop {
            self.trial(plan, TrialLength { settling_steps: 1, steps: 1 })?;
            match self.end(true) {
                // It is at default clocks, and the trial has to be run again.
                Err(error) if error.exit() == Exit::Unreachable => {}
                ended => return ended,
            }
        }
    }

    /// Lets go of the job, which changes to default clocks.
    pub(crate) fn let_go(&mut self) -> Result<(), Error> {
        match self.end(false) {
            // Then it has changed already.
            Err(error) if error.exit() == Exit::Unreachable => Ok(()),
            ended => ended.map(drop),
        }
    }

    fn end(&mut self, keep: bool) -> Result<Option<PlanStatus>, Error> {
        let answer = self.connection.ask(Request::TrialsEnd { job: self.job.selector(), keep });
        match self.interrupt.or(self.job.name(), answer)? {
            Response::TrialsEnded(plan) => Ok(plan),
            other => Err(self.connection.other_answer(&format!("{other:?}"))),
        }
    }

    /// The instructions that the last trial saw.
    fn samples(&mut self) -> Result<Vec<SamplePage>, Error> {
        let mut pages = Vec::new();
        loop {
            match self.connection.ask(Request::TrialSamples(self.job.selector()))? {
                Response::TrialSamples(Some(page)) => pages.push(page),
                Response::TrialSamples(None) => return Ok(pages),
                other => return Err(self.connection.other_answer(&format!("{other:?}"))),
            }
        }
    }

    fn try_trial(
        &mut self,
        run: &TrialRun,
        length: TrialLength,
        samples: bool,
    ) -> Result<TrialResult, Error> {
        let job = self.job.selector();
        self.connection.send(Request::Trial { job, run: run.clone(), length, samples })?;
        let trial = match self.connection.receive(Patience::Unlimited)? {
            Response::Trial(trial) => *trial,
            other => return Err(self.connection.other_answer(&format!("{other:?}"))),
        };
        let ranks: Vec<u32> = trial.ranks.iter().map(|rank| rank.rank).collect();
        let (before, now) = (self.ranks.get_or_insert_with(|| ranks.clone()), ranks);
        if *before != now {
            let job = self.job.name().clone();
            return Err(Error::OtherRanks { job, before: before.len(), now: now.len() });
        }
        self.step_s = trial.steps.last().map(|step| step.time_s).or(self.step_s);
        Ok(trial)
    }
}
