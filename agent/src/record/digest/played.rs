//! A rank whose every watt is known, as its events and its counter tell it.

use pfo_protocol::{Chunk, Instruction, Microbatch, ThrottledNs};

use crate::record::digest::*;
use crate::record::sample::SW_POWER_CAP;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SETTLE_NS: u64 = 15 * MS;
/// What draws as much runs into the power cap, if there is one.
const CAPPED_W: f64 = 300.0;
pub(super) const FORWARD: Unit =
    Unit { instruction: Instruction::Forward, chunk: Chunk(0), microbatch: Microbatch(0) };
pub(super) const BACKWARD: Unit =
    Unit { instruction: Instruction::Backward, chunk: Chunk(0), microbatch: Microbatch(0) };

/// A GPU with clocks 30 MHz apart.
pub(super) fn gpu() -> RecordedGpu {
    RecordedGpu {
        sm_clocks: (600..=1410).step_by(30).map(Mhz).collect(),
        settle: SettleTimes::always(SETTLE_NS),
    }
}

/// A rank that draws 60 W while it waits and 90 W between steps, 100 ns a part.
pub(super) struct Played {
    pub(super) digest: Digest,
    pub(super) now_ns: u64,
    pub(super) energy_j: f64,
    pub(super) refresh_ns: u64,
    /// How far refreshes are placed off where they were, and instructions take more or less than
    /// usual.
    pub(super) misplaced_ns: u64,
    pub(super) uneven: f64,
    scatter: u64,
    /// The share of the time between two refreshes, from its beginning, in which the counter looks.
    pub(super) part: f64,
    /// How long before a refresh ended what the counter shows then, and what it will show.
    pub(super) late_ns: u64,
    sampled_j: f64,
    /// The clock that is locked, and since when.
    pub(super) locked: Option<(Mhz, u64)>,
    /// What the driver says.
    pub(super) clock: Mhz,
    /// NVML's bits, of a driver without counters.
    pub(super) reasons: u64,
    /// For how long a power cap held since the counters began, of a driver that has them.
    pub(super) capped_ns: Option<u64>,
    /// The clock that the driver reports while that holds.
    pub(super) capped_clock: Option<Mhz>,
    pub(super) astray: bool,
}

impl Played {
    pub(super) fn new(steps: Range<u64>, refresh_ns: u64) -> Self {
        Self {
            digest: Digest::new(steps, gpu(), None),
            now_ns: 1000 * MS,
            energy_j: 5.0,
            refresh_ns,
            misplaced_ns: 0,
            part: 1.0,
            late_ns: 0,
            sampled_j: 0.0,
            uneven: 0.0,
            scatter: 1,
            locked: Some((Mhz(900), 0)),
            clock: Mhz(900),
            reasons: 0,
            capped_ns: None,
            capped_clock: None,
            astray: false,
        }
    }

    fn throttled_ns(&self) -> ThrottledNs {
        let none_ns = self.capped_ns.map(|_| 0);
        ThrottledNs::of([self.capped_ns, none_ns, none_ns, none_ns, none_ns])
    }

    /// Draws power for a time, while the counter is refreshed and seen to be.
    pub(super) fn draw(&mut self, length_ns: u64, power_w: f64) {
        let until_ns = self.now_ns + length_ns;
        while self.now_ns < until_ns {
            let capped_clock = self.capped_clock.filter(|_| power_w >= CAPPED_W);
            let has_bit = capped_clock.is_some() && self.capped_ns.is_none();
            let reason = if has_bit { SW_POWER_CAP } else { 0 };
            let refresh_ns = (self.now_ns / self.refresh_ns + 1) * self.refresh_ns;
            let sample_ns = refresh_ns - self.late_ns;
            let next_ns = if self.now_ns < sample_ns { sample_ns } else { refresh_ns };
            let next_ns = next_ns.min(until_ns);
            // It takes what it sees at the beginning of a period for all of it.
            let looks_ns = (self.part * self.refresh_ns as f64) as u64;
            let away_ns = (refresh_ns - self.refresh_ns + looks_ns).max(self.now_ns);
            let seen_ns = away_ns.min(next_ns) - self.now_ns;
            self.energy_j += seen_ns as f64 / 1e9 * power_w / self.part;
            if capped_clock.is_some() {
                self.capped_ns = self.capped_ns.map(|ns| ns + next_ns - self.now_ns);
            }
            self.now_ns = next_ns;
            if next_ns == sample_ns {
                self.sampled_j = self.energy_j;
            }
            if next_ns == refresh_ns {
                let off_ns = (2.0 * self.misplaced_ns as f64 * self.scatter()) as u64;
                let at_ns = refresh_ns + off_ns - self.misplaced_ns;
                self.digest.take(TapRecord::Counter(CounterReading {
                    at_ns,
                    read_ns: at_ns,
                    energy_j: Some((1e3 * self.sampled_j).floor() / 1e3),
                    sm_clock: Some(capped_clock.unwrap_or(self.clock)),
                    throttled_ns: self.throttled_ns(),
                    throttle_reasons: self.reasons | reason,
                }));
            }
        }
    }

    /// A figure from 0 to 1 that follows no rhythm.
    fn scatter(&mut self) -> f64 {
        self.scatter = self.scatter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.scatter >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn run(&mut self, unit: Unit, length_ns: u64, power_w: f64) {
        let began_ns = self.now_ns;
        let length_ns =
            (length_ns as f64 * (1.0 + self.uneven * (2.0 * self.scatter() - 1.0))) as u64;
        self.draw(length_ns, power_w);
        self.digest.take(TapRecord::Ran {
            unit,
            began_ns,
            ended_ns: self.now_ns,
            asked: Some(Mhz(900)),
            locked: self.locked,
            astray: self.astray,
        });
    }

    pub(super) fn begin_step(&mut self, step: u64) {
        let at_ns = self.now_ns;
        self.digest.take(TapRecord::StepBegan { step, at_ns, astray: false });
    }

    pub(super) fn end_step(&mut self) {
        self.draw(3 * MS, 90.0);
        let (at_ns, astray) = (self.now_ns, self.astray);
        self.digest.take(TapRecord::StepEnded { at_ns, astray });
    }

    /// Steps of four forwards and four backwards with waits of some lengths.
    pub(super) fn steps(
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

    pub(super) fn finish(mut self, step: u64) -> Recorded {
        self.begin_step(step);
        self.draw(3 * self.refresh_ns, 60.0);
        self.digest.take(TapRecord::StepEnded { at_ns: self.now_ns, astray: false });
        assert!(self.digest.is_complete());
        self.digest.finish()
    }
}
