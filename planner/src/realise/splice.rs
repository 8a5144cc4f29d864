//! Splicing: plans that change from one regime to another somewhere in the step.
//!
//! Half a step in one regime and half in the next is better than a whole step rounded on its own.
//! The operation at which the plan changes is the *seam*.

use super::{Realiser, TOLERANCE_S};
use crate::choices::{Packed, Realised};
use crate::step::network::Network;

/// Plans to splice others from. Each is slower than the one before and takes less energy, and no
/// mixture of two others is better.
pub(crate) struct Regimes(pub(crate) Vec<Realised>);

/// The distance of each operation of a plan from both ends of the step, in seconds.
struct Reach {
    /// From the start of the step to the operation's end.
    end_s: Vec<f64>,
    /// From the operation's start to the end of the step.
    tail_s: Vec<f64>,
}

impl Realiser<'_> {
    /// The best plan for a deadline: one of the plans, or one spliced from two of the regimes. Both
    /// lists go from fast to slow with falling energy, and their first plans keep the deadline.
    pub(crate) fn between(
        &mut self,
        regimes: &Regimes,
        plans: &[Realised],
        deadline_s: f64,
    ) -> Realised {
        let keeps = |time_s: f64| time_s <= deadline_s + TOLERANCE_S;
        let first_slower =
            |plans: &[Realised]| plans.partition_point(|plan| keeps(plan.time_s)).max(1);
        let mut best = Some(plans[first_slower(plans) - 1].clone());
        let Regimes(regimes) = regimes;
        let slower = first_slower(regimes);
        if let Some(slow) = regimes.get(slower) {
            let [fast, slow] = [&regimes[slower - 1], slow];
            let [fast_reach, slow_reach] = [fast, slow].map(|plan| self.reach(plan));
            let slow_first_s = changing(self.network, &slow_reach, &fast_reach);
            if let Some(cut) = slow_first_s.iter().rposition(|&time_s| keeps(time_s)) {
                self.join(&slow.assignment, &fast.assignment, cut);
                self.fill(deadline_s);
                self.keep_if_better(&mut best);
            }
            let fast_first_s = changing(self.network, &fast_reach, &slow_reach);
            if let Some(cut) = fast_first_s.iter().position(|&time_s| keeps(time_s)) {
                self.join(&fast.assignment, &slow.assignment, cut);
                self.fill(deadline_s);
                self.keep_if_better(&mut best);
            }
        }
        best.unwrap_or_else(|| self.present())
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
            let spliced = realiser.between(&regimes, &ends, between_s);
            assert!(spliced.time_s <= between_s + 1e-9);
            let share = (spliced.effective_j - ends[1].effective_j)
                / (ends[0].effective_j - ends[1].effective_j);
            assert!((0.1..0.8).contains(&share), "{share}");
            let beyond = realiser.between(&regimes, &ends, 2.0 * ends[1].time_s);
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
