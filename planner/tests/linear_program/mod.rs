//! The planning problem a second time, for comparison: schedules as rules about what comes before
//! what, and the least energy as a linear program over every measured row.
//!
//! Shares nothing with the planner but its names: no order, no graph, no hull, no flow.

mod v;

use microlp::{
    ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, SolveOptions,
    TerminationReason, Variable,
};
use pfo_planner::{Instruction, Profile, Schedule, Stage, Watts};
use v::V;

/// A pipeline to build from a schedule's rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) schedule: Schedule,
    pub(crate) num_microbatches: i64,
    /// Model chunks of a stage: 2 in a V, 1 where they are not interleaved.
    pub(crate) chunks: i64,
    /// Microbatches that go through a chunk before the next begins, where that is not PyTorch's own number.
    pub(crate) group: Option<i64>,
    /// Whether stages run one more forward ahead, if they are interleaved.
    pub(crate) extra_warm_up: bool,
    pub(crate) transfer_time_s: f64,
}

impl Shape {
    /// How many microbatches go through a chunk before the next begins. PyTorch divides a step into as many
    /// equal rounds as there are whole sets of one microbatch for each stage.
    fn group_of(self, num_stages: i64) -> i64 {
        let rounds = i64::max(1, self.num_microbatches / num_stages);
        self.group.unwrap_or(self.num_microbatches / rounds)
    }

    /// How many microbatches go through a chunk of a stage before this one goes through this chunk, those of
    /// all chunks together. The last group may be smaller.
    fn nth(self, microbatch: i64, chunk: i64, group: i64) -> i64 {
        let before = microbatch / group * group;
        let size = i64::min(group, self.num_microbatches - before);
        before * self.chunks + chunk * size + microbatch - before
    }

    /// What a stage runs of a microbatch on a chunk, and where, if its chunks follow each other in a loop.
    fn chunked_places(
        self,
        (stage, num_stages): (i64, i64),
        microbatch: i64,
        chunk: i64,
    ) -> Vec<(Instruction, i64)> {
        use Instruction::{Backward, BackwardInput, BackwardWeight, Forward};
        let group = self.group_of(num_stages);
        let nth_forward = self.nth(microbatch, chunk, group);
        let nth_backward = self.nth(microbatch, self.chunks - 1 - chunk, group);
        let (behind, chunks_ahead) = (num_stages - 1 - stage, (self.chunks - 1) * group);
        match self.schedule {
            Schedule::LoopedBfs => {
                let nth = chunk * self.num_microbatches + microbatch;
                let last = 2 * self.chunks * self.num_microbatches;
                vec![(Forward, nth), (Backward, last - nth)]
            }
            Schedule::InterleavedZeroBubble => vec![
                (Forward, 4 * (nth_forward - behind - chunks_ahead) - 2),
                (BackwardInput, 4 * nth_backward),
                (BackwardWeight, 4 * (nth_backward + stage) + 1),
            ],
            _ => {
                let ahead = 2 * behind + chunks_ahead + i64::from(self.extra_warm_up);
                vec![(Forward, 4 * (nth_forward - ahead) - 2), (Backward, 4 * nth_backward)]
            }
        }
    }
}

/// One operation of a step.
#[derive(Clone, Copy)]
struct Task {
    stage: i64,
    instruction: Instruction,
    microbatch: i64,
    /// Of the model, counted through all chunks.
    virtual_stage: i64,
    /// Where it comes among those of its stage.
    place: i64,
}

/// Where the part of the model comes that a stage runs of a microbatch on a chunk.
fn virtual_stage(
    stage: i64,
    num_stages: i64,
    shape: Shape,
    (microbatch, chunk): (i64, i64),
) -> i64 {
    match shape.schedule {
        Schedule::ZbV | Schedule::DualPipeV if chunk == 1 => 2 * num_stages - 1 - stage,
        // The second half of the microbatches goes in at the last stage.
        Schedule::DualPipe if 2 * microbatch >= shape.num_microbatches => num_stages - 1 - stage,
        _ => chunk * num_stages + stage,
    }
}

