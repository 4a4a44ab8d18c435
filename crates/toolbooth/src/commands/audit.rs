//! `audit`: reading, exporting, verifying and proving.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use toolbooth_audit::export::{Exporter, Line, ocsf};
use toolbooth_audit::proof::{self, Proof, ProofError};
use toolbooth_audit::reads::{EventFilter, Include, Page, PlacedEvent};
use toolbooth_audit::verify::{self, TrustAnchors, VerifyReport};
use toolbooth_audit::{checkpoint, note, stats};
use toolbooth_contracts::event::AuditEvent;
use toolbooth_registry::lock::LockFile;

use super::records::{need, nothing_yet, open, unreadable, whole};
use crate::cli::{Audit, EventFilterArgs, EventFormat, ExportFormat};
use crate::config::Loaded;
use crate::config::lock::LockMode;
use crate::failure::{FAILED, Failure, OUT_OF_REACH};
use crate::output::{self, Format};
use crate::records;
use crate::times::time;
use crate::trust::Trusted;

/// How often the store is asked for events that follow.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn audit(loaded: Trusted, command: Audit) -> Result<bool, Failure> {
    match command {
        Audit::Query { filter, format } => {
            let EventFilterArgs { tool, agent, caller, status, code, since, until, call, limit } =
                filter;
            if let Some(code) = &code
                && toolbooth_contracts::ErrorCode::parse(code).is_none()
            {
                return Err(Failure::usage(format!("there is no error code `{code}`")).at("--code"));
            }
            let filter = EventFilter {
                tool,
                agent,
                caller,
                status,
                code,
                call,
                since: time(since.as_deref(), "--since")?,
                until: time(until.as_deref(), "--until")?,
                after: None,
                limit,
            };
            let page = match open(&loaded).await? {
                Some(operations) => operations.events(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    Page::default()
                }
            };
            print_events(&page.found, format, true)?;
            Ok(whole(&page.damaged))
        }
        Audit::Tail { follow, lines, format } => tail(&loaded, follow, lines, format).await,
        Audit::Stats { since, until, shown } => {
            let since = time(since.as_deref(), "--since")?;
            let until = time(until.as_deref(), "--until")?;
            let (tools, damaged) = match open(&loaded).await? {
                Some(operations) => {
                    stats::of_store(operations.reads(), since, until).await.map_err(unreadable)?
                }
                None => {
                    nothing_yet(&loaded);
                    Default::default()
                }
            };
            if shown.format.is_json() {
                output::json(&json!({ "tools": tools }));
                return Ok(whole(&damaged));
            }
            let ms = |ms: f64| format!("{ms:.1}");
            let rows: Vec<Vec<String>> = tools
                .iter()
                .map(|tool| {
                    let counts = [tool.calls, tool.replays, tool.errors, tool.denials];
                    std::iter::once(tool.tool_name.clone())
                        .chain(counts.iter().map(u64::to_string))
                        .chain([tool.p50_ms, tool.p95_ms, tool.p99_ms, tool.max_ms].map(ms))
                        .collect()
                })
                .collect();
            let headings = [
                "TOOL", "CALLS", "REPLAYS", "ERRORS", "DENIALS", "P50 MS", "P95 MS", "P99 MS",
                "MAX MS",
            ];
            output::table(&headings, &rows);
            Ok(whole(&damaged))
        }
        Audit::Export { format, since, until, out } => {
            let since = time(since.as_deref(), "--since")?;
            let until = time(until.as_deref(), "--until")?;
            export(&loaded, format, (since, until), out.as_deref()).await
        }
        Audit::Verify { store, file, key, checkpoint, proof, shown } => {
            let keys = keys(&key)?;
            if let Some(proof) = proof {
                return check_proof(&proof, &keys, shown.format);
            }
            let mut notes = match &checkpoint {
                Some(path) => {
                    let notes = notes(path)?;
                    if notes.is_empty() {
                        return Err(Failure::usage("there is no checkpoint in the file")
                            .at(path.display().to_string()));
                    }
                    notes
                }
                None => Vec::new(),
            };
            if store.is_none() && file.is_none() {
                notes.extend(records::kept_note(&loaded));
            }
            let digester = match (&store, &file) {
                (None, None) => records::own_digester(&loaded).await?,
                _ => None,
            };
            let pins = match (&store, &file) {
                (None, None) => recorded_pins(&loaded)?,
                _ => BTreeMap::new(),
            };
            let known = TrustAnchors { keys, notes, digester, pins };
            let report = match file {
                Some(path) => {
                    verify::export(|| std::fs::File::open(&path).map(BufReader::new), known)
                        .map_err(|error| {
                            Failure::new(
                                OUT_OF_REACH,
                                "unreadable",
                                format!("the export cannot be read: {error}"),
                            )
                            .at(path.display().to_string())
                        })?
                }
                None => {
                    let place = store.clone().unwrap_or_else(|| records::place(&loaded));
                    let reads = records::reads(&loaded, store.as_deref())
                        .await?
                        .ok_or_else(|| Failure::store("there is no store to verify").at(place))?;
                    records::operations(reads)?.verify(known).await.map_err(unreadable)?
                }
            };
            print_report(&report, shown.format);
            Ok(report.ok)
        }
        Audit::Prove { call } => {
            let operations = need(&loaded).await?;
            let proof = proof::inclusion(operations.reads(), &call).await.map_err(no_proof)?;
            output::json(&proof);
            Ok(true)
        }
        Audit::ProveConsistency { first, second } => {
            let operations = need(&loaded).await?;
            let last = |path: &Path| -> Result<String, Failure> {
                notes(path)?.pop().ok_or_else(|| {
                    Failure::usage("there is no checkpoint in the file")
                        .at(path.display().to_string())
                })
            };
            let (first, second) = (last(&first)?, last(&second)?);
            let proof =
                proof::consistency(operations.reads(), &first, &second).await.map_err(no_proof)?;
            output::json(&proof);
            Ok(true)
        }
        Audit::Keys { shown } => {
            let mut keys: Vec<String> = records::own_key(&loaded).await?.into_iter().collect();
            if let Some(operations) = open(&loaded).await? {
                for key in signing_keys(&operations).await? {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
            } else {
                nothing_yet(&loaded);
            }
            if shown.format.is_json() {
                output::json(&json!({ "keys": keys }));
            } else {
                keys.iter().for_each(|key| output::line(key));
            }
            Ok(true)
        }
        Audit::AcceptRestore { anyway, shown } => {
            if !anyway && !records::is_rolled_back(&loaded).await? {
                return Err(Failure::new(
                    FAILED,
                    "nothing-to-accept",
                    "the records have their newest checkpoint: nothing was put back",
                )
                .hint("`--anyway` accepts them all the same, for a checkpoint that was kept elsewhere"));
            }
            let writer = uuid::Uuid::now_v7().to_string();
            let clock = toolbooth_proxy::SystemClock::default();
            let now = toolbooth_proxy::Clock::now(&clock);
            let opened = records::open(&loaded, writer, now, true).await?;
            let now = toolbooth_proxy::Clock::now(&clock);
            let note = opened.ledger.close(now).await.map_err(unreadable)?;
            records::hand_outside(&loaded, note.as_deref());
            // Pins since the backup are on record no more.
            if loaded.lock_mode() == LockMode::FirstUse && loaded.pins().read()?.is_some() {
                loaded.pins().change(true, LockFile::forget_records)?;
            }
            if shown.format.is_json() {
                output::json(&json!({ "accepted": true }));
            } else {
                output::line("the records are taken as they are; the log says so (STORE_RESTORED)");
            }
            Ok(true)
        }
    }
}

