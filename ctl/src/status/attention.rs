//! What needs attention, in sentences: tables have no room for reasons.

use pfo_protocol::{
    AgentStatus, ConfigStatus, DriftStatus, DriftedInstruction, DriftedRank, GpuStatus,
    GuardStatus, JobStatus, MeterStatus, RankStatus, SlowRank, Status, Uid,
};

use super::node_table;
use super::quantity::{change, percent};
use super::table::heading;
use crate::daemons::Which;
use crate::error::Error;
use crate::explained::Explained;
use crate::in_force;
use crate::kept_below::kept_below;
use crate::output::Look;
use crate::profile::throttle_reasons;
use crate::text::harmless;

/// The list under its heading; none if all is well.
pub(crate) fn list(
    status: &Status,
    agent: &Result<AgentStatus, Error>,
    user: &dyn Fn(Uid) -> String,
    look: Look,
) -> Option<String> {
    let mut points = of_daemon_and_gpus(status, user);
    points.extend(of_jobs(status, user));
    points.extend(of_agent(agent, status, user));
    if points.is_empty() {
        return None;
    }
    let mut text = heading("Needs attention", look);
    for point in points {
        text += &format!("  {}\n", harmless(&point));
    }
    Some(text)
}

fn of_daemon_and_gpus(status: &Status, user: &dyn Fn(Uid) -> String) -> Vec<String> {
    let mut points = Vec::new();
    if status.daemon.only_observes {
        points.push(
            "pfod only observes: every GPU runs as without pfo, and a plan is followed as if its clocks \
             were set"
                .to_owned(),
        );
    }
    if let Some(drained) = &status.daemon.drained {
        let by = user(drained.by_uid);
        points.push(format!("drained by {by}, no GPU is leased: {}", drained.reason));
    }
    if let Some(problem) = &status.daemon.driver_problem {
        points.push(format!("driver: {problem}"));
    }
    points.extend(of_config(&status.daemon.config, Which::Pfod));
    if let Some(why) = &status.daemon.ledger_damage {
        points.push(format!(
            "the ledger was damaged ({why}): clocks may be locked that pfod does not know; `pfoctl \
             clocks reset --all`, then `pfoctl clocks acknowledge`"
        ));
    }
    for gpu in &status.daemon.unrestored {
        points.push(format!("clocks not restored yet: {gpu}"));
    }
    for gpu in &status.gpus {
        if let Some(problem) = &gpu.problem {
            points.push(format!("GPU {}: {problem}", gpu.index));
        }
        points.extend(meter(gpu));
    }
    points
}

fn of_config(config: &ConfigStatus, which: Which) -> Vec<String> {
    let mut points = Vec::new();
    if let Some(why) = &config.refused {
        points.push(format!("configuration refused, the one before it stays in force: {why}"));
    } else if let Some(what) = config_outdated(config, which) {
        points.push(format!("configuration: {what}; `pfoctl reload` puts it into force"));
    }
    for key in &config.restart_needed_for {
        points.push(format!("configuration: the new {key} requires a restart of {which}"));
    }
    for name in &config.unknown_names {
        points.push(format!("configuration: this node has no {name}"));
    }
    points
}

/// What is wrong with the energy counter of a GPU.
fn meter(gpu: &GpuStatus) -> Option<String> {
    let MeterStatus { reason, withheld } = gpu.meter.as_ref()?;
    let then = if *withheld { "; there are no figures of its energy" } else { "" };
    Some(format!("GPU {}: {reason}{then}", gpu.index))
}

/// That the file says something else than what is in force.
pub(crate) fn config_outdated(config: &ConfigStatus, which: Which) -> Option<String> {
    let file = config.file.as_deref().unwrap_or("the file");
    let is_new =
        format!("is newer than what is in force: it has been written since {which} read it");
    config.outdated.then(|| format!("{file} {is_new}"))
}

