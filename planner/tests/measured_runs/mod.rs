//! Measured runs of real plans: which clock every instruction was given, how long it took, and how
//! long every step took and what energy every GPU drew in it.
//!
//! Each job is a file of JSON lines, compressed with `xz`, beside a profile of what its windows
//! measured. A window is the steps of one plan in a row.

use std::fs::File;
use std::process::Command;

use pfo_planner::{
    Delays, Instruction, Measurement, Mhz, Placement, Plan, PlannedInstruction, Profile, Schedule,
    Stage, StagePlan, Watts,
};
use pfo_vocabulary::{Chunk, Microbatch};
use serde::Deserialize;

use crate::measured_data::data;

/// The jobs that were measured.
pub(crate) const JOBS: [&str; 5] = [
    "a100-bert-huge-uncased",
    "a100-gpt3-xl",
    "a40-gpt3-2.7b",
    "a40-t5-3b",
    "a40-wide-resnet101_8",
];

/// A job and its windows.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) p2p_power: Watts,
    /// Times are measured; energies are fitted to those of whole steps.
    pub(crate) profile: Profile,
    pub(crate) windows: Vec<Window>,
}

#[derive(Deserialize)]
struct Header {
    format: String,
    p2p_blocking_power_w: f64,
}

/// The steps of one plan in a row.
#[derive(Deserialize)]
pub(crate) struct Window {
    pub(crate) run: String,
    pub(crate) plan: u32,
    pub(crate) highest_clocks: bool,
    iteration_time_s: Vec<f64>,
    /// For each rank, the energy of each step.
    iteration_energy_j: Vec<Vec<f64>>,
    stages: Vec<StageRun>,
}

/// One stage in a window; times are means over its steps, by microbatch.
#[derive(Deserialize)]
struct StageRun {
    order: Vec<(Instruction, u32, u32)>,
    forward_s: Vec<f64>,
    backward_s: Vec<f64>,
    load_s: Vec<f64>,
}

/// Whether loads take part in a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loads {
    Left,
    Counted,
}

impl Job {
    /// A job, or nothing and a word about what is missing.
    pub(crate) fn read(name: &'static str) -> Option<Self> {
        let runs = data(&format!("measured/{name}.jsonl.xz"))?;
        let csv = data(&format!("measured/{name}.profile.csv"))?;
        let Ok(unpacked) = Command::new("xz").arg("-dc").arg(&runs).output() else {
            eprintln!("skipped: there is no xz to read {}", runs.display());
            return None;
        };
        assert!(unpacked.status.success(), "xz cannot read {}", runs.display());
        let mut lines = unpacked.stdout.split(|&byte| byte == b'\n').filter(|l| !l.is_empty());
        let header: Header = serde_json::from_slice(lines.next().unwrap()).unwrap();
        assert_eq!(header.format, "measured-runs/1");
        let windows = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        let profile = Profile::from_csv(File::open(csv).unwrap()).unwrap();
        Some(Self { name, p2p_power: Watts(header.p2p_blocking_power_w), profile, windows })
    }

    /// The windows of Perseus' plans.
    pub(crate) fn planned(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.run == "perseus" && !window.highest_clocks)
    }

    /// The last window of Perseus' run with every instruction at the highest clock.
    pub(crate) fn highest(&self) -> &Window {
        let mut highest = self.windows.iter().filter(|w| w.run == "perseus" && w.highest_clocks);
        highest.next_back().unwrap()
    }
}

impl Window {
    /// Mean seconds of a step.
    pub(crate) fn step_s(&self) -> f64 {
        mean(&self.iteration_time_s)
    }

    /// Mean joules of a step, of all ranks.
    pub(crate) fn step_j(&self) -> f64 {
        self.iteration_energy_j.iter().map(|steps| mean(steps)).sum()
    }

    /// What each stage took and used, as it can be seen without a profile: the mean time of a forward
    /// and of a backward, and the joules of its GPU in a step.
    pub(crate) fn of_stages(&self) -> impl Iterator<Item = ([f64; 2], f64)> {
        let times = self.stages.iter().map(|run| [mean(&run.forward_s), mean(&run.backward_s)]);
        times.zip(self.iteration_energy_j.iter().map(|steps| mean(steps)))
    }

    /// The plan that ran.
    pub(crate) fn plan(&self, loads: Loads) -> Plan {
        self.plan_with(loads, |_, _, mhz| Mhz(mhz))
    }

    /// A profile with a row for each instruction that ran, and the plan that names them: every
    /// microbatch has a clock of its own.
    pub(crate) fn as_it_ran(&self, loads: Loads) -> (Profile, Plan) {
        let clock = |microbatch: u32| Mhz(microbatch + 1);
        let mut rows = Vec::new();
        for (stage, run) in (0..).map(Stage).zip(&self.stages) {
            for &(instruction, microbatch, _) in &run.order {
                let times_s = match instruction {
                    Instruction::Forward => &run.forward_s,
                    _ => &run.backward_s,
                };
                let time_s = times_s[microbatch as usize];
                let frequency = clock(microbatch);
                rows.push((stage, instruction, Measurement { frequency, time_s, energy_j: 1.0 }));
            }
            if loads == Loads::Counted {
                rows.push((stage, Instruction::Load, load(mean(&run.load_s))));
            }
        }
        let plan = self.plan_with(loads, |_, microbatch, _| clock(microbatch));
        (Profile::from_measurements(rows).unwrap(), plan)
    }

    fn plan_with(&self, loads: Loads, clock: impl Fn(Instruction, u32, u32) -> Mhz) -> Plan {
        let planned = |&(instruction, microbatch, mhz): &(Instruction, u32, u32)| {
            let planned = PlannedInstruction {
                forward: None,
                instruction,
                microbatch: Microbatch(microbatch),
                chunk: Chunk(0),
                frequency_mhz: clock(instruction, microbatch, mhz),
            };
            let load = PlannedInstruction { instruction: Instruction::Load, ..planned };
            let is_loaded = loads == Loads::Counted && instruction == Instruction::Forward;
            is_loaded.then_some(load).into_iter().chain([planned])
        };
        let stage = |(stage, run): (u16, &StageRun)| StagePlan {
            stage: Stage(stage),
            instructions: run.order.iter().flat_map(planned).collect(),
        };
        Plan {
            placement: Placement::Loop,
            gpu: None,
            schedule: Schedule::OneForwardOneBackward,
            num_stages: self.stages.len() as u16,
            num_microbatches: self.stages[0].forward_s.len() as u32,
            p2p_blocking_power_w: None,
            p2p_blocking_power_by_mhz: None,
            delays: Delays::default(),
            predicted: None,
            dependencies: Vec::new(),
            waits: Vec::new(),
            payloads: Vec::new(),
            stages: (0..).zip(&self.stages).map(stage).collect(),
        }
    }
}

/// A load; its energy is not looked at.
fn load(time_s: f64) -> Measurement {
    Measurement { frequency: Mhz(1), time_s, energy_j: 0.0 }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}
