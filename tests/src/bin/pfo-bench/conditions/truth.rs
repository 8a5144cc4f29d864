//! What a plan does as the simulator has it: time and true energy of the steps of a training that runs
//! the plan and default clocks in turns.

use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvidia_ml::units::Mhz;
use pfo_protocol::SwapTarget;
use pfo_tests::{Node, STAGES, Training};
use serde_json::Value;

use super::JOB;
use super::optimum::Tables;
use crate::Result;

/// What runs in a turn: there and back, so that what drifts favours neither.
const TURNS: [Side; 8] = [
    Side::Plan,
    Side::DefaultClocks,
    Side::DefaultClocks,
    Side::Plan,
    Side::Plan,
    Side::DefaultClocks,
    Side::DefaultClocks,
    Side::Plan,
];

/// Steps that a turn takes until its clocks are those of the side, and asked for ahead.
const SETTLING_STEPS: u64 = 4;

/// No turn takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Plan,
    DefaultClocks,
}

/// What calls have cost on all GPUs.
#[derive(Clone, Copy)]
pub(super) struct Spent {
    at: Instant,
    calls: u64,
    reading: Duration,
    setting: Duration,
    delayed: Duration,
}

/// What calls cost meanwhile, for each GPU.
#[derive(Clone, Copy, Default)]
pub(super) struct Rate {
    gpu_s: f64,
    calls: f64,
    reading_s: f64,
    setting_s: f64,
    delayed_s: f64,
}

impl Spent {
    pub(super) fn until_now(node: &Node) -> Self {
        let [reading, setting, delayed] = [Duration::ZERO; 3];
        let begin = Self { at: Instant::now(), calls: 0, reading, setting, delayed };
        (0..STAGES as usize).fold(begin, |sum, gpu| {
            let time = node.machine.gpu(gpu).driver_time();
            Self {
                calls: sum.calls + time.calls,
                reading: sum.reading + time.reading,
                setting: sum.setting + time.setting,
                delayed: sum.delayed + time.transfers_delayed,
                ..sum
            }
        })
    }

    pub(super) fn since(self, before: Self) -> Rate {
        Rate {
            gpu_s: f64::from(STAGES) * self.at.duration_since(before.at).as_secs_f64(),
            calls: (self.calls - before.calls) as f64,
            reading_s: (self.reading - before.reading).as_secs_f64(),
            setting_s: (self.setting - before.setting).as_secs_f64(),
            delayed_s: (self.delayed - before.delayed).as_secs_f64(),
        }
    }
}

impl Rate {
    fn add(&mut self, other: Self) {
        self.gpu_s += other.gpu_s;
        self.calls += other.calls;
        self.reading_s += other.reading_s;
        self.setting_s += other.setting_s;
        self.delayed_s += other.delayed_s;
    }

    pub(super) fn calls_per_second(&self) -> f64 {
        self.per_gpu_s(self.calls)
    }

    /// Of the time: in calls that read, and in calls that set a clock.
    pub(super) fn driver_shares(&self) -> [f64; 2] {
        [self.reading_s, self.setting_s].map(|seconds| self.per_gpu_s(seconds))
    }

    /// Of the time.
    pub(super) fn delayed_share(&self) -> f64 {
        self.per_gpu_s(self.delayed_s)
    }

    /// Nothing in no time.
    fn per_gpu_s(&self, amount: f64) -> f64 {
        if self.gpu_s > 0.0 { amount / self.gpu_s } else { 0.0 }
    }
}

/// Turns of a training that still runs.
#[derive(Default)]
pub(super) struct Turns {
    steps: Vec<(Side, RangeInclusive<u64>)>,
    pub(super) at_plan: Rate,
    pub(super) at_default_clocks: Rate,
}

impl Turns {
    /// Lets a job run the plan that it has and default clocks in turns of this many steps.
    pub(super) fn take(node: &Node, training: &Training, steps: u64) -> Result<Self> {
        let mut turns = Self::default();
        let mut running = Side::Plan;
        let mut next = training.ranks(node).iter().filter_map(|rank| rank.1).max().unwrap_or(0);
        for side in TURNS {
            if side != running {
                let target = match side {
                    Side::Plan => SwapTarget::Previous,
                    Side::DefaultClocks => SwapTarget::DefaultClocks,
                };
                let swapped = node.swap(JOB, target).map_err(|refusal| refusal.message)?;
                (running, next) = (side, swapped.step);
            }
            let (first, end) = (next + SETTLING_STEPS, next + SETTLING_STEPS + steps);
            until_step(training, first)?;
            let before = Spent::until_now(node);
            until_step(training, end)?;
            let spent = Spent::until_now(node).since(before);
            match side {
                Side::Plan => turns.at_plan.add(spent),
                Side::DefaultClocks => turns.at_default_clocks.add(spent),
            }
            turns.steps.push((side, first..=end - 1));
            next = end;
        }
        Ok(turns)
    }

