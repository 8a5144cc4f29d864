//! What a job draws over what its curve says, from its counters.

use crate::curve::{Curve, Point, Steering};

/// The share that the newest measurement counts once there are many.
const GAIN: f64 = 0.1;
/// How much what is believed of a point before it was measured counts, in measurements.
const BELIEF: f64 = 0.5;
/// After this many measurements of a point, a change of its factor is a change of the job, and moves all its factors.
const KNOWN: u32 = 4;
/// Less than this share of a measured curve is not believed: a counter that stands still, a node that lies.
const LEAST: f64 = 0.85;
/// The same of a curve that follows from a law, and not from what was measured of the job.
const LEAST_OF_LAW: f64 = 0.6;
/// More than this share is not believed either.
const MOST: f64 = 1.5;
/// Points that are remembered.
const REMEMBERED: usize = 16;

/// The mean of what was measured at one point, in which old measurements fade.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factor {
    tag: u32,
    mean: f64,
    taken: u32,
}

/// What a job draws over what its curve says, at each point that it has run.
///
/// Every value is a mean of what was measured and believed, with weights that sum to 1. So it never
/// leaves the interval of the job's true ratios, independently of decisions meanwhile and of how
/// late a measurement comes: this is a measurement, not an integral of the budget's error, and
/// cannot swing. A point that was not measured
/// lies between those that were.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Factors(Vec<Factor>);

impl Factors {
    /// Takes a measurement of a window under one point. One that is no number is none. Whether it says something
    /// of a point that was not known before.
    pub(crate) fn take(&mut self, curve: &Curve, place: usize, measured_w: f64) -> bool {
        let point = curve.points()[place];
        let ratio = measured_w / point.power_w;
        if !(ratio.is_finite() && measured_w > 0.0) || curve.steering() == Steering::PowerLimits {
            return false;
        }
        let least = if curve.steering() == Steering::Plans { LEAST } else { LEAST_OF_LAW };
        let ratio = ratio.clamp(least, MOST);
        let known = self.0.iter().position(|factor| factor.tag == point.tag);
        let mut factor = match known {
            Some(known) => self.0.remove(known),
            None => Factor { tag: point.tag, mean: self.at(curve, place), taken: 0 },
        };
        factor.taken = factor.taken.saturating_add(1);
        let before = factor.mean;
        factor.mean += GAIN.max(1.0 / (BELIEF + f64::from(factor.taken))) * (ratio - before);
        if factor.taken > KNOWN {
            for other in &mut self.0 {
                other.mean = (other.mean * factor.mean / before).clamp(least, MOST);
            }
        }
        if self.0.len() == REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(factor);
        factor.taken <= KNOWN
    }

    /// What is drawn at a place over what the curve says.
    pub(crate) fn at(&self, curve: &Curve, place: usize) -> f64 {
        self.of(curve).at(place)
    }

    /// The curve as it was measured. Its places are those of the other.
    pub(crate) fn corrected(&self, curve: &Curve) -> Curve {
        let known = self.of(curve);
        curve.scaled(|place| known.at(place))
    }

    fn of<'a>(&self, curve: &'a Curve) -> Measured<'a> {
        let points = curve.points();
        let place = |tag| points.iter().position(|point| point.tag == tag);
        let is_measured = curve.steering() != Steering::PowerLimits;
        let factors = self.0.iter().filter(|_| is_measured);
        let mut known: Vec<_> =
            factors.filter_map(|factor| Some((place(factor.tag)?, factor.mean))).collect();
        known.sort_unstable_by_key(|(place, _)| *place);
        // A law begins with what the job was measured to draw by itself.
        if curve.steering() == Steering::UniformClocks && known.first().is_none_or(|it| it.0 > 0) {
            known.insert(0, (0, 1.0));
        }
        Measured { points, known }
    }
}

/// A curve, and the places of it that were measured, with their factors.
struct Measured<'a> {
    points: &'a [Point],
    known: Vec<(usize, f64)>,
}

