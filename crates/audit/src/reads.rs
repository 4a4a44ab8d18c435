//! Reads the records: filters and pages over receipts, agent logs and events.
//!
//! Doc: records.md#reading

mod filters;
mod page;

use std::collections::BTreeMap;

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::Receipt;

pub use self::filters::{EventFilter, LogFilter, ReceiptFilter};
pub use self::page::{DAMAGED_MAX, Page};
pub use crate::approvals::{APPROVAL_COLUMNS, ApprovalFilter, RawApproval};
use crate::backend::pruned_range::PrunedRange;
use crate::charges::RawBudget;
use crate::documents::RawDocument;
pub use crate::error::DamagedRow;
use crate::error::LedgerError;
pub use crate::heads::{PrunedLog, WriterHead, WriterRow};
use crate::history::{WindowName, WindowTotals};
use crate::orders::RawOrder;
use crate::queue::{CallName, RawCall};

/// The kind of record that an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// A call.
    Call,
    /// A receipt.
    Receipt,
}

/// An id found by its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundId {
    /// The kind of record.
    pub kind: IdKind,
    /// The whole id.
    pub id: String,
}

/// An event with its place in the store, for following the log.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedEvent {
    /// The place; increases with each stored event.
    pub place: u64,
    /// The event.
    pub event: AuditEvent,
}

/// An event for verification, with all data as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawEntry {
    /// The writer in the row.
    pub writer: String,
    /// The place in its log, in the row.
    pub seq: u64,
    /// The hashed bytes.
    pub bytes: String,
    /// The other columns of the row, in the order of [`EVENT_COLUMNS`]; empty if there are none.
    pub columns: Vec<Option<String>>,
    /// The receipt that the event names.
    pub receipt: Option<RawRecord>,
    /// The agent log that was written with the event.
    pub log: Option<RawRecord>,
}

/// A record as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// Its canonical JSON.
    pub bytes: String,
    /// The other columns of its row, in the order of [`RECEIPT_COLUMNS`] or [`LOG_COLUMNS`]; empty
    /// if there are none.
    pub columns: Vec<Option<String>>,
    /// For a receipt: the keys that it holds in the store.
    pub keys: Vec<String>,
    /// For a receipt: its rows in the windows of the policy, as of [`crate::history::row_text`].
    pub history: Vec<String>,
}

/// The members of an event that rows are filtered by.
pub const EVENT_COLUMNS: [&str; 9] = [
    "time",
    "toolName",
    "agentId",
    "callId",
    "status",
    "errorCode",
    "receiptId",
    "hasLog",
    "isMilestone",
];
/// The columns of a receipt's row in addition to the record. They are its table (`open`, `settled`
/// or `pruned`), members, the fence of the claim, and the settlement time. The settlement time is
/// empty if the receipt cannot be pruned. A column that the store does not have is absent.
pub const RECEIPT_COLUMNS: [&str; 7] =
    ["table", "receiptId", "toolId", "state", "writer", "fence", "settledAt"];
/// The members of an agent log that rows are filtered by.
pub const LOG_COLUMNS: [&str; 1] = ["timestamp"];

/// The content of a page of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Events and the records that they name.
    Records,
    /// Only events.
    Events,
    /// Only milestones, which are events about logs themselves: start, stop, checkpoint, removal,
    /// restore.
    Milestones,
}

/// The kinds of events that [`Include::Milestones`] selects.
pub const MILESTONES: [AuditEventKind; 6] = [
    AuditEventKind::WriterStarted,
    AuditEventKind::WriterStopped,
    AuditEventKind::Checkpoint,
    AuditEventKind::ReceiptsPruned,
    AuditEventKind::PayloadsDropped,
    AuditEventKind::StoreRestored,
];

/// Queries over the records of a ledger.
#[async_trait]
pub trait LedgerReads: Send + Sync {
    /// Returns one receipt.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; [`LedgerError::Damaged`] if its row cannot be read.
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError>;

    /// Returns receipts, newest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError>;

    /// Returns one agent log.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; [`LedgerError::Damaged`] if its row cannot be read.
    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError>;

    /// Returns agent logs, oldest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError>;

    /// Returns events, oldest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError>;

    /// Returns ids of calls and receipts with this prefix, at most `limit`.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError>;

    /// Returns events as stored, ordered by writer, in pages after a writer and place. An empty
    /// page marks the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError>;

    /// Returns the writers and the heads of their logs, which the store keeps separately from the
    /// events.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError>;

    /// Returns the subtrees of pruned events, ordered by writer, in pages after a writer and place.
    /// An empty page marks the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn pruned_ranges(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError>;

    /// Returns the calls in a window that ends at `at_ms`, in milliseconds since 1970-01-01 UTC.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn window(&self, name: WindowName, at_ms: i64) -> Result<WindowTotals, LedgerError>;

    /// Returns the ids of the digest keys that the store records; `None` if it records none.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError>;

    /// Returns records that no event accounts for, at most 100 of each kind. Receipts and agent
    /// logs are skipped if the store has no more of them than `known` states.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError>;

    /// Returns the differences between the search index and the events; empty if there is no index.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn index_differences(&self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    /// Returns what differs in the structure of the database: its definitions, indexes and pages.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn structure_differences(&self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    /// Returns approvals as stored, in pages after an id. An empty page marks the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError>;

    /// Returns the newest approvals that pass a filter, as stored.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError>;

    /// Returns the orders of operators as stored, in pages after a name. An empty page marks the
    /// end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError>;

    /// Returns the used budgets as stored, in pages after a name. An empty page marks the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError>;

    /// Returns the text of a document that a log names.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; [`LedgerError::Damaged`] if it cannot be read, or has another digest.
    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError>;

    /// Returns documents as stored, in pages after a digest. An empty page marks the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError>;

    /// Returns one asynchronous call as stored.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError>;

    /// Returns asynchronous calls as stored, in pages after a caller and id. An empty page marks
    /// the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError>;

    /// Checks whether the store currently accepts records.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] with the reason.
    async fn healthy(&self) -> Result<(), LedgerError>;
}

/// The records that are known to be accounted for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounted {
    /// The number of receipts.
    pub receipts: u64,
    /// The number of agent logs.
    pub logs: u64,
    /// The place up to which an earlier version removed the beginning of a log, by writer. The
    /// removed events may account for records that still exist.
    pub lacking: BTreeMap<String, u64>,
}

/// Records that no event accounts for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unaccounted {
    /// The ids of agent logs.
    pub logs: Vec<String>,
    /// The ids of receipts.
    pub receipts: Vec<String>,
    /// Keys that no receipt holds.
    pub keys: Vec<String>,
    /// The ids of receipts that windows count and that do not exist.
    pub history: Vec<String>,
    /// The keys of windows whose stored sums are not those of their calls.
    pub windows: Vec<String>,
    /// Places that are listed as milestones but contain no event.
    pub milestones: Vec<String>,
    /// Rows that pages omit because they cannot be read.
    pub damaged: Vec<DamagedRow>,
}
