//! A rank that is about to begin its job: with the plan that it brings, or the one that is kept.
//!
//! The rank's library reads the plan's file, as its user, and hands its bytes over. So nothing here
//! opens a path or a descriptor of a user's, on which a reader could be made to wait, and what is
//! parsed is bounded before it is read, by the largest frame.

use pfo_planner::Plan;
use pfo_protocol::{
    BeginningRank, ClockTable, FirstPlanState, JobName, JobView, PlanFile, PlanStatus, Refusal,
    RefusalCode,
};
use pfo_service::blocking;

use crate::authority::Permit;
use crate::first_plan::kept::FirstPlans;
use crate::job::JobKey;
use crate::pfod::PfodError;
use crate::straggler::Labelled;

impl FirstPlans {
    /// Has a job begin with a plan. What another rank of it has brought already is brought once.
    ///
    /// # Errors
    /// If the plan is none, does not fit the rank, or the job has begun with something else.
    pub(crate) async fn begin(
        &self,
        permit: &Permit,
        rank: BeginningRank,
        plan: Option<PlanFile>,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let key = JobKey { uid: permit.uid(), name: rank.job.clone() };
        let is_kept = plan.is_none();
        let _turn = self.turns.take(key.uid).await;
        let plan = match plan {
            Some(file) => self.parsed(file).await?,
            None => match self.plan_of(&key).await? {
                Some(plan) => plan,
                None => return Ok(None),
            },
        };
        if let Err(refusal) = check(&plan.table, &rank) {
            if is_kept {
                self.note(&key, FirstPlanState::Refused(refusal.message.clone()));
            }
            return Err(refusal);
        }
        self.wait_for_rank(&key);
        self.begin_with(permit, &key, &plan, is_kept).await
    }

    async fn begin_with(
        &self,
        permit: &Permit,
        key: &JobKey,
        plan: &Labelled,
        is_kept: bool,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let (job, table) = self.runs(key).await?;
        let runs = job.as_ref().and_then(|job| job.plan.clone());
        let has_begun = job.is_some_and(|job| !job.ranks.is_empty());
        let is_same = table.as_ref() == Some(&plan.table);
        let is_ready =
            runs.as_ref().is_some_and(|runs| runs.label == plan.label && runs.suspended.is_none());
        // A rank that comes to others runs what they run; a kept plan is for the next start.
        if (has_begun && (is_same || is_kept)) || (is_same && is_ready) {
            return Ok(runs);
        }
        match self.hand_over(permit.asker(), key, plan).await {
            Ok(swapped) => Ok(swapped.plan),
            Err(PfodError::Refused(refusal))
                if refusal.code == RefusalCode::LimitReached && has_begun =>
            {
                Err(begun_with(key, runs.as_ref()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A job, and the clock table of what it runs.
    pub(super) async fn runs(
        &self,
        key: &JobKey,
    ) -> Result<(Option<JobView>, Option<ClockTable>), Refusal> {
        let Some(job) = self.means.questions.job(key).await? else { return Ok((None, None)) };
        let table = match &job.plan {
            Some(_) => self.means.questions.plan(key.selector()).await?,
            None => None,
        };
        Ok((Some(job), table))
    }

    /// What a job runs of which a rank has its lease now.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn began(
        &self,
        permit: &Permit,
        name: JobName,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let key = JobKey { uid: permit.uid(), name };
        let job = self.means.questions.job(&key).await?;
        self.see();
        Ok(job.and_then(|job| job.plan))
    }

    async fn parsed(&self, PlanFile { label, json }: PlanFile) -> Result<Labelled, Refusal> {
        // The semaphore is never closed.
        let _parsing = self.parsing.acquire().await;
        let parse = move || {
            let plan = Plan::from_json(&json).map_err(|error| {
                let message = format!("{label} is no plan: {error}");
                let remedy = "write it with `pfoctl plan export`";
                Refusal::new(RefusalCode::PlanDoesNotFit, message, remedy)
            })?;
            Labelled::of(label, &plan)
        };
        blocking(parse).await?
    }
}

/// Checks a plan against what a rank says of its job, before it has a GPU.
fn check(table: &ClockTable, rank: &BeginningRank) -> Result<(), Refusal> {
    let (stages, job) = (table.stages().len(), rank.pp_degree);
    let microbatches = table.num_microbatches();
    let wrong = match rank.num_microbatches {
        _ if stages != job as usize => format!("the plan has {stages} stages, the job {job}"),
        Some(job) if job != microbatches => {
            format!("the plan has {microbatches} microbatches in a step, the job {job}")
        }
        _ => return Ok(()),
    };
    let remedy = "make a plan for this job with `pfoctl plan optimize` and `pfoctl plan export`";
    Err(Refusal::new(RefusalCode::PlanDoesNotFit, wrong, remedy))
}

fn begun_with(key: &JobKey, runs: Option<&PlanStatus>) -> Refusal {
    let runs = runs.map_or("default clocks".into(), |plan| format!("plan {}", plan.label));
    Refusal::new(
        RefusalCode::LimitReached,
        format!("{key} has begun with {runs}, so it does not begin with this plan"),
        "give every rank the same plan; `pfoctl plan swap` changes what a job runs",
    )
}

#[cfg(test)]
mod tests {
    use super::super::kept::tests::labelled;
    use super::*;

    #[test]
    fn a_plan_that_does_not_fit_is_refused_with_the_first_difference() {
        let check = |pp_degree, num_microbatches| {
            let rank = BeginningRank { job: "j".parse().unwrap(), pp_degree, num_microbatches };
            check(&labelled(2, 900).table, &rank).map_err(|refusal| refusal.message)
        };
        assert_eq!(check(2, None), Ok(()));
        assert_eq!(check(2, Some(1)), Ok(()));
        assert_eq!(check(4, Some(8)), Err("the plan has 2 stages, the job 4".into()));
        let microbatches = "the plan has 1 microbatches in a step, the job 8";
        assert_eq!(check(2, Some(8)), Err(microbatches.into()));
    }
}
