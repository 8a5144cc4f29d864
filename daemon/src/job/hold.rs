//! A job held for measuring: while somebody holds it, nobody else changes what it runs. However that
//! ends, the job goes back to default clocks at its next step, unless whoever held it wants to go on with
//! what ran last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pfo_protocol::{JobSelector, PlanStatus, Refusal, RefusalCode};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::authorize::Action;
use crate::job::{Job, Measurer};
use crate::node::Node;
use crate::p2p::samples::Samples;
use crate::peer::Peer;
use crate::requests::select;
use crate::trial_samples::TrialSamples;

/// How often to try to change a job that is in a swap.
const SWAP_POLL: Duration = Duration::from_millis(5);

static HOLDS: AtomicU64 = AtomicU64::new(0);

/// The right to measure a job, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    node: Arc<Node>,
    job: Arc<Job>,
    by: Measurer,
    /// What its trials have shown of waits.
    waits: Samples,
    /// The instructions of its last trial.
    samples: TrialSamples,
    runtime: Handle,
}

impl Hold {
    /// Holds a job for a user: for a process of it, or for a sweep. To be called on the runtime, or on a
    /// thread of it.
    ///
    /// # Errors
    /// If somebody else holds it.
    pub fn take(
        node: &Arc<Node>,
        job: Arc<Job>,
        uid: u32,
        pid: Option<u32>,
    ) -> Result<Self, Refusal> {
        let by = Measurer { hold: HOLDS.fetch_add(1, Relaxed), uid, pid };
        job.hold(by)?;
        tracing::info!(uid, pid, job = %job.key.name, "holds the job for measuring");
        let (node, waits, samples) =
            (Arc::clone(node), Samples::default(), TrialSamples::default());
        Ok(Self { node, job, by, waits, samples, runtime: Handle::current() })
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// What its trials have shown of waits.
    pub fn waits(&mut self) -> &mut Samples {
        &mut self.waits
    }

    /// The instructions of its last trial that nobody has fetched.
    pub fn samples(&mut self) -> &mut TrialSamples {
        &mut self.samples
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Who holds it.
    #[must_use]
    pub fn by(&self) -> Measurer {
        self.by
    }

    /// Lets the job go on with what the last trial ran, or brings it to default clocks. Returns what it
    /// runs or changes to.
    ///
    /// # Errors
    /// If the last trial ran one clock for everything, which is only for measuring.
    pub fn end(self, keep: bool) -> Result<Option<PlanStatus>, Box<(Self, Refusal)>> {
        if !keep {
            return Ok(None);
        }
        match self.job.keep_trial(self.by) {
            Ok(plan) => {
                self.node.jobs.keep(&self.job);
                Ok(plan)
            }
            Err(refusal) => Err(Box::new((self, refusal))),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (node, job, by) = (Arc::clone(&self.node), Arc::clone(&self.job), self.by);
        self.runtime.spawn(async move {
            loop {
                match job.release(by) {
                    Ok(true) => node.jobs.keep(&job),
                    Ok(false) => {}
                    Err(_) => {
                        sleep(SWAP_POLL).await;
                        continue;
                    }
                }
                break;
            }
            tracing::info!(
                uid = by.uid, pid = by.pid, job = %job.key.name, "holds the job no more"
            );
        });
    }
}

impl Job {
    fn hold(&self, by: Measurer) -> Result<(), Refusal> {
        let mut members = self.members();
        members.check_free(&self.key.name)?;
        members.measured_by = Some(by);
        Ok(())
    }

    fn keep_trial(&self, by: Measurer) -> Result<Option<PlanStatus>, Refusal> {
        let mut members = self.members();
        if let Some(plan) = members.current()
            && plan.is_uniform()
        {
            return Err(Refusal::new(
                RefusalCode::NoPlan,
                format!("job {} runs {}, which is only for measuring", self.key.name, plan.label),
                "end the trials without keeping it, and swap to a plan",
            ));
        }
        members.trial = None;
        members.measured_by.take_if(|holder| *holder == by);
        Ok(members.current().map(|plan| plan.status()))
    }

    /// Brings the job to default clocks, if a trial has left it at others, and lets go of it. Whether
    /// anything changed.
    fn release(&self, by: Measurer) -> Result<bool, Refusal> {
        let mut members = self.members();
        if members.measured_by != Some(by) {
            return Ok(false);
        }
        let change = members.trial.is_some() && members.current().is_some();
        if change {
            self.swap_while_held(&mut members, None, 0)?;
        }
        members.measured_by = None;
        Ok(change)
    }
}

/// The jobs that one connection holds.
#[derive(Debug, Default)]
pub struct Holds(Vec<Hold>);

impl Holds {
    /// Whether it holds any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hold of a job, taken if the connection does not have it yet.
    ///
    /// # Errors
    /// If the peer may not measure the job, there is none, or somebody else holds it.
    pub fn of(
        &mut self,
        node: &Arc<Node>,
        peer: &Peer,
        selector: &JobSelector,
    ) -> Result<&mut Hold, Refusal> {
        let job = job_to_measure(node, peer, selector)?;
        let known = self.0.iter().position(|hold| Arc::ptr_eq(&hold.job, &job));
        let index = match known {
            Some(index) => index,
            None => {
                self.0.push(Hold::take(node, job, peer.uid, Some(peer.pid))?);
                self.0.len() - 1
            }
        };
        Ok(&mut self.0[index])
    }

    /// The hold of a job that the connection has already.
    ///
    /// # Errors
    /// If it does not.
    pub fn held(
        &mut self,
        node: &Node,
        peer: &Peer,
        selector: &JobSelector,
    ) -> Result<&mut Hold, Refusal> {
        let index = self.index_of(node, peer, selector)?;
        Ok(&mut self.0[index])
    }

    fn index_of(&self, node: &Node, peer: &Peer, selector: &JobSelector) -> Result<usize, Refusal> {
        let job = job_to_measure(node, peer, selector)?;
        let known = self.0.iter().position(|hold| Arc::ptr_eq(&hold.job, &job));
        known.ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownJob,
                format!("this connection does not hold job {} for measuring", job.key.name),
                "run a trial first",
            )
        })
    }

    /// Ends the hold of a job.
    ///
    /// # Errors
    /// If the connection does not hold it, or what it runs cannot be kept.
    pub fn end(
        &mut self,
        node: &Arc<Node>,
        peer: &Peer,
        selector: &JobSelector,
        keep: bool,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let index = self.index_of(node, peer, selector)?;
        self.0.swap_remove(index).end(keep).map_err(|not_ended| {
            let (hold, refusal) = *not_ended;
            self.0.push(hold);
            refusal
        })
    }
}

fn job_to_measure(node: &Node, peer: &Peer, selector: &JobSelector) -> Result<Arc<Job>, Refusal> {
    let authority = &node.settings().authority;
    select(node, authority, peer, selector, |owner| Action::Measure { owner })
}
