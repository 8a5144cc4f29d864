//! Asks the daemons again and again, and never waits for the terminal.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use pfo_protocol::{ClockTable, JobSelector, Request, Response, SessionId, Uid};

use super::message::Message;
use super::sheet::JobKey;
use super::waits::Waits;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::status::Both;
use crate::text::harmless;
use crate::user;

/// What the daemons said at one moment, and what follows from what they said before.
pub(super) struct Snapshot {
    pub(super) both: Both,
    /// The users of the jobs by name.
    pub(super) users: BTreeMap<Uid, String>,
    /// The share of its time that each rank waited lately.
    pub(super) waits: BTreeMap<SessionId, f64>,
    /// The plan in force of the job that is looked into.
    pub(super) plan: Option<(JobKey, ClockTable)>,
}

/// Who asks.
pub(super) struct Feed {
    daemons: Daemons,
    every: Duration,
    waits: Waits,
    users: BTreeMap<Uid, String>,
    /// The job that is looked into.
    job: Option<JobKey>,
    /// Its plan, and the number under which the job runs it.
    plan: Option<(JobKey, u32, Option<ClockTable>)>,
}

impl Feed {
    pub(super) fn new(daemons: Daemons, every: Duration) -> Self {
        Self {
            daemons,
            every,
            waits: Waits::default(),
            users: BTreeMap::new(),
            job: None,
            plan: None,
        }
    }

    /// Sends answers until nobody wants any. Which job is looked into comes the other way; a job that
    /// was just entered does not wait for its plan.
    pub(super) fn run(mut self, jobs: &Receiver<Option<JobKey>>, messages: &SyncSender<Message>) {
        loop {
            let answer = self.snapshot().map(Box::new);
            let answer = answer.map_err(|error| harmless(&error.to_string()).into_owned());
            if messages.send(Message::Answer(answer)).is_err() {
                return;
            }
            match jobs.recv_timeout(self.every) {
                Ok(job) => self.job = job,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// What the daemons say now.
    pub(super) fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let both = Both::ask(&self.daemons)?;
        let waits = self.waits.after(&both.pfod, Instant::now());
        let drained_by = both.pfod.daemon.drained.as_ref().map(|drained| drained.by_uid);
        let uids = both.pfod.jobs.iter().flat_map(|job| {
            [Some(job.uid), job.measured_by.map(|measured| measured.uid)].into_iter().flatten()
        });
        for uid in uids.chain(drained_by) {
            self.users.entry(uid).or_insert_with(|| user::name_of(uid));
        }
        let users = self.users.clone();
        let plan = self.plan_of_job(&both);
        Ok(Snapshot { both, users, waits, plan })
    }

    /// Asked once for each plan. Why there is none does not matter to the rest of the view.
    fn plan_of_job(&mut self, both: &Both) -> Option<(JobKey, ClockTable)> {
        let key = self.job.clone()?;
        let mut jobs = both.pfod.jobs.iter();
        let Some(job) = jobs.find(|job| (job.uid, &job.job) == (key.0, &key.1)) else {
            // The plans of the next job of that name are counted from 1 again.
            self.plan = None;
            return None;
        };
        let number = job.plan.as_ref()?.number;
        let is_known =
            self.plan.as_ref().is_some_and(|(other, known, _)| *other == key && *known == number);
        if !is_known {
            let table = self.read_plan(&key).ok()?;
            self.plan = Some((key, number, table));
        }
        let (key, _, table) = self.plan.as_ref()?;
        Some((key.clone(), table.clone()?))
    }

    fn read_plan(&self, (uid, job): &JobKey) -> Result<Option<ClockTable>, Error> {
        let request = Request::PlanRead(JobSelector { job: job.clone(), uid: Some(*uid) });
        let mut pfod = self.daemons.pfod()?;
        match pfod.ask(request)? {
            Response::Plan(table) => Ok(table),
            other => Err(pfod.unexpected(&other).into()),
        }
    }
}
