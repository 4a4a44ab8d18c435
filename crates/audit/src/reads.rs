//! Reading the records: filters and pages over receipts, agent logs and events.
//!
//! Doc: records.md#reading

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};
use toolbooth_contracts::receipt::Receipt;

use crate::backend::pruned_range::PrunedRange;
pub use crate::error::DamagedRow;
use crate::error::LedgerError;
pub use crate::heads::{PrunedLog, WriterHead, WriterRow};
use crate::queue::{CallName, RawCall};

/// Which receipts.
#[derive(Debug, Clone, Default)]
pub struct ReceiptFilter {
    /// Of this tool.
    pub tool: Option<String>,
    /// Of this caller.
    pub caller: Option<String>,
    /// Of this call.
    pub call: Option<String>,
    /// In this state, as it is written.
    pub state: Option<String>,
    /// After this receipt, in the order of the list.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// Which agent logs; all conditions hold.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Of this tool.
    pub tool: Option<String>,
    /// Of this agent.
    pub agent: Option<String>,
    /// Of this caller.
    pub caller: Option<String>,
    /// With this error code.
    pub code: Option<String>,
    /// Of this turn.
    pub turn: Option<u64>,
    /// Of this phase.
    pub phase: Option<String>,
    /// Of this epic.
    pub epic: Option<String>,
    /// Of this call.
    pub call: Option<String>,
    /// Only errors, or only successes.
    pub error: Option<bool>,
    /// From this time on, RFC 3339 UTC.
    pub since: Option<String>,
    /// Before this time, RFC 3339 UTC.
    pub until: Option<String>,
    /// At most so many; the newest.
    pub limit: usize,
}

/// Which events; all conditions hold.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Of this tool.
    pub tool: Option<String>,
    /// Of this agent.
    pub agent: Option<String>,
    /// Of this caller.
    pub caller: Option<String>,
    /// With this status.
    pub status: Option<String>,
    /// With this error code.
    pub code: Option<String>,
    /// Of this call.
    pub call: Option<String>,
    /// From this time on, RFC 3339 UTC.
    pub since: Option<String>,
    /// Before this time, RFC 3339 UTC.
    pub until: Option<String>,
    /// After this place of the store, for following and for going through all.
    pub after: Option<u64>,
    /// At most so many: the next ones where `after` is given, else the newest.
    pub limit: usize,
}

fn is(wanted: Option<&String>, found: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| Some(wanted.as_str()) == found)
}

fn within(since: Option<&String>, until: Option<&String>, time: &str) -> bool {
    since.is_none_or(|since| time >= since.as_str())
        && until.is_none_or(|until| time < until.as_str())
}

impl ReceiptFilter {
    /// Whether a receipt is one of those.
    #[must_use]
    pub fn fits(&self, receipt: &Receipt) -> bool {
        is(self.tool.as_ref(), Some(&receipt.tool_id))
            && is(self.caller.as_ref(), Some(&receipt.caller))
            && is(self.call.as_ref(), Some(&receipt.call_id))
            && is(self.state.as_ref(), Some(receipt.state.as_str()))
            && self.after.as_ref().is_none_or(|after| receipt.receipt_id < *after)
    }
}

impl LogFilter {
    /// Whether an agent log is one of those.
    #[must_use]
    pub fn fits(&self, log: &AgentLog) -> bool {
        is(self.tool.as_ref(), Some(&log.tool_name))
            && is(self.agent.as_ref(), log.agent_id.as_deref())
            && is(self.caller.as_ref(), Some(&log.caller))
            && is(self.code.as_ref(), log.error_code.map(|code| code.as_str()))
            && is(self.phase.as_ref(), log.phase_id.as_deref())
            && is(self.epic.as_ref(), log.epic_id.as_deref())
            && is(self.call.as_ref(), Some(&log.call_id))
            && self.turn.is_none_or(|turn| log.turn_index == Some(turn))
            && self.error.is_none_or(|error| log.is_error == error)
            && within(self.since.as_ref(), self.until.as_ref(), &log.timestamp)
    }
}

