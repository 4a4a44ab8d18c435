//! Tests that the verification of an export detects every flipped byte, and removed, swapped,
//! doubled and truncated lines.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::io::Cursor;

use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::export::{Exporter, Line, ocsf};
use toolbooth_audit::ledger::{Claimed, Ledger};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::verify::{self, TrustAnchors, VerifyReport};
use toolbooth_contracts::Effect;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::AuditEvent;

async fn exported() -> String {
    let ledger = MemoryLedger::new("w", &[1; 32], &moment(0));
    for n in 0..3 {
        let mode = IdempotencyMode::OnKey;
        let claimed = ledger.claim(request(&format!("c{n}"), mode, &[], "args")).await;
        let Claimed::Fresh(claim) = claimed.unwrap() else { panic!("fresh") };
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        if n == 1 {
            ledger.checkpoint(Due::NOW, moment(3)).await.unwrap();
        }
    }
    let mut exporter = Exporter::begin(&ledger).await.unwrap();
    let mut text = String::new();
    while let Some(page) = exporter.page().await.unwrap() {
        for line in &page {
            let Line::Event(entry) = line else { panic!("nothing is gone") };
            text.push_str(&format!("{}\n", entry.bytes));
        }
    }
    text.push_str(&format!("{}\n", exporter.trailer()));
    text
}

fn verified(bytes: &[u8]) -> VerifyReport {
    verify::export(|| Ok(Cursor::new(bytes.to_vec())), TrustAnchors::default()).unwrap()
}

/// Returns the line of a byte.
fn line_of(text: &str, at: usize) -> u64 {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() as u64
}

#[tokio::test]
async fn every_flipped_byte_is_found_at_its_position() {
    let text = exported().await;
    let lines = text.lines().count() as u64;
    let report = verified(text.as_bytes());
    assert!(report.ok && report.events == lines - 1, "{report:?}");
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        let report = verified(&bytes);
        let line = line_of(&text, at);
        assert!(!report.ok, "byte {at} of line {line}");
        if line + 1 < lines {
            // The link between two neighbours does not show which of them was changed.
            let near = report
                .problems
                .iter()
                .any(|problem| problem.seq.is_some_and(|seq| seq.abs_diff(line) <= 1));
            assert!(near, "byte {at} of line {line}: {report:?}");
        }
    }
}

#[tokio::test]
async fn every_removed_swapped_doubled_or_cut_line_is_found() {
    let text = exported().await;
    let lines: Vec<&str> = text.lines().collect();
    let joined = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    for at in 0..lines.len() - 1 {
        let mut removed = lines.clone();
        removed.remove(at);
        let report = verified(joined(&removed).as_bytes());
        assert_eq!(report.problems[0].seq, Some(at as u64), "{report:?}");
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        let report = verified(joined(&doubled).as_bytes());
        assert_eq!(report.problems[0].seq, Some(at as u64), "{report:?}");
        if at + 2 < lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(at, at + 1);
            let report = verified(joined(&swapped).as_bytes());
            assert_eq!(report.problems[0].seq, Some(at as u64), "{report:?}");
        }
        if at == 0 {
            let none = verify::export(|| Ok(Cursor::new(b"a,b\n1,2\n")), TrustAnchors::default());
            assert!(none.is_err(), "this is no export");
            continue;
        }
        let report = verified(joined(&lines[..at]).as_bytes());
        assert!(report.problems.iter().any(|problem| problem.kind == "truncated"), "{report:?}");
    }
    for cut in 0..text.len() {
        let bytes = text.as_bytes()[..cut].to_vec();
        let report = verify::export(|| Ok(Cursor::new(bytes.clone())), TrustAnchors::default());
        assert!(report.is_ok_and(|report| !report.ok) || !text[..cut].contains('\n'), "byte {cut}");
    }
    let twice = format!("{text}{}\n", lines.last().unwrap());
    assert!(!verified(twice.as_bytes()).ok, "a second last line");
    assert!(!verified(format!("{text}\n").as_bytes()).ok, "an empty line after the last");
}

#[tokio::test]
async fn a_log_that_was_rewritten_whole_is_found_by_its_checkpoint() {
    let text = exported().await;
    let note = text.lines().find_map(|line| {
        let event: AuditEvent = serde_json::from_str(line).ok()?;
        Some(event.body.facts?.get("note")?.as_str()?.to_owned())
    });
    // The same calls under another clock: a valid log, but not the signed one.
    let ledger = MemoryLedger::new("w", &[1; 32], &moment(7));
    for n in 0..20 {
        let call = format!("x{n}");
        let claimed = ledger.claim(request(&call, IdempotencyMode::None, &[], "args")).await;
        drop(claimed.unwrap());
    }
    let known = TrustAnchors { notes: vec![note.unwrap()], ..TrustAnchors::default() };
    let report = verify::store(&ledger, known).await.unwrap();
    assert_eq!(report.problems[0].kind, "checkpoint-differs", "{report:?}");
}

#[tokio::test]
async fn events_have_an_ocsf_form() {
    let text = exported().await;
    let event: AuditEvent = serde_json::from_str(text.lines().nth(2).unwrap()).unwrap();
    let out = ocsf(&event, 1_767_225_600_002);
    assert_eq!((&out["class_uid"], &out["type_uid"]), (&6003.into(), &600_399.into()));
    assert_eq!(out["api"]["operation"], "tool.one");
    assert_eq!(out["metadata"]["uid"], "w/2");
    assert_eq!(out["status_id"], 1);
    assert!(out["unmapped"]["receiptDigest"].is_string(), "{out}");
}
