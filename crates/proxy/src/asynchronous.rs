//! Asynchronous calls: submitted now, run later by a worker, through the whole call path.
//!
//! The submission fixes the id, the caller and the arguments of a call. Permission is judged when the
//! call runs. A call that is delivered again finds its own claim.
//!
//! Path: 2. Doc: call-path.md#asynchronous-calls

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use toolbooth_audit::queue::{CallQueue, DELIVERIES_MAX, Enqueued, Heartbeat, QueuedCall};
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::conversation::{CancelHandle, Progress};
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{
    CallId, CallRequest, Caller, Conversation, Effect, ErrorCode, ToolCall, ToolName, ToolResult,
};

use crate::deliveries::Deliveries;
use crate::error::KeyRefusal;
use crate::path::{self, CallOptions, DedupKey};
use crate::proxy::ToolProxy;
use crate::redelivered;
use crate::worker_slot::{WorkerSlot, WorkerSlots};

/// How often the queue is asked for calls that other processes have submitted.
const POLL: Duration = Duration::from_millis(250);
/// How often a worker reports the progress of a call, and learns whether to stop.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// Of so many heartbeats, a call that waits for its approval has one: many calls can wait.
const WAITING_HEARTBEAT: u32 = 4;
/// First pause before the queue is asked again after a failure; it doubles up to five seconds.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// An asynchronous call, as its caller sees it.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AsyncCall {
    /// The call's id.
    pub call_id: String,
    /// The tool that it names.
    pub tool_id: String,
    /// `queued`, `running` or `done`.
    pub state: String,
    /// When it was submitted, RFC 3339 UTC.
    pub enqueued_at: String,
    /// When it got its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// How often it was delivered to a worker.
    pub deliveries: u32,
    /// Whether its caller requested its cancellation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// The progress that the tool reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// The result, once there is one: the same as that of a synchronous call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

impl From<QueuedCall> for AsyncCall {
    fn from(call: QueuedCall) -> Self {
        let request: Option<CallRequest> = serde_json::from_str(&call.request).ok();
        Self {
            call_id: call.call_id,
            tool_id: request.map(|request| request.tool_id).unwrap_or_default(),
            deliveries: call.deliveries,
            state: call.state.as_str().to_owned(),
            enqueued_at: call.enqueued_at,
            finished_at: call.finished_at,
            cancel_requested: call.cancel,
            progress: call.progress,
            result: call.result.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }
}

/// The result of a submission.
#[derive(Debug)]
pub enum Submission {
    /// The call waits, or was submitted before.
    Taken(Box<AsyncCall>),
    /// The caller has another call with this id.
    Conflict,
    /// Too many calls wait.
    Full,
    /// The call's id is invalid.
    BadId(String),
}

/// The asynchronous interface of a proxy. Cheap to clone.
#[derive(Clone)]
pub struct AsyncCalls {
    proxy: ToolProxy,
    queue: Arc<dyn CallQueue>,
    reads: Arc<dyn LedgerReads>,
    handed: Arc<Notify>,
    deliveries: Arc<Deliveries>,
}

impl AsyncCalls {
    /// Creates the interface for asynchronous calls of `proxy`, which wait in `queue`; their receipts are
    /// in `reads`.
    pub fn new(proxy: ToolProxy, queue: Arc<dyn CallQueue>, reads: Arc<dyn LedgerReads>) -> Self {
        Self { proxy, queue, reads, handed: Arc::new(Notify::new()), deliveries: Arc::default() }
    }

    /// Submits a call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]: it is not submitted.
    pub async fn submit(
        &self,
        mut request: CallRequest,
        caller: &Caller,
    ) -> Result<Submission, LedgerError> {
        let parts = &self.proxy.state().parts;
        let call_id = match request.context.call_id.take() {
            None => parts.ids.next(),
            Some(text) => match CallId::try_from(text) {
                Ok(id) if [".", ".."].contains(&id.as_str()) => {
                    let message = "`callId` is `.` or `..`, which a path of HTTP cannot name";
                    return Ok(Submission::BadId(message.to_owned()));
                }
                Ok(id) => String::from(id),
                Err(error) => return Ok(Submission::BadId(error.to_string())),
            },
        };
        request.context.call_id = Some(call_id.clone());
        // Each delivery must mean the same tool, even if wire names were reassigned meanwhile.
        let world = parts.worlds.now();
        let id = world.tool_id(&ToolName::IdOrWire(request.tool_id.clone())).to_owned();
        // A hidden tool gets the same answer as an unknown tool.
        if world.registry.get(&id).is_some() && !world.policy.hides_tool(caller, &id) {
            request.tool_id = id;
        }
        let text = serde_json::to_string(&request)
            .map_err(|error| LedgerError::Defect(error.to_string()))?;
        let call = QueuedCall::new(call_id, caller.identity(), text, &parts.clock.now());
        let waiting = AsyncCall::from(call.clone());
        Ok(match self.queue.enqueue(call, parts.limits.queued_max).await? {
            Enqueued::New => {
                self.handed.notify_one();
                Submission::Taken(Box::new(waiting))
            }
            Enqueued::Known(call) => {
                Submission::Taken(Box::new(self.as_known_now(AsyncCall::from(*call)).await?))
            }
            Enqueued::Conflict => Submission::Conflict,
            Enqueued::Full => Submission::Full,
        })
    }