/// The keys that the beginnings of the logs name.
async fn signing_keys(operations: &toolbooth_proxy::Operations) -> Result<Vec<String>, Failure> {
    let mut keys = Vec::new();
    let mut after = None;
    loop {
        let page = operations
            .reads()
            .log_page(after.take(), 1_000, Include::Milestones)
            .await
            .map_err(unreadable)?;
        let Some(last) = page.last() else { return Ok(keys) };
        after = Some((last.writer.clone(), last.seq));
        for entry in &page {
            let event: Option<AuditEvent> = serde_json::from_str(&entry.bytes).ok();
            let facts = event.and_then(|event| event.body.facts);
            let key = facts.and_then(|facts| facts.get("signingKey")?.as_str().map(str::to_owned));
            keys.extend(key);
        }
    }
}

fn no_proof(error: ProofError) -> Failure {
    match error {
        ProofError::Store(error) => unreadable(error),
        other => Failure::new(FAILED, "no-proof", other.to_string()),
    }
}

/// Keys as they are given: each a key, or a file with one a line.
fn keys(given: &[String]) -> Result<Vec<note::PublicKey>, Failure> {
    let mut keys = Vec::new();
    for given in given {
        let text = match std::fs::read_to_string(given) {
            Ok(text) => text,
            Err(_) => given.clone(),
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let key = note::PublicKey::parse(line)
                .map_err(|error| Failure::usage(error.to_string()).at("--key"))?;
            keys.push(key);
        }
    }
    Ok(keys)
}

