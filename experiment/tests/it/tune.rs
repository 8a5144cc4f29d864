//! Tuning a job that takes what the replay of its plan says, or some more.

use pfo_experiment::{
    Knob, Origin, PowerOrigin, Raising, System, Terms, TuneError, TuneOrder, Tuned, Verdict, tune,
};
use pfo_planner::Plan;
use pfo_protocol::{JobSelector, Uid};

use crate::played::{Job, Overhead, PROFILE, Stored};

fn selector() -> JobSelector {
    JobSelector { job: "j".parse().unwrap(), uid: Some(Uid(1000)) }
}

/// Two steps in a turn, and this slowdown.
fn terms(max_slowdown: f64) -> Terms {
    Terms { max_slowdown, steps: 2, ..Terms::default() }
}

fn order(terms: Terms) -> TuneOrder {
    TuneOrder { terms, profile: Some(PROFILE.into()), order: None }
}

async fn tuned(job: &mut Job, terms: Terms) -> Tuned {
    tune(job, selector(), &order(terms)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_keeps_its_promise_is_kept_and_its_saving_reported() {
    let mut job = Job::new(0.0);
    let Tuned { report, plan, frontier } = tuned(&mut job, terms(0.046)).await;
    assert_eq!((job.kept, report.is_certain()), (Some(true), true));
    let [tried] = &report.tried[..] else { panic!("{report:?}") };
    assert_eq!(tried.verdict, Verdict::Kept);
    let planned_with = report.planned_with.unwrap();
    assert!((planned_with.p2p_power.watts - 90.0).abs() < 1e-9, "{planned_with:?}");
    assert!(matches!(planned_with.p2p_power.origin, PowerOrigin::Waits), "{planned_with:?}");
    let (slowdown, saving) = (tried.compared.slowdown, tried.compared.saving);
    assert!(slowdown.high <= 0.05 && slowdown.estimate >= 0.0, "{tried:?}");
    assert!(saving.estimate > 0.02, "{tried:?}");
    assert_eq!(report.guard.map(|guard| guard.max_slowdown), Some(0.046));
    assert!(report.correctable && frontier.is_some());
    assert_eq!(plan.unwrap().predicted.unwrap().iteration_time_s, tried.predicted_time_s.unwrap());
    // A baseline to plan with, default clocks and the plan in turns, and the plan to stay.
    let turns: Vec<bool> = job.ran.iter().map(Option::is_some).collect();
    assert_eq!(turns, [false, false, true, false, true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn where_changes_cost_what_no_replay_knows_a_plan_without_them_is_tried_too_and_the_better_one_kept()
 {
    for (energy_of_change, kept) in [(0.0, "pfo 1"), (0.01, "pfo 1 per stage")] {
        let mut job = Job::new(Overhead { energy_of_change, ..Overhead::default() });
        let Tuned { report, .. } = tuned(&mut job, terms(0.046)).await;
        let saving = |tried: &pfo_experiment::Tried| tried.compared.saving.estimate;
        let best = report.tried.iter().max_by(|a, b| saving(a).total_cmp(&saving(b))).unwrap();
        assert_eq!((best.verdict, best.plan.as_str()), (Verdict::Kept, kept), "{report:?}");
        let outdone = [Verdict::SavesLess, Verdict::SavesNothing];
        let mut others = report.tried.iter().filter(|tried| tried.plan != kept);
        assert!(others.all(|tried| outdone.contains(&tried.verdict)), "{report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_file_the_stored_profile_is_taken_or_one_is_measured_first() {
    for (stored, origin) in [
        (Stored::Already, Origin::Stored),
        (Stored::AfterASweep, Origin::Measured { resumed_after: 1 }),
    ] {
        let mut job = Job::new(0.0);
        job.stored = Some(stored);
        let order = TuneOrder { profile: None, ..order(terms(0.05)) };
        let tuned = tune(&mut job, selector(), &order).await.unwrap();
        let planned_with = tuned.report.planned_with.unwrap();
        assert_eq!(planned_with.profile_origin, origin);
        assert!(planned_with.profile.contains("pp2-dp1-tp1-mb6"), "{planned_with:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn plans_that_are_too_slow_give_way_to_faster_ones_and_in_the_end_to_default_clocks() {
    let mut job = Job::new(0.03);
    let Tuned { report, .. } = tuned(&mut job, terms(0.05)).await;
    assert_eq!(job.kept, Some(true));
    let time_s = |plan: &Plan| plan.predicted.unwrap().iteration_time_s;
    let mut tried: Vec<f64> = job.ran.iter().flatten().map(time_s).collect();
    tried.dedup();
    // In between, what changes of clocks cost is learned, and is in the predictions from then on.
    assert!(tried.len() > 1 && tried.last() < tried.first(), "{tried:?}");
    let verdicts: Vec<Verdict> = report.tried.iter().map(|tried| tried.verdict).collect();
    assert!(verdicts.contains(&Verdict::TooSlow) && verdicts.contains(&Verdict::Kept));

    let mut job = Job::new(0.08);
    let Tuned { report, .. } = tuned(&mut job, terms(0.05)).await;
    assert_eq!((job.kept, report.kept), (Some(false), None));
}

#[tokio::test(start_paused = true)]
async fn other_policies_look_for_their_clocks_on_the_job_and_are_proved_like_ours() {
    for (policy, reconfigure) in [
        (System::Envpipe, Raising::Balanced),
        (System::Envpipe, Raising::Greedy),
        (System::ZeusGlobal, Raising::Balanced),
        (System::ZeusPerStage, Raising::Balanced),
    ] {
        let mut job = Job::new(0.0);
        let terms = Terms { policy, reconfigure, knob: Knob::Clock, ..terms(1.0) };
        let Tuned { report, .. } = tuned(&mut job, terms).await;
        let searched = report.search_trials as usize;
        assert!(searched >= 4, "{policy:?}: {report:?}");
        assert!(job.ran[1..=searched].iter().all(Option::is_some), "{policy:?}");
        assert_eq!(job.ran[0], None);
        assert_eq!(report.tried.len(), 1, "{policy:?}: {report:?}");
        if policy == System::Envpipe {
            assert_eq!(job.ran.iter().flatten().last(), job.ran[searched].as_ref());
        }
    }
}

fn limits(policy: System, max_slowdown: f64) -> TuneOrder {
    TuneOrder { terms: Terms { policy, ..terms(max_slowdown) }, ..TuneOrder::default() }
}

#[tokio::test(start_paused = true)]
async fn zeus_looks_among_power_limits_without_a_profile_and_what_it_finds_is_proved_and_kept() {
    for policy in [System::ZeusGlobal, System::ZeusPerStage] {
        let mut job = Job::new(0.0);
        let tuned = tune(&mut job, selector(), &limits(policy, 0.3)).await.unwrap();
        let report = tuned.report;
        assert!(job.ran.iter().all(Option::is_none), "{policy:?} ran a plan");
        assert!(report.planned_with.is_none() && job.kept == Some(true), "{report:?}");
        let listed: Vec<_> =
            report.searched.iter().map(|trial| trial.power_limits_w.clone()).collect();
        assert_eq!(listed[..], job.limits[..listed.len()]);
        assert_eq!(report.search_trials as usize, listed.len());
        let (label, kept) = (&report.tried[0].plan, job.limits.last().unwrap());
        match policy {
            System::ZeusGlobal => {
                let falling = [300, 275, 250, 225, 200, 175, 150, 125];
                assert_eq!(listed, falling.map(|limit| vec![limit; 2]));
                // As low as costs no time.
                assert_eq!((&kept[..], label.as_str()), (&[200, 200][..], "zeus-global (200 W)"));
            }
            _ => {
                assert!(listed.iter().any(|limits| limits[0] != limits[1]), "{listed:?}");
                assert!(label.starts_with("zeus-per-stage ("), "{label}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn zeus_asks_for_a_node_that_has_gpus_of_the_job() {
    let mut job = Job::new(0.0);
    job.has_gpus = false;
    let error = tune(&mut job, selector(), &limits(System::ZeusGlobal, 0.3)).await.unwrap_err();
    assert!(matches!(error, TuneError::NoGpuHere { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_step_between_power_limits_is_as_given_and_those_that_are_too_slow_are_not_chosen() {
    for (max_slowdown, chosen_w) in [(0.01, 210), (0.5, 120)] {
        let mut job = Job::new(0.0);
        let mut order = limits(System::ZeusGlobal, max_slowdown);
        (order.terms.power_step_w, order.terms.zeus_eta) = (90, 1.0);
        let tuned = tune(&mut job, selector(), &order).await.unwrap();
        assert_eq!(job.limits[..3], [[300, 300], [210, 210], [120, 120]]);
        assert_eq!(tuned.report.search_trials, 3);
        assert!(job.limits[3..].iter().all(|limits| limits == &[chosen_w; 2]), "{:?}", job.limits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_is_away_for_minutes_is_waited_for_and_the_plan_is_the_same() {
    let mut undisturbed = Job::new(0.0);
    let expected = tuned(&mut undisturbed, terms(0.046)).await;
    for trials in 0..7 {
        let mut job = Job::new(0.0);
        // A quarter of a second each.
        job.away = Some((trials, 1000));
        let tuned = tuned(&mut job, terms(0.046)).await;
        assert_eq!(tuned.plan, expected.plan, "away after {trials} trials");
        let said = "pfod does not answer; retrying for up to 5 min 0 s";
        assert_eq!(job.remarks, [said], "away after {trials} trials");
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_does_not_come_back_ends_the_tune_after_five_minutes() {
    let mut job = Job::new(0.0);
    job.away = Some((3, u32::MAX));
    let error = tune(&mut job, selector(), &order(terms(0.046))).await.unwrap_err();
    assert_eq!(error.to_string(), "pfod does not answer");
    assert_eq!(job.kept, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_rises_within_a_phase_and_has_the_time_left() {
    let mut job = Job::new(0.0);
    tuned(&mut job, terms(0.046)).await;
    let proof: Vec<_> =
        job.shown.iter().filter(|shown| shown.now.starts_with("proving pfo 1, round")).collect();
    assert_eq!(proof.len(), 5);
    assert!(proof.is_sorted_by(|one, next| one.done < next.done), "{proof:?}");
    assert!(proof.is_sorted_by(|one, next| one.remaining_s > next.remaining_s), "{proof:?}");
}
