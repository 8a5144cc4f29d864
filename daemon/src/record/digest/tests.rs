//! A rank whose every watt is known, as its events and its counter tell it.

use pfo_protocol::Unit;
use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const SETTLE_NS: u64 = 15 * MS;
const FORWARD: Unit = Unit { instruction: Instruction::Forward, chunk: 0, microbatch: 0 };
const BACKWARD: Unit = Unit { instruction: Instruction::Backward, chunk: 0, microbatch: 0 };

/// A rank that draws 60 W while it waits and 90 W between steps, 100 ns a part.
struct Played {
    digest: Digest,
    now_ns: u64,
    energy_j: f64,
    refresh_ns: u64,
    /// The clock that is locked, and since when.
    locked: Option<(Mhz, u64)>,
    /// What the driver says.
    clock: Mhz,
    throttled: bool,
    astray: bool,
}

impl Played {
    fn new(steps: Range<u64>, refresh_ns: u64) -> Self {
        Self {
            digest: Digest::new(steps, SETTLE_NS),
            now_ns: 1000 * MS,
            energy_j: 5.0,
            refresh_ns,
            locked: Some((Mhz(900), 0)),
            clock: Mhz(900),
            throttled: false,
            astray: false,
        }
    }

    /// Draws power for a time, while the counter is refreshed and seen to be.
    fn draw(&mut self, length_ns: u64, power_w: f64) {
        let until_ns = self.now_ns + length_ns;
        while self.now_ns < until_ns {
            let refresh_ns = (self.now_ns / self.refresh_ns + 1) * self.refresh_ns;
            let next_ns = refresh_ns.min(until_ns);
            self.energy_j += (next_ns - self.now_ns) as f64 / 1e9 * power_w;
            self.now_ns = next_ns;
            if next_ns == refresh_ns {
                self.digest.sample(Sample {
                    at_ns: refresh_ns,
                    energy_j: Some(self.energy_j),
                    sm_clock: Some(self.clock),
                    throttled: self.throttled,
                });
            }
        }
    }

    fn run(&mut self, unit: Unit, length_ns: u64, power_w: f64) {
        let began_ns = self.now_ns;
        self.draw(length_ns, power_w);
        self.digest.observe(Observed::Ran {
            unit,
            began_ns,
            ended_ns: self.now_ns,
            asked: Some(Mhz(900)),
            locked: self.locked,
            astray: self.astray,
        });
    }

    fn begin_step(&mut self, step: u64) {
        let at_ns = self.now_ns;
        self.digest.observe(Observed::StepBegan { step, at_ns, astray: false });
    }

    fn end_step(&mut self) {
        self.draw(3 * MS, 90.0);
        let (at_ns, astray) = (self.now_ns, self.astray);
        self.digest.observe(Observed::StepEnded { at_ns, astray });
    }

    /// Steps of four forwards and four backwards with waits of some lengths.
    fn steps(
        &mut self,
        steps: Range<u64>,
        forward: (u64, f64),
        backward: (u64, f64),
        waits_ns: &[u64],
    ) {
        let mut waits = waits_ns.iter().copied().cycle();
        for step in steps {
            self.begin_step(step);
            for _ in 0..4 {
                for (unit, (length_ns, power_w)) in [(FORWARD, forward), (BACKWARD, backward)] {
                    self.draw(waits.next().unwrap_or(0), 60.0);
                    self.run(unit, length_ns, power_w);
                }
            }
            self.end_step();
        }
    }

    fn finish(mut self, step: u64) -> Recorded {
        self.begin_step(step);
        self.draw(3 * self.refresh_ns, 60.0);
        self.digest.observe(Observed::StepEnded { at_ns: self.now_ns, astray: false });
        assert!(self.digest.is_complete());
        self.digest.finish()
    }
}

