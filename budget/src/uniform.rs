//! The curve of a job without a frontier: what one clock for everything is taken to cost until it was
//! measured.

use std::collections::BTreeMap;

use crate::curve::{Curve, Point, Steering};
use crate::error::BudgetError;

/// The share of its power that a GPU is taken to draw at any clock. What it draws in truth is measured
/// once it runs there; this is no less than what GPUs were seen to draw.
pub(crate) const CLOCKLESS: f64 = 0.4;

/// The rest is taken to fall as the speed to this exponent. Measured GPUs (A100, A40) save more by it. More
/// than 1, so that the first watts cost a job less than the next ones and equal jobs give up alike.
pub(crate) const OF_SPEED: f64 = 1.25;

/// A new mean replaces the old one when it is of this many times as many steps.
const MORE: u64 = 4;

/// A step at a lower clock is taken to be at least this share longer, whatever was measured: so no point is dropped.
const LONGER: f64 = 1e-4;

/// What was measured at a clock is believed to go on as far below it as this share of it: a job comes to where it
/// has to be in steps of which each is measured.
pub(crate) const NEAR: f64 = 0.9;

/// Clocks to choose from, at most.
const MOST_CLOCKS: usize = 256;

/// A clock in MHz that a job may be steered to, below its own, and the tag of its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// MHz.
    pub mhz: u32,
    /// The caller's name for it.
    pub tag: u32,
}

/// How long steps are taken to be at clocks that are far from measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prior {
    /// As long as they can be: all of their time is the clock's. For jobs that are promised not to be slower than
    /// that.
    Slowest,
    /// As long as they often are: half of their time is the clock's. A job that loses little by a lower clock is found
    /// out when it is tried; one that is taken to lose much never is.
    Usual,
}

impl Prior {
    /// The share of a step that no clock makes longer.
    fn without_clock(self) -> f64 {
        match self {
            Self::Slowest => 0.0,
            Self::Usual => 0.5,
        }
    }
}

/// The points of these lower clocks, rising, for everything of a job that runs `own` at `own_mhz`. A step draws less by
/// a pessimistic law, which the [`Controller`](crate::Controller) corrects by counters; how much longer it
/// takes is corrected here by what was measured at some clocks.
pub fn uniform_points(
    own: Point,
    own_mhz: u32,
    lower: impl IntoIterator<Item = Clock>,
    (paces, prior): (&Paces, Prior),
) -> Vec<Point> {
    let lower: Vec<Clock> = lower.into_iter().collect();
    let every = lower.len().div_ceil(MOST_CLOCKS).max(1);
    let point = |clock: &Clock| {
        let share = f64::from(clock.mhz) / f64::from(own_mhz);
        let power_w = own.power_w * (CLOCKLESS + (1.0 - CLOCKLESS) * share.powf(OF_SPEED));
        let time_s = paces.at(share, (own_mhz, own.time_s), prior) * own.time_s / share;
        Point { time_s, power_w, tag: clock.tag }
    };
    let mut points: Vec<Point> = lower.iter().step_by(every).map(point).collect();
    let mut before_s = own.time_s;
    for point in points.iter_mut().rev() {
        point.time_s = point.time_s.max(before_s * (1.0 + LONGER));
        before_s = point.time_s;
    }
    points
}

impl Curve {
    /// The curve of a job without a frontier: what it runs by itself, and [`uniform_points`] below.
    ///
    /// # Errors
    /// Those of [`Curve::new`].
    pub fn of_uniform_clocks(
        own: Point,
        own_mhz: u32,
        lower: impl IntoIterator<Item = Clock>,
        measured: (&Paces, Prior),
        slowest: Option<f64>,
    ) -> Result<Self, BudgetError> {
        let points = uniform_points(own, own_mhz, lower, measured);
        Self::steered(Steering::UniformClocks, [own].into_iter().chain(points), slowest)
    }
}

/// How long steps took that a job ran at one clock for everything, by MHz.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paces(BTreeMap<u32, Pace>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    steps: u64,
    time_s: f64,
}