/// The checkpoints of a file.
fn notes(path: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("the checkpoints cannot be read: {error}"))
            .at(path.display().to_string())
    })?;
    Ok(checkpoint::notes(&text))
}

fn check_proof(path: &Path, keys: &[note::PublicKey], format: Format) -> Result<bool, Failure> {
    let place = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("the proof cannot be read: {error}")).at(place())
    })?;
    let proof: Proof = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("this is no proof: {error}")).at(place()))?;
    if keys.is_empty() {
        return Err(Failure::usage(
            "a proof proves nothing without the key that signs checkpoints",
        )
        .hint("give `--key`; `toolbooth audit keys` prints it where the records are"));
    }
    let mut told = Err("no key".to_owned());
    for key in keys {
        told = proof.check(key).map_err(|error| error.to_string());
        if told.is_ok() {
            break;
        }
    }
    let holds = told.is_ok();
    let message = told.unwrap_or_else(|error| error);
    if format.is_json() {
        let mut problems = Vec::new();
        if !holds {
            problems.push(json!({ "kind": "proof", "writer": "", "message": message }));
        }
        output::json(
            &json!({ "ok": holds, "events": 1, "problems": problems, "message": message }),
        );
    } else {
        output::foreign(&format!("{}: {message}", if holds { "holds" } else { "DOES NOT HOLD" }));
    }
    Ok(holds)
}

fn print_report(report: &VerifyReport, format: Format) {
    if format.is_json() {
        output::json(report);
        return;
    }
    for problem in &report.problems {
        let seq = problem.seq.map(|seq| format!(" event {seq}")).unwrap_or_default();
        output::foreign(&format!("{}: {}{seq}: {}", problem.kind, problem.writer, problem.message));
    }
    let verdict = if report.ok { "sound" } else { "TAMPERED" };
    output::line(&format!(
        "{verdict}: {} event(s), {} problem(s)",
        report.events,
        report.problems.len()
    ));
}

/// Where an export goes: standard output, or a file that takes its name when it is whole.
struct Target {
    out: Box<dyn Write>,
    /// The draft and the name.
    file: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            let out = std::io::BufWriter::new(std::io::stdout());
            return Ok(Self { out: Box::new(out), file: None });
        };
        let wrong = |message: String| Failure::usage(message).at(path.display().to_string());
        if path.exists() {
            return Err(wrong("there is something with this name already".to_owned()));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.draft", uuid::Uuid::now_v7().simple()));
        let draft = PathBuf::from(draft);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&draft)
            .map_err(|error| wrong(format!("the file cannot be written: {error}")))?;
        let out = Box::new(std::io::BufWriter::new(file));
        Ok(Self { out, file: Some((draft, path.to_owned())) })
    }

    /// Writes; `false` where nobody reads any more.
    fn write(&mut self, text: &[u8]) -> Result<bool, Failure> {
        match self.out.write_all(text) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::store(format!("the export cannot be written: {error}"))),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let done = self.out.flush().and_then(|()| match &self.file {
            Some((draft, path)) => std::fs::rename(draft, path),
            None => Ok(()),
        });
        match done {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::store(format!("the export cannot be written: {error}")))
            }
            _ => Ok(()),
        }
    }
}

