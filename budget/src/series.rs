//! A budget that changes with time, and how fast the jobs may follow it.

use crate::error::{BudgetError, from_0};

const DAY_S: f64 = 86_400.0;

/// Watts from certain moments on.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// (seconds, watts), by rising time; never empty.
    steps: Vec<(f64, f64)>,
    /// Whether the times are of every day.
    is_daily: bool,
}

impl Series {
    /// The same budget at all times.
    ///
    /// # Errors
    /// If it is not a number of at least 0.
    pub fn constant(budget_w: f64) -> Result<Self, BudgetError> {
        let budget_w = from_0("the budget", || "the cluster".into(), budget_w)?;
        Ok(Self { steps: vec![(0.0, budget_w)], is_daily: false })
    }

    /// Reads lines `at,budget`: `at` is `HH:MM` of every day (UTC) or, in every line, seconds since 1970;
    /// the budget is a power such as `40kW`. Empty lines, comments after `#` and a first line `at,budget`
    /// are passed over. Before its first moment, a series that is not daily has its first budget.
    ///
    /// # Errors
    /// The first line that is neither, or is not later than the one before.
    pub fn from_csv(text: &str) -> Result<Self, BudgetError> {
        let mut steps: Vec<(f64, f64)> = Vec::new();
        let mut daily = None;
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = |problem| BudgetError::BadLine { line, problem };
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() || text == "at,budget" {
                continue;
            }
            let (at, budget) = text
                .split_once(',')
                .ok_or_else(|| wrong(format!("\"{}\" is not at,budget", short(text))))?;
            let (at_s, is_daily) = moment(at.trim()).map_err(wrong)?;
            let budget_w = watts(budget.trim()).map_err(wrong)?;
            if *daily.get_or_insert(is_daily) != is_daily {
                return Err(wrong("HH:MM and seconds since 1970 are mixed; use one".into()));
            }
            if steps.last().is_some_and(|&(before_s, _)| before_s >= at_s) {
                return Err(wrong(format!("{} is not later than the line before", short(at))));
            }
            steps.push((at_s, budget_w));
        }
        if steps.is_empty() {
            return Err(BudgetError::BadLine { line: 1, problem: "there is no budget".into() });
        }
        Ok(Self { steps, is_daily: daily == Some(true) })
    }

    /// The budget at a moment, in seconds since 1970.
    pub fn at(&self, at_s: f64) -> f64 {
        let within_s = if self.is_daily { at_s.rem_euclid(DAY_S) } else { at_s };
        let passed = self.steps.partition_point(|&(from_s, _)| from_s <= within_s);
        let before_first = if self.is_daily { self.steps.len() - 1 } else { 0 };
        self.steps[passed.checked_sub(1).unwrap_or(before_first)].1
    }

    /// The lowest and the highest budget that it ever has, in watts.
    #[must_use]
    pub fn range_w(&self) -> (f64, f64) {
        let budgets_w = || self.steps.iter().map(|&(_, budget_w)| budget_w);
        (budgets_w().fold(f64::INFINITY, f64::min), budgets_w().fold(0.0, f64::max))
    }

    /// The budget now, less what the next drops require so that they are reached in time when power falls
    /// by no more than this each second.
    fn reachable(&self, at_s: f64, down_w_per_s: f64) -> f64 {
        let now_w = self.at(at_s);
        let ahead = |&(from_s, budget_w): &(f64, f64)| {
            let ahead_s =
                if self.is_daily { (from_s - at_s).rem_euclid(DAY_S) } else { from_s - at_s };
            (ahead_s > 0.0).then_some(budget_w + down_w_per_s * ahead_s)
        };
        self.steps.iter().filter_map(ahead).fold(now_w, f64::min)
    }
}

/// How fast the power of all jobs may change, in watts a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Upwards.
    pub up_w_per_s: f64,
    /// Downwards.
    pub down_w_per_s: f64,
}

impl Ramp {
    /// No limit.
    pub const NONE: Self = Self { up_w_per_s: f64::INFINITY, down_w_per_s: f64::INFINITY };
}

/// A budget that follows a series within its ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramped {
    ramp: Ramp,
    last: Option<(f64, f64)>,
}

impl Ramped {
    /// Begins with the first requested budget.
    #[must_use]
    pub fn new(ramp: Ramp) -> Self {
        Self { ramp, last: None }
    }

    /// Begins, again if it has begun, at a power at a moment, in seconds.
    pub fn begin(&mut self, at_s: f64, power_w: f64) {
        self.last = Some((at_s, power_w));
    }

    /// The power allowed at a moment, in seconds, that is not before that of the last request. A
    /// drop that the series announces begins early enough to be complete in time; one that comes by
    /// surprise is as steep as the ramp allows.
    pub fn next(&mut self, series: &Series, at_s: f64) -> f64 {
        let Ramp { up_w_per_s, down_w_per_s } = self.ramp;
        let wanted_w = series.reachable(at_s, down_w_per_s);
        let allowed_w = match self.last {
            Some((last_s, last_w)) if at_s > last_s => {
                let passed_s = at_s - last_s;
                // Unlike a clamp, this takes a ramp that is no number for none.
                wanted_w.max(last_w - down_w_per_s * passed_s).min(last_w + up_w_per_s * passed_s)
            }
            Some((_, last_w)) => last_w,
            None => wanted_w,
        };
        self.last = Some((at_s, allowed_w));
        allowed_w
    }
}

