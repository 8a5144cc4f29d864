//! The simulated GPU models and their published figures.
//!
//! Clock ranges and steps are those that `nvidia-smi -q -d SUPPORTED_CLOCKS` prints for the board;
//! names, PCI ids, core counts, memory sizes and power limits are NVIDIA's data sheets'. The power
//! that an A100 and an A40 draw while they only wait for a neighbour is the one published with the
//! Perseus paper (83.64 W, 70.38 W), as is the shape of the compute power curve. Clocks, idle and
//! waiting power of an H100 and an H200 were measured (`sim/facts`). For the others these are
//! assumptions of the right size.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::SimError;
use crate::units::{Mhz, Milliwatts};

/// A model of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuModel {
    /// Tesla V100 SXM2, 16 GB.
    V100,
    /// A40.
    A40,
    /// A100 SXM4, 40 GB.
    A100,
    /// The RTX 3090 of the consumer line.
    Rtx3090,
    /// RTX A6000.
    A6000,
    /// H100 SXM, 80 GB.
    H100,
    /// H200 SXM.
    H200,
    /// The Hopper GPU of a GH200 module.
    Gh200,
    /// B200 SXM.
    B200,
}

/// An architecture, with NVML's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// V100.
    Volta = 5,
    /// A40, A100, RTX 3090, RTX A6000.
    Ampere = 7,
    /// H100, H200, GH200.
    Hopper = 9,
    /// B200.
    Blackwell = 10,
}

/// How the supported SM clocks of a model are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockStep {
    /// 15 MHz.
    Fifteen,
    /// 7.5 MHz, of which the driver drops the half: 135, 142, 150, 157, …
    SevenAndAHalf,
}

/// What is fixed about a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelFacts {
    /// The name on the command line.
    pub short_name: &'static str,
    /// The name that NVML gives.
    pub name: &'static str,
    /// The architecture.
    pub architecture: Architecture,
    /// CUDA compute capability.
    pub compute_capability: (i32, i32),
    /// CUDA cores.
    pub cores: u32,
    /// PCI device id in the upper, vendor in the lower half.
    pub pci_device_id: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    pub(crate) lowest_mhz: u32,
    pub(crate) highest_mhz: u32,
    pub(crate) step: ClockStep,
    /// Supported memory clocks in MHz, descending as NVML lists them.
    pub memory_mhz: &'static [u32],
    /// The memory clock in MHz when nothing runs and none is locked.
    pub idle_memory_mhz: u32,
    /// Whether the model can be split by MIG.
    pub has_mig: bool,
    /// Idle power in W.
    pub idle_w: f64,
    /// P2P-blocking power in W.
    pub p2p_blocking_w: f64,
    /// Power in W of the built-in work at the highest clock.
    pub compute_peak_w: f64,
    /// How much of the power that rises steeply with the clock rises evenly in its place, in thousandths.
    pub even_rise_permille: u32,
    /// Board power limit in W: lowest, default and highest that may be set.
    pub power_limit_w: (u32, u32, u32),
    /// Time of the built-in work at the highest clock, relative to an A100's.
    pub relative_time: f64,
}

const V100: ModelFacts = ModelFacts {
    short_name: "V100",
    name: "Tesla V100-SXM2-16GB",
    architecture: Architecture::Volta,
    compute_capability: (7, 0),
    cores: 5120,
    pci_device_id: 0x1DB1_10DE,
    memory_mib: 16_384,
    memory_bus_bits: 4096,
    lowest_mhz: 135,
    highest_mhz: 1530,
    step: ClockStep::SevenAndAHalf,
    memory_mhz: &[877],
    idle_memory_mhz: 877,
    has_mig: false,
    idle_w: 42.0,
    p2p_blocking_w: 62.0,
    compute_peak_w: 290.0,
    even_rise_permille: 0,
    power_limit_w: (150, 300, 300),
    relative_time: 2.2,
};

const A40: ModelFacts = ModelFacts {
    short_name: "A40",
    name: "NVIDIA A40",
    architecture: Architecture::Ampere,
    compute_capability: (8, 6),
    cores: 10_752,
    pci_device_id: 0x2235_10DE,
    memory_mib: 46_068,
    memory_bus_bits: 384,
    lowest_mhz: 210,
    highest_mhz: 1740,
    step: ClockStep::Fifteen,
    memory_mhz: &[7251, 405],
    idle_memory_mhz: 405,
    has_mig: false,
    idle_w: 32.0,
    p2p_blocking_w: 70.38,
    compute_peak_w: 340.0,
    even_rise_permille: 0,
    power_limit_w: (100, 300, 300),
    relative_time: 2.1,
};

