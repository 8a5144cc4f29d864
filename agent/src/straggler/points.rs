//! The plans of a job's frontier as points of time and energy, and what it runs as one of these. Pure.

use pfo_planner::{Point, at_highest_clocks, replay};
use pfo_protocol::{ClockTable, Refusal};

use crate::straggler::frontier::{JobFrontier, wrong};
use crate::straggler::table::Labelled;

impl JobFrontier {
    /// Every plan of it, fastest first. Its place here is its name.
    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        self.frontier().plans()
    }

    /// Time and energy of a step with these clocks or, with none, without a plan.
    ///
    /// # Errors
    /// If they are of other instructions, or were not profiled.
    pub(crate) fn point_of(&self, own: Option<&ClockTable>) -> Result<Point, Refusal> {
        let plan = match own {
            Some(table) => self.own(table)?,
            None => {
                let fastest = self.frontier().plan(0).map_err(wrong)?;
                at_highest_clocks(self.profile(), &fastest).map_err(wrong)?
            }
        };
        let replayed = replay(self.profile(), &plan, self.p2p_power()).map_err(wrong)?;
        Ok(Point {
            iteration_time_s: replayed.iteration_time_s,
            iteration_energy_j: replayed.iteration_energy_j,
        })
    }

    /// What its plan at a place is called while a budget has the job run it.
    pub(crate) fn label_in_budget(&self, place: u32) -> String {
        self.label_with(&format!(" in budget {place}"))
    }

    /// That plan.
    ///
    /// # Errors
    /// If there is none at this place.
    pub(crate) fn plan_in_budget(&self, place: u32) -> Result<Labelled, Refusal> {
        let plan = self.frontier().plan(place as usize).map_err(wrong)?;
        Labelled::of(self.label_in_budget(place), &plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::frontier::tests::frontier_of;

    #[test]
    fn every_plan_is_the_point_that_its_clocks_make() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 4), 1 << 20).unwrap();
        for (place, point) in (0..).zip(frontier.points()) {
            let plan = frontier.plan_in_budget(place).unwrap();
            assert_eq!(plan.label, format!("f in budget {place}"));
            let again = frontier.point_of(Some(&plan.table)).unwrap();
            assert!((again.iteration_time_s - point.iteration_time_s).abs() < 1e-9);
            assert!((again.iteration_energy_j / point.iteration_energy_j - 1.0).abs() < 1e-9);
        }
        let without = frontier.point_of(None).unwrap();
        let fastest = frontier.points().next().unwrap();
        assert!((without.iteration_time_s - fastest.iteration_time_s).abs() < 1e-9);
        assert!(without.iteration_energy_j >= fastest.iteration_energy_j);
    }
}