    /// Returns a call of this caller.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn get(
        &self,
        caller: &Caller,
        call_id: &str,
    ) -> Result<Option<AsyncCall>, LedgerError> {
        let call = self.queue.queued(caller.name(), call_id).await?;
        match call {
            Some(call) => self.as_known_now(AsyncCall::from(call)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Updates a call that ended with an unknown or unrecorded outcome, if its receipt now contains the
    /// outcome.
    async fn as_known_now(&self, mut call: AsyncCall) -> Result<AsyncCall, LedgerError> {
        let doubt = call.result.as_ref().filter(|result| {
            let is = |pointer: &str, word: &str| {
                result.pointer(pointer).and_then(Value::as_str) == Some(word)
            };
            is("/effect", Effect::Unknown.as_str())
                || is("/error/code", ErrorCode::OutcomeUnrecorded.as_str())
        });
        let receipt = doubt.and_then(|result| result.get("receiptId")?.as_str());
        let Some(receipt) = receipt else { return Ok(call) };
        let receipt = self.reads.receipt(receipt).await?;
        if let Some(receipt) = receipt
            && matches!(receipt.state, ClaimState::Succeeded | ClaimState::Failed)
        {
            call.result = Some(json!(path::outcome_of(receipt, &call.call_id)));
        }
        Ok(call)
    }

    /// Requests the cancellation of a call of this caller; `false` if no such call can be cancelled.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn cancel(&self, caller: &Caller, call_id: &str) -> Result<bool, LedgerError> {
        self.queue.cancel(caller.name(), call_id).await
    }

    /// Takes calls and runs them, `at_once` at a time, until `stop`. Calls that wait for an approval do not
    /// count among these; `in_flight_max` of them wait, others end as `approval-required`. The proxy's own
    /// shutdown then waits for those that run. Must be called once per store and process: a call that is
    /// marked as running here, but unknown to this value, is taken again.
    pub async fn work(&self, at_once: usize, stop: CancellationToken) {
        // As many can wait for an approval as synchronous ones.
        let away_max = self.proxy.state().parts.limits.in_flight_max;
        let workers = WorkerSlots::new(at_once, away_max);
        let mut pause = RETRY_FIRST;
        loop {
            let worker = tokio::select! {
                worker = workers.take() => worker,
                () = stop.cancelled() => return,
            };
            if stop.is_cancelled() {
                return;
            }
            let idle = match self.queue.take(self.deliveries.names()).await {
                Ok(Some(call)) if stop.is_cancelled() || self.proxy.is_ending() => {
                    self.put_back(&call).await;
                    return;
                }
                Ok(Some(call)) => {
                    pause = RETRY_FIRST;
                    let name = (call.caller.clone(), call.call_id.clone());
                    let delivery = self.deliveries.begin(name.clone());
                    let this = self.clone();
                    self.proxy.state().queued.spawn(async move {
                        // A call that breaks its worker is left to the next delivery.
                        let running = tokio::spawn({
                            let (this, worker) = (this.clone(), worker.clone());
                            async move { this.run(call, worker).await }
                        });
                        if let Err(error) = running.await {
                            tracing::error!(%error, "a queued call broke its worker");
                        }
                        this.deliveries.end(&name, delivery);
                        drop(worker);
                    });
                    continue;
                }
                Ok(None) => POLL,
                Err(error) => {
                    tracing::warn!(%error, "queued calls cannot be taken");
                    pause = (pause * 2).min(Duration::from_secs(5));
                    pause
                }
            };
            drop(worker);
            tokio::select! {
                () = tokio::time::sleep(idle) => (),
                () = self.handed.notified() => (),
                () = stop.cancelled() => return,
            }
        }
    }

    async fn put_back(&self, call: &QueuedCall) {
        // A call that cannot be put back has no worker, and is delivered again.
        if let Err(error) = self.queue.release(&call.caller, &call.call_id).await {
            tracing::warn!(%error, "a queued call is not returned to the queue");
        }
    }

    async fn run(&self, call: QueuedCall, worker: WorkerSlot) {
        let (caller, call_id) = (call.caller.clone(), call.call_id.clone());
        let result = match serde_json::from_str::<CallRequest>(&call.request) {
            Ok(request) => {
                let given_up = (call.deliveries > DELIVERIES_MAX).then(|| {
                    tracing::error!(call.id = call_id, "a call has ended its worker each time");
                    let told = format!("its workers ended {DELIVERIES_MAX} times before it did");
                    (ErrorCode::AdapterFailed, told)
                });
                let result = self.walk(request, &call, worker, given_up).await;
                // A temporary lack of capacity, or an unavailable record store, is not an outcome.
                let passing = result.effect == Effect::NotStarted
                    && result.error.as_ref().is_some_and(|error| {
                        matches!(error.code, ErrorCode::Overloaded | ErrorCode::RecordUnavailable)
                    });
                let wants = result.error.as_ref().map(|error| error.code);
                if self.proxy.is_ending() && wants == Some(ErrorCode::ApprovalRequired) {
                    // It waits for its approval again where it is taken next.
                    return self.put_back(&call).await;
                }
                if passing {
                    tokio::time::sleep(HEARTBEAT_EVERY).await;
                    return self.put_back(&call).await;
                }
                redelivered::own_doubt(result, &call)
            }
            Err(error) => {
                tracing::error!(call.id = call_id, %error, "a queued call cannot be read");
                failed(&call_id, ErrorCode::InvalidArgs)
            }
        };
        let text = serde_json::to_string(&result).unwrap_or_default();
        let mut pause = RETRY_FIRST;
        // The outcome is in the receipt. Writing it to the row too is retried until shutdown. A row
        // without it is delivered again and finds its claim.
        loop {
            let at = self.proxy.state().parts.clock.now();
            match self.queue.finish(&caller, &call_id, text.clone(), at).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "a queued call's result waits for the store"),
            }
            if self.proxy.is_ending() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// Reports that a call runs, with its progress, and passes on that its caller has cancelled it.
    async fn report(&self, call: &QueuedCall, progress: Option<Progress>, cancel: &CancelHandle) {
        let told = progress.map(|progress| json!(progress));
        match self.queue.heartbeat(&call.caller, &call.call_id, told).await {
            Ok(Heartbeat::Cancel) => cancel.cancel(),
            Ok(Heartbeat::Go | Heartbeat::Lost) => (),
            Err(error) => {
                tracing::debug!(%error, "the progress of a queued call is not reported");
            }
        }
    }

    async fn walk(
        &self,
        request: CallRequest,
        call: &QueuedCall,
        worker: WorkerSlot,
        mut refusal: Option<(ErrorCode, String)>,
    ) -> ToolResult {
        let (conversation, counterpart) = Conversation::pair(false);
        if call.cancel {
            counterpart.cancel.cancel();
        }
        // It was authenticated when the call was submitted.
        let Some(identity) = call.caller_identity() else {
            tracing::error!(call.id = call.call_id, "the caller of a queued call cannot be read");
            return failed(&call.call_id, ErrorCode::InvalidArgs);
        };
        match self.proxy.check_identity(&identity) {
            Ok(()) => (),
            // The call waits until the keys can be read again.
            Err(KeyRefusal::Unread) => {
                return path::refused(
                    request.tool_id,
                    call.call_id.clone(),
                    ErrorCode::RecordUnavailable,
                    Effect::NotStarted,
                );
            }
            Err(error) => {
                tracing::warn!(call.id = call.call_id, %error, "a queued call is not run");
                let denied = (ErrorCode::PolicyDenied, error.to_string());
                refusal.get_or_insert(denied);
            }
        }
        let caller = Caller::authenticated(identity);
        let is_refused = refusal.is_some();
        let dedup_key = Some(DedupKey::of_queued(&call.caller, &call.call_id));
        let options = CallOptions {
            dedup_key,
            refusal,
            worker: Some(worker.clone()),
            ..CallOptions::default()
        };
        let running = self.proxy.run(ToolCall::new(request, caller), conversation, options);
        tokio::pin!(running);
        let mut heartbeat_timer = tokio::time::interval(HEARTBEAT_EVERY);
        let mut heartbeats: u32 = 0;
        let mut progress: Option<Progress> = None;
        loop {
            tokio::select! {
                walked = &mut running => {
                    let result = walked.result;
                    // The last report can arrive with the end.
                    while let Ok(newest) = counterpart.progress.try_recv() {
                        progress = Some(newest);
                    }
                    if progress.is_some() {
                        self.report(call, progress, &counterpart.cancel).await;
                    }
                    if !is_refused {
                        return result;
                    }
                    return redelivered::with_receipt(&*self.reads, result, call).await;
                }
                Ok(newest) = counterpart.progress.recv() => progress = Some(newest),
                // Its approval is decided: whether it was cancelled meanwhile is read before it goes on.
                Some(_returned) = worker.returned() => {
                    self.report(call, None, &counterpart.cancel).await;
                }
                _ = heartbeat_timer.tick() => {
                    heartbeats = heartbeats.wrapping_add(1);
                    if worker.is_away() && !heartbeats.is_multiple_of(WAITING_HEARTBEAT) {
                        continue;
                    }
                    self.report(call, progress.take(), &counterpart.cancel).await;
                }
            }
        }
    }
}

fn failed(call_id: &str, code: ErrorCode) -> ToolResult {
    path::refused(String::new(), call_id.to_owned(), code, Effect::Unknown)
}
