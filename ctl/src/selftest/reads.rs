//! The checks that only read.

use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use pfo_protocol::{GpuStatus, GpuUuid, Mhz};

use super::gpu::{Gpu, Sample, Silent, sample};
use super::report::{Check, Promise};
use crate::arguments::DeviceFile;
use crate::counter::BesideReading;
use crate::nvml;

pub(super) const ANSWERS: Promise = Promise::new("answers", "the driver answers in time");
const NAMES: Promise = Promise::new("names", "the GPU has a model and a UUID");
const CLOCKS: Promise = Promise::new("supported-clocks", "the supported clocks are listed");
const CALLS: Promise = Promise::new("read-calls", "clock, power and energy can be read");
const ENERGY: Promise = Promise::new("energy-counter", "energy is counted");
const POWER: Promise = Promise::new("energy-and-power", "energy counter and power reading agree");
const THROTTLED: Promise = Promise::new("throttle-counters", "throttled time is counted");
const PERSISTENCE: Promise = Promise::new("persistence", "persistence mode is on");
const LIMIT: Promise = Promise::new("power-limit", "the power limit is readable");
const AGREES: Promise = Promise::new("pfod-agrees", "pfod reports what the driver does");

/// How long one kind of call is sampled at most.
const CALLS_FOR: Duration = Duration::from_secs(1);

/// Reads of one kind of call that are enough.
const ENOUGH_CALLS: usize = 100;

/// How long the energy counter is sampled at most: dozens of the slowest refreshes that are known.
const ENERGY_FOR: Duration = Duration::from_secs(4);

/// Refreshes of the energy counter that are enough.
const ENOUGH_REFRESHES: usize = 20;

/// What a GPU is, for what comes later.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) model: String,
    pub(super) uuid: GpuUuid,
    pub(super) pci_bus_id: String,
    pub(super) device: Option<DeviceFile>,
    pub(super) mig: bool,
    /// Whether a process computes on it; none if the driver does not tell.
    pub(super) computes: Option<bool>,
}

/// Asks what a GPU is.
pub(super) fn facts(gpu: Gpu) -> Result<Result<Facts, String>, Silent> {
    let asked = gpu.ask(|device| {
        let computes = device.running_compute_processes_count().ok().map(|count| count > 0);
        let (model, mig) = (device.name()?, nvml::is_split(device));
        let file = device.minor_number().ok().map(DeviceFile::numbered);
        Ok((device.uuid()?, (model, device.pci_info()?.bus_id, file, mig, computes)))
    })?;
    Ok(asked.map_err(|error| error.to_string()).and_then(|(uuid, facts)| {
        let uuid = uuid.parse().map_err(|_| "its UUID is none of the driver's".to_owned())?;
        let (model, pci_bus_id, device, mig, computes) = facts;
        Ok(Facts { model, uuid, pci_bus_id, device, mig, computes })
    }))
}

/// Checks one GPU; what was found until it fell silent stays.
///
/// `listed` are its SM clocks as `pfod` lists them.
pub(super) fn check(
    gpu: Gpu,
    facts: &Facts,
    listed: impl FnOnce() -> Option<Vec<Mhz>>,
    checks: &mut Vec<Check>,
) -> Result<(), Silent> {
    let mig = if facts.mig { ", split by MIG" } else { "" };
    checks.push(NAMES.pass(format!("{}{mig}", facts.model)));
    checks.push(clocks(gpu, listed)?);
    checks.push(calls(gpu)?);
    checks.extend(energy(gpu)?);
    checks.push(throttled(gpu)?);
    checks.push(persistence(gpu)?);
    checks.push(limit(gpu)?);
    Ok(())
}

fn clocks(gpu: Gpu, listed: impl FnOnce() -> Option<Vec<Mhz>>) -> Result<Check, Silent> {
    let clocks = match gpu.ask(nvml::supported_sm_clocks)? {
        Ok(clocks) => clocks,
        Err(error) => return Ok(CLOCKS.fail(error.to_string())),
    };
    if let Some((lowest, highest)) = clocks.first().zip(clocks.last()) {
        return Ok(CLOCKS.pass(format!("{} from {lowest} to {highest} MHz", clocks.len())));
    }
    let listed = listed().unwrap_or_default();
    Ok(match listed.first().zip(listed.last()) {
        Some((lowest, highest)) => {
            let count = listed.len();
            CLOCKS.pass(format!("{count} from {lowest} to {highest}, as pfod lists them"))
        }
        None => CLOCKS.unknown("none, or more than the 128 that can be listed without pfod"),
    })
}

