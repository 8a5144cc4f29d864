//! How all ranks of a job change at the same step, without a lock and without waiting.
//!
//! A swap is published first and its step decided after. The decision is taken by the
//! administrator's request or by a rank that begins a step just then, whichever comes first; it is
//! the step after the last one that any rank has begun. A rank publishes the step it begins
//! *before* it looks for a swap. So for each rank and step, either the rank sees the swap, or the
//! decision sees the step; a rank can never have begun the decided step without knowing of it.
//!
//! A swap that was put off to a later step may be replaced until then. If its step comes before the
//! decision after all, the decision is against the replacement, for every rank alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use super::job_plan::JobPlan;
use crate::lease::Progress;

const UNDECIDED: u64 = u64::MAX;

/// In place of a step: the swap that was to be replaced has taken place.
const TOO_LATE: u64 = u64::MAX - 1;

/// The last step that a swap may be decided for.
const LAST: u64 = TOO_LATE - 1;

/// One change of what a job runs.
#[derive(Debug)]
pub(crate) struct Swap {
    /// Counts the swaps of the job from 1.
    pub number: u64,
    /// What runs from the step on; `None` is default clocks.
    pub plan: Option<Arc<JobPlan>>,
    step: AtomicU64,
    not_before: u64,
    ranks: Vec<Arc<Progress>>,
    replaces: Option<Arc<Self>>,
}

impl Swap {
    /// A swap whose step is not decided yet, for the ranks that are in the job now.
    #[must_use]
    pub(crate) fn new(
        number: u64,
        plan: Option<Arc<JobPlan>>,
        not_before: u64,
        ranks: Vec<Arc<Progress>>,
    ) -> Self {
        let (step, not_before) = (AtomicU64::new(UNDECIDED), not_before.min(LAST));
        Self { number, plan, step, not_before, ranks, replaces: None }
    }

    /// A swap whose step is decided, and that these ranks have yet to take up.
    #[must_use]
    pub(crate) fn decided(
        number: u64,
        plan: Option<Arc<JobPlan>>,
        step: u64,
        ranks: Vec<Arc<Progress>>,
    ) -> Self {
        let undecided = Self::new(number, plan, step, ranks);
        Self { step: AtomicU64::new(step.min(LAST)), ..undecided }
    }

    /// Replaces a swap that no rank has taken up.
    #[must_use]
    pub(crate) fn replacing(self, other: Option<Arc<Self>>) -> Self {
        Self { replaces: other, ..self }
    }

    /// The swap that counts: this one, or the one that it was too late to replace. Call it only
    /// after this one was published.
    pub(crate) fn effective(&self) -> &Self {
        match &self.replaces {
            Some(other) if self.step() == TOO_LATE => other,
            _ => self,
        }
    }

    /// Whether the swap that it was to replace has taken place instead.
    pub(crate) fn came_too_late(&self) -> bool {
        self.step() == TOO_LATE
    }

