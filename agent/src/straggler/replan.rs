//! New plans for what is measured now, made from the profile of a job's frontier. Where that cannot
//! be done, the frontier's own plans have to do. Pure.

use pfo_planner::{Conditions, Deadline, Due, Plan, Straggler, replay};
use pfo_protocol::{ClockTable, Refusal, RefusalCode};

use crate::job::JobKey;
use crate::straggler::SlowStages;
use crate::straggler::frontier::{JobFrontier, NO_LONGER, wrong};
use crate::straggler::table::{Labelled, put_clocks_into};

/// Instructions times stages of the largest step that a plan is made for: one or two seconds of a
/// core. Clocks that are late make it ten times as much work. Some stages count in any case, because
/// the memory that planning takes follows from the instructions alone.
const MOST_WORK: usize = 400_000;
const MOST_WORK_WITH_LATE_CLOCKS: usize = 40_000;
const LEAST_STAGES: usize = 16;

/// A plan that gets back less than this share, of time or of energy, is not worth a swap.
const WORTH: f64 = 0.001;

/// The share of the allowed slowdown that a plan is made for that has to keep it.
const CORRECTED_SHARE: f64 = 0.75;

/// A plan for what is measured now.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) plan: Labelled,
    /// Why it is one of the frontier, which knows nothing of what is measured, if it is.
    pub(crate) looked_up: Option<Refusal>,
}

impl Made {
    /// The plan, after a word in the journal if it is only looked up.
    pub(super) fn said(self, key: &JobKey) -> Labelled {
        if let Some(why) = self.looked_up {
            tracing::info!(
                uid = key.uid.0, job = %key.name,
                "the plan for {key} is looked up in its frontier, not made for what is measured \
                 now: {why}"
            );
        }
        self.plan
    }
}

impl JobFrontier {
    /// The plan that takes a straggler's time under these conditions.
    ///
    /// # Errors
    /// If a stage of it is empty.
    pub(crate) fn plan_for_now(
        &self,
        straggler: Straggler,
        conditions: &Conditions,
    ) -> Result<Made, Refusal> {
        match self.replanned(None, conditions, self.frontier().due_for(straggler)) {
            Ok(plan) => {
                let plan = Labelled::of(self.label_at(straggler), &plan)?;
                Ok(Made { plan, looked_up: None })
            }
            Err(why) => Ok(Made { plan: self.plan_for(straggler)?, looked_up: Some(why) }),
        }
    }

    /// The plan for a job some of whose stages do not run as they were profiled: it takes the time
    /// of its own plan, or the shortest that is possible now. None if it would not be worth a swap,
    /// or no stage is slow.
    ///
    /// # Errors
    /// Those of [`JobFrontier::plan_for_slow`].
    pub(crate) fn plan_for_slow_now(
        &self,
        own: &ClockTable,
        slow: &SlowStages,
        conditions: &Conditions,
    ) -> Result<Option<(Straggler, Made)>, Refusal> {
        if slow.is_empty() {
            return Ok(None);
        }
        match self.replanned_for_slow(own, conditions) {
            Ok(None) => Ok(None),
            Ok(Some((straggler, plan))) => Ok(Some((straggler, Made { plan, looked_up: None }))),
            Err(why) => {
                let made = |(straggler, plan)| (straggler, Made { plan, looked_up: Some(why) });
                Ok(self.plan_for_slow(own, slow)?.map(made))
            }
        }
    }

    fn replanned_for_slow(
        &self,
        own: &ClockTable,
        conditions: &Conditions,
    ) -> Result<Option<(Straggler, Labelled)>, Refusal> {
        if conditions.is_empty() {
            return Err(Refusal::new(
                RefusalCode::NoPlan,
                "no instruction is known to take another time than was profiled",
                "wait for some steps under the plan",
            ));
        }
        let own = self.own(own)?;
        let under = self.profile().under(conditions).map_err(wrong)?;
        let now = replay(&under, &own, self.p2p_power()).map_err(wrong)?;
        let asked_s = self.time_s(self.profile(), &own)?.min(now.iteration_time_s);
        let mut plan = self.replanned(Some(&own), conditions, Due::AtMost(asked_s))?;
        let time_s = |plan: &Plan| plan.predicted.map_or(asked_s, |p| p.iteration_time_s);
        if time_s(&plan) > asked_s {
            // The last thousandths of time are the dearest.
            let deadline_s = time_s(&plan) * (1.0 + NO_LONGER);
            plan = self.replanned(Some(&own), conditions, Due::AtMost(deadline_s))?;
        }
        let saved_j = plan.predicted.map_or(0.0, |p| now.iteration_energy_j - p.iteration_energy_j);
        let is_faster = time_s(&plan) < now.iteration_time_s * (1.0 - WORTH);
        if !is_faster && saved_j < WORTH * now.iteration_energy_j {
            return Ok(None);
        }
        let factor = (1e3 * time_s(&plan) / self.fastest_s()).round() / 1e3;
        let straggler = Straggler::new(factor.max(1.0)).map_err(wrong)?;
        let label = self.label_with(&format!(" at {straggler}, replanned"));
        Ok(Some((straggler, Labelled::of(label, &plan)?)))
    }

