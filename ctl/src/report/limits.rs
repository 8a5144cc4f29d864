//! What keeps a job from saving more, in sentences.

use pfo_planner::{Timeline, Unheld};

use super::html::list;
use super::page::{Known, Section};
use crate::output::Look;
use crate::profile::throttle_reasons;
use crate::savings::saved;
use crate::status::quantity::percent;
use crate::status::{attention, rank_table};

/// What keeps the job from saving more, as far as it is known.
pub(super) fn limits(known: &Known<'_>) -> Section {
    let (pfod, agent) = (&known.both.pfod, &known.both.agent);
    let points = attention::list(pfod, agent, known.user, Look::default()).unwrap_or_default();
    let mut said: Vec<String> =
        points.lines().skip(1).map(|point| point.trim().to_owned()).collect();
    for gpu in pfod.gpus.iter().filter(|gpu| gpu.throttle_reasons != 0) {
        let reasons = throttle_reasons(gpu.throttle_reasons);
        said.push(format!("GPU {} is held back now: {reasons} (measured)", gpu.index));
    }
    for rank in &known.job.ranks {
        if let Some(share) = rank_table::off_plan(rank).filter(|share| *share >= 0.001) {
            said.push(format!(
                "rank {}: {} of the time in instructions ran at another clock than planned (measured)",
                rank.rank,
                percent(share)
            ));
        }
    }
    for unheld in known.profile.iter().flat_map(|(profile, _)| profile.unheld()) {
        let Unheld { stage, instruction, highest, useful } = unheld;
        said.push(format!(
            "{instruction} of stage {stage}: a power limit held the GPUs below {highest}; no clock \
             above {useful} is of use (measured, in the profile)"
        ));
    }
    if let (Some(plan), Ok((profile, _))) = (known.plan, known.profile)
        && let Ok(timeline) = Timeline::new(profile, plan)
    {
        for (stage, spans) in timeline.stages.iter().enumerate() {
            let busy_s: f64 = spans.iter().map(|span| span.end_s - span.start_s).sum();
            let waits = 1.0 - busy_s / timeline.iteration_time_s;
            said.push(format!("stage {stage} waits {} of a step (predicted)", percent(waits)));
        }
    }
    if let Ok(ledger) = known.ledger {
        said.extend(saved::limits(&ledger.total));
    }
    Ok(if said.is_empty() { String::new() } else { list(&said) })
}
