//! What was found of one kind of a rank's time, and the row of a trial that becomes of it. Pure.

use pfo_protocol::{Chunk, Doubt, Instruction, LeftOut, Mhz, TrialRow, WaitPower};

use crate::record::regression::Power;
use crate::record::spread::Spread;

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
    left_out: LeftOut,
}

impl Found {
    pub(crate) fn none(doing: Doing) -> Self {
        let (time, clock) = (Spread::default(), Spread::default());
        Self { doing, time, clock, left_out: LeftOut::default() }
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

    /// The row of instructions that drew this power; none for anything else.
    pub(crate) fn row(&self, power: Option<Power>) -> Option<TrialRow> {
        let Doing::Instruction { instruction, chunk, asked } = self.doing else { return None };
        let Self { time, clock, left_out, .. } = self;
        let root = (time.count() as f64).sqrt();
        Some(TrialRow {
            instruction,
            chunk,
            mhz: asked,
            observed_mhz: (clock.count() > 0).then(|| clock.mean()),
            count: time.count(),
            time_mean_s: time.mean(),
            time_sd_s: time.deviation(),
            time_median_s: time.median(),
            energy_mean_j: power.map(|power| power.power_w * time.mean()),
            energy_median_j: power.map(|power| power.power_w * time.median()),
            energy_sd_j: power.map(|power| power.error_w * time.mean() * root),
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
