//! One function over many items on all cores.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Maps items on all cores, in order; each thread works with a state of its own.
pub(crate) fn in_parallel<T: Sync, S, R: Send>(
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let make = |pass: &mut dyn FnMut(_)| items.iter().for_each(pass);
    in_parallel_as_made(make, state, work).1
}

/// The same for items that `make` passes on one by one: the other cores work on them while it makes
/// the next.
pub(crate) fn in_parallel_as_made<T: Send, S, R: Send, M>(
    make: impl FnOnce(&mut dyn FnMut(T)) -> M,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> R + Sync,
) -> (M, Vec<R>) {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let run = || {
        let mut state = state();
        let mut done = Vec::new();
        loop {
            // Not held while the item is worked on.
            let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((index, item)) = next else { return done };
            done.push((index, work(&mut state, item)));
        }
    };
    let others = thread::available_parallelism().map_or(1, usize::from) - 1;
    let (made, mut results) = thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
        let mut index = 0_usize;
        let made = make(&mut |item| {
            // Cannot fail: the receiver outlives this scope.
            let _ = sender.send((index, item));
            index += 1;
        });
        drop(sender);
        let mut results = run();
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

#[cfg(test)]
mod tests {
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
    fn what_makes_the_items_has_a_result_of_its_own() {
        let make = |pass: &mut dyn FnMut(u32)| {
            (0..100).for_each(pass);
            "made"
        };
        let (made, results) = in_parallel_as_made(make, || (), |(), item| item + 1);
        assert_eq!((made, results), ("made", (1..=100).collect()));
    }

    #[test]
    fn nothing_in_is_nothing_out() {
        assert!(in_parallel(&[], || (), |(), item: &u8| *item).is_empty());
    }
}
