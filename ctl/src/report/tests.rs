use pfo_planner::{Instruction, Mhz, Unit};
use pfo_protocol::{
    AgentStatus, PlannedUnit, SavedEnergy, Savings, SavingsReport, SavingsRow, Status, Uid,
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
    tuned: Option<&'static str>,
    observed: Vec<Course>,
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
        }
    }
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
            user: &user,
            table: self.table.as_ref(),
            plan: plan.as_ref(),
            profile: profile.as_ref().map(|profile| (profile, "a.csv")).ok_or("none is stored"),
            frontier: None,
            observed: &self.observed,
            ledger: Err("no agent"),
            tuned: self.tuned,
            warnings: String::new(),
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

#[test]
fn a_page_says_what_is_measured_and_what_is_predicted() {
    let page = Made { tuned: Some("saves 14.9 % to 15.5 %"), ..Made::default() }.page();
    insta::assert_snapshot!(without_pictures(&page));
    assert!(page.contains("prefers-color-scheme: dark"), "{page}");
    assert!(page.contains("stage 1 waits"), "{page}");
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
    assert!(page.contains("Nobody looked"), "{page}");
}

#[test]
fn a_job_that_has_ended_has_a_page_from_the_ledger() {
    let saved = SavedEnergy { low_j: 3.6e5, estimate_j: 7.2e5, high_j: 1.08e6, shown: true };
    let savings = Savings {
        steps: 50,
        energy_j: 3.6e6,
        compared_j: 3.6e6,
        saved: Some(saved),
        hottest_c: Some(71),
        ..Savings::default()
    };
    let row = |plan: &str, savings| SavingsRow {
        uid: Some(Uid(7)),
        plan: Some(plan.into()),
        savings,
        ..SavingsRow::default()
    };
    let ledger = SavingsReport {
        rows: vec![row("<b>", savings), row("none", Savings::default())],
        total: savings,
        entries: 2,
        ..SavingsReport::default()
    };
    let page =
        page::ended(&"gpt-7b".parse().unwrap(), &ledger, String::new(), &|_| "alice".to_owned());
    insta::assert_snapshot!(without_pictures(&page));
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
    assert!(made.page().contains("No profile is known: none is stored."));
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
    let mut made =
        Made { user: EVIL, gpu: Some(EVIL.to_owned()), tuned: Some(EVIL), ..Made::default() };
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