    /// What the report of the training says of these steps.
    pub(super) fn truth(&self, report: &Value, plan: &Value, tables: &Tables) -> Result<Truth> {
        let of = |side, figure: fn(&Step) -> f64| -> Result<Vec<f64>> {
            let turns = self.steps.iter().filter(move |(of, _)| *of == side);
            turns.map(|(_, steps)| mean(report, steps, tables, figure)).collect()
        };
        let change = |figure| -> Result<Change> {
            Ok(Change::of(&of(Side::DefaultClocks, figure)?, &of(Side::Plan, figure)?))
        };
        let (slowdown, energy) = (change(|step| step.time_s)?, change(|step| step.energy_j)?);
        let saving = Change { share: -energy.share, ..energy };
        Ok(Truth { slowdown, saving, off_plan: self.off_plan(report, plan, tables)? })
    }

    /// The share of the time of instructions under the plan that they ran at another clock.
    fn off_plan(&self, report: &Value, plan: &Value, tables: &Tables) -> Result<f64> {
        let (mut off_ns, mut all_ns) = (0, 0);
        for rank in array(&report["ranks"])? {
            let stage = &array(&plan["stages"])?[rank["rank"].as_u64().unwrap_or(0) as usize];
            let planned = array(&stage["instructions"])?;
            for step in array(&rank["steps"])? {
                let number = step["step"].as_u64().unwrap_or(u64::MAX);
                let is_in = |(side, steps): &(Side, RangeInclusive<u64>)| {
                    *side == Side::Plan && steps.contains(&number)
                };
                if !self.steps.iter().any(is_in) {
                    continue;
                }
                for (ran, planned) in array(&step["clocks"])?.iter().zip(planned) {
                    let mhz =
                        planned["frequency_mhz"].as_u64().ok_or("a clock of the plan")? as u32;
                    // A clock beside the one that was asked for is accepted, and the one that the
                    // power limit leaves of it.
                    let asked = Mhz(mhz);
                    let clocks = [asked, tables.held(asked)].map(|clock| tables.beside(clock));
                    for piece in array(ran)? {
                        let ns = piece[1].as_u64().unwrap_or(0);
                        let clock = piece[0].as_u64().unwrap_or(0);
                        all_ns += ns;
                        off_ns += if clocks.iter().any(|clocks| clocks.contains(&clock)) {
                            0
                        } else {
                            ns
                        };
                    }
                }
            }
        }
        Ok(off_ns as f64 / all_ns as f64)
    }
}

/// A change from default clocks to the plan, as a share, and its standard error.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) share: f64,
    pub(super) error: f64,
}

/// What the plan does.
pub(super) struct Truth {
    pub(super) slowdown: Change,
    pub(super) saving: Change,
    pub(super) off_plan: f64,
}

struct Step {
    time_s: f64,
    energy_j: f64,
}

impl Change {
    fn of(default: &[f64], plan: &[f64]) -> Self {
        let changes: Vec<f64> =
            default.iter().zip(plan).map(|(one, other)| other / one - 1.0).collect();
        let count = changes.len() as f64;
        let share = changes.iter().sum::<f64>() / count;
        let squares: f64 = changes.iter().map(|change| (change - share).powi(2)).sum();
        Self { share, error: (squares / (count - 1.0) / count).sqrt() }
    }
}

/// Waits until a step has begun, as the training says itself: a look at the status reads the GPUs.
fn until_step(training: &Training, step: u64) -> Result<()> {
    let began = Instant::now();
    let done =
        || training.process.errors().lines().filter(|line| line.starts_with("step ")).count();
    while (done() as u64) < step {
        if began.elapsed() > PATIENCE {
            return Err(format!("step {step} does not begin").into());
        }
        sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// The mean of a figure over some steps.
fn mean(
    report: &Value,
    steps: &RangeInclusive<u64>,
    tables: &Tables,
    figure: fn(&Step) -> f64,
) -> Result<f64> {
    let is_in = |step: &&Value| step["step"].as_u64().is_some_and(|step| steps.contains(&step));
    let iterations = array(&report["iterations"])?.iter().filter(is_in);
    let figures: Vec<f64> = iterations
        .map(|step| {
            let number = |name: &str| step[name].as_f64().unwrap_or(f64::NAN);
            let time_s = number("time_s");
            let module_j = f64::from(STAGES) * tables.module_w * time_s;
            figure(&Step { time_s, energy_j: number("energy_j") + module_j })
        })
        .collect();
    Ok(figures.iter().sum::<f64>() / figures.len() as f64)
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| format!("{value} is no list").into())
}
