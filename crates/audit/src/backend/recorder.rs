//! The ledger over any store: submits its steps to a writer and waits until they are durable.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::Receipt;

use crate::approvals::{ApprovalVerdict, Decided};
use crate::backend::disk_space::DiskSpace;
use crate::backend::pruning::PrunedRange;
use crate::backend::steps::{
    CancelCall, Enqueue, FinishCall, FreeSpace, HeartbeatCall, PruneRecords, RecordEvents,
    RecordUses, Refuse, ReleaseCall, Renew, Settle, SignCheckpoint, Step, Stop, Sweep, TakeCall,
    Wait,
};
use crate::backend::working::CallName;
use crate::charges::RawBudget;
use crate::checkpoint::Due;
use crate::claim::ClaimEvent;
use crate::digest::Digester;
use crate::documents::RawDocument;
use crate::history::{WindowName, WindowTotals};
use crate::ledger::{
    ClaimRequest, Claimed, Ledger, LedgerError, Moment, Prune, Pruned, Refusal, Resolution,
    Settlement, Swept,
};
use crate::note::Signer;
use crate::orders::{OrderRequest, Ordered, RawOrder};
use crate::queue::{CallQueue, Enqueued, Heartbeat, QueuedCall, RawCall, digest_of};
use crate::reads::{
    Accounted, ApprovalFilter, DamagedRow, EventFilter, FoundId, Include, LedgerReads, LogFilter,
    Page, PlacedEvent, RawApproval, RawEntry, ReceiptFilter, Unaccounted, WriterHead,
};

/// Maximum number of consecutive steps to free space; calls continue between them.
const FREE_SPACE_STEPS_MAX: usize = 64;

/// Runs the steps of one writer, and reads the written records.
pub trait StepRunner: Send + Sync + 'static {
    /// The reader of the records.
    type Reads: LedgerReads;

    /// Runs a step; it is durable when this returns, except if its answer may be early
    /// ([`Step::is_early`]).
    fn run<S: Step>(&self, step: S) -> impl Future<Output = Result<S::Answer, LedgerError>> + Send;

    /// The reader of the records.
    fn reads(&self) -> &Self::Reads;

    /// Checks whether records are currently accepted.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] with the reason.
    fn healthy(&self) -> Result<(), LedgerError>;

    /// Returns the space state, if this store monitors it.
    fn disk_space(&self) -> DiskSpace {
        DiskSpace::Enough
    }

    /// Stores the newest checkpoint outside the records, if this store does so.
    fn keep(&self, _note: &str) {}

    /// Releases the resources of the writer after its log has ended.
    fn ended(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A ledger: one writer, its keys, and the runner of its steps.
#[derive(Debug)]
pub struct Recorder<R> {
    writer: String,
    digester: Digester,
    signer: Signer,
    runner: R,
}

impl<R: StepRunner> Recorder<R> {
    /// Returns the ledger of the writer `writer`.
    #[must_use]
    pub fn over(writer: String, digester: Digester, signer: Signer, runner: R) -> Self {
        Self { writer, digester, signer, runner }
    }

    /// Returns the signer of this writer's checkpoints.
    #[must_use]
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Returns the runner of the steps.
    #[must_use]
    pub fn runner(&self) -> &R {
        &self.runner
    }

    fn kept(&self, note: Option<String>) -> Option<String> {
        if let Some(note) = &note {
            self.runner.keep(note);
        }
        note
    }
}

#[async_trait]
impl<R: StepRunner> Ledger for Recorder<R> {
    fn writer(&self) -> &str {
        &self.writer
    }

    fn digester(&self) -> &Digester {
        &self.digester
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        self.runner.run(request).await
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError> {
        self.runner.run(Settle::new(settlement)).await
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        self.runner.run(Refuse::new(refusal)).await
    }

    async fn record_events(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.runner.run(RecordEvents(events)).await
    }

    async fn renew(&self, at: Moment) -> Result<(), LedgerError> {
        self.runner.run(Renew(at)).await
    }

    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        self.runner.run(Sweep(at)).await
    }

    async fn suspend(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        self.runner.run(Wait { receipt_id, claim_event: ClaimEvent::Suspended { fence }, at }).await
    }

    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        self.runner.run(Wait { receipt_id, claim_event: ClaimEvent::Resumed { fence }, at }).await
    }

    async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError> {
        self.runner.run(resolution).await
    }

    async fn order(&self, order: OrderRequest) -> Result<Ordered, LedgerError> {
        self.runner.run(order).await
    }

    async fn decide_approval(&self, verdict: ApprovalVerdict) -> Result<Decided, LedgerError> {
        self.runner.run(verdict).await
    }

    async fn record_uses(&self, uses: Vec<(String, String)>) -> Result<(), LedgerError> {
        self.runner.run(RecordUses(uses)).await
    }

    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError> {
        let step = PruneRecords { prune, signer: self.signer.clone() };
        let (pruned, note) = self.runner.run(step).await?;
        self.kept(note);
        Ok(pruned)
    }

    async fn free_space(&self, at: Moment) -> Result<u64, LedgerError> {
        let mut removed = 0;
        for _ in 0..FREE_SPACE_STEPS_MAX {
            if self.runner.disk_space() == DiskSpace::Enough {
                break;
            }
            let step = FreeSpace { signer: self.signer.clone(), at: at.clone() };
            let (pruned, note) = self.runner.run(step).await?;
            self.kept(note);
            removed += pruned.removed;
            if !pruned.more {
                break;
            }
        }
        Ok(removed)
    }

    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError> {
        let step = SignCheckpoint { signer: self.signer.clone(), due, at };
        Ok(self.kept(self.runner.run(step).await?))
    }

    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError> {
        let note = self.runner.run(Stop { signer: self.signer.clone(), at }).await?;
        self.runner.ended().await;
        Ok(self.kept(note))
    }
}

