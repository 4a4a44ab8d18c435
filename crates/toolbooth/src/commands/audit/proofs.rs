//! Reads keys and checkpoints, and prints proofs and verification reports.
//!
//! Doc: records.md#verification

use std::path::Path;

use serde_json::json;
use toolbooth_audit::checkpoint::{self, Checkpoint};
use toolbooth_audit::note;
use toolbooth_audit::proof::{Proof, ProofError};
use toolbooth_audit::reads::Include;
use toolbooth_audit::verify::VerifyReport;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::event::AuditEvent;

use crate::commands::records::unreadable;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Format};

/// Returns the keys that the first events of the logs contain.
pub(super) async fn signing_keys(
    operations: &toolbooth_proxy::Operations,
) -> Result<Vec<String>, Failure> {
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

pub(super) fn no_proof(error: ProofError) -> Failure {
    match error {
        ProofError::Store(error) => unreadable(error),
        other => Failure::new(FAILED, "no-proof", other.to_string()),
    }
}

/// Parses keys from arguments: each a key, or a file with one key per line.
pub(super) fn keys(given: &[String]) -> Result<Vec<note::PublicKey>, Failure> {
    let mut keys = Vec::new();
    for given in given {
        let text = match std::fs::read_to_string(given) {
            Ok(text) => text,
            Err(_) => given.clone(),
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let key = note::PublicKey::parse(line)
                .map_err(|error| Failure::usage(with_causes(&error)).at("--key"))?;
            keys.push(key);
        }
    }
    Ok(keys)
}

/// Returns the checkpoints in a file.
pub(super) fn notes(path: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("the checkpoints cannot be read: {error}"))
            .at(path.display().to_string())
    })?;
    let notes = checkpoint::notes(&text);
    if !notes.iter().any(|note| Checkpoint::of_note(note).is_ok()) {
        return Err(
            Failure::usage("there is no checkpoint in the file").at(path.display().to_string())
        );
    }
    Ok(notes)
}

pub(super) fn check_proof(
    path: &Path,
    keys: &[note::PublicKey],
    format: Format,
) -> Result<bool, Failure> {
    let shown_path = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("the proof cannot be read: {error}")).at(shown_path())
    })?;
    let proof: Proof = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("this is not a proof: {error}")).at(shown_path())
    })?;
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

pub(super) fn print_report(report: &VerifyReport, format: Format) {
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
