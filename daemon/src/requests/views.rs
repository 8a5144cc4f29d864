//! Jobs as the agent sees them.

use std::sync::atomic::Ordering::Relaxed;

use pfo_policy::Permit;
use pfo_protocol::{JobView, MeterStatus, RankView};

use crate::job::{Job, Jobs, Member};
use crate::measure::Meters;

/// Every job that the permit lets its caller see.
pub(super) fn jobs(jobs: &Jobs, meters: &Meters, permit: &Permit) -> Vec<JobView> {
    jobs.seen_by(permit).iter().map(|job| view(job, meters)).collect()
}

fn view(job: &Job, meters: &Meters) -> JobView {
    let members = job.members();
    let rank = |member: &Member| rank(member, meters.remark(&member.gpu.uuid));
    JobView {
        job: job.key.name.clone(),
        uid: job.key.uid,
        pp_degree: job.pp_degree,
        plan: members.plans.current().map(|plan| plan.status()),
        swap: members.plans.newest_number(),
        measured_by: members.held.map(|holder| holder.by),
        ranks: members.ranks().map(rank).collect(),
    }
}

fn rank(member: &Member, meter: Option<MeterStatus>) -> RankView {
    let progress = &member.session.progress;
    let swap = progress.swap.load(Relaxed);
    let measured = progress.measured.load();
    let window = measured.windows.measured().find(|(number, _)| *number == swap);
    let (min, max) = member.session.grant.load().terms.bounds();
    let is_allowed = |clock: &&pfo_protocol::Mhz| (min..=max).contains(*clock);
    let ran = progress.ran.load();
    let seen = || ran.as_ref()?.iter().map(|unit| unit.microbatch.0).max()?.checked_add(1);
    RankView {
        position: member.hello.position.clone(),
        session: member.session.holder.session,
        run: member.hello.run().map(str::to_owned),
        gpu_uuid: member.gpu.uuid.clone(),
        gpu_model: member.gpu.model.clone(),
        sm_clocks: member.gpu.sm_clocks.iter().filter(is_allowed).copied().collect(),
        // The rank's own thread learns of a doubt at its next step.
        counts_energy: measured.counts && meter.as_ref().is_none_or(|meter| !meter.withheld),
        num_microbatches: member.hello.num_microbatches.or_else(seen),
        swap,
        step: progress.step(),
        window: window.map(|(_, window)| window),
        meter,
        problem: progress.problem.load().as_deref().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pfo_protocol::{Instruction, Mhz, Unit};

    use super::*;
    use crate::job::example_member;
    use crate::lease::{Measured, example_grant};
    use crate::measure::Verdict;

    #[test]
    fn the_microbatches_that_a_rank_did_not_say_are_those_that_were_seen() {
        let mut member = example_member(0, 0);
        assert_eq!(rank(&member, None).num_microbatches, None);
        let ran = |microbatch| {
            let units = [0, microbatch].map(|number| Unit::new(Instruction::Forward, number));
            Some(Arc::new(units.to_vec()))
        };
        member.session.progress.ran.store(ran(11));
        assert_eq!(rank(&member, None).num_microbatches, Some(12));
        member.session.progress.ran.store(ran(u32::MAX));
        assert_eq!(rank(&member, None).num_microbatches, None, "no step has this many");
        member.hello.num_microbatches = Some(8);
        assert_eq!(rank(&member, None).num_microbatches, Some(8));
    }

    #[test]
    fn a_view_has_the_clocks_that_the_rank_may_have_and_the_window_of_its_swap() {
        let member = example_member(0, 0);
        member.session.grant.store(Arc::new(example_grant("max_mhz = 1000")));
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        for (swap, at_s) in [(1, 0), (1, 1), (1, 2), (2, 3)] {
            measured.step_begins(swap, 1, at_s * 1_000_000_000, Some(at_s as f64));
        }
        member.session.progress.measured.store(Arc::new(measured));
        member.session.progress.swap.store(1, Relaxed);
        let view = rank(&member, None);
        assert_eq!(view.sm_clocks, [Mhz(210), Mhz(900)]);
        assert!(view.counts_energy);
        assert_eq!(view.window.map(|window| (window.steps, window.time_s)), Some((1, 1.0)));
        member.session.progress.swap.store(2, Relaxed);
        assert_eq!(rank(&member, None).window, None, "its only step settles");
    }
}
