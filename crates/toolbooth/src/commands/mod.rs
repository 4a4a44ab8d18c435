//! The commands, one file for each room of the house.

mod audit;
mod call;
mod check;
mod doctor;
mod import;
mod lock;
#[cfg(feature = "parquet")]
mod parquet;
mod receipts;
mod records;
mod serve;
mod store;
mod tools;

use crate::cli::{Cli, Command, LockAction};
use crate::compose::{self, Frame};
use crate::config::{self, Loaded, LockUse};
use crate::failure::Failure;

/// Runs a command; `false` where the call or check failed.
pub(crate) async fn run(cli: Cli) -> Result<bool, Failure> {
    let Cli { global, command } = cli;
    let load = || config::load(global.config.as_deref(), global.data.as_deref());
    match command {
        Command::Init => check::init(),
        Command::Check { file, shown } => check::check(file, shown.format, load).await,
        Command::List { caller, limit, after, shown } => {
            tools::list(frame(load()?).await?, &caller, limit, after.as_deref(), shown.format).await
        }
        Command::Show { tool, caller, shown } => {
            tools::show(frame(load()?).await?, &tool, &caller, shown.format).await
        }
        Command::Call { tool, args, context, explain, shown } => {
            call::call(load()?, &tool, &args, context, explain, shown.format).await
        }
        Command::Plan { plan, caller, shown } => {
            call::plan(load()?, &plan, &caller, shown.format).await
        }
        Command::Serve { http } => serve::serve(load()?, http).await,
        Command::Stdio { toolset } => serve::stdio(load()?, toolset).await,
        Command::Search { query, caller, limit, shown } => {
            tools::search(frame(load()?).await?, &query, &caller, limit, shown.format).await
        }
        Command::Discover { source, write, shown } => {
            tools::discover(frame(load()?).await?, &source, write, shown.format).await
        }
        Command::Lock { action, all, shown } => match action {
            None => lock::lock(to_write(load()?), all, shown.format).await,
            Some(LockAction::Diff { shown }) => lock::diff(to_write(load()?), shown.format).await,
            Some(LockAction::Approve { tools, yes, shown }) => {
                lock::approve(to_write(load()?), &tools, yes, shown.format).await
            }
        },
        Command::Import(what) => {
            let places = import::Places {
                configuration: global.config.as_deref(),
                data: global.data.as_deref(),
            };
            import::import(what, places, load).await
        }
        Command::Export { form, strict, caller } => {
            tools::export(frame(load()?).await?, form, strict, &caller).await
        }
        Command::Coverage { check, probe, format } => {
            let loaded = Loaded { lock_use: LockUse::Look, ..load()? };
            tools::coverage(frame(loaded).await?, check, probe, format).await
        }
        Command::Worker { at_once } => serve::worker(load()?, at_once).await,
        Command::Audit(command) => audit::audit(load()?, command).await,
        Command::Logs(logs) => records::logs(load()?, logs).await,
        Command::Receipts(command) => receipts::receipts(load()?, command).await,
        Command::Store(command) => store::store(load()?, command).await,
        Command::Doctor { shown } => {
            let (config, data) = (global.config.as_deref(), global.data.as_deref());
            let loaded = config::load(config, data);
            let loaded = loaded.map(|loaded| Loaded { lock_use: LockUse::Look, ..loaded });
            doctor::doctor(loaded, shown.format).await
        }
    }
}

/// Whether `[retention]` can be understood, before anything starts with it.
pub(crate) fn check_retention(loaded: &Loaded) -> Result<(), Failure> {
    receipts::retained(loaded)?;
    let calls = loaded.config.retention.calls.as_deref();
    records::time(calls, "retention.calls").map(drop)
}

fn to_write(loaded: Loaded) -> Loaded {
    Loaded { lock_use: LockUse::Write, ..loaded }
}

async fn frame(loaded: Loaded) -> Result<Frame, Failure> {
    compose::say_assumptions(&loaded);
    Frame::build(loaded).await
}

/// A caller that the command line names: the user of this machine, or one from `[callers]`.
pub(crate) fn caller(
    config: &config::Config,
    name: &str,
) -> Result<toolbooth_contracts::Caller, Failure> {
    let known = config.callers.keys().map(String::as_str);
    let matched =
        config.callers.values().any(|caller| caller.matches.iter().any(|own| own == name));
    if name == "local" {
        return Ok(toolbooth_server::auth::local_user());
    }
    if config.callers.contains_key(name) || matched {
        return Ok(toolbooth_contracts::Caller::authenticated(name));
    }
    let failure = Failure::usage(format!("there is no caller `{name}`"));
    Err(match toolbooth_contracts::id::nearest(name, known) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("callers are named in `[callers.NAME]` of the configuration"),
    })
}

/// Text that is given as it is, as `@FILE`, or on standard input.
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
