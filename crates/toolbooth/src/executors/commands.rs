//! Builds the executors of command tools: command runtimes, and commands that also list their tools.
//!
//! Doc: execution.md#command-discovered, execution.md#command-runtimes

use std::sync::Arc;
use std::time::Duration;

use toolbooth_adapters::CommandLine;
use toolbooth_adapters::command::{
    self, CallLine, CommandExecutor, CommandSettings, CommandSource, CommandTemplate, CommandTools,
};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::secrets;
use toolbooth_proxy::SourceEntry;
use toolbooth_registry::Source;

use super::{Adapters, Choice, folder, levels, present, settings, source_policy, trust};
use crate::config::{self, Loaded};
use crate::failure::Failure;

/// The default timeout of a command that lists its tools.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds the runtimes with commands as tools.
pub(super) fn add_runtimes(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<(), Failure> {
    for (name, runtime) in &loaded.config.runtimes {
        if runtime.kind == config::RuntimeKind::Command {
            let settings = runtime_settings(loaded, name, runtime)?;
            adapters.add_local(name, Arc::new(CommandExecutor::new(settings, launcher.clone())));
        }
    }
    Ok(())
}

/// Adds the commands that list their tools: an executor and a source for each.
pub(super) fn add_sources(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<(), Failure> {
    for (name, pair) in &loaded.config.commands {
        if pair.enabled == Some(false) {
            continue;
        }
        let tools = tools(loaded, name, pair)?;
        let id = Source::Command(name.clone());
        let settings = CommandSettings {
            line: CallLine::Named(tools.call.clone()),
            error_text: tools.error_text,
            sandbox: tools.sandbox.clone(),
            levels: levels(&loaded.config),
        };
        let executor = CommandExecutor::new(settings, launcher.clone());
        adapters.add_local(&id.to_string(), Arc::new(executor));
        let choice = Choice { tools: pair.tools.as_ref(), deny: &pair.deny, rename: &pair.rename };
        let policy = source_policy(&loaded.config, &pair.defaults, &pair.overrides, choice);
        let source = Arc::new(CommandSource::new(tools, launcher.clone()));
        adapters.sources.push(SourceEntry { id, source, policy, verify_calls: false });
    }
    Ok(())
}

/// Returns the settings of a runtime with commands as tools.
fn runtime_settings(
    loaded: &Loaded,
    name: &str,
    runtime: &config::RuntimeSection,
) -> Result<CommandSettings, Failure> {
    let setting = format!("runtimes.{name}");
    let wrong = |message: String| Failure::configuration(message).at(setting.clone());
    let of_handlers = runtime.dir.is_some() || runtime.workers.is_some();
    if of_handlers || runtime.language.is_some() || runtime.interpreter.is_some() {
        let message =
            "`dir`, `language`, `interpreter` and `workers` belong to a runtime of handlers";
        return Err(wrong(message.to_owned()));
    }
    let text = runtime.command.as_ref();
    let text = text.ok_or_else(|| wrong("a runtime of commands needs `command`".to_owned()))?;
    let words = words(text, &format!("{setting}.command"))?;
    let template = CommandTemplate::parse(&words).map_err(|error| wrong(error.to_string()))?;
    let cwd = folder(loaded, runtime.cwd.as_ref());
    let line = CommandLine {
        // Used by the check that the program exists.
        argv: words.into_iter().take(1).map(secrets::Setting::Literal).collect(),
        env: settings(loaded, &runtime.env),
        cwd: Some(cwd.clone()),
        written: 1,
        own: None,
        profile_name: None,
    };
    let sandboxes = &loaded.config.sandbox;
    Ok(CommandSettings {
        line: CallLine::Filled { line, template },
        error_text: runtime.error_text,
        sandbox: sandboxes.of_calls(
            runtime.sandbox.as_ref(),
            &format!("{setting}.sandbox"),
            present(&cwd).as_deref(),
        )?,
        levels: levels(&loaded.config),
    })
}

fn words(text: &config::CommandText, setting: &str) -> Result<Vec<String>, Failure> {
    let words = match text {
        config::CommandText::Words(words) => Ok(words.clone()),
        config::CommandText::Text(text) => command::words(text),
    };
    match words {
        Ok(words) if !words.is_empty() => Ok(words),
        Ok(_) => Err(Failure::configuration("the command names no program").at(setting.to_owned())),
        Err(error) => Err(Failure::configuration(format!("the command cannot be read: {error}"))
            .at(setting.to_owned())),
    }
}

/// Returns the commands of a source that lists its tools.
pub(crate) fn tools(
    loaded: &Loaded,
    name: &str,
    pair: &config::CommandPair,
) -> Result<CommandTools, Failure> {
    let setting = format!("commands.{name}");
    let env = settings(loaded, &pair.env);
    let cwd = Some(folder(loaded, pair.cwd.as_ref()));
    let sandbox = loaded.config.sandbox.of_calls(
        pair.sandbox.as_ref(),
        &format!("{setting}.sandbox"),
        cwd.as_ref().and_then(present).as_deref(),
    )?;
    let line = |argv: Vec<String>| CommandLine {
        written: argv.len(),
        own: None,
        profile_name: None,
        argv: argv.into_iter().map(secrets::Setting::Literal).collect(),
        env: env.clone(),
        cwd: cwd.clone(),
    };
    Ok(CommandTools {
        name: name.to_owned(),
        discover: line(words(&pair.discover_command, &format!("{setting}.discover_command"))?),
        call: line(words(&pair.call_command, &format!("{setting}.call_command"))?),
        discover_timeout: pair.discover_timeout_ms.map_or(DISCOVER_TIMEOUT, Duration::from_millis),
        listing_bytes_max: pair.listing_bytes_max.unwrap_or(command::LISTING_BYTES_MAX),
        error_text: pair.error_text,
        sandbox,
        trust: trust(&loaded.config, &pair.defaults),
    })
}
