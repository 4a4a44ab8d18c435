//! The public interface of the proxy: runs each call to its end, and drains them at shutdown.
//!
//! Path: 2. Doc: call-path.md#one-call

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::{Prune, PruneKind, Pruned};
use toolbooth_contracts::contract::{AdapterId, GATEWAY_RUNTIME, TIMEOUT_MS_DEFAULT};
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::{Conversation, ToolCall, ToolResult};

use crate::argument_rules::ArgumentRules;
use crate::inline_task::InlineTask;
use crate::own_tools::OwnTools;
use crate::path::{self, CallOptions, StageReport, Walked};
use crate::requests::{
    self, RequestError, ResourceUpdate, ServerRequest, SubscribeRequest, Subscription,
    UpstreamEntry,
};
use crate::shown::shown;
use crate::state::{DeniedAuthentication, ProxyParts, ProxyState};

/// The time that queued calls have at shutdown to put their ends into the queue.
const QUEUE_GRACE: Duration = Duration::from_secs(2);

/// The single chokepoint. Cheap to clone; all clones are the same proxy.
#[derive(Clone)]
pub struct ToolProxy(Arc<ProxyState>);

impl ToolProxy {
    /// Builds a proxy from these parts. If it has a catalogue to search and records to read, the
    /// gateway's own tools are among its executors and servers.
    #[must_use]
    pub fn new(mut parts: ProxyParts) -> Self {
        if let (Some(catalogue), Some(reads)) = (&parts.catalogue, &parts.reads) {
            let own = Arc::new(OwnTools::new(Arc::clone(catalogue), Arc::clone(reads)));
            let id = AdapterId::Local(GATEWAY_RUNTIME.to_owned());
            parts.executors = parts.executors.with(id, own.clone());
            parts.upstreams = parts.upstreams.with(UpstreamEntry {
                upstream: own,
                timeout: Duration::from_millis(TIMEOUT_MS_DEFAULT),
                per_caller: false,
            });
        }
        Self(Arc::new(ProxyState::new(parts)))
    }

    /// Runs one call to its end, in a task of its own. Dropping this future does not end it; only the
    /// conversation's cancel asks it to stop.
    pub async fn call(&self, call: ToolCall, conversation: Conversation) -> ToolResult {
        self.run(call, conversation, CallOptions::default()).await.result
    }

    /// As [`ToolProxy::call`], within this future, so the future must be polled until it is ready. If it is dropped,
    /// the call goes on in a task of its own.
    pub async fn call_inline(&self, call: ToolCall, conversation: Conversation) -> ToolResult {
        self.within(call, conversation, CallOptions::default(), false).await.result
    }

    /// As [`ToolProxy::call_inline`], with the rules of a front door for agents. The result is in the form for
    /// an agent, in the world that judged the call: large texts that its receipt stores are shortened.
    pub async fn call_shown(
        &self,
        call: ToolCall,
        conversation: Conversation,
        rules: Option<Arc<dyn ArgumentRules>>,
    ) -> ToolResult {
        let (caller, toolset) = (call.caller.clone(), call.toolset.clone());
        let options = CallOptions { rules, ..CallOptions::default() };
        let Walked { result, world, .. } = self.within(call, conversation, options, false).await;
        match world {
            Some(world) => {
                let retention = &self.0.parts.retention;
                shown(retention, &world, &caller, toolset.as_ref(), result)
            }
            None => result,
        }
    }

    /// As [`ToolProxy::call`], and also returns a report of each stage.
    pub async fn call_explained(
        &self,
        call: ToolCall,
        conversation: Conversation,
    ) -> (ToolResult, Vec<StageReport>) {
        let options = CallOptions { explain: true, ..CallOptions::default() };
        let walked = self.run(call, conversation, options).await;
        (walked.result, walked.reports)
    }

    /// Runs one call with these options, in a task of its own.
    pub(crate) async fn run(
        &self,
        call: ToolCall,
        conversation: Conversation,
        options: CallOptions,
    ) -> Walked {
        self.within(call, conversation, options, true).await
    }

    /// Runs one call within this future or, if it is `spawned`, in a task of its own.
    async fn within(
        &self,
        call: ToolCall,
        conversation: Conversation,
        options: CallOptions,
        spawned: bool,
    ) -> Walked {
        let state = Arc::clone(&self.0);
        let tool_id = call.tool.as_str().to_owned();
        let call_id = call.context.call_id.clone().unwrap_or_default();
        let walk = path::walk(state, call, conversation, options);
        let mut walk = InlineTask::new(&self.0.tasks, walk);
        if spawned {
            walk.spawn();
        }
        match walk.await {
            Ok(done) => done,
            Err(error) => {
                // Executors are caught one level below; this is a fault of the proxy itself.
                tracing::error!(%error, "a call ended without an outcome");
                let result = path::broken(tool_id, call_id);
                Walked { result, world: None, reports: Vec::new() }
            }
        }
    }

