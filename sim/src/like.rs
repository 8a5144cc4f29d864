//! A GPU as the GPU kit measured one: what its facts say in the place of the model's figures.
//!
//! Only figures of the kit's `laws` are read, and the GPU's identity; the readings that they come from
//! are for people.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::SimError;
use crate::model::{GpuModel, ModelFacts};
use crate::silicon::{Delay, Reads, Silicon};

const FORMAT: &str = "pfo-gpu-facts/1";
/// NVML's bit of a power limit that slows.
const SOFTWARE_POWER_CAP: u64 = 4;
/// Work at its limit draws a little less: so much that no higher clock fits.
const SHARE_OF_THE_LIMIT: f64 = 0.996;

/// What a GPU was measured to be.
#[derive(Clone, Copy, Debug)]
pub struct Likeness {
    /// Its model.
    pub model: GpuModel,
    /// The model's figures, with those that were measured.
    pub facts: ModelFacts,
    reads: Reads,
    energy_refresh_ns: u64,
}

impl Likeness {
    /// Reads a file of the kit.
    ///
    /// # Errors
    /// If it cannot be read, is none, or is of a model that is not simulated.
    pub fn read(path: &Path) -> Result<Self, SimError> {
        let text =
            fs::read_to_string(path).map_err(|source| SimError::file("read", path, source))?;
        Self::of(&text).map_err(|difference| SimError::Facts { path: path.into(), difference })
    }

    fn of(text: &str) -> Result<Self, String> {
        let file: Facts = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.format != FORMAT {
            return Err(format!("its format is {:?}, not {FORMAT}", file.format));
        }
        let name = &file.parts.identity.model;
        let model = GpuModel::ALL
            .into_iter()
            .find(|model| model.facts().name == name)
            .ok_or_else(|| format!("{name} is none of the models {}", GpuModel::names()))?;
        let facts = file.model_facts(model)?;
        let refresh_ms = file.laws.energy_counter.period_ms;
        let energy_refresh_ns = positive("the counter's refresh", refresh_ms)? * 1e6;
        Ok(Self {
            model,
            facts,
            reads: file.laws.read_us.idle.reads()?,
            energy_refresh_ns: energy_refresh_ns as u64,
        })
    }

    /// What a GPU is like that has these figures, and the others from its model.
    #[must_use]
    pub fn silicon(&self, model: Silicon) -> Silicon {
        Silicon { reads: self.reads, energy_refresh_ns: self.energy_refresh_ns, ..model }
    }
}

fn positive(what: &str, value: f64) -> Result<f64, String> {
    let valid = value.is_finite() && value > 0.0;
    valid.then_some(value).ok_or_else(|| format!("{what} is {value}, and must be above 0"))
}

#[derive(Deserialize)]
struct Facts {
    format: String,
    parts: Parts,
    laws: Laws,
}

#[derive(Deserialize)]
struct Parts {
    identity: Identity,
}

#[derive(Deserialize)]
struct Identity {
    model: String,
    power_limit_mw: Limits,
    supported_clock_mhz: BTreeMap<String, Vec<u32>>,
}

#[derive(Deserialize)]
struct Limits {
    default: u32,
    range: (u32, u32),
}

#[derive(Deserialize)]
struct Laws {
    energy_counter: Counter,
    read_us: ReadTimes,
    quiet: Quiet,
    kinds: BTreeMap<String, Kind>,
    densest: Densest,
}

#[derive(Deserialize)]
struct Counter {
    period_ms: f64,
}

#[derive(Clone, Copy, Deserialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
}

#[derive(Deserialize)]
struct ReadTimes {
    idle: IdleReads,
}

#[derive(Deserialize)]
struct IdleReads {
    energy_mj: Quantiles,
    sm_mhz: Quantiles,
    power_limit_mw: Quantiles,
    processes: Quantiles,
}

#[derive(Deserialize)]
struct Quiet {
    counter_at_10_hz: QuietPower,
}

#[derive(Deserialize)]
struct QuietPower {
    power_instant_w: Quantiles,
}

#[derive(Deserialize)]
struct Kind {
    power_instant_w: Quantiles,
}

/// The densest work: for a minute, and in bursts that no limit reaches.
#[derive(Deserialize)]
struct Densest {
    burst_w: f64,
    steady_w: f64,
    sm_mhz: f64,
    reasons: u64,
}

