//! `audit`, `logs`, `receipts`: reading what was written.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use toolbooth_audit::LedgerReads;
use toolbooth_audit::reads::{EventFilter, LogFilter, PlacedEvent, ReceiptFilter};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::Operations;
use toolbooth_store::sqlite::{DATABASE, SqliteReads};

use crate::cli::{Audit, EventFilterArgs, EventFormat, Logs, Receipts};
use crate::config::Loaded;
use crate::failure::{FAILED, Failure, OUT_OF_REACH, chain};
use crate::output::{self, Format};

/// How often the store is asked for events that follow.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// The records in a data folder; `None` where nothing was ever recorded.
fn open(data: &Path) -> Result<Option<Operations>, Failure> {
    let path = data.join(DATABASE);
    if !path.is_file() {
        return Ok(None);
    }
    let reads = SqliteReads::open(&path).map_err(|error| {
        Failure::new(OUT_OF_REACH, "store-unavailable", chain(&error))
            .at(path.display().to_string())
    })?;
    let reads: Arc<dyn LedgerReads> = Arc::new(reads);
    // Whoever can read the data folder is the operator.
    let operator = Authorizer::new(FeatureFlags::default())
        .operator(&toolbooth_server::auth::local_user())
        .map_err(|denial| Failure::new(FAILED, "policy-denied", denial.reason))?;
    Ok(Some(Operations::new(reads, operator)))
}

fn unreadable(error: toolbooth_audit::LedgerError) -> Failure {
    Failure::store(error.to_string())
}

fn nothing_yet(loaded: &Loaded) {
    crate::note(&format!("nothing was recorded yet under {}", loaded.data.display()));
}

/// A time: RFC 3339, or so long ago.
fn time(given: Option<&str>, option: &str) -> Result<Option<String>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let wrong = || {
        Failure::usage(format!("`{}` is no time", given.escape_debug())).at(option.to_owned()).hint(
            "give RFC 3339, such as 2026-01-31T12:00:00Z, or so long ago, such as 90s, 5m, 1h, 7d",
        )
    };
    let unit = match given.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3_600,
        Some(b'd') => 86_400,
        _ => {
            let at: jiff::Timestamp = given.parse().map_err(|_| wrong())?;
            return Ok(Some(format!("{at:.3}")));
        }
    };
    let count: i64 = given.get(..given.len() - 1).and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
    let seconds = count.checked_mul(unit).filter(|seconds| *seconds >= 0).ok_or_else(wrong)?;
    let at = jiff::Timestamp::now()
        .checked_sub(jiff::SignedDuration::from_secs(seconds))
        .map_err(|_| wrong())?;
    Ok(Some(format!("{at:.3}")))
}

pub(super) async fn audit(loaded: Loaded, command: Audit) -> Result<bool, Failure> {
    match command {
        Audit::Query { filter, format } => {
            let EventFilterArgs { tool, agent, status, code, since, until, call, limit } = filter;
            if let Some(code) = &code
                && toolbooth_contracts::ErrorCode::parse(code).is_none()
            {
                return Err(Failure::usage(format!("there is no error code `{code}`")).at("--code"));
            }
            let filter = EventFilter {
                tool,
                agent,
                status,
                code,
                call,
                since: time(since.as_deref(), "--since")?,
                until: time(until.as_deref(), "--until")?,
                after: None,
                limit,
            };
            let events = match open(&loaded.data)? {
                Some(operations) => operations.events(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    Vec::new()
                }
            };
            print_events(&events, format, true)?;
            Ok(true)
        }
        Audit::Tail { follow, lines, format } => tail(&loaded, follow, lines, format).await,
        Audit::Verify { store, shown } => {
            let data = store.unwrap_or_else(|| loaded.data.clone());
            let operations = open(&data)?.ok_or_else(|| {
                Failure::store("there is no store to verify").at(data.display().to_string())
            })?;
            let report = operations.verify().await.map_err(unreadable)?;
            if shown.format.is_json() {
                output::json(&report);
                return Ok(report.ok);
            }
            for problem in &report.problems {
                let seq = problem.seq.map(|seq| format!(" event {seq}")).unwrap_or_default();
                output::line(&format!(
                    "{}: {}{seq}: {}",
                    problem.kind, problem.writer, problem.message
                ));
            }
            let verdict = if report.ok { "sound" } else { "TAMPERED" };
            output::line(&format!(
                "{verdict}: {} event(s), {} problem(s)",
                report.events,
                report.problems.len()
            ));
            Ok(report.ok)
        }
    }
}

async fn tail(
    loaded: &Loaded,
    follow: bool,
    lines: usize,
    format: EventFormat,
) -> Result<bool, Failure> {
    let mut after = None;
    let mut operations = open(&loaded.data)?;
    if operations.is_none() && !follow {
        nothing_yet(loaded);
        print_events(&[], format, true)?;
        return Ok(true);
    }
    let mut first = true;
    loop {
        if let Some(operations) = &operations {
            let limit = if first { lines } else { 1_000 };
            let filter = EventFilter { after, limit, ..EventFilter::default() };
            let events = operations.events(filter).await.map_err(unreadable)?;
            if let Some(last) = events.last() {
                after = Some(last.place);
            } else if first {
                after = Some(0);
            }
            // What follows is a stream, so one document a line.
            let format = match format {
                EventFormat::Json if follow => EventFormat::Jsonl,
                other => other,
            };
            if first || !events.is_empty() {
                print_events(&events, format, first)?;
            }
            first = false;
        } else {
            operations = open(&loaded.data)?;
        }
        if !follow {
            return Ok(true);
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_EVERY) => (),
            _ = tokio::signal::ctrl_c() => return Ok(true),
        }
    }
}

