//! Some GPUs of the cluster, and the job on them.

use fastrand::Rng;
use pfo_budget::{Curve, Job, Point, Seen};

use crate::cluster::kind::{Kind, LOWER};
use crate::cluster::law::Law;
use crate::cluster::policy::Policy;

/// Standard deviations of what a job draws over its curve, and of each reading of its counters.
const LEVEL: f64 = 0.03;
const READING: f64 = 0.01;
/// What a node that lies admits of its power, and how many slots it takes to find one.
const ADMITTED: f64 = 0.75;
const LIES: usize = 40;
/// What a straggler makes of steps and of power.
const STRAGGLES: (f64, f64) = (1.2, 0.93);
/// How often a job stalls (data, a checkpoint), for how long, and the share of its power that it draws then.
const STALLS_AN_HOUR: f64 = 2.0;
const STALL_S: f64 = 20.0;
const STALLED: f64 = 0.35;
/// Steps after which a job without a frontier is known at its own clocks.
const KNOWN_AFTER: u32 = 3;

pub(crate) struct Slot<'a> {
    kind: &'a Kind,
    number: usize,
    has_frontier: bool,
    random: Rng,
    pub(crate) job: Option<Running>,
    next_job_s: f64,
    jobs: usize,
    changes: usize,
}

/// A job that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    /// What it can run under this policy, as it is, fastest first; and under this crate.
    points: Vec<Point>,
    ours: Vec<Point>,
    /// What is known of it if it has no frontier.
    law: Option<Law>,
    pub(crate) gpus: f64,
    level: f64,
    drift: f64,
    read: Option<f64>,
    pub(crate) place: usize,
    /// The tag of the point that the controller ordered.
    pub(crate) ordered: Option<u32>,
    left_s: f64,
    straggles_s: f64,
    stalls_s: f64,
    ends_s: f64,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(kind: &'a Kind, number: usize, has_frontier: bool, seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        let (job, next_job_s, jobs, changes) = (None, 0.0, 0, 0);
        Self { kind, number, has_frontier, random, job, next_job_s, jobs, changes }
    }

    pub(crate) fn gpus(&self) -> f64 {
        self.kind.gpus
    }

    /// How often its job has changed since this was asked.
    pub(crate) fn changes(&mut self) -> usize {
        std::mem::take(&mut self.changes)
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, seconds: f64, at_s: f64, policy: Policy) {
        if self.job.as_ref().is_some_and(|job| job.ends_s <= at_s) {
            self.job = None;
            self.next_job_s = at_s + 30.0 + 300.0 * self.random.f64();
        }
        if self.job.is_none() && self.next_job_s <= at_s {
            self.job = Some(self.begin(at_s, policy));
        }
        let Some(job) = &mut self.job else { return };
        let random = &mut self.random;
        job.drift = 0.95 * job.drift + 0.003 * normal(random);
        if random.f64() < seconds / 3600.0 {
            job.straggles_s = 300.0;
        }
        if random.f64() < STALLS_AN_HOUR * seconds / 3600.0 {
            job.stalls_s = STALL_S;
        }
        job.straggles_s -= seconds;
        if job.stalls_s > 0.0 {
            job.stalls_s -= seconds;
            // No step ends, and so nothing is read.
            job.read = None;
            return;
        }
        job.left_s -= seconds;
        while job.left_s <= 0.0 {
            let step_s = job.step_s();
            if let Some(law) = &mut job.law {
                law.ran(job.points[job.place], step_s);
            }
            let place = job.ordered.take().and_then(|tag| job.place_of(tag));
            if let Some(place) = place.filter(|&place| place != job.place) {
                job.place = place;
                self.changes += 1;
                if let Some(law) = &mut job.law {
                    law.changed();
                }
            }
            job.left_s += job.step_s();
        }
        let lies = if self.number % LIES == 7 { ADMITTED } else { 1.0 };
        job.read = Some(lies * job.power_w() * (1.0 + READING * normal(random)));
        if let (Some(law), Some(power_w)) = (&mut job.law, job.read) {
            law.know(power_w, KNOWN_AFTER);
        }
    }

    fn begin(&mut self, at_s: f64, policy: Policy) -> Running {
        self.jobs += 1;
        let random = &mut self.random;
        let longer = 1.0 + 5.0 * random.f64();
        let is_first = self.jobs == 1;
        // The first ones have begun long ago.
        let lasts_s = if is_first { 7200.0 * random.f64() } else { 900.0 + 5400.0 * random.f64() };
        let plans = self.kind.plans_and_lower_clocks();
        let ours = if self.has_frontier { &plans } else { &self.kind.uniform };
        let points = match policy {
            Policy::Frontiers => ours,
            Policy::Steering => &self.kind.steered,
            _ => &self.kind.uniform,
        };
        let scaled = |point: &Point| Point { time_s: longer * point.time_s, ..*point };
        let fastest_first = |points: &[Point]| {
            let mut points: Vec<Point> = points.iter().map(scaled).collect();
            points.sort_by(|a, b| {
                a.time_s.total_cmp(&b.time_s).then(b.power_w.total_cmp(&a.power_w))
            });
            points
        };
        Running {
            name: format!("{}-{}", self.number, self.jobs),
            points: fastest_first(points),
            ours: fastest_first(ours),
            law: (policy == Policy::Frontiers && !self.has_frontier).then(Law::default),
            gpus: self.kind.gpus,
            level: 1.0 + LEVEL * normal(random),
            drift: 0.0,
            read: None,
            place: 0,
            ordered: None,
            left_s: 3.0 * longer * random.f64(),
            straggles_s: 0.0,
            stalls_s: 0.0,
            ends_s: at_s + lasts_s,
        }
    }
}

