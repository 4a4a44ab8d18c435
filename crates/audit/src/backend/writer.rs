//! The writer of a store: runs the queued steps in one transaction, and answers once their
//! durability is known.
//!
//! It is the same for every store; a [`Backend`] loads, writes and commits.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::future::Future;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use futures_channel::oneshot;

use crate::backend::chain::Head;
use crate::backend::disk_space::DiskSpace;
use crate::backend::steps::{Abandon, Step};
use crate::backend::working::{Batch, BegunClaim, Changes, Needs, WorkingSet};
use crate::backend::writer_status::WriterStatus;
use crate::ledger::LedgerError;

/// Maximum number of steps per commit.
const BATCH_MAX: usize = 256;
/// Batch size from which a short wait for more steps is worthwhile.
const CROWD: usize = 8;
/// Maximum number of queued steps; callers of further steps wait for space.
const QUEUE_MAX: usize = 4096;
/// Maximum attempts for a batch on records that other processes change meanwhile.
const ATTEMPTS: usize = 3;

/// The reason why a batch was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The loaded records are outdated. Nothing was written, and everything must be loaded again.
    Outdated,
    /// The store is unavailable. Nothing was written.
    Unavailable(LedgerError),
    /// The store rejects the data, or cannot read the requested records. Nothing was written.
    Refused(LedgerError),
    /// The outcome of the commit is unknown.
    Unknown(LedgerError),
}

/// The end of a writer's log, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEnd {
    /// The number of events.
    pub size: u64,
    /// The leaf hash of the last event, in hex.
    pub last_leaf: Option<String>,
}

impl LogEnd {
    fn is(&self, head: &Head) -> bool {
        self.size == head.next_seq() && self.last_leaf == head.last_leaf()
    }
}

/// The storage of records. For each batch, `load` is called first, then `write` or `release`.
pub trait Backend: Send + 'static {
    /// Begins a transaction and loads the records that a batch needs into the set. If another
    /// process has written since, the set is cleared first. `sync` states whether the batch must
    /// survive power loss, if the store leaves the choice.
    fn load(
        &mut self,
        needs: &Needs,
        sync: bool,
        set: &mut WorkingSet,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes the changes of a batch, moves the end of the log from `from` to `to`, and commits.
    fn write(
        &mut self,
        batch: &Batch,
        from: &Head,
        to: &Head,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits a fraction of the duration of a commit, at most until `enough` returns true.
    fn gather(&mut self, enough: &(dyn Fn() -> bool + Sync)) -> impl Future<Output = ()> + Send;

    /// Ends a transaction in which nothing was written.
    fn release(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Checks the store after a commit with an unknown outcome. Returns the end of the log of
    /// `writer`.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if that cannot be determined yet.
    fn recover(&mut self, writer: &str)
    -> impl Future<Output = Result<LogEnd, LedgerError>> + Send;
}

/// A step with a waiting caller.
pub trait Job: Send {
    /// Returns the records that the step reads.
    fn needs(&self) -> Needs;
    /// Whether its answer waits for the disk, if the store leaves the choice.
    fn sync(&self) -> bool;
    /// Returns the changes of the step; `None` if the step is rejected.
    fn decide(&mut self, set: &WorkingSet) -> Option<Changes>;
    /// Answers the caller once the durability of the batch is known.
    fn finish(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct PendingStep<S: Step> {
    step: S,
    decided: Option<Result<S::Answer, LedgerError>>,
    /// `None` after the answer was sent.
    reply: Option<oneshot::Sender<Result<S::Answer, LedgerError>>>,
}

impl<S: Step> Job for PendingStep<S> {
    fn needs(&self) -> Needs {
        self.step.needs()
    }

    fn sync(&self) -> bool {
        self.step.sync()
    }

    fn decide(&mut self, set: &WorkingSet) -> Option<Changes> {
        match self.step.decide(set) {
            Ok((answer, changes)) => {
                if self.step.is_early(&answer)
                    && let Some(reply) = self.reply.take()
                {
                    let _ = reply.send(Ok(answer));
                } else {
                    self.decided = Some(Ok(answer));
                }
                Some(changes)
            }
            Err(error) => {
                self.decided = Some(Err(error));
                None
            }
        }
    }

    fn finish(self: Box<Self>, committed: Result<(), LedgerError>) {
        let Some(reply) = self.reply else { return };
        let answer = match (self.decided, committed) {
            // The rejection of a step does not depend on the commit.
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error),
            (Some(decided), Ok(())) => decided,
            (None, Ok(())) => Err(LedgerError::Closed),
        };
        // The caller may have disconnected. The record is valid without it.
        let _ = reply.send(answer);
    }
}

/// Submits steps to a writer.
#[derive(Clone)]
pub struct WriterHandle {
    jobs: Sender<Box<dyn Job>>,
    status: Arc<WriterStatus>,
}

impl std::fmt::Debug for WriterHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriterHandle").finish_non_exhaustive()
    }
}

impl WriterHandle {
    /// Returns a handle that submits steps, and the queue that a writer receives them from.
    #[must_use]
    pub fn new(status: Arc<WriterStatus>) -> (Self, Receiver<Box<dyn Job>>) {
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        (Self { jobs, status }, queue)
    }

    /// Runs a step.
    ///
    /// # Errors
    /// The error of the step; [`LedgerError::Unavailable`].
    pub async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(PendingStep { step, decided: None, reply: Some(reply) });
        self.jobs.send(job).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Returns the space state of the store.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        self.status.disk_space()
    }

    /// Closes the queue: further steps are rejected.
    pub fn close(&self) {
        self.jobs.close();
    }

    /// Checks whether the store accepts records.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn healthy(&self) -> Result<(), LedgerError> {
        if self.jobs.is_closed() {
            return Err(LedgerError::Closed);
        }
        self.status.health()
    }
}

