use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use pfo_protocol::{
    AgentStatus, BudgetLevel, BudgetOrder, BudgetReason, BudgetReport, BudgetScope, BudgetStatus,
    BudgetSteering, BudgetedJob, CurvePoint, GuardStatus, JobName, SavedEnergy, Status, Tariff,
    Uid,
};

use crate::job::JobKey;
use crate::ledger::{Account, Booked};

use super::super::known::Known;
use super::super::page::{Format, write};
use super::{Kind, Labels, Sink, Subject, all};

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const NODE: &str = include_str!("../../../../ctl/tests/golden/status.json");
const AGENT: &str = include_str!("../../../../ctl/tests/golden/agent.json");

/// One series as it is handed out.
struct Found {
    name: &'static str,
    kind: Kind,
    unit: Option<&'static str>,
    help: &'static str,
    label_names: &'static [&'static str],
    values: Vec<(Labels, f64)>,
}

#[derive(Default)]
struct Collected(Vec<Found>);

impl Sink for Collected {
    fn take<T>(&mut self, subject: &Subject<T>, ones: &[T]) -> fmt::Result {
        for series in &subject.series {
            let value = |one| Some((subject.labels_of(one), (series.value)(one)?));
            self.0.push(Found {
                name: series.name,
                kind: series.kind,
                unit: series.unit,
                help: series.help,
                label_names: subject.labels,
                values: ones.iter().filter_map(value).collect(),
            });
        }
        Ok(())
    }
}

fn collected(known: &Known) -> Vec<Found> {
    let mut found = Collected::default();
    all(known, &mut found).unwrap();
    found.0
}

fn without_pfod() -> Known {
    let agent: AgentStatus = serde_json::from_str(AGENT).unwrap();
    let (saved, budget) = (BTreeMap::new(), BudgetReport::default());
    Known {
        node: None,
        agent,
        budget,
        refusals: 0,
        store: None,
        ledger_entries: 0,
        failing_duties: 0,
        saved,
        accounts: Vec::new(),
        tariff: Tariff::default(),
    }
}

/// A budget that cannot be kept, with a job at its floor.
fn budget(job: JobName, uid: Uid) -> BudgetReport {
    let order = BudgetOrder {
        scope: BudgetScope::Node,
        level: BudgetLevel::Watts(900.0),
        up_w_per_s: None,
        down_w_per_s: None,
        emergency: false,
    };
    let status = BudgetStatus {
        order,
        by_uid: Uid(0),
        by_node: None,
        by_key: None,
        since_unix_s: 7,
        budget_w: Some(900.0),
        drawn_w: Some(1000.0),
        base_w: 100.0,
        reserve_w: 1.0,
        price: None,
        missing_w: Some(100.0),
        file: None,
        problem: None,
    };
    let budgeted = BudgetedJob {
        job,
        uid,
        partition: None,
        scope: BudgetScope::Node,
        steering: BudgetSteering::Plans,
        weight: 4.0,
        slowest: None,
        drawn_w: Some(900.0),
        own_w: Some(1100.0),
        given_w: 200.0,
        lost: 0.2,
        reason: BudgetReason::Floor,
        next_price: None,
        given_j: 1.0,
        lost_s: 1.0,
        problem: None,
    };
    BudgetReport { budgets: vec![status], terms: Vec::new(), jobs: vec![budgeted], disobeyed: None }
}

