//! What a step takes beside its instructions, as an argument.

use clap::Args;
use pfo_planner::{Interval, PerStage, Plan, PlanError, PowerByClock, Profile, Rest};
use serde::Serialize;

use crate::status::quantity::{joules, seconds};

/// Where the rest of a step comes from.
#[derive(Args, Default)]
pub(crate) struct RestArguments {
    /// Time of a measured step of the job at default clocks, such as 3.1s: its time outside instructions
    /// (transfers, loads, the optimizer) is added to the expected time
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "rest_ms")]
    measured_step: Option<f64>,

    /// Time of a step outside its instructions, in milliseconds
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = milliseconds)]
    rest_ms: Option<f64>,
}

/// What is expected of a plan.
#[derive(Debug, Serialize)]
pub(crate) struct Expected {
    #[serde(flatten)]
    interval: Interval,
    /// The seconds in no instruction that the interval contains. Without them, it covers instructions alone.
    rest_s: Option<f64>,
}

impl RestArguments {
    /// What is expected of a plan whose instructions lie in an interval.
    pub(crate) fn expected(
        &self,
        instructions: Interval,
        profile: &Profile,
        plan: &Plan,
        power: &PerStage<PowerByClock>,
    ) -> Result<Expected, PlanError> {
        let rest = match (self.measured_step, self.rest_ms) {
            (Some(step_s), _) => Some(Rest::of_step(step_s, profile, plan, power)?),
            (None, Some(ms)) => Some(Rest::of_seconds(ms / 1e3, profile, plan, power)?),
            (None, None) => None,
        };
        Ok(Expected {
            interval: rest.map_or(instructions, |rest| rest.added_to(instructions)),
            rest_s: rest.map(|rest| rest.time_s),
        })
    }
}

impl Expected {
    /// Instructions alone.
    #[cfg(test)]
    pub(crate) fn of_instructions(interval: Interval) -> Self {
        Self { interval, rest_s: None }
    }

    pub(crate) fn sentence(&self) -> String {
        let [from_s, to_s] = self.interval.iteration_time_s.map(seconds);
        let [from_j, to_j] = self.interval.iteration_energy_j.map(joules);
        let what = match self.rest_s {
            Some(rest_s) => format!("when it runs, {} of it in no instruction", seconds(rest_s)),
            None => "for its instructions alone (plan evaluate --measured-step adds the rest)"
                .to_owned(),
        };
        format!("expect {from_s} to {to_s} and {from_j} to {to_j} {what}")
    }
}

/// A time of a step, in seconds or milliseconds.
fn time(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, unit_s) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, f64::NAN),
    };
    let time_s = number.trim_end().parse::<f64>().ok().map(|number| number * unit_s);
    let time_s = time_s.filter(|time_s| *time_s > 0.0 && time_s.is_finite());
    time_s.ok_or_else(|| "give the time of a step with its unit, such as 3.1s or 310ms".to_owned())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let ms = text.trim().parse().ok().filter(|ms: &f64| *ms >= 0.0 && ms.is_finite());
    ms.ok_or_else(|| "give milliseconds from 0, such as 120".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_step_has_a_unit_and_is_more_than_nothing() {
        assert_eq!([time("3.1s"), time(" 310 ms")], [Ok(3.1), Ok(0.31)]);
        for bad in ["3.1", "0s", "-1s", "nans", "infs", "s", "ms", "", "1m"] {
            assert!(time(bad).unwrap_err().contains("such as 3.1s"), "{bad}");
        }
        assert_eq!(milliseconds("0"), Ok(0.0));
        for bad in ["-1", "nan", "inf", "", "1s"] {
            assert!(milliseconds(bad).unwrap_err().contains("from 0"), "{bad}");
        }
    }
}
