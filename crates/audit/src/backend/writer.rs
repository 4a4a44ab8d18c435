//! The writer of a store: runs the steps that have queued in one transaction, and answers when it is
//! known whether that is durable.
//!
//! The same for every store; a [`Backend`] loads, writes and commits.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::future::Future;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use futures_channel::oneshot;

use crate::backend::chain::Head;
use crate::backend::room::Room;
use crate::backend::steps::{Abandon, Step};
use crate::backend::working::{Batch, Changes, Needs, WorkingSet};
use crate::backend::writer_status::WriterStatus;
use crate::ledger::{LedgerError, Moment};

/// Most steps that one commit takes.
const BATCH_MAX: usize = 256;
/// From so many steps in a batch on it pays to wait a moment for more.
const CROWD: usize = 8;
/// Steps that may wait; further ones wait for room.
const QUEUE_MAX: usize = 4096;
/// How often a batch is tried on records that others change meanwhile.
const ATTEMPTS: usize = 3;

/// Why a batch was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// What was loaded is not what the store has any more: nothing was written, and everything has
    /// to be loaded again.
    Outdated,
    /// The store does not answer at the moment: nothing was written.
    Away(LedgerError),
    /// The store does not take what it was given, or cannot read what is asked for: nothing was
    /// written.
    Refused(LedgerError),
    /// Nobody knows whether it was written.
    Unknown(LedgerError),
}

/// Where a writer's log ends, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEnd {
    /// How many events it has.
    pub size: u64,
    /// Leaf hash of the last one, in hex.
    pub last_leaf: Option<String>,
}

impl LogEnd {
    fn is(&self, head: &Head) -> bool {
        self.size == head.next_seq() && self.last_leaf == head.last_leaf()
    }
}