/// A node of which as much is known as can be.
fn everything() -> Known {
    let node: Status = serde_json::from_str(NODE).unwrap();
    let mut known = Known { node: Some(node), store: Some(true), ..without_pfod() };
    let node = known.node.as_mut().unwrap();
    node.gpus[0].power_limit_w = Some(300);
    let job = node.jobs.iter_mut().find(|job| !job.ranks.is_empty() && job.plan.is_some()).unwrap();
    let plan = job.plan.as_mut().unwrap();
    (plan.predicted_time_s, plan.predicted_energy_j) = (Some(1.5), Some(3000.0));
    let window = job.windows.last_mut().unwrap();
    (window.plan, window.steps, window.iteration_energy_j) = (job.plan.clone(), 9, Some(3100.0));
    let key = (job.uid, job.job.clone(), job.ranks[0].rank);
    let saved = SavedEnergy { low_j: 1.0, estimate_j: 2.0, high_j: 3.0, shown: true };
    known.saved.insert(JobKey { uid: job.uid, name: job.job.clone() }, saved);
    known.tariff =
        Tariff { price_per_kwh: Some(0.36), currency: "EUR".into(), co2e_g_per_kwh: Some(360.0) };
    let booked = Booked { saved_j: 5.0, ..Booked::default() };
    known.accounts = [None, Some("big")]
        .map(|partition| Account { uid: job.uid, partition: partition.map(str::to_owned), booked })
        .to_vec();
    let mut all_of_one = known.agent.jobs[0].clone();
    for watched in &known.agent.jobs {
        all_of_one.frontier = all_of_one.frontier.or_else(|| watched.frontier.clone());
        all_of_one.drift = all_of_one.drift.or_else(|| watched.drift.clone());
        all_of_one.fleet = all_of_one.fleet.or_else(|| watched.fleet.clone());
        if all_of_one.slow.is_empty() {
            all_of_one.slow = watched.slow.clone();
        }
    }
    (all_of_one.uid, all_of_one.job, all_of_one.slow[0].rank) = key;
    let frontier = all_of_one.frontier.as_mut().unwrap();
    frontier.straggler = Some(1.2);
    frontier.curve = vec![CurvePoint { step_s: 1.5, power_w: 900.0 }];
    let drift = all_of_one.drift.as_mut().unwrap();
    (drift.energy, drift.plan) = (Some(-0.07), job.plan.as_ref().unwrap().number);
    all_of_one.fleet.as_mut().unwrap().store_away_s = Some(7.0);
    let slowdown = Some(0.004);
    all_of_one.guard = Some(GuardStatus { max_slowdown: 0.01, slowdown, ..GuardStatus::default() });
    let (job, uid) = (all_of_one.job.clone(), all_of_one.uid);
    known.agent.jobs = vec![all_of_one];
    known.budget = budget(job, uid);
    known
}

#[test]
fn the_page_lists_every_series_with_its_unit_labels_and_meaning_and_no_other() {
    let row = |found: &Found| {
        let labels: Vec<_> = found.label_names.iter().map(|name| format!("`{name}`")).collect();
        let labels = if labels.is_empty() { "–".into() } else { labels.join(", ") };
        let kind = format!("{:?}", found.kind).to_lowercase();
        let (name, unit, help) = (found.name, found.unit.unwrap_or("–"), found.help);
        format!("| `{name}` | {kind} | {unit} | {labels} | {help} |")
    };
    let expected: Vec<_> = collected(&without_pfod()).iter().map(row).collect();
    let listed: Vec<_> = PAGE.lines().filter(|line| line.starts_with("| `pfo_")).collect();
    assert_eq!(listed, expected, "docs/metrics.md should list\n{}", expected.join("\n"));
}

#[test]
fn of_everything_that_is_known_there_is_a_series() {
    let absent: Vec<_> = collected(&everything())
        .iter()
        .filter(|it| it.values.is_empty())
        .map(|it| it.name)
        .collect();
    assert_eq!(absent, [""; 0]);
}

#[test]
fn without_pfod_there_are_only_series_of_the_agent_and_that_it_is_away() {
    let found = collected(&without_pfod());
    let present = found.iter().filter(|it| !it.values.is_empty());
    for found in present {
        let is_away = found.name == "pfo_daemon_up" && found.values[0].1 == 0.0;
        assert!(is_away || found.name.starts_with("pfo_agent_"), "{}", found.name);
    }
}

#[test]
fn what_is_not_known_is_absent_and_not_0() {
    let mut known = everything();
    let node = known.node.as_mut().unwrap();
    for gpu in &mut node.gpus {
        (gpu.power_w, gpu.observed_mhz, gpu.requested_mhz) = (None, None, None);
        (gpu.memory_locked_mhz, gpu.power_limit_w, gpu.throttle_reasons) = (None, None, 0);
    }
    for job in &mut node.jobs {
        (job.plan, job.windows) = (None, Vec::new());
        job.ranks.iter_mut().for_each(|rank| (rank.energy_j, rank.step) = (None, None));
    }
    (known.agent.jobs, known.store) = (Vec::new(), None);
    let text = write(&Arc::new(known), Format::OpenMetrics);
    for name in [
        "pfo_gpu_power_watts",
        "pfo_gpu_observed_clock_hertz",
        "pfo_gpu_requested_clock_hertz",
        "pfo_gpu_throttled",
        "pfo_job_energy_joules",
        "pfo_job_step",
        "pfo_job_plan_suspended",
        "pfo_job_predicted_step_seconds",
        "pfo_job_time_drift_ratio",
        "pfo_rank_slow_ratio",
        "pfo_agent_store_connected",
    ] {
        assert!(!text.contains(name), "{name} in\n{text}");
    }
    assert!(text.contains("\npfo_job_plan{"), "default clocks are known:\n{text}");
}

