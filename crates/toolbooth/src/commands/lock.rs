//! `lock`, `lock diff`, `lock approve`: compare and approve the tool descriptions of servers and commands.
//!
//! Doc: registry.md#the-lock

use std::collections::HashSet;

use serde_json::{Value, json};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_proxy::SourceState;
use toolbooth_registry::lock::{self, Change, Lock, LockFile, ToolDiff, show_text};
use toolbooth_registry::{RegisteredTool, Source};

use crate::compose::Runtime;
use crate::config::lock::LockMode;
use crate::failure::{Failure, OUT_OF_REACH};
use crate::offline::{OfflineGateway, report_assumptions};
use crate::output::{self, Format};
use crate::settings::{check_replicas, read_lock_file};
use crate::trust::Trusted;
use crate::{operator_socket, terminal};
use selection::{Selection, choose};
pub(super) use writing::replace_file;
use writing::{write_lock, write_pins};

mod selection;
mod writing;

/// The current listings of the sources, compared with the lock file, or with the pins if there is none.
struct Compared {
    offline: OfflineGateway,
    /// The mode and the approved tools before the sources were asked.
    before: Lock,
    /// The approved tools that the sources are compared with.
    lock: LockFile,
    diffs: Vec<ToolDiff>,
    /// Tools that a running gateway has otherwise than they are approved.
    replaced: HashSet<String>,
    states: Vec<SourceState>,
}

impl Compared {
    async fn of(loaded: Trusted) -> Result<Self, Failure> {
        report_assumptions(&loaded);
        let offline = OfflineGateway::build(loaded).await?;
        let before = offline.worlds.now().approvals().lock.clone();
        let lock = match &before {
            Lock::File(lock) | Lock::FirstUse(lock) => lock.clone(),
            // The file has no effect in this mode, but it must not be overwritten without a request.
            Lock::Off => read_lock_file(&offline.loaded)?.unwrap_or_else(LockFile::empty),
            Lock::Missing => LockFile::empty(),
        };
        let states = offline.catalogue.refresh_all().await;
        for state in &states {
            if let Some(reason) = &state.unhealthy {
                crate::notice(&format!(
                    "{} does not answer, its tools stay: {reason}",
                    state.source
                ));
            }
            for problem in &state.problems {
                crate::notice(&format!("{}: {problem}", state.source));
            }
        }
        let (mut running, mut replaced) = (HashSet::new(), HashSet::new());
        for definitions in operator_socket::definitions(&offline.loaded.data).await {
            let added = offline.catalogue.add_definitions(&definitions).await;
            running.extend(added.new);
            replaced.extend(added.replaced);
        }
        running.extend(replaced.iter().cloned());
        let world = offline.worlds.now();
        let configured: Vec<&str> = states.iter().map(|state| state.source.as_str()).collect();
        let pinned = matches!(before, Lock::FirstUse(_));
        let answered = |source: &Source| {
            // A source that is not configured any more has no tools, but its pins remain.
            (!pinned && !configured.contains(&source.to_string().as_str()))
                || offline.catalogue.has_answered(source)
        };
        let tools = world.registry().iter().map(AsRef::as_ref);
        let mut diffs = lock::diff(&lock, tools, world.objections(), answered);
        let items = world.items().iter().map(AsRef::as_ref);
        diffs.extend(lock::diff_items(&lock, items, world.objections(), answered));
        // The tools of an unavailable source count as unchanged.
        diffs.retain(|diff| {
            let source = Source::parse(&diff.source);
            diff.change == Change::Removed
                || running.contains(&diff.tool_id)
                || source.is_none_or(|source| offline.catalogue.has_answered(&source))
        });
        let running = diffs.iter().filter(|diff| running.contains(&diff.tool_id)).count();
        if running > 0 {
            crate::notice(&format!(
                "{running} tool(s) are as a running gateway has them: its copies of their servers changed while they ran"
            ));
        }
        Ok(Self { offline, before, lock, diffs, replaced, states })
    }

    /// Whether a difference is approved only by its own name: what a running gateway has can be older than the approval.
    fn needs_its_name(&self, diff: &ToolDiff) -> bool {
        let needs = self.replaced.contains(&diff.tool_id);
        if needs {
            crate::notice(&format!(
                "`{}` is left out: a running gateway has it otherwise than it is approved, and may have an earlier copy; \
                 restart the gateway, or approve it by its id",
                diff.tool_id
            ));
        }
        needs
    }

    fn all_answered(&self) -> bool {
        self.states.iter().all(|state| state.unhealthy.is_none())
    }

