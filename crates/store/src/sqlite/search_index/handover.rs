//! Hands events from the writer to the thread that fills the index.
//!
//! The thread is woken for the first event and at the end, and not for each commit.
//!
//! Doc: records.md#reading

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Found;

/// The time during which events are collected before they are added.
const GATHER: Duration = Duration::from_millis(200);
/// Events that are added together; with so many the thread does not collect more.
const ENOUGH: usize = 5_000;
/// Events that may wait for the index; those that do not fit are read from the database.
const WAITING_MAX: usize = 2 * ENOUGH;

#[derive(Default)]
struct Waiting {
    events: Vec<Found>,
    has_ended: bool,
    /// Whether the receiver must be woken.
    is_awaited: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's end.
pub(in crate::sqlite) struct FoundSender(Arc<Shared>);

/// The end of the thread that fills the index.
pub(in crate::sqlite) struct FoundReceiver(Arc<Shared>);

/// Returns both ends.
pub(in crate::sqlite) fn found_channel() -> (FoundSender, FoundReceiver) {
    let shared = Arc::default();
    (FoundSender(Arc::clone(&shared)), FoundReceiver(shared))
}

impl FoundSender {
    /// Hands over the events of a commit, if they fit. Never waits for the thread.
    pub(in crate::sqlite) fn send(&self, events: impl ExactSizeIterator<Item = Found>) {
        let mut waiting = self.0.lock();
        let before = waiting.events.len();
        if before + events.len() > WAITING_MAX {
            return;
        }
        waiting.events.extend(events);
        let after = waiting.events.len();
        let is_awaited = waiting.is_awaited;
        drop(waiting);
        if is_awaited && (before == 0 && after > 0 || before < ENOUGH && after >= ENOUGH) {
            self.0.changed.notify_one();
        }
    }
}

impl Drop for FoundSender {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_one();
    }
}

impl FoundReceiver {
    /// Waits for events, and collects more for a short time. `None` once the writer has ended; events that
    /// were not received then are read from the database by the next search.
    pub(super) fn receive(&self) -> Option<Vec<Found>> {
        let ready = &self.0.changed;
        let mut waiting = self.0.lock();
        waiting.is_awaited = true;
        let is_empty = |waiting: &mut Waiting| waiting.events.is_empty() && !waiting.has_ended;
        let waiting = ready.wait_while(waiting, is_empty);
        let waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let is_few = |waiting: &mut Waiting| waiting.events.len() < ENOUGH && !waiting.has_ended;
        let gathered = ready.wait_timeout_while(waiting, GATHER, is_few);
        let mut waiting = gathered.unwrap_or_else(PoisonError::into_inner).0;
        waiting.is_awaited = false;
        let taken = waiting.events.len().min(ENOUGH);
        (!waiting.has_ended).then(|| waiting.events.drain(..taken).collect())
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::event::{AuditEventKind, EventBody};

    use super::*;

    fn found(place: i64) -> Found {
        let time = "2026-01-01T00:00:00.000Z".to_owned();
        Found::of(place, &EventBody::new(AuditEventKind::ALL[0], time))
    }

    fn places(events: &[Found]) -> Vec<i64> {
        events.iter().map(|event| event.place).collect()
    }

    #[test]
    fn events_of_several_commits_are_received_together() {
        let (sender, receiver) = found_channel();
        sender.send([found(1), found(2)].into_iter());
        sender.send([found(3)].into_iter());
        assert_eq!(places(&receiver.receive().unwrap()), [1, 2, 3]);
        sender.send([found(4)].into_iter());
        drop(sender);
        assert!(receiver.receive().is_none(), "the writer has ended");
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let (sender, receiver) = found_channel();
        let many = |from: i64| (from..from + ENOUGH as i64).map(found).collect::<Vec<_>>();
        sender.send(many(100).into_iter());
        sender.send(many(20_000).into_iter());
        sender.send([found(1)].into_iter());
        for _ in 0..2 {
            let received = places(&receiver.receive().unwrap());
            assert_eq!((received.len(), received.contains(&1)), (ENOUGH, false));
        }
        sender.send([found(7)].into_iter());
        assert_eq!(places(&receiver.receive().unwrap()), [7]);
    }

    /// Waits until the other thread waits.
    fn until_awaited(shared: &Shared) {
        while !shared.lock().is_awaited {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_waits_is_woken_by_the_first_event_and_by_the_end() {
        let (sender, receiver) = found_channel();
        let (report, reports) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while let Some(events) = receiver.receive() {
                report.send(places(&events)).unwrap();
            }
        });
        let next = || reports.recv_timeout(Duration::from_secs(60));
        until_awaited(&sender.0);
        sender.send([found(1)].into_iter());
        assert_eq!(next(), Ok(vec![1]), "the event wakes it");
        until_awaited(&sender.0);
        drop(sender);
        assert_eq!(
            next(),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected),
            "the end wakes it"
        );
        thread.join().unwrap();
    }
}
