//! Whether a figure deviates from its target by more than a limit, for several steps in a row.
//! Pure.
//!
//! A deviation is over when the figure is back within half of the limit. Each turn requires a
//! number of steps in a row after the first one that indicates it, so that a reaction to turns does
//! not oscillate.

/// How far is too far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limit {
    /// The share by which something may deviate.
    pub(crate) share: f64,
    /// The steps in a row that it takes to turn; at least 1.
    pub(crate) steps: u32,
}

/// What several steps in a row have shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Turn {
    /// It has begun to deviate too far, by this share.
    Begun(f64),
    /// It deviates by another share now.
    Changed(f64),
    /// It does not deviate too far any more.
    Over,
}

/// What the last steps indicate, if not that nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Beyond,
    More,
    Less,
    Within,
}

/// One deviation, followed step by step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Deviation {
    share: Option<f64>,
    sign: Option<Sign>,
    steps: u32,
    sum: f64,
}

impl Deviation {
    /// One that had begun before.
    pub(crate) fn begun(share: f64) -> Self {
        Self { share: Some(share), ..Self::default() }
    }

    /// The share by which it deviates, if that is too far.
    pub(crate) fn share(&self) -> Option<f64> {
        self.share
    }

    /// Whether the last steps indicate a turn.
    pub(crate) fn may_turn(&self) -> bool {
        self.sign.is_some()
    }

    /// Adds steps that deviated by this share on average.
    pub(crate) fn observe(&mut self, steps: u32, share: f64, limit: Limit) -> Option<Turn> {
        let sign = self.sign_of(share, limit.share);
        if sign != self.sign {
            // These steps may be of before and after a change.
            *self = Self { share: self.share, sign, ..Self::default() };
            return None;
        }
        let sign = sign?;
        self.steps = self.steps.saturating_add(steps);
        self.sum += share * f64::from(steps);
        if self.steps < limit.steps {
            return None;
        }
        let mean = self.sum / f64::from(self.steps.max(1));
        let turn = match sign {
            Sign::Beyond => Turn::Begun(mean),
            Sign::More | Sign::Less => Turn::Changed(mean),
            Sign::Within => Turn::Over,
        };
        let share = (turn != Turn::Over).then_some(mean);
        *self = Self { share, ..Self::default() };
        Some(turn)
    }

    fn sign_of(&self, share: f64, limit: f64) -> Option<Sign> {
        match self.share {
            None => (share > limit).then_some(Sign::Beyond),
            Some(_) if share < limit / 2.0 => Some(Sign::Within),
            Some(known) if share > known + limit => Some(Sign::More),
            Some(known) if share < known - limit => Some(Sign::Less),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Limit = Limit { share: 0.05, steps: 5 };

    #[test]
    fn what_lasts_begins_changes_and_is_over_each_after_as_many_steps() {
        let mut deviation = Deviation::default();
        let mut turns = Vec::new();
        for (share, steps) in [(0.01, 20), (0.3, 20), (0.5, 20), (0.03, 20), (0.02, 20)] {
            turns.extend((0..steps).filter_map(|step| {
                deviation.observe(1, share, LIMIT).map(|turn| (share, step, turn))
            }));
        }
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let [begun, changed, less, over] = turns[..] else { panic!("{turns:?}") };
        assert!(matches!(begun, (0.3, 5, Turn::Begun(share)) if close(share, 0.3)), "{begun:?}");
        assert!(matches!(changed, (0.5, 5, Turn::Changed(by)) if close(by, 0.5)), "{changed:?}");
        assert!(matches!(less, (0.03, 5, Turn::Changed(by)) if close(by, 0.03)), "{less:?}");
        assert_eq!(over, (0.02, 5, Turn::Over));
    }

    #[test]
    fn one_slow_step_among_others_is_nothing() {
        let mut deviation = Deviation::default();
        for step in 0..100 {
            let share = if step % 6 == 0 { 0.0 } else { 0.4 };
            assert_eq!(deviation.observe(1, share, LIMIT), None);
        }
    }

    #[test]
    fn what_began_before_is_only_ended_by_steps_that_say_so() {
        let mut deviation = Deviation::begun(0.3);
        assert_eq!(deviation.observe(100, 0.31, LIMIT), None);
        assert_eq!(deviation.observe(5, 0.0, LIMIT), None);
        assert_eq!(deviation.observe(5, 0.0, LIMIT), Some(Turn::Over));
        assert_eq!(deviation.share(), None);
    }

    #[test]
    fn steps_of_before_and_after_an_end_are_no_other_share() {
        let mut deviation = Deviation::begun(0.7);
        for share in [0.7, 0.15, 0.0] {
            assert_eq!(deviation.observe(8, share, LIMIT), None);
        }
        assert_eq!(deviation.observe(8, 0.0, LIMIT), Some(Turn::Over));
    }

    proptest! {
        #[test]
        fn turns_alternate_and_are_as_many_steps_apart(
            shares in prop::collection::vec((1u32..4, -0.2..0.6f64), 0..300), steps in 1u32..20
        ) {
            let limit = Limit { share: 0.05, steps };
            let mut deviation = Deviation::default();
            let (mut since, mut on) = (0, false);
            for (count, share) in shares {
                since += count;
                let turn = deviation.observe(count, share, limit);
                if let Some(turn) = turn {
                    prop_assert!(since >= steps);
                    prop_assert_eq!(matches!(turn, Turn::Begun(_)), !on);
                    on = turn != Turn::Over;
                    since = 0;
                }
                prop_assert_eq!(deviation.share().is_some(), on);
            }
        }

        #[test]
        fn what_stays_between_half_the_limit_and_the_limit_never_turns(
            shares in prop::collection::vec(0.0251..0.0499f64, 0..200), begun in any::<bool>()
        ) {
            let mut deviation = if begun { Deviation::begun(0.04) } else { Deviation::default() };
            for share in shares {
                prop_assert_eq!(deviation.observe(3, share, LIMIT), None);
            }
        }
    }
}