fn name(caller: &str, call_id: &str) -> (String, String) {
    (caller.to_owned(), call_id.to_owned())
}

#[async_trait]
impl<R: StepRunner> CallQueue for Recorder<R> {
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError> {
        let digest = digest_of(&self.digester, &call.request);
        self.runner.run(Enqueue { call, digest, waiting_max }).await
    }

    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError> {
        self.runner.run(ReleaseCall(name(caller, call_id))).await
    }

    async fn take(
        &self,
        running: Vec<(String, String)>,
    ) -> Result<Option<QueuedCall>, LedgerError> {
        self.runner.run(TakeCall { running: running.into_iter().collect() }).await
    }

    async fn heartbeat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Heartbeat, LedgerError> {
        self.runner.run(HeartbeatCall { call: name(caller, call_id), progress }).await
    }

    async fn finish(
        &self,
        caller: &str,
        call_id: &str,
        result: String,
        at: Moment,
    ) -> Result<(), LedgerError> {
        let digest = digest_of(&self.digester, &result);
        self.runner.run(FinishCall { call: name(caller, call_id), result, digest, at }).await
    }

    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError> {
        self.runner.run(CancelCall(name(caller, call_id))).await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError> {
        let Some(raw) = self.runner.reads().queued(caller, call_id).await? else {
            return Ok(None);
        };
        if !(raw.is_answered(&self.digester) && raw.call.is_whole(&self.digester)) {
            return Err(LedgerError::Damaged(DamagedRow {
                table: "queue".to_owned(),
                row: format!("{caller} {call_id}"),
                reason: "neither its event nor its MAC accounts for it".to_owned(),
            }));
        }
        Ok(Some(raw.call))
    }
}

#[async_trait]
impl<R: StepRunner> LedgerReads for Recorder<R> {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        self.runner.reads().receipt(receipt_id).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        self.runner.reads().receipts(filter).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        self.runner.reads().agent_log(id).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        self.runner.reads().agent_logs(filter).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
        self.runner.reads().events(filter).await
    }

    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        self.runner.reads().named(prefix, limit).await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.runner.reads().log_page(after, limit, include).await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.runner.reads().heads().await
    }

    async fn pruned_ranges(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
        self.runner.reads().pruned_ranges(after, limit).await
    }

    async fn window(&self, name: WindowName, at_ms: i64) -> Result<WindowTotals, LedgerError> {
        self.runner.reads().window(name, at_ms).await
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        self.runner.reads().key_ids().await
    }

    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError> {
        self.runner.reads().unaccounted(known).await
    }

    async fn index_differences(&self) -> Result<Vec<String>, LedgerError> {
        self.runner.reads().index_differences().await
    }

    async fn structure_differences(&self) -> Result<Vec<String>, LedgerError> {
        self.runner.reads().structure_differences().await
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        self.runner.reads().approval_page(after, limit).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError> {
        self.runner.reads().approvals(filter).await
    }

    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError> {
        self.runner.reads().order_page(after, limit).await
    }

    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError> {
        self.runner.reads().budget_page(after, limit).await
    }

    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        self.runner.reads().document(digest).await
    }

    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError> {
        self.runner.reads().document_page(after, limit).await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        self.runner.reads().queued(caller, call_id).await
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        self.runner.reads().call_page(after, limit).await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.runner.healthy()
    }
}