    /// Sends a server a request other than a call, such as for a resource or a prompt. It runs in a
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
        self.requested(call_id, walk).await
    }

    /// Subscribes to the changes of a resource, until the returned value is dropped. The changes arrive
    /// through [`ToolProxy::updates`].
    ///
    /// # Errors
    /// [`RequestError`], with a code.
    pub async fn subscribe(&self, request: SubscribeRequest) -> Result<Subscription, RequestError> {
        let call_id = request.context.call_id.clone().unwrap_or_default();
        let subscribing = requests::subscribe(Arc::clone(&self.0), request);
        self.requested(call_id, subscribing).await
    }

    /// Runs a request in a task of its own.
    async fn requested<T: Send + 'static>(
        &self,
        call_id: String,
        task: impl Future<Output = Result<T, RequestError>> + Send + 'static,
    ) -> Result<T, RequestError> {
        match self.0.tasks.spawn(task).await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a request ended without an outcome");
                Err(RequestError::broken(call_id))
            }
        }
    }

    /// Returns the resource updates of all servers and for all callers, from now on. A receiver that
    /// lags behind misses the oldest. Must be called within a runtime.
    #[must_use]
    pub fn updates(&self) -> tokio::sync::broadcast::Receiver<ResourceUpdate> {
        self.0.updates.listen(&self.0.parts.upstreams, &self.0.parts.worlds)
    }

    /// The state that all of its calls share.
    pub(crate) fn state(&self) -> &ProxyState {
        &self.0
    }

    /// Returns an id that cannot be guessed.
    #[must_use]
    pub fn new_id(&self) -> String {
        self.0.parts.ids.next()
    }

    /// Whether the proxy accepts no further calls, because it is shutting down.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.0.slots.is_closed()
    }

    /// The number of calls that are running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.tasks.len()
    }

    /// Records events other than calls, such as a replaced tool.
    ///
    /// # Errors
    /// If the store rejects them.
    pub async fn record_events(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.0.parts.ledger.record_events(events).await
    }

    /// Records that a front door did not authenticate a request. Above a number per minute, such
    /// requests are counted together for each reason.
    pub async fn record_denied_authentication(&self, denied: DeniedAuthentication<'_>) {
        self.0.record_denied_authentication(denied).await;
    }

    /// Renews the writer's lease, marks the claims of lost writers, frees space, and signs a checkpoint if
    /// one is due. Must be called at start and every [`toolbooth_audit::ledger::RENEW_EVERY`]. Returns the
    /// checkpoint, which must also be stored outside the store.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn maintain(&self, due: Due) -> Result<Option<String>, LedgerError> {
        let ProxyParts { ledger, clock, .. } = &self.0.parts;
        ledger.renew(clock.now()).await?;
        for swept in ledger.sweep(clock.now()).await? {
            tracing::warn!(receipt.id = %swept.receipt_id, "a call of a lost writer is in doubt");
        }
        let removed = ledger.free_space(clock.now()).await?;
        if removed > 0 {
            tracing::warn!(removed, "agent logs were removed, since space for records runs short");
        }
        self.0.record_key_uses().await;
        self.0.record_gap().await;
        self.0.record_counted_refusals(false).await;
        self.checkpoint(due).await
    }

    /// Signs a checkpoint if one is due. Returns it; it must be stored outside.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn checkpoint(&self, due: Due) -> Result<Option<String>, LedgerError> {
        self.0.parts.ledger.checkpoint(due, self.0.parts.clock.now()).await
    }

    /// Removes records from before a time, as many as fit into one step.
    ///
    /// # Errors
    /// If the store does not respond, or the records must not be removed.
    pub async fn prune(&self, kind: PruneKind, before: String) -> Result<Pruned, LedgerError> {
        let windows = self.0.parts.worlds.now().policy().windows();
        let step = Prune { kind, before, windows, at: self.0.parts.clock.now() };
        self.0.parts.ledger.prune(step).await
    }

    /// Accepts no further calls, lets those that run settle for `grace`, and cancels and settles the
    /// rest. Then closes the executors and the ledger, and returns the last checkpoint.
    ///
    /// # Errors
    /// If the store cannot be closed.
    pub async fn shut_down(&self, grace: Duration) -> Result<Option<String>, LedgerError> {
        self.0.slots.close();
        // Calls that wait for an approval are answered.
        self.0.decisions.send_modify(|count| *count = count.wrapping_add(1));
        self.0.updates.close().await;
        self.0.tasks.close();
        if tokio::time::timeout(grace, self.0.tasks.wait()).await.is_err() {
            self.0.ending.cancel();
            let limits = &self.0.parts.limits;
            let patience = limits
                .cancel_grace
                .saturating_add(limits.settle_patience)
                .saturating_add(Duration::from_secs(1));
            if tokio::time::timeout(patience, self.0.tasks.wait()).await.is_err() {
                tracing::error!(calls = self.0.tasks.len(), "calls did not end in time");
            }
        }
        self.0.queued.close();
        if tokio::time::timeout(QUEUE_GRACE, self.0.queued.wait()).await.is_err() {
            tracing::warn!(calls = self.0.queued.len(), "queued calls are left to the next worker");
        }
        self.0.parts.executors.close().await;
        self.0.record_key_uses().await;
        self.0.record_gap().await;
        self.0.record_counted_refusals(true).await;
        self.0.parts.ledger.close(self.0.parts.clock.now()).await
    }
}
