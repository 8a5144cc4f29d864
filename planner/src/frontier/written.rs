//! A deadline as a person writes it, and what it means for a frontier.

use std::str::FromStr;

use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::deadline::Deadline;

/// The longest iteration time of a plan, with or without its unit. What a number without a unit
/// means depends on the frontier: [`Frontier::deadline`] tells.
#[derive(Clone, Debug)]
pub struct WrittenDeadline {
    deadline: Deadline,
    /// A number that may be seconds or a factor.
    bare: Option<f64>,
}

impl FromStr for WrittenDeadline {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Ok(Self { deadline: text.parse()?, bare: text.trim().parse().ok() })
    }
}

impl Frontier {
    /// The deadline that was written for this frontier. The time of the fastest plan, rounded to
    /// the four digits in which people read it, is that plan's time.
    ///
    /// # Errors
    /// [`PlanError::SecondsOrFactor`] if a number without a unit is no time that a plan takes, but
    /// could be a factor.
    pub fn deadline(&self, written: &WrittenDeadline) -> Result<Deadline, PlanError> {
        const LARGEST_FACTOR: f64 = 2.0;
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| self.seconds(end));
        if matches!(written.deadline, Deadline::Seconds(s) if is_printed_as(fastest_s, s)) {
            return Ok(Deadline::Fastest);
        }
        match written.bare {
            Some(number)
                if (1.0..=LARGEST_FACTOR).contains(&number)
                    && !(fastest_s..=cheapest_s).contains(&number) =>
            {
                Err(PlanError::SecondsOrFactor { number, fastest_s, cheapest_s })
            }
            _ => Ok(written.deadline),
        }
    }
}

/// Whether a number is what another one is in four significant digits.
fn is_printed_as(number: f64, printed: f64) -> bool {
    // A unit such as ms was divided by.
    const ROUNDING: f64 = 1e-12;
    let four_digits = format!("{number:.3e}").parse().unwrap_or(number);
    (printed - four_digits).abs() <= ROUNDING * four_digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::optimize::Options;
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::schedule::name::Schedule;
    use pfo_vocabulary::Watts;

    /// A pipeline whose fastest plan takes this long, to five digits, and the cheapest a third more.
    fn frontier(fastest_s: f64) -> Frontier {
        let mut csv = String::from("stage,instruction,frequency,time,energy\n");
        for (mhz, slower, power_w) in [(1400, 1.0, 300.0), (1200, 1.15, 240.0), (1000, 1.33, 200.0)]
        {
            let time_s = fastest_s / 2.0 * slower;
            for instruction in ["forward", "backward"] {
                csv += &format!("0,{instruction},{mhz},{time_s},{}\n", power_w * time_s);
            }
        }
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 1).unwrap();
        Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap()
    }

    fn of(frontier: &Frontier, text: &str) -> Result<Deadline, PlanError> {
        frontier.deadline(&text.parse().unwrap())
    }

    #[test]
    fn the_fastest_time_as_it_is_printed_is_the_fastest_time() {
        for (fastest_s, printed) in [(2.816_49, "2.816 s"), (0.182_349, "182.3ms")] {
            let frontier = frontier(fastest_s);
            assert_eq!(of(&frontier, printed).unwrap(), Deadline::Fastest);
        }
        assert_eq!(of(&frontier(2.816_49), "2.815").unwrap(), Deadline::Seconds(2.815));
    }

    #[test]
    fn a_number_that_no_plan_takes_but_could_be_a_factor_is_asked_about() {
        for fastest_s in [0.72, 2.8] {
            let frontier = frontier(fastest_s);
            let message = of(&frontier, "1.05").unwrap_err().to_string();
            assert!(message.contains("1.05") && message.contains("factor"), "{message}");
            assert_eq!(of(&frontier, "1.05x").unwrap(), Deadline::Factor(1.05));
            assert_eq!(of(&frontier, "1.05s").unwrap(), Deadline::Seconds(1.05));
        }
        assert_eq!(of(&frontier(1.0), "1.05").unwrap(), Deadline::Seconds(1.05));
        assert_eq!(of(&frontier(2.8), "9").unwrap(), Deadline::Seconds(9.0));
    }
}