    /// Whether the next listing of the source pins the tool without an approval.
    fn is_first_use(&self, diff: &ToolDiff) -> bool {
        let Lock::FirstUse(pins) = &self.before else { return false };
        let is_item = lock::locked_id(&diff.tool_id).is_some();
        let seen = Source::parse(&diff.source).is_none_or(|source| match is_item {
            true => pins.has_seen_items(&source),
            false => pins.has_seen(&source),
        });
        diff.change == Change::New && !seen && diff.suspicious.is_empty()
    }

    /// Approves one difference.
    fn approve(&self, lock: &mut LockFile, diff: &ToolDiff) {
        let world = self.offline.worlds.now();
        let there = diff.change != Change::Removed;
        match (world.registry().get(&diff.tool_id), world.items().locked(&diff.tool_id)) {
            (Some(tool), _) if there => lock.approve(tool),
            (_, Some(item)) if there => lock.approve_item(item),
            _ => drop(lock.forget(&diff.tool_id)),
        }
    }

    /// Records approvals, which are valid only once they are recorded. Closes the gateway and returns its
    /// configuration.
    async fn record(self, chosen: &[ToolDiff]) -> Result<Trusted, Failure> {
        let world = self.offline.worlds.now();
        let loaded = self.offline.loaded.clone();
        if chosen.is_empty() {
            self.offline.close().await;
            return Ok(loaded);
        }
        let runtime = Runtime::build(self.offline).await?;
        for diff in chosen {
            let tool = world.registry().get(&diff.tool_id).map(AsRef::<RegisteredTool>::as_ref);
            let facts = json!({
                "tool": diff.tool_id,
                "source": diff.source,
                "change": diff.change,
                "verdict": diff.verdict,
                "sourceDigest": tool.map(RegisteredTool::source_digest).or_else(|| {
                    world.items().locked(&diff.tool_id).map(|item| item.source_digest())
                }),
            });
            if let Err(failure) = runtime.record(AuditEventKind::ToolApproved, facts).await {
                // An approval that is not recorded is not valid. An error of closing the store does not
                // change that.
                let _ = runtime.shut_down().await;
                return Err(failure);
            }
        }
        runtime.shut_down().await?;
        Ok(loaded)
    }
}

/// Returns the number of tools, and of prompts, resources and templates of a lock as text.
fn counted(lock: &LockFile) -> String {
    match lock.items_len() {
        0 => format!("{} tool(s)", lock.len()),
        items => format!("{} tool(s) and {items} prompt(s) and resource(s)", lock.len()),
    }
}

fn row(diff: &ToolDiff) -> Value {
    serde_json::to_value(diff).unwrap_or_default()
}

pub(super) async fn lock(loaded: Trusted, all: bool, format: Format) -> Result<bool, Failure> {
    let there = loaded.lock().is_file();
    let mut compared = Compared::of(loaded).await?;
    if compared.states.is_empty() && !there {
        compared.offline.close().await;
        if format.is_json() {
            output::json(&json!({ "ok": true, "approved": 0, "suspicious": [] }));
        } else {
            output::line("there are no servers and no commands to lock; nothing was written");
        }
        return Ok(true);
    }
    let mut diffs = std::mem::take(&mut compared.diffs);
    let mut left_out = Vec::new();
    if all {
        (left_out, diffs) = diffs.into_iter().partition(|diff| compared.needs_its_name(diff));
    }
    // A tool that its pin quarantines needs its own approval.
    let asks = |diff: &ToolDiff| {
        let pinned = match &compared.before {
            Lock::FirstUse(_) => {
                diff.change != Change::Removed
                    && !compared.is_first_use(diff)
                    && (diff.change != Change::New || diff.suspicious.is_empty())
            }
            _ => false,
        };
        there || pinned
    };
    if !all && diffs.iter().any(asks) {
        compared.offline.close().await;
        if format.is_json() {
            output::json(
                &json!({ "ok": false, "tools": diffs.iter().map(row).collect::<Vec<_>>() }),
            );
        } else {
            output::text(&show_text(&diffs));
            crate::notice(
                "nothing was written; `toolbooth lock approve TOOL` accepts a change, `toolbooth lock --all` all of them",
            );
        }
        return Ok(false);
    }
    let off = compared.before == Lock::Off;
    let (suspicious, plain): (Vec<ToolDiff>, Vec<ToolDiff>) =
        diffs.into_iter().partition(|diff| !diff.suspicious.is_empty());
    let complete = suspicious.is_empty() && compared.all_answered();
    let (path, lock) = write_lock(compared, &plain, true).await?;
    if off {
        crate::notice("the lock is off: the file counts once `[lock] mode` is taken out");
    }
    if format.is_json() {
        output::json(&json!({
            "ok": complete,
            "file": path,
            "approved": lock.len(),
            "approvedItems": lock.items_len(),
            "suspicious": suspicious.iter().map(row).collect::<Vec<_>>(),
            "leftOut": left_out.iter().map(row).collect::<Vec<_>>(),
        }));
        return Ok(complete);
    }
    output::line(&format!("{path}: {} approved", counted(&lock)));
    if !suspicious.is_empty() {
        output::text(&show_text(&suspicious));
        crate::notice(
            "left out because of their text; read it, then `toolbooth lock approve TOOL`",
        );
    }
    Ok(complete)
}

