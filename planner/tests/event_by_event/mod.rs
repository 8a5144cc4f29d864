//! GPUs of a pipeline, second by second, written from the published law and not from the planner.
//!
//! Each stage has a GPU, and a thread that sets its clock. When an instruction ends, the clock of
//! the next one is wanted, after the last one that of the first. A thread that is free and wants
//! another clock than it has set last calls the driver; the call blocks for a while, and the clock
//! is in force a latency after the call began. A forward waits for that of the stage before, a
//! backward for that of the stage after. The step begins at the clock of the last instruction.

use std::collections::{HashSet, VecDeque};

use pfo_planner::{Delays, Instruction, Mhz, Plan, PlannedInstruction, Profile, Stage, StagePlan};

/// What a step took.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) time_s: f64,
    /// Without what GPUs draw while they wait.
    pub(crate) busy_j: f64,
    pub(crate) busy_s: f64,
    /// Seconds of instructions at another clock than planned.
    pub(crate) off_plan_s: f64,
    /// Calls that were made.
    pub(crate) calls: usize,
}

struct Gpu<'a> {
    stage: Stage,
    todo: VecDeque<&'a PlannedInstruction>,
    /// What is left of the first one that is to do, if it runs (1 to 0).
    left: Option<f64>,
    clock: Mhz,
    wanted: Mhz,
    set: Mhz,
    busy_until_s: f64,
    coming: VecDeque<(f64, Mhz)>,
}

type Done = HashSet<(u16, Instruction, u32)>;

impl<'a> Gpu<'a> {
    fn new(stage: &'a StagePlan) -> Self {
        let todo: VecDeque<_> = stage.instructions.iter().collect();
        let (first, last) = (todo[0].frequency_mhz, todo[todo.len() - 1].frequency_mhz);
        Self {
            stage: stage.stage,
            todo,
            left: None,
            clock: last,
            wanted: first,
            set: last,
            busy_until_s: 0.0,
            coming: VecDeque::new(),
        }
    }

    /// Seconds and joules of the running instruction at the present clock.
    fn at(&self, profile: &Profile) -> (f64, f64) {
        let row = profile.at(self.stage, self.todo[0].instruction, self.clock).unwrap();
        (row.time_s, row.energy_j)
    }

    fn has_input(&self, next: &PlannedInstruction, num_stages: u16, done: &Done) -> bool {
        let from = match next.instruction {
            Instruction::Forward if self.stage.0 > 0 => self.stage.0 - 1,
            Instruction::Backward if self.stage.0 + 1 < num_stages => self.stage.0 + 1,
            _ => return true,
        };
        done.contains(&(from, next.instruction, next.microbatch.0))
    }

    /// When something happens next.
    fn next_s(&self, now_s: f64, profile: &Profile) -> f64 {
        let ends_s = self.left.map_or(f64::INFINITY, |left| now_s + left * self.at(profile).0);
        let in_force_s = self.coming.front().map_or(f64::INFINITY, |coming| coming.0);
        let returns_s = if self.busy_until_s > now_s { self.busy_until_s } else { f64::INFINITY };
        ends_s.min(in_force_s).min(returns_s)
    }
}

/// Runs a step of a plan.
pub(crate) fn run(profile: &Profile, plan: &Plan) -> Step {
    let Delays { switch_latency_s, set_call_s, .. } = plan.delays;
    let mut gpus: Vec<Gpu> = plan.stages.iter().map(Gpu::new).collect();
    let mut step = Step::default();
    let mut done = Done::new();
    let mut now_s = 0.0;
    loop {
        // What is due now, until nothing more follows from it.
        let mut is_settled = false;
        while !is_settled {
            is_settled = true;
            for gpu in &mut gpus {
                while let Some((_, clock)) = gpu.coming.pop_front_if(|&mut (at_s, _)| at_s <= now_s)
                {
                    gpu.clock = clock;
                }
                if gpu.left.is_some_and(|left| left <= 1e-12) {
                    let ended = gpu.todo.pop_front().unwrap();
                    gpu.left = None;
                    done.insert((gpu.stage.0, ended.instruction, ended.microbatch.0));
                    step.time_s = now_s;
                    gpu.wanted = gpu.todo.front().map_or(gpu.set, |next| next.frequency_mhz);
                    is_settled = false;
                }
                if gpu.busy_until_s <= now_s && gpu.wanted != gpu.set {
                    gpu.set = gpu.wanted;
                    gpu.busy_until_s = now_s + set_call_s;
                    gpu.coming.push_back((now_s + switch_latency_s, gpu.wanted));
                    step.calls += 1;
                    is_settled = false;
                }
                let ready = gpu.todo.front().filter(|_| gpu.left.is_none());
                if ready.is_some_and(|next| gpu.has_input(next, plan.num_stages, &done)) {
                    gpu.left = Some(1.0);
                    is_settled = false;
                }
            }
        }
        if gpus.iter().all(|gpu| gpu.todo.is_empty()) {
            return step;
        }
        let next_s =
            gpus.iter().map(|gpu| gpu.next_s(now_s, profile)).fold(f64::INFINITY, f64::min);
        for gpu in &mut gpus {
            let Some(left) = gpu.left else { continue };
            let (whole_s, whole_j) = gpu.at(profile);
            let share = (next_s - now_s) / whole_s;
            gpu.left = Some(left - share);
            step.busy_s += next_s - now_s;
            step.busy_j += share * whole_j;
            if gpu.clock != gpu.todo[0].frequency_mhz {
                step.off_plan_s += next_s - now_s;
            }
        }
        now_s = next_s;
    }
}
