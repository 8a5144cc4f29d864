//! What a job may meet: GPUs, drivers, neighbours, and how short its instructions are.

use nvidia_ml::heat::Cooling;
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::model::GpuModel;
use nvidia_ml::sensor::Sensor;
use pfo_tests::honest;
use std::time::Duration;

const MS: u64 = 1_000_000;

/// A condition under which a job is tuned.
#[derive(Clone, Copy)]
pub(super) struct Condition {
    pub(super) name: &'static str,
    /// What it is, for people.
    pub(super) what: &'static str,
    pub(super) gpus: &'static str,
    pub(super) model: GpuModel,
    pub(super) made: fn(MachinePlan) -> MachinePlan,
    /// Of the built-in instructions.
    pub(super) time_scale: f64,
    /// Distance of the clocks of a sweep in MHz: where instructions are short, each takes long.
    pub(super) stride_mhz: u32,
    /// The power limit of each GPU in watts, if not the default one.
    pub(super) limit_w: Option<f64>,
    /// Whether a neighbour reads and sets all the time.
    pub(super) neighbour: bool,
    /// Whether the optimum follows from the tables: not where the clocks depend on how hot a GPU is.
    pub(super) has_optimum: bool,
}

/// A clock is measured for as long as a slow counter needs.
const SLOW_COUNTER_STRIDE_MHZ: u32 = 150;

const A100: Condition = Condition {
    name: "a100",
    what: "A100",
    gpus: "4xA100",
    model: GpuModel::A100,
    made: warm,
    time_scale: 0.4,
    stride_mhz: 60,
    limit_w: None,
    neighbour: false,
    has_optimum: true,
};

/// GPUs that have worked for some minutes, as those of a job that somebody tunes.
fn warm(plan: MachinePlan) -> MachinePlan {
    MachinePlan { warm: true, ..honest(plan) }
}

/// Every condition, in the order of the table.
pub(super) const CONDITIONS: [Condition; 15] = [
    A100,
    Condition {
        name: "a40",
        what: "A40",
        gpus: "4xA40",
        model: GpuModel::A40,
        time_scale: 0.2,
        ..A100
    },
    Condition {
        name: "b200",
        what: "B200, transfers wait for the driver",
        gpus: "4xB200",
        model: GpuModel::B200,
        time_scale: 1.6,
        ..A100
    },
    Condition { name: "cap", what: "power limit of 250 W", limit_w: Some(250.0), ..A100 },
    Condition { name: "cold", what: "GPUs that warm up", made: honest, ..A100 },
    Condition {
        name: "hot",
        what: "poor cooling",
        made: |plan| MachinePlan { cooling: Cooling::Poor, ..warm(plan) },
        has_optimum: false,
        ..A100
    },
    Condition {
        name: "overheated",
        what: "failed cooling",
        made: |plan| MachinePlan { cooling: Cooling::Failed, ..warm(plan) },
        has_optimum: false,
        ..A100
    },
    Condition {
        name: "noise",
        what: "2 % of noise",
        made: |plan| MachinePlan { time_noise_ppm: Some(20_000), ..warm(plan) },
        ..A100
    },
    Condition {
        name: "short",
        what: "instructions of 2 ms",
        time_scale: 0.02,
        stride_mhz: 150,
        ..A100
    },
    Condition {
        name: "latency",
        what: "set calls of 50 ms",
        made: |plan| MachinePlan { set_latency: Some(Duration::from_millis(50)), ..warm(plan) },
        ..A100
    },
    Condition {
        name: "part-time",
        what: "sensor that looks 25 of 100 ms",
        made: |plan| {
            let sensor = Sensor { looks_ns: 25 * MS, period_ns: 100 * MS };
            MachinePlan { sensor: Some(sensor), ..warm(plan) }
        },
        stride_mhz: SLOW_COUNTER_STRIDE_MHZ,
        ..A100
    },
    Condition {
        name: "slow-counter",
        what: "counter refreshed every 500 ms",
        made: |plan| MachinePlan { energy_refresh: Some(Duration::from_millis(500)), ..warm(plan) },
        stride_mhz: SLOW_COUNTER_STRIDE_MHZ,
        ..A100
    },
    Condition { name: "neighbour", what: "neighbour that reads and sets", neighbour: true, ..A100 },
    Condition {
        name: "gh200",
        what: "GH200, counter of the module",
        gpus: "4xGH200",
        model: GpuModel::Gh200,
        time_scale: 0.9,
        ..A100
    },
    Condition {
        name: "no-persistence",
        what: "no persistence",
        made: |plan| MachinePlan { persistence: false, ..warm(plan) },
        ..A100
    },
];