fn ordinary() -> (Played, impl Fn(&mut Played, Range<u64>)) {
    let steps = |played: &mut Played, steps| {
        played.steps(steps, (31 * MS, 200.0), (57 * MS, 300.0), &[9 * MS, 23 * MS, 0]);
    };
    (Played::new(10..30, 20 * MS), steps)
}

#[test]
fn a_sample_that_comes_out_of_order_changes_nothing() {
    let measured = |late: bool| {
        let (mut played, steps) = ordinary();
        for step in 8..31 {
            if late {
                let at_ns = played.now_ns - 45 * MS;
                played.digest.sample(Sample {
                    at_ns,
                    energy_j: Some(played.energy_j),
                    sm_clock: Some(Mhz(1200)),
                    throttled: true,
                });
            }
            steps(&mut played, step..step + 1);
        }
        played.finish(31)
    };
    assert_eq!(format!("{:?}", measured(true)), format!("{:?}", measured(false)));
}

#[test]
fn steps_outside_the_range_count_for_nothing() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 7..30);
    let recorded = played.finish(30);
    assert_eq!(
        recorded.steps.iter().map(|mark| mark.step).collect::<Vec<_>>(),
        (10..=30).collect::<Vec<_>>()
    );
    assert_eq!(recorded.rows.iter().map(|row| row.count).collect::<Vec<_>>(), [80, 80]);
}

#[test]
fn the_energies_of_steps_add_up_to_what_the_counter_moved_by() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 9..10);
    let before_j = played.energy_j;
    steps(&mut played, 10..30);
    let used_j = played.energy_j - before_j;
    let marks = played.finish(30).steps;
    let found_j = marks[20].energy_j.unwrap() - marks[0].energy_j.unwrap();
    // At either end the counter is up to a refresh old.
    assert!((found_j - used_j).abs() < 0.020 * 240.0, "{found_j} {used_j}");
    assert!(marks.iter().all(|mark| mark.energy_j.is_some()));
}

