//! A ledger that stores all records in memory.
//!
//! For tests, and for programs that need no durable records. It removes records only by pruning,
//! and memory is its only limit.

mod book;
mod reads;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use self::book::{MemoryBackend, MemoryState};
use crate::backend::chain::Head;
use crate::backend::recorder::{Recorder, StepRunner};
use crate::backend::steps::{self, Step};
use crate::backend::working::WorkingSet;
use crate::backend::writer::Writer;
use crate::backend::writer_status::WriterStatus;
use crate::digest::{Digester, KEY_BYTES};
use crate::ledger::{LedgerError, Moment};
use crate::note::Signer;

/// A ledger in memory.
pub type MemoryLedger = Recorder<Memory>;

/// Runs steps over records in memory, on the caller's thread.
pub struct Memory {
    writer: Mutex<Writer<MemoryBackend>>,
    book: Arc<Mutex<MemoryState>>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Recorder<Memory> {
    /// Returns an empty ledger of the writer `writer`, with a log that starts at `at`.
    #[must_use]
    pub fn new(writer: &str, key: &[u8; KEY_BYTES], at: &Moment) -> Self {
        let digester = Digester::new(key);
        // The records end with the process, so a derived key is sufficient.
        let seed = digester.of_parts(&["signing key"]);
        let signer = Signer::new(&crate::digest::unhex(&seed).unwrap_or_default());
        let head = Head::new(writer.to_owned());
        let book = Arc::new(Mutex::new(MemoryState::new(head.clone())));
        let status = Arc::new(WriterStatus::default());
        let set = WorkingSet::new(head, digester.clone(), Arc::clone(&status));
        let writer_of = Writer::new(MemoryBackend(Arc::clone(&book)), set, status);
        let memory = Memory { writer: Mutex::new(writer_of), book };
        let started = steps::started(&signer, digester.key_id(), 0, None, at);
        // Events that do not belong to a call are always accepted.
        let _ = memory.step(steps::RecordEvents(vec![started]));
        Self::over(writer.to_owned(), digester, signer, memory)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No step panics while it holds the lock; after a panic, the records would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn book(&self) -> MutexGuard<'_, MemoryState> {
        locked(&self.book)
    }

    fn step<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        let mut writer = locked(&self.writer);
        let step = pin!(writer.run(step));
        // A backend in memory never waits, so the first poll completes the step.
        match step.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(LedgerError::Defect("a step in memory waits".to_owned())),
        }
    }
}

impl StepRunner for Memory {
    type Reads = Self;

    async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        self.step(step)
    }

    fn reads(&self) -> &Self {
        self
    }

    fn healthy(&self) -> Result<(), LedgerError> {
        match locked(&self.writer).has_ended() {
            true => Err(LedgerError::Closed),
            false => Ok(()),
        }
    }
}
