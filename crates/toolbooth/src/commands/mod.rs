//! The commands, one file for each area.

mod approvals;
mod audit;
mod call;
mod check;
mod doctor;
mod hook;
mod import;
mod judge;
mod keys;
mod lock;
mod maintenance;
mod orders;
#[cfg(feature = "parquet")]
mod parquet;
mod pause;
mod policy;
mod receipts;
mod records;
mod reload;
mod replay;
mod serve;
mod signals;
mod store;
mod tools;
mod trust;

use crate::cli::{Approvals, Audit, Cli, Command, Keys, LockAction, Policy, Receipts, Store};
use crate::config::{self, LockUse};
use crate::failure::Failure;
use crate::offline::{self, OfflineGateway};
use crate::trust::{Gate, Trusted, UNTRUSTED};

/// Runs a command; `false` if the call or check failed.
pub(crate) async fn run(cli: Cli) -> Result<bool, Failure> {
    let Cli { global, command } = cli;
    let (configuration, data) = (global.config.as_deref(), global.data.as_deref());
    let load = || config::load(configuration, data);
    let is_silent = matches!(command, Command::Stdio { .. } | Command::Hook(_));
    let gate = Gate { named: global.trust, is_silent };
    let trusted = || {
        offline::prepare_guard();
        gate.require(load()?)
    };
    let of_records = |writes| gate.for_records(load()?, writes);
    match command {
        Command::Init => check::init(&gate),
        Command::Trust { path, yes, show, forget, list, shown } => {
            let action = match (yes, show) {
                (true, _) => trust::TrustAction::Yes,
                (_, true) => trust::TrustAction::Show,
                _ => trust::TrustAction::Ask,
            };
            match (list, forget) {
                (true, _) => trust::list(shown.format),
                (_, true) => trust::forget(path.as_deref(), configuration, shown.format),
                _ => trust::trust(path.as_deref(), (configuration, data), action, shown.format),
            }
        }
        Command::Check { file, shown } => check::check(file, shown.format, load).await,
        Command::List { caller, limit, after, shown } => {
            tools::list(offline(trusted()?).await?, &caller, limit, after.as_deref(), shown.format)
                .await
        }
        Command::Show { tool, caller, shown } => {
            tools::show(offline(trusted()?).await?, &tool, &caller, shown.format).await
        }
        Command::Call { tool, args, context, explain, shown } => {
            call::call(trusted()?, &tool, &args, context, explain, shown.format).await
        }
        Command::Plan { plan, caller, shown } => {
            call::plan(trusted()?, &plan, &caller, shown.format).await
        }
        Command::Serve { http } => serve::serve(trusted()?, http).await,
        Command::Stdio { toolset } => match trusted() {
            Err(failure) if failure.code == UNTRUSTED => serve::refuse_stdio(failure).await,
            trusted => serve::stdio(trusted?, toolset).await,
        },
        Command::Search { query, caller, limit, shown } => {
            tools::search(offline(trusted()?).await?, &query, &caller, limit, shown.format).await
        }
        Command::Discover { source, write, shown } => {
            tools::discover(offline(trusted()?).await?, &source, write, shown.format).await
        }
        Command::Lock { action, all, shown } => {
            let loaded = trusted()?.using_lock(LockUse::Write);
            match action {
                None => lock::lock(loaded, all, shown.format).await,
                Some(LockAction::Diff { shown }) => lock::diff(loaded, shown.format).await,
                Some(LockAction::Approve { tools, yes, shown }) => {
                    lock::approve(loaded, &tools, yes, shown.format).await
                }
            }
        }
        Command::Hook(hook) if let Some(parent) = hook.decide => {
            crate::hook::end_with(parent)?;
            hook::decide(hook.client.into(), hook.limit(), trusted()).await
        }
        Command::Hook(hook) if hook.settings => {
            hook::settings(hook.client.into(), hook.limit(), &load()?, data, hook.shown.format)
        }
        Command::Hook(hook) => {
            let loaded = trusted()?.using_lock(LockUse::Look);
            hook::list(hook.client.into(), offline(loaded).await?, hook.shown.format).await
        }
        Command::Import(what) => {
            import::import(what, import::NamedPaths { configuration, data }, &gate).await
        }
        Command::Export { form, strict, caller } => {
            tools::export(offline(trusted()?).await?, form, strict, &caller).await
        }
        Command::Coverage { check, probe, format } => {
            let loaded = trusted()?.using_lock(LockUse::Look);
            tools::coverage(offline(loaded).await?, check, probe, format).await
        }
        Command::Worker { at_once } => serve::worker(trusted()?, at_once).await,
        Command::Audit(command) => {
            let writes = matches!(command, Audit::AcceptRestore { .. });
            audit::audit(of_records(writes)?, command).await
        }
        Command::Logs(logs) => records::logs(of_records(false)?, logs).await,
        Command::Receipts(command) => {
            let writes = matches!(command, Receipts::Resolve { .. } | Receipts::Prune { .. });
            receipts::receipts(of_records(writes)?, command).await
        }
        Command::Approvals(command) => {
            let writes = matches!(command, Approvals::Approve { .. } | Approvals::Reject { .. });
            approvals::approvals(of_records(writes)?, command).await
        }
        Command::Keys(command) => {
            let writes = !matches!(command, Keys::List { .. });
            keys::keys(of_records(writes)?, command).await
        }
        Command::Pause { list: true, shown, .. } => {
            pause::list(&*of_records(false)?, shown.format).await
        }
        Command::Pause { target, now, reason, shown, .. } => {
            pause::pause(of_records(true)?, target, now, reason, shown.format).await
        }
        Command::Resume { target, shown } => {
            pause::resume(of_records(true)?, target, shown.format).await
        }
        Command::Policy(Policy::Check { shown }) => {
            let loaded = trusted()?.using_lock(LockUse::Look);
            policy::check(OfflineGateway::build_for_check(loaded).await?, shown.format).await
        }
        Command::Policy(Policy::Explain { tool, call, args, context, shown }) => {
            let loaded = trusted()?.using_lock(LockUse::Look);
            let offline = offline(loaded).await?;
            match call {
                Some(call) => replay::explain(offline, &call, shown.format).await,
                None => {
                    let tool = tool.unwrap_or_default();
                    policy::explain(offline, &tool, &args, *context, shown.format).await
                }
            }
        }
        Command::Policy(Policy::Diff { before, after, shown }) => {
            // Only the records have earlier versions.
            if [&before, &after].into_iter().any(|argument| policy::is_version(argument)) {
                let loaded = of_records(false)?;
                return policy::diff(&loaded, &before, &after, shown.format).await;
            }
            policy::diff(&load()?, &before, &after, shown.format).await
        }
        Command::Policy(Policy::Replay { since, policy, shown }) => {
            let loaded = trusted()?.using_lock(LockUse::Look);
            let offline = OfflineGateway::build_for_check(loaded).await?;
            replay::replay(offline, &since, policy.as_deref(), shown.format).await
        }
        Command::Store(command) => {
            let writes = !matches!(command, Store::Backup { .. });
            store::store(of_records(writes)?, command).await
        }
        Command::Doctor { shown } => {
            let loaded = match trusted() {
                Err(failure) if failure.code == UNTRUSTED => return Err(failure),
                loaded => loaded.map(|loaded| loaded.using_lock(LockUse::Look)),
            };
            doctor::doctor(loaded, shown.format).await
        }
    }
}

async fn offline(loaded: Trusted) -> Result<OfflineGateway, Failure> {
    offline::report_assumptions(&loaded);
    OfflineGateway::build(loaded).await
}

/// Returns an argument that is literal text, `@FILE`, or `-` for standard input.
pub(crate) fn text_argument(given: &str) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    const BYTES_MAX: u64 = 64 << 20;
    let mut text = Vec::new();
    if given == "-" {
        std::io::stdin()
            .lock()
            .take(BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
        return Ok(text);
    }
    match given.strip_prefix('@') {
        Some(path) => std::fs::read(path).map_err(|error| {
            Failure::usage(format!("the file cannot be read: {error}")).at(path.to_owned())
        }),
        None => Ok(given.as_bytes().to_vec()),
    }
}