/// The operations of a stage in their order. Backward `m` has the place `4m`, which leaves room for
/// what comes between it and the next.
fn tasks_of(stage: i64, num_stages: i64, shape: Shape) -> Vec<Task> {
    use Instruction::{
        Backward, BackwardInput, BackwardWeight, Forward, ForwardBackward, Recomputation,
    };
    let Shape { schedule, num_microbatches, chunks, .. } = shape;
    let mut tasks = Vec::new();
    for microbatch in 0..num_microbatches {
        for chunk in 0..chunks {
            let virtual_stage = virtual_stage(stage, num_stages, shape, (microbatch, chunk));
            let mut run = |instruction, place| {
                tasks.push(Task { stage, instruction, microbatch, virtual_stage, place });
            };
            // As many forwards as the pipeline is deep from here on come before the first backward,
            // the others after one each.
            let ahead = num_stages - stage;
            let (forward, backward) = (4 * (microbatch - ahead) + 2, 4 * microbatch);
            match schedule {
                Schedule::OneForwardOneBackward => {
                    run(Forward, forward);
                    run(Backward, backward);
                }
                Schedule::GPipe => {
                    run(Forward, microbatch);
                    run(Backward, num_microbatches + microbatch);
                }
                Schedule::EarlyRecomputation => {
                    run(Forward, forward);
                    if microbatch <= num_microbatches - num_stages + stage {
                        run(ForwardBackward, backward);
                    } else {
                        run(Recomputation, backward - 1);
                        run(Backward, backward);
                    }
                }
                Schedule::ZbH1 => {
                    run(Forward, forward);
                    run(BackwardInput, backward);
                    run(BackwardWeight, 4 * (microbatch + stage) + 1);
                }
                Schedule::Interleaved | Schedule::InterleavedZeroBubble | Schedule::LoopedBfs => {
                    let places = shape.chunked_places((stage, num_stages), microbatch, chunk);
                    places.into_iter().for_each(|(instruction, place)| run(instruction, place));
                }
                Schedule::ZbV | Schedule::DualPipeV | Schedule::DualPipe => {
                    let v = V { stage, num_stages, num_microbatches, microbatch };
                    let places = match schedule {
                        Schedule::DualPipe => v.places_both_ways(),
                        _ => v.places(schedule, chunk),
                    };
                    places.into_iter().for_each(|(instruction, place)| run(instruction, place));
                }
                other => panic!("no rules for {other}"),
            }
        }
    }
    tasks.sort_by_key(|task| task.place);
    tasks
}

/// What an operation hands on to others of its microbatch, of which virtual stage.
#[derive(Clone, Copy, PartialEq)]
enum Product {
    Activation(i64),
    Gradient(i64),
}

impl Task {
    fn makes(&self) -> Option<Product> {
        match self.instruction {
            Instruction::Forward => Some(Product::Activation(self.virtual_stage)),
            Instruction::Recomputation | Instruction::BackwardWeight => None,
            _ => Some(Product::Gradient(self.virtual_stage)),
        }
    }

    /// What it waits for beside the operation before it on its stage.
    fn needs(&self, last_virtual_stage: i64) -> Option<Product> {
        let own = self.virtual_stage;
        match self.makes()? {
            Product::Activation(_) => (own > 0).then_some(Product::Activation(own - 1)),
            Product::Gradient(_) if own < last_virtual_stage => Some(Product::Gradient(own + 1)),
            Product::Gradient(_) => Some(Product::Activation(own)),
        }
    }
}

/// What an operation may take of the rows that were measured of it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Take {
    /// So much of each: what no plan can beat.
    Mixture,
    /// A single one, as a GPU must: what the best plan takes.
    One,
}

/// The least energy of a step as a linear program: each operation takes a mixture of its measured
/// rows, and starts when what it waits for has ended.
pub(crate) struct LinearProgram {
    problem: Problem,
    /// When the step ends, ms.
    end: Variable,
    /// What all stages draw while they wait.
    idle_w: f64,
    /// With every operation at its fastest row.
    pub(crate) fastest_s: f64,
    /// With every operation at its row of least effective energy.
    pub(crate) slowest_s: f64,
}