/// A kind of call that is timed.
type Call = fn(&Device<'_>) -> Result<(), NvmlError>;

fn calls(gpu: Gpu) -> Result<Check, Silent> {
    const KINDS: [(&str, Call); 3] = [
        ("clock", |device| device.clock_info(Clock::SM).map(drop)),
        ("power", |device| device.power_usage().map(drop)),
        ("energy", |device| device.total_energy_consumption().map(drop)),
    ];
    let (mut seen, mut all) = (Vec::new(), true);
    for (kind, call) in KINDS {
        let timed = gpu.ask(move |device| {
            sample(CALLS_FOR, || call(device), |samples| samples.len() >= ENOUGH_CALLS)
        })?;
        seen.push(match timed {
            Ok(samples) => format!("{kind} {}", times(&samples)),
            Err(NvmlError::NotSupported) => format!("{kind} not supported"),
            Err(error) => {
                all = false;
                format!("{kind}: {error}")
            }
        });
    }
    Ok(CALLS.is_so(all, seen.join(", ")))
}

/// Median and 99th percentile of how long reads took.
fn times<T>(samples: &[Sample<T>]) -> String {
    let mut took_us: Vec<f64> = samples.iter().map(|read| read.took.as_secs_f64() * 1e6).collect();
    took_us.sort_by(f64::total_cmp);
    let at = |share: f64| took_us[((took_us.len() - 1) as f64 * share).round() as usize];
    format!("{:.0} µs (99 %: {:.0} µs)", at(0.5), at(0.99))
}

/// Counter in mJ and power in mW, read together.
type Reading = (u64, Option<u32>);

fn energy(gpu: Gpu) -> Result<Vec<Check>, Silent> {
    let asked = gpu.ask(|device| {
        let read = || Ok((device.total_energy_consumption()?, device.power_usage().ok()));
        sample(ENERGY_FOR, read, |samples| refreshes(samples).len() > ENOUGH_REFRESHES)
    })?;
    Ok(match asked {
        Ok(samples) => counted(&samples),
        Err(NvmlError::NotSupported) => {
            let none = "the GPU has no energy counter: pfo shows no energy of it";
            vec![ENERGY.unknown(none), POWER.unknown("not checked: no energy counter")]
        }
        Err(error) => {
            let unchecked = POWER.unknown("not checked: the counter cannot be read");
            vec![ENERGY.fail(error.to_string()), unchecked]
        }
    })
}

/// The first sample of each new value.
fn refreshes(samples: &[Sample<Reading>]) -> Vec<&Sample<Reading>> {
    let new = |pair: &&[Sample<Reading>]| pair[0].value.0 != pair[1].value.0;
    samples.windows(2).filter(new).map(|pair| &pair[1]).collect()
}

fn counted(samples: &[Sample<Reading>]) -> Vec<Check> {
    let refreshed = refreshes(samples);
    let (Some(first), Some(last)) = (refreshed.first(), refreshed.last()) else {
        let seen = format!("it did not change in {:.1} s", ENERGY_FOR.as_secs_f64());
        return vec![ENERGY.fail(seen), POWER.unknown("not checked: the counter stands still")];
    };
    if refreshed.windows(2).any(|pair| pair[1].value.0 < pair[0].value.0) {
        let unchecked = POWER.unknown("not checked: the counter went back");
        return vec![ENERGY.fail("it went back"), unchecked];
    }
    let took_s = (last.at - first.at).as_secs_f64();
    if took_s == 0.0 {
        let unchecked = POWER.unknown("not checked: too few new values");
        return vec![ENERGY.pass("it rises, seldom"), unchecked];
    }
    let rises = ENERGY.pass(rhythm(samples, took_s / (refreshed.len() - 1) as f64));
    let counted_w = (last.value.0 - first.value.0) as f64 / 1e3 / took_s;
    let between = samples.iter().filter(|read| read.at >= first.at && read.at <= last.at);
    let read_w: Vec<f64> =
        between.filter_map(|read| Some(f64::from(read.value.1?) / 1e3)).collect();
    vec![rises, beside_reading(counted_w, &read_w)]
}

/// How often there is a new value; reads further apart than that see only some of them.
fn rhythm(samples: &[Sample<Reading>], between_new_s: f64) -> String {
    let mut apart_s: Vec<f64> =
        samples.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    apart_s.sort_by(f64::total_cmp);
    let read_every_s = apart_s[apart_s.len() / 2];
    let new_ms = between_new_s * 1e3;
    if read_every_s * 1.5 > between_new_s {
        return format!(
            "it rises, a new value every {new_ms:.0} ms or more often: reads take long"
        );
    }
    format!("it rises, a new value every {new_ms:.0} ms")
}

fn beside_reading(counted_w: f64, all_w: &[f64]) -> Check {
    let count = all_w.len() as f64;
    let read_w = all_w.iter().sum::<f64>() / count;
    if read_w.is_nan() || read_w <= 0.0 {
        return POWER.unknown("the power reading says nothing");
    }
    let squares: f64 = all_w.iter().map(|watts| (watts - read_w).powi(2)).sum();
    let read_error_w = squares.sqrt() / count;
    let beside = BesideReading { counted_w, read_w, read_error_w };
    match beside.agrees() {
        Some(true) => POWER.pass(beside.to_string()),
        Some(false) => POWER.unknown(format!("{beside}; one may be of the whole module")),
        None => POWER.unknown(format!("{beside}; the power varied too much to tell")),
    }
}

fn throttled(gpu: Gpu) -> Result<Check, Silent> {
    const FIELD: FieldId = FieldId(field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP);
    let counter = gpu.ask(|device| {
        let field = device.field_values_for(&[FIELD])?.pop();
        field.ok_or(NvmlError::NotFound)??.value.map(drop)
    })?;
    let bits = gpu.ask(|device| device.current_throttle_reasons().map(drop))?;
    Ok(match (counter, bits) {
        (Ok(()), _) => THROTTLED.pass("by counters in nanoseconds"),
        (Err(_), Ok(())) => {
            THROTTLED.unknown("no counters, only what holds at the moment: brief ones are missed")
        }
        (Err(error), Err(_)) => THROTTLED.fail(error.to_string()),
    })
}

fn persistence(gpu: Gpu) -> Result<Check, Silent> {
    Ok(match gpu.ask(Device::is_in_persistent_mode)? {
        Ok(true) => PERSISTENCE.pass("on"),
        Ok(false) => PERSISTENCE.unknown("off: the driver forgets locks with its last user"),
        Err(error) => PERSISTENCE.unknown(error.to_string()),
    })
}

fn limit(gpu: Gpu) -> Result<Check, Silent> {
    let asked = gpu.ask(|device| {
        let range = device.power_management_limit_constraints()?;
        let default = device.power_management_limit_default()?;
        Ok([device.power_management_limit()?, range.min_limit, range.max_limit, default])
    })?;
    Ok(match asked {
        Ok(limits) => {
            let [now, lowest, highest, default] = limits.map(|limit| f64::from(limit) / 1e3);
            LIMIT.pass(format!(
                "{now:.0} W of {lowest:.0} to {highest:.0} W, default {default:.0} W"
            ))
        }
        Err(NvmlError::NotSupported) => LIMIT.unknown("not supported"),
        Err(error) => LIMIT.fail(error.to_string()),
    })
}

/// Compares what `pfod` says of a GPU.
pub(super) fn agrees(facts: &Facts, index: u32, status: Option<&GpuStatus>) -> Check {
    let Some(status) = status else { return AGREES.fail("pfod does not list this GPU") };
    if let Some(problem) = &status.problem {
        return AGREES.fail(format!("pfod: {}", facts.nameless(problem)));
    }
    let pairs = [
        ("index", index.to_string(), status.index.to_string()),
        ("model", facts.model.clone(), status.model.clone()),
        ("MIG", facts.mig.to_string(), status.mig.to_string()),
    ];
    match pairs.iter().find(|(_, driver, pfod)| driver != pfod) {
        Some((what, driver, pfod)) => AGREES.fail(format!("{what}: {driver}, pfod says {pfod}")),
        None => AGREES.pass("index, UUID, model and MIG"),
    }
}

/// That nothing could be compared.
pub(super) fn disagrees_unknown() -> Check {
    AGREES.unknown("not checked: pfod does not answer")
}

impl Facts {
    /// `text` without the names of this GPU.
    pub(super) fn nameless(&self, text: &str) -> String {
        text.replace(self.uuid.as_str(), "this GPU").replace(&self.pci_bus_id, "this GPU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(counter_mj: impl Fn(u64) -> u64, mw: u32) -> Vec<Sample<Reading>> {
        let read = |ms| Sample {
            at: Duration::from_millis(ms),
            took: Duration::ZERO,
            value: (counter_mj(ms), Some(mw)),
        };
        (0..2000).step_by(5).map(read).collect()
    }

    fn found(counter_mj: impl Fn(u64) -> u64) -> String {
        serde_json::to_string_pretty(&counted(&samples(counter_mj, 50_000))).unwrap()
    }

    #[test]
    fn the_rhythm_of_the_counter_and_its_power_are_measured_between_refreshes() {
        insta::assert_snapshot!(found(|ms| ms / 100 * 100 * 50));
    }

    #[test]
    fn reads_that_are_too_far_apart_for_the_rhythm_say_so() {
        let read = |ms| Sample {
            at: Duration::from_millis(ms),
            took: Duration::from_millis(3),
            value: (ms / 100 * 5000, Some(50_000)),
        };
        let samples: Vec<_> = (0..4000).step_by(270).map(read).collect();
        let found = serde_json::to_string(&counted(&samples)).unwrap();
        assert!(found.contains("every 270 ms or more often: reads take long"), "{found}");
    }

    #[test]
    fn a_counter_of_more_than_the_power_reading_is_called_that() {
        insta::assert_snapshot!(found(|ms| ms / 100 * 100 * 150));
    }

    #[test]
    fn a_counter_that_stands_still_or_goes_back_fails() {
        insta::assert_snapshot!([found(|_| 7), found(|ms| 5000 - ms)].join("\n"));
    }
}
