//! A job, its GPUs and a `pfod` in memory. Its time is virtual: it passes where a test lets it pass, and
//! while a turn is measured. Steps take what a replay of their clocks over the job's profile says, longer by
//! a share that a test sets.

use std::sync::{Arc, Mutex, MutexGuard};

use pfo_fleet::{Digest, Guard, Node, Run, Standing};
use pfo_planner::{Conditions, Profile};
use pfo_protocol::{
    JobView, PlanStatus, RecordedTrial, Refusal, RefusalCode, SwapTarget, TrialLength, TrialResult,
    TrialRun, TrialStep,
};
use pfo_service::lock;
use pfo_store::Note;

use crate::fleet::{AllSlow, Noted, run_of};
use crate::job::{JobKey, no_job};
use crate::ledger::Compared;
use crate::pfod::Asker;
use crate::record::TrialSamples;
use crate::steer::here::alone;
use crate::steer::{
    Change, ComparedTurn, Comparison, Doing, Hold, Measured, Stands, Steer, SteerError,
    SwapRequest, Swapped, Turn, WholeJob, allow_slowdown, next_step,
};
use crate::straggler::{JobFrontier, Labelled, SlowStages};

/// Steps at default clocks that a comparison takes which is broken off.
const SPENT: u64 = 4;

/// The hand on a job of the model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    key: JobKey,
    node: Node,
    world: Arc<Mutex<World>>,
}

/// Everything that there is.
#[derive(Debug)]
struct World {
    frontier: JobFrontier,
    view: JobView,
    now_s: f64,
    /// Steps that were done, the beginning of one included.
    steps: f64,
    /// By which share steps with a plan take longer than predicted.
    slower: f64,
    /// What runs now, and what runs for good.
    runs: Run,
    run: Run,
    number: u64,
    plans: Vec<(Run, Labelled)>,
    standing: Standing,
    slow: AllSlow,
    is_held: bool,
    is_away: bool,
}

impl World {
    fn step_s(&self, run: &Run) -> f64 {
        let plan = self.plans.iter().find(|(known, _)| known == run);
        let table = plan.map(|(_, plan)| &plan.table);
        let step_s = self.frontier.point_of(table).map_or(1.0, |point| point.iteration_time_s);
        if table.is_some() { step_s * (1.0 + self.slower) } else { step_s }
    }

    fn pass(&mut self, time_s: f64) {
        self.now_s += time_s;
        self.steps += time_s / self.step_s(&self.runs.clone());
    }

    /// Runs something from the next step on, and measures some of its steps.
    fn measure(
        &mut self,
        run: &Run,
        TrialLength { settling_steps, steps }: TrialLength,
    ) -> (u64, TrialResult) {
        self.runs = run.clone();
        let (step, step_s) = (self.steps.floor() as u64 + 1, self.step_s(run));
        let table = self.plans.iter().find(|(known, _)| known == run).map(|(_, plan)| &plan.table);
        let energy_j = self.frontier.point_of(table).map_or(1.0, |point| point.iteration_energy_j);
        let all = f64::from(settling_steps) + f64::from(steps);
        self.pass(all * step_s);
        let one = TrialStep { time_s: step_s, energy_j: Some(energy_j) };
        let trial = TrialResult {
            plan: self.plan_of(run),
            first_step: step + u64::from(settling_steps),
            steps: vec![one; steps as usize],
            ranks: Vec::new(),
        };
        (step, trial)
    }

    fn plan_of(&self, run: &Run) -> Option<PlanStatus> {
        let Run::Plan(cut) = run else { return None };
        Some(PlanStatus {
            number: self.number as u32,
            label: cut.label.clone(),
            predicted_time_s: cut.predicted.map(|(time_s, _)| time_s),
            predicted_energy_j: cut.predicted.map(|(_, energy_j)| energy_j),
            suspended: None,
            power_limits_w: Vec::new(),
        })
    }

    /// The job as `pfod` shows it.
    fn view(&self) -> JobView {
        let mut view = JobView { plan: self.plan_of(&self.runs), ..self.view.clone() };
        view.swap = self.number;
        for rank in &mut view.ranks {
            (rank.swap, rank.step) = (self.number, Some(self.steps as u64));
        }
        view
    }

    fn take_up(&mut self, run: Run, standing: Standing) {
        (self.runs, self.run, self.standing) = (run.clone(), run, standing);
        self.number += 1;
    }
}

