//! Operations for operators: reading the records, resolving unknown outcomes, and orders.
//!
//! Doc: records.md#reading, records.md#orders

use std::sync::Arc;

use serde_json::Value;
use toolbooth_audit::ledger::Resolution;
use toolbooth_audit::orders::{OrderChange, OrderRequest, Ordered};
use toolbooth_audit::reads::{EventFilter, FoundId, LogFilter, Page, PlacedEvent, ReceiptFilter};
use toolbooth_audit::stored_orders::StoredOrders;
use toolbooth_audit::verify::{self, TrustAnchors, VerifyReport};
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::json::{JsonFault, JsonText};
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{Caller, ContentBlock, ErrorCode, Identity, Payload};
use toolbooth_policy::Operator;

use crate::error::{KeyRefusal, OperationsError, ResolveError};
use crate::proxy::ToolProxy;

/// The records, for an operator.
#[derive(Clone)]
pub struct Operations {
    reads: Arc<dyn LedgerReads>,
    operator: Operator,
}

impl Operations {
    /// The records behind `reads`, for `operator`.
    pub fn new(reads: Arc<dyn LedgerReads>, operator: Operator) -> Self {
        Self { reads, operator }
    }

    /// The operator.
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    /// One receipt.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; the same for all methods.
    pub async fn receipt(&self, id: &str) -> Result<Option<Receipt>, LedgerError> {
        self.reads.receipt(id).await
    }

    /// Receipts, newest first.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        self.reads.receipts(filter).await
    }

    /// One agent log.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        self.reads.agent_log(id).await
    }

    /// Agent logs, oldest first.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        self.reads.agent_logs(filter).await
    }

    /// The text of a document that logs name: a contract, or a policy.
    ///
    /// # Errors
    /// As [`Operations::receipt`]; [`LedgerError::Damaged`] if it has another digest.
    pub async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        self.reads.document(digest).await
    }

    /// Events, oldest first.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
        self.reads.events(filter).await
    }

    /// Ids of calls and receipts that begin with `prefix`, newest first; at most `limit`.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        self.reads.named(prefix, limit).await
    }

    /// The orders of operators: API keys and pauses.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn orders(&self) -> Result<StoredOrders, LedgerError> {
        StoredOrders::read(&*self.reads).await
    }

    /// Recomputes every digest, with the supplied keys and checkpoints.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn verify(&self, known: TrustAnchors) -> Result<VerifyReport, LedgerError> {
        verify::store(&*self.reads, known).await
    }

    /// The records as they are stored, for exports and proofs.
    #[must_use]
    pub fn reads(&self) -> &dyn LedgerReads {
        &*self.reads
    }
}

impl ToolProxy {
    /// Returns the records, for a caller with the right of an operator. Front doors have no other
    /// access to them.
    ///
    /// # Errors
    /// [`OperationsError`].
    pub fn operations(&self, caller: &Caller) -> Result<Operations, OperationsError> {
        let operator = self.operator(caller)?;
        let reads = self.state().parts.reads.clone().ok_or(OperationsError::NoRecords)?;
        Ok(Operations::new(reads, operator))
    }

    /// Returns the caller as an operator.
    ///
    /// # Errors
    /// [`OperationsError::Denied`].
    pub fn operator(&self, caller: &Caller) -> Result<Operator, OperationsError> {
        self.state().parts.worlds.now().policy.operator(caller).map_err(OperationsError::Denied)
    }

    /// Records a decision of an operator; it holds in this process when this returns.
    ///
    /// # Errors
    /// If the store rejects it, or the proxy has no records to read it from ([`crate::ProxyParts::reads`]).
    pub async fn order(
        &self,
        operator: &Operator,
        change: OrderChange,
    ) -> Result<Ordered, LedgerError> {
        let parts = &self.state().parts;
        if parts.reads.is_none() {
            let message = "the proxy was made without `reads`, so that a decision would not hold";
            return Err(LedgerError::Defect(message.to_owned()));
        }
        let by = operator.caller().name().to_owned();
        let request = OrderRequest { change, by, at: parts.clock.now() };
        let ordered = parts.ledger.order(request).await?;
        if let Err(error) = self.refresh_orders().await {
            tracing::warn!(%error, "a decision is recorded; this process reads it again soon");
        }
        Ok(ordered)
    }

