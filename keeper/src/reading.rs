//! What the driver reports about a GPU. It only reads.

use std::array;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use pfo_vocabulary::{Mhz, Milliwatts, ThrottledNs};

use crate::device::KeptDevice;
use crate::driver::Gpu;
use crate::driver_error::DriverError;
use crate::driver_use::Asked;

/// What the driver reports about a GPU at one moment. What it does not report is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The SM clock.
    pub sm_clock: Option<Mhz>,
    /// The power, in watts.
    pub power_w: Option<f64>,
    /// The power limit in force, pfo's or not.
    pub power_limit: Option<Milliwatts>,
    /// Whether MIG splits the GPU.
    pub mig: bool,
    /// Why the clock is lower than requested.
    pub held_back: Option<ThrottleReasons>,
    /// Whether nothing runs, so that the clock may be any.
    pub idle: bool,
    /// The temperature of the GPU, in degrees Celsius.
    pub temperature_c: Option<u32>,
}

impl Gpu {
    /// Reads the GPU. It may block for as long as the driver does.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub fn read(&self) -> Result<Reading, DriverError> {
        let device = self.device()?;
        self.asked.read(6, || {
            let reasons = device.current_throttle_reasons().ok();
            Ok(Reading {
                sm_clock: device.clock_info(Clock::SM).ok().map(Mhz),
                power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
                power_limit: device.power_management_limit().ok().map(Milliwatts),
                mig: self.is_split_by_mig()?,
                held_back: reasons.and_then(held_back),
                idle: reasons.is_some_and(|reasons| reasons.contains(ThrottleReasons::GPU_IDLE)),
                temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            })
        })
    }

    /// A handle for reading the GPU often.
    ///
    /// # Errors
    /// If the GPU is gone.
    pub fn probe(&self) -> Result<Probe, DriverError> {
        Ok(Probe { device: self.kept_device()?, asked: self.asked.clone() })
    }
}

/// The reasons that no user asked for.
fn held_back(reasons: ThrottleReasons) -> Option<ThrottleReasons> {
    let wishes = ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
    Some(reasons.difference(wishes)).filter(|others| !others.is_empty())
}

/// Reads one GPU, and keeps the driver loaded.
#[derive(Debug)]
pub struct Probe {
    device: KeptDevice,
    /// What its driver is asked.
    pub asked: Asked,
}

impl Probe {
    /// The energy counter in joules, if the GPU has one, and for how long each reason has kept its
    /// clock down: in one call, where the driver can.
    #[must_use]
    pub fn counters(&self) -> (Option<f64>, ThrottledNs) {
        let device = self.device.get();
        let fields = self.asked.read(1, || device.field_values_for(&COUNTERS)).unwrap_or_default();
        let mut counted = fields.into_iter().map(|field| whole(&field.ok()?.value.ok()?));
        let throttled_ns = ThrottledNs::of(array::from_fn(|_| counted.next().flatten()));
        (counted.next().flatten().map(joules).or_else(|| self.energy_j()), throttled_ns)
    }

    /// The energy counter alone.
    #[must_use]
    pub fn energy_j(&self) -> Option<f64> {
        self.asked.read(1, || self.device.get().total_energy_consumption()).ok().map(joules)
    }

    /// The power in watts.
    #[must_use]
    pub fn power_w(&self) -> Option<f64> {
        self.asked.read(1, || self.device.get().power_usage()).ok().map(|mw| f64::from(mw) / 1e3)
    }

    /// The SM clock.
    #[must_use]
    pub fn sm_clock(&self) -> Option<Mhz> {
        self.asked.read(1, || self.device.get().clock_info(Clock::SM)).ok().map(Mhz)
    }

    /// NVML's bits for why the clock is what it is.
    #[must_use]
    pub fn throttle_reasons(&self) -> u64 {
        self.asked.read(1, || self.device.get().current_throttle_reasons()).map_or(0, |r| r.bits())
    }
}

/// What [`Probe::counters`] reads, in the order of [`ThrottledNs`].
const COUNTERS: [FieldId; 6] = [
    FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP),
    FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST),
    FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN),
    FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN),
    FieldId(field_id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
];

fn whole(value: &SampleValue) -> Option<u64> {
    match *value {
        SampleValue::U64(number) => Some(number),
        SampleValue::U32(number) => Some(number.into()),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    }
}

fn joules(millijoules: u64) -> f64 {
    millijoules as f64 / 1e3
}
