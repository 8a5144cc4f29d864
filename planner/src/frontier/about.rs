//! A frontier of three plans, for one deadline: what is asked for once needs no others.

use pfo_vocabulary::Watts;

use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Choices, Realised};
use crate::error::PlanError;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::optimize::{Making, Options, check, kept, row_at};
use crate::frontier::written::WrittenDeadline;
use crate::frontier::{Frontier, Kept};
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::relaxation::bound::LowerBound;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

impl Frontier {
    /// Makes the fastest plan, about the one of least energy, and one for a deadline: all that the plan
    /// for that deadline is made from. It takes a small part of the time of [`Frontier::for_waiting`],
    /// which is called where plans have few clocks or waits have their own.
    ///
    /// # Errors
    /// Those of [`Frontier::for_waiting`], and those of [`Frontier::deadline`].
    pub fn about(
        per: ClockPer,
        pipeline: &Pipeline,
        power: impl Into<PerStage<PowerByClock>>,
        (site_power, deadline): (Watts, &WrittenDeadline),
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<Self, PlanError> {
        let power = power.into();
        let flat = power.flat().filter(|_| per == ClockPer::Instruction);
        let Some(p2p_power) = &flat else {
            let made = Self::for_waiting(per, pipeline, power, Options::default(), progress)?;
            return made.with_site_power(site_power);
        };
        // The shares of the work before the plan of least energy, and before that for the deadline.
        const FASTEST: f64 = 0.3;
        const ENDS: f64 = 0.6;
        let pipeline = &*pipeline.thinned();
        check(pipeline, p2p_power, Options::default())?;
        let progress = Progress::new(progress);
        let tradeoffs = Tradeoffs::new(pipeline, p2p_power);
        let choices = Choices::new(&tradeoffs);
        let making = Making { pipeline, p2p_power, tradeoffs: &tradeoffs, choices: &choices };
        let num_stages = pipeline.profile().num_stages();
        let second_w = p2p_power.total_w(num_stages) + site_power.0 * f64::from(num_stages);
        let cheapest_s = LowerBound::cheapest_at_s(pipeline, &tradeoffs, second_w);

        let mut plans = vec![making.fastest()];
        plans.extend(making.at(plans[0].time_s, &progress.part(0.0, FASTEST)));
        plans.extend(making.at(cheapest_s, &progress.part(FASTEST, ENDS)));
        let ends = making.frontier(&plans)?.with_site_power(site_power)?;
        let deadline_s = ends.seconds(ends.deadline(deadline)?);
        if deadline_s != cheapest_s && deadline_s > plans[0].time_s {
            plans.extend(making.at(deadline_s, &progress.part(ENDS, 1.0)));
        }
        progress.say(1.0);
        making.frontier(&plans)?.with_site_power(site_power)
    }
}

impl Making<'_> {
    /// A frontier of some of these plans.
    fn frontier(&self, plans: &[Realised]) -> Result<Frontier, PlanError> {
        let replayed = |plan: &Realised| {
            kept(self.pipeline, self.p2p_power, |operation| {
                let choice = self.choices.unpacked(&plan.assignment, operation);
                row_at(self.pipeline, operation, self.choices.get(choice).frequency)
            })
        };
        let waiting_w = self.p2p_power.total_w(self.pipeline.profile().num_stages());
        let kept: Vec<Kept> = plans.iter().map(replayed).collect();
        let plans = super::assembled::of_falling_energy(kept, waiting_w);
        let frontier = Frontier::new(self.pipeline.clone(), self.p2p_power.clone(), None, plans)?;
        Ok(Frontier { clock_per: Some(ClockPer::Instruction), ..frontier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::due::Due;
    use crate::test_profiles::four_stages;

    fn about(pipeline: &Pipeline, written: &WrittenDeadline) -> Frontier {
        let power: PerStage<Watts> = Watts(80.0).into();
        let what = (Watts(0.0), written);
        Frontier::about(ClockPer::Instruction, pipeline, power, what, &|_| {}).unwrap()
    }

    #[test]
    fn a_plan_for_one_deadline_is_as_good_as_that_of_a_whole_frontier() {
        let pipeline = four_stages(12, 0.0);
        let power = Watts(80.0);
        let whole = Frontier::optimize(&pipeline, power, Options::default(), &|_| {}).unwrap();
        for text in ["1.01x", "1.05x", "min-energy", "1.5x"] {
            let written: WrittenDeadline = text.parse().unwrap();
            let one = about(&pipeline, &written);
            let until_s = one.seconds(one.deadline(&written).unwrap());
            let energy_j = |frontier: &Frontier| {
                let plan = frontier.plan_for(Due::Waiting(until_s)).unwrap();
                frontier.energy_until_j(&plan, until_s)
            };
            let (one_j, whole_j) = (energy_j(&one), energy_j(&whole));
            assert!(one_j < 1.001 * whole_j, "{text}: {one_j} {whole_j}");
            let fastest_s = [&one, &whole].map(|frontier| frontier.seconds(Deadline::Fastest));
            assert!((fastest_s[0] - fastest_s[1]).abs() < 1e-6);
        }
    }

    #[test]
    fn a_deadline_before_the_fastest_plan_is_refused() {
        let pipeline = four_stages(6, 0.0);
        let written: WrittenDeadline = "0.9x".parse().unwrap();
        let one = about(&pipeline, &written);
        let due = Due::Waiting(one.seconds(one.deadline(&written).unwrap()));
        assert!(matches!(one.plan_for(due), Err(PlanError::DeadlineTooEarly { .. })));
    }
}