    /// Whether another swap may replace it: no rank has reached its step.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.ranks.iter().all(|rank| rank.step().is_none_or(|step| step < self.step()))
    }

    /// The step at which every rank changes. Call it only after the swap was published.
    pub(crate) fn step(&self) -> u64 {
        match self.step.load(SeqCst) {
            UNDECIDED => {
                let after =
                    |rank: &Arc<Progress>| rank.step().map_or(0, |step| step.saturating_add(1));
                let next = self.ranks.iter().map(after).max().unwrap_or(0);
                let first = next.max(self.not_before).min(LAST);
                let too_late = self.replaces.as_ref().is_some_and(|other| first > other.step());
                let first = if too_late { TOO_LATE } else { first };
                match self.step.compare_exchange(UNDECIDED, first, SeqCst, SeqCst) {
                    Ok(_) => first,
                    Err(decided) => decided,
                }
            }
            step => step,
        }
    }

    /// How many of its ranks have changed or are gone, and how many it has.
    pub(crate) fn taken_up(&self) -> (usize, usize) {
        let done = |rank: &&Arc<Progress>| {
            rank.swap.load(Relaxed) >= self.number || rank.ended.load(Relaxed)
        };
        (self.ranks.iter().filter(done).count(), self.ranks.len())
    }

    /// Whether no rank runs what was before.
    pub(crate) fn is_complete(&self) -> bool {
        let (done, all) = self.taken_up();
        done == all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use arc_swap::ArcSwapOption;

    use super::*;

    #[test]
    fn the_step_is_the_first_one_that_no_rank_has_begun() {
        let ranks: Vec<_> = (0..3).map(|_| Arc::new(Progress::default())).collect();
        assert_eq!(Swap::new(1, None, 0, ranks.clone()).step(), 0);
        ranks[1].begin_step(4);
        let swap = Swap::new(1, None, 0, ranks.clone());
        assert_eq!(swap.step(), 5);
        ranks[2].begin_step(9);
        assert_eq!(swap.step(), 5, "a decided step stays");
        assert_eq!(Swap::new(1, None, 20, ranks).step(), 20);
    }

    #[test]
    fn a_rank_that_is_gone_keeps_nobody_waiting() {
        let ranks: Vec<_> = (0..2).map(|_| Arc::new(Progress::default())).collect();
        let swap = Swap::new(1, None, 0, ranks.clone());
        ranks[0].swap.store(1, Relaxed);
        assert_eq!((swap.taken_up(), swap.is_complete()), ((1, 2), false));
        ranks[1].ended.store(true, Relaxed);
        assert!(swap.is_complete());
    }

    #[test]
    fn a_swap_is_replaced_before_its_step_and_not_after() {
        let rank = Arc::new(Progress::default());
        rank.begin_step(5);
        let put_off = Arc::new(Swap::new(1, None, 8, vec![Arc::clone(&rank)]));
        assert_eq!(put_off.step(), 8);
        let replace = |number| {
            Swap::new(number, None, 0, vec![Arc::clone(&rank)])
                .replacing(Some(Arc::clone(&put_off)))
        };
        assert!(put_off.is_replaceable());
        let in_time = replace(2);
        assert_eq!((in_time.step(), in_time.effective().number), (6, 2));
        rank.begin_step(8);
        assert!(!put_off.is_replaceable());
        let late = replace(3);
        assert!(late.came_too_late());
        assert_eq!(late.effective().number, 1);
    }

    #[test]
    fn steps_at_their_end_are_decided_like_any_other() {
        let rank = Arc::new(Progress::default());
        for last in [u64::MAX - 2, u64::MAX - 1, u64::MAX] {
            let swap = Arc::new(Swap::new(1, None, last, vec![Arc::clone(&rank)]));
            assert!(!swap.came_too_late() && swap.step() >= u64::MAX - 2, "{last}");
            assert!(swap.is_replaceable());
            let other = Swap::new(2, None, last, vec![Arc::clone(&rank)]);
            let other = other.replacing(Some(Arc::clone(&swap)));
            assert_eq!((other.step(), other.effective().number), (swap.step(), 2), "{last}");
        }
        rank.begin_step(u64::MAX);
        assert_eq!((rank.step(), rank.knows_step()), (None, false));
        rank.begin_step(u64::MAX - 1);
        assert_eq!((rank.step(), rank.knows_step()), (None, false));
        rank.begin_step(u64::MAX - 2);
        let swap = Swap::new(1, None, 0, vec![rank]);
        assert!(!swap.came_too_late());
        let _ = (swap.step(), swap.taken_up(), swap.is_replaceable());
    }

    #[test]
    fn ranks_that_run_freely_all_change_at_the_same_step() {
        const STEPS: u64 = 2000;
        for round in 0..40 {
            let ranks: Vec<_> = (0..4).map(|_| Arc::new(Progress::default())).collect();
            let published = Arc::new(ArcSwapOption::<Swap>::empty());
            let start = Arc::new(Barrier::new(ranks.len() + 1));
            let threads: Vec<_> = ranks
                .iter()
                .cloned()
                .map(|rank| {
                    let (published, start) = (Arc::clone(&published), Arc::clone(&start));
                    thread::spawn(move || {
                        start.wait();
                        (0..STEPS).find(|step| {
                            rank.begin_step(*step);
                            published.load().as_ref().is_some_and(|swap| *step >= swap.step())
                        })
                    })
                })
                .collect();
            start.wait();
            for _ in 0..round * 200 {
                std::hint::spin_loop();
            }
            let swap = Arc::new(Swap::new(1, None, 0, ranks));
            published.store(Some(Arc::clone(&swap)));
            let decided = swap.step();
            for thread in threads {
                let changed = thread.join().unwrap();
                assert!(
                    changed.is_none_or(|step| step == decided)
                        && (changed.is_some() || decided >= STEPS),
                    "decided {decided}, changed {changed:?}"
                );
            }
        }
    }
}
