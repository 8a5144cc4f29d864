//! What a job can run: time and power of each of its plans, and the lower hull of what they cost.

use crate::error::{BudgetError, above_0};

/// A plan's step: how long it takes, and what all GPUs of the job draw meanwhile on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds of a step.
    pub time_s: f64,
    /// Watts: the energy of the step over its time.
    pub power_w: f64,
    /// The caller's name for it: the plan's place in its frontier, a clock in MHz.
    pub tag: u32,
}

/// By this share a point draws less than a faster one at least.
const LESS: f64 = 1e-6;

/// How a job is steered along its curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// Plans of a measured frontier.
    #[default]
    Plans,
    /// One clock for everything: the job has no frontier.
    UniformClocks,
    /// Power limits: its clocks cannot be set.
    PowerLimits,
}

/// The points of a job that are worth running: the longer a step, the less power.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    steering: Steering,
    points: Vec<Point>,
    /// Places in `points` of the corners of the lower hull of lost speed over power, fastest first.
    corners: Vec<u32>,
    /// For each edge of the hull, the share of speed that a watt costs; rising.
    prices: Vec<f64>,
    /// Whether points were left out because they are slower than allowed.
    is_cut: bool,
    /// The place after which points are taken from a law, if there are such.
    assumed: Option<usize>,
}

impl Curve {
    /// The curve of measured points in any order. Of these, the ones that are slower than `slowest`
    /// times the fastest are left out, and those that draw no less than a faster one.
    ///
    /// # Errors
    /// If there is no point, or a number is not above 0 and finite, or `slowest` is below 1.
    pub fn new(
        points: impl IntoIterator<Item = Point>,
        slowest: Option<f64>,
    ) -> Result<Self, BudgetError> {
        Self::steered(Steering::Plans, points, slowest)
    }

    /// The same for points that are reached in another way than by plans.
    ///
    /// # Errors
    /// Those of [`Curve::new`].
    pub fn steered(
        steering: Steering,
        points: impl IntoIterator<Item = Point>,
        slowest: Option<f64>,
    ) -> Result<Self, BudgetError> {
        let mut all: Vec<Point> = points.into_iter().collect();
        for (place, point) in all.iter().enumerate() {
            let of = || format!("point {place}");
            above_0("the time", of, point.time_s)?;
            above_0("the power", of, point.power_w)?;
        }
        all.sort_unstable_by(|a, b| {
            let by_power = a.power_w.total_cmp(&b.power_w);
            a.time_s.total_cmp(&b.time_s).then(by_power).then(a.tag.cmp(&b.tag))
        });
        let fastest_s = all.first().ok_or(BudgetError::NoPoint)?.time_s;
        let slowest = slowest.unwrap_or(f64::INFINITY);
        if slowest.is_nan() || slowest < 1.0 {
            return Err(BudgetError::BadNumber {
                name: "the floor",
                of: "a job".into(),
                value: slowest,
                expected: "at least 1: so many times its shortest step",
            });
        }
        let mut least_w = f64::INFINITY;
        all.retain(|point| {
            let is_less = point.power_w < least_w;
            least_w = least_w.min(point.power_w);
            is_less
        });
        let allowed = all.partition_point(|point| point.time_s <= slowest * fastest_s);
        let is_cut = allowed < all.len();
        all.truncate(allowed);
        all.shrink_to_fit();
        let (corners, prices) = lower_hull(&all);
        let assumed = (steering == Steering::UniformClocks).then_some(0);
        Ok(Self { steering, points: all, corners, prices, is_cut, assumed })
    }

    /// The same curve, of which the points with such tags, its slowest ones, are taken from a law.
    #[must_use]
    pub fn assumed_where(self, is_assumed: impl Fn(u32) -> bool) -> Self {
        let first = self.points.iter().position(|point| is_assumed(point.tag));
        Self { assumed: first.map(|first| first.saturating_sub(1)), ..self }
    }

    /// The place from which on all slower points are a law's.
    pub(crate) fn assumed(&self) -> Option<usize> {
        self.assumed
    }

    /// How the job is steered.
    pub fn steering(&self) -> Steering {
        self.steering
    }

    /// The points, fastest first: times rise and powers fall.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The share of its speed that a job loses at a point: 0 at the fastest, below 1.
    pub fn lost(&self, place: usize) -> f64 {
        1.0 - self.points[0].time_s / self.points[place].time_s
    }

    /// Whether slower points exist and are not allowed.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The place of the slowest point.
    pub fn last(&self) -> usize {
        self.points.len() - 1
    }

    /// The corners of its lower hull, which a decision needs: at most this many, spread from the fastest to
    /// the slowest.
    pub fn convex(&self, most: usize) -> Vec<Point> {
        let last = self.corners.len() - 1;
        let steps = last.min(most.max(2) - 1);
        let corner = |step: usize| self.points[self.corner(step * last / steps.max(1))];
        (0..=steps).map(corner).collect()
    }

    /// The same points with other powers: each is multiplied by what the function says of its place. One that
    /// then drew no less than a faster one is taken to draw a little less: places stay what they are.
    pub(crate) fn scaled(&self, factor: impl Fn(usize) -> f64) -> Self {
        let mut points = self.points.clone();
        let mut least_w = f64::INFINITY;
        for (place, point) in points.iter_mut().enumerate() {
            point.power_w = (point.power_w * factor(place)).min(least_w);
            least_w = point.power_w * (1.0 - LESS);
        }
        let (corners, prices) = lower_hull(&points);
        let Self { steering, is_cut, assumed, .. } = *self;
        Self { steering, points, corners, prices, is_cut, assumed }
    }

    /// The fastest place, from the given one or a faster one on, that draws no more than this.
    pub(crate) fn fastest_within(&self, power_w: f64) -> Option<usize> {
        let place = self.points.partition_point(|point| point.power_w > power_w);
        (place < self.points.len()).then_some(place)
    }

    pub(crate) fn corner(&self, corner: usize) -> usize {
        self.corners[corner] as usize
    }

    pub(crate) fn prices(&self) -> &[f64] {
        &self.prices
    }
}

/// The corners of the lower hull of lost speed over power, and the prices of its edges. A monotone
/// chain (Andrew 1979) that compares the very prices it keeps, so that these rise in floating point,
/// too.
fn lower_hull(points: &[Point]) -> (Vec<u32>, Vec<f64>) {
    let fastest_s = points[0].time_s;
    let price = |from: u32, to: u32| {
        let (from, to) = (points[from as usize], points[to as usize]);
        // 1/from - 1/to without the cancellation.
        let lost = (to.time_s - from.time_s) / from.time_s * (fastest_s / to.time_s);
        lost / (from.power_w - to.power_w)
    };
    let (mut corners, mut prices) = (vec![0], Vec::new());
    for place in 1..points.len() as u32 {
        let mut last = price(corners[corners.len() - 1], place);
        while prices.last().is_some_and(|&before| before >= last) {
            corners.pop();
            prices.pop();
            last = price(corners[corners.len() - 1], place);
        }
        corners.push(place);
        prices.push(last);
    }
    corners.shrink_to_fit();
    prices.shrink_to_fit();
    (corners, prices)
}
