//! What a simulated machine is made of, and making it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::driver_version::DriverVersion;
use crate::error::SimError;
use crate::gpu_state::GpuState;
use crate::heat::Cooling;
use crate::identity::{GpuUuid, PciBusId};
use crate::like::Likeness;
use crate::model::GpuModel;
use crate::sensor::Sensor;
use crate::silicon::{Delay, Silicon};
use crate::state::file::StateFile;
use crate::state::layout::NONE;
use crate::units::MonotonicNs;

/// The most GPUs in one state.
pub const MOST_GPUS: usize = 64;

/// The directory of the device files of the machine in this state file.
pub fn devices(state: &Path) -> PathBuf {
    let mut path = state.as_os_str().to_owned();
    path.push(".dev");
    path.into()
}

/// The GPUs of a machine, written like `2xA100,1xV100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuList(pub Vec<GpuModel>);

impl FromStr for GpuList {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let wrong = |difference: String| SimError::GpuList {
            text: text.to_owned(),
            difference,
            models: GpuModel::names(),
        };
        let mut gpus = Vec::new();
        for item in text.split(',') {
            let (count, name) = match item.split_once(['x', 'X']) {
                Some((count, name)) if !count.trim().is_empty() => (count.trim(), name),
                _ => ("1", item),
            };
            // "RTX3090" has an x of its own.
            let (count, name) =
                if count.chars().all(|c| c.is_ascii_digit()) { (count, name) } else { ("1", item) };
            let count: usize =
                count.parse().map_err(|_| wrong(format!("{count:?} is not a number of GPUs")))?;
            let model = name
                .parse::<GpuModel>()
                .map_err(|_| wrong(format!("there is no model {:?}", name.trim())))?;
            if count == 0 || gpus.len().saturating_add(count) > MOST_GPUS {
                return Err(wrong(format!("there can be 1 to {MOST_GPUS} GPUs")));
            }
            gpus.extend(std::iter::repeat_n(model, count));
        }
        Ok(Self(gpus))
    }
}

/// A machine to make.
#[derive(Clone, Debug)]
pub struct MachinePlan {
    /// Its GPUs, in the order of their index.
    pub gpus: GpuList,
    /// Who may call setters beside root.
    pub owner_uid: Option<u32>,
    /// Whether its GPUs are ideal, and not as real ones.
    pub ideal: bool,
    /// How long a set call blocks, if that is always the same.
    pub set_latency: Option<Duration>,
    /// From the acceptance of a call until the new clock, if that is always the same.
    pub settle: Option<Duration>,
    /// How often the energy counter is refreshed, if not as on the model.
    pub energy_refresh: Option<Duration>,
    /// When the energy counter looks, if not always.
    pub sensor: Option<Sensor>,
    /// How much longer work takes while the memory clock is locked, if not as on the model.
    pub memory_lock_slows_permille: Option<u64>,
    /// Whether a GPU that waits draws less at a lower clock, if not as on the model.
    pub waits_follow_the_clock: Option<bool>,
    /// Standard deviation of the time of equal work in millionths, if not as on the model.
    pub time_noise_ppm: Option<u64>,
    /// Whether the state of a GPU outlives its last user.
    pub persistence: bool,
    /// How well its GPUs are cooled.
    pub cooling: Cooling,
    /// Whether its GPUs are as warm as those that have worked for some minutes.
    pub warm: bool,
    /// The version of its driver.
    pub driver: DriverVersion,
    /// A measured GPU, which those of its model are like.
    pub like: Option<Likeness>,
    /// Machines of different seed have different UUIDs.
    pub seed: u64,
}

impl MachinePlan {
    /// A machine with these GPUs, which are as real ones.
    pub fn new(gpus: GpuList) -> Self {
        Self {
            gpus,
            owner_uid: None,
            ideal: false,
            set_latency: None,
            settle: None,
            energy_refresh: None,
            sensor: None,
            memory_lock_slows_permille: None,
            waits_follow_the_clock: None,
            time_noise_ppm: None,
            persistence: true,
            cooling: Cooling::Good,
            warm: false,
            driver: DriverVersion::default(),
            like: None,
            seed: 0,
        }
    }

    /// A machine with these GPUs, which are ideal.
    pub fn ideal(gpus: GpuList) -> Self {
        Self { ideal: true, ..Self::new(gpus) }
    }

    /// What a GPU of the machine is like.
    #[must_use]
    pub fn silicon(&self, model: GpuModel) -> Silicon {
        let ns = |duration: Duration| duration.as_nanos() as u64;
        let mut silicon = if self.ideal { Silicon::IDEAL } else { model.silicon() };
        if let Some(like) = self.like_of(model) {
            silicon = like.silicon(silicon);
        }
        if let Some(latency) = self.set_latency {
            silicon.set_call = Delay::always(ns(latency));
        }
        if let Some(settle) = self.settle {
            (silicon.settling, silicon.settling_to_low_permille) = (Delay::always(ns(settle)), 0);
        }
        silicon.energy_refresh_ns = self.energy_refresh.map_or(silicon.energy_refresh_ns, ns);
        silicon.heat = silicon.heat.with(self.cooling, model.facts().default_power_limit());
        silicon.sensor = self.sensor.unwrap_or(silicon.sensor);
        silicon.memory_lock_slows_permille =
            self.memory_lock_slows_permille.unwrap_or(silicon.memory_lock_slows_permille);
        silicon.waits_follow_the_clock =
            self.waits_follow_the_clock.unwrap_or(silicon.waits_follow_the_clock);
        silicon.time_noise_ppm = self.time_noise_ppm.unwrap_or(silicon.time_noise_ppm);
        silicon
    }

