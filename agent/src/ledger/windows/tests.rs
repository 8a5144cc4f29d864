use pfo_protocol::DriverUse;
use proptest::prelude::*;

use super::*;
use crate::ledger::example::example as job;

fn gpu(job: &JobView, throttle_reasons: u64, temperature_c: Option<u32>) -> GpuStatus {
    GpuStatus {
        index: 0,
        uuid: job.ranks[0].gpu_uuid.clone(),
        pci_bus_id: "00000000:01:00.0".parse().unwrap(),
        model: "A40".into(),
        mig: false,
        requested_mhz: None,
        observed_mhz: None,
        memory_locked_mhz: None,
        power_w: None,
        power_limit_w: None,
        holder: None,
        problem: None,
        leased: true,
        driver_use: DriverUse::default(),
        throttle_reasons,
        temperature_c,
        minor: None,
        meter: None,
    }
}

#[test]
fn a_look_at_the_gpus_holds_since_the_one_before_and_no_longer_than_half_a_minute() {
    let mut windows = begun("a", vec![]);
    let run = |steps| job("p", 1, 7, steps);
    windows.see(&[run(1)], 100);
    let mut see = |now_unix_s, reasons, temperature_c| {
        windows.see(&[run(now_unix_s)], now_unix_s);
        windows.see_gpus(&[run(now_unix_s)], &[gpu(&run(1), reasons, temperature_c)], now_unix_s);
        windows.collecting().next().unwrap().used.heat
    };
    let heat = |s, hottest_c| Heat { throttled_s: Some(s), hottest_c };
    assert_eq!(see(104, 0, None), heat(0.0, None));
    assert_eq!(see(110, 8, Some(70)), heat(6.0, Some(70)));
    assert_eq!(see(120, 0, Some(60)), heat(6.0, Some(70)));
    assert_eq!(see(400, 8, Some(71)), heat(36.0, Some(71)), "nobody looked for minutes");
}

#[test]
fn where_nobody_looks_at_the_gpus_nothing_is_known_of_their_heat() {
    let mut windows = begun("a", vec![]);
    windows.see(&[job("p", 1, 7, 1)], 100);
    let other =
        GpuStatus { uuid: "GPU-other".parse().unwrap(), ..gpu(&job("p", 1, 7, 1), 8, Some(90)) };
    windows.see_gpus(&[job("p", 1, 7, 2)], &[other], 110);
    assert_eq!(windows.collecting().next().unwrap().used.heat, Heat::default());
}

fn begun(run: &str, reached: Vec<Reached>) -> Windows {
    let mut windows = Windows::default();
    windows.begin(run.into(), reached);
    windows
}

fn total_j(entries: &[Entry]) -> f64 {
    entries.iter().filter_map(|entry| entry.used.energy_j).sum()
}

#[test]
fn looks_at_the_same_window_add_up_to_it() {
    let mut windows = begun("r", Vec::new());
    for (now, steps) in [(0, 5), (1, 5), (2, 9), (3, 7)] {
        assert_eq!(windows.see(&[job("p", 1, 7, steps)], now), []);
    }
    let [entry] = &windows.end()[..] else { panic!() };
    assert_eq!((entry.used.steps, entry.used.time_s, entry.used.energy_j), (9, 9.0, Some(180.0)));
    assert_eq!((entry.used.from_unix_s, entry.used.until_unix_s), (0, 3));
    assert_eq!(windows.end(), []);
}

#[test]
fn steps_in_which_a_plan_is_not_in_force_on_a_rank_belong_to_nobody() {
    let mut windows = begun("r", Vec::new());
    let refused = |steps| {
        let mut refused = job("p", 1, 7, steps);
        refused.ranks[1].problem = Some("NVML_ERROR_NO_PERMISSION".into());
        refused
    };
    windows.see(&[job("p", 1, 7, 5)], 0);
    windows.see(&[refused(9)], 1);
    windows.see(&[job("p", 1, 7, 12)], 2);
    windows.see(&[job("p", 1, 7, 14)], 3);
    let [entry] = &windows.end()[..] else { panic!() };
    assert_eq!((entry.used.steps, entry.used.energy_j), (7, Some(140.0)), "5, and the last 2");
    assert_eq!(entry.reached.iter().map(|reached| reached.steps).collect::<Vec<_>>(), [14, 14]);
}

#[test]
fn a_session_that_lasts_is_counted_once_however_many_come_and_go() {
    let (mut windows, mut written) = (begun("r", Vec::new()), Vec::new());
    let lasting = job("p", 1, 1, 5);
    for session in (10..).step_by(2).take(MOST_SESSIONS) {
        let mut passing = job("p", 1, session, 1);
        passing.uid.0 += 1;
        written.extend(windows.see(&[lasting.clone(), passing], session));
    }
    assert!(windows.reached.len() <= MOST_SESSIONS);
    written.extend(windows.end());
    let lasting = written.iter().filter(|entry| entry.work.uid == lasting.uid);
    assert_eq!(lasting.map(|entry| entry.used.steps).sum::<u64>(), 5);
}

