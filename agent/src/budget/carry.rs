//! Ordinary swaps to what was decided, in the name of the job's owner.

use pfo_protocol::{JobView, Mhz, Request, Response, SwapTarget, Swapped};

use crate::budget::budgets::BudgetMeans;
use crate::budget::known::{OWN, Ordered, Own, UNIFORM, uniform_label};
use crate::job::JobKey;
use crate::pfod::{Asker, PfodError, unexpected};
use crate::straggler::{JobFrontier, Labelled};

/// What a job is to change to.
pub(super) struct Change {
    pub(super) ordered: Ordered,
    target: SwapTarget,
}

impl Change {
    /// To a plan of its frontier, or to one clock for everything.
    ///
    /// # Errors
    /// If there is no such plan.
    pub(super) async fn to(
        means: &BudgetMeans,
        job: &JobView,
        tag: u32,
    ) -> Result<Self, PfodError> {
        if let Some(mhz) = tag.checked_sub(UNIFORM).map(Mhz) {
            let ordered = Ordered { label: uniform_label(mhz), tag, swap: None };
            return Ok(Self { ordered, target: SwapTarget::Uniform(mhz) });
        }
        let frontier = means.stragglers.loaded(job)?;
        let plan = move |frontier: &JobFrontier| frontier.plan_in_budget(tag);
        let Labelled { label, table } = means.stragglers.make(&frontier, plan).await?;
        let ordered = Ordered { label: label.clone(), tag, swap: None };
        Ok(Self { ordered, target: SwapTarget::Table { label, table } })
    }

    /// Back to what it runs by itself. A plan without a clock table cannot be run again.
    pub(super) fn back(own: Option<&Own>) -> Self {
        let (label, target) = match own.and_then(|own| own.plan.clone()) {
            Some(Labelled { label, table }) => (label.clone(), SwapTarget::Table { label, table }),
            None => (String::new(), SwapTarget::DefaultClocks),
        };
        Self { ordered: Ordered { label, tag: OWN, swap: None }, target }
    }

    /// Asks for it.
    ///
    /// # Errors
    /// If `pfod` refuses or does not answer.
    pub(super) async fn carry_out(
        self,
        means: &BudgetMeans,
        key: &JobKey,
    ) -> Result<Swapped, PfodError> {
        let asker = Asker { uid: key.uid, pid: None, administrator: false };
        let mut connection = means.pfod.on_behalf(asker).await?;
        let (job, target) = (key.selector(), self.target);
        match connection
            .ask(Request::PlanSwap { job, target, at_step: None, after: None, wait: false })
            .await?
        {
            Response::Swapped(swapped) => Ok(swapped),
            other => Err(unexpected(&other)),
        }
    }
}