/// The published A100 profile reaches 475 W, more than this board may draw: dense work runs into its
/// limit.
const A100: ModelFacts = ModelFacts {
    short_name: "A100",
    name: "NVIDIA A100-SXM4-40GB",
    architecture: Architecture::Ampere,
    compute_capability: (8, 0),
    cores: 6912,
    pci_device_id: 0x20B0_10DE,
    memory_mib: 40_960,
    memory_bus_bits: 5120,
    lowest_mhz: 210,
    highest_mhz: 1410,
    step: ClockStep::Fifteen,
    memory_mhz: &[1215],
    idle_memory_mhz: 1215,
    has_mig: true,
    idle_w: 54.0,
    p2p_blocking_w: 83.64,
    compute_peak_w: 475.0,
    even_rise_permille: 0,
    power_limit_w: (100, 400, 400),
    relative_time: 1.0,
};

const RTX3090: ModelFacts = ModelFacts {
    short_name: "RTX3090",
    name: "NVIDIA GeForce RTX 3090",
    architecture: Architecture::Ampere,
    compute_capability: (8, 6),
    cores: 10_496,
    pci_device_id: 0x2204_10DE,
    memory_mib: 24_576,
    memory_bus_bits: 384,
    lowest_mhz: 210,
    highest_mhz: 2100,
    step: ClockStep::Fifteen,
    memory_mhz: &[9751, 9501, 5001, 810, 405],
    idle_memory_mhz: 405,
    has_mig: false,
    idle_w: 26.0,
    p2p_blocking_w: 84.0,
    compute_peak_w: 430.0,
    even_rise_permille: 0,
    power_limit_w: (100, 350, 366),
    relative_time: 2.0,
};

const A6000: ModelFacts = ModelFacts {
    short_name: "A6000",
    name: "NVIDIA RTX A6000",
    architecture: Architecture::Ampere,
    compute_capability: (8, 6),
    cores: 10_752,
    pci_device_id: 0x2230_10DE,
    memory_mib: 49_140,
    memory_bus_bits: 384,
    lowest_mhz: 210,
    highest_mhz: 2100,
    step: ClockStep::Fifteen,
    memory_mhz: &[8001, 7601, 5001, 810, 405],
    idle_memory_mhz: 405,
    has_mig: false,
    idle_w: 24.0,
    p2p_blocking_w: 74.0,
    compute_peak_w: 350.0,
    even_rise_permille: 0,
    power_limit_w: (100, 300, 300),
    relative_time: 2.0,
};

const H100: ModelFacts = ModelFacts {
    short_name: "H100",
    name: "NVIDIA H100 80GB HBM3",
    architecture: Architecture::Hopper,
    compute_capability: (9, 0),
    cores: 16_896,
    pci_device_id: 0x2330_10DE,
    memory_mib: 81_559,
    memory_bus_bits: 5120,
    lowest_mhz: 345,
    highest_mhz: 1980,
    step: ClockStep::Fifteen,
    memory_mhz: &[2619, 1593],
    idle_memory_mhz: 2619,
    has_mig: true,
    idle_w: 69.8,
    p2p_blocking_w: 130.6,
    compute_peak_w: 944.0,
    even_rise_permille: 0,
    power_limit_w: (200, 700, 700),
    relative_time: 0.45,
};

const H200: ModelFacts = ModelFacts {
    short_name: "H200",
    name: "NVIDIA H200",
    architecture: Architecture::Hopper,
    compute_capability: (9, 0),
    cores: 16_896,
    pci_device_id: 0x2335_10DE,
    memory_mib: 143_771,
    memory_bus_bits: 6016,
    lowest_mhz: 345,
    highest_mhz: 1980,
    step: ClockStep::Fifteen,
    memory_mhz: &[3201, 2201],
    idle_memory_mhz: 3201,
    has_mig: true,
    idle_w: 78.3,
    p2p_blocking_w: 132.3,
    compute_peak_w: 1150.0,
    even_rise_permille: 0,
    power_limit_w: (200, 700, 700),
    relative_time: 0.42,
};

