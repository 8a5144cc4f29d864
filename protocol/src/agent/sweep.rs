//! Sweeps: a job runs one clock after the other, from the highest down, and what its instructions
//! take at each becomes a profile that the daemon stores.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{JobName, Mhz, Uid};

use crate::job::JobSelector;
use crate::range::{OutOfRange, within};

/// How to sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedSettings")]
pub struct SweepSettings {
    /// Steps that are measured at each clock; at least 1. More are where the energy counter needs
    /// them.
    pub steps: u32,
    /// Steps that are left out after each change of the clock; at least 1.
    pub settling_steps: u32,
    /// Neighbouring clocks of the sweep are at least so far apart, in MHz.
    pub stride_mhz: Mhz,
    /// No clock below this is tried, in MHz.
    pub min_mhz: Mhz,
    /// Ends the sweep after the first clock at which a step takes more than this share longer than
    /// at default clocks, which are then measured first.
    pub max_slowdown: Option<f64>,
}

impl SweepSettings {
    /// The measured or settling steps that each clock may have.
    pub const STEPS: RangeInclusive<u32> = 1..=10_000;
}

#[derive(Deserialize)]
struct UncheckedSettings {
    steps: u32,
    settling_steps: u32,
    stride_mhz: Mhz,
    min_mhz: Mhz,
    max_slowdown: Option<f64>,
}

/// A setting of a sweep that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SweepSettingsError {
    /// Too few or too many steps.
    #[error("{0}")]
    Steps(#[from] OutOfRange<u32>),
    /// A clock, or a distance of clocks, beyond that of any GPU.
    #[error("{0}")]
    Clock(#[from] OutOfRange<Mhz>),
    /// A slowdown that no sweep can watch.
    #[error("{0}")]
    Slowdown(#[from] OutOfRange<f64>),
}

impl TryFrom<UncheckedSettings> for SweepSettings {
    type Error = SweepSettingsError;

    fn try_from(unchecked: UncheckedSettings) -> Result<Self, SweepSettingsError> {
        let UncheckedSettings { steps, settling_steps, stride_mhz, min_mhz, max_slowdown } =
            unchecked;
        within("the number of measured steps", steps, Self::STEPS)?;
        within("the number of settling steps", settling_steps, Self::STEPS)?;
        within("the stride", stride_mhz, Mhz(0)..=Mhz::MAX)?;
        within("the lowest clock", min_mhz, Mhz(0)..=Mhz::MAX)?;
        if let Some(share) = max_slowdown {
            within("the largest slowdown", share, 0.0..=100.0)?;
        }
        Ok(Self { steps, settling_steps, stride_mhz, min_mhz, max_slowdown })
    }
}

/// A profile to measure, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepOrder {
    /// The job to sweep.
    pub job: JobSelector,
    /// The model that it trains; none if that is called like the job.
    pub model: Option<JobName>,
    /// How to sweep.
    pub settings: SweepSettings,
    /// Begin nothing if a profile of the same is stored.
    pub reuse: bool,
}

/// What is to become of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SweepControl {
    /// Let the job run at default clocks, and keep what was measured so far.
    Pause,
    /// Continue where it was paused.
    Resume,
    /// End it and forget what it measured.
    Stop,
    /// End it and store the profile of what it measured.
    Finish,
}

/// What a profile is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Whose job was measured.
    pub uid: Uid,
    /// The model that it trained, as its user calls it.
    pub model: JobName,
    /// The models of its GPUs.
    pub gpus: String,
    /// How the model was divided among them.
    pub partition: String,
}

impl ProfileKey {
    /// How a model is named that is divided into so many stages, replicas and tensor-parallel ranks, all of
    /// which the profile has.
    #[must_use]
    pub fn partition_of(pp: u32, dp: u32, tp: u32, microbatches: u32) -> String {
        format!("pp{pp}-dp{dp}-tp{tp}-mb{microbatches}")
    }
}