const EVENT_COLUMNS: [&str; 16] = [
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
];

fn print_events(
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
            let mut writer = csv::Writer::from_writer(Vec::new());
            let wrong = |error: csv::Error| Failure::usage(error.to_string());
            if headings {
                let columns = ["writer", "seq"].into_iter().chain(EVENT_COLUMNS);
                writer.write_record(columns).map_err(wrong)?;
            }
            for event in events {
                let value = serde_json::to_value(event).unwrap_or_default();
                let cells = ["writer", "seq"]
                    .into_iter()
                    .chain(EVENT_COLUMNS)
                    .map(|column| defused(output::cell(value.get(column))));
                writer.write_record(cells).map_err(wrong)?;
            }
            let bytes = writer.into_inner().map_err(|error| Failure::usage(error.to_string()))?;
            output::text(&String::from_utf8_lossy(&bytes));
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

/// A cell that a spreadsheet does not take for a formula.
fn defused(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell }
}

pub(super) async fn logs(loaded: Loaded, command: Logs) -> Result<bool, Failure> {
    match command {
        Logs::Query { tool, agent, turn, phase, epic, call, error, since, until, limit, shown } => {
            let filter = LogFilter {
                tool,
                agent,
                turn,
                phase,
                epic,
                call,
                error,
                since: time(since.as_deref(), "--since")?,
                until: time(until.as_deref(), "--until")?,
                limit,
            };
            let logs = match open(&loaded.data)? {
                Some(operations) => operations.agent_logs(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    Vec::new()
                }
            };
            if shown.format.is_json() {
                output::json(&json!({ "logs": logs }));
                return Ok(true);
            }
            let rows: Vec<Vec<String>> = logs
                .iter()
                .map(|log| {
                    let code = log.error_code.map_or("ok", |code| code.as_str());
                    vec![
                        log.timestamp.clone(),
                        log.tool_name.clone(),
                        log.agent_id.clone().unwrap_or_default(),
                        code.to_owned(),
                        format!("{:.1} ms", log.duration_ms),
                        log.id.clone(),
                    ]
                })
                .collect();
            output::table(&["TIME", "TOOL", "AGENT", "OUTCOME", "DURATION", "LOG"], &rows);
            Ok(true)
        }
        Logs::Show { id, shown } => {
            let found = match open(&loaded.data)? {
                Some(operations) => operations.agent_log(&id).await.map_err(unreadable)?,
                None => None,
            };
            one(found, "agent log", &id, shown.format)
        }
    }
}

pub(super) async fn receipts(loaded: Loaded, command: Receipts) -> Result<bool, Failure> {
    match command {
        Receipts::List { tool, call, state, after, limit, shown } => {
            let filter = ReceiptFilter { tool, call, state, after, limit };
            let (receipts, more) = match open(&loaded.data)? {
                Some(operations) => operations.receipts(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    (Vec::new(), false)
                }
            };
            let next = receipts.last().filter(|_| more).map(|receipt| receipt.receipt_id.clone());
            if shown.format.is_json() {
                let mut out = json!({ "receipts": receipts });
                if let (Some(next), Some(members)) = (next, out.as_object_mut()) {
                    members.insert("next".to_owned(), json!(next));
                }
                output::json(&out);
                return Ok(true);
            }
            let rows: Vec<Vec<String>> = receipts
                .iter()
                .map(|receipt| {
                    vec![
                        receipt.started_at.clone(),
                        receipt.tool_id.clone(),
                        receipt.state.as_str().to_owned(),
                        receipt.effect.as_str().to_owned(),
                        receipt.attempt.to_string(),
                        receipt.receipt_id.clone(),
                    ]
                })
                .collect();
            output::table(&["STARTED", "TOOL", "STATE", "EFFECT", "ATTEMPT", "RECEIPT"], &rows);
            if let Some(next) = next {
                crate::note(&format!("more follow: --after {next}"));
            }
            Ok(true)
        }
        Receipts::Show { id, shown } => {
            let found = match open(&loaded.data)? {
                Some(operations) => operations.receipt(&id).await.map_err(unreadable)?,
                None => None,
            };
            one(found, "receipt", &id, shown.format)
        }
    }
}

fn one(
    found: Option<impl Serialize>,
    what: &str,
    id: &str,
    format: Format,
) -> Result<bool, Failure> {
    let Some(found) = found else {
        return Err(Failure::new(FAILED, "not-found", format!("there is no {what} `{id}`")));
    };
    let value = serde_json::to_value(&found).unwrap_or_default();
    match (format, &value) {
        (Format::Table, Value::Object(members)) => {
            for (name, value) in members {
                output::line(&format!("{name:<16}{}", output::cell(Some(value))));
            }
        }
        _ => output::json(&value),
    }
    Ok(true)
}
