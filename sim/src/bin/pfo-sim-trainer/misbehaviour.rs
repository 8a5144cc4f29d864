//! The bad things that a rank can be told to do, and when.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Steps, and ranks, at which to do something bad: `5`, `5-8` or `5-`, each with `:RANK` or for
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Occasion {
    first_step: u64,
    last_step: u64,
    rank: Option<u32>,
}

impl Occasion {
    pub(crate) fn is_now(&self, rank: u32, step: u64) -> bool {
        (self.first_step..=self.last_step).contains(&step)
            && self.rank.is_none_or(|wanted| wanted == rank)
    }
}

impl FromStr for Occasion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (steps, rank) = match text.split_once(':') {
            Some((steps, rank)) => (steps, Some(rank)),
            None => (text, None),
        };
        let step = |text: &str| {
            text.parse::<u64>().map_err(|_| {
                format!("{text:?} is no step: write STEP, FIRST-LAST or FIRST-, then :RANK for one rank only")
            })
        };
        let (first_step, last_step) = match steps.split_once('-') {
            None => (step(steps)?, step(steps)?),
            Some((first, "")) => (step(first)?, u64::MAX),
            Some((first, last)) => (step(first)?, step(last)?),
        };
        let rank = match rank {
            None => None,
            Some(rank) => Some(rank.parse().map_err(|_| format!("{rank:?} is not a rank"))?),
        };
        Ok(Self { first_step, last_step, rank })
    }
}

/// All that a rank is told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Misbehaviour {
    pub(crate) die: Vec<Occasion>,
    pub(crate) stop: Vec<Occasion>,
    pub(crate) omit_end: Vec<Occasion>,
    pub(crate) wrong_order: Vec<Occasion>,
    pub(crate) flood: Vec<Occasion>,
}

/// Whether one of the occasions is now.
pub(crate) fn is_now(occasions: &[Occasion], rank: u32, step: u64) -> bool {
    occasions.iter().any(|occasion| occasion.is_now(rank, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occasion_is_a_step_or_several_of_one_rank_or_all() {
        let is_now = |text: &str, rank, step| text.parse::<Occasion>().unwrap().is_now(rank, step);
        assert!(is_now("5", 3, 5) && !is_now("5", 3, 6));
        assert!(is_now("5-7:2", 2, 7) && !is_now("5-7:2", 1, 7) && !is_now("5-7:2", 2, 8));
        assert!(is_now("5-", 0, 500) && !is_now("5-", 0, 4));
        for text in ["", "x", "5:", "5:x", "-5", "5-x"] {
            assert!(text.parse::<Occasion>().is_err(), "{text}");
        }
    }
}
