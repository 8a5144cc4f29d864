//! Some GPUs of the cluster, and the job on them.

use fastrand::Rng;
use pfo_budget::{Curve, Job, Point, Seen};

use crate::cluster::kind::Kind;
use crate::cluster::policy::Policy;

/// Standard deviations of what a job draws over its curve, and of each reading of its counters.
const LEVEL: f64 = 0.03;
const READING: f64 = 0.01;
/// What a node that lies admits of its power, and how many slots it takes to find one.
const ADMITTED: f64 = 0.75;
const LIES: usize = 40;
/// What a straggler makes of steps and of power.
const STRAGGLES: (f64, f64) = (1.2, 0.93);

pub(crate) struct Slot<'a> {
    kind: &'a Kind,
    number: usize,
    random: Rng,
    pub(crate) job: Option<Running>,
    next_job_s: f64,
    jobs: usize,
    changes: usize,
}

/// A job that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    plans: Curve,
    pub(crate) uniform: Curve,
    is_uniform: bool,
    pub(crate) gpus: f64,
    level: f64,
    drift: f64,
    read: Option<f64>,
    pub(crate) place: usize,
    pub(crate) ordered: Option<usize>,
    left_s: f64,
    straggles_s: f64,
    ends_s: f64,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(kind: &'a Kind, number: usize, seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        Self { kind, number, random, job: None, next_job_s: 0.0, jobs: 0, changes: 0 }
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
        job.straggles_s -= seconds;
        job.left_s -= seconds;
        while job.left_s <= 0.0 {
            if let Some(place) = job.ordered.take().filter(|&place| place != job.place) {
                job.place = place;
                self.changes += 1;
            }
            job.left_s += job.step_s();
        }
        let lies = if self.number % LIES == 7 { ADMITTED } else { 1.0 };
        job.read = Some(lies * job.power_w() * (1.0 + READING * normal(random)));
    }

    fn begin(&mut self, at_s: f64, policy: Policy) -> Running {
        self.jobs += 1;
        let random = &mut self.random;
        let longer = 1.0 + 5.0 * random.f64();
        let scaled = |point: &Point| Point { time_s: longer * point.time_s, ..*point };
        let curve = |points: &[Point]| Curve::new(points.iter().map(scaled), None).unwrap();
        let is_first = self.jobs == 1;
        // The first ones have begun long ago.
        let lasts_s = if is_first { 7200.0 * random.f64() } else { 900.0 + 5400.0 * random.f64() };
        Running {
            name: format!("{}-{}", self.number, self.jobs),
            plans: curve(&self.kind.plans),
            uniform: curve(&self.kind.uniform),
            is_uniform: policy != Policy::Frontiers,
            gpus: self.kind.gpus,
            level: 1.0 + LEVEL * normal(random),
            drift: 0.0,
            read: None,
            place: 0,
            ordered: None,
            left_s: 3.0 * longer * random.f64(),
            straggles_s: 0.0,
            ends_s: at_s + lasts_s,
        }
    }

    pub(crate) fn seen(&self) -> Option<Seen<'_>> {
        let job = self.job.as_ref()?;
        Some(Seen {
            name: &job.name,
            curve: &job.plans,
            weight: job.gpus,
            running: Some(job.place),
            measured_w: job.read,
            is_held: false,
            has_floor: false,
            is_limited: false,
        })
    }
}

impl Running {
    fn curve(&self) -> &Curve {
        if self.is_uniform { &self.uniform } else { &self.plans }
    }

    fn straggling(&self) -> (f64, f64) {
        if self.straggles_s > 0.0 { STRAGGLES } else { (1.0, 1.0) }
    }

    /// What it draws over what its curve says.
    pub(crate) fn factor(&self) -> f64 {
        self.level * (1.0 + self.drift) * self.straggling().1
    }

    pub(crate) fn power_w(&self) -> f64 {
        self.factor() * self.curve().points()[self.place].power_w
    }

    pub(crate) fn step_s(&self) -> f64 {
        self.straggling().0 * self.curve().points()[self.place].time_s
    }

    /// Weighted progress a second, against the fastest plan of its frontier.
    pub(crate) fn speed(&self) -> f64 {
        self.gpus * self.plans.points()[0].time_s / self.step_s()
    }

    /// The job to somebody who knows everything.
    pub(crate) fn as_it_is<'a>(&'a self, curve: &'a Curve) -> Job<'a> {
        Job { name: &self.name, curve, weight: self.gpus / self.straggling().0 }
    }

    /// Its plans as they are.
    pub(crate) fn true_plans(&self) -> Curve {
        let power_w = |point: Point| self.factor() * point.power_w;
        let points = self.plans.points().iter();
        Curve::new(points.map(|&point| Point { power_w: power_w(point), ..point }), None).unwrap()
    }
}

/// Nearly of the standard normal distribution: the sum of twelve.
pub(crate) fn normal(random: &mut Rng) -> f64 {
    (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
}
