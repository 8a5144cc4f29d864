//! Requests about power budgets.

use std::sync::Arc;

use pfo_protocol::{
    AgentRequest, AgentResponse, BudgetChange, BudgetDraft, BudgetLevel, BudgetOrder, BudgetScope,
    BudgetTerms, GpuUuid, JobSelector, JobView, PartitionName, Refusal, RefusalCode, Uid,
};

use crate::authority::Permit;
use crate::front::serve::{Served, Services};
use crate::job::JobKey;

/// A scope in words.
fn named(scope: &BudgetScope) -> String {
    match scope {
        BudgetScope::Node => "the node".to_owned(),
        BudgetScope::User(uid) => format!("user {uid}"),
        BudgetScope::Job(JobSelector { job, uid: Some(uid) }) => format!("job {job} of user {uid}"),
        BudgetScope::Job(JobSelector { job, uid: None }) => format!("job {job}"),
        BudgetScope::Fleet => "the fleet".to_owned(),
        BudgetScope::FleetUser(uid) => format!("user {uid} in the fleet"),
        BudgetScope::FleetJob(JobSelector { job, uid }) => {
            let whose = uid.map_or(String::new(), |uid| format!(" of user {uid}"));
            format!("job {job}{whose} in the fleet")
        }
        BudgetScope::Partition(name) => format!("partition {name}"),
        BudgetScope::FleetPartition(name) => format!("partition {name} in the fleet"),
    }
}

/// Terms in words.
fn said_terms(terms: &BudgetTerms) -> String {
    let weight = terms.weight.map_or("its GPUs".to_owned(), |weight| weight.to_string());
    let slowest = terms.slowest.map_or("unlimited".to_owned(), |slowest| format!("{slowest}x"));
    format!("weight {weight}, slowest step {slowest}")
}

impl Services {
    /// Carries out a request about budgets; each is answered with all of them.
    pub(super) async fn budget(&self, permit: &Permit, request: AgentRequest) -> Served {
        match request {
            AgentRequest::BudgetSet(order) => self.set_budget(permit, order).await?,
            AgentRequest::BudgetClear(scope) => self.clear_budget(permit, scope).await?,
            AgentRequest::BudgetTerms(terms) => self.set_budget_terms(permit, terms).await?,
            AgentRequest::BudgetDraft(change) => {
                let draft = self.draft_budget(permit, change).await?;
                return Ok(AgentResponse::BudgetDraft(Box::new(draft)));
            }
            AgentRequest::BudgetSigned(signed) => {
                let (key, number) = self.budgets.submit(signed).await?;
                let (uid, pid) = (permit.uid(), permit.pid());
                tracing::info!(
                    uid = uid.0,
                    pid = pid.0,
                    "user {uid} set the power budgets of the fleet: number {number}, signed with key {key}"
                );
            }
            AgentRequest::BudgetPartition { uid, gpus, partition } => {
                self.place(permit, uid, gpus, partition).await?;
            }
            _ => {}
        }
        Ok(self.budget_report(permit))
    }

    fn budget_report(&self, permit: &Permit) -> AgentResponse {
        AgentResponse::Budget(Box::new(self.budgets.report(permit.only_of())))
    }

    async fn set_budget(&self, permit: &Permit, mut order: BudgetOrder) -> Result<(), Refusal> {
        order.scope = self.whose(permit, order.scope).await?;
        let (budgets, uid) = (Arc::clone(&self.budgets), permit.uid());
        let (pid, of) = (permit.pid(), named(&order.scope));
        let level = match &order.level {
            BudgetLevel::Watts(watts) => format!("{watts} W"),
            BudgetLevel::File(path) => format!("what {path:?} says"),
        };
        budgets.set(order, uid).await?;
        tracing::info!(
            uid = uid.0,
            pid = pid.0,
            "user {uid} set the power budget of {of}: {level}"
        );
        Ok(())
    }

    async fn draft_budget(
        &self,
        permit: &Permit,
        mut change: BudgetChange,
    ) -> Result<BudgetDraft, Refusal> {
        let scope = match &mut change {
            BudgetChange::Set(order) => &mut order.scope,
            BudgetChange::Clear(scope) => scope,
            BudgetChange::Terms(terms) => &mut terms.scope,
        };
        if !scope.is_of_fleet() {
            return Err(Refusal::new(
                RefusalCode::Malformed,
                format!("a budget of {} needs no signature", named(scope)),
                "leave out --key, or say --for fleet",
            ));
        }
        *scope = self.whose(permit, scope.clone()).await?;
        self.budgets.draft(change, permit.uid()).await
    }