impl Model {
    /// A job that has run its first step at default clocks.
    pub(crate) fn of(view: JobView, frontier: JobFrontier) -> Self {
        let world = World {
            frontier,
            now_s: 0.0,
            steps: 1.0,
            slower: 0.0,
            runs: Run::DefaultClocks,
            run: Run::DefaultClocks,
            number: 0,
            plans: Vec::new(),
            standing: Standing::default(),
            slow: AllSlow::default(),
            is_held: false,
            is_away: false,
            view,
        };
        let key = JobKey::of(&world.view);
        Self { key, node: Node::alone(), world: Arc::new(Mutex::new(world)) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The virtual time, in seconds.
    pub(crate) fn now_s(&self) -> f64 {
        self.world().now_s
    }

    /// The step that runs.
    pub(crate) fn step(&self) -> u64 {
        self.world().steps as u64
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time_s: f64) {
        self.world().pass(time_s);
    }

    /// From now on steps with a plan take longer than predicted, by this share.
    pub(crate) fn slow_down(&self, share: f64) {
        self.world().slower = share;
    }

    /// Whether somebody else holds the job for measuring.
    pub(crate) fn hold_for_others(&self, is_held: bool) {
        self.world().is_held = is_held;
    }

    /// Whether `pfod` answers.
    pub(crate) fn go_away(&self, is_away: bool) {
        self.world().is_away = is_away;
    }

    /// The plan that the frontier has for a straggler.
    pub(crate) fn plan_at(&self, factor: f64) -> Labelled {
        let straggler = pfo_planner::Straggler::new(factor).unwrap();
        self.world().frontier.plan_for(straggler).unwrap()
    }

    fn check(&self) -> Result<MutexGuard<'_, World>, SteerError> {
        let world = self.world();
        if world.is_away { Err(SteerError::Away("it is away".into())) } else { Ok(world) }
    }

    fn check_free(&self) -> Result<MutexGuard<'_, World>, SteerError> {
        let world = self.check()?;
        if world.is_held {
            let held = Refusal::new(RefusalCode::LimitReached, "somebody holds the job", "wait");
            return Err(held.into());
        }
        Ok(world)
    }

    fn check_number(&self, number: u64) -> Result<MutexGuard<'_, World>, SteerError> {
        let world = self.check_free()?;
        if world.number == number { Ok(world) } else { Err(changed()) }
    }

    fn swapped(&self) -> Swapped {
        let world = self.world();
        let (plan, step) = (world.plan_of(&world.run), next_step(&world.view()));
        let ranks = world.view.ranks.len() as u32;
        Swapped::Here(pfo_protocol::Swapped { plan, step, ranks, changed: ranks })
    }
}

fn changed() -> SteerError {
    let message = "the job has changed";
    SteerError::Meanwhile(Refusal::new(RefusalCode::LimitReached, message, "look again"))
}

fn doing<'a, T: Send + 'a>(done: Result<T, SteerError>) -> Doing<'a, T> {
    Box::pin(async { done })
}

impl Steer for Model {
    fn key(&self) -> &JobKey {
        &self.key
    }

