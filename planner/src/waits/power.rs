//! P2P-blocking power by clock.

use std::str::FromStr;

use pfo_vocabulary::{Mhz, Watts};
use serde::{Deserialize, Serialize};

use crate::by_clock;
use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::limits;

/// What a GPU draws while it only waits for its neighbour stage, by its clock: at least one point,
/// clocks rising. Between two points it is interpolated, beyond them it is that of the nearest one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(Mhz, Watts)>")]
pub struct PowerByClock(Vec<(Mhz, Watts)>);

impl PowerByClock {
    /// The power at these clocks, in any order.
    ///
    /// # Errors
    /// If there is none, or too many, a clock or a power is impossible, or a clock is named twice.
    pub fn new(points: impl IntoIterator<Item = (Mhz, Watts)>) -> Result<Self, PlanError> {
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_by_key(|&(clock, _)| clock);
        match problem(&points) {
            Some(problem) => Err(bad(problem)),
            None => Ok(Self(points)),
        }
    }

    /// The power at a clock.
    #[must_use]
    pub fn at(&self, clock: Mhz) -> Watts {
        // There is at least one point.
        Watts(by_clock::at(&self.0, clock, |power| power.0).unwrap_or(0.0))
    }

    /// Its points by rising clock.
    pub fn points(&self) -> &[(Mhz, Watts)] {
        &self.0
    }

    /// The power at those of its clocks that are among `clocks`, if it differs between them.
    #[must_use]
    pub fn among(&self, clocks: &[Mhz]) -> Option<Self> {
        let points = self.0.iter().filter(|(clock, _)| clocks.contains(clock));
        Self::new(points.copied()).ok().filter(|power| power.flat().is_none())
    }

    /// The clock at which waiting draws least; of several, the lowest.
    #[must_use]
    pub fn cheapest(&self) -> Mhz {
        let least = self.0.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        least.map_or(Mhz(0), |&(clock, _)| clock)
    }

    /// One that no GPU can draw.
    pub(crate) fn impossible(&self) -> Option<Watts> {
        let mut powers = self.0.iter().map(|&(_, power)| power);
        powers.find(|power| !(power.0.is_finite() && power.0 >= 0.0))
    }

    /// The power, if it is the same at every clock.
    pub(crate) fn flat(&self) -> Option<Watts> {
        let &(_, first) = self.0.first()?;
        self.0.iter().all(|&(_, power)| power == first).then_some(first)
    }
}

impl TryFrom<Vec<(Mhz, Watts)>> for PowerByClock {
    type Error = PlanError;

    fn try_from(points: Vec<(Mhz, Watts)>) -> Result<Self, PlanError> {
        Self::new(points)
    }
}

/// The same power at every clock.
impl From<Watts> for PowerByClock {
    fn from(power: Watts) -> Self {
        Self(vec![(Mhz(1), power)])
    }
}

impl From<&Self> for PowerByClock {
    fn from(power: &Self) -> Self {
        power.clone()
    }
}

impl FromStr for PowerByClock {
    type Err = PlanError;

    /// Points such as `210:48,1410:84`, in MHz and W.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let point = |point: &str| {
            let (clock, power) = point.split_once(':')?;
            Some((Mhz(clock.trim().parse().ok()?), Watts(power.trim().parse().ok()?)))
        };
        let points: Option<Vec<_>> = text.split(',').map(point).collect();
        Self::new(points.ok_or_else(|| bad(format!("\"{}\"", excerpt(text))))?)
    }
}

/// What is wrong with points by rising clock, if anything is.
fn problem(points: &[(Mhz, Watts)]) -> Option<String> {
    if !(1..=limits::TABLE_ROWS).contains(&points.len()) {
        return Some(format!("{} points", points.len()));
    }
    let is_power = |watts: f64| watts.is_finite() && watts >= 0.0;
    let wrong = points.iter().find(|(clock, Watts(w))| !clock.is_plausible() || !is_power(*w));
    if let Some((clock, power)) = wrong {
        return Some(format!("{power} at {clock}"));
    }
    let twice = points.windows(2).find(|pair| pair[0].0 == pair[1].0);
    twice.map(|pair| format!("{} twice", pair[0].0))
}

fn bad(value: String) -> PlanError {
    PlanError::BadArgument {
        name: "the P2P-blocking power by clock",
        value,
        expected: "clocks in MHz, each once, with watts of at least 0, such as 210:48,1410:84",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_clocks_the_power_is_interpolated_and_beyond_them_it_stays() {
        let power: PowerByClock = "1410:84, 210:48".parse().unwrap();
        for (mhz, watts) in [(100, 48.0), (210, 48.0), (810, 66.0), (1410, 84.0), (2000, 84.0)] {
            assert!((power.at(Mhz(mhz)).0 - watts).abs() < 1e-9, "{mhz}");
        }
        assert_eq!((power.cheapest(), power.flat()), (Mhz(210), None));
        assert_eq!(power.among(&[Mhz(210), Mhz(900), Mhz(1410)]).as_ref(), Some(&power));
        assert_eq!(power.among(&[Mhz(900), Mhz(1410)]), None);
        let flat = PowerByClock::from(Watts(80.0));
        assert_eq!((flat.at(Mhz(1410)), flat.flat()), (Watts(80.0), Some(Watts(80.0))));
    }

    #[test]
    fn a_power_that_cannot_be_is_refused_with_its_value() {
        for (text, says) in [
            ("", "\"\""),
            ("84", "84"),
            ("210:48,210:50", "210 MHz twice"),
            ("210:-1", "-1 W at 210 MHz"),
            ("0:50", "0 MHz"),
            ("210:nan", "NaN"),
        ] {
            let message = text.parse::<PowerByClock>().unwrap_err().to_string();
            assert!(message.contains(says) && message.contains("210:48,1410:84"), "{message}");
        }
    }
}