    /// Reads the orders of operators again, and applies them. Must be called at start and every
    /// [`ORDERS_EVERY`](crate::ORDERS_EVERY).
    ///
    /// # Errors
    /// If the store does not answer; the orders that were read last stay in force. After
    /// [`ORDERS_AGE_MAX`](crate::ORDERS_AGE_MAX) calls are refused.
    pub async fn refresh_orders(&self) -> Result<(), LedgerError> {
        self.state().refresh_orders().await
    }

    /// Whether calls are refused because the orders of operators cannot be read.
    #[must_use]
    pub fn are_orders_overdue(&self) -> bool {
        let state = self.state();
        state.orders.are_overdue(&*state.parts.clock)
    }

    /// Whether the last call could not be recorded before it ran, and was refused, a short time ago.
    #[must_use]
    pub fn are_claims_failing(&self) -> bool {
        let state = self.state();
        state.claim_health.is_failing(state.parts.clock.monotonic())
    }

    /// Returns the identity of the holder of the API key with this digest.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn key_holder(&self, digest: &str) -> Result<Identity, KeyRefusal> {
        self.state().orders.holder(digest, &*self.state().parts.clock)
    }

    /// Checks that an identity that was authenticated before has not ended since: that its API key
    /// has not expired and was not revoked.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn check_identity(&self, identity: &Identity) -> Result<(), KeyRefusal> {
        self.state().orders.check(identity, &*self.state().parts.clock)
    }

    /// Resolves the unknown outcome of a call: the operator states the outcome. Later calls with its
    /// key get this outcome.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve(
        &self,
        operations: &Operations,
        receipt_id: &str,
        succeeded: bool,
        result: Option<Value>,
    ) -> Result<Receipt, ResolveError> {
        let text = match succeeded {
            true => "A person settled this call as succeeded.",
            false => "A person settled this call as failed.",
        };
        let error = (!succeeded).then(|| CallError {
            code: ErrorCode::ToolError,
            message: text.to_owned(),
            details: serde_json::Map::new(),
        });
        let result = match result {
            None => StoredResult {
                content: vec![ContentBlock::text(text)],
                structured_content: None,
                meta: None,
                error,
                warnings: Vec::new(),
            },
            Some(value) => stored(&value, error).map_err(ResolveError::Result)?,
        };
        let resolution = Resolution {
            receipt_id: receipt_id.to_owned(),
            succeeded,
            result_digest: Some(self.state().parts.ledger.digester().of_written(&result)),
            result,
            by: operations.operator.caller().name().to_owned(),
            at: self.state().parts.clock.now(),
        };
        match self.state().parts.ledger.resolve(resolution).await {
            Err(LedgerError::Stale) => match operations.receipt(receipt_id).await? {
                Some(receipt) => Err(ResolveError::NotInDoubt(receipt.state)),
                None => Err(ResolveError::Missing),
            },
            Err(LedgerError::NotFound(_)) => Err(ResolveError::Missing),
            done => Ok(Arc::unwrap_or_clone(done?)),
        }
    }
}

/// Reads a result as operators write it: a tool's result with `content` or `structuredContent`, or any
/// other document, which becomes the structured content.
fn stored(value: &Value, error: Option<CallError>) -> Result<StoredResult, String> {
    let member = |name: &str| value.get(name).map(JsonText::of).transpose();
    let is_result = value.get("content").is_some() || value.get("structuredContent").is_some();
    let read = || -> Result<Payload, JsonFault> {
        Ok(match value {
            Value::Object(_) if is_result => {
                let blocks = member("content")?.map(|content| content.items());
                let content = blocks.map(|all| all.into_iter().map(ContentBlock::new).collect());
                Payload { content, structured_content: member("structuredContent")?, meta: None }
            }
            Value::String(text) => Payload::text(text),
            other => Payload::data(JsonText::of(other)?),
        })
    };
    if !matches!(value, Value::Object(_) | Value::String(_)) {
        return Err("the result must be an object or a text".to_owned());
    }
    if is_result && value.get("content").is_some_and(|content| !content.is_array()) {
        return Err("`content` is not a list of blocks".to_owned());
    }
    let payload = read().map_err(|fault| fault.to_string())?;
    let content = payload.content.unwrap_or_default();
    if let Some(at) = content.iter().position(|block| !block.is_well_formed()) {
        return Err(format!("content block {at} is not an object with a `type`"));
    }
    let (structured_content, warnings) = (payload.structured_content, Vec::new());
    Ok(StoredResult { content, structured_content, meta: None, error, warnings })
}
