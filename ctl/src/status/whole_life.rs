//! What the plan of a job has saved since it first ran, which pfo-agent's ledger remembers when pfod, or the
//! job, was started anew meanwhile.

use pfo_protocol::{JobStatus, SavedEnergy, Savings, SavingsRow};

use super::quantity::percent;
use crate::savings::share;
use crate::text::harmless;

/// A line on the plan that a job runs; none at default clocks, or before there is a comparison.
pub(crate) fn render(job: &JobStatus, ledger: &[SavingsRow]) -> Option<String> {
    let label = &job.plan.as_ref()?.label;
    let is_it = |row: &&SavingsRow| {
        (row.uid, row.job.as_ref(), row.plan.as_ref())
            == (Some(job.uid), Some(&job.job), Some(label))
    };
    let savings = ledger.iter().find(is_it)?.savings;
    let saved = savings.saved?;
    let said = if saved.shown { saving(&savings, &saved) } else { "no saving is proven".into() };
    let line = format!(
        "Since plan {label} first ran: {said}, in {} steps (pfoctl savings --by plan)",
        savings.steps
    );
    Some(format!("{}\n", harmless(&line)))
}

fn saving(savings: &Savings, saved: &SavedEnergy) -> String {
    let of = |saved_j| percent(share(savings, &SavedEnergy { estimate_j: saved_j, ..*saved }));
    format!(
        "{} saved, 95 % interval {} to {}",
        of(saved.estimate_j),
        of(saved.low_j),
        of(saved.high_j)
    )
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;

    use super::*;
    use crate::status::measured::tests::{job, plan};

    fn row(plan: &str, shown: bool) -> SavingsRow {
        let saved = SavedEnergy { low_j: 50.0, estimate_j: 100.0, high_j: 150.0, shown };
        SavingsRow {
            uid: Some(Uid::ROOT),
            job: Some("j".parse().unwrap()),
            plan: Some(plan.to_owned()),
            savings: Savings {
                steps: 4120,
                compared_j: 900.0,
                saved: Some(saved),
                ..Savings::default()
            },
            ..SavingsRow::default()
        }
    }

    #[test]
    fn what_the_plan_in_force_saved_is_said_with_its_interval() {
        let running = JobStatus { plan: Some(plan(3)), ..job(Vec::new()) };
        let ledger = [row("other.json", true), row("p.json", true)];
        insta::assert_snapshot!(render(&running, &ledger).unwrap());
        assert_eq!(render(&running, &ledger[..1]), None);
        insta::assert_snapshot!(render(&running, &[row("p.json", false)]).unwrap());
    }

    #[test]
    fn of_another_user_and_at_default_clocks_nothing_is_said() {
        let ledger = [row("p.json", true)];
        assert_eq!(render(&job(Vec::new()), &ledger), None);
        let others = JobStatus { plan: Some(plan(3)), uid: Uid(7), ..job(Vec::new()) };
        assert_eq!(render(&others, &ledger), None);
    }
}