const GH200: ModelFacts = ModelFacts {
    short_name: "GH200",
    name: "NVIDIA GH200 480GB",
    pci_device_id: 0x2342_10DE,
    memory_mib: 97_871,
    memory_mhz: &[2619, 1593],
    idle_memory_mhz: 2619,
    has_mig: true,
    idle_w: 75.0,
    p2p_blocking_w: 130.0,
    compute_peak_w: 960.0,
    even_rise_permille: 0,
    power_limit_w: (200, 700, 700),
    relative_time: 0.44,
    ..H200
};

const B200: ModelFacts = ModelFacts {
    short_name: "B200",
    name: "NVIDIA B200",
    architecture: Architecture::Blackwell,
    compute_capability: (10, 0),
    cores: 18_944,
    pci_device_id: 0x2901_10DE,
    memory_mib: 183_359,
    memory_bus_bits: 8192,
    lowest_mhz: 120,
    highest_mhz: 1965,
    step: ClockStep::Fifteen,
    memory_mhz: &[3996, 1593],
    idle_memory_mhz: 3996,
    has_mig: true,
    idle_w: 140.0,
    p2p_blocking_w: 230.0,
    compute_peak_w: 1500.0,
    even_rise_permille: 0,
    power_limit_w: (200, 1000, 1000),
    relative_time: 0.24,
};

/// Shares of the power of dense work at the highest clock: one that is always there, one that grows with the
/// clock, and one that grows with the voltage that high clocks need.
const FIXED: f64 = 0.27;
const LINEAR: f64 = 0.316;
const STEEP: f64 = 0.414;

impl GpuModel {
    /// All models, in the order of their numbers in a state file.
    pub const ALL: [Self; 9] = [
        Self::V100,
        Self::A40,
        Self::A100,
        Self::Rtx3090,
        Self::A6000,
        Self::H100,
        Self::H200,
        Self::Gh200,
        Self::B200,
    ];

    /// What is fixed about the model.
    pub fn facts(self) -> &'static ModelFacts {
        match self {
            Self::V100 => &V100,
            Self::A40 => &A40,
            Self::A100 => &A100,
            Self::Rtx3090 => &RTX3090,
            Self::A6000 => &A6000,
            Self::H100 => &H100,
            Self::H200 => &H200,
            Self::Gh200 => &GH200,
            Self::B200 => &B200,
        }
    }

    /// The short names of all models, for messages.
    pub fn names() -> String {
        Self::ALL.map(|model| model.facts().short_name).join(", ")
    }

    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl FromStr for GpuModel {
    type Err = SimError;

    /// Reads a short name; case, and `RTX` in front, do not matter.
    fn from_str(text: &str) -> Result<Self, SimError> {
        let bare = |name: &str| {
            let upper = name.trim().to_ascii_uppercase();
            upper.strip_prefix("RTX").map_or(upper.clone(), |rest| rest.trim().to_owned())
        };
        Self::ALL
            .into_iter()
            .find(|model| bare(model.facts().short_name) == bare(text))
            .ok_or_else(|| SimError::NoSuchModel { text: text.to_owned(), models: Self::names() })
    }
}

impl ModelFacts {
    /// The highest SM clock.
    pub fn highest(&self) -> Mhz {
        Mhz(self.highest_mhz)
    }

    /// The lowest SM clock, which is also the one of an idle, unlocked GPU.
    pub fn lowest(&self) -> Mhz {
        Mhz(self.lowest_mhz)
    }

    /// Default board power limit.
    pub fn default_power_limit(&self) -> Milliwatts {
        Milliwatts(self.power_limit_w.1 * 1000)
    }

    /// Power of the built-in work, after a fit to the published A100 profile: a part that is always
    /// there, one that grows with the clock and one that grows with the voltage that high clocks
    /// need.
    pub fn compute_power_w(&self, clock: Mhz) -> f64 {
        let x = f64::from(clock.0) / f64::from(self.highest_mhz);
        let even = f64::from(self.even_rise_permille) / 1e3 * STEEP;
        self.compute_peak_w * (FIXED + (LINEAR + even) * x + (STEEP - even) * x.powi(6))
    }