async fn export(
    loaded: &Loaded,
    format: ExportFormat,
    (since, until): (Option<String>, Option<String>),
    out: Option<&Path>,
) -> Result<bool, Failure> {
    let operations = need(loaded).await?;
    #[cfg(feature = "parquet")]
    if format == ExportFormat::Parquet {
        return super::parquet::export(&operations, (since, until), out).await;
    }
    let part = since.is_some() || until.is_some();
    let mut target = Target::open(out)?;
    let mut exporter = Exporter::begin(operations.reads()).await.map_err(unreadable)?;
    let total = exporter.total();
    let mut written = 0u64;
    if format == ExportFormat::Csv {
        target.write(&csv_line(&csv_headings())?)?;
    }
    while let Some(page) = exporter.page().await.map_err(unreadable)? {
        for line in &page {
            let entry = match line {
                Line::Event(entry) => entry,
                Line::Gone(line) if format == ExportFormat::Jsonl && !part => {
                    if !target.write(format!("{line}\n").as_bytes())? {
                        return Ok(true);
                    }
                    continue;
                }
                Line::Gone(_) => continue,
            };
            let event: Option<AuditEvent> = serde_json::from_str(&entry.bytes).ok();
            let within = event.as_ref().is_none_or(|event| {
                since.as_ref().is_none_or(|since| event.body.time >= *since)
                    && until.as_ref().is_none_or(|until| event.body.time < *until)
            });
            if !within {
                continue;
            }
            let line = match (format, event) {
                (ExportFormat::Jsonl, _) => format!("{}\n", entry.bytes).into_bytes(),
                (ExportFormat::Csv, Some(event)) => csv_line(&csv_cells(&event))?,
                (_, Some(event)) => format!("{}\n", ocsf(&event, epoch_ms(&event))).into_bytes(),
                // What cannot be read is for `verify` to tell; in JSON Lines it is there as it is.
                (_, None) => continue,
            };
            if !target.write(&line)? {
                return Ok(true);
            }
            written += 1;
        }
        progress(written, total);
    }
    if format == ExportFormat::Jsonl {
        if part {
            crate::note("a part of the log: `verify` needs all of it");
            target.write(format!("{}\n", Exporter::part()).as_bytes())?;
        } else {
            target.write(format!("{}\n", exporter.trailer()).as_bytes())?;
        }
    }
    target.finish()?;
    Ok(true)
}

/// Says on a terminal how far long work has come.
fn progress(done: u64, total: u64) {
    use std::io::IsTerminal;
    if total > 100_000 && std::io::stderr().is_terminal() {
        crate::note(&format!("{done} of {total} event(s)"));
    }
}

pub(super) fn epoch_ms(event: &AuditEvent) -> i64 {
    let at: Option<jiff::Timestamp> = event.body.time.parse().ok();
    at.map_or(0, jiff::Timestamp::as_millisecond)
}

async fn tail(
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
            told.note(page.damaged);
            whole(told.damaged.get(before..).unwrap_or_default());
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

const EVENT_COLUMNS: [&str; 22] = [
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
            let mut bytes = Vec::new();
            if headings {
                bytes.extend(csv_line(&csv_headings())?);
            }
            for event in events {
                bytes.extend(csv_line(&csv_cells(event))?);
            }
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

fn csv_headings() -> Vec<String> {
    ["writer", "seq"].into_iter().chain(EVENT_COLUMNS).map(str::to_owned).collect()
}

fn csv_cells(event: &AuditEvent) -> Vec<String> {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    if let (Some(members), Some(decision)) = (value.as_object_mut(), &event.body.decision) {
        members.insert("rule".to_owned(), json!(decision.rule));
        members.insert("reason".to_owned(), json!(decision.reason));
    }
    csv_headings().iter().map(|column| defused(output::cell(value.get(column.as_str())))).collect()
}

fn csv_line(cells: &[String]) -> Result<Vec<u8>, Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(|error| Failure::usage(error.to_string()))?;
    writer.into_inner().map_err(|error| Failure::usage(error.to_string()))
}

/// A cell that a spreadsheet does not take for a formula.
fn defused(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell }
}

/// The first-use pins that events must tell of; none where the lock has another mode.
pub(super) fn recorded_pins(loaded: &Loaded) -> Result<BTreeMap<String, String>, Failure> {
    if loaded.lock_mode() != LockMode::FirstUse {
        return Ok(BTreeMap::new());
    }
    let Some(pins) = loaded.pins().read()? else { return Ok(BTreeMap::new()) };
    let mut recorded = pins.digests();
    for pin in pins.unrecorded() {
        recorded.remove(&pin.id);
    }
    Ok(recorded)
}
