//! Something that stages have in common, or each stage has for itself.
//!
//! GPUs of several models do not draw the same while they wait. A pipeline whose stages run on
//! different models has a P2P-blocking power for each stage.

use std::fmt;
use std::str::FromStr;

use pfo_vocabulary::{Stage, Watts};

use crate::error::PlanError;
use crate::waits::power::PowerByClock;

/// One value for all stages, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub struct PerStage<T>(Vec<T>);

impl<T> PerStage<T> {
    /// A value for each stage, by stage.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(each: Vec<T>) -> Result<Self, PlanError> {
        if each.is_empty() { Err(bad_count(0)) } else { Ok(Self(each)) }
    }

    /// The value of a stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> &T {
        let Self(values) = self;
        // At least one, and one for all stages or one for each.
        &values[stage.index().min(values.len() - 1)]
    }

    /// The values that it has.
    pub(crate) fn values(&self) -> &[T] {
        &self.0
    }

    /// The values of these stages.
    pub(crate) fn each(&self, num_stages: u16) -> impl Iterator<Item = &T> {
        (0..num_stages).map(|stage| self.of(Stage(stage)))
    }

    /// Checks that they are for this number of stages.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if there are several, but not as many as stages.
    pub fn check(&self, num_stages: u16) -> Result<(), PlanError> {
        let Self(values) = self;
        match values.len() {
            1 => Ok(()),
            count if count == usize::from(num_stages) => Ok(()),
            count => Err(bad_count(count)),
        }
    }
}

impl<T: PartialEq> PerStage<T> {
    /// The value, if all stages have the same.
    #[must_use]
    pub fn common(&self) -> Option<&T> {
        let [first, others @ ..] = &self.0[..] else { return None };
        others.iter().all(|other| other == first).then_some(first)
    }

    /// The values by stage, if they differ.
    #[must_use]
    pub fn differing(&self) -> Option<&[T]> {
        self.common().is_none().then_some(&self.0)
    }
}

impl PerStage<Watts> {
    /// The watts of this number of stages together.
    #[must_use]
    pub fn total_w(&self, num_stages: u16) -> f64 {
        match self.common() {
            Some(Watts(power_w)) => power_w * f64::from(num_stages),
            None => self.each(num_stages).map(|power| power.0).sum(),
        }
    }

    /// The mean of the stages.
    #[must_use]
    pub fn mean(&self) -> Watts {
        match self.common() {
            Some(&power) => power,
            None => Watts(self.0.iter().map(|power| power.0).sum::<f64>() / self.0.len() as f64),
        }
    }
}

impl PerStage<PowerByClock> {
    /// Of each stage the power that a clock of that stage's choice has.
    pub(crate) fn at(&self, power: impl Fn(&PowerByClock) -> Watts) -> PerStage<Watts> {
        PerStage(self.0.iter().map(power).collect())
    }

    /// The power of each stage, if it is the same at every clock.
    pub(crate) fn flat(&self) -> Option<PerStage<Watts>> {
        self.0.iter().map(PowerByClock::flat).collect::<Option<_>>().map(PerStage)
    }
}

impl<T> From<T> for PerStage<T> {
    fn from(common: T) -> Self {
        Self(vec![common])
    }
}

impl<T: Clone> From<&Self> for PerStage<T> {
    fn from(values: &Self) -> Self {
        values.clone()
    }
}

impl From<&PowerByClock> for PerStage<PowerByClock> {
    fn from(common: &PowerByClock) -> Self {
        common.clone().into()
    }
}

impl From<Watts> for PerStage<PowerByClock> {
    fn from(common: Watts) -> Self {
        PowerByClock::from(common).into()
    }
}

impl From<&PerStage<Watts>> for PerStage<PowerByClock> {
    fn from(PerStage(powers): &PerStage<Watts>) -> Self {
        Self(powers.iter().map(|&power| power.into()).collect())
    }
}

impl From<PerStage<Watts>> for PerStage<PowerByClock> {
    fn from(powers: PerStage<Watts>) -> Self {
        (&powers).into()
    }
}

/// `83.6 W`, or the powers of stages such as `83.6, 83.6, 70.4 W`.
impl fmt::Display for PerStage<Watts> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.differing() {
            None => write!(f, "{}", self.mean()),
            Some(powers) => {
                let powers: Vec<String> = powers.iter().map(|Watts(w)| w.to_string()).collect();
                write!(f, "{} W", powers.join(", "))
            }
        }
    }
}

impl FromStr for PerStage<PowerByClock> {
    type Err = PlanError;

    /// Points such as `210:48,1410:84`, in MHz and W; for each stage with a semicolon between stages.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        text.split(';').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

fn bad_count(count: usize) -> PlanError {
    PlanError::BadArgument {
        name: "the number of P2P-blocking powers",
        value: count.to_string(),
        expected: "one, or one for each stage",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_for_all_stages_and_several_are_for_each() {
        let common = PerStage::from(Watts(80.0));
        assert_eq!((common.of(Stage(7)), common.total_w(4)), (&Watts(80.0), 320.0));
        let each = PerStage::new(vec![Watts(84.0), Watts(70.0), Watts(80.0)]).unwrap();
        assert_eq!((each.of(Stage(1)), each.total_w(3)), (&Watts(70.0), 234.0));
        assert_eq!((each.mean(), each.common()), (Watts(78.0), None));
        assert_eq!(each.to_string(), "84, 70, 80 W");
        assert_eq!(common.to_string(), Watts(80.0).to_string());
        assert!(each.check(3).is_ok() && common.check(3).is_ok());
        let message = each.check(4).unwrap_err().to_string();
        assert!(message.contains('3') && message.contains("one for each stage"), "{message}");
        assert!(PerStage::<Watts>::new(Vec::new()).is_err());
    }

    #[test]
    fn powers_by_clock_are_read_for_each_stage() {
        let power: PerStage<PowerByClock> = "210:48,1410:84;210:40,1740:70".parse().unwrap();
        assert_eq!(power.of(Stage(1)).points().len(), 2);
        assert_eq!(power.flat(), None);
        let highest = power.at(|power| power.at(pfo_vocabulary::Mhz(1740)));
        assert_eq!(highest.differing(), Some(&[Watts(84.0), Watts(70.0)][..]));
        assert!("210:48;".parse::<PerStage<PowerByClock>>().is_err());
    }
}
