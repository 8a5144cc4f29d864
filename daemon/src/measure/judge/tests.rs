//! Random schedules of healthy and faulty meters, on virtual time.

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How many schedules each property is tried on; `make schedules` tries ten thousand.
fn schedules() -> std::ops::RangeInclusive<u64> {
    let asked = std::env::var("PFO_METER_SCHEDULES").ok().and_then(|count| count.parse().ok());
    1..=asked.unwrap_or(200)
}

/// When the fault begins, and how soon afterwards a figure must be right or absent.
const FAULT_S: f64 = 40.0;
const PATIENCE_S: f64 = 30.0;
const END_S: f64 = 110.0;

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.unit() * all.len() as f64) as usize]
    }
}

/// A stretch of work: a square wave of power.
#[derive(Clone, Copy)]
struct Stretch {
    began_s: f64,
    began_j: f64,
    low_w: f64,
    high_w: f64,
    period_s: f64,
    duty: f64,
}

impl Stretch {
    fn energy_j(&self, at_s: f64) -> f64 {
        let passed_s = at_s - self.began_s;
        let whole = (passed_s / self.period_s).floor();
        let rest_s = passed_s - whole * self.period_s;
        let high_s = whole * self.duty * self.period_s + rest_s.min(self.duty * self.period_s);
        self.began_j + self.low_w * passed_s + (self.high_w - self.low_w) * high_s
    }

    fn power_w(&self, at_s: f64) -> f64 {
        let into = ((at_s - self.began_s) / self.period_s).fract();
        if into < self.duty { self.high_w } else { self.low_w }
    }
}

/// What a GPU draws.
struct Load(Vec<Stretch>);

impl Load {
    fn random(random: &mut Random) -> Self {
        let is_steady = random.unit() < 0.3;
        let limit_w = random.one_of(&[70.0, 250.0, 400.0, 700.0]);
        let (mut at_s, mut energy_j, mut all) = (0.0, 0.0, Vec::new());
        while at_s < END_S + 20.0 {
            let high_w = limit_w * random.within(0.4, 1.0);
            let stretch = Stretch {
                began_s: at_s,
                began_j: energy_j,
                low_w: limit_w * random.within(0.12, 0.4),
                high_w,
                period_s: random.one_of(&[0.003, 0.02, 0.05, 0.1, 0.25, 0.7, 3.0]),
                duty: random.one_of(&[0.0, 0.1, 0.5, 0.8, 0.95, 1.0]),
            };
            at_s += if is_steady { 1000.0 } else { random.within(0.5, 25.0) };
            energy_j = stretch.energy_j(at_s);
            all.push(stretch);
        }
        Self(all)
    }

    fn at(&self, at_s: f64) -> &Stretch {
        let next = self.0.partition_point(|stretch| stretch.began_s <= at_s);
        &self.0[next.saturating_sub(1)]
    }

    fn energy_j(&self, at_s: f64) -> f64 {
        self.at(at_s).energy_j(at_s)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    FallsOnce,
    FallsAgain,
    Spikes,
    StandsStill,
    HalfRate,
    Module,
    Wraps,
    AnswersLate,
    NotSupportedNowAndThen,
    ResetsWithTheDriver,
    Missing,
}

/// What the judge was given of a GPU, and what it made of that.
struct Played {
    judge: Judge,
    now_s: f64,
    random: Random,
    load: Load,
    fault: Fault,
    refresh_s: f64,
    averaged: bool,
    base_j: f64,
    /// The figure of the session: what was returned first and last, with the truth at the time; none
    /// once it was in doubt.
    session: Option<[(f64, f64); 2]>,
    /// The figure of the window: as that of the session, but begun anew.
    window: Option<[(f64, f64); 2]>,
    spoiled: u64,
    doubted: bool,
}

impl Played {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut random = Random::new(seed);
        let load = Load::random(&mut random);
        let refresh_s = random.one_of(&[0.01, 0.02, 0.1, 0.5]);
        let averaged = random.unit() < 0.5;
        let wraps_j = f64::from(u32::MAX) / 1e3;
        let base_j = match fault {
            Fault::Wraps => wraps_j - load.energy_j(FAULT_S),
            _ => random.within(0.0, 1e6),
        };
        let judge = Judge::default();
        let (session, window, spoiled, doubted) = (None, None, 0, false);
        Self {
            judge,
            now_s: 0.0,
            random,
            load,
            fault,
            refresh_s,
            averaged,
            base_j,
            session,
            window,
            spoiled,
            doubted,
        }
    }

