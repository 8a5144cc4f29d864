use pfo_experiment::{Compared, Interval, Tried, Verdict, Window as Trial};
use pfo_planner::{Instruction, Mhz, Options, Pipeline, Spread, Unit, Watts};
use pfo_protocol::{
    AgentStatus, GuardStatus, PlannedUnit, SavedEnergy, Savings, SavingsReport, SavingsRow, Status,
    Tariff, Uid, Window, Worth,
};

use super::*;
use crate::plan::plot::Course;

const PROFILE: &str = "stage,instruction,frequency,time,energy\n\
                       0,forward,1410,0.010,3.0\n0,forward,1200,0.011,2.5\n\
                       0,backward,1410,0.020,6.0\n0,backward,1200,0.022,5.0\n\
                       1,forward,1410,0.008,2.4\n1,forward,1200,0.009,2.0\n\
                       1,backward,1410,0.016,4.8\n1,backward,1200,0.018,4.0\n";

fn both() -> Both {
    let pfod: Status =
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap();
    let agent: AgentStatus =
        serde_json::from_str(include_str!("../../tests/golden/agent.json")).unwrap();
    Both { pfod, agent: Ok(agent), tunes: Vec::new() }
}

/// A plan of two stages and one microbatch.
fn table() -> ClockTable {
    let unit = |instruction| PlannedUnit {
        unit: Unit::new(instruction, 0),
        mhz: Mhz(1200),
        wait_mhz: None,
    };
    let stage = vec![unit(Instruction::Forward), unit(Instruction::Backward)];
    ClockTable::new(1, None, vec![stage.clone(), stage]).unwrap()
}

struct Made {
    both: Both,
    table: Option<ClockTable>,
    profile: Option<&'static str>,
    user: &'static str,
    gpu: Option<String>,
    tuned: Option<Tuned>,
    observed: Vec<Course>,
    frontier: Option<Frontier>,
    ledger: Result<SavingsReport, &'static str>,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            both: both(),
            table: Some(table()),
            profile: Some(PROFILE),
            user: "alice",
            gpu: None,
            tuned: None,
            observed: Vec::new(),
            frontier: None,
            ledger: Err("no agent"),
        }
    }
}

fn written() -> Written {
    Written { host: "gpu-17".to_owned(), at: "2026-11-28 14:03 CET".to_owned() }
}

impl Made {
    fn page(&self) -> String {
        let profile = self.profile.map(|csv| Profile::from_csv(csv.as_bytes()).unwrap());
        let plan = self.table.as_ref().map(|table| {
            let plan = plan_of(table, None, None);
            Plan { gpu: self.gpu.clone(), ..plan }
        });
        let user = |_: Uid| self.user.to_owned();
        page::page(&Known {
            both: &self.both,
            job: &self.both.pfod.jobs[0],
            compared_now: false,
            user: &user,
            written: &written(),
            table: self.table.as_ref(),
            plan: plan.as_ref(),
            profile: profile.as_ref().map(|profile| (profile, "a.csv")).ok_or("none is stored"),
            frontier: self.frontier.as_ref().ok_or("no frontier is loaded for job gpt-7b"),
            observed: &self.observed,
            ledger: self.ledger.as_ref().map_err(|why| *why),
            days: None,
            warnings: &Ok(String::new()),
            tuned: self.tuned.as_ref(),
        })
    }
}

/// The page without its style, with pictures left out.
fn without_pictures(page: &str) -> String {
    let without = |page: &str, start: &str, end: &str, instead: &str| {
        let mut parts = page.split(start);
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |text, part| text + instead + part.split_once(end).unwrap().1)
    };
    let page = without(page, "<style>", "</style>", "");
    without(&page, "<svg ", "</svg>", "[picture]")
}

