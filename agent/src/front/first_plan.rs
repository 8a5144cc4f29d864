//! The requests about plans with which jobs begin.

use pfo_protocol::{AgentRequest, AgentResponse, check_label};

use super::serve::{Served, Services};
use crate::authority::Permit;

impl Services {
    pub(super) async fn first_plan(&self, permit: &Permit, request: AgentRequest) -> Served {
        let plans = &self.first_plans;
        Ok(match request {
            AgentRequest::FirstPlanLoad { job, label, table } => {
                check_label(&label)?;
                AgentResponse::FirstPlan(plans.load(permit, job, label, table).await?)
            }
            AgentRequest::FirstPlanDrop(job) => {
                AgentResponse::FirstPlan(plans.drop_plan(permit, job).await?)
            }
            AgentRequest::JobBegins { rank, plan } => {
                plan.as_ref().map_or(Ok(()), |plan| check_label(&plan.label))?;
                AgentResponse::Begins(plans.begin(permit, rank, plan).await?)
            }
            AgentRequest::JobBegan(job) => AgentResponse::Begins(plans.began(permit, job).await?),
            _ => {
                let plans = plans.statuses(permit.only_of()).into_values();
                AgentResponse::FirstPlans(plans.collect())
            }
        })
    }
}