impl LinearProgram {
    pub(crate) fn new(profile: &Profile, shape: Shape, p2p_power: Watts, take: Take) -> Self {
        let Watts(p2p_w) = p2p_power;
        let num_stages = i64::from(profile.num_stages());
        let stages: Vec<Vec<Task>> =
            (0..num_stages).map(|stage| tasks_of(stage, num_stages, shape)).collect();
        let tasks: Vec<&Task> = stages.iter().flatten().collect();
        // (seconds, effective joules)
        let rows: Vec<Vec<(f64, f64)>> = tasks
            .iter()
            .map(|task| {
                let table = profile.table(Stage(task.stage as u16), task.instruction);
                table.iter().map(|row| (row.time_s, row.energy_j - p2p_w * row.time_s)).collect()
            })
            .collect();
        let waits = waits(&tasks, num_stages * shape.chunks - 1, shape.transfer_time_s);

        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let end = problem.add_var(0.0, (0.0, f64::INFINITY));
        let mut starts = Vec::new();
        let mut shares = Vec::new();
        for rows in &rows {
            starts.push(problem.add_var(0.0, (0.0, f64::INFINITY)));
            let share = |&(_, effective_j): &(f64, f64)| match take {
                Take::Mixture => problem.add_var(effective_j, (0.0, 1.0)),
                Take::One => problem.add_binary_var(effective_j),
            };
            shares.push(rows.iter().map(share).collect::<Vec<_>>());
            let mixture = shares[shares.len() - 1].iter().map(|&share| (share, 1.0));
            problem.add_constraint(mixture, ComparisonOp::Eq, 1.0);
        }
        // later - earlier - (how long the earlier one takes) >= lag
        let mut follow = |later: Variable, earlier: usize, lag_s: f64| {
            let mut row = LinearExpr::empty();
            row.add(later, 1.0);
            row.add(starts[earlier], -1.0);
            for (&share, &(time_s, _)) in shares[earlier].iter().zip(&rows[earlier]) {
                row.add(share, -1e3 * time_s);
            }
            problem.add_constraint(row, ComparisonOp::Ge, 1e3 * lag_s);
        };
        for &(earlier, later, lag_s) in &waits {
            follow(starts[later], earlier, lag_s);
        }
        for task in 0..tasks.len() {
            follow(end, task, 0.0);
        }
        let idle_w = p2p_w * num_stages as f64;
        let by_time = |a: &&(f64, f64), b: &&(f64, f64)| a.0.total_cmp(&b.0);
        let by_energy = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1).then(by_time(a, b));
        let fastest: Vec<f64> =
            rows.iter().map(|rows| rows.iter().min_by(by_time).unwrap().0).collect();
        let slowest: Vec<f64> =
            rows.iter().map(|rows| rows.iter().min_by(by_energy).unwrap().0).collect();
        Self {
            problem,
            end,
            idle_w,
            fastest_s: longest_s(&fastest, &waits),
            slowest_s: longest_s(&slowest, &waits),
        }
    }

    /// The least energy that a step of this time can take, in joules; none if it takes more branches than
    /// these to prove it.
    pub(crate) fn proven_energy_j(&self, time_s: f64, branches: u64) -> Option<f64> {
        let mut problem = self.problem.clone();
        problem.add_constraint([(self.end, 1.0)], ComparisonOp::Le, 1e3 * time_s);
        let mut options = SolveOptions::default();
        options.node_limit = Some(branches);
        let outcome = problem.solve_with(options).unwrap();
        let is_proven = outcome.termination_reason() == TerminationReason::ProvenOptimal;
        let solution = outcome.into_solution().ok().filter(|_| is_proven)?;
        Some(solution.objective() + self.idle_w * time_s)
    }

    /// Joules of a step that takes this many seconds, or none if no step does.
    pub(crate) fn least_energy_j(&self, time_s: f64) -> Option<f64> {
        let mut problem = self.problem.clone();
        problem.add_constraint([(self.end, 1.0)], ComparisonOp::Le, 1e3 * time_s);
        match problem.solve() {
            Ok(outcome) => {
                let solution = outcome.into_solution().unwrap();
                Some(solution.objective() + self.idle_w * time_s)
            }
            Err(Error::Infeasible) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Who waits for whom: (earlier, later, seconds between them).
fn waits(tasks: &[&Task], last: i64, transfer_time_s: f64) -> Vec<(usize, usize, f64)> {
    let mut waits = Vec::new();
    for (later, task) in tasks.iter().enumerate() {
        if later > 0 && tasks[later - 1].stage == task.stage {
            waits.push((later - 1, later, 0.0));
        }
        let Some(product) = task.needs(last) else { continue };
        let makes_it =
            |other: &&Task| other.makes() == Some(product) && other.microbatch == task.microbatch;
        let earlier = tasks.iter().position(makes_it).unwrap();
        let crosses = tasks[earlier].stage != task.stage;
        waits.push((earlier, later, if crosses { transfer_time_s } else { 0.0 }));
    }
    waits
}

/// When the last operation ends, by going over all waits until nothing changes any more.
fn longest_s(times_s: &[f64], waits: &[(usize, usize, f64)]) -> f64 {
    let mut starts_s = vec![0.0; times_s.len()];
    loop {
        let before = starts_s.clone();
        for &(earlier, later, lag_s) in waits {
            starts_s[later] =
                f64::max(starts_s[later], starts_s[earlier] + times_s[earlier] + lag_s);
        }
        if starts_s == before {
            return starts_s.iter().zip(times_s).map(|(s, t)| s + t).fold(0.0, f64::max);
        }
    }
}