/// Seconds, and whether they are of a day.
fn moment(text: &str) -> Result<(f64, bool), String> {
    let two = |digits: &str| {
        let is_two = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_two.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let of_day =
        text.split_once(':').and_then(|(hours, minutes)| Some((two(hours)?, two(minutes)?)));
    match of_day {
        Some((hours, minutes)) if hours < 24 && minutes < 60 => {
            Ok((f64::from(hours * 3600 + minutes * 60), true))
        }
        _ => text
            .parse()
            .ok()
            .filter(|seconds: &f64| seconds.is_finite() && (0.0..1e12).contains(seconds))
            .map(|seconds| (seconds, false))
            .ok_or_else(|| format!("\"{}\" is neither HH:MM nor seconds since 1970", short(text))),
    }
}

/// Reads a power: `900`, `900 W`, `40kW`, `2.4 MW`.
///
/// # Errors
/// If it is none.
pub fn watts(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[number.len()..] {
        "" | "W" => Some(1.0),
        "kW" => Some(1e3),
        "MW" => Some(1e6),
        _ => None,
    };
    let read = || Some(number.trim().parse::<f64>().ok()? * factor?);
    read()
        .filter(|watts| (0.0..=crate::error::LARGEST).contains(watts))
        .ok_or_else(|| format!("\"{}\" is no power such as 900W, 40kW or 2.4MW", short(text)))
}

fn short(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = "at,budget\n06:00,40kW\n17:30,30 kW # the dear hours\n\n21:00,40000\n";

    #[test]
    fn a_daily_series_begins_anew_every_day() {
        let series = Series::from_csv(DAY).unwrap();
        for day in 0..3 {
            let at = |hours: f64| series.at(f64::from(day) * DAY_S + hours * 3600.0);
            assert_eq!(
                [at(0.0), at(6.0), at(17.49), at(17.5), at(20.9), at(23.0)],
                [40e3, 40e3, 40e3, 30e3, 30e3, 40e3]
            );
        }
        assert_eq!(series.range_w(), (30e3, 40e3));
    }

    #[test]
    fn a_series_of_moments_has_its_first_budget_before_them() {
        let series = Series::from_csv("1000,2MW\n2000,1.5MW").unwrap();
        assert_eq!(
            [0.0, 1500.0, 2000.0, 9e9].map(|at_s| series.at(at_s)),
            [2e6, 2e6, 1.5e6, 1.5e6]
        );
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        for (text, line, word) in [
            ("", 1, "no budget"),
            ("06:00 40kW", 1, "at,budget"),
            ("06:00,40kW\n24:00,1kW", 2, "neither"),
            ("06:00,40kW\n05:00,1kW", 2, "later"),
            ("06:00,40kW\n06:00,1kW", 2, "later"),
            ("06:00,40kW\n90000,1kW", 2, "mixed"),
            ("06:00,40 horses", 1, "no power"),
            ("06:00,NaN", 1, "no power"),
            ("06:00,-1kW", 1, "no power"),
            ("nan,1kW", 1, "neither"),
            ("é6:00,1kW", 1, "neither"),
            ("06:00,infW", 1, "no power"),
        ] {
            let error = Series::from_csv(text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line} ")) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_drop_that_is_announced_is_complete_in_time() {
        let series = Series::from_csv("0,1000\n100,400\n200,1000").unwrap();
        let mut ramped = Ramped::new(Ramp { up_w_per_s: 20.0, down_w_per_s: 10.0 });
        let mut before = ramped.next(&series, 0.0);
        assert_eq!(before, 1000.0);
        for at_s in 1..300 {
            let allowed_w = ramped.next(&series, at_s.into());
            assert!(allowed_w <= series.at(at_s.into()) + 1e-9, "{allowed_w} W at {at_s} s");
            assert!((-10.0 - 1e-9..=20.0 + 1e-9).contains(&(allowed_w - before)), "{at_s} s");
            before = allowed_w;
        }
        assert_eq!(before, 1000.0);
    }

    #[test]
    fn a_surprise_is_as_steep_as_the_ramp_allows_and_time_does_not_run_backwards() {
        let mut ramped = Ramped::new(Ramp { up_w_per_s: 1.0, down_w_per_s: 10.0 });
        assert_eq!(ramped.next(&Series::constant(100.0).unwrap(), 5.0), 100.0);
        let less = Series::constant(50.0).unwrap();
        assert_eq!(
            [6.0, 6.0, 3.0, 20.0].map(|at_s| ramped.next(&less, at_s)),
            [90.0, 90.0, 90.0, 50.0]
        );
        let no_number = Ramp { up_w_per_s: f64::NAN, down_w_per_s: f64::NAN };
        for ramp in [Ramp::NONE, no_number] {
            let mut free = Ramped::new(ramp);
            assert_eq!([0.0, 1.0].map(|at_s| free.next(&less, at_s)), [50.0, 50.0]);
        }
    }
}
