//! What was found of one kind of a rank's time, and the row of a trial that becomes of it. Pure.

use pfo_protocol::{Chunk, Doubt, Instruction, LeftOut, Mhz, TrialRow, WaitPower};

use crate::record::digest::RecordedGpu;
use crate::record::regression::Power;
use crate::record::sample::{Throttling, is_next_to};
use crate::record::spread::Spread;

/// Shares of time are found to one part in this many.
const SHARES: f64 = 1e4;

/// What a rank does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It runs an instruction.
    Instruction {
        instruction: Instruction,
        chunk: Chunk,
        /// The clock that was asked for.
        asked: Option<Mhz>,
    },
    /// It is in a step, and in no instruction.
    Waiting {
        /// The clock that was asked for.
        asked: Option<Mhz>,
    },
    /// The same, right after an instruction.
    Pausing {
        /// The clock that was asked for.
        asked: Option<Mhz>,
    },
    /// After the last instruction of a step.
    Finishing,
    /// Between two steps.
    Between,
}

/// All that a rank did of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) doing: Doing,
    /// In seconds.
    time: Spread,
    /// As the driver reported it meanwhile, in MHz.
    pub(crate) clock: Spread,
    /// The same of those that are left out for it.
    pub(crate) other_clock: Spread,
    /// How many readings came while one ran, and how many of them found a steady reason, if the
    /// driver lacks a counter of one.
    readings: u64,
    throttled_readings: u64,
    left_out: LeftOut,
}

impl Found {
    pub(crate) fn none(doing: Doing) -> Self {
        Self {
            doing,
            time: Spread::default(),
            clock: Spread::default(),
            other_clock: Spread::default(),
            readings: 0,
            throttled_readings: 0,
            left_out: LeftOut::default(),
        }
    }

    /// Takes the clock that the driver reported while one ran, and what kept it down. A clock next
    /// to the requested one counts, and so does a lower one that has a reason: that is how the GPU
    /// runs at this request. Any other clock is a doubt, for it may not last: another program has
    /// set it, or it has not settled.
    pub(crate) fn see_clock(
        &mut self,
        clock: Mhz,
        throttling: Throttling,
        gpu: &RecordedGpu,
    ) -> Option<Doubt> {
        let Doing::Instruction { asked, .. } = self.doing else { return None };
        let counts = asked.is_none_or(|asked| {
            is_next_to(&gpu.sm_clocks, clock, asked) || clock < asked && throttling.is_steady()
        });
        let seen = if counts { &mut self.clock } else { &mut self.other_clock };
        seen.add(clock.0.into());
        (!counts).then_some(Doubt::OtherClock)
    }

    /// Takes what the driver said while one ran of reasons that it does not count.
    pub(crate) fn see_throttling(&mut self, throttling: Throttling) {
        if let Some(throttled) = throttling.steady_now {
            self.readings = self.readings.saturating_add(1);
            self.throttled_readings = self.throttled_readings.saturating_add(throttled.into());
        }
    }

    /// For which share of its time the clock was kept down: that which the driver counted, and that
    /// of the readings which found a reason. Where the driver does not count each reason, none
    /// without a reading.
    fn throttled(&self, counted: f64, counts_all: bool) -> Option<f64> {
        let found = match self.readings {
            0 if counts_all => 0.0,
            0 => return None,
            readings => self.throttled_readings as f64 / readings as f64,
        };
        Some((SHARES * (counted.max(0.0) + found).min(1.0)).round() / SHARES)
    }

    /// Adds one. With a doubt it is only counted.
    pub(crate) fn count(&mut self, ns: u64, doubt: Option<Doubt>) {
        let left_out = match doubt {
            None => return self.time.add(ns as f64 / 1e9),
            Some(Doubt::Mismatched) => &mut self.left_out.mismatched,
            Some(Doubt::Settling) => &mut self.left_out.settling,
            Some(Doubt::Throttled) => &mut self.left_out.throttled,
            Some(Doubt::OtherClock) => &mut self.left_out.other_clock,
        };
        *left_out = left_out.saturating_add(1);
    }

    /// The row of instructions that drew this power, and whose clock was kept down for this share of
    /// their time by the driver's counters, which may count every reason or not; none for anything
    /// else.
    pub(crate) fn row(
        &self,
        power: Option<Power>,
        counted: Option<f64>,
        counts_all: bool,
    ) -> Option<TrialRow> {
        let Doing::Instruction { instruction, chunk, asked } = self.doing else { return None };
        let Self { time, clock, other_clock, left_out, .. } = self;
        let clock = if clock.count() > 0 { clock } else { other_clock };
        let root = (time.count() as f64).sqrt();
        Some(TrialRow {
            instruction,
            chunk,
            mhz: asked,
            observed_mhz: (clock.count() > 0).then(|| clock.middle_mean()),
            count: time.count(),
            time_mean_s: time.mean(),
            time_sd_s: time.deviation(),
            time_median_s: time.median(),
            energy_mean_j: power.map(|power| power.power_w * time.mean()),
            energy_median_j: power.map(|power| power.power_w * time.median()),
            energy_sd_j: power.map(|power| power.error_w * time.mean() * root),
            throttled: counted
                .filter(|_| time.count() > 0)
                .and_then(|counted| self.throttled(counted, counts_all)),
            left_out: *left_out,
        })
    }

    /// The waits that drew this power; none for anything else, or if the power is not known.
    pub(crate) fn wait(&self, power: Option<Power>) -> Option<WaitPower> {
        let Doing::Waiting { asked } = self.doing else { return None };
        let Power { power_w, error_w } = power?;
        Some(WaitPower {
            mhz: asked,
            count: self.time.count(),
            time_s: self.time.mean() * self.time.count() as f64,
            power_w,
            power_error_w: error_w,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_reading_met_is_not_called_free_of_throttling() {
        let asked = Some(Mhz(900));
        let mut found = Found::none(Doing::Instruction {
            instruction: Instruction::Forward,
            chunk: Chunk(0),
            asked,
        });
        found.count(31_000_000, None);
        let throttled =
            |found: &Found, counts_all| found.row(None, Some(0.0), counts_all).unwrap().throttled;
        assert_eq!((throttled(&found, true), throttled(&found, false)), (Some(0.0), None));
        found.see_throttling(Throttling { reasons: 0, steady_s: 0.0, steady_now: Some(false) });
        assert_eq!(throttled(&found, false), Some(0.0));
    }
}