#[test]
fn what_began_before_its_clock_had_settled_is_left_out_of_time_and_energy() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..20);
    // Another clock was locked for a while, and the power was another.
    played.locked = Some((Mhz(900), u64::MAX));
    played.steps(20..21, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.locked = Some((Mhz(1200), 0));
    played.steps(21..22, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.locked = Some((Mhz(900), played.now_ns));
    played.draw(SETTLE_NS, 400.0);
    steps(&mut played, 22..30);
    let recorded = played.finish(30);
    for (row, (time_s, power_w)) in recorded.rows.iter().zip([(0.031, 200.0), (0.057, 300.0)]) {
        assert_eq!((row.count, row.left_out.settling), (72, 8), "{row:?}");
        assert!((row.time_mean_s - time_s).abs() < 1e-9, "{row:?}");
        assert!((row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0).abs() < 1e-3, "{row:?}");
    }
}

#[test]
fn what_was_throttled_or_at_another_clock_or_astray_is_left_out_and_counted() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..20);
    played.throttled = true;
    played.steps(20..21, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.throttled = false;
    played.clock = Mhz(600);
    played.steps(21..22, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.clock = Mhz(900);
    played.astray = true;
    played.steps(22..23, (99 * MS, 400.0), (99 * MS, 400.0), &[5 * MS]);
    played.astray = false;
    steps(&mut played, 23..30);
    let recorded = played.finish(30);
    assert_eq!(recorded.mismatched_steps, 1);
    for (row, (time_s, power_w)) in recorded.rows.iter().zip([(0.031, 200.0), (0.057, 300.0)]) {
        let LeftOut { mismatched, settling, throttled, other_clock } = row.left_out;
        assert_eq!((mismatched, settling), (4, 0), "{row:?}");
        // Those at whose end or beginning it was seen are in doubt as well.
        assert!((4..=6).contains(&throttled) && (3..=4).contains(&other_clock), "{row:?}");
        assert_eq!(row.count, 76 - throttled - other_clock);
        assert_eq!(row.observed_mhz, Some(900.0));
        assert!((row.energy_mean_j.unwrap() / (time_s * power_w) - 1.0).abs() < 1e-3, "{row:?}");
    }
}

#[test]
fn a_gpu_without_a_counter_has_times_and_no_energies() {
    let (mut played, steps) = ordinary();
    played.refresh_ns = u64::MAX / 2;
    steps(&mut played, 10..30);
    played.begin_step(30);
    played.draw(3000 * MS, 60.0);
    let at_ns = played.now_ns;
    let sample = Sample { at_ns, energy_j: None, sm_clock: None, throttled: false };
    played.digest.sample(sample);
    assert!(!played.digest.is_complete());
    played.digest.observe(Observed::StepEnded { at_ns, astray: false });
    assert!(played.digest.is_complete());
    let recorded = played.digest.finish();
    assert_eq!((recorded.rows.len(), recorded.waits.len()), (2, 0));
    assert!(recorded.rows.iter().all(|row| row.count == 80 && row.energy_mean_j.is_none()));
}

#[test]
fn what_is_kept_does_not_grow_with_the_trial() {
    let (mut played, steps) = ordinary();
    steps(&mut played, 10..30);
    let digest = &played.digest;
    let kept = [
        digest.spans.len(),
        digest.samples.len(),
        digest.interval.seconds.len(),
        digest.found.len(),
    ];
    assert!(kept.iter().all(|kept| *kept < 10), "{kept:?}");
}

proptest! {
    #[test]
    fn power_and_time_are_found_for_instructions_shorter_and_longer_than_the_refresh(
        forward in (2 * MS..80 * MS, 90.0..400.0),
        backward in (2 * MS..80 * MS, 90.0..400.0),
        waits_ns in prop::collection::vec(MS..60 * MS, 3..40),
        refresh_ns in 10 * MS..100 * MS,
    ) {
        let mut played = Played::new(0..60, refresh_ns);
        played.steps(0..60, forward, backward, &waits_ns);
        let recorded = played.finish(60);
        for (row, (length_ns, power_w)) in recorded.rows.iter().zip([forward, backward]) {
            let time_s = length_ns as f64 / 1e9;
            prop_assert!((row.time_mean_s - time_s).abs() < 1e-9 && row.count == 240);
            let energy_j = row.energy_mean_j.unwrap();
            prop_assert!((energy_j / (time_s * power_w) - 1.0).abs() < 0.01, "{:?} {}", row, power_w);
        }
        let wait = recorded.waits[0];
        prop_assert!((wait.power_w / 60.0 - 1.0).abs() < 0.01, "{:?}", wait);
    }

    #[test]
    fn whatever_a_rank_tells_in_whatever_order_nothing_is_negative_or_grows(
        told in prop::collection::vec((0..4u8, any::<u64>(), any::<u64>(), 0..9u64), 0..300)
    ) {
        let mut digest = Digest::new(2..7, SETTLE_NS);
        for (what, at_ns, other_ns, step) in told {
            match what {
                0 => digest.observe(Observed::StepBegan { step, at_ns, astray: false }),
                1 => digest.observe(Observed::StepEnded { at_ns, astray: step == 3 }),
                2 => digest.observe(Observed::Ran {
                    unit: FORWARD,
                    began_ns: at_ns,
                    ended_ns: other_ns,
                    asked: Some(Mhz(900)),
                    locked: Some((Mhz(900), other_ns)),
                    astray: false,
                }),
                _ => {
                    let at_ns = digest.sampled_ns.saturating_add(at_ns % (50 * MS));
                    let energy_j = Some(at_ns as f64);
                    digest.sample(Sample { at_ns, energy_j, sm_clock: None, throttled: false });
                }
            }
        }
        let recorded = digest.finish();
        prop_assert!(recorded.rows.iter().all(|row| row.time_mean_s >= 0.0));
    }
}