    /// A faster plan for a job whose own makes steps longer than allowed, by these shares of a step
    /// at default clocks.
    ///
    /// # Errors
    /// If the job's plan has other instructions or clocks that were not profiled, or there is no
    /// faster one.
    pub(crate) fn corrected(
        &self,
        own: &ClockTable,
        [slowdown, allowed]: [f64; 2],
        conditions: &Conditions,
    ) -> Result<Made, Refusal> {
        let own = self.own(own)?;
        let under = self.profile().under(conditions).map_err(wrong)?;
        let own_s = self.time_s(&under, &own)?;
        let deadline_s = own_s * (1.0 + CORRECTED_SHARE * allowed) / (1.0 + slowdown);
        let due = Due::AtMost(deadline_s);
        let (plan, looked_up) = match self.replanned(Some(&own), conditions, due) {
            Ok(plan) => (plan, None),
            Err(why) => (self.plan_within(deadline_s)?, Some(why)),
        };
        if self.time_s(&under, &plan)? > own_s * (1.0 - WORTH) {
            return Err(Refusal::new(
                RefusalCode::NoPlan,
                "no plan of its frontier's clocks is faster",
                "profile the job anew",
            ));
        }
        let label = self.label_with(&format!(" within {:.1} %", 100.0 * allowed));
        Ok(Made { plan: Labelled::of(label, &plan)?, looked_up })
    }

    /// The frontier's plan that keeps a deadline, in seconds, or else its fastest.
    fn plan_within(&self, deadline_s: f64) -> Result<Plan, Refusal> {
        let deadline = Deadline::Seconds(deadline_s.max(self.fastest_s()));
        let frontier = self.frontier();
        frontier.pick(deadline).and_then(|place| frontier.plan(place)).map_err(wrong)
    }

    /// A plan of this frontier with the clocks of a table.
    pub(super) fn own(&self, table: &ClockTable) -> Result<Plan, Refusal> {
        let mut own = self.frontier().plan(0).map_err(wrong)?;
        put_clocks_into(table, &mut own)?;
        Ok(own)
    }

    fn replanned(
        &self,
        own: Option<&Plan>,
        conditions: &Conditions,
        due: Due,
    ) -> Result<Plan, Refusal> {
        self.check_work()?;
        self.frontier().replanned(own, conditions, due).map_err(wrong)
    }

    /// Whether a plan of its size takes seconds at most.
    ///
    /// # Errors
    /// If not.
    pub(super) fn check_work(&self) -> Result<(), Refusal> {
        let frontier = self.frontier();
        let stages = LEAST_STAGES.max(self.stages() as usize);
        let work = frontier.pipeline().num_instructions().saturating_mul(stages);
        let has_late_clocks = frontier.plan(0).map_err(wrong)?.delays.make_changes_late();
        check_work(work, has_late_clocks)
    }
}

/// Whether a plan of this size takes seconds at most: its instructions, times its stages.
fn check_work(work: usize, has_late_clocks: bool) -> Result<(), Refusal> {
    let most = if has_late_clocks { MOST_WORK_WITH_LATE_CLOCKS } else { MOST_WORK };
    if work <= most {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalCode::LimitReached,
        format!(
            "a new plan takes too long: its step has {work} instructions times stages, and at \
             most {most} are planned for"
        ),
        "make the frontier without --switch-latency-ms if it has that",
    ))
}

#[cfg(test)]
mod tests {
    use pfo_planner::Condition;
    use pfo_protocol::{Instruction, Stage};

    use super::*;
    use crate::straggler::frontier::tests::frontier_of;

    fn frontier(stages: u16, microbatches: u32) -> JobFrontier {
        JobFrontier::read("f".into(), &frontier_of(stages, microbatches), 1 << 20).unwrap()
    }

