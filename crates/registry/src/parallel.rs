//! Maps items by several threads, in their order.
//!
//! Doc: registry.md#discovery

use std::num::NonZeroUsize;

/// Maximum number of threads for one list.
const THREADS_MAX: usize = 8;

/// Returns `one` of each item, in their order. Each thread has at least `per_thread_min` items.
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    per_thread_min: usize,
    one: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = (items.len() / per_thread_min.max(1)).clamp(1, cores.min(THREADS_MAX));
    let all = |part: &[T]| part.iter().map(&one).collect::<Vec<R>>();
    let part = items.len().div_ceil(threads).max(1);
    let Some((first, rest)) = items.split_at_checked(part).filter(|(_, rest)| !rest.is_empty())
    else {
        return all(items);
    };
    let all = &all;
    std::thread::scope(|scope| {
        let started =
            |part| (part, std::thread::Builder::new().spawn_scoped(scope, move || all(part)).ok());
        let rest: Vec<_> = rest.chunks(part).map(started).collect();
        let mut mapped = all(first);
        for (part, thread) in rest {
            // Without a thread the items are mapped here. If it panicked, they are mapped again, so that
            // the panic reaches the caller.
            let joined = thread.and_then(|thread| thread.join().ok());
            mapped.extend(joined.unwrap_or_else(|| all(part)));
        }
        mapped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_their_items() {
        for size in [0, 1, 2, 3, 15, 16, 17, 1_000] {
            let items: Vec<usize> = (0..size).collect();
            for per_thread_min in [1, 8, 2_000] {
                let mapped = map(&items, per_thread_min, |item| item + 1);
                assert_eq!(mapped, (1..=size).collect::<Vec<_>>(), "{size} by {per_thread_min}");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let items: Vec<usize> = (0..100).collect();
        for bad in [0, 99] {
            let mapped = std::panic::catch_unwind(|| {
                map(&items, 1, |item| assert_ne!(*item, bad, "as the test asks"))
            });
            assert!(mapped.is_err(), "{bad}");
        }
    }
}
