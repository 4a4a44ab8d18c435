//! `lock`, `lock diff`, `lock approve`: what servers and commands say, approved by an operator.
//!
//! Doc: registry.md#the-lock

use std::path::Path;

use serde_json::{Value, json};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::id::nearest;
use toolbooth_proxy::SourceState;
use toolbooth_registry::lock::{self, Change, LockFile, ToolDiff, show_text};
use toolbooth_registry::{RegisteredTool, Source};

use crate::compose::{Frame, Gateway, say_assumptions};
use crate::config::Loaded;
use crate::failure::{FAILED, Failure, OUT_OF_REACH};
use crate::output::{self, Format};

/// What the sources say now, against what the lock has.
struct Compared {
    frame: Frame,
    lock: LockFile,
    diffs: Vec<ToolDiff>,
    states: Vec<SourceState>,
}

impl Compared {
    async fn of(loaded: Loaded) -> Result<Self, Failure> {
        say_assumptions(&loaded);
        let frame = Frame::build(loaded).await?;
        let states = frame.catalogue.refresh_all().await;
        for state in &states {
            if let Some(reason) = &state.unhealthy {
                crate::note(&format!("{} does not answer, its tools stay: {reason}", state.source));
            }
            for problem in &state.problems {
                crate::note(&format!("{}: {problem}", state.source));
            }
        }
        let world = frame.worlds.now();
        let lock = world.approvals.lock.clone().unwrap_or_else(LockFile::empty);
        let configured: Vec<&str> = states.iter().map(|state| state.source.as_str()).collect();
        let answered = |source: &Source| {
            // A source that is not configured any more has no tools.
            !configured.contains(&source.to_string().as_str())
                || frame.catalogue.has_answered(source)
        };
        let tools = world.registry.iter().map(AsRef::as_ref);
        let mut diffs = lock::diff(&lock, tools, &world.objections, answered);
        // What is away is as it was approved.
        diffs.retain(|diff| {
            let source = Source::parse(&diff.source);
            diff.change == Change::Removed
                || source.is_none_or(|source| frame.catalogue.has_answered(&source))
        });
        Ok(Self { frame, lock, diffs, states })
    }

    fn all_answered(&self) -> bool {
        self.states.iter().all(|state| state.unhealthy.is_none())
    }

    /// Approves one difference.
    fn approve(&mut self, diff: &ToolDiff) {
        let world = self.frame.worlds.now();
        match world.registry.get(&diff.tool_id) {
            Some(tool) if diff.change != Change::Removed => self.lock.approve(tool),
            _ => drop(self.lock.forget(&diff.tool_id)),
        }
    }
}

/// Writes a file whole or not at all.
pub(super) fn replace_file(path: &Path, text: &str) -> Result<(), Failure> {
    crate::files::replace(path, text.as_bytes()).map_err(|error| {
        let message = format!("the file cannot be written: {error}");
        Failure::new(OUT_OF_REACH, "cannot-write", message).at(path.display().to_string())
    })
}

/// Writes approvals down, and then the lock: what is approved is on record before it counts.
async fn approve_all(
    mut compared: Compared,
    chosen: &[ToolDiff],
) -> Result<(String, LockFile), Failure> {
    chosen.iter().for_each(|diff| compared.approve(diff));
    let world = compared.frame.worlds.now();
    let (path, _) = compared.frame.loaded.lock();
    let lock = compared.lock;
    if !chosen.is_empty() {
        let gateway = Gateway::build(compared.frame).await?;
        for diff in chosen {
            let tool = world.registry.get(&diff.tool_id).map(AsRef::<RegisteredTool>::as_ref);
            let facts = json!({
                "tool": diff.tool_id,
                "source": diff.source,
                "change": diff.change,
                "verdict": diff.verdict,
                "sourceDigest": tool.map(RegisteredTool::source_digest),
            });
            if let Err(failure) = gateway.record(AuditEventKind::ToolApproved, facts).await {
                // Nothing is approved that is not on record; how the store closes changes nothing.
                let _ = gateway.shut_down().await;
                return Err(failure);
            }
        }
        gateway.shut_down().await?;
    } else {
        compared.frame.close().await;
    }
    replace_file(&path, &lock.to_text())?;
    Ok((path.display().to_string(), lock))
}

fn row(diff: &ToolDiff) -> Value {
    serde_json::to_value(diff).unwrap_or_default()
}