/// A tune that kept a plan.
fn tuned(plan: &str) -> Tuned {
    let default_clocks = Trial { times_s: vec![1.24], energies_j: vec![4012.9] };
    let interval = |estimate| Interval { estimate, low: estimate - 0.003, high: estimate + 0.003 };
    let compared = Compared {
        rounds: 8,
        saving: interval(0.152),
        slowdown: interval(0.007),
        disturbed: false,
    };
    let tried = Tried {
        plan: plan.to_owned(),
        predicted_time_s: Some(1.2471),
        predicted_energy_j: Some(3390.5),
        verdict: Verdict::Kept,
        certain: true,
        compared,
    };
    let report = Tuned::new("gpt-7b".parse().unwrap(), "pfo".to_owned(), 0.01, &default_clocks);
    Tuned { tried: vec![tried], kept: both().pfod.jobs[0].plan.clone(), ..report }
}

/// A ledger with a saving that is proven or, with another lower end, not.
fn ledger(plan: &str, low_j: f64) -> SavingsReport {
    let saved = SavedEnergy { low_j, estimate_j: 7.2e5, high_j: 1.08e6, shown: low_j > 0.0 };
    let savings = Savings {
        steps: 50,
        time_s: 7300.0,
        energy_j: 3.6e6,
        compared_j: 3.6e6,
        comparisons: 4,
        saved: Some(saved),
        hottest_c: Some(71),
        slowdown_s: Some(51.0),
        money: Some(Worth { low: 0.03, estimate: 0.06, high: 0.09 }),
        ..Savings::default()
    };
    let row = |plan: &str, savings| SavingsRow {
        uid: Some(Uid(7)),
        plan: Some(plan.into()),
        savings,
        ..SavingsRow::default()
    };
    let tariff = Tariff { price_per_kwh: Some(0.3), currency: "EUR".into(), co2e_g_per_kwh: None };
    SavingsReport {
        rows: vec![row(plan, savings), row("none", Savings::default())],
        total: savings,
        tariff,
        entries: 2,
        ..SavingsReport::default()
    }
}

fn frontier() -> Frontier {
    let profile = Profile::from_csv(PROFILE.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 1).unwrap();
    let options = Options { plans: 10, spread: Spread::Even };
    Frontier::optimize(&pipeline, Watts(10.0), options, &|_| {}).unwrap()
}

