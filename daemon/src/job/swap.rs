//! How all ranks of a job change at the same step, without a lock and without waiting.
//!
//! A swap is published first and its step decided after. The decision is taken by the
//! administrator's request or by a rank that begins a step just then, whichever comes first; it is
//! the step after the last one that any rank has begun. A rank publishes the step it begins
//! *before* it looks for a swap. So for each rank and step, either the rank sees the swap, or the
//! decision sees the step; a rank can never have begun the decided step without knowing of it.
//!
//! A swap to a step that was named takes place at that step or not at all, and a swap that waits for
//! its step may be replaced until then. If that step has begun before the decision, the decision is
//! against the new swap, for every rank alike: what was before counts on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use super::job_plan::JobPlan;
use crate::lease::Progress;

const UNDECIDED: u64 = u64::MAX;

/// In place of a step: the decision was against the swap.
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
    /// The step that was named.
    at: Option<u64>,
    /// No rank may have begun a later step than the one before this.
    latest: u64,
    ranks: Vec<Arc<Progress>>,
    /// What counts if this swap comes too late.
    before: Option<Box<Self>>,
    /// An earlier daemon saw it take place.
    took_place: bool,
    /// Another swap was begun in its place, before its step.
    pub replaced: AtomicBool,
}

impl Swap {
    /// A swap whose step is not decided yet, for the ranks that are in the job now: at the step
    /// `at`, or at the first one that none of them has begun.
    pub(crate) fn new(
        number: u64,
        plan: Option<Arc<JobPlan>>,
        at: Option<u64>,
        ranks: Vec<Arc<Progress>>,
    ) -> Self {
        let at = at.map(|at| at.min(LAST));
        let (step, latest) = (AtomicU64::new(UNDECIDED), at.unwrap_or(LAST));
        let replaced = AtomicBool::new(false);
        Self { number, plan, step, at, latest, ranks, before: None, took_place: false, replaced }
    }

    /// A swap whose step is decided, and that these ranks have yet to take up.
    pub(crate) fn decided(
        number: u64,
        plan: Option<Arc<JobPlan>>,
        step: u64,
        ranks: Vec<Arc<Progress>>,
    ) -> Self {
        let undecided = Self::new(number, plan, Some(step), ranks);
        Self { step: AtomicU64::new(step.min(LAST)), ..undecided }
    }

    /// The same, of which an earlier daemon knew whether it had taken place.
    pub(crate) fn recorded(self, took_place: bool) -> Self {
        Self { took_place, ..self }
    }

    /// Follows another swap of the job. If that one is `waiting` for its step, it is replaced, and
    /// has to be before that step.
    pub(crate) fn after(self, other: &Self, waiting: bool) -> Self {
        let latest = if waiting { self.latest.min(other.step()) } else { self.latest };
        let ranks = other.ranks.clone();
        let before = Self::decided(other.number, other.plan.clone(), other.step(), ranks);
        Self { latest, before: Some(Box::new(before)), ..self }
    }

    /// The swap that counts: this one or, if it came too late, the one before, if there was one.
    /// Call it only after this one was published.
    pub(crate) fn effective(&self) -> Option<&Self> {
        if self.came_too_late() { self.before.as_deref() } else { Some(self) }
    }

    /// Whether the decision was against it.
    pub(crate) fn came_too_late(&self) -> bool {
        self.step() == TOO_LATE
    }

    /// The first step that none of its ranks has begun.
    pub(crate) fn next_step(&self) -> u64 {
        let after = |rank: &Arc<Progress>| rank.step().map_or(0, |step| step.saturating_add(1));
        self.ranks.iter().map(after).max().unwrap_or(0).min(LAST)
    }

