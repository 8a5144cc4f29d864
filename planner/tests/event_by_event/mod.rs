//! GPUs of a pipeline, second by second, written from the published law and not from the planner.
//!
//! Each stage has a GPU, and a thread that sets its clock. When an instruction ends, the clock of
//! the next one is wanted, after the last one that of the first. A thread that is free and wants
//! another clock than it has set last calls the driver; the call blocks for a while, and the clock
//! is in force a latency after the call began. In a wait with a clock of its own that one is wanted,
//! until a latency, a quarter of it and at least 2 ms before the end that the wait is expected to
//! have; if that is too soon, the wait has no clock of its own. A forward waits for that of the stage before, a
//! backward for that of the stage after. The step begins at the clock of the last instruction. Where the
//! next instruction of a stage has another clock, the driver holds up what this one hands on for a
//! while, and the GPU waits.

use std::collections::{HashSet, VecDeque};

use pfo_planner::{
    Delays, Instruction, Mhz, PerStage, Plan, PlannedInstruction, PlannedWait, PowerByClock,
    Profile, Span, Stage, StagePlan, StageUnit, Timeline,
};

/// What a step took.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) time_s: f64,
    pub(crate) energy_j: f64,
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
    /// Until when the driver holds up what it hands on, once it has ended.
    held_up_until_s: Option<f64>,
    /// The clock of the first instruction of the next step.
    first: Mhz,
    /// Before each that is to do, the clock of the wait and when the wait is expected to end.
    waits: VecDeque<Option<(Mhz, f64)>>,
    /// When the clock of the instruction is wanted instead of that of the wait.
    back_s: f64,
    clock: Mhz,
    wanted: Mhz,
    set: Mhz,
    busy_until_s: f64,
    coming: VecDeque<(f64, Mhz)>,
}

type Done = HashSet<(u16, Instruction, u32)>;