impl Paces {
    /// Takes the mean of some steps at a clock, in seconds, unless that of nearly as many is known: each changes
    /// the curve.
    pub fn take(&mut self, mhz: u32, steps: u64, time_s: f64) {
        let is_more = |pace: &Pace| steps >= pace.steps.saturating_mul(MORE);
        if self.0.get(&mhz).is_none_or(is_more) {
            self.0.insert(mhz, Pace { steps, time_s });
        }
    }

    /// What steps at this share of the own clock take, over what they would if all of their time were the
    /// clock's: as interpolated between measured clocks, and as far below them as [`NEAR`] allows.
    fn at(&self, share: f64, (own_mhz, own_s): (u32, f64), prior: Prior) -> f64 {
        let share_of = |mhz: u32| f64::from(mhz) / f64::from(own_mhz);
        let mut above = (1.0, 1.0);
        for (mhz, pace) in self.0.range(..own_mhz).rev() {
            let here = (share_of(*mhz), (pace.time_s * share_of(*mhz) / own_s).min(1.0));
            if here.0 <= share {
                let way = (above.0 - share) / (above.0 - here.0);
                return above.1 + way * (here.1 - above.1);
            }
            above = here;
        }
        if above.0 >= 1.0 {
            return 1.0 - prior.without_clock() * (1.0 - share);
        }
        if prior == Prior::Slowest {
            return above.1;
        }
        // What does not depend on the clock is the same share of a step, so that this is a straight line.
        let slope = (1.0 - above.1) / (1.0 - above.0);
        let way = above.0 - share.max(NEAR * above.0);
        above.1 - slope * way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(paces: &Paces, prior: Prior) -> Curve {
        let own = Point { time_s: 1.0, power_w: 500.0, tag: 0 };
        let lower = (300..1500).step_by(300).map(|mhz| Clock { mhz, tag: mhz });
        Curve::of_uniform_clocks(own, 1500, lower, (paces, prior), None).unwrap()
    }

    #[test]
    fn a_lower_clock_for_all_takes_longer_and_draws_less() {
        let curve = curve(&Paces::default(), Prior::Usual);
        let tags: Vec<u32> = curve.points().iter().map(|point| point.tag).collect();
        assert_eq!(tags, [0, 1200, 900, 600, 300]);
        assert_eq!(curve.steering(), Steering::UniformClocks);
    }

    #[test]
    fn what_was_measured_at_some_clocks_is_believed_of_those_between() {
        let mut paces = Paces::default();
        // Half of a step is the clock's at 900 MHz.
        paces.take(900, 3, 1.0 + 0.5 * (1500.0 / 900.0 - 1.0));
        let times = |paces: &Paces, prior| -> Vec<f64> {
            let points = curve(paces, prior).points().to_vec();
            points.iter().map(|point| (1000.0 * point.time_s).round() / 1000.0).collect()
        };
        assert_eq!(times(&paces, Prior::Usual), [1.0, 1.125, 1.333, 1.925, 3.85]);
        assert_eq!(times(&paces, Prior::Slowest), [1.0, 1.125, 1.333, 2.0, 4.0]);
        paces.take(900, 5, 2.0);
        assert_eq!(times(&paces, Prior::Usual)[2], 1.333, "five steps do not replace three");
        paces.take(900, 12, 1.4);
        assert_eq!(times(&paces, Prior::Usual)[2], 1.4);
        // A clock that was measured to be no slower is a little slower all the same.
        paces.take(900, 100, 0.9);
        assert_eq!(times(&paces, Prior::Usual).len(), 5);
    }

    #[test]
    fn what_was_never_measured_takes_as_long_as_it_can_where_that_is_promised() {
        let slowest = |prior| {
            let curve = curve(&Paces::default(), prior);
            curve.points()[curve.last()].time_s
        };
        assert_eq!([Prior::Usual, Prior::Slowest].map(slowest).map(f64::round), [3.0, 5.0]);
    }
}