    /// The same model with a curve through a power (W) at a clock (MHz), as far as its shape allows.
    #[must_use]
    pub(crate) fn with_power_at(self, clock_mhz: f64, watts: f64) -> Self {
        let x = clock_mhz / f64::from(self.highest_mhz);
        let steep = FIXED + LINEAR * x + STEEP * x.powi(6);
        let even = (watts / self.compute_peak_w - steep) / (STEEP * (x - x.powi(6)));
        Self { even_rise_permille: (even.clamp(0.0, 1.0) * 1e3).round() as u32, ..self }
    }

    /// P2P-blocking power by clock: between idle and the published power, which was measured at the
    /// highest clock, it grows as the part of computing's that depends on the clock.
    pub fn blocked_power_w(&self, clock: Mhz) -> f64 {
        let x = f64::from(clock.0) / f64::from(self.highest_mhz);
        let share = (0.316 * x + 0.414 * x.powi(6)) / 0.73;
        self.idle_w + (self.p2p_blocking_w - self.idle_w) * share
    }
}

/// The figures of a GPU in the state file. Only written before anybody else can open the file.
#[repr(C)]
pub(crate) struct FactsCell([AtomicU64; 9]);

impl FactsCell {
    pub(crate) fn store(&self, facts: &ModelFacts) {
        let (least, default, most) = facts.power_limit_w;
        let words = [
            facts.lowest_mhz.into(),
            facts.highest_mhz.into(),
            facts.idle_w.to_bits(),
            facts.p2p_blocking_w.to_bits(),
            facts.compute_peak_w.to_bits(),
            facts.even_rise_permille.into(),
            least.into(),
            default.into(),
            most.into(),
        ];
        for (shared, word) in self.0.iter().zip(words) {
            shared.store(word, Ordering::Relaxed);
        }
    }

    /// What is stored, and the rest as on the model.
    pub(crate) fn load(&self, model: &ModelFacts) -> ModelFacts {
        let [lowest, highest, idle, blocking, peak, even, least, default, most] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        ModelFacts {
            lowest_mhz: lowest as u32,
            highest_mhz: highest as u32,
            idle_w: f64::from_bits(idle),
            p2p_blocking_w: f64::from_bits(blocking),
            compute_peak_w: f64::from_bits(peak),
            even_rise_permille: even as u32,
            power_limit_w: (least as u32, default as u32, most as u32),
            ..*model
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_short_name_in_any_case() {
        assert_eq!("a100".parse::<GpuModel>().unwrap(), GpuModel::A100);
        assert_eq!("3090".parse::<GpuModel>().unwrap(), GpuModel::Rtx3090);
        assert_eq!("RTX A6000".parse::<GpuModel>().unwrap(), GpuModel::A6000);
        let message = "B300".parse::<GpuModel>().unwrap_err().to_string();
        assert!(message.contains("B300") && message.contains("H200"), "{message}");
    }

    #[test]
    fn the_built_in_work_of_an_a100_draws_what_the_published_profile_drew() {
        for (mhz, watts) in [(855, 235.0), (1035, 273.0), (1215, 355.0), (1410, 475.0)] {
            let model = GpuModel::A100.facts().compute_power_w(Mhz(mhz));
            assert!((model - watts).abs() < 0.05 * watts, "{mhz} MHz: {model} W, not {watts} W");
        }
    }

    #[test]
    fn figures_are_the_same_after_a_way_through_shared_memory() {
        let cell = FactsCell(std::array::from_fn(|_| AtomicU64::new(0)));
        let odd = ModelFacts { idle_w: 1.5, lowest_mhz: 7, even_rise_permille: 9, ..A100 };
        cell.store(&odd);
        assert_eq!(cell.load(&A100), odd);
    }

    #[test]
    fn every_model_waits_for_less_than_it_computes() {
        for model in GpuModel::ALL {
            let facts = model.facts();
            assert!(facts.idle_w < facts.p2p_blocking_w);
            assert!(facts.p2p_blocking_w < facts.compute_power_w(facts.lowest()) + facts.idle_w);
            assert!((facts.blocked_power_w(facts.highest()) - facts.p2p_blocking_w).abs() < 1e-9);
            assert_eq!(GpuModel::from_number(model.number()), Some(model));
        }
    }
}