pub(super) async fn lock(loaded: Loaded, all: bool, format: Format) -> Result<bool, Failure> {
    let there = loaded.lock().0.is_file();
    let mut compared = Compared::of(loaded).await?;
    let diffs = std::mem::take(&mut compared.diffs);
    if there && !all && !diffs.is_empty() {
        compared.frame.close().await;
        if format.is_json() {
            output::json(
                &json!({ "ok": false, "tools": diffs.iter().map(row).collect::<Vec<_>>() }),
            );
        } else {
            output::text(&show_text(&diffs));
            crate::note(
                "nothing was written; `toolbooth lock approve TOOL` accepts a change, `toolbooth lock --all` all of them",
            );
        }
        return Ok(false);
    }
    let (suspicious, plain): (Vec<ToolDiff>, Vec<ToolDiff>) =
        diffs.into_iter().partition(|diff| !diff.suspicious.is_empty());
    let complete = suspicious.is_empty() && compared.all_answered();
    let (path, lock) = approve_all(compared, &plain).await?;
    if format.is_json() {
        output::json(&json!({
            "ok": complete,
            "file": path,
            "approved": lock.len(),
            "suspicious": suspicious.iter().map(row).collect::<Vec<_>>(),
        }));
        return Ok(complete);
    }
    output::line(&format!("{path}: {} tool(s) approved", lock.len()));
    if !suspicious.is_empty() {
        output::text(&show_text(&suspicious));
        crate::note("left out because of their text; read it, then `toolbooth lock approve TOOL`");
    }
    Ok(complete)
}

pub(super) async fn diff(loaded: Loaded, format: Format) -> Result<bool, Failure> {
    let path = loaded.lock().0;
    if !path.is_file() {
        return Err(Failure::usage("there is no lock file yet")
            .at(path.display().to_string())
            .hint("`toolbooth lock` writes one"));
    }
    let compared = Compared::of(loaded).await?;
    compared.frame.close().await;
    let (same, answered) = (compared.diffs.is_empty(), compared.all_answered());
    if format.is_json() {
        let tools: Vec<Value> = compared.diffs.iter().map(row).collect();
        let mut out = json!({ "ok": same && answered, "tools": tools });
        let away: Vec<&SourceState> =
            compared.states.iter().filter(|state| state.unhealthy.is_some()).collect();
        if let (false, Some(members)) = (away.is_empty(), out.as_object_mut()) {
            members.insert("unhealthy".to_owned(), json!(away));
        }
        output::json(&out);
    } else if same {
        let away = if answered { "" } else { ", as far as their sources answer" };
        output::line(&format!("{} tool(s), all as they were approved{away}", compared.lock.len()));
    } else {
        output::text(&show_text(&compared.diffs));
        crate::note("`toolbooth lock approve TOOL` accepts a change");
    }
    if same && !answered {
        // Nothing differs, and not everything was seen.
        return Err(Failure::silent(OUT_OF_REACH));
    }
    Ok(same)
}

pub(super) async fn approve(
    loaded: Loaded,
    tools: &[String],
    format: Format,
) -> Result<bool, Failure> {
    let mut compared = Compared::of(loaded).await?;
    let diffs = std::mem::take(&mut compared.diffs);
    let mut chosen: Vec<ToolDiff> = Vec::new();
    for given in tools {
        // `TOOL@DIGEST` approves what was shown, and nothing that the source says since.
        let (tool, shown) = match given.split_once('@') {
            Some((tool, digest)) => (tool, Some(digest)),
            None => (given.as_str(), None),
        };
        match diffs.iter().find(|diff| diff.tool_id == *tool) {
            Some(diff) => {
                let now = diff.source_digest.as_deref().unwrap_or_default();
                if let Some(shown) =
                    shown.filter(|shown| shown.len() < 8 || !now.starts_with(*shown))
                {
                    compared.frame.close().await;
                    let message =
                        format!("`{tool}` is not what `{shown}` stands for; nothing was approved");
                    return Err(Failure::new(FAILED, "changed-again", message)
                        .hint("`toolbooth lock diff` shows what its source says now"));
                }
                chosen.push(diff.clone());
            }
            None if compared.lock.get(tool).is_some() => {
                crate::note(&format!("`{tool}` is as it was approved"));
            }
            None => {
                compared.frame.close().await;
                let failure = Failure::new(
                    FAILED,
                    "unregistered-tool",
                    format!("no source lists a tool `{tool}`; nothing was approved"),
                );
                let known = diffs.iter().map(|diff| diff.tool_id.as_str());
                return Err(match nearest(tool, known) {
                    Some(near) => failure.hint(format!("did you mean `{near}`?")),
                    None => failure.hint("`toolbooth lock diff` shows what there is to approve"),
                });
            }
        }
    }
    let (path, _) = approve_all(compared, &chosen).await?;
    if format.is_json() {
        output::json(
            &json!({ "ok": true, "file": path, "tools": chosen.iter().map(row).collect::<Vec<_>>() }),
        );
        return Ok(true);
    }
    output::text(&show_text(&chosen));
    output::line(&format!("{path}: {} change(s) approved", chosen.len()));
    Ok(true)
}