fn of_jobs(status: &Status, user: &dyn Fn(Uid) -> String) -> Vec<String> {
    let mut points = Vec::new();
    for job in &status.jobs {
        let name = format!("job {} of {}", job.job, user(job.uid));
        if let Some(plan) = &job.plan
            && let Some(why) = &plan.suspended
        {
            let number = plan.number;
            points.push(format!("{name}: plan {number} is suspended: {why}"));
        }
        let active = job.plan.as_ref().filter(|plan| plan.suspended.is_none());
        if let Some(plan) = active {
            let missing = in_force::known(job, &status.gpus);
            let number = plan.number;
            let what = |rank| format!("{name}: plan {number}, not in force on {rank}");
            points.extend(missing.iter().map(what));
        }
        points.extend(kept_below(status, job).iter().map(|kept| format!("{name}: {kept}")));
        for rank in &job.ranks {
            let name = format!("{name}, rank {}", rank.rank);
            if let Some(problem) = rank.problem.as_ref().filter(|_| active.is_none()) {
                points.push(format!("{name}: {problem}"));
            }
            if rank.misplaced_instructions > 0 {
                points.push(format!("{name}: {}", misplaced(rank)));
            }
            if rank.untimed_calls > 0 {
                points.push(format!("{name}: {}", untimed(rank.untimed_calls)));
            }
            if let Some(mismatch) = &rank.last_mismatch {
                let steps = match rank.mismatched_steps {
                    1 => "1 step".to_owned(),
                    count => format!("{count} steps"),
                };
                points.push(format!(
                    "{name}: {steps} did not follow the plan, the last one: {mismatch}"
                ));
            }
        }
    }
    points
}

/// What is wrong with where a rank's instructions begin.
pub(crate) fn misplaced(rank: &RankStatus) -> String {
    let count = rank.misplaced_instructions;
    match rank.step {
        None => format!(
            "{count} instructions began, but no step since its session began; if this lasts, begin a step first"
        ),
        Some(_) => format!(
            "{count} instructions began outside a step or inside another one, and are neither measured nor \
             planned"
        ),
    }
}

fn untimed(calls: u64) -> String {
    let counted = match calls {
        1 => "1 call counted when the host made it".to_owned(),
        _ => format!("{calls} calls counted when the host made them"),
    };
    format!("{counted}, not when the GPU got there; `session.timing` in the trainer says why")
}

fn of_agent(
    agent: &Result<AgentStatus, Error>,
    status: &Status,
    user: &dyn Fn(Uid) -> String,
) -> Vec<String> {
    let agent = match agent {
        Ok(agent) => agent,
        Err(error) => {
            let remedy = error.remedy().unwrap_or_default();
            let remedy = remedy.lines().next().map_or_else(String::new, |line| format!("; {line}"));
            return vec![format!("pfo-agent does not answer: {error}{remedy}")];
        }
    };
    let mut points = Vec::new();
    points.extend(agent.pfod_problem.as_ref().map(|why| format!("pfo-agent: no pfod: {why}")));
    let config = of_config(&agent.config, Which::Agent);
    points.extend(config.iter().map(|point| format!("pfo-agent: {point}")));
    points.extend(agent.ledger_problem.as_ref().map(|why| format!("pfo-agent, savings: {why}")));
    for job in &agent.jobs {
        let name = format!("job {} of {}", job.job, user(job.uid));
        let here = status.jobs.iter().find(|here| (&here.job, here.uid) == (&job.job, job.uid));
        let slowed = here.and_then(|here| kept_below(status, here));
        // It may be of the plan before, until the agent's next look.
        let runs = here.and_then(|here| Some(here.plan.as_ref()?.number));
        let drift = job.drift.as_ref().filter(|drift| Some(drift.plan) == runs).map(drifted);
        points.extend(drift.map(|drift| match &slowed {
            Some(_) => format!("{name}: {drift}, under these limits"),
            None => format!("{name}: {drift}"),
        }));
        points.extend(job.guard.as_ref().and_then(guarded).map(|what| format!("{name}: {what}")));
        let problems = job.fleet.as_ref().map(node_table::problems).unwrap_or_default();
        points.extend(problems.into_iter().map(|what| format!("{name}: {what}")));
        // Every rank of a pipeline is as slow as its limits make it.
        for slow in job.slow.iter().filter(|_| slowed.is_none()) {
            points.push(format!("{name}, {}", slow_rank(slow, here, &status.gpus)));
        }
    }
    points
}