pub(super) async fn diff(loaded: Trusted, format: Format) -> Result<bool, Failure> {
    let (file, pins) = (loaded.lock(), loaded.pins().path());
    let pinned = loaded.lock_mode() == LockMode::FirstUse && pins.exists();
    if !file.is_file() && !pinned {
        return Err(Failure::usage("there is neither a lock file nor a pin to compare with")
            .at(file.display().to_string())
            .hint("`toolbooth lock` writes a lock file"));
    }
    let mut compared = Compared::of(loaded).await?;
    compared.offline.close().await;
    let diffs = std::mem::take(&mut compared.diffs);
    let (first, diffs): (Vec<ToolDiff>, Vec<ToolDiff>) =
        diffs.into_iter().partition(|diff| compared.is_first_use(diff));
    if !first.is_empty() {
        crate::notice(&format!("the next listing pins {} tool(s) at first use", first.len()));
    }
    let (same, answered) = (diffs.is_empty(), compared.all_answered());
    if format.is_json() {
        let tools: Vec<Value> = diffs.iter().map(row).collect();
        let mut out = json!({ "ok": same && answered, "tools": tools });
        let away: Vec<&SourceState> =
            compared.states.iter().filter(|state| state.unhealthy.is_some()).collect();
        if let (false, Some(members)) = (away.is_empty(), out.as_object_mut()) {
            members.insert("unhealthy".to_owned(), json!(away));
        }
        output::json(&out);
    } else if same {
        let away = if answered { "" } else { ", as far as their sources answer" };
        let how = if pinned { "pinned" } else { "approved" };
        output::line(&format!("{}, all as they were {how}{away}", counted(&compared.lock)));
    } else {
        output::text(&show_text(&diffs));
        crate::notice("`toolbooth lock approve TOOL` accepts a change");
    }
    if same && !answered {
        // There is no difference, but not every source was checked.
        return Err(Failure::silent(OUT_OF_REACH));
    }
    Ok(same)
}

pub(super) async fn approve(
    loaded: Trusted,
    tools: &[String],
    yes: bool,
    format: Format,
) -> Result<bool, Failure> {
    let mut named = Vec::new();
    for given in tools {
        named.push((given.clone(), Selection::of(given)?));
    }
    match loaded.lock_mode() {
        LockMode::Off => {
            return Err(Failure::usage("the lock is off: no tool needs an approval")
                .at("lock.mode")
                .hint("take `mode = \"off\"` out of `[lock]` first"));
        }
        LockMode::FirstUse => check_replicas(&loaded)?,
        LockMode::File => (),
    }
    // A digest identifies the approved description. Without one, a user must see it.
    let shown = named.iter().all(|(_, named)| matches!(named, Selection::Tool(_, Some(_))));
    let asks = !yes && !shown;
    if asks && !terminal::can_ask(format) {
        return Err(Failure::usage("there is no terminal to ask on; nothing was approved").hint(
            "`--yes` approves without asking; `TOOL@DIGEST` approves exactly what `toolbooth lock \
             diff` has shown",
        ));
    }
    let compared = Compared::of(loaded).await?;
    let chosen = match choose(&compared, &named) {
        Ok(chosen) => chosen,
        Err(failure) => {
            compared.offline.close().await;
            return Err(failure);
        }
    };
    if !format.is_json() {
        output::text(&show_text(&chosen));
    }
    if asks
        && !chosen.is_empty()
        && !terminal::confirm(&format!("approve {} change(s)?", chosen.len()))
    {
        compared.offline.close().await;
        crate::notice("nothing was approved");
        return Ok(false);
    }
    // Unchanged tools are recorded again, because their event can be missing.
    let same: Vec<&str> = named
        .iter()
        .filter_map(|(_, named)| match named {
            Selection::Tool(id, _) if !chosen.iter().any(|diff| diff.tool_id == *id) => Some(*id),
            _ => None,
        })
        .collect();
    let path = match &compared.before {
        Lock::FirstUse(_) => write_pins(compared, &chosen, &same).await?,
        _ => write_lock(compared, &chosen, false).await?.0,
    };
    if format.is_json() {
        output::json(
            &json!({ "ok": true, "file": path, "tools": chosen.iter().map(row).collect::<Vec<_>>() }),
        );
        return Ok(true);
    }
    output::line(&format!("{path}: {} change(s) approved", chosen.len()));
    Ok(true)
}
