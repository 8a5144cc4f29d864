//! Random schedules of healthy and faulty meters, on virtual time.

use super::*;
use played::{END_S, FAULT_S, Fault, PATIENCE_S, Played};

mod played;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How many schedules each property is tried on; `make schedules` tries ten thousand.
fn schedules() -> std::ops::RangeInclusive<u64> {
    let asked = std::env::var("PFO_METER_SCHEDULES").ok().and_then(|count| count.parse().ok());
    1..=asked.unwrap_or(200)
}

/// What can be wrong with a counter that can be read.
const FAULTS: [Fault; 8] = [
    Fault::FallsOnce,
    Fault::FallsAgain,
    Fault::Spikes,
    Fault::StandsStill,
    Fault::HalfRate,
    Fault::Wraps,
    Fault::NotSupportedNowAndThen,
    Fault::ResetsWithTheDriver,
];

#[test]
fn no_healthy_meter_is_accused_however_slow_it_is_and_however_its_power_is_read() {
    for seed in schedules() {
        for fault in [Fault::None, Fault::AnswersLate] {
            let mut played = Played::new(seed, fault);
            played.until(END_S);
            let now_ns = (played.now_s * 1e9) as u64;
            assert_eq!(played.judge.remark(now_ns), None, "{fault:?}, schedule {seed}");
            assert_eq!(played.judge.spoiled, 0, "{fault:?}, schedule {seed}");
            assert!(played.is_right(played.session), "{fault:?}, schedule {seed}");
        }
    }
}

#[test]
fn every_figure_of_a_faulty_meter_is_right_or_absent_after_half_a_minute() {
    let faults = [&FAULTS[..], &[Fault::Missing]].concat();
    for seed in schedules() {
        let fault = faults[seed as usize % faults.len()];
        let began_s = if seed % 2 == 0 { FAULT_S } else { 0.0 };
        right_or_absent(Played::with(seed, &[fault], began_s), seed);
    }
}

/// Every figure is right or absent from half a minute after the fault on.
fn right_or_absent(mut played: Played, seed: u64) {
    use Fault::*;
    let what = format!("{:?} from {} s, schedule {seed}", played.faults, played.began_s);
    let patience_s = match played.faults[..] {
        // There are a fifth of the power readings.
        [AnswersLate, HalfRate] | [HalfRate, AnswersLate] => 3.0 * PATIENCE_S,
        // What was counted before the other fault is compared with no power.
        [HalfRate, _] | [_, HalfRate] => 1.5 * PATIENCE_S,
        _ => PATIENCE_S,
    };
    played.until(played.began_s + patience_s);
    while played.now_s < END_S {
        played.until(played.now_s + 0.5);
        let in_doubt = played.judge.doubt().is_some();
        let session = played.session.filter(|_| !played.doubted);
        assert!(played.is_right(session), "session, {what}: {session:?}");
        let window = played.window.filter(|_| !in_doubt);
        assert!(played.is_right(window), "window, {what}: {window:?}");
    }
    let is_lasting = [FallsAgain, StandsStill, HalfRate, Missing].map(|fault| played.has(fault));
    assert!(played.judge.doubt().is_some() || !is_lasting.contains(&true), "{what}");
}

#[test]
fn every_figure_of_a_meter_with_two_faults_is_right_or_absent_after_half_a_minute() {
    let faults = [&FAULTS[..], &[Fault::AnswersLate]].concat();
    let pairs = faults.iter().flat_map(|one| faults.iter().map(|other| [*one, *other]));
    for pair in pairs.filter(|[one, other]| one != other) {
        for seed in 1..=(schedules().end() / 100).max(5) {
            for began_s in [0.0, FAULT_S] {
                right_or_absent(Played::with(seed, &pair, began_s), seed);
            }
        }
    }
}

/// A judge that reads a counter, given for each tenth of a second, of a GPU that draws 200 W.
fn judged(count: u64, energy_j: impl Fn(u64) -> Option<f64>) -> (Judge, Vec<Option<f64>>) {
    let mut judge = Judge::default();
    let read = |tenth: u64| {
        let now_ns = tenth * 100 * MS;
        let returned = judge.read(now_ns, now_ns, energy_j(tenth));
        judge.power(now_ns, Some(200.0), Some(400.0));
        returned
    };
    let returned = (0..count).map(read).collect();
    (judge, returned)
}

fn honest_j(tenth: u64) -> f64 {
    1000.0 + 20.0 * tenth as f64
}

#[test]
fn a_fall_is_confirmed_by_the_next_reading_and_counting_continues_from_there() {
    let (judge, returned) =
        judged(100, |tenth| Some(honest_j(tenth) - if tenth < 50 { 0.0 } else { 1990.0 }));
    assert_eq!(returned[50], None);
    let counted_j: Vec<_> = returned.into_iter().flatten().collect();
    assert!(counted_j.is_sorted(), "{counted_j:?}");
    assert_eq!(counted_j.last().map(|energy_j| energy_j.round()), Some(honest_j(99)));
    assert_eq!((judge.doubt(), judge.spoiled), (None, 0));
    let remark = "its energy counter fell or jumped 5 s ago; pfod counts on from there";
    assert_eq!(judge.remark(10 * SECOND).as_deref(), Some(remark));
}

#[test]
fn a_fall_is_named_for_two_minutes_also_when_nobody_reads_the_counter_any_more() {
    let judge = judged(100, |tenth| Some(honest_j(tenth % 50))).0;
    assert!(judge.remark(120 * SECOND).is_some());
    assert_eq!(judge.remark(126 * SECOND), None);
}