/// Which rank is slow, on which GPU, by how much, and why if the driver says so.
fn slow_rank(slow: &SlowRank, job: Option<&JobStatus>, gpus: &[GpuStatus]) -> String {
    let (rank, by) = (slow.rank, percent(slow.share));
    // Without a plan, the agent compares the replicas of one stage.
    let is_compared = job.is_some_and(|job| job.pp_degree == 1 && job.plan.is_none());
    let than = if is_compared { "those of other replicas" } else { "was profiled" };
    let takes = format!("its instructions take {by} longer than {than}");
    let here = job.and_then(|job| job.ranks.iter().find(|here| here.rank == rank));
    let Some(gpu) = here.and_then(|here| gpus.iter().find(|gpu| gpu.uuid == here.gpu_uuid)) else {
        return format!("rank {rank}: {takes}");
    };
    // What holds back all replicas makes none of them slower than the others.
    let others = job.filter(|_| is_compared).into_iter().flat_map(|job| &job.ranks);
    let of_others = others
        .filter(|other| other.rank != rank)
        .filter_map(|other| gpus.iter().find(|gpu| gpu.uuid == other.gpu_uuid))
        .map(|gpu| gpu.throttle_reasons)
        .reduce(|all, reasons| all & reasons);
    let why = match gpu.throttle_reasons & !of_others.unwrap_or_default() {
        0 => String::new(),
        reasons => format!("; the driver holds the GPU back: {}", throttle_reasons(reasons)),
    };
    format!("rank {rank} on GPU {}: {takes}{why}", gpu.index)
}

/// What a guard has found, if that needs attention.
fn guarded(guard: &GuardStatus) -> Option<String> {
    let &GuardStatus { max_slowdown, slowdown, corrected, given_up, .. } = guard;
    let allowed = percent(max_slowdown);
    match (given_up, slowdown) {
        (Some(slowdown), _) => Some(format!(
            "back at default clocks: its plan made steps {} longer, and {allowed} were allowed",
            percent(slowdown)
        )),
        (None, Some(slowdown)) if slowdown > max_slowdown => Some(format!(
            "steps may take {} longer than at default clocks, and {allowed} are allowed; pfo-agent \
             compares again",
            percent(slowdown)
        )),
        _ => corrected.map(|slowdown| {
            format!(
                "runs a faster plan: the one before made steps {} longer, and {allowed} were allowed",
                percent(slowdown)
            )
        }),
    }
}

/// How far a job is from its plan's prediction, and where.
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
    use pfo_protocol::{Instruction, Rank, Stage};

    use super::*;

    #[test]
    fn a_guard_says_what_it_has_changed_and_why() {
        let guard = GuardStatus { max_slowdown: 0.05, ..GuardStatus::default() };
        assert_eq!(guarded(&guard), None);
        let corrected = GuardStatus { corrected: Some(0.12), slowdown: Some(0.03), ..guard };
        assert_eq!(
            guarded(&corrected).unwrap(),
            "runs a faster plan: the one before made steps 12.0 % longer, and 5.0 % were allowed"
        );
        let given_up = GuardStatus { given_up: Some(0.08), ..corrected };
        assert!(guarded(&given_up).unwrap().starts_with("back at default clocks"));
    }

    #[test]
    fn a_drift_is_reported_with_its_shares_and_instructions() {
        let (stage, instruction) = (Stage(2), Instruction::Backward);
        let drift = DriftStatus {
            plan: 1,
            time: 0.12,
            energy: Some(-0.061),
            instructions: vec![DriftedInstruction { stage, instruction, time: 0.3 }],
            ranks: vec![DriftedRank { rank: Rank(5), energy: -0.2 }],
        };
        assert_eq!(
            drifted(&drift),
            "off its plan's prediction: +12.0 % time, -6.1 % energy a step; backward of stage 2 \
             +30.0 %; energy of rank 5 -20.0 % since the plan began"
        );
    }
}
