//! The fields of events and records that verification reads, and their digests, which are computed
//! on all cores for each page.
//!
//! Doc: records.md#verification

use futures_channel::oneshot;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::history::HistoryEntry;
use toolbooth_contracts::json::canonical;
use toolbooth_contracts::receipt::{AuditPlace, ReceiptKey};

use crate::backend::merkle::{Hash, leaf_hash};
use crate::digest::sha256_hex;
use crate::ledger::LedgerError;
use crate::reads::{MILESTONES, RawEntry, RawRecord};

/// The members of an event that verification reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventFields {
    pub(super) writer: String,
    pub(super) seq: u64,
    pub(super) prev: Option<String>,
    pub(super) event: AuditEventKind,
    pub(super) time: String,
    pub(super) tool_name: Option<String>,
    pub(super) agent_id: Option<String>,
    pub(super) caller: Option<String>,
    pub(super) call_id: Option<String>,
    pub(super) receipt_id: Option<String>,
    pub(super) status: Option<String>,
    pub(super) error_code: Option<String>,
    pub(super) effect: Option<String>,
    pub(super) args_digest: Option<String>,
    pub(super) receipt_digest: Option<String>,
    pub(super) log_digest: Option<String>,
    #[serde(default)]
    pub(super) holds_keys: bool,
    pub(super) counted_until_ms: Option<u64>,
    pub(super) facts: Option<Map<String, Value>>,
}

impl EventFields {
    /// Returns a text among the facts.
    pub(super) fn fact(&self, name: &str) -> Option<&str> {
        self.facts.as_ref()?.get(name)?.as_str()
    }
}

/// The members of a receipt that verification reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReceiptFields {
    pub(super) receipt_id: String,
    pub(super) tool_id: String,
    pub(super) state: String,
    pub(super) writer: String,
    pub(super) attempt: u64,
    pub(super) status: Option<String>,
    pub(super) effect: Option<String>,
    pub(super) error_code: Option<String>,
    pub(super) args_digest: Option<String>,
    pub(super) audit_seq: Option<AuditPlace>,
    pub(super) audit_count: Option<u32>,
    pub(super) settled_at: Option<String>,
    pub(super) pruned_at: Option<String>,
    pub(super) idempotency: ReceiptKey,
    #[serde(default)]
    pub(super) history: Vec<HistoryEntry>,
}

impl ReceiptFields {
    /// Whether its claim has not ended.
    pub(super) fn runs(&self) -> bool {
        matches!(self.state.as_str(), "in_flight" | "awaiting_input")
    }
}

/// The members of an agent log that verification reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogFields {
    pub(super) timestamp: String,
    #[serde(default)]
    pub(super) decision_inputs: Option<NamedDocuments>,
}

/// The documents that a log names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NamedDocuments {
    /// Whether they were kept with it.
    #[serde(default)]
    pub(super) documents: bool,
    #[serde(default)]
    pub(super) policy_version: String,
    #[serde(default)]
    pub(super) contract_digest: Option<String>,
    #[serde(default)]
    pub(super) caller_digest: Option<String>,
}

/// A record with its digest and parsed fields.
#[derive(Debug)]
pub(super) struct Record<T> {
    pub(super) raw: RawRecord,
    /// SHA-256 of the stored form, in hex.
    pub(super) digest: String,
    /// `None` if it cannot be read.
    pub(super) fields: Option<T>,
}

impl<T: DeserializeOwned> Record<T> {
    fn read(raw: RawRecord) -> Self {
        let fields = serde_json::from_str(&raw.bytes).ok();
        Self { digest: sha256_hex(raw.bytes.as_bytes()), fields, raw }
    }
}

impl<T> Record<T> {
    /// Whether an event that names this digest accounts for the stored record. Earlier versions
    /// digested the canonical form.
    pub(super) fn is_named_by(&self, digest: &str) -> bool {
        self.digest == digest || self.canonical_digest() == digest
    }

    /// Returns the SHA-256 of its canonical form, in hex.
    pub(super) fn canonical_digest(&self) -> String {
        let value: Value = serde_json::from_str(&self.raw.bytes).unwrap_or_default();
        sha256_hex(canonical(&value).as_bytes())
    }
}

/// An event in its place, with the data computed from it and its records alone.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) writer: String,
    pub(super) seq: u64,
    pub(super) columns: Vec<Option<String>>,
    pub(super) leaf: Hash,
    /// `None` if it cannot be read.
    pub(super) fields: Option<EventFields>,
    pub(super) receipt: Option<Record<ReceiptFields>>,
    pub(super) log: Option<Record<LogFields>>,
}

impl Read {
    pub(super) fn of(entry: RawEntry) -> Self {
        Self {
            leaf: leaf_hash(entry.bytes.as_bytes()),
            fields: serde_json::from_str(&entry.bytes).ok(),
            receipt: entry.receipt.map(Record::read),
            log: entry.log.map(Record::read),
            writer: entry.writer,
            seq: entry.seq,
            columns: entry.columns,
        }
    }
}

/// Parses a page on all cores; the result keeps the order of the page.
pub(super) async fn read(mut page: Vec<RawEntry>) -> Result<Vec<Read>, LedgerError> {
    /// Below this number of events, threads bring no speedup.
    const ALONE: usize = 64;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores == 1 || page.len() < ALONE {
        return Ok(page.into_iter().map(Read::of).collect());
    }
    let share = page.len().div_ceil(cores);
    let mut parts = Vec::new();
    while !page.is_empty() {
        let rest = page.split_off(share.min(page.len()));
        let part = std::mem::replace(&mut page, rest);
        let (done, reading) = oneshot::channel();
        std::thread::Builder::new()
            .name("toolbooth-verify".to_owned())
            .spawn(move || {
                let _ = done.send(part.into_iter().map(Read::of).collect::<Vec<_>>());
            })
            .map_err(LedgerError::unavailable_by)?;
        parts.push(reading);
    }
    let mut all = Vec::new();
    for part in parts {
        let gone = |_| LedgerError::Defect("a page was not read to its end".to_owned());
        all.extend(part.await.map_err(gone)?);
    }
    Ok(all)
}

/// Whether the columns of a row match its record.
pub(super) fn fits(columns: &[Option<String>], own: &[Option<&str>]) -> bool {
    columns.is_empty()
        || (columns.len() == own.len()
            && columns.iter().zip(own).all(|(column, own)| match (column, own) {
                (Some(column), Some(own)) => is_name(own, column),
                (None, None) => true,
                _ => false,
            }))
}

/// Whether a row contains this name; a store that cannot store NUL replaces it with U+FFFD.
pub(super) fn is_name(own: &str, column: &str) -> bool {
    own == column || (own.contains('\0') && column == own.replace('\0', "\u{fffd}"))
}

/// Returns the columns of an event's row in addition to the event.
pub(super) fn event_columns(fields: &EventFields) -> [Option<&str>; 9] {
    let flag = |is: bool| Some(if is { "1" } else { "0" });
    [
        Some(fields.time.as_str()),
        fields.tool_name.as_deref(),
        fields.agent_id.as_deref(),
        fields.call_id.as_deref(),
        fields.status.as_deref(),
        fields.error_code.as_deref(),
        fields.receipt_id.as_deref(),
        flag(fields.log_digest.is_some()),
        flag(MILESTONES.contains(&fields.event)),
    ]
}
