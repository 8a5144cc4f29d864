//! The daemon's state as `pfoctl status` shows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pfo_keeper::{Entry, Gpu, Reading, only_observes};
use pfo_policy::Permit;
use pfo_protocol::{
    DaemonStatus, GpuStatus, JobStatus, Mhz, Pid, Rank, RankStatus, RankWindow, Status, Window,
};
use pfo_service::now_ns;

use super::reload::config_status;
use crate::job::{Job, Member, Members};
use crate::lease::RankWindows;
use crate::node::Node;

/// A set call that takes longer is shown as a problem.
const SLOW_SET_CALL_NS: u64 = 1_000_000_000;

/// The status, without the jobs of users that the permit does not let its caller see.
pub(super) fn status(node: &Node, permit: &Permit) -> Status {
    let (driver, problem) = match node.driver.get() {
        Ok(driver) => (Some(Arc::clone(&driver)), driver.missing.join("; ")),
        Err(why) => (None, why),
    };
    let gpus = driver.as_ref().map_or(&[][..], |driver| &driver.gpus);
    let mut owed = node.owed.entries();
    owed.retain(|entry| permit.sees(entry.uid));
    let in_words = |owed: &Entry| format!("{}, locked for job {}", owed.gpu_uuid, owed.job);
    let damage = node.ledger.damage().filter(|damage| damage.lost_entries);
    let daemon = DaemonStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Pid(std::process::id()),
        uptime_s: node.started.elapsed().as_secs_f64(),
        driver: driver.as_ref().map(|driver| driver.version.clone()),
        driver_problem: Some(problem).filter(|problem| !problem.is_empty()),
        sessions: node.leases.sessions().len() as u32,
        unrestored: owed.iter().map(in_words).collect(),
        config: config_status(node),
        drained: node.drain.standing(),
        ledger_damage: damage.map(|damage| damage.reason),
        only_observes: only_observes(),
    };
    Status {
        daemon,
        gpus: gpus.iter().map(|gpu| gpu_status(node, permit, gpu)).collect(),
        jobs: node.jobs.seen_by(permit).iter().map(|job| job_status(job)).collect(),
    }
}

fn gpu_status(node: &Node, permit: &Permit, gpu: &Arc<Gpu>) -> GpuStatus {
    let session = node.leases.holder(&gpu.uuid);
    let holder = session.as_ref().map(|session| &session.holder);
    let progress = session.as_ref().map(|session| &session.progress);
    let mhz = |set: u32| (set > 0).then_some(Mhz(set));
    let (reading, failed) = match node.driver.read_recently(gpu) {
        Ok(reading) => (reading, None),
        Err(error) => (Reading::default(), Some(error.to_string())),
    };
    let stuck = progress.and_then(|progress| {
        let since = progress.published.in_driver_since_ns.load(Relaxed);
        let ns = if since > 0 { now_ns().saturating_sub(since) } else { 0 };
        (ns > SLOW_SET_CALL_NS)
            .then(|| format!("the driver has not answered for {:.0} s", ns as f64 / 1e9))
    });
    GpuStatus {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        model: gpu.model.clone(),
        mig: reading.mig,
        requested_mhz: progress.and_then(|p| mhz(p.published.locked_mhz.load(Relaxed))),
        observed_mhz: reading.sm_clock,
        memory_locked_mhz: progress.and_then(|p| mhz(p.published.memory_locked_mhz.load(Relaxed))),
        power_w: reading.power_w,
        power_limit_w: progress
            .map(|p| p.published.power_limit_w.load(Relaxed))
            .filter(|limit_w| *limit_w > 0),
        holder: holder.filter(|holder| permit.sees(holder.uid)).cloned(),
        leased: holder.is_some(),
        driver_use: gpu.asked.lately(),
        throttle_reasons: reading.held_back.map_or(0, |reasons| reasons.bits()),
        temperature_c: reading.temperature_c,
        minor: gpu.minor,
        meter: node.meters.remark(&gpu.uuid),
        problem: stuck
            .or(failed)
            .or_else(|| progress.and_then(|p| p.problem.load().as_deref().cloned()))
            .or_else(|| progress.and_then(|p| p.foreign_clock.load().as_deref().cloned())),
    }
}

fn job_status(job: &Job) -> JobStatus {
    let members = job.members();
    let energies_j = members.ranks().map(|rank| rank.session.progress.measured.load().energy_j);
    JobStatus {
        job: job.key.name.clone(),
        uid: job.key.uid,
        pp_degree: job.pp_degree,
        plan: members.plans.current().map(|plan| plan.status()),
        loaded: members.plans.loaded().map(|plan| plan.status()),
        measured_by: members.held.map(|holder| holder.by),
        swap_at_step: members.plans.under_way().map(|swap| swap.step()),
        measured_for_s: members.past.measured_for().as_secs_f64(),
        energy_j: energies_j.chain([members.past.energy_j()]).sum(),
        windows: windows(&members),
        ranks: members.ranks().map(rank_status).collect(),
    }
}

