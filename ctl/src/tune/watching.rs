//! Watching a tune until it is over: what it does as a bar, what a person should read above it, and in the
//! end its report.

use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use pfo_protocol::{AgentRequest, AgentResponse, TuneEnd, TuneReport, TuneState, TuneStatus};

use super::TuneError;
use super::leaving::{Leaving, Parting};
use super::report::ResultArguments;
use crate::arguments::JobArguments;
use crate::daemons::{Agent, Connection, ConnectionError, Daemons, Patience};
use crate::error::Error;
use crate::output::Output;
use crate::profile::attend::unfinished;
use crate::profile::sweep_bar::SweepBar;
use crate::progress::Progress;
use crate::status::quantity::{percent, span};
use crate::text::harmless;
use crate::trial::{Trouble, waiting};

/// How often to look for a signal, and at a sweep.
const POLL: Duration = Duration::from_millis(200);

/// How long a trial may take before it is looked at why, and how often then: it is no trial's business to
/// have the GPUs read.
const PATIENCE: Duration = Duration::from_secs(5);
const RHYTHM: Duration = Duration::from_secs(30);

/// A tune that is watched.
pub(crate) struct Watching<'a> {
    daemons: &'a Daemons,
    job: &'a JobArguments,
    leaving: Leaving,
    /// The number of the last status.
    seen: u64,
    /// Remarks that were printed.
    told: usize,
    shown: Option<Shown>,
    /// Why the job is not measured, as it was said last.
    waits: Option<String>,
    look_at: Instant,
}

/// What stands on the terminal.
enum Shown {
    Sweep(SweepBar),
    Tune(Progress),
}

impl<'a> Watching<'a> {
    pub(super) fn new(daemons: &'a Daemons, job: &'a JobArguments, leaving: Leaving) -> Self {
        let (shown, waits, look_at) = (None, None, Instant::now() + PATIENCE);
        Self { daemons, job, leaving, seen: 0, told: 0, shown, waits, look_at }
    }

    /// Returns when it is over, and was worth keeping.
    pub(super) fn until_over(
        mut self,
        result: &ResultArguments,
        output: &mut Output,
    ) -> Result<(), Error> {
        let job = self.job.name().clone();
        let mut trouble = Trouble::default();
        loop {
            let status = match self.next() {
                Ok(status) => status,
                Err(error @ Error::Tune(_)) => return Err(error),
                Err(error) => {
                    self.shown = None;
                    trouble.wait_out(error, &Progress::new("waiting for pfo-agent"))?;
                    continue;
                }
            };
            trouble = Trouble::default();
            let TuneState::Ended(end) = status.state else { continue };
            self.shown = None;
            return match end {
                TuneEnd::Stopped => Err(TuneError::Stopped { job }.into()),
                TuneEnd::Failed(refusal) => Err(ConnectionError::Refused(refusal).into()),
                TuneEnd::Kept | TuneEnd::KeptUncertain | TuneEnd::NothingKept => {
                    let report = read(self.daemons, self.job)?;
                    result.print((self.daemons, self.job), report, output)
                }
            };
        }
    }

    /// The next status.
    fn next(&mut self) -> Result<TuneStatus, Error> {
        let mut agent: Connection<Agent> = self.daemons.agent()?;
        agent.send(AgentRequest::TuneWatch { job: self.job.selector(), seen: self.seen })?;
        while !agent.is_answered(POLL) {
            self.look_around()?;
        }
        let status = match agent.receive(Patience::Unlimited)? {
            AgentResponse::Tune(status) => *status,
            other => return Err(agent.unexpected(&other).into()),
        };
        self.look_for_a_signal()?;
        self.seen = status.changed;
        self.show(&status);
        Ok(status)
    }

    fn look_around(&mut self) -> Result<(), Error> {
        self.look_for_a_signal()?;
        match &mut self.shown {
            // An agent that does not answer this does not answer the other connection either.
            Some(Shown::Sweep(bar)) => {
                let known = unfinished(self.daemons, self.job.name()).unwrap_or_default();
                if let [sweep] = &known[..] {
                    bar.announce(&sweep.job);
                    bar.show(sweep);
                }
            }
            Some(Shown::Tune(_)) if self.look_at <= Instant::now() => {
                self.look_at = Instant::now() + RHYTHM;
                self.say_why_it_waits();
            }
            None | Some(Shown::Tune(_)) => {}
        }
        Ok(())
    }

    /// What keeps the job's ranks from a trial is said once.
    fn say_why_it_waits(&mut self) {
        // If pfod is away, the agent says so.
        let Some(status) = self.daemons.pfod().ok().and_then(|mut pfod| pfod.status().ok()) else {
            return;
        };
        let why = self.job.find(&status.jobs).and_then(waiting::why);
        if let Some(why) = why.filter(|why| self.waits.as_ref() != Some(why)) {
            let job = self.job.name();
            let line = format!("pfoctl: job {job} is not measured yet: {why}");
            self.tell(&harmless(&line));
            self.waits = Some(why);
        }
    }

    fn look_for_a_signal(&mut self) -> Result<(), Error> {
        if !self.leaving.has_come() {
            return Ok(());
        }
        self.shown = None;
        let job = self.job.name().clone();
        let Some(parting) = self.leaving.parting(&job) else { return Ok(()) };
        match parting {
            Parting::Stop => {
                stop(self.daemons, self.job)?;
                Err(TuneError::Stopped { job }.into())
            }
            Parting::Leave => Err(TuneError::Left { job }.into()),
        }
    }

    fn show(&mut self, status: &TuneStatus) {
        self.look_at = Instant::now() + PATIENCE;
        match (&status.state, &self.shown) {
            (TuneState::Profile, Some(Shown::Sweep(_))) | (TuneState::Ended(_), _) => {}
            (TuneState::Profile, _) => self.shown = Some(Shown::Sweep(SweepBar::new())),
            (_, Some(Shown::Tune(_))) => {}
            _ => self.shown = Some(Shown::Tune(Progress::new("tuning"))),
        }
        for remark in status.remarks.iter().skip(self.told) {
            self.tell(&format!("pfoctl: {}", harmless(remark)));
        }
        self.told = self.told.max(status.remarks.len());
        if let Some(Shown::Tune(progress)) = &self.shown {
            let left = status.remaining_s.map(|left_s| format!(", about {} left", span(left_s)));
            let saving = status.saving.map(|saving| format!(", {} saved", percent(saving)));
            let now = format!(
                "{}{}{}",
                harmless(&status.now),
                left.unwrap_or_default(),
                saving.unwrap_or_default()
            );
            progress.now(now);
            progress.show(status.done);
        }
    }

    /// Prints a line above the bar. A reader that is gone is no error.
    fn tell(&self, line: &str) {
        match &self.shown {
            Some(Shown::Sweep(bar)) => bar.bar().tell(line),
            Some(Shown::Tune(progress)) => progress.tell(line),
            None => drop(writeln!(stderr(), "{line}")),
        }
    }
}

/// Has the agent end a tune.
pub(super) fn stop(daemons: &Daemons, job: &JobArguments) -> Result<TuneStatus, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::TuneStop(job.selector()))? {
        AgentResponse::Tune(status) => Ok(*status),
        other => Err(agent.unexpected(&other).into()),
    }
}

fn read(daemons: &Daemons, job: &JobArguments) -> Result<TuneReport, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::TuneRead(job.selector()))? {
        AgentResponse::TuneReport(report) => Ok(*report),
        other => Err(agent.unexpected(&other).into()),
    }
}
