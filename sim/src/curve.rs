//! Power curves: what a GPU draws for one kind of work at each clock.
//!
//! A trainer installs the curves of its instructions on its GPU, as it would load kernels, and then
//! only names which of them it runs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::SimError;
use crate::state::layout::CURVES_PER_GPU;
use crate::units::{Mhz, Milliwatts};

/// Points that fit a curve: one for every clock of every model.
pub const CURVE_POINTS: usize = 192;

/// Which installed curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurveIndex(u8);

impl CurveIndex {
    /// The curve of this number; `None` from 16 on.
    pub fn new(number: usize) -> Option<Self> {
        (number < CURVES_PER_GPU).then_some(Self(number as u8))
    }

    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// Power by clock: linear between its points; beyond them it follows the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerCurve {
    points: Vec<(Mhz, Milliwatts)>,
}

impl PowerCurve {
    /// A curve through points of strictly rising clock.
    pub fn new(points: Vec<(Mhz, Milliwatts)>) -> Result<Self, SimError> {
        let wrong = |difference: String| Err(SimError::Curve { limit: CURVE_POINTS, difference });
        if points.is_empty() || points.len() > CURVE_POINTS {
            return wrong(format!("has {}", points.len()));
        }
        if points[0].0.0 == 0 {
            return wrong("begins at 0 MHz".into());
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return wrong(format!("has {} before {}", pair[0].0, pair[1].0));
        }
        Ok(Self { points })
    }

    /// Power at a clock.
    pub fn at(&self, clock: Mhz) -> Milliwatts {
        interpolate(self.points.len(), |i| self.points[i], clock)
    }
}

/// Beyond the ends, half of the edge's power is taken to be there at any clock and the other half
/// to be proportional to it.
fn beyond((edge, power): (Mhz, Milliwatts), clock: Mhz) -> Milliwatts {
    let ratio = f64::from(clock.0) / f64::from(edge.0.max(1));
    Milliwatts((f64::from(power.0) * (0.5 + 0.5 * ratio)) as u32)
}

fn interpolate(len: usize, point: impl Fn(usize) -> (Mhz, Milliwatts), clock: Mhz) -> Milliwatts {
    let (mut low, mut high) = (0, len - 1);
    if clock <= point(low).0 {
        return if clock == point(low).0 { point(low).1 } else { beyond(point(low), clock) };
    }
    if clock >= point(high).0 {
        return if clock == point(high).0 { point(high).1 } else { beyond(point(high), clock) };
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if point(middle).0 <= clock {
            low = middle;
        } else {
            high = middle;
        }
    }
    let ((from, from_power), (to, to_power)) = (point(low), point(high));
    let share = f64::from(clock.0 - from.0) / f64::from(to.0 - from.0);
    let (from_power, to_power) = (f64::from(from_power.0), f64::from(to_power.0));
    Milliwatts((from_power + share * (to_power - from_power)).round() as u32)
}

/// A curve in the state file. Only written under the lock of its GPU.
#[repr(C)]
pub struct CurveSlot {
    /// How many points count: zero while they are being written, and for a slot never used.
    len: AtomicU32,
    _unused: AtomicU32,
    /// MHz in the upper half, mW in the lower.
    points: [AtomicU64; CURVE_POINTS],
}

impl CurveSlot {
    pub(crate) fn install(&self, curve: &PowerCurve) {
        self.len.store(0, Ordering::Release);
        for (slot, (clock, power)) in self.points.iter().zip(&curve.points) {
            slot.store(u64::from(clock.0) << 32 | u64::from(power.0), Ordering::Relaxed);
        }
        self.len.store(curve.points.len() as u32, Ordering::Release);
    }

    /// Power at a clock; `None` if no curve is installed.
    pub(crate) fn at(&self, clock: Mhz) -> Option<Milliwatts> {
        let len = (self.len.load(Ordering::Acquire) as usize).min(CURVE_POINTS);
        let point = |i: usize| {
            let word = self.points[i].load(Ordering::Relaxed);
            (Mhz((word >> 32) as u32), Milliwatts(word as u32))
        };
        (len > 0).then(|| interpolate(len, point, clock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u32)]) -> Result<PowerCurve, SimError> {
        PowerCurve::new(points.iter().map(|&(mhz, mw)| (Mhz(mhz), Milliwatts(mw))).collect())
    }

    #[test]
    fn power_is_exact_on_points_linear_between_and_follows_the_clock_beyond() {
        let curve = curve(&[(800, 200_000), (1000, 240_000), (1400, 480_000)]).unwrap();
        let at = |mhz| curve.at(Mhz(mhz)).0;
        assert_eq!([at(800), at(1000), at(1400)], [200_000, 240_000, 480_000]);
        assert_eq!([at(900), at(1100)], [220_000, 300_000]);
        assert_eq!(at(400), 150_000);
        assert!(at(1500) > at(1400));
    }

    #[test]
    fn a_curve_that_makes_no_sense_is_refused() {
        assert!(curve(&[]).is_err());
        assert!(curve(&[(0, 1)]).is_err());
        let message = curve(&[(800, 1), (800, 2)]).unwrap_err().to_string();
        assert!(message.contains("800 MHz before 800 MHz"), "{message}");
    }
}