#[test]
fn an_entry_ends_with_its_plan_its_job_or_its_time() {
    let mut windows = begun("r", Vec::new());
    windows.see(&[job("p", 1, 7, 5)], 0);
    assert_eq!(windows.see(&[job("p", 1, 7, 6)], ENTRY_S)[0].used.steps, 5);
    assert_eq!(windows.see(&[job("q", 2, 7, 1)], ENTRY_S + 1)[0].used.steps, 1);
    assert_eq!(windows.see(&[], ENTRY_S + 2)[0].work.plan, "q");
}

#[test]
fn what_is_measured_suspended_or_at_default_clocks_is_left_out() {
    let mut windows = begun("r", Vec::new());
    let mut suspended = job("p", 1, 7, 5);
    suspended.plan.as_mut().unwrap().suspended = Some("why".into());
    let mut changing = job("p", 2, 7, 5);
    changing.ranks[0].swap = 1;
    let default = JobView { plan: None, ..job("p", 1, 7, 5) };
    windows.see(&[suspended, changing, default], 0);
    assert_eq!(windows.end(), []);
}

#[test]
fn a_rank_without_an_energy_counter_leaves_steps_without_energy() {
    let mut windows = begun("r", Vec::new());
    let mut without = job("p", 1, 7, 5);
    without.ranks[1].window.as_mut().unwrap().energy_j = None;
    windows.see(&[without], 0);
    assert_eq!((windows.end()[0].used.steps, windows.end().len()), (5, 0));
}

proptest! {
    /// The steps of a job in rounds: steps until the look, what happens after it.
    #[test]
    fn no_joule_is_counted_twice_whatever_is_read_again_and_whoever_restarts(
        rounds in prop::collection::vec((0_u64..50, 0_u8..8), 1..60)
    ) {
        let (mut run, mut swap, mut session, mut steps) = (0, 1, 10, 0);
        let (mut true_steps, mut written) = (0, Vec::<Entry>::new());
        let mut windows = begun("0", Vec::new());
        let mut older = Vec::new();
        for (now, (more, event)) in (0..).step_by(100).zip(rounds) {
            steps += more;
            true_steps += more;
            let jobs = [job("p", swap, session, steps)];
            written.extend(windows.see(&jobs, now));
            older.extend(jobs);
            match event {
                // The same look again, and earlier ones of this life of `pfod`.
                0 => {
                    let replayed = older.clone();
                    for old in replayed {
                        written.extend(windows.see(&[old], now));
                    }
                }
                // The agent ends in order, or is killed: the next one knows what is written.
                1 | 2 => {
                    if event == 1 {
                        written.extend(windows.end());
                    }
                    let reached = written.iter().filter(|entry| entry.run == run.to_string());
                    let reached = reached.flat_map(|entry| entry.reached.clone()).collect();
                    windows = begun(&run.to_string(), reached);
                }
                // Another swap, as after each comparison.
                3 => (swap, steps) = (swap + 1, 0),
                // The trainer begins again.
                4 => (swap, steps, session) = (1, 0, session + 2),
                // Another life of `pfod`, with the same sessions and swaps.
                5 => {
                    (run, steps) = (run + 1, 0);
                    older.clear();
                    written.extend(windows.begin(run.to_string(), Vec::new()));
                }
                6 => written.extend(windows.begin(run.to_string(), Vec::new())),
                _ => {}
            }
        }
        written.extend(windows.end());
        let counted: u64 = written.iter().map(|entry| entry.used.steps).sum();
        prop_assert!(counted <= true_steps, "{counted} of {true_steps}");
        prop_assert!((total_j(&written) - 20.0 * counted as f64).abs() < 1e-6);
    }

    #[test]
    fn nothing_is_lost_while_no_swap_is_between_a_kill_and_the_next_look(
        rounds in prop::collection::vec((0_u64..50, any::<bool>()), 1..60)
    ) {
        let (mut steps, mut written) = (0, Vec::<Entry>::new());
        let mut windows = begun("0", Vec::new());
        for (now, (more, killed)) in (0..).step_by(300).zip(rounds) {
            steps += more;
            written.extend(windows.see(&[job("p", 1, 10, steps)], now));
            if killed {
                let reached = written.iter().flat_map(|entry| entry.reached.clone()).collect();
                windows = begun("0", reached);
            }
        }
        written.extend(windows.see(&[job("p", 1, 10, steps)], 1 << 40));
        written.extend(windows.end());
        prop_assert_eq!(written.iter().map(|entry| entry.used.steps).sum::<u64>(), steps);
    }
}