impl Measured<'_> {
    fn at(&self, place: usize) -> f64 {
        let after = self.known.partition_point(|(known, _)| *known < place);
        let before = after.checked_sub(1).map(|before| self.known[before]);
        match (before, self.known.get(after)) {
            (Some(faster), Some(slower)) => self.between(faster, *slower, place),
            (Some((_, only)), None) => only,
            (None, Some((_, only))) => *only,
            (None, None) => 1.0,
        }
    }

    /// By power or by time, whichever lets the job draw more.
    fn between(&self, faster: (usize, f64), slower: (usize, f64), place: usize) -> f64 {
        let by = |of: fn(&Point) -> f64| {
            let [from, at, to] = [faster.0, place, slower.0].map(|place| of(&self.points[place]));
            faster.1 + (at - from) / (to - from) * (slower.1 - faster.1)
        };
        by(|point| point.power_w).max(by(|point| point.time_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(steering: Steering) -> Curve {
        let point = |tag: u32| Point {
            time_s: 1.0 + 0.1 * f64::from(tag),
            power_w: 1000.0 - 100.0 * f64::from(tag),
            tag,
        };
        Curve::steered(steering, (0..6).map(point), None).unwrap()
    }

    #[test]
    fn it_comes_to_what_is_measured_and_stays_there() {
        let (curve, mut factors) = (curve(Steering::Plans), Factors::default());
        for _ in 0..100 {
            factors.take(&curve, 0, 1080.0);
        }
        for place in 0..6 {
            assert!((factors.at(&curve, place) - 1.08).abs() < 1e-3, "{factors:?}");
        }
    }

    #[test]
    fn each_point_keeps_its_own_and_those_between_lie_between() {
        let (curve, mut factors) = (curve(Steering::UniformClocks), Factors::default());
        for _ in 0..4 {
            factors.take(&curve, 0, 1000.0);
        }
        for _ in 0..4 {
            factors.take(&curve, 4, 0.8 * 600.0);
        }
        let at = [0, 2, 4, 5].map(|place| (100.0 * factors.at(&curve, place)).round());
        assert_eq!(at, [100.0, 91.0, 82.0, 82.0]);
        let corrected = factors.corrected(&curve);
        assert_eq!(corrected.points().len(), 6);
        assert!(corrected.points().is_sorted_by(|a, b| a.power_w > b.power_w));
    }

    #[test]
    fn a_job_that_draws_more_from_now_on_does_so_at_all_points() {
        let (curve, mut factors) = (curve(Steering::Plans), Factors::default());
        for _ in 0..10 {
            factors.take(&curve, 0, 1000.0);
        }
        for _ in 0..10 {
            factors.take(&curve, 4, 600.0);
        }
        for _ in 0..60 {
            factors.take(&curve, 4, 1.1 * 600.0);
        }
        assert!((factors.at(&curve, 0) - 1.1).abs() < 0.01, "{factors:?}");
    }

    #[test]
    fn what_cannot_be_is_no_measurement_or_is_bounded() {
        for (steering, least) in [(Steering::Plans, LEAST), (Steering::UniformClocks, LEAST_OF_LAW)]
        {
            let (curve, mut factors) = (curve(steering), Factors::default());
            for hostile in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -5.0] {
                factors.take(&curve, 0, hostile);
            }
            assert_eq!(factors, Factors::default());
            for _ in 0..1000 {
                factors.take(&curve, 0, 1e-3);
            }
            assert!((factors.at(&curve, 0) - least).abs() < 1e-9);
            for _ in 0..1000 {
                factors.take(&curve, 0, 1e9);
            }
            assert!((factors.at(&curve, 0) - MOST).abs() < 1e-9);
        }
    }

    #[test]
    fn what_power_limits_hold_is_what_it_draws() {
        let (curve, mut factors) = (curve(Steering::PowerLimits), Factors::default());
        factors.take(&curve, 0, 1200.0);
        assert_eq!(factors.at(&curve, 0), 1.0);
    }

    #[test]
    fn few_points_are_remembered() {
        let points = (0..40).map(|tag| Point {
            time_s: f64::from(1 + tag),
            power_w: f64::from(1000 - tag),
            tag,
        });
        let (curve, mut factors) = (Curve::new(points, None).unwrap(), Factors::default());
        for place in 0..40 {
            factors.take(&curve, place, 1000.0);
        }
        assert_eq!(factors.0.len(), REMEMBERED);
    }
}
