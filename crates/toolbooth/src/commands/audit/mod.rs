//! `audit`: reads, exports, verifies and proves the audit log.

mod events;
mod export;
mod proofs;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

use serde_json::json;
use toolbooth_audit::proof::{self};
use toolbooth_audit::reads::{EventFilter, Page};
use toolbooth_audit::stats;
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_registry::lock::LockFile;
use toolbooth_store::sqlite::StartCheck;

use super::records::{need, nothing_yet, open, unreadable, whole};
use crate::cli::{Audit, EventFilterArgs};
use crate::config::Loaded;
use crate::config::lock::LockMode;
use crate::digest_keys::{StoreDigester, fitting_digester};
use crate::failure::{FAILED, Failure, OUT_OF_REACH};
use crate::output::{self};
use crate::records;
use crate::times::time;
use crate::trust::Trusted;
use events::{print_events, tail};
use export::export;
use proofs::{check_proof, keys, no_proof, notes, print_report, signing_keys};

/// Said of a store without the file of its newest checkpoint.
pub(super) const NO_CHECKPOINT: &str =
    "no checkpoint is kept beside the store; a rollback to an earlier state cannot be detected";

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
                Some(path) => notes(path)?,
                None => Vec::new(),
            };
            // The folder with the checkpoints, the digest key and the pins of the store.
            let beside = match (&store, &file) {
                (None, None) => Some(Loaded::clone(&loaded)),
                (Some(folder), None) if !records::is_url(folder) => {
                    Some(with_data(&loaded, folder))
                }
                _ => None,
            };
            let mut pins = BTreeMap::new();
            if let Some(beside) = &beside {
                let kept = crate::kept_checkpoints::kept_notes(beside);
                if kept.is_empty() {
                    crate::notice(NO_CHECKPOINT);
                }
                notes.extend(kept);
                pins = recorded_pins(beside)?;
            }
            let mut lacks_key = None;
            let mut known = TrustAnchors { keys, notes, digester: None, pins };
            let mut report = match file {
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
                    let location =
                        store.clone().unwrap_or_else(|| records::store_location(&loaded));
                    let reads =
                        records::reads(&loaded, store.as_deref()).await?.ok_or_else(|| {
                            Failure::store("there is no store to verify").at(location)
                        })?;
                    if let Some(beside) = &beside {
                        let fitting = match fitting_digester(beside, &*reads).await {
                            Err(failure) if store.is_some() => {
                                StoreDigester::Lacks(failure.message)
                            }
                            fitting => fitting?,
                        };
                        match fitting {
                            StoreDigester::Fits(digester) => known.digester = Some(digester),
                            // A copy for an auditor has no secrets.
                            StoreDigester::Lacks(reason) if store.is_some() => {
                                crate::notice(&reason);
                            }
                            StoreDigester::Lacks(reason) => lacks_key = Some(reason),
                        }
                    }
                    records::operations(reads)?.verify(known).await.map_err(unreadable)?
                }
            };
            if let Some(reason) = lacks_key {
                report.add("digest-key-missing", reason);
            }
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
            if !anyway && !crate::kept_checkpoints::is_rolled_back(&loaded).await? {
                return Err(Failure::new(
                    FAILED,
                    "nothing-to-accept",
                    "the records have their newest checkpoints: nothing was put back",
                )
                .hint("`--anyway` accepts them all the same, for a checkpoint that was kept elsewhere"));
            }
            let writer = uuid::Uuid::now_v7().to_string();
            let clock = toolbooth_proxy::SystemClock::default();
            let now = toolbooth_proxy::Clock::now(&clock);
            let opened = records::open(&loaded, writer, now, true, StartCheck::Always).await?;
            let now = toolbooth_proxy::Clock::now(&clock);
            let note = opened.ledger.close(now).await.map_err(unreadable)?;
            records::hand_outside(&loaded, note.as_deref());
            // The restored records lack the pins since the backup, so all pins are recorded again.
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

/// Returns the configuration with another data folder, whose store is an embedded one.
fn with_data(loaded: &Loaded, folder: &str) -> Loaded {
    let mut other = loaded.clone();
    other.data = folder.into();
    (other.config.store.url, other.config.store.digest_key) = (None, None);
    other
}

/// Returns the first-use pins that the audit log must contain; empty if the lock has another mode.
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