impl EventFilter {
    /// Whether an event is one of those, whatever its place.
    #[must_use]
    pub fn fits(&self, event: &AuditEvent) -> bool {
        let body = &event.body;
        is(self.tool.as_ref(), body.tool_name.as_deref())
            && is(self.agent.as_ref(), body.agent_id.as_deref())
            && is(self.caller.as_ref(), body.caller.as_deref())
            && is(self.call.as_ref(), body.call_id.as_deref())
            && is(self.status.as_ref(), body.status.map(|status| status.as_str()))
            && is(self.code.as_ref(), body.error_code.map(|code| code.as_str()))
            && within(self.since.as_ref(), self.until.as_ref(), &body.time)
    }
}

/// What a query found.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The records.
    pub found: Vec<T>,
    /// Whether more follow.
    pub more: bool,
    /// Rows that may belong to the answer and cannot be read; at most [`DAMAGED_MAX`].
    pub damaged: Vec<DamagedRow>,
}

/// Most damaged rows that one page names.
pub const DAMAGED_MAX: usize = 100;

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { found: Vec::new(), more: false, damaged: Vec::new() }
    }
}

impl<T> Page<T> {
    /// A page of these records, of which none is damaged.
    #[must_use]
    pub fn of(found: Vec<T>) -> Self {
        Self { found, ..Self::default() }
    }

    /// Adds a record if it passes; notes a row that cannot be read.
    ///
    /// # Errors
    /// Every other [`LedgerError`].
    pub fn add(
        &mut self,
        read: Result<T, LedgerError>,
        passes: impl FnOnce(&T) -> bool,
    ) -> Result<(), LedgerError> {
        match read {
            Ok(record) => self.found.extend(Some(record).filter(|record| passes(record))),
            Err(LedgerError::Damaged(row)) => self.note([row]),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Notes rows that cannot be read, each once.
    pub fn note(&mut self, rows: impl IntoIterator<Item = DamagedRow>) {
        for row in rows {
            if self.damaged.len() < DAMAGED_MAX && !self.damaged.contains(&row) {
                self.damaged.push(row);
            }
        }
    }

    /// Cuts the page to so many records, and notes whether there were more.
    pub fn truncate(&mut self, limit: usize) {
        self.more = self.found.len() > limit;
        self.found.truncate(limit);
    }
}

impl<T: serde::Serialize> Page<T> {
    /// The page as a document: the records under `name`, and the rows that cannot be read under
    /// `damaged`, if there are any.
    #[must_use]
    pub fn document(&self, name: &str) -> Map<String, Value> {
        let mut out = Map::new();
        out.insert(name.to_owned(), json!(self.found));
        if !self.damaged.is_empty() {
            out.insert("damaged".to_owned(), json!(self.damaged));
        }
        out
    }
}

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// A call.
    Call,
    /// A receipt.
    Receipt,
}

/// An id that was found by how it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundId {
    /// What it names.
    pub kind: IdKind,
    /// The whole id.
    pub id: String,
}

/// An event with its place in the store, for following.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedEvent {
    /// Grows with each event that the store takes.
    pub place: u64,
    /// The event.
    pub event: AuditEvent,
}

/// What verification looks at for one event: everything as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawEntry {
    /// The writer, by its row.
    pub writer: String,
    /// The place in its log, by its row.
    pub seq: u64,
    /// The bytes that were hashed.
    pub bytes: String,
    /// What else the row says, in the order of [`EVENT_COLUMNS`]; empty where nothing does.
    pub columns: Vec<Option<String>>,
    /// The receipt that the event names.
    pub receipt: Option<RawRecord>,
    /// The agent log that was written with it.
    pub log: Option<RawRecord>,
}

/// A record as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// Its canonical JSON.
    pub bytes: String,
    /// What else its row says, in the order of [`RECEIPT_COLUMNS`] or [`LOG_COLUMNS`]; empty where
    /// nothing does.
    pub columns: Vec<Option<String>>,
    /// Of a receipt: the keys that the store lets it hold.
    pub keys: Vec<String>,
}

