//! Reads changed files again while the gateway runs.
//!
//! Doc: configuration.md#reloading

use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_registry::lock::{Approvals, Lock};
use toolbooth_registry::{Source, file};

use crate::compose::Runtime;
use crate::config::{Config, Loaded};
use crate::files::{Changes, Stamp, stamp};
use crate::registry_file;
use crate::rules;
use crate::settings;
use crate::trust::TrustFile;

/// The interval between checks of the files.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The policy that was read last.
#[derive(Default)]
struct LastRead {
    /// The configuration, whether or not its policy was refused.
    loaded: Option<Loaded>,
    /// Why it was refused.
    refusal: Option<String>,
}

/// Applies the policy of the configuration: `[flags]`, `[policy]` with its rules, `[callers]`, `[budgets]` and
/// `[trust] approval`, all or nothing. Other settings are read at the next start. A refusal is recorded once.
async fn reload_policy(runtime: &Runtime, last: &mut LastRead) {
    let loaded = &runtime.offline.loaded;
    let read = loaded.read_again().and_then(|now| {
        let now = last.loaded.insert(now);
        let authorizer = settings::authorizer(now)?;
        let world = runtime.offline.worlds.now();
        if authorizer.version() == world.policy().version() {
            // What does not fit it is in quarantine already.
            return Ok((rest(&now.config), None));
        }
        let mut fit = world.fit_of(&authorizer);
        // A tool that is quarantined holds up nothing: it stays in quarantine if the rules do not fit it.
        fit.findings.retain(|finding| {
            !finding.tool.as_ref().is_some_and(|tool| world.is_quarantined(tool))
        });
        rules::check(&fit)?;
        Ok((rest(&now.config), Some(authorizer)))
    });
    let (rest_now, authorizer) = match read {
        Ok(read) => read,
        Err(failure) => {
            let shown_path =
                failure.path.map(|shown_path| format!("{shown_path}: ")).unwrap_or_default();
            let reason = format!("{shown_path}{}", failure.message);
            if last.refusal.as_ref() == Some(&reason) {
                return;
            }
            tracing::error!(reason, "the policy is refused, the last good one stays");
            last.refusal = Some(reason.clone());
            let facts = json!({ "reason": reason });
            return runtime.record_event(AuditEventKind::PolicyRejected, facts).await;
        }
    };
    last.refusal = None;
    if rest_now != rest(&loaded.config) {
        tracing::warn!(
            "settings other than the policy have changed; they are read at the next start"
        );
    }
    let Some(authorizer) = authorizer else { return };
    let version = authorizer.version().to_owned();
    // Callers have the credentials of the set that gives them their rights.
    if let Some(Err(failure)) =
        last.loaded.as_ref().map(|now| runtime.offline.callers.replace(&now.config))
    {
        tracing::error!(reason = failure.message, "the policy is refused, the last good one stays");
        return;
    }
    runtime.offline.catalogue.edit(|world| world.set_policy(authorizer)).await;
    rules::report_warnings(runtime.offline.worlds.now().rule_fit());
    tracing::info!(policy.version = version, "the policy is loaded");
    let facts = json!({ "policyVersion": version });
    runtime.record_event(AuditEventKind::PolicyLoaded, facts).await;
}

/// Returns the settings that are not reloaded, for comparison.
fn rest(config: &Config) -> String {
    let mut rest = config.clone();
    // The callers of a set with secrets are those of the start.
    let with_secrets = rest.callers.iter().filter(|(_, set)| !set.secrets.is_empty());
    let secrets: Vec<_> = with_secrets
        .map(|(name, set)| (name.clone(), set.matches.clone(), set.secrets.clone()))
        .collect();
    (rest.flags, rest.policy, rest.budgets) = Default::default();
    rest.callers.clear();
    rest.trust.approval.clear();
    format!("{rest:?} {secrets:?}")
}

/// Reads everything again at SIGHUP, and asks every source.
pub(super) async fn on_signal(runtime: &Runtime) {
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else { return };
    while hang_up.recv().await.is_some() {
        reload_registry(runtime).await;
        reload_lock(runtime).await;
        // The rules may name tools that the reloaded registry added.
        reload_policy(runtime, &mut LastRead::default()).await;
        runtime.offline.catalogue.refresh_all().await;
    }
}

