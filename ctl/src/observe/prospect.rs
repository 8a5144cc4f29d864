//! From what was seen to what clocks would save.

use pfo_experiment::order;
use pfo_planner::{
    Delays, Instruction, PerStage, Pipeline, PlanError, Profile, Prospect, Schedule, Seen as Job,
    Watts,
};

use super::seen::Seen;

/// By how much steps may take longer: not at all, and by two small shares.
const SLOWDOWNS: [f64; 3] = [0.0, 0.01, 0.05];

/// What a GPU that waits draws of what it draws when it computes, where no wait was measured. A100 and
/// A40: 84 of 320 W, 70 of 280 W (Perseus, SOSP 2024).
const WAITING: f64 = 0.25;

/// What clocks would save.
///
/// # Errors
/// In words, what is missing for a prediction.
pub(super) fn prospects(seen: &Seen) -> Result<Vec<Prospect>, String> {
    if seen.work.is_empty() {
        return Err("the job reports steps, but none of their instructions".to_owned());
    }
    let (Some(step_s), Some(step_j)) = (seen.steps.time_s(), seen.steps.energy_j()) else {
        let ranks: Vec<_> = seen.unmetered.iter().map(ToString::to_string).collect();
        return Err(format!("pfod reads no energy of the GPUs of ranks {}", ranks.join(", ")));
    };
    let Some(gpu) = seen.model() else {
        return Err("its GPUs are of several models, or of none that is known".to_owned());
    };
    let compute = |instruction| {
        matches!(instruction, Instruction::Forward | Instruction::Backward) || seen.order.is_some()
    };
    // A counter that stands still measures nothing.
    let mean_w = seen.work_w().ok_or("an instruction's energy is not known; run longer")?;
    let mut work = Vec::new();
    for (&(stage, instruction), row) in &seen.work {
        if compute(instruction) && row.count > 0 {
            let energy_j = row.energy_j().map_or(mean_w * row.time_s(), |(energy_j, _)| energy_j);
            work.push((stage, instruction, row.time_s(), energy_j));
        }
    }
    let known = seen.waits.values().filter_map(super::seen::Waits::power_w);
    let least_w = known.min_by(f64::total_cmp).unwrap_or(WAITING * mean_w);
    let waiting = seen.stages.keys().map(|stage| {
        let of_stage = seen.waits.get(stage).and_then(super::seen::Waits::power_w);
        Watts(of_stage.unwrap_or(least_w))
    });
    let pipelines = seen.stages.values().copied().max().unwrap_or(1) as f64;
    let job = Job {
        gpu: gpu.to_owned(),
        clocks: seen.clocks.clone(),
        work,
        waiting: PerStage::new(waiting.collect()).map_err(|error| error.to_string())?,
        step_j: step_j / pipelines,
        step_s,
    };
    job.prospects(&SLOWDOWNS, &|profile| pipeline(seen, profile)).map_err(|error| error.to_string())
}

/// The job's own order or, where that was not seen, 1F1B of as many microbatches as ran.
fn pipeline(seen: &Seen, profile: &Profile) -> Result<Pipeline, PlanError> {
    if let Some(order) = &seen.order {
        return order::pipeline(order, profile, Delays::default());
    }
    let forwards = seen.work.iter().find(|((_, kind), _)| *kind == Instruction::Forward);
    let microbatches = forwards.map_or(1.0, |(&(stage, _), work)| seen.per_step(stage, work));
    Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches.round().max(1.0) as u32)
}
