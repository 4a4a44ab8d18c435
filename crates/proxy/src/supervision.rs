//! Supervision of a running execution: its time limit, and the signals that ask it to end.
//!
//! Calls and requests to servers are supervised alike. The one that is supervised decides what a signal means for it.
//!
//! Path: 7. Doc: call-path.md#limits

use std::pin::Pin;
use std::time::Duration;

use async_channel::Receiver;
use tokio::time::Sleep;
use toolbooth_contracts::Conversation;
use toolbooth_contracts::order::PauseTarget;

use crate::allowance::Allowance;
use crate::state::ProxyState;
use crate::stops::StopWatch;

/// A signal for a running execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Its time is over.
    TimedOut,
    /// The proxy shuts down, and its grace period is over.
    Ending,
    /// An operator cancels what runs.
    Stopped,
    /// The caller cancels. This signal is given once.
    Cancelled,
}

/// The supervision of one execution. `concerned` tells whether an operator's stop is for it.
pub(crate) struct Supervision<'a, F> {
    state: &'a ProxyState,
    conversation: &'a Conversation,
    allowance: Allowance,
    timer: Pin<Box<Sleep>>,
    stop_watch: StopWatch,
    concerned: F,
    progress: Option<Receiver<()>>,
    is_cancelled: bool,
}

impl<'a, F: Fn(&PauseTarget) -> bool> Supervision<'a, F> {
    /// Begins now. Each message of `progress` restarts the time limit. It is made before the execution starts,
    /// because it panics where the runtime has no timer.
    pub(crate) fn begin(
        state: &'a ProxyState,
        conversation: &'a Conversation,
        allowance: Allowance,
        stop_watch: StopWatch,
        concerned: F,
        progress: Option<Receiver<()>>,
    ) -> Self {
        let timer = Box::pin(tokio::time::sleep_until(allowance.until()));
        let is_cancelled = false;
        Self {
            state,
            conversation,
            allowance,
            timer,
            stop_watch,
            concerned,
            progress,
            is_cancelled,
        }
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub(crate) async fn signal(&mut self) -> Signal {
        loop {
            tokio::select! {
                biased;
                () = &mut self.timer => return Signal::TimedOut,
                () = self.state.ending.cancelled() => return Signal::Ending,
                () = self.stop_watch.stopped(&self.concerned) => return Signal::Stopped,
                () = self.conversation.cancelled(), if !self.is_cancelled => {
                    self.is_cancelled = true;
                    return Signal::Cancelled;
                }
                // Last, so that no flood of progress hides the timeout.
                () = next(self.progress.as_ref()) => {
                    self.timer.as_mut().reset(self.allowance.until());
                }
            }
        }
    }

    /// Extends the time limit by a time that does not count.
    pub(crate) fn extend(&mut self, passed: Duration) {
        self.allowance.extend_cap(passed);
        let until = self.timer.deadline().checked_add(passed);
        self.timer.as_mut().reset(until.unwrap_or_else(|| self.allowance.until()));
    }
}

/// Returns the next message of a channel. Waits forever if there is no channel, or it is closed.
pub(crate) async fn next<T>(channel: Option<&Receiver<T>>) -> T {
    if let Some(channel) = channel
        && let Ok(message) = channel.recv().await
    {
        return message;
    }
    std::future::pending().await
}
