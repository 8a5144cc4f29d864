//! Whether a GPU does what is asked of it: a driver may accept a lock and ignore it, and another program
//! may set another.

use std::time::Duration;

use pfo_protocol::{GpuStatus, PlanStatus, Stage};

/// Looks at a GPU above its lock that are no chance: it may settle, or change its clock, during one.
const SURE: u32 = 10;

/// A lock holds if the GPU is this little above it: further than the clocks of any model are apart, in MHz.
const NEAR_MHZ: u32 = 30;

/// How long after a change to look first: until then, a GPU may show what it was asked for before.
pub const SET_WITHIN: Duration = Duration::from_millis(200);

/// Whether a GPU runs above its lock. One that is below it is held back, and does no less than its plan
/// says.
#[must_use]
pub fn is_above_lock(gpu: &GpuStatus) -> bool {
    let both = gpu.requested_mhz.zip(gpu.observed_mhz);
    both.is_some_and(|(lock, now)| now.0 > lock.0.saturating_add(NEAR_MHZ))
}

/// What a plan asks of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No lock.
    DefaultClocks,
    /// A power limit, in watts. A lower one that a budget needs will do.
    PowerLimit(u32),
    /// A lock for each instruction, or one for all.
    Locks,
}

impl Asked {
    /// What a job's plan asks of the GPUs of a stage.
    #[must_use]
    pub fn by(plan: Option<&PlanStatus>, stage: Stage) -> Self {
        let Some(plan) = plan else { return Self::DefaultClocks };
        plan.power_limits_w.get(stage.index()).copied().map_or(Self::Locks, Self::PowerLimit)
    }
}

/// What the looks at a GPU have shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    above: u32,
    held: bool,
}

impl Looks {
    /// Adds one.
    pub fn add(&mut self, asked: Asked, gpu: &GpuStatus) {
        let is_above = asked == Asked::Locks && is_above_lock(gpu);
        self.above = self.above.saturating_add(u32::from(is_above));
        self.held |= match asked {
            Asked::DefaultClocks => gpu.requested_mhz.is_none(),
            Asked::PowerLimit(limit_w) => gpu.power_limit_w.is_some_and(|now_w| now_w <= limit_w),
            Asked::Locks => gpu.requested_mhz.is_some() && !is_above,
        };
    }

    /// Whether one has shown that the GPU does what is asked of it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.held
    }

    /// Why what is asked of a GPU is not in force, as far as no look has shown it.
    #[must_use]
    pub fn missing(self, asked: Asked, gpu: &GpuStatus) -> Option<String> {
        if self.held {
            return None;
        }
        match asked {
            Asked::DefaultClocks => Some(format!("it is still locked to {}", gpu.requested_mhz?)),
            Asked::PowerLimit(limit_w) => {
                Some(format!("its power limit of {limit_w} W is not set"))
            }
            Asked::Locks => {
                let (lock, now) = gpu.requested_mhz.zip(gpu.observed_mhz)?;
                (self.above >= SURE).then(|| {
                    format!(
                        "it runs at {now} although pfod has locked {lock}: another program has set \
                         its clock, or the driver ignores the lock"
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Mhz, Status};

    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../ctl/tests/golden/status.json")).unwrap()
    }

    fn gpu(requested: Option<u32>, observed: u32, power_limit_w: Option<u32>) -> GpuStatus {
        let gpu = status().gpus.into_iter().next().unwrap();
        let [requested_mhz, observed_mhz] = [requested, Some(observed)].map(|mhz| mhz.map(Mhz));
        GpuStatus { requested_mhz, observed_mhz, power_limit_w, ..gpu }
    }

    fn missing(asked: Asked, gpu: &GpuStatus) -> Option<String> {
        let mut looks = Looks::default();
        looks.add(asked, gpu);
        assert_eq!(looks.is_held(), looks.missing(asked, gpu).is_none());
        looks.missing(asked, gpu)
    }

    #[test]
    fn a_lock_is_ignored_only_if_no_look_has_shown_it() {
        let ignored = |observed: &[u32]| {
            let (mut looks, gpu) = (Looks::default(), |now| gpu(Some(900), now, None));
            observed.iter().for_each(|now| looks.add(Asked::Locks, &gpu(*now)));
            looks.missing(Asked::Locks, &gpu(1410)).is_some()
        };
        assert!(ignored(&[1410; SURE as usize]));
        assert!(!ignored(&[1410; SURE as usize - 1]), "it may be settling");
        let held = [[1410; SURE as usize].as_slice(), &[930]].concat();
        assert!(!ignored(&held));
    }

    #[test]
    fn a_gpu_that_has_no_lock_yet_shows_nothing() {
        let (mut looks, gpu) = (Looks::default(), gpu(None, 1410, None));
        for _ in 0..SURE {
            looks.add(Asked::Locks, &gpu);
        }
        assert!(!looks.is_held() && looks.missing(Asked::Locks, &gpu).is_none());
    }

    #[test]
    fn a_power_limit_that_is_not_set_and_a_lock_that_stays_are_named() {
        let limit = Some("its power limit of 150 W is not set".to_owned());
        for (now_w, why) in [(None, &limit), (Some(200), &limit), (Some(140), &None)] {
            assert_eq!(missing(Asked::PowerLimit(150), &gpu(None, 1410, now_w)), *why);
        }
        let stays = Some("it is still locked to 900 MHz".to_owned());
        for (lock, why) in [(Some(900), &stays), (None, &None)] {
            assert_eq!(missing(Asked::DefaultClocks, &gpu(lock, 900, None)), *why);
        }
    }

    #[test]
    fn a_plan_asks_for_the_limit_of_its_stage_or_for_locks() {
        let mut plan = status().jobs.into_iter().find_map(|job| job.plan).unwrap();
        plan.power_limits_w = vec![150, 170];
        assert_eq!(Asked::by(Some(&plan), Stage(1)), Asked::PowerLimit(170));
        plan.power_limits_w.clear();
        assert_eq!(Asked::by(Some(&plan), Stage(1)), Asked::Locks);
        assert_eq!(Asked::by(None, Stage(1)), Asked::DefaultClocks);
    }
}
