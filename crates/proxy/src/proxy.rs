//! The proxy's face for calls: each in a task of its own, all of them drained at the end.
//!
//! Path: 2. Doc: call-path.md#one-call

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::{Ledger, LedgerError, LedgerReads};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::plan::{Plan, PlanReport};
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_contracts::{CallContext, Caller, Conversation, ErrorCode, ToolCall, ToolResult};

use crate::catalogue::Catalogue;
use crate::executors::Executors;
use crate::floods::Floods;
use crate::limits::Limits;
use crate::path;
use crate::payload_retention::PayloadRetention;
use crate::plan::{self, InvalidPlan};
use crate::port::{Clock, IdSource};
use crate::requests::subscriptions::{self, Subscriptions};
use crate::requests::updates::Updates;
use crate::requests::{
    self, RequestError, ResourceUpdate, ServerRequest, SubscribeRequest, Subscription, Upstreams,
};
use crate::world::Worlds;

/// What a proxy is made of; all of it is brought from outside.
pub struct Parts {
    /// The published world.
    pub worlds: Arc<Worlds>,
    /// Who refreshes the world, where sources may have to be asked before a call.
    pub catalogue: Option<Arc<Catalogue>>,
    /// Where records go.
    pub ledger: Arc<dyn Ledger>,
    /// Where operators read them; `None` = nowhere.
    pub reads: Option<Arc<dyn LedgerReads>>,
    /// The ways to reach tools.
    pub executors: Executors,
    /// The servers that are asked for more than tools.
    pub upstreams: Upstreams,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub ids: Arc<dyn IdSource>,
    /// By what secrets are known in payloads.
    pub shapes: SecretShapes,
    /// The bounds.
    pub limits: Limits,
    /// What is kept of payloads.
    pub retention: PayloadRetention,
}

/// What one stage of a call did, for people who want to see the path.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
pub struct StageNote {
    /// The stage.
    pub stage: String,
    /// Milliseconds that it took.
    pub ms: f64,
    /// What it found.
    pub note: String,
}

pub(crate) struct ProxyState {
    pub(crate) parts: Parts,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) ending: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Refusals whose records could not be written, until an event says so.
    pub(crate) gap: AtomicU64,
    /// Refusals that come too often to be recorded one by one.
    pub(crate) floods: Floods,
    /// What callers are subscribed to.
    pub(crate) subscriptions: Subscriptions,
    pub(crate) updates: Updates,
}

/// The single chokepoint. Cheap to clone; all clones are one proxy.
#[derive(Clone)]
pub struct ToolProxy(Arc<ProxyState>);

