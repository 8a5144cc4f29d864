//! One function over many items on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maps items on all cores; each thread works with a state of its own. Keeps the order.
pub(crate) fn in_parallel<T: Sync, S, R: Send>(
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let run = || {
        let mut state = state();
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(&mut state, item)));
        }
    };
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            match other.join() {
                Ok(more) => results.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
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
    fn nothing_in_is_nothing_out() {
        assert!(in_parallel(&[], || (), |(), item: &u8| *item).is_empty());
    }
}