    /// The plan, if its GPUs fit what it says of one.
    ///
    /// # Errors
    /// If none is of the model that was measured.
    pub fn checked(self) -> Result<Self, SimError> {
        match &self.like {
            Some(like) if !self.gpus.0.contains(&like.model) => {
                Err(SimError::LikeNone { measured: like.facts.name })
            }
            _ => Ok(self),
        }
    }

    /// The measured GPU that GPUs of a model are like.
    fn like_of(&self, model: GpuModel) -> Option<&Likeness> {
        self.like.as_ref().filter(|like| like.model == model)
    }

    /// Makes the machine's state file and its device files in place of any older ones.
    pub fn create(&self, path: &Path) -> Result<(), SimError> {
        self.create_devices(&devices(path))?;
        let now = MonotonicNs::now();
        StateFile::create(path, self.gpus.0.len(), |state| {
            let header = state.header();
            header.owner_uid.store(self.owner_uid.unwrap_or(NONE), Ordering::Relaxed);
            header.driver.store(self.driver.to_word(), Ordering::Relaxed);
            for (gpu, (block, model)) in state.gpus().iter().zip(&self.gpus.0).enumerate() {
                let uuid = GpuUuid::of(self.seed, gpu);
                block.model.store(model.number(), Ordering::Relaxed);
                block.pci.store(PciBusId::of(gpu, self.gpus.0.len()).to_word(), Ordering::Relaxed);
                block.uuid[0].store(uuid.high, Ordering::Relaxed);
                block.uuid[1].store(uuid.low, Ordering::Relaxed);
                block.serial.store(uuid.serial(), Ordering::Relaxed);
                let silicon = self.silicon(*model);
                block.silicon.store(&silicon);
                block.facts.store(self.like_of(*model).map_or(model.facts(), |like| &like.facts));
                let mut state = GpuState::new(now, &silicon);
                state.persistence = self.persistence;
                if self.warm {
                    state.warmth = silicon.heat.when_warm();
                }
                block.state.publish(&state.to_words());
            }
        })
    }

    /// One plain file for each GPU, which every user can open until somebody takes that away.
    fn create_devices(&self, directory: &Path) -> Result<(), SimError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SimError::file(action, path, source)
        };
        match fs::remove_dir_all(directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(failed("replace", directory)(source));
            }
            _ => fs::create_dir(directory).map_err(failed("create", directory))?,
        }
        let open_to_all = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("open up", path))
        };
        for minor in 0..self.gpus.0.len() {
            let device = directory.join(format!("nvidia{minor}"));
            fs::write(&device, "").map_err(failed("create", &device))?;
            open_to_all(&device, 0o666)?;
        }
        open_to_all(directory, 0o755)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_has_a_device_file_for_all_users_and_none_of_an_older_machine_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        for count in [3, 2] {
            MachinePlan::new(GpuList(vec![GpuModel::A40; count])).create(&state).unwrap();
        }
        let mut modes: Vec<_> = fs::read_dir(devices(&state))
            .unwrap()
            .map(Result::unwrap)
            .map(|entry| (entry.file_name(), entry.metadata().unwrap().permissions().mode()))
            .collect();
        modes.sort();
        assert_eq!(modes, [("nvidia0".into(), 0o100_666), ("nvidia1".into(), 0o100_666)]);
    }

    #[test]
    fn a_list_of_gpus_is_read_mixed_and_without_counts() {
        let list = |text: &str| text.parse::<GpuList>().unwrap().0;
        assert_eq!(list("4xA100"), [GpuModel::A100; 4]);
        assert_eq!(list("2xA100, 1xV100"), [GpuModel::A100, GpuModel::A100, GpuModel::V100]);
        assert_eq!(list("RTX3090,2xRTX3090,h200").len(), 4);
        assert_eq!(list("3xRTX A6000"), [GpuModel::A6000; 3]);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_with_the_culprit() {
        for (text, culprit) in [
            ("", "no model \"\""),
            ("4xB300", "no model \"B300\""),
            ("0xA100", "1 to 64"),
            ("65xA100", "1 to 64"),
            ("40xA100,40xA100", "1 to 64"),
            ("99999999999999999999xA100", "not a number of GPUs"),
            ("2xA100,", "no model \"\""),
        ] {
            let message = text.parse::<GpuList>().unwrap_err().to_string();
            assert!(message.contains(culprit), "{message}");
        }
    }
}