impl ToolProxy {
    /// A proxy of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let slots = Arc::new(Semaphore::new(parts.limits.in_flight_max));
        Self(Arc::new(ProxyState {
            parts,
            slots,
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
            gap: AtomicU64::new(0),
            floods: Floods::default(),
            subscriptions: Subscriptions::default(),
            updates: Updates::default(),
        }))
    }

    /// Runs one call to its end. The call runs in a task of its own: dropping this future does
    /// not end it, only the conversation's cancel asks it to stop.
    pub async fn call(&self, call: ToolCall, conversation: Conversation) -> ToolResult {
        self.run(call, conversation, None, false).await.0
    }

    /// As [`ToolProxy::call`], and tells what each stage did.
    pub async fn call_explained(
        &self,
        call: ToolCall,
        conversation: Conversation,
    ) -> (ToolResult, Vec<StageNote>) {
        self.run(call, conversation, None, true).await
    }

    /// Runs one call that has a key of its own: a step of a plan, or a queued call.
    pub(crate) async fn call_with_dedup_key(
        &self,
        call: ToolCall,
        conversation: Conversation,
        dedup_key: String,
    ) -> ToolResult {
        self.run(call, conversation, Some(dedup_key), false).await.0
    }

    async fn run(
        &self,
        call: ToolCall,
        conversation: Conversation,
        dedup_key: Option<String>,
        explain: bool,
    ) -> (ToolResult, Vec<StageNote>) {
        let inner = Arc::clone(&self.0);
        let tool_id = call.tool.as_str().to_owned();
        let call_id = call.context.call_id.clone().unwrap_or_default();
        // The task is moved a few times before it runs.
        let walk = Box::pin(path::walk(inner, call, conversation, dedup_key, explain));
        let task = self.0.tasks.spawn(walk);
        match task.await {
            Ok(done) => done,
            Err(error) => {
                // Executors are caught one level below; this is a fault of the proxy itself.
                tracing::error!(%error, "a call ended without an outcome");
                (path::broken(tool_id, call_id), Vec::new())
            }
        }
    }

    /// Asks a server for something else than a call, such as a resource or a prompt. It runs in a
    /// task of its own: dropping this future does not end it, only the conversation's cancel does.
    ///
    /// # Errors
    /// [`RequestError`], with a code.
    pub async fn request(
        &self,
        request: ServerRequest,
        conversation: Conversation,
    ) -> Result<Value, RequestError> {
        let call_id = request.context.call_id.clone().unwrap_or_default();
        let walk = requests::walk(Arc::clone(&self.0), request, conversation);
        match self.0.tasks.spawn(walk).await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a request ended without an outcome");
                Err(RequestError::broken(call_id))
            }
        }
    }

    /// Has a server tell when a resource changes, until what this gives is dropped. What it tells
    /// comes by [`ToolProxy::updates`].
    ///
    /// # Errors
    /// [`RequestError`], with a code.
    pub async fn subscribe(&self, request: SubscribeRequest) -> Result<Subscription, RequestError> {
        let call_id = request.context.call_id.clone().unwrap_or_default();
        let subscribing = subscriptions::subscribe(Arc::clone(&self.0), request);
        match self.0.tasks.spawn(subscribing).await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a subscription ended without an outcome");
                Err(RequestError::broken(call_id))
            }
        }
    }

    /// What servers tell of resources, from now on; of all servers, and all callers. A receiver
    /// that lags behind misses the oldest. To be called within a runtime.
    #[must_use]
    pub fn updates(&self) -> tokio::sync::broadcast::Receiver<ResourceUpdate> {
        self.0.updates.listen(&self.0.parts)
    }

    /// Runs a plan; partial results always come back. What the agent claims goes with each step.
    ///
    /// # Errors
    /// [`InvalidPlan`], before anything runs.
    pub async fn plan(
        &self,
        plan: Plan,
        caller: &Caller,
        context: &CallContext,
    ) -> Result<PlanReport, InvalidPlan> {
        plan::run(self, plan, caller, context).await
    }

    /// The published world.
    #[must_use]
    pub fn worlds(&self) -> &Arc<Worlds> {
        &self.0.parts.worlds
    }

    /// What it is made of.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.0.parts
    }

    /// Whether the house takes no more calls.
    pub(crate) fn is_ending(&self) -> bool {
        self.0.slots.is_closed()
    }

    /// How many calls run at the moment.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.tasks.len()
    }

    /// Writes down something that is no call, such as a tool that was replaced.
    ///
    /// # Errors
    /// Where the store does not take it.
    pub async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.0.parts.ledger.note(events).await
    }

    /// Keeps the writer's lease, marks the claims of lost writers, makes room, and signs a checkpoint where
    /// one is due; to be called at start and every [`toolbooth_audit::ledger::RENEW_EVERY`].
    /// Gives the checkpoint, which is to be handed outside.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn maintain(&self, due: Due) -> Result<Option<String>, LedgerError> {
        let Parts { ledger, clock, .. } = &self.0.parts;
        ledger.renew(clock.now()).await?;
        for swept in ledger.sweep(clock.now()).await? {
            tracing::warn!(receipt.id = %swept.receipt_id, "a call of a lost writer is in doubt");
        }
        let removed = ledger.make_room(clock.now()).await?;
        if removed > 0 {
            tracing::warn!(removed, "agent logs were removed, since room for records runs short");
        }
        self.0.record_gap().await;
        self.0.record_floods(false).await;
        ledger.checkpoint(due, clock.now()).await
    }

    /// Takes no more calls, lets those that run settle for `grace`, cancels the rest, settles
    /// them, ends the executors and closes the ledger. Gives the last checkpoint.
    ///
    /// # Errors
    /// Where the store cannot be closed.
    pub async fn shut_down(&self, grace: Duration) -> Result<Option<String>, LedgerError> {
        self.0.slots.close();
        self.0.updates.close().await;
        self.0.tasks.close();
        if tokio::time::timeout(grace, self.0.tasks.wait()).await.is_err() {
            self.0.ending.cancel();
            let limits = &self.0.parts.limits;
            let patience = limits.cancel_grace + limits.settle_patience + Duration::from_secs(1);
            if tokio::time::timeout(patience, self.0.tasks.wait()).await.is_err() {
                tracing::error!(calls = self.0.tasks.len(), "calls did not end in time");
            }
        }
        self.0.parts.executors.close().await;
        self.0.record_gap().await;
        self.0.record_floods(true).await;
        self.0.parts.ledger.close(self.0.parts.clock.now()).await
    }
}

impl ProxyState {
    /// Counts a record that could not be written.
    pub(crate) fn count_gap(&self, error: &LedgerError) {
        self.gap.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "a refusal could not be recorded");
    }

    /// Whether a refusal is recorded by itself; else it is counted, and told with others.
    pub(crate) fn is_single(&self, caller: &str, code: ErrorCode, at: &Moment) -> bool {
        self.floods.is_single(caller, code, self.parts.clock.monotonic(), at)
    }

    /// Says how many refusals were counted instead of recorded.
    async fn record_floods(&self, all: bool) {
        let events = self.floods.take(self.parts.clock.monotonic(), &self.parts.clock.now(), all);
        if events.is_empty() {
            return;
        }
        let folded = |event: &EventBody| event.facts.as_ref()?.get("folded")?.as_u64();
        let missed: u64 = events.iter().filter_map(folded).sum();
        if let Err(error) = self.parts.ledger.note(events).await {
            tracing::error!(%error, missed, "refusals that were counted could not be recorded");
            self.gap.fetch_add(missed, Ordering::Relaxed);
        }
    }

    /// Says how many records could not be written, once the store is back.
    pub(crate) async fn record_gap(&self) {
        let missed = self.gap.swap(0, Ordering::Relaxed);
        if missed == 0 {
            return;
        }
        let mut event = EventBody::new(AuditEventKind::AuditGap, self.parts.clock.now().text);
        let mut facts = serde_json::Map::new();
        facts.insert("missed".to_owned(), missed.into());
        event.facts = Some(facts);
        if self.parts.ledger.note(vec![event]).await.is_err() {
            self.gap.fetch_add(missed, Ordering::Relaxed);
        }
    }
}
