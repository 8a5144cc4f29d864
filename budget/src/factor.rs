//! What a job draws over what its curve says, from its counters.

use crate::curve::{Curve, Point, Steering};
use crate::uniform::{CLOCKLESS, NEAR, OF_SPEED};

/// The share that the newest measurement counts once there are many.
const GAIN: f64 = 0.1;
/// How much what is believed of a point before it was measured counts, in measurements.
const BELIEF: f64 = 0.5;
/// After this many measurements of a point, a change of its factor is a change of the job, and moves all its factors.
const KNOWN: u32 = 4;
/// Less than this share of a measured curve is not believed: a counter that stands still, a node that lies.
const LEAST: f64 = 0.85;
/// The same of what a law says: of its highest clock, and of one at which it says half. What it says is pessimistic, and
/// most so at low clocks.
const LEAST_OF_LAW: [f64; 2] = [0.6, 0.3];
/// More than this share is not believed either.
const MOST: f64 = 1.5;
/// The share of the least power that was measured which no clock changes, at most.
const CLOCKLESS_OF_LEAST: f64 = 0.8;
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
        let ratio = ratio.clamp(least(curve, place), MOST);
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
                other.mean = (other.mean * factor.mean / before).clamp(LEAST_OF_LAW[1], MOST);
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
        let assumed = curve.assumed().unwrap_or(curve.last());
        let of_law = known.split_off(known.partition_point(|(place, _)| *place <= assumed));
        Measured { points, known, assumed, of_law }
    }
}

/// The least factor that is believed of a place.
fn least(curve: &Curve, place: usize) -> f64 {
    let Some(base) = curve.assumed().filter(|base| place > *base || *base == 0) else {
        return LEAST;
    };
    let points = curve.points();
    let [at_all, at_half] = LEAST_OF_LAW;
    let way = 2.0 * (1.0 - points[place].power_w / points[base].power_w);
    (at_all + way * (at_half - at_all)).max(at_half)
}

/// A curve, and the places of it that were measured, with their factors: those of plans, and those of the law that
/// goes on from there.
struct Measured<'a> {
    points: &'a [Point],
    known: Vec<(usize, f64)>,
    assumed: usize,
    of_law: Vec<(usize, f64)>,
}

impl Measured<'_> {
    fn at(&self, place: usize) -> f64 {
        match place <= self.assumed {
            true => self.of_plan(place),
            false => self.of_law(place),
        }
    }

    /// A power law between measured points: of what depends on the clock, the logarithm is a straight line over
    /// the law's. Below the lowest one it goes on as it was from the highest to there, but not far, and then
    /// as the law says.
    fn of_law(&self, place: usize) -> f64 {
        let base_w = self.points[self.assumed].power_w;
        let from = self.of_plan(self.assumed);
        let share =
            |(place, factor): (usize, f64)| factor * self.points[place].power_w / (from * base_w);
        let least = self.of_law.iter().copied().map(share).fold(f64::INFINITY, f64::min);
        let clockless = CLOCKLESS.min(CLOCKLESS_OF_LEAST * least);
        let of_clock = |share: f64, clockless: f64| ((share - clockless) / (1.0 - clockless)).ln();
        let law = |place: usize| of_clock(self.points[place].power_w / base_w, CLOCKLESS);
        let at = law(place);
        let mut above = (0.0, 0.0);
        let mut measured = None;
        for &(known, factor) in &self.of_law {
            let here = (law(known), of_clock(share((known, factor)), clockless));
            if here.0 <= at {
                let way = if here.0 < above.0 { (at - above.0) / (here.0 - above.0) } else { 1.0 };
                measured = Some(above.1 + way * (here.1 - above.1));
                break;
            }
            above = here;
        }
        let measured = measured.unwrap_or_else(|| {
            let near = at.max(above.0 + OF_SPEED * NEAR.ln());
            let slope = if above.0 < 0.0 { (above.1 / above.0).max(0.0) } else { 1.0 };
            above.1 + slope * (near - above.0) + slope.min(1.0) * (at - near)
        });
        let power_w = from * base_w * (clockless + (1.0 - clockless) * measured.exp());
        power_w / self.points[place].power_w
    }

    fn of_plan(&self, place: usize) -> f64 {
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
    use crate::uniform::{Clock, Paces, Prior};

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
        assert_eq!(at, [100.0, 88.0, 82.0, 88.0]);
        let corrected = factors.corrected(&curve);
        assert_eq!(corrected.points().len(), 6);
        assert!(corrected.points().is_sorted_by(|a, b| a.power_w > b.power_w));
    }

    #[test]
    fn a_law_that_is_wrong_is_measured_down_to_what_the_lowest_clock_draws() {
        let lower = (300..1000).step_by(10).map(|mhz| Clock { mhz, tag: mhz });
        let own = Point { time_s: 1.0, power_w: 400.0, tag: 1000 };
        let measured = (&Paces::default(), Prior::Usual);
        let curve = Curve::of_uniform_clocks(own, 1000, lower, measured, None).unwrap();
        let truth = |tag: u32| 400.0 * (0.2 + 0.8 * (f64::from(tag) / 1000.0).powf(2.4));
        let place = |mhz| curve.points().iter().position(|point| point.tag == mhz).unwrap();
        let mut factors = Factors::default();
        let off = |factors: &Factors, mhz| {
            let known_w = factors.at(&curve, place(mhz)) * curve.points()[place(mhz)].power_w;
            100.0 * (known_w / truth(mhz) - 1.0)
        };
        assert!(off(&factors, 800) > 10.0 && off(&factors, 300) > 50.0, "it is pessimistic");
        for mhz in [300, 800] {
            for _ in 0..20 {
                factors.take(&curve, place(mhz), truth(mhz));
            }
        }
        let off = [300, 400, 500, 600, 700, 800, 900].map(|mhz| off(&factors, mhz).round());
        assert!(off.iter().all(|off| off.abs() <= 12.0), "{off:?}");
        assert_eq!(off[5], 0.0);
    }

    #[test]
    fn a_job_that_draws_more_at_a_lower_clock_than_by_itself_counts_for_what_it_draws() {
        let (curve, mut factors) = (curve(Steering::UniformClocks), Factors::default());
        for _ in 0..20 {
            factors.take(&curve, 0, 1000.0);
        }
        for _ in 0..4 {
            factors.take(&curve, 2, 1.4 * 800.0);
        }
        let drawn_w = |place: usize| factors.at(&curve, place) * curve.points()[place].power_w;
        assert!(drawn_w(2) > 1.05 * drawn_w(0), "{} W of {factors:?}", drawn_w(2));
        assert!(drawn_w(5) <= drawn_w(2), "{} W", drawn_w(5));
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
        for (steering, least) in
            [(Steering::Plans, LEAST), (Steering::UniformClocks, LEAST_OF_LAW[0])]
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