#[test]
fn names_follow_the_conventions_and_only_series_of_jobs_have_labels_of_jobs() {
    let mut names = BTreeSet::new();
    for Found { name, kind, unit, label_names, help, .. } in collected(&everything()) {
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("pfo_"), "{name}");
        let end =
            format!("{}{}", unit.map(|it| format!("_{it}")).unwrap_or_default(), kind.suffix());
        assert!(name.ends_with(&end), "{name} should end with {end}");
        assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), kind == Kind::Info, "{name}");
        // Sums of a user go with no job.
        let of_job = label_names.iter().any(|label| ["pfo_job", "uid", "rank"].contains(label))
            && !label_names.contains(&"partition");
        assert_eq!(of_job, name.starts_with("pfo_job_"), "{name}: {label_names:?}");
        assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
    }
}

#[test]
fn a_label_set_occurs_once_in_a_series() {
    for Found { name, values, .. } in collected(&everything()) {
        let sets: BTreeSet<_> = values.iter().map(|(labels, _)| labels).collect();
        assert_eq!(sets.len(), values.len(), "{name}");
    }
}

#[test]
fn a_job_without_ranks_has_no_series() {
    let mut known = everything();
    known.node.as_mut().unwrap().jobs.iter_mut().for_each(|job| job.ranks.clear());
    let text = write(&Arc::new(known), Format::OpenMetrics);
    assert!(!text.contains("pfo_job") && !text.contains("pfo_rank"), "{text}");
}

#[test]
fn both_formats_have_the_same_figures() {
    let known = Arc::new(everything());
    let samples = |format| {
        let text = write(&known, format);
        let mut samples: Vec<_> =
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        // The encoding of OpenMetrics has whole numbers where it can.
        samples.iter_mut().for_each(|it| *it = it.trim_end_matches(".0").to_owned());
        samples
    };
    assert_eq!(samples(Format::OpenMetrics), samples(Format::Classic));
    let openmetrics = write(&known, Format::OpenMetrics);
    for expected in [
        "# TYPE pfo_job_energy_joules counter\n# UNIT pfo_job_energy_joules joules\n",
        "# TYPE pfo_gpu info\npfo_gpu_info{gpu_uuid=\"GPU-",
        "# UNIT pfo_gpu_power_watts watts\n",
        "# TYPE pfo_agent_refusals counter\npfo_agent_refusals_total 0.0\n",
    ] {
        assert!(openmetrics.contains(expected), "{expected} in\n{openmetrics}");
    }
    assert!(openmetrics.ends_with("\n# EOF\n"));
    let classic = write(&known, Format::Classic);
    assert!(classic.contains("# TYPE pfo_job_energy_joules_total counter\n"), "{classic}");
    assert!(classic.contains("# TYPE pfo_gpu_info gauge\n") && !classic.contains("# UNIT"));
}

#[test]
fn a_counter_of_time_does_not_fall_by_what_computing_adds() {
    let mut known = everything();
    let mut last = 0.0;
    for set_call_ns in 1..2000_u64 {
        let calls = set_call_ns / 7 + 1;
        let job = known.node.as_mut().unwrap().jobs.iter_mut().find(|job| !job.ranks.is_empty());
        let rank = &mut job.unwrap().ranks[0];
        rank.clock_changes = calls;
        rank.set_call_mean_us = (1e12 as u64 + set_call_ns) as f64 / 1e3 / calls as f64;
        let found = collected(&known);
        let name = "pfo_rank_clock_set_seconds_total";
        let now = found.iter().find(|it| it.name == name).unwrap().values[0].1;
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
}
