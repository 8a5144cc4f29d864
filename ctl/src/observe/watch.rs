//! What is seen while the command runs: trial after trial at the clocks that GPUs have by themselves,
//! and meanwhile their clocks, power and temperature.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use pfo_experiment::order::of_ranks;
use pfo_planner::Order;
use pfo_protocol::{
    AgentRequest, AgentResponse, GpuName, JobSelector, JobStatus, RecordedTrial, Request, Response,
    Status, TrialLength, TrialRun,
};

use super::seen::Seen;
use crate::daemons::{Agent, Connection, ConnectionError, Daemons, Patience};

/// How often GPUs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A trial is not longer than this: one that the job's end cuts off is lost.
const LONGEST_TRIAL_S: f64 = 20.0;

/// Steps of the first trial.
const FIRST_STEPS: u32 = 2;

/// A thread that looks until it is stopped.
pub(super) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Watch {
    /// Begins to look.
    pub(super) fn begin(daemons: Daemons) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let thread = spawn(move || {
            let mut looking = Looking { daemons, is_over: until, seen: Seen::default() };
            looking.look();
            looking.seen
        });
        Self { is_over, thread }
    }

    /// What was seen.
    pub(super) fn end(self) -> Seen {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

struct Looking {
    daemons: Daemons,
    is_over: Arc<AtomicBool>,
    seen: Seen,
}

impl Looking {
    fn look(&mut self) {
        let mut steps = FIRST_STEPS;
        while !self.is_over.load(Relaxed) {
            let Some(job) = self.glance() else {
                sleep(LOOK_EVERY);
                continue;
            };
            match self.trial(&job, steps) {
                Ok(Some(trial)) => {
                    steps = longer(steps, &trial);
                    self.seen.add(&trial);
                }
                Ok(None) => return,
                // Such as a rank that has just left.
                Err(error) => {
                    self.seen.trouble = Some(error.to_string());
                    sleep(LOOK_EVERY);
                }
            }
            if self.seen.order.is_none() {
                self.seen.order = self.order(&job);
            }
        }
    }

    /// Looks at the GPUs; returns the job, once all of it steps.
    fn glance(&mut self) -> Option<JobSelector> {
        let mut pfod = self.daemons.pfod().ok()?;
        let status = pfod.status().ok()?;
        self.seen.glance(&status);
        if self.seen.clocks.is_empty()
            && let Some(gpu) = status.gpus.iter().find(|gpu| gpu.leased)
            && let Ok(Response::SmClocks(clocks)) =
                pfod.ask(Request::SmClocks(GpuName::Uuid(gpu.uuid.clone())))
        {
            self.seen.clocks = clocks;
        }
        whole_job(&status).map(|job| JobSelector { job: job.job.clone(), uid: Some(job.uid) })
    }

    /// A trial; none if the command ends before it.
    fn trial(
        &mut self,
        job: &JobSelector,
        steps: u32,
    ) -> Result<Option<RecordedTrial>, ConnectionError> {
        let length = TrialLength { settling_steps: 1, steps };
        let run = TrialRun::DefaultClocks;
        let request = AgentRequest::Record { job: job.clone(), run, length, samples: false };
        Ok(match self.asked(request)? {
            Some(AgentResponse::Recorded(trial)) => Some(*trial),
            _ => None,
        })
    }

    fn order(&mut self, job: &JobSelector) -> Option<Order> {
        match self.asked(AgentRequest::OrderRead(job.clone())) {
            Ok(Some(AgentResponse::Order(ranks))) => of_ranks(&ranks).ok(),
            _ => None,
        }
    }

    /// The agent's answer; none if the command ends before it.
    fn asked(&mut self, request: AgentRequest) -> Result<Option<AgentResponse>, ConnectionError> {
        let mut agent: Connection<Agent> = self.daemons.agent()?;
        agent.send(request)?;
        while !agent.is_answered(LOOK_EVERY) {
            if self.is_over.load(Relaxed) {
                return Ok(None);
            }
            let _ = self.glance();
        }
        agent.receive(Patience::Limited).map(Some)
    }
}

/// The first job all of whose ranks here are in a step.
fn whole_job(status: &Status) -> Option<&JobStatus> {
    let steps = |job: &&JobStatus| {
        let stages = (0..job.pp_degree)
            .all(|stage| job.ranks.iter().any(|rank| u32::from(rank.stage.0) == stage));
        stages && job.ranks.iter().all(|rank| rank.step.is_some())
    };
    status.jobs.iter().find(steps)
}

/// How many steps the next trial has.
fn longer(steps: u32, trial: &RecordedTrial) -> u32 {
    let step_s = trial.trial.steps.iter().map(|step| step.time_s).sum::<f64>()
        / trial.trial.steps.len().max(1) as f64;
    let most = (LONGEST_TRIAL_S / step_s.max(1e-4)) as u32;
    (2 * steps).min(most).clamp(FIRST_STEPS, 10_000)
}