/// A commit with an unknown outcome.
struct UncertainCommit {
    /// The end of the log if the commit succeeded.
    after: Head,
    /// The changes if the commit succeeded.
    batch: Batch,
}

/// Serves the steps of one writer.
pub struct Writer<B> {
    backend: B,
    set: WorkingSet,
    status: Arc<WriterStatus>,
    doubt: Option<UncertainCommit>,
    /// Whether the store must be checked before the next write.
    unproven: bool,
    /// Durable claims that were reported to their callers as failed; nothing was dispatched for
    /// them.
    orphans: Vec<BegunClaim>,
    stopped: bool,
}

impl<B: Backend> Writer<B> {
    /// Returns a writer over a backend.
    #[must_use]
    pub fn new(backend: B, set: WorkingSet, status: Arc<WriterStatus>) -> Self {
        Self {
            backend,
            set,
            status,
            doubt: None,
            unproven: false,
            orphans: Vec::new(),
            stopped: false,
        }
    }

    /// Whether the log has ended.
    #[cfg(feature = "memory")]
    pub(crate) fn has_ended(&self) -> bool {
        self.stopped
    }

    /// Runs one step immediately, for a writer without a queue.
    #[cfg(feature = "memory")]
    pub(crate) async fn run<S: Step>(&mut self, step: S) -> Result<S::Answer, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(PendingStep { step, decided: None, reply: Some(reply) });
        self.turn(job.needs(), vec![job]).await;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Serves the queue until it is closed or the log has ended.
    pub async fn serve(mut self, jobs: Receiver<Box<dyn Job>>) {
        let mut left: Option<Box<dyn Job>> = None;
        loop {
            let first = match left.take() {
                Some(job) => job,
                None => match jobs.recv().await {
                    Ok(job) => job,
                    Err(_) => return,
                },
            };
            let mut needs = first.needs();
            let mut batch = vec![first];
            while !needs.is_alone() && batch.len() < BATCH_MAX {
                let Ok(more) = jobs.try_recv() else { break };
                let own = more.needs();
                if own.is_alone() {
                    left = Some(more);
                    break;
                }
                needs.add(own);
                batch.push(more);
            }
            let answered = batch.len();
            self.turn(needs, batch).await;
            if answered >= CROWD && !self.stopped {
                // The answered callers soon submit again: one commit then serves them and the rest.
                let expected = (answered + jobs.len()).min(BATCH_MAX);
                self.backend.gather(&|| jobs.len() >= expected).await;
            }
            if self.stopped {
                // The log has ended; the remaining callers receive an error.
                jobs.close();
                let late = left.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok()));
                late.for_each(|job| job.finish(Err(LedgerError::Closed)));
                return;
            }
        }
    }

    /// Commits a batch and answers. If the store rejects the batch, its steps are committed one by
    /// one, so that one step does not fail the others.
    async fn turn(&mut self, needs: Needs, mut batch: Vec<Box<dyn Job>>) {
        let committed = self.commit(needs, &mut batch).await;
        if !matches!(committed, Err(Failure::Refused(_))) || batch.len() == 1 {
            return self.finish(batch, committed);
        }
        for job in batch {
            let mut alone = vec![job];
            let needs = alone.first().map(|job| job.needs()).unwrap_or_default();
            let committed = self.commit(needs, &mut alone).await;
            self.finish(alone, committed);
        }
    }

    fn finish(&mut self, batch: Vec<Box<dyn Job>>, committed: Result<(), Failure>) {
        let committed = committed.map_err(|failure| match failure {
            Failure::Unavailable(error) | Failure::Refused(error) | Failure::Unknown(error) => {
                error
            }
            Failure::Outdated => {
                LedgerError::unavailable("other processes keep changing the same records")
            }
        });
        self.status.set_health(committed.as_ref().err());
        for job in batch {
            job.finish(committed.clone());
        }
    }

    async fn commit(&mut self, needs: Needs, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        if self.stopped {
            return Err(Failure::Unavailable(LedgerError::Closed));
        }
        if self.unproven
            && let Some(late) = self.recover().await.map_err(Failure::Unavailable)?
        {
            // The callers of that commit received an error.
            self.orphans.extend(late.begun);
        }
        for _ in 0..ATTEMPTS {
            let committed = self.attempt(&needs, jobs).await;
            if committed != Err(Failure::Outdated) {
                return committed;
            }
        }
        // If the cause is this writer's own log, or a newer version of the store, recovery reports it.
        self.unproven = true;
        if let Some(late) = self.recover().await.map_err(Failure::Unavailable)? {
            self.orphans.extend(late.begun);
        }
        Err(Failure::Outdated)
    }

    async fn attempt(&mut self, needs: &Needs, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let from = self.set.head().clone();
        let mut batch = Batch::default();
        let written = self.write(needs, jobs, &from, &mut batch).await;
        match written {
            Ok(()) => {
                self.set.trim();
                self.stopped = batch.upkeep.stopped;
                self.orphans.clear();
                self.status.ended(batch.ended.iter());
                Ok(())
            }
            Err(Failure::Unknown(error)) => {
                tracing::error!(%error, "a commit failed; the store is checked before the next write");
                // Report the error immediately, because recovery can be slow.
                self.status.set_health(Some(&error));
                self.unproven = true;
                let after = std::mem::replace(&mut self.set.head, from);
                self.set.forget();
                self.doubt = Some(UncertainCommit { after, batch });
                // Recovery may determine immediately that the commit succeeded.
                match self.recover().await {
                    Ok(Some(done)) => {
                        self.stopped = done.upkeep.stopped;
                        self.orphans.clear();
                        self.status.ended(done.ended.iter());
                        Ok(())
                    }
                    _ => {
                        if let Some(doubt) = &self.doubt {
                            self.status
                                .ended(doubt.batch.begun.iter().map(|begun| &begun.receipt_id));
                        }
                        Err(Failure::Unknown(error))
                    }
                }
            }
            Err(failure) => {
                self.set.head = from;
                self.set.forget();
                self.status.ended(batch.begun.iter().map(|begun| &begun.receipt_id));
                Err(failure)
            }
        }
    }

    async fn write(
        &mut self,
        needs: &Needs,
        jobs: &mut [Box<dyn Job>],
        from: &Head,
        batch: &mut Batch,
    ) -> Result<(), Failure> {
        let sync = jobs.iter().any(|job| job.sync());
        if self.orphans.is_empty() {
            self.backend.load(needs, sync, &mut self.set).await?;
        } else {
            let mut needs = needs.clone();
            let orphans = self.orphans.iter().cloned();
            orphans.for_each(|orphan| needs.add(Abandon(orphan).needs()));
            self.backend.load(&needs, sync, &mut self.set).await?;
        }
        for orphan in &self.orphans {
            if let Ok((_, changes)) = Abandon(orphan.clone()).decide(&self.set) {
                self.set.apply(changes, batch);
            }
        }
        for job in jobs {
            if batch.upkeep.stopped {
                // Steps after the end of the log are rejected.
                break;
            }
            if let Some(changes) = job.decide(&self.set) {
                self.set.apply(changes, batch);
            }
        }
        if batch.is_empty() {
            // A lookup that writes nothing, such as that of a duplicate, needs no disk access.
            return self.backend.release().await;
        }
        self.backend.write(batch, from, self.set.head()).await
    }

    /// Determines the outcome of an uncertain commit; returns its changes if it succeeded.
    async fn recover(&mut self) -> Result<Option<Batch>, LedgerError> {
        let has_failed = self.doubt.is_some() || self.status.health().is_err();
        let end = self.backend.recover(self.set.writer()).await?;
        let done = match self.doubt.take() {
            Some(doubt) if end.is(&doubt.after) && !end.is(self.set.head()) => {
                self.set.head = doubt.after;
                Some(doubt.batch)
            }
            // The end of the log does not show whether a batch without events was committed. Such a
            // batch dispatches nothing, and its steps can be repeated.
            Some(doubt) if end.is(self.set.head()) => {
                self.status.ended(doubt.batch.begun.iter().map(|begun| &begun.receipt_id));
                None
            }
            None if end.is(self.set.head()) => None,
            doubt => {
                self.doubt = doubt;
                return Err(LedgerError::unavailable(
                    "the log of this writer is not where it left it; restart",
                ));
            }
        };
        if has_failed {
            tracing::info!("the store has proven sound");
        }
        self.unproven = false;
        Ok(done)
    }
}
