//! Exports logs: every event as hashed, one per line, then the ends of the logs; and single events
//! as OCSF.
//!
//! Doc: records.md#exports

use serde_json::{Map, Value, json};
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::{ErrorCode, Status};

use crate::LedgerReads;
use crate::ledger::LedgerError;
use crate::reads::{Include, RawEntry, WriterHead};
use crate::verify::{Ends, ExportedHead, PART, PrunedPages, pruned_line};

/// The number of events per read.
const PAGE: usize = 1_000;

/// A consistent export of whole logs, in pages. Events that are written during the export are
/// omitted.
pub struct Exporter<'r> {
    reads: &'r dyn LedgerReads,
    heads: Vec<WriterHead>,
    after: Option<(String, u64)>,
    gone: PrunedPages<'r>,
}

/// A line of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An event.
    Event(Box<RawEntry>),
    /// The remaining hash of pruned events, as JSON.
    Pruned(String),
}

impl<'r> Exporter<'r> {
    /// Starts an export of the current logs.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn begin(reads: &'r dyn LedgerReads) -> Result<Self, LedgerError> {
        let mut heads = reads.heads().await?;
        heads.sort_by(|a, b| a.writer.cmp(&b.writer));
        Ok(Self { heads, reads, after: None, gone: PrunedPages::of(reads) })
    }

    /// Returns the number of events in the logs, including pruned events.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.heads.iter().map(|head| head.size).sum()
    }

    /// Returns the next lines, ordered by writer; `None` at the end.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn page(&mut self) -> Result<Option<Vec<Line>>, LedgerError> {
        let page = self.reads.log_page(self.after.take(), PAGE, Include::Events).await?;
        let Some(last) = page.last() else { return Ok(None) };
        self.after = Some((last.writer.clone(), last.seq));
        let mut lines = Vec::new();
        for entry in page {
            if !self.is_known(&entry.writer, entry.seq) {
                continue;
            }
            while let Some((writer, part)) = self.gone.before(&entry.writer, entry.seq).await? {
                lines.push(Line::Pruned(pruned_line(&writer, &part)));
            }
            lines.push(Line::Event(Box::new(entry)));
        }
        Ok(Some(lines))
    }

    fn is_known(&self, writer: &str, seq: u64) -> bool {
        let at = self.heads.partition_point(|head| head.writer.as_str() < writer);
        let head = self.heads.get(at).filter(|head| head.writer == writer);
        head.is_some_and(|head| seq < head.size)
    }

    /// Returns the last line of a partial export, which `verify` recognizes.
    #[must_use]
    pub fn part() -> &'static str {
        PART
    }

    /// Returns the last line, which states the end of each log.
    #[must_use]
    pub fn trailer(&self) -> String {
        let heads = self.heads.iter().map(ExportedHead::from).collect();
        serde_json::to_string(&Ends { heads }).unwrap_or_default()
    }
}

/// Converts an event to OCSF 1.3, class API Activity (6003); `epoch_ms` is the event time.
#[must_use]
pub fn ocsf(event: &AuditEvent, epoch_ms: i64) -> Value {
    const CLASS: u64 = 6003;
    const OTHER: u64 = 99;
    let body = &event.body;
    let (status_id, severity_id) = match (body.status, body.error_code) {
        (Some(Status::Succeeded), _) => (1, 1),
        (Some(Status::Denied), _) => (2, 3),
        (Some(_), Some(ErrorCode::OutcomeUnrecorded | ErrorCode::CallInDoubt)) => (2, 4),
        (Some(_), _) => (2, 2),
        (None, _) => (0, 1),
    };
    let mut out = Map::new();
    let mut put = |name: &str, value: Value| {
        if let Some(value) = without_absent(value) {
            out.insert(name.to_owned(), value);
        }
    };
    // Without a caller, the gateway acted by itself; its writer is the actor.
    let actor = body.caller.as_ref().unwrap_or(&event.writer);
    put("category_uid", json!(6));
    put("class_uid", json!(CLASS));
    put("activity_id", json!(OTHER));
    put("activity_name", json!(body.event));
    put("type_uid", json!(CLASS * 100 + OTHER));
    put("time", json!(epoch_ms));
    put("severity_id", json!(severity_id));
    put("status_id", json!(status_id));
    put("status_code", json!(body.error_code));
    put("status_detail", json!(body.error));
    put("duration", json!(body.duration_ms.map(|ms| ms.round() as i64)));
    put(
        "metadata",
        json!({
            "version": "1.3.0",
            "product": { "name": "Toolbooth", "vendor_name": "Toolbooth" },
            "log_name": event.writer,
            "sequence": event.seq,
            "uid": format!("{}/{}", event.writer, event.seq),
            "correlation_uid": body.call_id,
        }),
    );
    put("actor", json!({ "user": { "name": actor }, "app_name": body.agent_id }));
    put("src_endpoint", json!({ "name": body.agent_id.as_ref().unwrap_or(actor) }));
    put(
        "api",
        json!({
            "operation": body.tool_name.as_deref().unwrap_or(body.event.as_str()),
            "request": { "uid": body.call_id },
            "response": { "error": body.error_code },
        }),
    );
    let mut unmapped = serde_json::to_value(event).unwrap_or_default();
    if let Some(members) = unmapped.as_object_mut() {
        for mapped in [
            "writer",
            "seq",
            "time",
            "event",
            "toolName",
            "agentId",
            "caller",
            "callId",
            "status",
            "errorCode",
            "error",
            "durationMs",
        ] {
            members.remove(mapped);
        }
    }
    put("unmapped", unmapped);
    Value::Object(out)
}

/// Removes null and empty members from a value; returns `None` if nothing remains.
fn without_absent(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(members) => {
            let members: Map<String, Value> = members
                .into_iter()
                .filter_map(|(name, member)| Some((name, without_absent(member)?)))
                .collect();
            (!members.is_empty()).then_some(Value::Object(members))
        }
        other => Some(other),
    }
}
