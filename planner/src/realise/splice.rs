//! Splicing: plans that change from one regime to another somewhere in the step.
//!
//! Half a step in one regime and half in the next is better than a whole step rounded on its own.
//! The operation at which the plan changes is the *seam*.

use super::{Realiser, TOLERANCE_S};
use crate::choices::{Packed, Realised};
use crate::limits::{LONG_STEP, VERY_LONG_STEP};
use crate::step::network::Network;

/// Plans to splice others from. Each is slower than the one before and takes less energy, and no
/// mixture of two others is better.
pub(crate) struct Regimes(pub(crate) Vec<Realised>);

/// Makes plans of regimes, and of the other plans that there are; reuses what it knows of the last
/// two regimes. Both lists go from fast to slow with falling energy.
pub(crate) struct Splicer<'a> {
    realiser: Realiser<'a>,
    regimes: &'a Regimes,
    plans: &'a [Realised],
    /// The slower of the last two regimes, and their seams.
    last: Option<(usize, Seams)>,
}

/// The time of a step (s) that changes from one of two regimes to the other, for every operation at
/// which it could.
struct Seams {
    slow_first_s: Vec<f64>,
    fast_first_s: Vec<f64>,
}

/// The distance of each operation of a plan from both ends of the step, in seconds.
struct Reach {
    /// From the start of the step to the operation's end.
    end_s: Vec<f64>,
    /// From the operation's start to the end of the step.
    tail_s: Vec<f64>,
}

impl<'a> Splicer<'a> {
    pub(crate) fn new(realiser: Realiser<'a>, regimes: &'a Regimes, plans: &'a [Realised]) -> Self {
        Self { realiser, regimes, plans, last: None }
    }

    /// The best plan for a deadline, which the first of both lists keep: one of the plans, or one
    /// spliced from two of the regimes.
    pub(crate) fn at(&mut self, deadline_s: f64) -> Realised {
        let keeps = |time_s: f64| time_s <= deadline_s + TOLERANCE_S;
        let first_slower =
            |plans: &[Realised]| plans.partition_point(|plan| keeps(plan.time_s)).max(1);
        let mut best = Some(self.plans[first_slower(self.plans) - 1].clone());
        let Regimes(regimes) = self.regimes;
        let slower = first_slower(regimes);
        if slower < regimes.len() {
            let (fast, slow) = (&regimes[slower - 1], &regimes[slower]);
            let between_j = fast.effective_j - slow.effective_j;
            let (fast, slow) = (&fast.assignment, &slow.assignment);
            let seams = self.seams(slower);
            let slow_first = seams.slow_first_s.iter().rposition(|&time_s| keeps(time_s));
            let fast_first = seams.fast_first_s.iter().position(|&time_s| keeps(time_s));
            let splices = [(slow, fast, slow_first), (fast, slow, fast_first)];
            self.realiser.keep_best_splice(splices, (deadline_s, between_j), &mut best);
        }
        best.unwrap_or_else(|| self.realiser.present())
    }

    /// The seams of a regime and the next faster one.
    fn seams(&mut self, slower: usize) -> &Seams {
        let Self { realiser, regimes: Regimes(regimes), last, .. } = self;
        if last.as_ref().is_some_and(|last| last.0 != slower) {
            *last = None;
        }
        let (_, seams) = last.get_or_insert_with(|| {
            let [fast, slow] = [slower - 1, slower].map(|index| realiser.reach(&regimes[index]));
            let slow_first_s = changing(realiser.network, &slow, &fast);
            let fast_first_s = changing(realiser.network, &fast, &slow);
            (slower, Seams { slow_first_s, fast_first_s })
        });
        seams
    }
}

impl Realiser<'_> {
    /// Fills splices, each of one plan up to an operation and another from there on, and keeps what
    /// is better. Of a long step only the one that takes less energy before that, if the other does not
    /// come close: filling takes most of the time. `between_j` is what lies between both plans.
    fn keep_best_splice(
        &mut self,
        splices: [(&Packed, &Packed, Option<usize>); 2],
        (deadline_s, between_j): (f64, f64),
        best: &mut Option<Realised>,
    ) {
        // A share of what lies between. In a very long step the other is hardly ever better.
        const CLOSE: f64 = 0.1;
        let close = if self.network.len() > VERY_LONG_STEP { 0.0 } else { CLOSE };
        let mut cuts: Vec<_> = splices
            .into_iter()
            .filter_map(|(first, then, cut)| {
                self.join(first, then, cut?);
                Some((first, then, cut?, self.choices.effective_j(&self.assignment)))
            })
            .collect();
        if self.network.len() > LONG_STEP {
            let least_j = cuts.iter().map(|cut| cut.3).fold(f64::INFINITY, f64::min);
            cuts.retain(|cut| cut.3 <= least_j + close * between_j);
        }
        for (first, then, cut, _) in cuts {
            self.join(first, then, cut);
            self.fill(deadline_s);
            self.keep_if_better(best);
        }
    }

    /// One plan up to the operation `cut` and the other from there on.
    fn join(&mut self, first: &Packed, then: &Packed, cut: usize) {
        self.take(first, 0..cut);
        self.take(then, cut..self.network.len());
    }

    /// The middle of one plan between the ends of another, `cut` operations each; the slack that
    /// this leaves is filled.
    pub(crate) fn compose(&mut self, ends: &Packed, middle: &Packed, cut: usize) -> Realised {
        self.take(ends, 0..self.network.len());
        self.take(middle, cut..self.network.len() - cut);
        let makespan_s = self.earliest();
        self.fill(makespan_s);
        self.present()
    }

    fn reach(&mut self, plan: &Realised) -> Reach {
        self.take(&plan.assignment, 0..self.network.len());
        self.earliest();
        self.latest(0.0);
        let tail_s = self.latest_start_s.iter().map(|start_s| -start_s).collect();
        Reach { end_s: self.end_s.clone(), tail_s }
    }
}