    fn own(frontier: &JobFrontier) -> ClockTable {
        frontier.plan_for(Straggler::NONE).unwrap().table
    }

    fn conditions(stage: u16, condition: Condition) -> Conditions {
        let kinds = [Instruction::Forward, Instruction::Backward];
        kinds.map(|kind| ((Stage(stage), kind), condition)).into()
    }

    fn slow(stage: u16, share: f64) -> SlowStages {
        SlowStages::from([(Stage(stage), share)])
    }

    /// Seconds and joules of a step with a table under these conditions.
    fn under(frontier: &JobFrontier, table: &ClockTable, conditions: &Conditions) -> (f64, f64) {
        let plan = frontier.own(table).unwrap();
        let profile = frontier.profile().under(conditions).unwrap();
        let replayed = replay(&profile, &plan, frontier.p2p_power()).unwrap();
        (replayed.iteration_time_s, replayed.iteration_energy_j)
    }

    #[test]
    fn a_new_plan_saves_no_less_than_one_that_is_looked_up_and_takes_no_longer() {
        let frontier = frontier(3, 6);
        let own = own(&frontier);
        for stage in 0..3 {
            for condition in [Condition::Slowed(1.3), Condition::Held(1.2)] {
                let conditions = conditions(stage, condition);
                let slow = slow(stage, 0.25);
                let found = frontier.plan_for_slow_now(&own, &slow, &conditions).unwrap();
                let (_, made) = found.unwrap();
                assert!(made.looked_up.is_none());
                assert!(made.plan.label.starts_with("f at 1."), "{}", made.plan.label);
                let own = under(&frontier, &own, &conditions);
                let new = under(&frontier, &made.plan.table, &conditions);
                assert!(new.0 <= own.0 * (1.0 + NO_LONGER) + 1e-9, "{new:?} {own:?}");
                assert!(new.1 < own.1);
                let predicted = made.plan.table.predicted().unwrap();
                assert!((predicted.time_s - new.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn a_plan_that_gets_back_nothing_is_no_swap() {
        let frontier = frontier(1, 2);
        let own = own(&frontier);
        let slowed = conditions(0, Condition::Slowed(1.5));
        assert!(frontier.plan_for_slow_now(&own, &slow(0, 0.5), &slowed).unwrap().is_none());
        let nobody = SlowStages::new();
        assert!(frontier.plan_for_slow_now(&own, &nobody, &slowed).unwrap().is_none());
    }

    #[test]
    fn where_nothing_is_measured_a_plan_is_looked_up_and_that_is_said() {
        let frontier = frontier(2, 8);
        let own = own(&frontier);
        let found = frontier.plan_for_slow_now(&own, &slow(1, 0.5), &Conditions::new()).unwrap();
        let (_, made) = found.unwrap();
        assert!(made.looked_up.unwrap().message.contains("no instruction is known"));
    }

    #[test]
    fn a_step_that_is_too_large_is_refused_with_its_size() {
        assert!(check_work(LEAST_STAGES * 2 * 8 * 96, true).is_ok());
        assert!(check_work(32 * 2 * 32 * 64, false).is_ok());
        for (work, has_late_clocks) in [(400_001, false), (40_001, true), (usize::MAX, false)] {
            let why = check_work(work, has_late_clocks).unwrap_err();
            assert!(why.message.contains(&work.to_string()), "{why}");
        }
    }

    #[test]
    fn a_corrected_plan_is_faster_by_what_was_too_much() {
        let frontier = frontier(2, 8);
        let slowest = frontier.plan_for(Straggler::new(1.3).unwrap()).unwrap().table;
        let slowed = conditions(0, Condition::Slowed(1.05));
        let before = under(&frontier, &slowest, &slowed);
        for conditions in [Conditions::new(), slowed] {
            let made = frontier.corrected(&slowest, [0.3, 0.05], &conditions).unwrap();
            let after = under(&frontier, &made.plan.table, &conditions);
            assert!(after.0 < before.0 * 1.05 / 1.3, "{after:?} {before:?}");
            assert_eq!(made.plan.label, "f within 5.0 %");
            assert!(made.looked_up.is_none());
        }
        let fastest = own(&frontier);
        let refused = frontier.corrected(&fastest, [0.3, 0.05], &Conditions::new()).unwrap_err();
        assert!(refused.message.contains("is faster"), "{refused}");
    }
}