#[test]
fn a_spike_that_the_gpu_could_have_drawn_makes_the_figures_around_it_void_and_never_falls() {
    let (judge, returned) =
        judged(100, |tenth| Some(honest_j(tenth) + if tenth == 50 { 100.0 } else { 0.0 }));
    assert_eq!(returned[50], Some(honest_j(50) + 100.0));
    assert_eq!(returned[51..55], [None; 4], "it has yet to count what was returned");
    assert_eq!(returned[60], Some(honest_j(60)));
    assert_eq!((judge.doubt(), judge.spoiled), (None, 1));
}

#[test]
fn a_counter_of_a_module_is_named_and_counts() {
    let (judge, returned) = judged(1000, |tenth| Some(honest_j(tenth) + 15.0 * tenth as f64));
    assert!(returned.iter().all(Option::is_some));
    assert_eq!(
        judge.remark(100 * SECOND).unwrap(),
        "its energy counter counts 1.8 times the energy of its power readings: more than the GPU, \
         such as its module"
    );
}

#[test]
fn a_counter_that_stands_still_is_in_doubt_after_some_seconds_and_no_longer_once_it_counts() {
    let (judge, returned) = judged(900, |tenth| {
        Some(if (100..200).contains(&tenth) { honest_j(100) } else { honest_j(tenth) })
    });
    assert!(returned[155..500].iter().all(Option::is_none));
    assert!(returned[600..].iter().all(Option::is_some));
    assert_eq!((judge.doubt(), judge.spoiled), (None, 2), "when it began and when it ended");
    let still = judged(200, |tenth| Some(honest_j(tenth.min(100)))).0;
    let why = "its energy counter stands still while it draws 200 W";
    assert_eq!(still.remark(0).as_deref(), Some(why));
}

#[test]
fn without_power_readings_falls_are_seen_and_a_standstill_cannot_be() {
    let mut judge = Judge::default();
    for tenth in 0..200 {
        judge.read(tenth * 100 * MS, tenth * 100 * MS, Some(honest_j(tenth.min(100))));
        judge.power(tenth * 100 * MS, None, None);
    }
    assert_eq!(judge.doubt(), None);
    assert_eq!(judge.read(21 * SECOND, 21 * SECOND, Some(3.0)), None);
}

#[test]
fn a_reading_that_another_thread_has_overtaken_is_no_fall() {
    let mut judge = Judge::default();
    judge.read(0, 1, Some(10.0));
    assert_eq!(judge.read(SECOND, SECOND + 5, Some(20.0)), Some(20.0));
    assert_eq!(judge.read(SECOND + 1, SECOND + 6, Some(19.0)), Some(20.0));
    assert_eq!(judge.read(2 * SECOND, 2 * SECOND, Some(30.0)), Some(30.0));
}

#[test]
fn a_new_session_begins_anew_and_a_doubt_stays() {
    let (mut judge, _) = judged(200, |tenth| Some(honest_j(tenth.min(100))));
    judge.begin();
    assert_eq!(judge.read(21 * SECOND, 21 * SECOND, Some(3.0)), None, "it stood still");
    let (mut judge, _) = judged(100, |tenth| Some(honest_j(tenth)));
    judge.begin();
    assert_eq!(judge.read(21 * SECOND, 21 * SECOND, Some(3.0)), Some(3.0));
}

#[test]
fn a_doubt_is_a_short_sentence() {
    let doubts = [Doubt::Missing, Doubt::Unreadable, Doubt::Jumps, Doubt::Low { ratio: 0.51 }];
    let words = doubts.map(|doubt| doubt.to_string());
    assert_eq!(
        words,
        [
            "it has no energy counter",
            "its energy counter cannot be read",
            "its energy counter falls or jumps again and again",
            "its energy counter counts 0.5 times the energy of its power readings",
        ]
    );
}

/// The rows of the table in docs/meters.md, from what was played.
fn table() -> String {
    use Fault::*;
    let faults = [
        (FallsOnce, "falls once"),
        (FallsAgain, "falls again and again"),
        (Spikes, "spikes"),
        (StandsStill, "stands still"),
        (HalfRate, "runs at half its rate"),
        (Module, "counts a module"),
        (Wraps, "wraps"),
        (AnswersLate, "answers late"),
        (NotSupportedNowAndThen, "is not supported now and then"),
        (ResetsWithTheDriver, "is reset with the driver"),
        (Missing, "is missing"),
    ];
    let row = |(fault, name): (Fault, &str)| {
        let mut played = Played::new(3, fault);
        played.until(FAULT_S + PATIENCE_S);
        let window = if played.judge.doubt().is_some() { "absent" } else { "right" };
        let session = if played.doubted || played.session.is_none() { "absent" } else { "right" };
        let remark = played.judge.remark((played.now_s * 1e9) as u64).unwrap_or("nothing".into());
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let words = remark.split(' ').map(|word| if word.chars().all(number) { "N" } else { word });
        format!("| {name} | {window} | {session} | {} |\n", words.collect::<Vec<_>>().join(" "))
    };
    faults.map(row).concat()
}

#[test]
fn the_table_of_faults_in_the_documentation_is_what_the_judge_does() {
    let page = include_str!("../../../../docs/meters.md");
    assert!(page.contains(&table()), "write this into docs/meters.md:\n{}", table());
}