/// The time of a step that runs as one plan up to an operation and as another from there on, for
/// every such operation.
fn changing(network: &Network, first: &Reach, then: &Reach) -> Vec<f64> {
    let n = network.len();
    let mut time_s = vec![0.0; n + 1];
    // The longest path through the step changes from one plan to the other once.
    let mut goes_over = |from: Option<usize>, to: usize| {
        let way_s = from.map_or(0.0, |from| first.end_s[from]) + then.tail_s[to];
        for time_s in &mut time_s[from.map_or(0, |from| from + 1)..=to] {
            *time_s = f64::max(*time_s, way_s);
        }
    };
    let none = [n as u32; 2];
    for operation in 0..n {
        if network.predecessors[operation] == none {
            goes_over(None, operation);
        }
        let successors = network.successors[operation];
        if successors == none {
            goes_over(Some(operation), n);
        }
        for successor in successors.map(|successor| successor as usize) {
            if successor < n {
                goes_over(Some(operation), successor);
            }
        }
    }
    time_s
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_realiser;
    use super::*;

    /// The fastest plan, and the one of least energy in some more time.
    fn fast_and_slow(realiser: &mut Realiser<'_>) -> [Realised; 2] {
        let fastest_s = realiser.fastest_s();
        let fast = realiser.present();
        realiser.fill(1.3 * fastest_s);
        [fast, realiser.present()]
    }

    #[test]
    fn a_seam_knows_how_long_the_step_takes_wherever_the_regime_changes() {
        with_realiser(|realiser, _| {
            let [fast, slow] = fast_and_slow(realiser);
            let reaches = [realiser.reach(&fast), realiser.reach(&slow)];
            let changing = changing(realiser.network, &reaches[1], &reaches[0]);
            assert_eq!(changing.len(), realiser.network.len() + 1);
            for (cut, time_s) in changing.into_iter().enumerate() {
                realiser.join(&slow.assignment, &fast.assignment, cut);
                assert!((realiser.earliest() - time_s).abs() < 1e-9, "{cut}");
            }
        });
    }

    #[test]
    fn a_splice_has_as_much_of_the_slow_regime_as_the_deadline_allows() {
        with_realiser(|realiser, _| {
            let ends = fast_and_slow(realiser);
            let between_s = (ends[0].time_s + ends[1].time_s) / 2.0;
            let regimes = Regimes(ends.to_vec());
            let new = Realiser::new(realiser.network, realiser.choices);
            let mut splicer = Splicer::new(new, &regimes, &ends);
            let spliced = splicer.at(between_s);
            assert!(spliced.time_s <= between_s + 1e-9);
            let share = (spliced.effective_j - ends[1].effective_j)
                / (ends[0].effective_j - ends[1].effective_j);
            assert!((0.1..0.8).contains(&share), "{share}");
            let beyond = splicer.at(2.0 * ends[1].time_s);
            assert_eq!(beyond.assignment, ends[1].assignment);
        });
    }

    #[test]
    fn a_composite_has_the_ends_of_one_plan_and_a_middle_no_faster_than_the_other() {
        with_realiser(|realiser, choices| {
            let [fast, slow] = fast_and_slow(realiser);
            let composite = realiser.compose(&fast.assignment, &slow.assignment, 5);
            assert!(fast.time_s < composite.time_s && composite.time_s < slow.time_s);
            assert!(fast.effective_j > composite.effective_j);
            let inside = 5..realiser.network.len() - 5;
            let [composite, slow] =
                [composite, slow].map(|plan| choices.all_unpacked(&plan.assignment));
            let is_no_faster = |(composite, slow): (&u32, &u32)| composite >= slow;
            assert!(composite[inside.clone()].iter().zip(&slow[inside]).all(is_no_faster));
        });
    }
}
