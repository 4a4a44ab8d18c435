//! Builds the executor of handlers: functions in files that long-lived workers run.
//!
//! Doc: execution.md#handlers

use std::sync::Arc;

use toolbooth_adapters::handlers::{self, HandlerFolder, Handlers};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::sandbox::ProfileSetting;
use toolbooth_contracts::Executor;
use toolbooth_contracts::contract::HANDLERS_RUNTIME;

use super::{Adapters, levels, settings};
use crate::config::{self, Loaded};
use crate::failure::Failure;

/// Adds the executor of all handlers under its own name and under the name of each handler runtime.
pub(super) fn add(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<(), Failure> {
    let refusals = adapters.refusals_of("handlers");
    let executor = Handlers::new(folders(loaded)?, levels(&loaded.config), launcher.clone());
    let executor: Arc<dyn Executor> = Arc::new(executor.with_execution_log(refusals));
    adapters.add_local(HANDLERS_RUNTIME, Arc::clone(&executor));
    for (name, runtime) in &loaded.config.runtimes {
        if runtime.kind == config::RuntimeKind::Handlers {
            adapters.add_local(name, Arc::clone(&executor));
        }
    }
    Ok(())
}

/// Returns the folders with handlers. The default folder is next to the registry file.
fn folders(loaded: &Loaded) -> Result<Vec<HandlerFolder>, Failure> {
    let mut folders = Vec::new();
    for (name, runtime) in &loaded.config.runtimes {
        if runtime.kind != config::RuntimeKind::Handlers {
            continue;
        }
        let setting = format!("runtimes.{name}");
        let wrong = |message: &str| Failure::configuration(message.to_owned()).at(setting.clone());
        if runtime.command.is_some() || runtime.cwd.is_some() {
            return Err(wrong("`command` and `cwd` belong to a runtime of kind `command`"));
        }
        let dir = runtime.dir.as_ref().ok_or_else(|| wrong("a runtime of handlers needs `dir`"))?;
        if runtime.workers == Some(0) {
            return Err(wrong("`workers` must be more than 0"));
        }
        let sandboxes = &loaded.config.sandbox;
        folders.push(HandlerFolder {
            folder: loaded.path(dir),
            language: runtime.language,
            domains: match &runtime.domains {
                config::Domains::One(all) if all == "*" => None,
                config::Domains::One(one) => Some(vec![one.clone()]),
                config::Domains::Some(domains) => Some(domains.clone()),
            },
            interpreter: runtime.interpreter.clone(),
            workers_max: runtime.workers.unwrap_or(handlers::WORKERS_MAX),
            env: settings(loaded, &runtime.env),
            sandbox: sandboxes.profile_setting(
                runtime.sandbox.as_ref(),
                &format!("{setting}.sandbox"),
                Some(&loaded.path(dir)),
            )?,
        });
    }
    if folders.iter().all(|folder| folder.domains.is_some()) {
        let (registry, _) = loaded.registry();
        folders.push(HandlerFolder {
            folder: registry.parent().unwrap_or(&loaded.folder).join("handlers"),
            language: None,
            domains: None,
            interpreter: None,
            workers_max: handlers::WORKERS_MAX,
            env: Vec::new(),
            sandbox: ProfileSetting::Unsaid,
        });
    }
    Ok(folders)
}