#[test]
fn a_page_has_the_saving_in_its_headline_and_a_picture_of_the_frontier() {
    let made = Made {
        tuned: Some(tuned("pfo 2")),
        frontier: Some(frontier()),
        ledger: Ok(ledger("1.02x.json", 3.6e5)),
        ..Made::default()
    };
    let page = made.page();
    insta::assert_snapshot!(without_pictures(&page));
    assert_eq!(page.matches("<svg ").count(), 3, "{page}");
    for words in ["prefers-color-scheme: dark", "stage 1 waits", "default clocks, measured"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn a_saving_that_is_not_proven_is_not_certain_yet() {
    let line = |made: Made| {
        let page = made.page();
        page.split_once("<p class=\"headline\">").unwrap().1.lines().next().unwrap().to_owned()
    };
    let uncertain = || Ok(ledger("1.02x.json", -3.6e5));
    let of_tune = Made { tuned: Some(tuned("pfo 2")), ledger: uncertain(), ..Made::default() };
    let of_ledger = Made { ledger: uncertain(), ..Made::default() };
    let of_windows = Made::default();
    let mut of_nothing = Made::default();
    of_nothing.both.pfod.jobs[0].windows.clear();
    let lines = [of_tune, of_ledger, of_windows, of_nothing].map(line);
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn rows_of_fewer_ranks_are_marked_and_are_no_points_of_the_frontier() {
    let mut made = Made { frontier: Some(frontier()), ..Made::default() };
    let windows = &mut made.both.pfod.jobs[0].windows;
    let part = |window: &Window, iteration_energy_j| Window {
        ranks: 1,
        iteration_energy_j: Some(iteration_energy_j),
        ..window.clone()
    };
    windows.extend([part(&windows[0], 68.8), part(&windows[1], 28.2)]);
    let page = made.page();
    for words in [
        "1.02x.json (1 of 4 ranks)",
        "default clocks (1 of 4 ranks)",
        "lease was revoked",
        "<td>68.80 J</td>\n<td>-</td>",
        // One of default clocks, one of the plan.
        "2 points: measured on this job",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn every_replica_of_a_pipeline_counts_once_on_the_frontier() {
    let mut made = Made { frontier: Some(frontier()), ..Made::default() };
    let job = &mut made.both.pfod.jobs[0];
    job.pp_degree = 2;
    for rank in &mut job.ranks {
        rank.stage.0 %= 2;
    }
    assert!(made.page().contains("2 points: measured on this job"));
    made.both.pfod.jobs[0].ranks.pop();
    assert!(made.page().contains("No measurement of the job can be compared"));
}

#[test]
fn settings_beside_the_plan_in_force_are_folded_if_they_are_many() {
    let mut made = Made::default();
    let windows = &mut made.both.pfod.jobs[0].windows;
    for number in 10..20 {
        let mut other = windows[1].clone();
        let plan = other.plan.as_mut().unwrap();
        (plan.number, plan.label) = (number, format!("other {number}"));
        windows.push(other);
    }
    let page = made.page();
    let (shown, folded) = page.split_once("<details><summary>10 other settings").unwrap();
    assert!(shown.contains("1 1.02x.json") && !shown.contains("other 10"), "{page}");
    assert!(folded.contains("10 other 10") && folded.contains("19 other 19"), "{page}");
}

#[test]
fn a_job_whose_guard_compares_now_is_about_the_plan_to_which_it_returns() {
    let mut both = both();
    let job = &mut both.pfod.jobs[0].clone();
    let label = |job: &JobStatus| job.plan.as_ref().map(|plan| plan.label.clone());
    assert!(!page::take_compared_plan(job, &both));
    job.plan = None;
    let watched = &mut both.agent.as_mut().unwrap().jobs[0];
    assert_eq!((&watched.job, watched.uid), (&job.job, job.uid));
    let guard = GuardStatus {
        max_slowdown: 0.01,
        slowdown: None,
        compared_at_step: None,
        corrected: None,
        given_up: Some(0.02),
    };
    watched.guard = Some(guard);
    assert!(!page::take_compared_plan(job, &both), "default clocks are what it runs");
    both.agent.as_mut().unwrap().jobs[0].guard.as_mut().unwrap().given_up = None;
    assert!(page::take_compared_plan(job, &both));
    assert_eq!(label(job).as_deref(), Some("1.02x.json"));
}

#[test]
fn a_job_of_one_stage_has_no_picture_of_a_pipeline() {
    let mut made = Made::default();
    made.both.pfod.jobs[0].pp_degree = 1;
    let page = made.page();
    assert!(page.contains("the job has one stage, and so no pipeline to draw"), "{page}");
    assert!(!page.contains("<h2>A step before and after") && !page.contains("<svg"), "{page}");
}

#[test]
fn what_gpus_did_while_the_page_was_made_is_a_picture() {
    let course = |name: &str, mhz: f64| Course {
        name: name.into(),
        mhz: vec![(0.0, mhz), (0.2, mhz - 90.0), (0.4, mhz)],
        power_w: vec![(0.0, 250.0), (0.2, 180.0)],
    };
    let observed = vec![course("GPU 0", 1410.0), course("GPU 1", 1200.0)];
    let page = Made { observed, ..Made::default() }.page();
    insta::assert_snapshot!(without_pictures(&page));
    for words in ["GPU 1", "SM clock", "0.4 s"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let many = (0..64).map(|index| course(&format!("GPU {index}"), 900.0)).collect();
    let page = Made { observed: many, ..Made::default() }.page();
    assert!(page.contains("GPU 7") && !page.contains("GPU 8"), "{page}");
    let once = Course { mhz: vec![(0.0, 900.0)], ..Course::default() };
    let page = Made { observed: vec![once, Course::default()], ..Made::default() }.page();
    assert!(page.contains("nobody looked"), "{page}");
}

#[test]
fn a_job_that_has_ended_has_a_page_from_the_ledger() {
    let (by_plan, mut by_day) = (ledger("<b>", 3.6e5), ledger("", 3.6e5));
    for (row, day_unix_s) in by_day.rows.iter_mut().zip([1_795_737_600, 1_795_824_000]) {
        row.day_unix_s = Some(day_unix_s);
    }
    let saved = (&by_plan, Some(&by_day));
    let user = |_| "alice".to_owned();
    let page =
        page::ended(&"gpt-7b".parse().unwrap(), saved, (&written(), Ok(String::new())), &user);
    insta::assert_snapshot!(without_pictures(&page));
    assert!(page.contains("<svg "), "{page}");
}

#[test]
fn a_power_limit_in_the_profile_is_said_to_limit_the_saving() {
    let capped = "stage,instruction,frequency,time,energy,observed_mhz\n\
                  0,forward,1410,0.010,3.0,1300\n0,forward,1350,0.010,3.0,1300\n\
                  0,forward,1200,0.011,2.5,1200\n0,backward,1200,0.022,5.0,1200\n\
                  1,forward,1200,0.009,2.0,1200\n1,backward,1200,0.018,4.0,1200\n";
    let page = Made { profile: Some(capped), ..Made::default() }.page();
    insta::assert_snapshot!(without_pictures(&page));
}

#[test]
fn what_is_not_known_is_said() {
    let mut made = Made { profile: None, ..Made::default() };
    assert!(made.page().contains("no profile is known: none is stored."));
    made.table = None;
    made.both.pfod.jobs[0].plan = None;
    made.both.pfod.jobs[0].windows.clear();
    made.both.pfod.jobs[0].ranks.clear();
    made.both.pfod.jobs[0].energy_j = None;
    let page = made.page();
    insta::assert_snapshot!(without_pictures(&page));
    assert!(!page.contains("<svg") && !page.contains("NaN"), "{page}");
}

#[test]
fn a_profile_of_another_pipeline_is_an_explanation_and_no_page_without_the_rest() {
    let other = "stage,instruction,frequency,time,energy\n0,forward,1410,0.010,3.0\n\
                 0,backward,1410,0.020,6.0\n";
    let page = Made { profile: Some(other), ..Made::default() }.page();
    insta::assert_snapshot!(without_pictures(&page));
}

#[test]
fn nothing_that_somebody_else_wrote_becomes_a_part_of_the_page() {
    const EVIL: &str =
        "</title></style><script>alert(1)</script><img src=http://evil onerror=x>\"'&";
    let mut evil = frontier();
    evil.gpu = Some(EVIL.to_owned());
    let mut made = Made {
        user: EVIL,
        gpu: Some(EVIL.to_owned()),
        tuned: Some(tuned(EVIL)),
        frontier: Some(evil),
        ledger: Ok(ledger(EVIL, 3.6e5)),
        ..Made::default()
    };
    let Status { daemon, gpus, jobs } = &mut made.both.pfod;
    daemon.driver = Some(EVIL.to_owned());
    daemon.version = EVIL.to_owned();
    gpus[0].model = EVIL.to_owned();
    gpus[0].problem = Some(EVIL.to_owned());
    let job = &mut jobs[0];
    job.plan.as_mut().unwrap().label = EVIL.to_owned();
    job.windows[1].plan.as_mut().unwrap().label = EVIL.to_owned();
    job.ranks[0].problem = Some(EVIL.to_owned());
    job.ranks[1].last_mismatch = Some(EVIL.to_owned());
    let page = made.page();
    assert!(page.matches("&lt;script&gt;").count() > 6, "{page}");
    for bad in ["<script", "<img", "</style><", "<a ", "<link", "url("] {
        assert!(!page.contains(bad), "{bad}: {page}");
    }
    // What is named like an address is text.
    assert!(!page.contains("src=\"") && !page.contains("href="), "{page}");
}