impl<'a> Gpu<'a> {
    fn new(stage: &'a StagePlan, waits: VecDeque<Option<(Mhz, f64)>>) -> Self {
        let todo: VecDeque<_> = stage.instructions.iter().collect();
        let (first, last) = (todo[0].frequency_mhz, todo[todo.len() - 1].frequency_mhz);
        Self {
            stage: stage.stage,
            todo,
            left: None,
            held_up_until_s: None,
            first,
            waits,
            back_s: f64::INFINITY,
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

    /// When the driver lets go of what the first instruction hands on that ends now.
    fn let_go_s(&self, now_s: f64, delays: Delays) -> f64 {
        let next = self.todo.get(1).map_or(self.first, |next| next.frequency_mhz);
        now_s + if next == self.todo[0].frequency_mhz { 0.0 } else { delays.held_up_s }
    }

    /// Wants the clock of the next wait or instruction.
    fn want(&mut self, now_s: f64, delays: Delays) {
        let Some(next) = self.todo.front() else { return };
        self.wanted = next.frequency_mhz;
        let Some(Some((clock, ends_s))) = self.waits.front() else { return };
        let latency_s = delays.latency_s(next.frequency_mhz);
        let back_s = ends_s - latency_s - f64::max(0.25 * latency_s, 0.002);
        let in_force_s = match *clock == self.set {
            true => self.coming.back().map_or(0.0, |coming| coming.0),
            false => self.in_force_s(*clock, now_s.max(self.busy_until_s), delays),
        };
        if in_force_s < back_s {
            self.wanted = *clock;
            self.back_s = back_s;
        }
    }

    /// When a clock is in force that is set now: never before the one that was set last.
    fn in_force_s(&self, clock: Mhz, now_s: f64, delays: Delays) -> f64 {
        let last_s = self.coming.back().map_or(0.0, |coming| coming.0);
        f64::max(now_s + delays.latency_s(clock), last_s)
    }

    /// Draws power for these seconds, and computes if it can.
    fn advance(&mut self, seconds: f64, profile: &Profile, power: &PowerByClock, step: &mut Step) {
        let Some(left) = self.left else {
            step.energy_j += power.at(self.clock).0 * seconds;
            return;
        };
        let (whole_s, whole_j) = self.at(profile);
        let share = seconds / whole_s;
        self.left = Some(left - share);
        step.busy_s += seconds;
        step.energy_j += share * whole_j;
        if self.clock != self.todo[0].frequency_mhz {
            step.off_plan_s += seconds;
        }
    }

    /// When something happens next.
    fn next_s(&self, now_s: f64, profile: &Profile) -> f64 {
        let ends_s = self.left.map_or(f64::INFINITY, |left| now_s + left * self.at(profile).0);
        let in_force_s = self.coming.front().map_or(f64::INFINITY, |coming| coming.0);
        let returns_s = if self.busy_until_s > now_s { self.busy_until_s } else { f64::INFINITY };
        let let_go_s = self.held_up_until_s.unwrap_or(f64::INFINITY);
        ends_s.min(in_force_s).min(returns_s).min(self.back_s).min(let_go_s)
    }
}

/// For each stage and instruction of a plan the wait before it, if it has a clock, and when it ends
/// by the last steps.
fn waits(profile: &Profile, plan: &Plan) -> Vec<VecDeque<Option<(Mhz, f64)>>> {
    let timeline = Timeline::new(profile, plan).unwrap();
    let wait = |stage: Stage, span: &Span| {
        let is_before = |wait: &&PlannedWait| {
            let StageUnit { stage: of, instruction, microbatch, .. } = wait.before;
            (of, instruction, microbatch) == (stage, span.instruction, span.microbatch)
        };
        let planned = plan.waits.iter().find(is_before)?;
        Some((planned.frequency_mhz, span.start_s))
    };
    let stages = (0..).map(Stage).zip(&timeline.stages);
    stages.map(|(stage, spans)| spans.iter().map(|span| wait(stage, span)).collect()).collect()
}

/// Runs a step of a plan on GPUs that draw this power while they wait.
pub(crate) fn run(profile: &Profile, plan: &Plan, power: &PerStage<PowerByClock>) -> Step {
    let waits = waits(profile, plan);
    let mut gpus: Vec<Gpu> =
        plan.stages.iter().zip(waits).map(|(stage, waits)| Gpu::new(stage, waits)).collect();
    gpus.iter_mut().for_each(|gpu| gpu.want(0.0, plan.delays));
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
                    gpu.left = None;
                    gpu.wanted = gpu.set;
                    gpu.held_up_until_s = Some(gpu.let_go_s(now_s, plan.delays));
                }
                if gpu.held_up_until_s.is_some_and(|until_s| until_s <= now_s) {
                    gpu.held_up_until_s = None;
                    let ended = gpu.todo.pop_front().unwrap();
                    gpu.waits.pop_front();
                    done.insert((gpu.stage.0, ended.instruction, ended.microbatch.0));
                    step.time_s = now_s;
                    gpu.want(now_s, plan.delays);
                    is_settled = false;
                }
                if gpu.back_s <= now_s {
                    gpu.back_s = f64::INFINITY;
                    gpu.wanted = gpu.todo[0].frequency_mhz;
                }
                if gpu.busy_until_s <= now_s && gpu.wanted != gpu.set {
                    gpu.set = gpu.wanted;
                    gpu.busy_until_s = now_s + plan.delays.set_call_s;
                    let in_force_s = gpu.in_force_s(gpu.wanted, now_s, plan.delays);
                    gpu.coming.push_back((in_force_s, gpu.wanted));
                    step.calls += 1;
                    is_settled = false;
                }
                let is_free = gpu.left.is_none() && gpu.held_up_until_s.is_none();
                let ready = gpu.todo.front().filter(|_| is_free);
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
            gpu.advance(next_s - now_s, profile, power.of(gpu.stage), &mut step);
        }
        now_s = next_s;
    }
}
