//! Prints events as a table, as CSV or as JSON, once or continuously.
//!
//! Doc: records.md#reading

use std::time::Duration;

use serde_json::json;
use toolbooth_audit::reads::{EventFilter, Page, PlacedEvent};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::event::AuditEvent;

use crate::cli::EventFormat;
use crate::commands::records::{nothing_yet, open, unreadable, whole};
use crate::config::Loaded;
use crate::failure::Failure;
use crate::output::{self};

/// The polling interval for new events.
pub(super) const FOLLOW_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn tail(
    loaded: &Loaded,
    follow: bool,
    lines: usize,
    format: EventFormat,
) -> Result<bool, Failure> {
    let mut after = None;
    let mut operations = open(loaded).await?;
    if operations.is_none() && !follow {
        nothing_yet(loaded);
        print_events(&[], format, true)?;
        return Ok(true);
    }
    let (mut first, mut told) = (true, Page::<PlacedEvent>::default());
    loop {
        if let Some(operations) = &operations {
            let limit = if first { lines } else { 1_000 };
            let filter = EventFilter { after, limit, ..EventFilter::default() };
            let page = operations.events(filter).await.map_err(unreadable)?;
            let events = page.found;
            let before = told.damaged.len();
            told.add_damaged(page.damaged);
            whole(told.damaged.get(before..).unwrap_or_default());
            if let Some(last) = events.last() {
                after = Some(last.place);
            } else if first {
                after = Some(0);
            }
            // Following prints a stream, so each line is one document.
            let format = match format {
                EventFormat::Json if follow => EventFormat::Jsonl,
                other => other,
            };
            if first || !events.is_empty() {
                print_events(&events, format, first)?;
            }
            first = false;
        } else {
            operations = open(loaded).await?;
        }
        if !follow {
            return Ok(told.damaged.is_empty());
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_EVERY) => (),
            _ = tokio::signal::ctrl_c() => return Ok(true),
        }
    }
}

pub(super) const EVENT_COLUMNS: [&str; 22] = [
    "time",
    "event",
    "toolName",
    "agentId",
    "turnIndex",
    "caller",
    "callId",
    "receiptId",
    "status",
    "errorCode",
    "effect",
    "durationMs",
    "policyVersion",
    "argsDigest",
    "resultDigest",
    "error",
    "rule",
    "reason",
    "prev",
    "receiptDigest",
    "logDigest",
    "facts",
];

pub(super) fn print_events(
    events: &[PlacedEvent],
    format: EventFormat,
    headings: bool,
) -> Result<(), Failure> {
    let events: Vec<&toolbooth_contracts::event::AuditEvent> =
        events.iter().map(|placed| &placed.event).collect();
    match format {
        EventFormat::Json => output::json(&json!({ "events": events })),
        EventFormat::Jsonl => events.iter().for_each(output::json_line),
        EventFormat::Csv => {
            let mut bytes = Vec::new();
            if headings {
                bytes.extend(csv_line(&csv_headings())?);
            }
            for event in events {
                bytes.extend(csv_line(&csv_cells(event))?);
            }
            output::lines(&String::from_utf8_lossy(&bytes));
        }
        EventFormat::Table => {
            let rows: Vec<Vec<String>> = events
                .iter()
                .map(|event| {
                    let body = &event.body;
                    let told = body.error_code.map(|code| code.as_str().to_owned());
                    vec![
                        body.time.clone(),
                        body.event.as_str().to_owned(),
                        body.tool_name.clone().unwrap_or_default(),
                        body.agent_id.clone().unwrap_or_default(),
                        told.unwrap_or_default(),
                        body.call_id.clone().unwrap_or_default(),
                    ]
                })
                .collect();
            let names: &[&str] =
                if headings { &["TIME", "EVENT", "TOOL", "AGENT", "CODE", "CALL"] } else { &[] };
            if headings {
                output::table(names, &rows);
            } else {
                rows.iter().for_each(|row| output::line(&row.join("  ")));
            }
        }
    }
    Ok(())
}

pub(super) fn csv_headings() -> Vec<String> {
    ["writer", "seq"].into_iter().chain(EVENT_COLUMNS).map(str::to_owned).collect()
}

pub(super) fn csv_cells(event: &AuditEvent) -> Vec<String> {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    if let (Some(members), Some(decision)) = (value.as_object_mut(), &event.body.decision) {
        members.insert("rule".to_owned(), json!(decision.rule));
        members.insert("reason".to_owned(), json!(decision.reason));
    }
    csv_headings().iter().map(|column| defused(output::cell(value.get(column.as_str())))).collect()
}

pub(super) fn csv_line(cells: &[String]) -> Result<Vec<u8>, Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(|error| Failure::usage(with_causes(&error)))?;
    writer.into_inner().map_err(|error| Failure::usage(with_causes(&error)))
}

/// Returns a cell that a spreadsheet does not interpret as a formula.
pub(super) fn defused(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell }
}
