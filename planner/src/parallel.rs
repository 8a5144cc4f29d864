//! One function over many items on all cores.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, TrySendError};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::progress::Progress;

/// Items that are made ahead for each of the other cores: some take much memory.
const AHEAD: usize = 8;

/// Maps items on all cores, in order; each thread works with a state of its own.
pub(crate) fn in_parallel<T: Sync, S, R: Send>(
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let make = |pass: &mut dyn FnMut(_)| items.iter().for_each(pass);
    in_parallel_as_made(make, state, work).1
}

/// The same, and says, from any thread, which share of the items is done.
pub(crate) fn in_parallel_and_say<T: Sync, S, R: Send>(
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
    progress: &Progress<'_>,
) -> Vec<R> {
    let done = AtomicUsize::new(0);
    in_parallel(items, state, |state, item| {
        let result = work(state, item);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress.say(done as f64 / items.len() as f64);
        result
    })
}

/// As [`in_parallel`], for items that `make` passes on one by one: the other cores work on them while it makes
/// the next, and makes no more while they have some to work on. A panic in one ends the work of all.
pub(crate) fn in_parallel_as_made<T: Send, S, R: Send, M>(
    make: impl FnOnce(&mut dyn FnMut(T)) -> M,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> R + Sync,
) -> (M, Vec<R>) {
    let others = thread::available_parallelism().map_or(1, usize::from) - 1;
    let (sender, receiver) = mpsc::sync_channel(AHEAD * others);
    let receiver = Mutex::new(receiver);
    let is_over = AtomicBool::new(false);
    let run = || {
        let _end = EndOfAll(&is_over);
        let mut state = state();
        let mut done = Vec::new();
        loop {
            // Not held while the item is worked on.
            let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((index, item)) = next else { return done };
            if is_over.load(Ordering::Relaxed) {
                return done;
            }
            done.push((index, work(&mut state, item)));
        }
    };
    let (made, mut results) = thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
        let _end = EndOfAll(&is_over);
        let mut index = 0_usize;
        let (mut own, mut own_results) = (None, Vec::new());
        let made = make(&mut |item| {
            // It is not closed: the receiver outlives this scope.
            if let Err(
                TrySendError::Full((index, item)) | TrySendError::Disconnected((index, item)),
            ) = sender.try_send((index, item))
            {
                own_results.push((index, work(own.get_or_insert_with(&state), item)));
            }
            index += 1;
        });
        drop((sender, own));
        let mut results = run();
        results.extend(own_results);
        for other in others {
            match other.join() {
                Ok(more) => results.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (made, results)
    });
    results.sort_unstable_by_key(|&(index, _)| index);
    (made, results.into_iter().map(|(_, result)| result).collect())
}

/// Tells the other threads when this one panics.
struct EndOfAll<'a>(&'a AtomicBool);

impl Drop for EndOfAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1000).collect();
        let results = in_parallel(
            &items,
            || 0,
            |calls, &item| {
                *calls += 1;
                item * 2
            },
        );
        assert!(results.iter().enumerate().all(|(index, &result)| result == index * 2));
    }

    #[test]
    fn the_share_that_is_done_ends_at_all_of_it() {
        let said = Mutex::new(Vec::new());
        let say = |share: f64| said.lock().unwrap().push(share);
        let progress = Progress::new(&say);
        let results = in_parallel_and_say(&[1, 2, 3, 4], || (), |(), item| 2 * item, &progress);
        let mut said = said.into_inner().unwrap();
        said.sort_by(f64::total_cmp);
        assert_eq!((results, said), (vec![2, 4, 6, 8], vec![0.25, 0.5, 0.75, 1.0]));
    }

    #[test]
    fn what_makes_the_items_has_a_result_of_its_own() {
        let make = |pass: &mut dyn FnMut(u32)| {
            (0..100).for_each(pass);
            "made"
        };
        let (made, results) = in_parallel_as_made(make, || (), |(), item| item + 1);
        assert_eq!((made, results), ("made", (1..=100).collect()));
    }

    #[test]
    fn what_makes_the_items_may_give_up_and_the_others_do_not_go_on() {
        let worked_on = AtomicUsize::new(0);
        let make = |pass: &mut dyn FnMut(usize)| {
            (0..1000).for_each(pass);
            resume_unwind(Box::new("gives up"))
        };
        let work = |_: &mut (), _: usize| {
            worked_on.fetch_add(1, Ordering::Relaxed);
            thread::sleep(std::time::Duration::from_millis(2));
        };
        let given_up = || in_parallel_as_made::<_, _, _, ()>(make, || (), work);
        let payload = catch_unwind(AssertUnwindSafe(given_up)).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"gives up"));
        assert!(worked_on.into_inner() < 1000);
    }

    #[test]
    fn nothing_in_is_nothing_out() {
        assert!(in_parallel(&[], || (), |(), item: &u8| *item).is_empty());
    }
}
