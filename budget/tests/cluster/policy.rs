//! What else keeps a cluster below a budget. All of them know what every job really draws, act at once, and
//! run one clock on all GPUs of a job.

use crate::cluster::slot::{Running, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// This crate, which knows counters only.
    Frontiers,
    /// The same cap for every GPU that has a job.
    EqualCaps,
    /// The same share of what it would draw for every job.
    ProportionalCaps,
    /// The same share of its highest clock for every GPU.
    OneClock,
    /// What GPUs leave of their shares goes to those that need more, GPU by GPU, until all that are limited have
    /// the same limit: what power managers of facilities steer to, by what each GPU draws.
    Steering,
}

impl Policy {
    pub(crate) const ALL: [Self; 5] =
        [Self::Frontiers, Self::EqualCaps, Self::ProportionalCaps, Self::OneClock, Self::Steering];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frontiers => "frontiers",
            Self::EqualCaps => "equal caps",
            Self::ProportionalCaps => "proportional caps",
            Self::OneClock => "one clock for all",
            Self::Steering => "steering by draw",
        }
    }

    /// Sets the clocks of all jobs.
    pub(crate) fn set(self, slots: &mut [Slot<'_>], limit_w: f64) {
        let mut jobs: Vec<&mut Running> =
            slots.iter_mut().filter_map(|slot| slot.job.as_mut()).collect();
        let gpus: f64 = jobs.iter().map(|job| job.gpus).sum();
        let all_w: f64 = jobs.iter().map(|job| job.full_w()).sum();
        let fits = |place: &dyn Fn(&Running) -> usize| {
            jobs.iter().map(|job| job.factor() * job.points()[place(job)].power_w).sum::<f64>()
                <= limit_w
        };
        // In thousandths of the highest clock, and in watts of a GPU.
        let clock = (1..=1000).rev().find(|&share| fits(&|job| at_most(job, share)));
        let level = (1..=1000).rev().find(|&level| fits(&|job| steered(job, level)));
        for job in &mut jobs {
            job.place = match self {
                Self::Frontiers | Self::OneClock => at_most(job, clock.unwrap_or(0)),
                Self::Steering => steered(job, level.unwrap_or(0)),
                Self::EqualCaps => within(job, limit_w / gpus * job.gpus),
                Self::ProportionalCaps => within(job, limit_w / all_w * job.full_w()),
            };
        }
    }
}

/// The first point with at most this tag.
fn at_most(job: &Running, tag: u32) -> usize {
    let points = job.points();
    points.iter().position(|point| point.tag <= tag).unwrap_or(points.len() - 1)
}

/// The same for a level of watts, which a job that draws more or less reaches sooner or later.
fn steered(job: &Running, level: u32) -> usize {
    at_most(job, (f64::from(level) / job.factor()) as u32)
}

fn within(job: &Running, cap_w: f64) -> usize {
    let points = job.points();
    let fits = points.iter().position(|point| job.factor() * point.power_w <= cap_w);
    fits.unwrap_or(points.len() - 1)
}