    /// Whether another swap may replace it: no rank has reached its step.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.ranks.iter().all(|rank| rank.step().is_none_or(|step| step < self.step()))
    }

    /// The step at which every rank changes. Call it only after the swap was published.
    pub(crate) fn step(&self) -> u64 {
        match self.step.load(SeqCst) {
            UNDECIDED => {
                let next = self.next_step();
                let first = if next > self.latest { TOO_LATE } else { self.at.unwrap_or(next) };
                match self.step.compare_exchange(UNDECIDED, first, SeqCst, SeqCst) {
                    Ok(_) => first,
                    Err(decided) => decided,
                }
            }
            step => step,
        }
    }

    /// How many of its ranks have changed, and how many it has.
    pub(crate) fn taken_up(&self) -> (usize, usize) {
        (self.ranks.iter().filter(|rank| self.has_changed(rank)).count(), self.ranks.len())
    }

    fn has_changed(&self, rank: &Progress) -> bool {
        rank.swap.load(Relaxed) >= self.number
    }

    /// Whether a rank that joins before this step has to wait for the swap. One that begins its job anew
    /// does not, nor one that joins others that have changed.
    pub(crate) fn is_to_come(&self, next_step: u64) -> bool {
        let took_place = self.took_place || self.ranks.iter().any(|rank| self.has_changed(rank));
        !took_place && next_step > 0 && next_step < self.step()
    }

    /// Whether no rank runs what was before: each has changed or is gone.
    pub(crate) fn is_complete(&self) -> bool {
        self.ranks.iter().all(|rank| self.has_changed(rank) || rank.ended.load(Relaxed))
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
        assert_eq!(Swap::new(1, None, None, ranks.clone()).step(), 0);
        ranks[1].begin_step(4);
        let swap = Swap::new(1, None, None, ranks.clone());
        assert_eq!(swap.step(), 5);
        ranks[2].begin_step(9);
        assert_eq!(swap.step(), 5, "a decided step stays");
        assert_eq!(Swap::new(1, None, Some(20), ranks).step(), 20);
    }

    #[test]
    fn a_rank_that_is_gone_keeps_nobody_waiting() {
        let ranks: Vec<_> = (0..2).map(|_| Arc::new(Progress::default())).collect();
        let swap = Swap::new(1, None, None, ranks.clone());
        ranks[0].swap.store(1, Relaxed);
        assert_eq!((swap.taken_up(), swap.is_complete()), ((1, 2), false));
        ranks[1].ended.store(true, Relaxed);
        assert_eq!((swap.taken_up(), swap.is_complete()), ((1, 2), true), "it has not changed");
    }

    #[test]
    fn a_swap_is_replaced_before_its_step_and_not_after() {
        let rank = Arc::new(Progress::default());
        rank.begin_step(5);
        let waiting = Swap::new(1, None, Some(8), vec![Arc::clone(&rank)]);
        assert_eq!(waiting.step(), 8);
        let replace = |at| Swap::new(2, None, at, vec![Arc::clone(&rank)]).after(&waiting, true);
        assert!(waiting.is_replaceable());
        for (at, step) in [(None, 6), (Some(7), 7), (Some(8), 8), (Some(9), 9)] {
            let in_time = replace(at);
            assert_eq!((in_time.step(), in_time.effective().unwrap().number), (step, 2));
        }
        rank.begin_step(8);
        assert!(!waiting.is_replaceable());
        for at in [None, Some(7), Some(9), Some(1000)] {
            let late = replace(at);
            assert!(late.came_too_late());
            assert_eq!(late.effective().unwrap().number, 1);
        }
    }

    #[test]
    fn a_swap_to_a_step_that_is_past_takes_place_at_none() {
        let ranks: Vec<_> = (0..2).map(|_| Arc::new(Progress::default())).collect();
        ranks[1].begin_step(7);
        let at = |step| Swap::new(2, None, Some(step), ranks.clone());
        assert_eq!(at(8).step(), 8);
        let late = at(7);
        assert!(late.came_too_late() && late.effective().is_none());
        let former = Swap::decided(1, None, 3, ranks.clone());
        assert_eq!(at(7).after(&former, false).effective().unwrap().number, 1);
        assert_eq!(at(8).after(&former, false).effective().unwrap().number, 2);
    }

    #[test]
    fn steps_at_their_end_are_decided_like_any_other() {
        let rank = Arc::new(Progress::default());
        for last in [u64::MAX - 2, u64::MAX - 1, u64::MAX] {
            let swap = Swap::new(1, None, Some(last), vec![Arc::clone(&rank)]);
            assert!(!swap.came_too_late() && swap.step() >= u64::MAX - 2, "{last}");
            assert!(swap.is_replaceable());
            let other = Swap::new(2, None, Some(last), vec![Arc::clone(&rank)]).after(&swap, true);
            assert_eq!(
                (other.step(), other.effective().unwrap().number),
                (swap.step(), 2),
                "{last}"
            );
        }
        rank.begin_step(u64::MAX);
        assert_eq!((rank.step(), rank.knows_step()), (None, false));
        rank.begin_step(u64::MAX - 1);
        assert_eq!((rank.step(), rank.knows_step()), (None, false));
        rank.begin_step(u64::MAX - 2);
        let swap = Swap::new(1, None, None, vec![rank]);
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
            let swap = Arc::new(Swap::new(1, None, None, ranks));
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
