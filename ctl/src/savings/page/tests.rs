use pfo_protocol::{SavedEnergy, Savings, Tariff, Worth};

use super::*;
use crate::savings::KWH_J;

fn savings(energy_j: f64, saved: Option<[f64; 3]>) -> Savings {
    let worth = |saved: SavedEnergy, price: f64| Worth {
        low: saved.low_j / KWH_J * price,
        estimate: saved.estimate_j / KWH_J * price,
        high: saved.high_j / KWH_J * price,
    };
    let saved = saved.map(|[low_j, estimate_j, high_j]| SavedEnergy {
        low_j,
        estimate_j,
        high_j,
        shown: low_j > 0.0,
    });
    Savings {
        steps: 1000,
        time_s: 7300.0,
        energy_j,
        compared_j: if saved.is_some() { energy_j } else { 0.0 },
        comparisons: 5,
        saved,
        throttled_s: Some(70.0),
        hottest_c: Some(71),
        slowdown_s: saved.map(|_| 90.0),
        money: saved.map(|saved| worth(saved, 0.3)),
        co2e_g: saved.map(|saved| worth(saved, 400.0)),
        ..Savings::default()
    }
}

fn report(rows: Vec<SavingsRow>) -> SavingsReport {
    let energy_j = rows.iter().map(|row| row.savings.energy_j).sum();
    let mut total = savings(energy_j, Some([2.0 * KWH_J, 3.0 * KWH_J, 4.0 * KWH_J]));
    total.compared_j = rows.iter().map(|row| row.savings.compared_j).sum();
    SavingsReport {
        rows,
        total,
        tariff: Tariff {
            price_per_kwh: Some(0.3),
            currency: "EUR".into(),
            co2e_g_per_kwh: Some(400.0),
        },
        since_unix_s: Some(1_793_491_200),
        until_unix_s: Some(1_796_083_200),
        ..SavingsReport::default()
    }
}

fn row(uid: u32, job: Option<&str>, savings: Savings) -> SavingsRow {
    let job = job.map(|job| job.parse().unwrap());
    SavingsRow { uid: Some(Uid(uid)), job, savings, ..SavingsRow::default() }
}

fn page_of(reports: [&SavingsReport; 4], node: Result<&Status, String>) -> String {
    let [users, partitions, models, jobs] = reports;
    page(&Known {
        title: "Saved in 2026-11 on gpu-17".into(),
        users,
        partitions,
        models,
        jobs,
        days: None,
        node,
        user: &|uid| if uid == Uid(1) { "<alice>".into() } else { "bob".into() },
        zone: &TimeZone::UTC,
    })
}

#[test]
fn a_page_says_what_was_saved_by_whom_and_what_limited_it() {
    let good = savings(30.0 * KWH_J, Some([2.0 * KWH_J, 3.0 * KWH_J, 4.0 * KWH_J]));
    let none = savings(5.0 * KWH_J, None);
    let users = report(vec![row(1, None, good), row(2, None, none)]);
    let jobs = report(vec![row(1, Some("llama"), good), row(2, Some("gpt"), none)]);
    let of = |partition: &str| SavingsRow {
        partition: Some(partition.into()),
        model: Some("NVIDIA H100".into()),
        savings: good,
        ..SavingsRow::default()
    };
    let others = report(vec![of("big")]);
    let page = page_of([&users, &others, &others, &jobs], Err("pfod does not answer".into()));
    insta::assert_snapshot!(page.split("</style>").nth(1).unwrap());
    for bad in ["<script", "<alice", "src=", "href=", "url("] {
        assert!(!page.contains(bad), "{bad}: {page}");
    }
}

#[test]
fn a_ledger_without_a_row_is_a_page_in_words() {
    let empty = SavingsReport::default();
    let page = page_of([&empty; 4], Err("pfod does not answer".into()));
    assert!(page.contains("No saving is proven.") && !page.contains("<svg"), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
}

#[test]
fn a_job_that_runs_and_saves_nothing_is_named_with_what_would_change_that() {
    use crate::status::measured::tests::{job, plan};
    let default = JobStatus { pp_degree: 4, plan: None, ..job(Vec::new()) };
    let single = JobStatus { pp_degree: 1, ..default.clone() };
    let mut suspended = JobStatus { plan: Some(plan(3)), ..default.clone() };
    assert_eq!(why_idle(&suspended), None);
    suspended.plan.as_mut().unwrap().suspended = Some("it does not fit".into());
    let why = [&default, &single, &suspended].map(|job| why_idle(job).unwrap());
    assert_eq!(
        why,
        [
            "runs default clocks: `pfoctl tune` looks for a plan",
            "runs default clocks, and has no pipeline: only one clock for all of it can save",
            "its plan is suspended: it does not fit",
        ]
    );
}
