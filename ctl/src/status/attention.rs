//! What needs somebody's attention, in sentences: tables have no room for reasons.

use pfo_protocol::{DriftStatus, DriftedInstruction, DriftedRank, Status};

use super::quantity::{change, percent};
use super::table::heading;
use crate::output::Look;
use crate::text::harmless;

/// The list under its heading; none if all is well.
pub(crate) fn list(status: &Status, user: &dyn Fn(u32) -> String, look: Look) -> Option<String> {
    let mut points = of_daemon_and_gpus(status);
    points.extend(of_jobs(status, user));
    if points.is_empty() {
        return None;
    }
    let mut text = heading("Needs attention", look);
    for point in points {
        text += &format!("  {}\n", harmless(&point));
    }
    Some(text)
}

fn of_daemon_and_gpus(status: &Status) -> Vec<String> {
    let mut points = Vec::new();
    if let Some(problem) = &status.daemon.driver_problem {
        points.push(format!("driver: {problem}"));
    }
    let config = &status.daemon.config;
    if let Some(why) = &config.refused {
        points.push(format!("configuration refused, the one before is in force: {why}"));
    }
    for key in &config.restart_needed_for {
        points.push(format!("configuration: the new {key} takes a restart of pfod"));
    }
    for name in &config.unknown_names {
        points.push(format!("configuration: there is no {name}"));
    }
    for gpu in &status.daemon.unrestored {
        points.push(format!("clocks not restored yet: {gpu}"));
    }
    for gpu in &status.gpus {
        if let Some(problem) = &gpu.problem {
            points.push(format!("GPU {}: {problem}", gpu.index));
        }
    }
    points
}

fn of_jobs(status: &Status, user: &dyn Fn(u32) -> String) -> Vec<String> {
    let mut points = Vec::new();
    for job in &status.jobs {
        let name = format!("job {} of {}", job.job, user(job.uid));
        if let Some(plan) = &job.plan
            && let Some(why) = &plan.suspended
        {
            let number = plan.number;
            points.push(format!("{name}: plan {number} is suspended: {why}"));
        }
        points.extend(job.drift.as_ref().map(|drift| format!("{name}: {}", drifted(drift))));
        for rank in &job.ranks {
            let name = format!("{name}, rank {}", rank.rank);
            if let Some(slow) = rank.slow {
                let by = percent(slow);
                points.push(format!("{name}: its instructions take {by} longer than was profiled"));
            }
            if let Some(problem) = &rank.problem {
                points.push(format!("{name}: {problem}"));
            }
            if let Some(mismatch) = &rank.last_mismatch {
                let steps = match rank.mismatched_steps {
                    1 => "1 step".to_owned(),
                    count => format!("{count} steps"),
                };
                points.push(format!("{name}: {steps} off the plan, last: {mismatch}"));
            }
        }
    }
    points
}

/// How far off the prediction, and what of it.
fn drifted(drift: &DriftStatus) -> String {
    let mut text = format!("off its plan's prediction: {} time", change(drift.time));
    if let Some(energy) = drift.energy {
        text += &format!(", {} energy a step", change(energy));
    }
    for DriftedInstruction { stage, instruction, time } in &drift.instructions {
        text += &format!("; {instruction} of stage {stage} {}", change(*time));
    }
    for DriftedRank { rank, energy } in &drift.ranks {
        text += &format!("; energy of rank {rank} {} since the plan began", change(*energy));
    }
    text
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Instruction;

    use super::*;

    #[test]
    fn a_drift_is_told_with_its_shares_and_instructions() {
        let (stage, instruction) = (2, Instruction::Backward);
        let drift = DriftStatus {
            time: 0.12,
            energy: Some(-0.061),
            instructions: vec![DriftedInstruction { stage, instruction, time: 0.3 }],
            ranks: vec![DriftedRank { rank: 5, energy: -0.2 }],
        };
        assert_eq!(
            drifted(&drift),
            "off its plan's prediction: +12.0 % time, -6.1 % energy a step; backward of stage 2 +30.0 %; \
             energy of rank 5 -20.0 % since the plan began"
        );
    }
}
