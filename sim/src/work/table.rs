//! Time and power of instructions by clock.

use crate::curve::PowerCurve;
use crate::error::SimError;
use crate::units::{Mhz, Milliwatts};

/// A kind of instruction that a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The forward pass of a microbatch.
    Forward,
    /// The backward pass of a microbatch.
    Backward,
}

impl Kind {
    /// Both, forward first.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Backward];

    /// The name in a profile.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// Time and power at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkPoint {
    /// The clock.
    pub clock: Mhz,
    /// Time in s.
    pub time_s: f64,
    /// Power.
    pub power: Milliwatts,
}

/// One instruction of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// By rising clock, at least one.
    points: Vec<WorkPoint>,
    curve: PowerCurve,
}

impl Work {
    /// Work through points of strictly rising clock.
    pub fn new(points: Vec<WorkPoint>) -> Result<Self, SimError> {
        let curve =
            PowerCurve::new(points.iter().map(|point| (point.clock, point.power)).collect())?;
        Ok(Self { points, curve })
    }

    /// The measured points.
    pub fn points(&self) -> &[WorkPoint] {
        &self.points
    }

    /// Power by clock.
    pub fn curve(&self) -> &PowerCurve {
        &self.curve
    }

    /// Time in s at a clock: linear between two points, inverse to the clock beyond them.
    pub fn time_s(&self, clock: Mhz) -> f64 {
        let mhz = f64::from(clock.0.max(1));
        let after = self.points.partition_point(|point| point.clock <= clock);
        let (Some(before), Some(next)) =
            (after.checked_sub(1).map(|i| self.points[i]), self.points.get(after))
        else {
            let edge = self.points[after.saturating_sub(1)];
            return edge.time_s * f64::from(edge.clock.0) / mhz;
        };
        let span = f64::from(next.clock.0 - before.clock.0);
        let share = f64::from(clock.0 - before.clock.0) / span;
        before.time_s + share * (next.time_s - before.time_s)
    }

    /// Energy in J at a clock.
    pub fn energy_j(&self, clock: Mhz) -> f64 {
        self.time_s(clock) * self.curve.at(clock).watts()
    }

    /// The same work, taking another multiple of its time.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.points.iter_mut().for_each(|point| point.time_s *= factor);
        self
    }
}

/// The instructions of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageWork {
    /// Forward of a microbatch.
    pub forward: Work,
    /// Backward of a microbatch.
    pub backward: Work,
}

impl StageWork {
    /// The work of a kind.
    pub fn of(&self, kind: Kind) -> &Work {
        match kind {
            Kind::Forward => &self.forward,
            Kind::Backward => &self.backward,
        }
    }

    /// The same stage, taking another multiple of its time.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { forward: self.forward.scaled(factor), backward: self.backward.scaled(factor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_exact_on_points_linear_between_and_inverse_to_the_clock_beyond() {
        let point = |mhz, time_s| WorkPoint { clock: Mhz(mhz), time_s, power: Milliwatts(100_000) };
        let work = Work::new(vec![point(800, 0.1), point(1000, 0.08), point(1400, 0.06)]).unwrap();
        let expected = [
            (800, 0.1),
            (1000, 0.08),
            (1400, 0.06),
            (900, 0.09),
            (1200, 0.07),
            (400, 0.2),
            (2800, 0.03),
        ];
        for (mhz, time) in expected {
            assert!((work.time_s(Mhz(mhz)) - time).abs() < 1e-12, "{mhz} MHz");
        }
        assert!((work.energy_j(Mhz(800)) - 10.0).abs() < 1e-9);
        assert!((work.scaled(0.5).time_s(Mhz(800)) - 0.05).abs() < 1e-12);
    }
}
