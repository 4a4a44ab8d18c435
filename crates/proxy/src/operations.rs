//! Operations for people: reading the records and settling doubts, with the right of an operator.
//!
//! Doc: records.md#reading

use std::sync::Arc;

use serde_json::Value;
use toolbooth_audit::ledger::Resolution;
use toolbooth_audit::reads::{EventFilter, LogFilter, PlacedEvent, ReceiptFilter};
use toolbooth_audit::verify::{self, Known, VerifyReport};
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::receipt::{ClaimState, Receipt, StoredResult};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{ContentBlock, ErrorCode};
use toolbooth_policy::Operator;

use crate::proxy::Parts;

/// The records of a house, closed until somebody has the right to read them.
#[derive(Clone)]
pub struct RecordRoom(Arc<dyn LedgerReads>);

impl RecordRoom {
    /// The records behind `reads`.
    pub fn new(reads: Arc<dyn LedgerReads>) -> Self {
        Self(reads)
    }

    /// Opened for an operator.
    #[must_use]
    pub fn operations(&self, operator: Operator) -> Operations {
        Operations::new(Arc::clone(&self.0), operator)
    }
}

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

    /// Who reads.
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

    /// Receipts, newest first, and whether more follow.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn receipts(
        &self,
        filter: ReceiptFilter,
    ) -> Result<(Vec<Receipt>, bool), LedgerError> {
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
    pub async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        self.reads.agent_logs(filter).await
    }

    /// Events, oldest first.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        self.reads.events(filter).await
    }

    /// Re-computes every digest, with the keys and checkpoints that are brought along.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn verify(&self, known: Known) -> Result<VerifyReport, LedgerError> {
        verify::store(&*self.reads, known).await
    }

    /// The records as they are stored, for exports and proofs.
    #[must_use]
    pub fn reads(&self) -> &dyn LedgerReads {
        &*self.reads
    }

    /// Settles a doubt: says what came of a call of which nobody knows. What is said is what later
    /// calls with its key get.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve(
        &self,
        parts: &Parts,
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
            Some(value) => stored(value, error).map_err(ResolveError::Result)?,
        };
        let bytes = serde_json::to_vec(&result).unwrap_or_default();
        let resolution = Resolution {
            receipt_id: receipt_id.to_owned(),
            succeeded,
            result_digest: Some(parts.ledger.digester().of_bytes(&bytes)),
            result,
            by: self.operator.caller().name().to_owned(),
            at: parts.clock.now(),
        };
        match parts.ledger.resolve(resolution).await {
            Err(LedgerError::Stale) => match self.receipt(receipt_id).await? {
                Some(receipt) => Err(ResolveError::NotInDoubt(receipt.state)),
                None => Err(ResolveError::Missing),
            },
            Err(LedgerError::NotFound(_)) => Err(ResolveError::Missing),
            done => Ok(Arc::unwrap_or_clone(done?)),
        }
    }
}

/// Why a doubt was not settled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] LedgerError),
    /// There is no such receipt.
    #[error("there is no such receipt")]
    Missing,
    /// The outcome is known already, or the call still runs.
    #[error("the call is not in doubt, it is `{}`", .0.as_str())]
    NotInDoubt(ClaimState),
    /// The result is none that a tool could give.
    #[error("{0}")]
    Result(String),
}

/// A result as people write it: a tool's result with `content` or `structuredContent`, or any
/// other document, which becomes the structured content.
fn stored(value: Value, error: Option<CallError>) -> Result<StoredResult, String> {
    let is_result = value.get("content").is_some() || value.get("structuredContent").is_some();
    let (content, structured) = match (is_result, value) {
        (true, Value::Object(mut members)) => (
            members.remove("content").unwrap_or_else(|| Value::Array(Vec::new())),
            members.remove("structuredContent"),
        ),
        (_, Value::Object(members)) => {
            let value = Value::Object(members);
            let block = serde_json::to_value(ContentBlock::text(value.to_string()));
            (Value::Array(block.into_iter().collect()), Some(value))
        }
        (_, Value::String(text)) => {
            let block = serde_json::to_value(ContentBlock::text(text));
            (Value::Array(block.into_iter().collect()), None)
        }
        _ => return Err("the result must be an object or a text".to_owned()),
    };
    let content: Vec<ContentBlock> = serde_json::from_value(content)
        .map_err(|error| format!("`content` is no list of blocks: {error}"))?;
    if let Some(at) = content.iter().position(|block| !block.is_well_formed()) {
        return Err(format!("content block {at} is not an object with a `type`"));
    }
    let warnings = Vec::new();
    Ok(StoredResult { content, structured_content: structured, meta: None, error, warnings })
}
