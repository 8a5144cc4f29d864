//! Time that a step takes between instructions: for transfers, and until a clock is in force.

use pfo_vocabulary::Mhz;
use serde::{Deserialize, Serialize};

use crate::by_clock;
use crate::error::PlanError;

/// A larger value is in another unit.
const LONGEST_S: f64 = 60.0;

/// Delays between instructions and between clocks, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// From the end of an instruction until its activation or gradient has reached another stage.
    pub transfer_time_s: f64,
    /// From the end of an instruction, when the clock of the next one is set, until that clock is
    /// in force.
    pub switch_latency_s: f64,
    /// The same by the clock that is set, where that is known; where it is empty, all take as long.
    pub latency_by_clock: LatencyByClock,
    /// For how long the call that sets a clock blocks. Requests meanwhile wait until it returns,
    /// and only the newest clock is set then. It may be longer than the switching latency: some
    /// drivers return long after the clock is in force.
    pub set_call_s: f64,
    /// For how long a change of clocks holds up what the instruction before it hands on, and the
    /// next one: some drivers keep transfers waiting while they set a clock.
    pub held_up_s: f64,
}

/// Seconds from the call that sets a clock until it is in force, by that clock: at most
/// [`LatencyByClock::MOST`] points. Between two of them it is interpolated, beyond them it is that of the
/// nearest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(Mhz, f64)>", into = "Vec<(Mhz, f64)>")]
pub struct LatencyByClock {
    points: [(Mhz, f64); Self::MOST],
    len: usize,
}

impl LatencyByClock {
    /// Points that are kept.
    pub const MOST: usize = 8;

    /// Its points by rising clock.
    #[must_use]
    pub fn points(&self) -> &[(Mhz, f64)] {
        self.points.get(..self.len).unwrap_or_default()
    }

    /// The longest latency; none without points.
    #[must_use]
    pub fn longest_s(&self) -> Option<f64> {
        self.points().iter().map(|point| point.1).reduce(f64::max)
    }
}

/// The latency at these clocks, in any order. Of more than [`LatencyByClock::MOST`] some from the lowest to
/// the highest are kept.
impl FromIterator<(Mhz, f64)> for LatencyByClock {
    fn from_iter<I: IntoIterator<Item = (Mhz, f64)>>(points: I) -> Self {
        let mut all: Vec<_> = points.into_iter().collect();
        all.sort_by_key(|&(clock, _)| clock);
        all.dedup_by_key(|&mut (clock, _)| clock);
        let len = all.len().min(Self::MOST);
        let mut points = <[(Mhz, f64); Self::MOST]>::default();
        for (place, point) in points.iter_mut().enumerate().take(len) {
            // The first and the last one, and others at equal distances.
            *point = all[place * (all.len() - 1) / (len - 1).max(1)];
        }
        Self { points, len }
    }
}

impl From<Vec<(Mhz, f64)>> for LatencyByClock {
    fn from(points: Vec<(Mhz, f64)>) -> Self {
        points.into_iter().collect()
    }
}

impl From<LatencyByClock> for Vec<(Mhz, f64)> {
    fn from(latency: LatencyByClock) -> Self {
        latency.points().to_vec()
    }
}

impl Delays {
    /// The same, but for what clocks take until they are in force.
    #[must_use]
    pub fn with_latency_by_clock(self, latency: LatencyByClock) -> Self {
        let switch_latency_s = latency.longest_s().unwrap_or(self.switch_latency_s);
        Self { switch_latency_s, latency_by_clock: latency, ..self }
    }

    /// From the call that sets a clock until it is in force, on the slowest of them, in seconds.
    pub(crate) fn longest_latency_s(&self) -> f64 {
        self.latency_by_clock.longest_s().unwrap_or(self.switch_latency_s)
    }

    /// From the call that sets this clock until it is in force, in seconds.
    #[must_use]
    pub fn latency_s(&self, clock: Mhz) -> f64 {
        let latency_s = by_clock::at(self.latency_by_clock.points(), clock, |seconds| seconds);
        latency_s.unwrap_or(self.switch_latency_s)
    }

    /// Whether plans account for what a change of clocks takes, which makes them take longer to find.
    pub fn make_changes_late(&self) -> bool {
        self.longest_latency_s() > 0.0 || self.set_call_s > 0.0 || self.held_up_s > 0.0
    }

    /// Whether each change of clocks costs time of its own, so that few changes are better.
    pub(crate) fn make_changes_dear(&self) -> bool {
        self.set_call_s > 0.0 || self.held_up_s > 0.0
    }

    /// How long before the expected end of a wait with a clock of its own the next instruction's
    /// clock is requested, in seconds: its latency, and a margin for waits that end early.
    pub(crate) fn early_s(latency_s: f64) -> f64 {
        const MARGIN_SHARE: f64 = 0.25;
        const LEAST_MARGIN_S: f64 = 0.002;
        latency_s + (MARGIN_SHARE * latency_s).max(LEAST_MARGIN_S)
    }

    /// Each delay with its name in files.
    pub(crate) fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("transfer_time_s", self.transfer_time_s),
            ("switch_latency_s", self.switch_latency_s),
            ("set_call_s", self.set_call_s),
            ("held_up_s", self.held_up_s),
        ]
    }

    /// # Errors
    /// If one of them is not between 0 and 60 s.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let delays = [
            ("the transfer time", self.transfer_time_s),
            ("the switching latency", self.switch_latency_s),
            ("the time for which a set call blocks", self.set_call_s),
            ("the time for which a change of clocks holds up transfers", self.held_up_s),
        ];
        let by_clock = self.latency_by_clock.points().iter();
        let by_clock = by_clock.map(|&(_, seconds)| ("the switching latency of a clock", seconds));
        for (name, seconds) in delays.into_iter().chain(by_clock) {
            if !(0.0..=LONGEST_S).contains(&seconds) {
                let value = format!("{seconds} s");
                return Err(PlanError::BadArgument { name, value, expected: "from 0 to 60 s" });
            }
        }
        Ok(())
    }
}
