//! Tracks idle connections. Evicts the longest idle one when a new connection would exceed the
//! limit.
//!
//! Does not count connections: the accept loop owns their tasks.
//!
//! Doc: front-doors.md#limits

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The idle connections of one door, the longest idle first.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleConnections(Arc<Mutex<Idle>>);

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

impl IdleConnections {
    /// Adds a new connection, which is idle.
    pub(super) fn join(&self) -> Arc<Activity> {
        let evicted = CancellationToken::new();
        let state = State::Idle(self.enter(&evicted));
        Arc::new(Activity {
            idle: self.clone(),
            state: Mutex::new(state),
            evicted,
            requests: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        })
    }

    /// Evicts the connection that has been idle the longest; false if none is idle.
    pub(super) fn evict(&self) -> bool {
        let longest = lock(&self.0).by_age.pop_first();
        longest.inspect(|(_, evicted)| evicted.cancel()).is_some()
    }

    fn enter(&self, evicted: &CancellationToken) -> u64 {
        let mut idle = lock(&self.0);
        idle.next += 1;
        let age = idle.next;
        idle.by_age.insert(age, evicted.clone());
        age
    }

    /// Removes an idle connection; false if it was evicted before.
    fn leave(&self, age: u64) -> bool {
        lock(&self.0).by_age.remove(&age).is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No request is in progress; the number orders connections by the time they became idle.
    Idle(u64),
    /// A request is in progress, its answer or stream included.
    Busy,
    /// The answer is complete, but not yet flushed to the kernel.
    Answered,
}

/// The activity of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    idle: IdleConnections,
    state: Mutex<State>,
    evicted: CancellationToken,
    requests: AtomicU64,
    unread: AtomicBool,
    ends: AtomicBool,
}

impl Activity {
    /// Begins a request; `None` if the connection was evicted before.
    pub(super) fn begin(self: &Arc<Self>) -> Option<InProgress> {
        let mut state = lock(&self.state);
        if let State::Idle(age) = *state
            && !self.idle.leave(age)
        {
            return None;
        }
        *state = State::Busy;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.unread.store(false, Ordering::Relaxed);
        Some(InProgress(Arc::clone(self)))
    }

    /// Notes a flush to the kernel: a connection with a complete answer becomes idle.
    pub(super) fn flushed(&self) {
        let mut state = lock(&self.state);
        if *state == State::Answered {
            *state = State::Idle(self.idle.enter(&self.evicted));
        }
    }

    /// Whether no request is in progress.
    pub(super) fn is_idle(&self) -> bool {
        matches!(*lock(&self.state), State::Idle(_))
    }

    /// Marks the connection to end after this request, because the end of the body is unknown.
    /// Nothing after it is read.
    pub(super) fn end_after_this(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether the connection ends with the request that is in progress.
    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that have begun.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Notes that the client may still send bytes of a request that are not read.
    pub(super) fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let state = *self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Idle(age) = state {
            self.idle.leave(age);
        }
    }
}

/// A request in progress; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Activity>);

impl Drop for InProgress {
    fn drop(&mut self) {
        *lock(&self.0.state) = State::Answered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_is_evicted_and_a_busy_one_never() {
        let idle = IdleConnections::default();
        let (first, second, third) = (idle.join(), idle.join(), idle.join());
        let request = first.begin().unwrap();
        let streaming = third.begin().unwrap();
        drop(request);
        assert!(!first.is_idle(), "its answer is not flushed");
        first.flushed();
        assert!(first.is_idle(), "idle again, but for a shorter time than the second");
        assert!(idle.evict());
        assert!(second.evicted.is_cancelled() && !first.evicted.is_cancelled());
        assert!(idle.evict() && first.evicted.is_cancelled());
        assert!(!idle.evict(), "the third has a request in progress");
        assert!(second.begin().is_none(), "a request after the eviction has no effect");
        drop((streaming, third));
        assert!(!idle.evict());
    }

    #[test]
    fn a_connection_that_ends_leaves_nothing_behind() {
        let idle = IdleConnections::default();
        let one = idle.join();
        drop(one.begin());
        one.flushed();
        drop(one);
        assert!(lock(&idle.0).by_age.is_empty());
    }
}