fn rank_status(member: &Member) -> RankStatus {
    let progress = &member.session.progress;
    let seconds = |ns: u64| ns as f64 / 1e9;
    let set_calls = progress.published.set_calls.load(Relaxed);
    let set_call_ns = progress.published.set_call_ns.load(Relaxed);
    RankStatus {
        rank: member.hello.position.rank,
        stage: member.hello.position.pp_rank,
        pid: member.session.holder.pid,
        session: member.session.holder.session,
        gpu_uuid: member.gpu.uuid.clone(),
        step: progress.step(),
        plan: Some(progress.plan.load(Relaxed)).filter(|plan| *plan > 0),
        mismatched_steps: progress.mismatched_steps.load(Relaxed),
        last_mismatch: progress.last_mismatch.load().as_deref().cloned(),
        lost_events: progress.lost_events.load(Relaxed),
        misplaced_instructions: progress.misplaced_instructions.load(Relaxed),
        untimed_calls: progress.untimed_calls.load(Relaxed),
        energy_j: progress.measured.load().energy_j,
        instructions: progress.instructions.load(Relaxed),
        instruction_s: seconds(progress.instruction_ns.load(Relaxed)),
        off_plan_s: seconds(progress.off_plan_ns.load(Relaxed)),
        late_instructions: progress.late_instructions.load(Relaxed),
        clock_changes: set_calls,
        skipped_changes: progress.skipped_changes.load(Relaxed),
        set_call_mean_us: set_call_ns as f64 / 1e3 / set_calls.max(1) as f64,
        settle_ms: member.session.settle_times().longest_ns() as f64 / 1e6,
        set_call_max_us: progress.published.set_call_max_ns.load(Relaxed) as f64 / 1e3,
        problem: progress.problem.load().as_deref().cloned(),
    }
}

/// The windows of all ranks combined, swap by swap. A window of a forgotten swap is left out,
/// because its plan is not known.
fn windows(members: &Members) -> Vec<Window> {
    let mut by_rank = members.past.windows().clone();
    for member in members.ranks() {
        let measured = member.session.progress.measured.load();
        let rank: Rank = member.hello.position.rank;
        by_rank.entry(rank).or_default().merge(&measured.windows);
    }
    let mut by_swap: BTreeMap<u64, Vec<RankWindow>> = BTreeMap::new();
    for (swap, window) in by_rank.values().flat_map(RankWindows::measured) {
        by_swap.entry(swap).or_default().push(window);
    }
    let window = |(number, ranks): (u64, Vec<RankWindow>)| {
        let plan = members.plans.ran_after(number)?;
        let steps = |window: &RankWindow| window.steps as f64;
        Some(Window {
            plan,
            ranks: ranks.len() as u32,
            steps: ranks.iter().map(|window| window.steps).min().unwrap_or(0),
            iteration_time_s: ranks.iter().map(|w| w.time_s / steps(w)).fold(0.0, f64::max),
            iteration_energy_j: ranks.iter().map(|w| Some(w.energy_j? / steps(w))).sum(),
        })
    };
    by_swap.into_iter().filter_map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Plans, Swap};
    use crate::lease::Measured;
    use crate::measure::Verdict;

    const SECOND: u64 = 1_000_000_000;

    /// A session that measured one step under each of these swaps.
    fn measured(swaps: &[u64], step_j: f64) -> Measured {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        for (swap, step) in swaps.iter().flat_map(|swap| (0..3).map(move |step| (*swap, step))) {
            measured.step_begins(swap, 1, step * SECOND, Some(step_j * step as f64));
        }
        measured
    }

    #[test]
    fn the_window_of_a_swap_that_is_forgotten_is_left_out() {
        let swap = |number| Arc::new(Swap::decided(number, None, 0, Vec::new()));
        let plans = Plans::of_earlier_daemon([swap(8), swap(9)].into());
        let mut members = Members::without_ranks(plans, std::time::Instant::now());
        members.past.add(Rank(0), &measured(&[0, 5, 8, 9, u64::MAX], 10.0));
        members.past.add(Rank(1), &measured(&[9], 30.0));
        let windows = windows(&members);
        let shown: Vec<_> = windows.iter().map(|w| (w.ranks, w.iteration_energy_j)).collect();
        assert_eq!(shown, [(1, Some(10.0)), (1, Some(10.0)), (2, Some(40.0))]);
        assert!(windows.iter().all(|window| window.plan.is_none()));
    }
}