impl IdleReads {
    fn reads(&self) -> Result<Reads, String> {
        let ns = |what, us: f64| positive(what, us).map(|us| (us * 1e3) as u64);
        let Quantiles { p50, p90 } = self.energy_mj;
        // Of a normal distribution 80 % lie within 1.2816 standard deviations.
        let spread = (p90 / p50).ln() / 1.2816 * 1e3;
        Ok(Reads {
            usual_ns: ns("the time of a read of the clock", self.sm_mhz.p50)?,
            energy: Delay {
                median_ns: ns("the time of a read of the counter", p50)?,
                spread_permille: spread.clamp(0.0, 1000.0) as u64,
            },
            settings_ns: ns("the time of a read of the limit", self.power_limit_mw.p50)?,
            processes_ns: ns("the time of a list of processes", self.processes.p50)?,
            keep_the_driver: false,
        })
    }
}

impl Facts {
    fn model_facts(&self, model: GpuModel) -> Result<ModelFacts, String> {
        let Identity { power_limit_mw: limits, supported_clock_mhz, .. } = &self.parts.identity;
        let clocks = || supported_clock_mhz.values().flatten().copied();
        let (lowest, highest) =
            clocks().min().zip(clocks().max()).ok_or("it lists no supported clock")?;
        let spin =
            self.laws.kinds.get("spin").ok_or("it lacks the power of a kernel that spins")?;
        let watts = |mw: u32| mw / 1000;
        let dense = &self.laws.densest;
        let facts = ModelFacts {
            lowest_mhz: lowest,
            highest_mhz: highest,
            idle_w: positive("idle power", self.laws.quiet.counter_at_10_hz.power_instant_w.p50)?,
            p2p_blocking_w: positive("power of a kernel that spins", spin.power_instant_w.p50)?,
            compute_peak_w: positive("power of dense work", dense.burst_w.max(dense.steady_w))?,
            power_limit_w: (watts(limits.range.0), watts(limits.default), watts(limits.range.1)),
            ..*model.facts()
        };
        if dense.reasons & SOFTWARE_POWER_CAP == 0 {
            return Ok(facts);
        }
        let held_w = f64::from(limits.default) / 1e3 * SHARE_OF_THE_LIMIT;
        Ok(facts.with_power_at(dense.sm_mhz, held_w))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str) -> Likeness {
        let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("facts");
        Likeness::read(&facts.join(name)).unwrap()
    }

    #[test]
    fn a_measured_gpu_has_the_powers_and_times_that_were_measured() {
        let h200 = measured("nvidia-h200.json");
        assert_eq!(h200.model, GpuModel::H200);
        let ModelFacts { idle_w, p2p_blocking_w, lowest_mhz, power_limit_w, .. } = h200.facts;
        assert!((78.0..79.0).contains(&idle_w), "{idle_w} W");
        assert!((132.0..133.0).contains(&p2p_blocking_w), "{p2p_blocking_w} W");
        assert_eq!((lowest_mhz, power_limit_w), (345, (200, 700, 700)));
        let silicon = h200.silicon(h200.model.silicon());
        assert_eq!(silicon.energy_refresh_ns / 1_000_000, 100);
        assert_eq!(silicon.reads.energy.median_ns / 100_000, 32);
        assert!((1_000..4_000).contains(&silicon.reads.usual_ns));
    }

    #[test]
    fn dense_work_is_held_at_the_clock_at_which_it_was() {
        for (name, held_mhz) in [("nvidia-h200.json", 1455), ("nvidia-h100.json", 1320)] {
            let facts = measured(name).facts;
            let fits = |clock: &crate::units::Mhz| facts.compute_power_w(*clock) <= 700.0;
            let held = facts.sm_clocks().into_iter().rev().find(fits).unwrap();
            assert_eq!(held.0, held_mhz, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_none_of_facts_is_refused_with_the_reason() {
        let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("facts/nvidia-h100.json");
        let text = fs::read_to_string(facts).unwrap();
        let error = |text: &str| Likeness::of(text).unwrap_err();
        assert!(error("{}").contains("missing field"));
        assert!(error(&text.replace("facts/1", "facts/2")).contains("not pfo-gpu-facts/1"));
        assert!(error(&text.replace("H100 80GB", "H900")).contains("none of the models V100, A40"));
        let backwards = text.replace("\"burst_w\":", "\"burst_w\":-1e9,\"_\":");
        let backwards = backwards.replace("\"steady_w\":", "\"steady_w\":-1,\"__\":");
        assert!(error(&backwards).contains("power of dense work is -1, and must be above 0"));
    }
}