    /// What the driver returns at a time.
    fn counter(&mut self, at_s: f64) -> Option<f64> {
        let seen_s = (at_s / self.refresh_s).floor() * self.refresh_s;
        let drawn_j = self.load.energy_j(seen_s);
        let honest_j = self.base_j + drawn_j;
        let before_j = self.base_j + self.load.energy_j(FAULT_S);
        if self.fault == Fault::Missing {
            return None;
        }
        if self.fault == Fault::Module {
            return Some(honest_j + 300.0 * seen_s);
        }
        if at_s < FAULT_S {
            return Some(honest_j);
        }
        let since_s = at_s - FAULT_S;
        match self.fault {
            Fault::FallsOnce => Some(honest_j - before_j * 0.99),
            Fault::FallsAgain => {
                let last_s = FAULT_S + (since_s / 6.0).floor() * 6.0;
                Some(self.load.energy_j(seen_s) - self.load.energy_j(last_s.min(seen_s)))
            }
            Fault::Spikes if self.random.unit() < 0.05 => {
                Some(honest_j + self.random.one_of(&[1e4, 1e9]))
            }
            Fault::StandsStill => Some(before_j),
            Fault::HalfRate => Some(before_j + (honest_j - before_j).max(0.0) / 2.0),
            Fault::Wraps => Some(honest_j % (f64::from(u32::MAX) / 1e3)),
            Fault::NotSupportedNowAndThen if self.random.unit() < 0.3 => None,
            Fault::ResetsWithTheDriver if since_s < 0.5 => None,
            Fault::ResetsWithTheDriver => Some(honest_j - before_j),
            _ => Some(honest_j),
        }
    }

    /// A call that reads the counter.
    fn read(&mut self) {
        let is_late = self.fault == Fault::AnswersLate && self.now_s > FAULT_S;
        let takes_s = if is_late { self.random.within(0.0, 2.0) } else { 0.0001 };
        let asked_ns = (self.now_s * 1e9) as u64;
        let at_s = self.now_s + takes_s * self.random.unit();
        let value = self.counter(at_s).map(|energy_j| (energy_j * 1e3).floor() / 1e3);
        self.now_s += takes_s;
        let returned = self.judge.read(asked_ns, (self.now_s * 1e9) as u64, value);
        if self.judge.spoiled != self.spoiled {
            self.spoiled = self.judge.spoiled;
            self.window = None;
            self.doubted |= self.judge.doubt().is_some();
        }
        let Some(energy_j) = returned else { return };
        let now = (energy_j, self.load.energy_j(at_s));
        for figure in [&mut self.session, &mut self.window] {
            let [first, last] = figure.unwrap_or([now, now]);
            assert!(energy_j >= last.0, "{:?}: {energy_j} J after {} J", self.fault, last.0);
            *figure = Some([first, now]);
        }
    }

    fn power(&mut self) {
        let stretch = *self.load.at(self.now_s);
        let average_w = || self.load.energy_j(self.now_s) - self.load.energy_j(self.now_s - 1.0);
        let power_w = if self.averaged { average_w() } else { stretch.power_w(self.now_s) };
        let highest_w = self.load.0.iter().map(|stretch| stretch.high_w).fold(0.0, f64::max);
        self.judge.power((self.now_s * 1e9) as u64, Some(power_w), Some(highest_w));
    }

    /// Plays until then: the watch reads about five times a second, the rank at its steps.
    fn until(&mut self, end_s: f64) {
        let step_s = self.random.one_of(&[0.05, 0.3, 2.0, 30.0]);
        let mut step_at_s = self.now_s;
        while self.now_s < end_s {
            if step_at_s < self.now_s {
                step_at_s = self.now_s + step_s;
                self.read();
            }
            self.read();
            self.power();
            self.now_s += self.random.within(0.1, 0.3);
        }
    }

    /// How far a figure may be off beside one part in a hundred: what its counter has not shown yet.
    fn edges_j(&self) -> f64 {
        let highest_w = self.load.0.iter().map(|stretch| stretch.high_w).fold(0.0, f64::max);
        highest_w * (self.refresh_s + 0.2)
    }

    fn is_right(&self, figure: Option<[(f64, f64); 2]>) -> bool {
        let Some([first, last]) = figure else { return true };
        let (shown_j, true_j) = (last.0 - first.0, last.1 - first.1);
        (shown_j - true_j).abs() <= 0.01 * true_j + self.edges_j()
    }
}

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
    use Fault::*;
    let faults = [
        FallsOnce,
        FallsAgain,
        Spikes,
        StandsStill,
        HalfRate,
        Wraps,
        NotSupportedNowAndThen,
        ResetsWithTheDriver,
        Missing,
    ];
    for seed in schedules() {
        let fault = faults[seed as usize % faults.len()];
        let mut played = Played::new(seed, fault);
        played.until(FAULT_S + PATIENCE_S);
        while played.now_s < END_S {
            played.until(played.now_s + 0.5);
            let in_doubt = played.judge.doubt().is_some();
            let session = played.session.filter(|_| !played.doubted);
            assert!(played.is_right(session), "session, {fault:?}, schedule {seed}");
            let window = played.window.filter(|_| !in_doubt);
            assert!(played.is_right(window), "window, {fault:?}, schedule {seed}");
        }
        let is_lasting = matches!(fault, FallsAgain | StandsStill | HalfRate | Missing);
        let in_doubt = played.judge.doubt().is_some();
        assert!(in_doubt || !is_lasting, "{fault:?}, schedule {seed}");
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