impl Running {
    /// What is known of what it can run.
    pub(crate) fn known(&self) -> Curve {
        match &self.law {
            Some(law) => law.curve(&self.points),
            None => Curve::new(self.points.iter().copied(), None)
                .unwrap()
                .assumed_where(|tag| tag >= LOWER),
        }
    }

    pub(crate) fn seen<'b>(&'b self, curve: &'b Curve) -> Seen<'b> {
        let tag = self.points[self.place].tag;
        Seen {
            name: &self.name,
            curve,
            weight: self.gpus,
            running: curve.points().iter().position(|point| point.tag == tag),
            measured_w: self.read,
            is_held: self.law.as_ref().is_some_and(|law| !law.is_known()),
            has_floor: false,
            is_limited: false,
        }
    }

    fn place_of(&self, tag: u32) -> Option<usize> {
        self.points.iter().position(|point| point.tag == tag)
    }

    /// What it can run, as its points are without what makes it draw more or less now.
    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    fn straggling(&self) -> (f64, f64) {
        if self.straggles_s > 0.0 { STRAGGLES } else { (1.0, 1.0) }
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalls_s > 0.0
    }

    /// What it draws over what its curve says.
    pub(crate) fn factor(&self) -> f64 {
        let stalled = if self.is_stalled() { STALLED } else { 1.0 };
        self.level * (1.0 + self.drift) * self.straggling().1 * stalled
    }

    pub(crate) fn power_w(&self) -> f64 {
        self.factor() * self.points[self.place].power_w
    }

    /// What it would draw without a budget.
    pub(crate) fn full_w(&self) -> f64 {
        self.factor() * self.points[0].power_w
    }

    pub(crate) fn step_s(&self) -> f64 {
        self.straggling().0 * self.points[self.place].time_s
    }

    /// Weighted progress a second, against the fastest that it has.
    pub(crate) fn speed(&self) -> f64 {
        match self.is_stalled() {
            true => 0.0,
            false => self.gpus * self.ours[0].time_s / self.step_s(),
        }
    }

    /// The job to somebody who knows everything.
    pub(crate) fn as_it_is<'b>(&'b self, curve: &'b Curve) -> Job<'b> {
        Job { name: &self.name, curve, weight: self.gpus / self.straggling().0 }
    }

    /// Its points as they are.
    pub(crate) fn true_points(&self) -> Curve {
        let power_w = |point: Point| self.factor() * point.power_w;
        let points = self.ours.iter();
        Curve::new(points.map(|&point| Point { power_w: power_w(point), ..point }), None).unwrap()
    }
}

/// Nearly of the standard normal distribution: the sum of twelve.
pub(crate) fn normal(random: &mut Rng) -> f64 {
    (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
}
