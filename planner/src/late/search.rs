//! Iterated local search for one plan, with prompt clocks or late ones.
//!
//! Some neighbouring operations of a stage are sped up or get one clock, and the slack that this
//! makes is given to the operations that save most with it. The search continues from every plan
//! that is better in the same time, or a little worse, which leads out of plans that no single
//! change improves: where clocks are late, most are of that kind.

use fastrand::Rng;

use crate::choices::Realised;
use crate::late::step::LateStep;

/// The most operations that are changed together.
const WIDEST: usize = 12;

/// What a search may do.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    /// Seconds that a step may take.
    pub(crate) deadline_s: f64,
    /// The additional energy, as a share, of a plan from which the search may continue; shrinks
    /// during the search.
    pub(crate) detour: f64,
    /// How often it changes some operations.
    pub(crate) kicks: u32,
    pub(crate) seed: u64,
}

impl Search {
    /// The best plan that is found from this one, which is in time.
    pub(crate) fn from(self, step: &mut LateStep<'_>, plan: &Realised) -> Realised {
        let Self { deadline_s, detour, kicks, seed } = self;
        let mut random = Rng::with_seed(seed);
        let mut best = plan.clone();
        let mut present = step.choices().all_unpacked(&best.assignment);
        step.load(present.clone());
        for kick in 0..kicks {
            let detour_j =
                detour * best.effective_j.abs() * f64::from(kicks - kick) / f64::from(kicks);
            step.aim_at(deadline_s);
            let changed = match step.has_late_clocks() && random.bool() {
                true => one_clock(step, &mut random),
                false => speed_up(step, &mut random),
            };
            if !step.make(&changed) {
                continue;
            }
            step.aim_at(deadline_s);
            give_slack(step);
            if step.effective_j() < best.effective_j - 1e-9 {
                best = step.realised();
            }
            if step.effective_j() < best.effective_j + detour_j {
                present.clone_from(step.assignment());
            } else {
                step.load(present.clone());
            }
        }
        best
    }
}

/// Some neighbouring operations of a stage, all or only those of one instruction.
fn neighbours(step: &LateStep<'_>, random: &mut Rng) -> Vec<usize> {
    let network = step.network();
    let first = random.usize(..network.len());
    let width = 1 + random.usize(..WIDEST);
    let instruction = (random.u8(..3) > 0).then_some(network.operations[first].instruction);
    std::iter::successors(Some(first), |&operation| step.late().next(operation))
        .take(width)
        .filter(|&op| instruction.is_none_or(|only| network.operations[op].instruction == only))
        .collect()
}

/// Neighbouring operations, one or two choices faster.
fn speed_up(step: &LateStep<'_>, random: &mut Rng) -> Vec<(usize, u32)> {
    let operations = neighbours(step, random);
    let by = 1 + random.u32(..2);
    operations
        .into_iter()
        .map(|operation| {
            let fastest = step.choices().fastest(operation);
            (operation, step.choice(operation).saturating_sub(by).max(fastest))
        })
        .filter(|&(operation, faster)| faster < step.choice(operation))
        .collect()
}

/// Neighbouring operations, all with the clock that one of them has, or about it.
fn one_clock(step: &LateStep<'_>, random: &mut Rng) -> Vec<(usize, u32)> {
    let operations = neighbours(step, random);
    let like = operations[random.usize(..operations.len())];
    let (fastest, end) = step.choices().of(like);
    let choice = (step.choice(like) + random.u32(..3)).saturating_sub(1).clamp(fastest, end - 1);
    let clock = step.choices().get(choice).frequency;
    operations
        .into_iter()
        .map(|operation| (operation, step.choices().nearest(operation, clock)))
        .filter(|&(operation, choice)| choice != step.choice(operation))
        .collect()
}

/// Slows operations down into their slack, best saving per second first.
fn give_slack(step: &mut LateStep<'_>) {
    const LEVELS: i32 = 8;
    const LEAST_SLACK_S: f64 = 1e-5;
    let slack: Vec<usize> = (0..step.network().len())
        .filter(|&op| step.late().asks(op) && step.slack_s(op) > LEAST_SLACK_S)
        .collect();
    let best_w = step.choices().best_rate_w();
    for least_w in (1..LEVELS).map(|level| best_w * 0.5_f64.powi(level)).chain([0.0]) {
        for &operation in &slack {
            let present = step.choice(operation);
            let within_s = f64::INFINITY;
            let worth = step.choices().worth_slowing_to(operation, present, within_s, least_w);
            (present + 1..=worth).any(|slower| !step.try_out(&[(operation, slower)]));
        }
    }
}
