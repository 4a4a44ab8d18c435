//! Tells running calls that an operator has stopped them.
//!
//! Path: 7. Doc: policy.md#pauses

use std::collections::VecDeque;

use tokio::sync::watch;
use toolbooth_contracts::order::PauseTarget;

/// Maximum number of stops that are kept for calls that have not looked yet. A call that has missed one is stopped.
const STOPS_MAX: usize = 256;

/// The newest stops, with their numbers.
#[derive(Debug, Default)]
struct Recent {
    count: u64,
    targets: VecDeque<(u64, PauseTarget)>,
}

/// Announces stops to running calls.
#[derive(Debug)]
pub(crate) struct Stops(watch::Sender<Recent>);

impl Default for Stops {
    fn default() -> Self {
        Self(watch::Sender::new(Recent::default()))
    }
}

impl Stops {
    /// Stops the running calls that a target concerns.
    pub(crate) fn stop(&self, target: PauseTarget) {
        self.0.send_modify(|recent| {
            recent.count += 1;
            recent.targets.push_back((recent.count, target));
            if recent.targets.len() > STOPS_MAX {
                recent.targets.pop_front();
            }
        });
    }

    /// Returns a watch of the stops from now on.
    pub(crate) fn watch(&self) -> StopWatch {
        let receiver = self.0.subscribe();
        let seen = receiver.borrow().count;
        StopWatch { receiver, seen }
    }
}

/// The stops that one running call has not seen yet.
#[derive(Debug)]
pub(crate) struct StopWatch {
    receiver: watch::Receiver<Recent>,
    seen: u64,
}

impl StopWatch {
    /// Waits for a stop that concerns the call.
    pub(crate) async fn stopped(&mut self, concerns: impl Fn(&PauseTarget) -> bool) {
        loop {
            {
                let recent = self.receiver.borrow_and_update();
                let mut fresh = recent.targets.iter().filter(|(number, _)| *number > self.seen);
                let oldest = recent.targets.front().map_or(0, |(number, _)| *number);
                if oldest > self.seen + 1 || fresh.any(|(_, target)| concerns(target)) {
                    return;
                }
                self.seen = recent.count;
            }
            if self.receiver.changed().await.is_err() {
                // The proxy is gone; its shutdown ends the call.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Whether a target concerns calls of a caller to a tool or a server.
pub(crate) fn concerns(
    target: &PauseTarget,
    caller: &str,
    tool_id: Option<&str>,
    server: Option<&str>,
) -> bool {
    match target {
        PauseTarget::All => true,
        PauseTarget::Tool(id) => tool_id == Some(id),
        PauseTarget::Server(name) => server == Some(name),
        PauseTarget::Caller(name) => caller == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_has_missed_stops_is_stopped() {
        let stops = Stops::default();
        let other = || PauseTarget::Tool("other".to_owned());
        let (mut early, none) = (stops.watch(), |_: &PauseTarget| false);
        (0..STOPS_MAX).for_each(|_| stops.stop(other()));
        let mut late = stops.watch();
        assert!(futures_util::FutureExt::now_or_never(early.stopped(none)).is_none());
        let mut early = StopWatch { seen: 0, ..early };
        stops.stop(other());
        early.stopped(none).await;
        assert!(futures_util::FutureExt::now_or_never(late.stopped(none)).is_none());
    }

    #[tokio::test]
    async fn a_call_sees_every_stop_after_its_start_and_none_before() {
        let stops = Stops::default();
        let tool = |id: &str| PauseTarget::Tool(id.to_owned());
        stops.stop(tool("a"));
        let mut watch = stops.watch();
        stops.stop(tool("b"));
        stops.stop(tool("a"));
        stops.stop(tool("c"));
        watch.stopped(|target| concerns(target, "local", Some("a"), None)).await;
        let mut late = stops.watch();
        let waiting = late.stopped(|target| concerns(target, "local", Some("a"), None));
        tokio::pin!(waiting);
        assert!(futures_now(&mut waiting).await.is_none());
        stops.stop(PauseTarget::Caller("other".to_owned()));
        assert!(futures_now(&mut waiting).await.is_none());
        stops.stop(PauseTarget::All);
        waiting.await;
    }

    /// Polls a future once.
    async fn futures_now<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