    fn look(&self) -> Doing<'_, WholeJob> {
        doing(self.check().map(|world| {
            let view = world.view();
            WholeJob { members: alone(&view), view }
        }))
    }

    fn stands(&self) -> Doing<'_, Stands> {
        doing(self.check().map(|world| Stands {
            view: world.view(),
            number: world.number,
            step: 0,
            in_trial: world.is_held || world.runs != world.run,
            run: world.run.clone(),
            standing: world.standing.clone(),
        }))
    }

    fn guard(&self) -> Doing<'_, Option<Guard>> {
        doing(Ok(self.world().standing.guard.clone()))
    }

    fn plan_of<'a>(&'a self, run: &'a Run) -> Doing<'a, Option<Labelled>> {
        let world = self.world();
        let plan = world.plans.iter().find(|(known, _)| known == run);
        doing(Ok(plan.map(|(_, plan)| plan.clone())))
    }

    fn publish(&self, plan: Labelled) -> Doing<'_, Run> {
        let run = run_of(&plan);
        self.world().plans.push((run.clone(), plan));
        doing(Ok(run))
    }

    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped> {
        Box::pin(async move {
            let run = match request.target {
                SwapTarget::Table { label, table } => {
                    self.publish(Labelled { label, table }).await?
                }
                SwapTarget::DefaultClocks => Run::DefaultClocks,
                _ => return Err(no_job(&self.key).into()),
            };
            {
                let mut world = self.check_free()?;
                let standing = world.standing.for_another(next_step(&world.view()));
                world.take_up(run, standing);
            }
            if let Some(most) = request.max_slowdown {
                allow_slowdown(self, request.by, Some(most)).await?;
            }
            Ok(self.swapped())
        })
    }

    fn change(&self, change: Change) -> Doing<'_, Swapped> {
        let Change { run, standing, after, .. } = change;
        let changed = self.check_number(after).map(|mut world| world.take_up(run, standing));
        doing(changed.map(|()| self.swapped()))
    }

    fn compare(&self, number: u64) -> Box<dyn Comparison> {
        Box::new(ComparisonInModel { model: self.clone(), number })
    }

    fn is_for_this_node<'a>(&'a self, node: &'a Node) -> Doing<'a, bool> {
        doing(Ok(*node == self.node))
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn noted(&self, _note: Note) -> Doing<'_, Option<Noted>> {
        doing(Ok(None))
    }

    fn fetch_noted<'a>(&'a self, _noted: &'a Noted) -> Doing<'a, Vec<u8>> {
        doing(Ok(Vec::new()))
    }

    fn note(&self, _note: Note, _label: String, _bytes: Vec<u8>) -> Doing<'_, ()> {
        doing(Ok(()))
    }

    fn publish_profile<'a>(&'a self, _profile: &'a Profile) -> Doing<'a, Vec<Digest>> {
        doing(Ok(Vec::new()))
    }

    fn fetch_profile<'a>(&'a self, _digests: &'a [Digest]) -> Doing<'a, Profile> {
        doing(Err(no_job(&self.key).into()))
    }

    fn note_slow(&self, stages: &SlowStages, conditions: &Conditions) {
        self.world().slow = AllSlow::of_node(stages, conditions);
    }

    fn all_slow(&self) -> Doing<'_, Option<AllSlow>> {
        doing(Ok(Some(self.world().slow.clone())))
    }

    fn hold(&self, _by: Asker) -> Box<dyn Hold> {
        Box::new(HoldInModel { model: self.clone(), is_held: false })
    }
}

/// A comparison under way.
#[derive(Debug)]
struct ComparisonInModel {
    model: Model,
    number: u64,
}

impl Comparison for ComparisonInModel {
    fn turn(&mut self, run: Run, length: TrialLength) -> Doing<'_, ComparedTurn> {
        let world = self.model.check_number(self.number);
        doing(world.map(|mut world| {
            let (step, trial) = world.measure(&run, length);
            ComparedTurn { step, trial }
        }))
    }

    fn end(
        self: Box<Self>,
        (run, standing): (Run, Standing),
        _compared: Option<pfo_fleet::Compared>,
    ) -> Doing<'static, ()> {
        let world = self.model.check_number(self.number);
        let ended = world.map(|mut world| world.take_up(run, standing));
        doing(ended)
    }
}

impl Drop for ComparisonInModel {
    fn drop(&mut self) {
        let mut world = self.model.world();
        if world.number == self.number && world.runs != world.run {
            world.runs = world.run.clone();
            let guard = world.standing.guard.take();
            world.standing.guard = guard.map(|guard| guard.after(SPENT, None));
        }
    }
}

/// A job of the model that is held.
#[derive(Debug)]
struct HoldInModel {
    model: Model,
    is_held: bool,
}

impl Hold for HoldInModel {
    fn turn(&mut self, turn: Turn) -> Doing<'_, Measured> {
        Box::pin(async move {
            let run = match turn.setting {
                TrialRun::DefaultClocks => Run::DefaultClocks,
                TrialRun::Plan { label, table } => {
                    self.model.publish(Labelled { label, table }).await?
                }
                _ => return Err(no_job(&self.model.key).into()),
            };
            let (_, trial) = self.model.check_free()?.measure(&run, turn.length);
            self.is_held = true;
            Ok((RecordedTrial { trial, ranks: Vec::new() }, TrialSamples::default()))
        })
    }

    fn is_held(&self) -> bool {
        self.is_held
    }

    fn take(&mut self, _plan: PlanStatus, _compared: Compared) {}

    fn end(&mut self, keep: bool) -> Doing<'_, Option<PlanStatus>> {
        self.is_held = false;
        let ended = self.model.check().map(|mut world| {
            let run = if keep { world.runs.clone() } else { Run::DefaultClocks };
            let standing = world.standing.for_another(next_step(&world.view()));
            world.take_up(run, standing);
            world.plan_of(&world.run)
        });
        doing(ended)
    }
}

impl Drop for HoldInModel {
    fn drop(&mut self) {
        if self.is_held {
            let mut world = self.model.world();
            let standing = world.standing.for_another(next_step(&world.view()));
            world.take_up(Run::DefaultClocks, standing);
        }
    }
}