/// A profile in the daemon's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredProfile {
    /// What it is of.
    pub key: ProfileKey,
    /// When its measurement ended, in seconds since 1970.
    pub measured_unix_s: u64,
    /// How large it is.
    pub bytes: u64,
}

/// The one stored profile that fits all of this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileSelector {
    /// The model that was trained.
    pub model: JobName,
    /// Whose job; none means the peer's own or, for an administrator, any user's.
    pub uid: Option<Uid>,
    /// The models of the GPUs, if there is more than one profile.
    pub gpus: Option<String>,
    /// How the model was divided among them, if there is more than one profile.
    pub partition: Option<String>,
}

/// A sweep, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepStatus {
    /// The job.
    pub job: JobName,
    /// What its profile is or will be stored as.
    pub profile: ProfileKey,
    /// How it sweeps.
    pub settings: SweepSettings,
    /// What it does.
    pub state: SweepState,
    /// The clock that is being measured or comes next, in MHz; none at default clocks or at its
    /// end.
    pub mhz: Option<Mhz>,
    /// Clocks that were measured.
    pub measured: u32,
    /// Clocks that there are; energy that rises may end the sweep before the last one.
    pub clocks: u32,
    /// Clocks that the GPUs do not hold, and why, in words.
    pub remark: Option<String>,
    /// The median time of a step at the last clock that was measured, in seconds.
    pub step_time_s: Option<f64>,
    /// The same at default clocks, if the sweep is to compare with them.
    pub default_step_time_s: Option<f64>,
    /// How long it will still take at most, in seconds, once it is known.
    pub remaining_s: Option<f64>,
    /// Whether it is paused because the driver of a GPU did not do what a trial asked of it.
    #[serde(default)]
    pub not_in_force: bool,
}

/// What a sweep does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepState {
    /// It measures.
    Running,
    /// It cannot measure now, and tries again by itself.
    Waiting {
        /// Why.
        why: String,
    },
    /// It continues on request.
    Paused {
        /// Why, unless it was requested.
        why: Option<String>,
    },
    /// It is over.
    Ended(SweepEnd),
}

/// Why a sweep is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepEnd {
    /// The energy of every instruction has risen with every lower clock of late. The profile is
    /// stored.
    EnergyRises,
    /// There is no lower clock. The profile is stored.
    LowestClock,
    /// The job became slower than it may. The profile is stored.
    TooSlow,
    /// Stopped on request. Nothing is stored.
    Stopped,
    /// Finished on request. The profile is stored.
    Finished,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    const SETTINGS: SweepSettings = SweepSettings {
        steps: 10,
        settling_steps: 1,
        stride_mhz: Mhz(30),
        min_mhz: Mhz(0),
        max_slowdown: Some(0.1),
    };

    fn decoded(settings: SweepSettings) -> Result<SweepSettings, String> {
        let mut bytes = Vec::new();
        codec::append(&settings, &mut bytes).unwrap();
        codec::decode(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_within_their_bounds_are_decoded_and_no_others_are() {
        assert_eq!(decoded(SETTINGS), Ok(SETTINGS));
        let wrong = [
            (SweepSettings { steps: 0, ..SETTINGS }, "measured steps is 0; it must be 1 to 10000"),
            (SweepSettings { settling_steps: 10_001, ..SETTINGS }, "settling steps is 10001"),
            (SweepSettings { stride_mhz: Mhz(u32::MAX), ..SETTINGS }, "stride is 4294967295 MHz"),
            (SweepSettings { min_mhz: Mhz(10_001), ..SETTINGS }, "lowest clock is 10001 MHz"),
            (SweepSettings { max_slowdown: Some(-0.1), ..SETTINGS }, "slowdown is -0.1"),
            (SweepSettings { max_slowdown: Some(f64::NAN), ..SETTINGS }, "slowdown is NaN"),
        ];
        for (settings, part) in wrong {
            let error = decoded(settings).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