/// A place that keeps records. The calls of one batch come in this order: `load`, then `write` or
/// `release`.
pub trait Backend: Send + 'static {
    /// Begins a transaction and loads what a batch needs into the set. Where another process has
    /// written since, the set forgets what it knew first. `sync` says whether the batch has to
    /// survive the loss of power where the store leaves the choice.
    fn load(
        &mut self,
        needs: &Needs,
        sync: bool,
        set: &mut WorkingSet,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes what a batch has done, moves the end of the log from `from` to `to`, and commits.
    fn write(
        &mut self,
        batch: &Batch,
        from: &Head,
        to: &Head,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits a fraction of what a commit takes, at most until there is enough to commit.
    fn gather(&mut self, enough: &(dyn Fn() -> bool + Sync)) -> impl Future<Output = ()> + Send;

    /// Ends a transaction in which nothing was written.
    fn release(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// After a commit of unknown result: finds the store sound, and where the log of `writer` ends.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] where that cannot be found out yet.
    fn recover(&mut self, writer: &str)
    -> impl Future<Output = Result<LogEnd, LedgerError>> + Send;
}

/// A step that somebody waits for.
pub trait Job: Send {
    /// What it looks at.
    fn needs(&self) -> Needs;
    /// Whether its answer waits for the disk, where the store leaves the choice.
    fn sync(&self) -> bool;
    /// What it changes; `None` where it refuses.
    fn decide(&mut self, set: &WorkingSet) -> Option<Changes>;
    /// Answers whoever waits, once it is known whether the batch is durable.
    fn finish(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct PendingStep<S: Step> {
    step: S,
    decided: Option<Result<S::Answer, LedgerError>>,
    /// `None` once it was answered.
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
            // What a step refused did not depend on the commit.
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error),
            (Some(decided), Ok(())) => decided,
            (None, Ok(())) => Err(LedgerError::Closed),
        };
        // Whoever asked may have gone away; the record stands all the same.
        let _ = reply.send(answer);
    }
}

/// Hands steps to a writer.
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
    /// Where steps are handed over, and where a writer takes them.
    #[must_use]
    pub fn new(status: Arc<WriterStatus>) -> (Self, Receiver<Box<dyn Job>>) {
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        (Self { jobs, status }, queue)
    }

    /// Runs a step.
    ///
    /// # Errors
    /// What the step refuses; [`LedgerError::Unavailable`].
    pub async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(PendingStep { step, decided: None, reply: Some(reply) });
        self.jobs.send(job).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// How much room the store has left.
    #[must_use]
    pub fn room(&self) -> Room {
        self.status.room()
    }

    /// No further steps are taken.
    pub fn close(&self) {
        self.jobs.close();
    }

    /// Whether the store takes records.
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

/// A commit of which nobody knows whether it has happened.
struct UncertainCommit {
    /// Where the log ends if it has.
    after: Head,
    /// What it has done then.
    batch: Batch,
}

/// Serves the steps of one writer.
pub struct Writer<B> {
    backend: B,
    set: WorkingSet,
    status: Arc<WriterStatus>,
    doubt: Option<UncertainCommit>,
    /// The store has to prove sound before it is written again.
    unproven: bool,
    /// Claims whose callers were told that nothing is dispatched, and which are durable after all.
    orphans: Vec<(String, u64, Moment)>,
    stopped: bool,
}

impl<B: Backend> Writer<B> {
    /// A writer over a backend.
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

    /// Runs one step at once, for a writer that serves no queue.
    #[cfg(feature = "memory")]
    pub(crate) async fn run<S: Step>(&mut self, step: S) -> Result<S::Answer, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(PendingStep { step, decided: None, reply: Some(reply) });
        self.turn(job.needs(), vec![job]).await;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Serves until nobody can hand over any more, or the log has ended.
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
            while needs.survey.is_none() && batch.len() < BATCH_MAX {
                let Ok(more) = jobs.try_recv() else { break };
                let own = more.needs();
                if own.survey.is_some() {
                    left = Some(more);
                    break;
                }
                needs.add(own);
                batch.push(more);
            }
            let answered = batch.len();
            self.turn(needs, batch).await;
            if answered >= CROWD && !self.stopped {
                // Those that were answered ask again soon: one commit serves them and the rest.
                let expected = (answered + jobs.len()).min(BATCH_MAX);
                self.backend.gather(&|| jobs.len() >= expected).await;
            }
            if self.stopped {
                // The log has ended; whoever still waits is told so.
                jobs.close();
                let late = left.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok()));
                late.for_each(|job| job.finish(Err(LedgerError::Closed)));
                return;
            }
        }
    }

    /// Commits a batch and answers. What a store refuses to write is tried one by one, so that one
    /// step takes no other along.
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
            Failure::Away(error) | Failure::Refused(error) | Failure::Unknown(error) => error,
            Failure::Outdated => {
                LedgerError::unavailable("others change the same records all the time")
            }
        });
        self.status.set_health(committed.as_ref().err());
        for job in batch {
            job.finish(committed.clone());
        }
    }

    async fn commit(&mut self, needs: Needs, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        if self.stopped {
            return Err(Failure::Away(LedgerError::Closed));
        }
        if self.unproven
            && let Some(late) = self.recover().await.map_err(Failure::Away)?
        {
            // Whoever waited for that commit was told that it failed.
            self.orphans.extend(late.begun);
        }
        for _ in 0..ATTEMPTS {
            let committed = self.attempt(&needs, jobs).await;
            if committed != Err(Failure::Outdated) {
                return committed;
            }
        }
        // Where it is this writer's own log that is not what it was, recovery tells.
        self.unproven = true;
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
                tracing::error!(%error, "a commit failed; the store has to prove sound");
                // Red at once: finding out what has happened may take a while.
                self.status.set_health(Some(&error));
                self.unproven = true;
                let after = std::mem::replace(&mut self.set.head, from);
                self.set.forget();
                self.doubt = Some(UncertainCommit { after, batch });
                // It may be known at once that it has happened all the same.
                match self.recover().await {
                    Ok(Some(done)) => {
                        self.stopped = done.upkeep.stopped;
                        self.orphans.clear();
                        self.status.ended(done.ended.iter());
                        Ok(())
                    }
                    _ => {
                        if let Some(doubt) = &self.doubt {
                            self.status.ended(doubt.batch.begun.iter().map(|(id, _, _)| id));
                        }
                        Err(Failure::Unknown(error))
                    }
                }
            }
            Err(failure) => {
                self.set.head = from;
                self.set.forget();
                self.status.ended(batch.begun.iter().map(|(id, _, _)| id));
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
            needs.receipts.extend(self.orphans.iter().map(|(id, _, _)| id.clone()));
            self.backend.load(&needs, sync, &mut self.set).await?;
        }
        for (receipt_id, fence, at) in &self.orphans {
            let step = Abandon { receipt_id: receipt_id.clone(), fence: *fence, at: at.clone() };
            if let Ok((_, changes)) = step.decide(&self.set) {
                self.set.apply(changes, batch);
            }
        }
        for job in jobs {
            if batch.upkeep.stopped {
                // What came after the end of the log is told that it was not done.
                break;
            }
            if let Some(changes) = job.decide(&self.set) {
                self.set.apply(changes, batch);
            }
        }
        if batch.is_empty() {
            // A look-up that writes nothing, such as a duplicate's, costs no trip to the disk.
            return self.backend.release().await;
        }
        self.backend.write(batch, from, self.set.head()).await
    }

    /// Finds out what has become of a commit in doubt: what it has done, where it has happened.
    async fn recover(&mut self) -> Result<Option<Batch>, LedgerError> {
        let end = self.backend.recover(self.set.writer()).await?;
        let done = match self.doubt.take() {
            Some(doubt) if end.is(&doubt.after) && !end.is(self.set.head()) => {
                self.set.head = doubt.after;
                Some(doubt.batch)
            }
            // Whether a batch without events has happened, the end of the log does not tell. It
            // dispatches nothing, and its steps may be done again.
            Some(doubt) if end.is(self.set.head()) => {
                self.status.ended(doubt.batch.begun.iter().map(|(id, _, _)| id));
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
        tracing::info!("the store has proven sound");
        self.unproven = false;
        Ok(done)
    }
}
