//! The plan for a pipeline that waits for a straggler.
//!
//! Pipelines that train together wait for the slowest of them at the end of every step. Being
//! faster wastes energy ("extrinsic energy bloat", Perseus, SOSP 2024), so the others may take the
//! straggler's time. A pipeline that is done earlier waits, and waiting takes energy, too: so its
//! plan may be slower than the one that takes least by itself.

use std::fmt;
use std::str::FromStr;

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::frontier::Frontier;
use crate::frontier::deadline::Deadline;
use crate::frontier::due::Due;

/// The slowdown of a straggler: its iteration time as a multiple of the fastest, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Straggler(f64);

impl Straggler {
    /// No slowdown.
    pub const NONE: Self = Self(1.0);

    /// A straggler that takes `factor` times the fastest iteration time.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if the factor is not a number of at least 1.
    pub fn new(factor: f64) -> Result<Self, PlanError> {
        if factor.is_finite() && factor >= 1.0 {
            return Ok(Self(factor));
        }
        Err(refused(factor.to_string()))
    }

    /// The multiple of the fastest iteration time.
    pub fn factor(self) -> f64 {
        self.0
    }
}

impl FromStr for Straggler {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
        number
            .and_then(|factor| Self::new(factor).ok())
            .ok_or_else(|| refused(format!("\"{}\"", excerpt(text))))
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.0)
    }
}

fn refused(value: String) -> PlanError {
    PlanError::BadArgument {
        name: "the straggler's slowdown",
        value,
        expected: "a multiple of the fastest iteration time, from 1 on, such as 1.2",
    }
}

impl Frontier {
    /// The index in [`Frontier::plans`] of the plan of least energy, with the wait for the
    /// straggler, whose iteration takes at most as long as the straggler's. A binary search, which
    /// takes microseconds; [`Frontier::plan_for`] makes one that is a little better.
    ///
    /// # Errors
    /// None for a frontier that this crate made or read: its fastest plan always fits.
    pub fn pick_for_straggler(&self, straggler: Straggler) -> Result<usize, PlanError> {
        self.place(self.due_for(straggler))
    }

    /// When a step is due that a straggler's follows.
    pub fn due_for(&self, straggler: Straggler) -> Due {
        Due::Waiting(self.seconds(Deadline::Factor(straggler.0)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::frontier::Point;
    use crate::frontier::optimize::{Options, Spread};
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Watts;

    fn frontier() -> Frontier {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&unequal(), schedule, 6).unwrap();
        let options = Options { plans: 40, spread: Spread::Useful };
        // Waiting is so dear that the slowest plan is not the cheapest.
        Frontier::optimize(&pipeline, Watts(400.0), options, &|_| {}).unwrap()
    }

    fn picked(frontier: &Frontier, factor: f64) -> Point {
        let place = frontier.pick_for_straggler(Straggler::new(factor).unwrap()).unwrap();
        frontier.plans().nth(place).unwrap()
    }

    #[test]
    fn no_plan_that_keeps_the_stragglers_time_takes_less_energy() {
        let frontier = frontier();
        let fastest_s = frontier.plans().next().unwrap().iteration_time_s;
        for factor in [1.0, 1.003, 1.02, 1.05, 1.1, 1.2, 3.0] {
            let picked = picked(&frontier, factor);
            let in_time = frontier.plans().filter(|p| p.iteration_time_s <= factor * fastest_s);
            let waiting_w = frontier.p2p_power().total_w(2);
            let until_s = factor * fastest_s;
            let with_wait_j = |plan: Point| {
                plan.iteration_energy_j + waiting_w * (until_s - plan.iteration_time_s)
            };
            let least_j = in_time.map(with_wait_j).min_by(f64::total_cmp).unwrap();
            assert!(picked.iteration_time_s <= until_s);
            assert_eq!(with_wait_j(picked), least_j, "{factor}");
        }
    }

    #[test]
    fn whoever_waits_long_runs_a_slower_plan_than_the_one_of_least_energy() {
        let frontier = frontier();
        let cheapest = frontier.pick(Deadline::MinEnergy).unwrap();
        let slowest = frontier.plans().len() - 1;
        assert!(slowest > cheapest, "there are slower plans to choose");
        for factor in [10.0, 1e9] {
            let straggler = Straggler::new(factor).unwrap();
            assert_eq!(frontier.pick_for_straggler(straggler).unwrap(), slowest);
            assert_eq!(frontier.pick(Deadline::Factor(factor)).unwrap(), cheapest);
        }
    }

    #[test]
    fn without_a_straggler_the_fastest_plan_runs() {
        let frontier = frontier();
        assert_eq!(picked(&frontier, 1.0), frontier.points().next().unwrap());
    }

    #[test]
    fn a_look_up_takes_microseconds() {
        const LOOK_UPS: u32 = 10_000;
        let frontier = frontier();
        let began = Instant::now();
        for i in 0..LOOK_UPS {
            picked(&frontier, 1.0 + f64::from(i) / f64::from(LOOK_UPS));
        }
        // Unoptimised and on a busy machine; it is well below a microsecond otherwise.
        assert!(began.elapsed() < LOOK_UPS * Duration::from_micros(100));
    }

    #[test]
    fn a_slowdown_that_is_none_is_refused_with_its_value() {
        for text in ["0.99", "0", "-1", "nan", "infx", "slow", ""] {
            let message = text.parse::<Straggler>().unwrap_err().to_string();
            assert!(message.contains(&format!("\"{text}\"")) && message.contains("1.2"));
        }
        assert_eq!("1.2x".parse::<Straggler>().unwrap().factor(), 1.2);
        assert_eq!("1.2".parse::<Straggler>().unwrap().to_string(), "1.2x");
    }
}
