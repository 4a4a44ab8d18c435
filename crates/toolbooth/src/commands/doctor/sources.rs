//! `doctor`: checks every source, the lock, and which tools can run.

use std::path::PathBuf;

use toolbooth_adapters::mcp::ServerTransport;
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_registry::lock::Lock;

use super::{Check, bad, ok};
use crate::config::Loaded;
use crate::executors;
use crate::import::containment::{Containment, folders};
use crate::offline::OfflineGateway;

/// Returns the hint for a source that does not respond.
fn remedy_of(loaded: &Loaded, source: &str, reason: &str) -> &'static str {
    let server = source.strip_prefix("mcp:").and_then(|name| loaded.config.servers.get(name));
    if server.is_some_and(|server| server.url.is_some()) {
        // The reason can contain text of the server.
        "see whether a server answers at its `url` and accepts the configured headers, or set `enabled = false`"
    } else if reason.contains("could not be started") || reason.contains("memory than it may") {
        "fix the named files, or its `sandbox`"
    } else if reason.contains("is not there") {
        "install it, or mend `command`"
    } else if reason.contains("sandbox is required") {
        "mend what is missing above, or write `sandbox = { base = \"server\", enforce = \"best-effort\" }`"
    } else if reason.contains("the sandbox profile")
        || reason.contains("the sandbox refused")
        || reason.contains("container engine")
    {
        "its sandbox stopped it; write the line that is named where you trust the server with that"
    } else {
        "start it by hand with the same command, or set `enabled = false`"
    }
}

/// Returns the setting that lets a server write to the folders that its arguments name.
fn write_hint(loaded: &Loaded, source: &str) -> Option<String> {
    let name = source.strip_prefix("mcp:")?;
    let server = loaded.config.servers.get(name).filter(|server| server.sandbox.is_none())?;
    let ServerTransport::Stdio(child) =
        executors::server_settings(loaded, name, server).ok()?.transport
    else {
        return None;
    };
    let profile = child.profile.as_ref()?;
    let folders = folders(&child, profile).into_iter().filter(|folder| !folder.is_wide);
    let write: Vec<PathBuf> = folders.map(|folder| folder.path).collect();
    let first = write.first()?.display().to_string();
    let line = Containment { enforce: profile.enforce, read: Vec::new(), write }.line();
    Some(format!("it reads {first}; where it should write it: `{line}`"))
}

/// Lists the tools of every source, and checks them against the lock and the registry.
pub(super) async fn check(offline: &OfflineGateway, checks: &mut Vec<Check>) {
    // Pins from the listings below are not stored.
    let before = offline.worlds.now().approvals().lock.clone();
    offline.catalogue.want_states().await;
    for state in offline.catalogue.refresh_all().await {
        checks.push(match &state.unhealthy {
            Some(reason) => bad(
                state.source.clone(),
                "failed",
                reason.clone(),
                remedy_of(&offline.loaded, &state.source, reason),
            ),
            None if state.problems.is_empty() && state.quarantined.is_empty() => Check {
                remedy: write_hint(&offline.loaded, &state.source),
                ..ok(state.source.clone(), format!("{} tool(s)", state.tools))
            },
            None if !state.quarantined.is_empty() => bad(
                state.source.clone(),
                "warning",
                format!(
                    "{} tool(s), in quarantine: {}{}",
                    state.tools,
                    state.quarantined.join("; "),
                    match state.problems.join("; ") {
                        none if none.is_empty() => none,
                        problems => format!("; left out: {problems}"),
                    }
                ),
                "`toolbooth lock diff` shows what changed, `toolbooth lock approve TOOL` accepts it",
            ),
            None => bad(
                state.source.clone(),
                "warning",
                format!("{} tool(s), left out: {}", state.tools, state.problems.join("; ")),
                "mend the server, or deny the tool",
            ),
        });
    }
    checks.push(lock(offline, &before));
    let coverage = offline.catalogue.coverage(false).await;
    offline.close().await;
    checks.push(ok(
        "registry",
        format!("{} tool(s), {} can run", coverage.totals.total, coverage.totals.real),
    ));
    for row in coverage.tools.iter().filter(|row| row.state == CoverageState::NotConfigured) {
        let reason = row.reason.clone().unwrap_or_default();
        checks.push(bad(row.tool_id.clone(), "warning", "not configured", reason));
    }
}

/// Describes the effect of the lock mode on the tools of sources.
fn lock(offline: &OfflineGateway, before: &Lock) -> Check {
    if offline.catalogue.sources().next().is_none() {
        return ok("lock", "no tools that need one");
    }
    let path = offline.loaded.lock().display().to_string();
    match before {
        Lock::File(lock) => {
            ok("lock", format!("mode file: {} tool(s) approved in {path}", lock.len()))
        }
        Lock::Missing => bad(
            "lock",
            "failed",
            format!("mode file: {path} is missing, every discovered tool is quarantined"),
            "run `toolbooth lock`; it writes the file",
        ),
        Lock::Off => bad(
            "lock",
            "warning",
            "mode off: discovered tools are accepted as their sources describe them",
            "take `mode = \"off\"` out of `[lock]`; the first listing of each source is pinned then",
        ),
        Lock::FirstUse(pins) => {
            let unseen: Vec<String> = offline
                .catalogue
                .sources()
                .filter(|source| !pins.has_seen(source))
                .map(ToString::to_string)
                .collect();
            let pinned = format!(
                "mode first-use: {} tool(s) of {} source(s) pinned in {}",
                pins.len(),
                pins.sources_seen(),
                offline.loaded.pins().path().display()
            );
            let pinned = match pins.unrecorded().len() {
                0 => pinned,
                more => format!("{pinned}; {more} not on record until a gateway starts"),
            };
            if unseen.is_empty() {
                return ok("lock", pinned);
            }
            ok("lock", format!("{pinned}; the next listing pins {}", unseen.join(", ")))
        }
    }
}
