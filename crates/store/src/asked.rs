//! A step that somebody waits for: its result is told once its batch is known to be durable, or not.
//!
//! Path: 6, 9. Doc: records.md#stores

use async_channel::{Receiver, Sender};
use toolbooth_audit::LedgerError;

/// A step, and who waits for what comes of it.
pub(crate) struct Asked<T, F> {
    step: Option<F>,
    result: Option<Result<T, LedgerError>>,
    reply: Sender<Result<T, LedgerError>>,
}

impl<T, F> Asked<T, F> {
    /// A step, and where its answer arrives.
    pub(crate) fn new(step: F) -> (Self, Receiver<Result<T, LedgerError>>) {
        let (reply, answer) = async_channel::bounded(1);
        (Self { step: Some(step), result: None, reply }, answer)
    }

    /// Takes the step, once; whether it has done what it should.
    pub(crate) fn run(&mut self, take: impl FnOnce(F) -> Result<T, LedgerError>) -> bool {
        if let Some(step) = self.step.take() {
            self.result = Some(take(step));
        }
        matches!(self.result, Some(Ok(_)))
    }

    /// Answers whoever waits.
    pub(crate) fn finish(self, committed: Result<(), LedgerError>) {
        let result = match (self.result, committed) {
            // What a step refused did not depend on the commit.
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error),
            (Some(done), Ok(())) => done,
            (None, Ok(())) => Err(LedgerError::Unavailable("the store did not run it".to_owned())),
        };
        // Whoever asked may have gone away; the record stands all the same.
        let _ = self.reply.try_send(result);
    }
}