    async fn clear_budget(&self, permit: &Permit, scope: BudgetScope) -> Result<(), Refusal> {
        let scope = self.whose(permit, scope).await?;
        let (budgets, uid, pid) = (Arc::clone(&self.budgets), permit.uid(), permit.pid());
        let of = named(&scope);
        budgets.clear(scope).await?;
        tracing::info!(uid = uid.0, pid = pid.0, "user {uid} cleared the power budget of {of}");
        Ok(())
    }

    async fn set_budget_terms(
        &self,
        permit: &Permit,
        mut terms: BudgetTerms,
    ) -> Result<(), Refusal> {
        terms.scope = self.whose(permit, terms.scope).await?;
        self.check_terms(permit, &terms)?;
        let (budgets, uid, pid) = (Arc::clone(&self.budgets), permit.uid(), permit.pid());
        let of = named(&terms.scope);
        let said = said_terms(&terms);
        budgets.set_terms(terms).await?;
        tracing::info!(
            uid = uid.0,
            pid = pid.0,
            "user {uid} set the terms of power budgets for {of}: {said}"
        );
        Ok(())
    }

    async fn place(
        &self,
        permit: &Permit,
        of: Uid,
        gpus: Vec<GpuUuid>,
        partition: Option<PartitionName>,
    ) -> Result<(), Refusal> {
        let named: Vec<&str> = gpus.iter().map(GpuUuid::as_str).collect();
        let named = named.join(", ");
        let said = match &partition {
            Some(partition) => format!("is in partition {partition} with {named}"),
            None => format!("is in no partition any more with {named}"),
        };
        self.budgets.place(of, gpus, partition).await?;
        let (uid, pid) = (permit.uid(), permit.pid());
        tracing::info!(uid = uid.0, pid = pid.0, "user {uid} says that user {of} {said}");
        Ok(())
    }

    /// Owners may change what `[budget]` says.
    fn check_terms(&self, permit: &Permit, terms: &BudgetTerms) -> Result<(), Refusal> {
        if permit.administers() {
            return Ok(());
        }
        let settings = self.settings.now();
        let config = &settings.config.budget;
        let before = self.budgets.terms(&terms.scope);
        let (weight, slowest) = before.map_or((None, None), |terms| (terms.weight, terms.slowest));
        for (changes, may, what, key) in [
            (weight != terms.weight, config.owners_set_weights, "weight", "owners_set_weights"),
            (slowest != terms.slowest, config.owners_set_floors, "floor", "owners_set_floors"),
        ] {
            if changes && !may {
                return Err(Refusal::new(
                    RefusalCode::NotAuthorized,
                    format!("user {} may not set the {what} of a job", permit.uid()),
                    format!("ask an administrator, who may also set budget.{key} in agent.toml"),
                ));
            }
        }
        Ok(())
    }

    /// A scope with the owner of its job, which may have ended if something is set for it.
    async fn whose(&self, permit: &Permit, scope: BudgetScope) -> Result<BudgetScope, Refusal> {
        let (job, in_fleet) = match &scope {
            BudgetScope::Job(job) if job.uid.is_none() => (job, false),
            BudgetScope::FleetJob(job) if job.uid.is_none() => (job, true),
            _ => return Ok(scope),
        };
        match self.find_job(permit, job).await {
            Ok(found) => {
                let job = JobKey::of(&found).selector();
                Ok(if in_fleet { BudgetScope::FleetJob(job) } else { BudgetScope::Job(job) })
            }
            Err(refusal) => {
                let ended = self.budgets.of_ended_job(&job.job, in_fleet, permit.only_of());
                ended.ok_or(refusal)
            }
        }
    }

    /// Refuses what would change the pace of a job that a budget takes something from.
    pub(super) fn refuse_in_budget(&self, job: &JobView) -> Result<(), Refusal> {
        if !self.budgets.binds(&JobKey::of(job)) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("job {} is slowed down for a power budget", job.job),
            "see `pfoctl budget explain`; try again when there is more power",
        ))
    }
}
