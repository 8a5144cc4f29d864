//! What is shown of budgets and of what jobs give up for them.

use std::collections::BTreeMap;

use pfo_budget::{Reason, Share};
use pfo_protocol::{
    BudgetFileTrouble, BudgetReason, BudgetScope, BudgetStatus, BudgetSteering, BudgetedJob, Uid,
};

use crate::budget::book::{Book, Kept};
use crate::budget::decision::Decided;
use crate::budget::gather::Member;
use crate::budget::known::Known;
use crate::job::JobKey;

/// What was decided last.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub(super) budgets: BTreeMap<BudgetScope, BudgetStatus>,
    pub(super) jobs: BTreeMap<JobKey, BudgetedJob>,
}

/// A budget of which nothing was decided.
pub(super) fn undecided(kept: &Kept) -> BudgetStatus {
    BudgetStatus {
        order: kept.order.clone(),
        by_uid: kept.by_uid,
        by_node: kept.by_node.as_ref().map(ToString::to_string),
        by_key: kept.by_key.clone(),
        since_unix_s: kept.since_unix_s,
        budget_w: None,
        drawn_w: None,
        base_w: 0.0,
        reserve_w: 0.0,
        price: None,
        missing_w: None,
        file: None,
        problem: None,
    }
}

/// Why a job runs what it runs.
pub(super) fn reason_of(is_held: bool, share: Option<&Share>) -> BudgetReason {
    match share {
        _ if is_held => BudgetReason::Held,
        None => BudgetReason::Unknown,
        Some(share) => match share.reason {
            Reason::Fastest => BudgetReason::Own,
            Reason::Price => BudgetReason::Price,
            Reason::Floor => BudgetReason::Floor,
        },
    }
}

/// A job with what it was given.
pub(super) fn job(member: &Member, known: &Known, share: Option<&Share>) -> BudgetedJob {
    let steering = match share {
        _ if member.is_limited => BudgetSteering::PowerLimits,
        Some(_) => member.steering,
        None => BudgetSteering::Nothing,
    };
    BudgetedJob {
        job: member.key.name.clone(),
        uid: member.key.uid,
        partition: member.partition.clone(),
        scope: member.scope.clone(),
        steering,
        weight: member.weight,
        slowest: member.slowest,
        drawn_w: Some(member.drawn_w()),
        own_w: share.map(|share| share.power_w + share.given_w),
        given_w: share.map_or(0.0, |share| share.given_w),
        lost: share.map_or(0.0, |share| share.lost),
        reason: reason_of(member.is_held, share),
        next_price: share.and_then(|share| share.next_price),
        given_j: known.given_j,
        lost_s: known.lost_s,
        problem: known.problem.clone(),
    }
}

impl Shown {
    /// Takes what was decided for one budget.
    pub(super) fn take(
        &mut self,
        kept: &Kept,
        members: &[&Member],
        known: &BTreeMap<JobKey, Known>,
        outcome: &Outcome<'_>,
    ) {
        let mut status = undecided(kept);
        (status.budget_w, status.base_w) = (Some(outcome.budget_w), outcome.base_w);
        (status.file, status.problem) = (outcome.file.clone(), outcome.problem.clone());
        let drawn_w: f64 = members.iter().map(|member| member.drawn_w()).sum();
        status.drawn_w = Some(outcome.base_w + drawn_w);
        if let Some(decided) = outcome.decided {
            status.reserve_w = decided.reserve_w;
            status.price = Some(decided.price).filter(|price| price.is_finite());
            status.missing_w = decided.missing_w;
        }
        for member in members {
            let share = outcome.decided.and_then(|decided| decided.shares.get(&member.key));
            let share = share.filter(|_| member.curve.is_some());
            if let Some(known) = known.get(&member.key) {
                self.jobs.insert(member.key.clone(), job(member, known, share));
            }
        }
        self.budgets.insert(kept.order.scope.clone(), status);
    }

    /// The budgets and jobs that one user may see, or all.
    pub(super) fn of(
        &self,
        book: &Book,
        only_of: Option<Uid>,
    ) -> (Vec<BudgetStatus>, Vec<BudgetedJob>) {
        let may_see = |scope: &BudgetScope| sees(scope, only_of);
        let budgets =
            book.orders.iter().filter(|(scope, _)| may_see(scope)).map(|(scope, kept)| {
                let shown = self.budgets.get(scope).filter(|shown| shown.order == kept.order);
                shown.cloned().unwrap_or_else(|| undecided(kept))
            });
        // Those of a budget that has just been cleared do not give up anything for long.
        let is_shown = |job: &&BudgetedJob| {
            book.orders.contains_key(&job.scope) && only_of.is_none_or(|uid| uid == job.uid)
        };
        let jobs = self.jobs.values().filter(is_shown);
        (budgets.collect(), jobs.cloned().collect())
    }
}

/// Whether a user sees what is set for a scope.
pub(super) fn sees(scope: &BudgetScope, only_of: Option<Uid>) -> bool {
    only_of.is_none_or(|own| scope.uid() == Some(own))
}

/// What a decision was made for, and what became of it.
pub(super) struct Outcome<'a> {
    pub(super) budget_w: f64,
    pub(super) base_w: f64,
    pub(super) decided: Option<&'a Decided>,
    pub(super) file: Option<BudgetFileTrouble>,
    pub(super) problem: Option<String>,
}