/// An approval as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawApproval {
    /// Its id, by its row.
    pub id: String,
    /// Its JSON.
    pub bytes: String,
    /// What else its row says, in the order of [`APPROVAL_COLUMNS`]; empty where nothing does.
    pub columns: Vec<Option<String>>,
    /// The event that it says accounts for it.
    pub event: Option<String>,
}

/// Members of an approval that rows are filtered by.
pub const APPROVAL_COLUMNS: [&str; 5] =
    ["toolId", "caller", "argsDigest", "contractDigest", "state"];
/// Members of an event that rows are filtered by.
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
/// What rows of receipts say beside them: in which table they are (`open`, `settled` or `pruned`),
/// members, the fence of the claim, and when it was settled (empty where it cannot be pruned).
/// Absent is what a store does not say.
pub const RECEIPT_COLUMNS: [&str; 7] =
    ["table", "receiptId", "toolId", "state", "writer", "fence", "settledAt"];
/// Members of an agent log that rows are filtered by.
pub const LOG_COLUMNS: [&str; 1] = ["timestamp"];

/// What a page of a log carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Events, and the records that they name.
    Records,
    /// Events alone.
    Events,
    /// Only events about logs themselves: beginnings, ends, checkpoints, removals, restoring.
    Milestones,
}

/// The kinds of events that [`Include::Milestones`] gives.
pub const MILESTONES: [AuditEventKind; 6] = [
    AuditEventKind::WriterStarted,
    AuditEventKind::WriterStopped,
    AuditEventKind::Checkpoint,
    AuditEventKind::ReceiptsPruned,
    AuditEventKind::PayloadsDropped,
    AuditEventKind::StoreRestored,
];

/// Queries over what a ledger has written.
#[async_trait]
pub trait LedgerReads: Send + Sync {
    /// One receipt.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; [`LedgerError::Damaged`] if its row cannot be read.
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError>;

    /// Receipts, newest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError>;

    /// One agent log.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; [`LedgerError::Damaged`] if its row cannot be read.
    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError>;

    /// Agent logs, oldest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError>;

    /// Events, oldest first.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError>;

    /// Ids of calls and receipts that begin so, at most so many.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError>;

    /// Events as they are stored, writer by writer, in pages after a writer and place; an empty
    /// page is the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError>;

    /// The writers and the heads of their logs, as the store keeps them beside the events.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError>;

    /// Subtrees of logs whose events are gone, writer by writer, in pages after a writer and place; an
    /// empty page is the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn gone_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError>;

    /// The ids of the digest keys that the store knows; `None` where it keeps none.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError>;

    /// Records that no event accounts for, at most a hundred of each kind. Where there are no more
    /// receipts and agent logs than those that are known to be accounted for, they are not looked
    /// through.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError>;

    /// What an index that serves searches says otherwise than the events; nothing where there is no
    /// such index.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn index_differences(&self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    /// Approvals as they are stored, in pages after an id; an empty page is the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError>;

    /// One asynchronous call, as it is stored.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError>;

    /// Asynchronous calls as they are stored, in pages after a caller and id; an empty page is the
    /// end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError>;

    /// Whether the store takes records at the moment.
    ///
    /// # Errors
    /// A [`LedgerError::Unavailable`] that says why not.
    async fn healthy(&self) -> Result<(), LedgerError>;
}

/// What is known to be accounted for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounted {
    /// How many receipts.
    pub receipts: u64,
    /// How many agent logs.
    pub logs: u64,
    /// Up to where an earlier version has removed the beginnings of logs, with the events of records
    /// that are still there.
    pub lacking: BTreeMap<String, u64>,
}

/// Records that no event accounts for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unaccounted {
    /// Ids of agent logs.
    pub logs: Vec<String>,
    /// Ids of receipts.
    pub receipts: Vec<String>,
    /// Keys that no receipt holds.
    pub keys: Vec<String>,
    /// Places that are listed as those of events about logs, where there is no event.
    pub milestones: Vec<String>,
    /// Rows that pages leave out, since they cannot be read.
    pub damaged: Vec<DamagedRow>,
}
