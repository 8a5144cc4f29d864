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
}

impl Policy {
    pub(crate) const ALL: [Self; 4] =
        [Self::Frontiers, Self::EqualCaps, Self::ProportionalCaps, Self::OneClock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frontiers => "frontiers",
            Self::EqualCaps => "equal caps",
            Self::ProportionalCaps => "proportional caps",
            Self::OneClock => "one clock for all",
        }
    }

    /// Sets the clocks of all jobs.
    pub(crate) fn set(self, slots: &mut [Slot<'_>], limit_w: f64) {
        let mut jobs: Vec<&mut Running> =
            slots.iter_mut().filter_map(|slot| slot.job.as_mut()).collect();
        let full_w = |job: &Running| job.factor() * job.uniform.points()[0].power_w;
        let gpus: f64 = jobs.iter().map(|job| job.gpus).sum();
        let all_w: f64 = jobs.iter().map(|job| full_w(job)).sum();
        let at_clock = |job: &Running, share: u32| {
            let points = job.uniform.points();
            points.iter().position(|point| point.tag <= share).unwrap_or(points.len() - 1)
        };
        let one_clock = (1..=200).rev().map(|share| 5 * share).find(|&share| {
            let watts =
                |job: &Running| job.factor() * job.uniform.points()[at_clock(job, share)].power_w;
            jobs.iter().map(|job| watts(job)).sum::<f64>() <= limit_w
        });
        for job in &mut jobs {
            job.place = match self {
                Self::Frontiers | Self::OneClock => at_clock(job, one_clock.unwrap_or(0)),
                Self::EqualCaps => within(job, limit_w / gpus * job.gpus),
                Self::ProportionalCaps => within(job, limit_w / all_w * full_w(job)),
            };
        }
    }
}

fn within(job: &Running, cap_w: f64) -> usize {
    let points = job.uniform.points();
    let fits = points.iter().position(|point| job.factor() * point.power_w <= cap_w);
    fits.unwrap_or(points.len() - 1)
}
