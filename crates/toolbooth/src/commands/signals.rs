//! The signals that end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{FAILED, Failure};

/// The signals that end a command in an orderly way.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let take = |kind| {
            signal(kind)
                .map_err(|error| Failure::usage(format!("signals cannot be received: {error}")))
        };
        Ok(Self {
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}

/// Returns the failure of a command that a second signal ends at once.
pub(super) fn interrupted() -> Failure {
    Failure::new(FAILED, "interrupted", "stopped at the second signal")
}
