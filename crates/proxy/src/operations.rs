//! Operations for people: reading the records, with the right of an operator.
//!
//! Doc: records.md#reading

use std::sync::Arc;

use toolbooth_audit::reads::{EventFilter, LogFilter, PlacedEvent, ReceiptFilter};
use toolbooth_audit::verify::{self, VerifyReport};
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::receipt::Receipt;
use toolbooth_policy::Operator;

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

    /// Re-computes every digest.
    ///
    /// # Errors
    /// As [`Operations::receipt`].
    pub async fn verify(&self) -> Result<VerifyReport, LedgerError> {
        verify::store(&*self.reads).await
    }
}