/// Applies a valid edit of the policy in the configuration, of the registry file, of the lock or of the pins
/// within a second. Reports an invalid edit and continues with the last valid version.
pub(super) async fn watch_files(runtime: &Runtime) {
    let loaded = &runtime.offline.loaded;
    let (registry, lock, pins) = (loaded.registry().0, loaded.lock(), loaded.pins().path());
    let trusted = TrustFile::of_user();
    let trusted = trusted.as_ref().map(TrustFile::path);
    // The first check treats all files as new, because they can have changed since they were read at start.
    let mut known: ([Stamp; 2], [Stamp; 2]) = ([None, None], [None, None]);
    let (mut own, mut last) = (Changes::default(), LastRead::default());
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        // The content of the registry file is used once it is trusted.
        let now = ([stamp(&registry), trusted.and_then(stamp)], [stamp(&lock), stamp(&pins)]);
        if now.0 != known.0 {
            reload_registry(runtime).await;
        }
        if now.1 != known.1 {
            reload_lock(runtime).await;
        }
        known = now;
        let file = loaded.file.as_deref().and_then(stamp);
        let rules = rules::stamps(last.loaded.as_ref().unwrap_or(loaded));
        // A policy that was refused is read again when the tools have changed.
        let tools = last.refusal.as_ref().map(|_| runtime.offline.worlds.now().generation());
        if own.look((file, now.0[1], rules, tools)) {
            reload_policy(runtime, &mut last).await;
        }
    }
}

/// Applies approvals while the doors are open. If the lock or the pins are missing, the previous approvals
/// remain, because removing the file must not approve the tools that it rejected.
async fn reload_lock(runtime: &Runtime) {
    let loaded = &runtime.offline.loaded;
    let read = |now: &Approvals| match settings::approvals(loaded) {
        Ok(approvals) if approvals.lock == now.lock => None,
        Ok(approvals) => match (&now.lock, &approvals.lock) {
            (Lock::File(_), Lock::FirstUse(_) | Lock::Missing | Lock::Off) => {
                tracing::error!(
                    "the lock file is missing; its approvals stay in force until the next start"
                );
                None
            }
            (Lock::FirstUse(_), Lock::FirstUse(_)) if !loaded.pins().path().exists() => {
                tracing::error!(
                    "the pins file is missing; its approvals stay in force until the next start"
                );
                None
            }
            _ => {
                tracing::info!("the lock is loaded");
                Some(approvals)
            }
        },
        Err(failure) => {
            tracing::error!(
                reason = failure.message,
                "the lock is refused, the last good one stays"
            );
            None
        }
    };
    runtime.offline.catalogue.approve_with(read).await;
    runtime.record_discovered().await;
}

/// Whether there are tools of the registry file.
fn has_registry_file(runtime: &Runtime) -> bool {
    let world = runtime.offline.worlds.now();
    world.registry().iter().any(|tool| *tool.source() == Source::File)
}

async fn reload_registry(runtime: &Runtime) {
    let loaded = &runtime.offline.loaded;
    let guard = runtime.offline.catalogue.guard();
    let rejected = |message: String| async move {
        tracing::error!(reason = message, "the registry file is refused, the last good one stays");
        runtime.record_event(AuditEventKind::RegistryRejected, json!({ "reason": message })).await;
    };
    let tools = match registry_file::read(loaded) {
        Ok(Some((name, text))) => match file::load(&text, &name, guard) {
            Ok(read) => match loaded.admits(&read.tools) {
                Ok(()) => read.tools,
                Err(failure) => return rejected(failure.message).await,
            },
            Err(error) => return rejected(error.to_string()).await,
        },
        // Without its contracts, tools of servers and commands would be callable with less checked.
        Ok(None) if has_registry_file(runtime) => {
            return rejected("it is missing; its tools stay until the next start".to_owned()).await;
        }
        Ok(None) => Vec::new(),
        Err(failure) => return rejected(failure.message).await,
    };
    let count = tools.len();
    let replaced = runtime.offline.catalogue.replace_source(&Source::File, tools).await;
    if !replaced.changed {
        return;
    }
    runtime.record_replaced(&replaced.replaced).await;
    tracing::info!(tools = count, "the registry file is loaded");
    runtime.record_event(AuditEventKind::RegistryLoaded, json!({ "fromFile": count })).await;
}
