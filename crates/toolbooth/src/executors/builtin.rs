//! Builds the executor of the built-in tools.
//!
//! Doc: execution.md#built-in-tools

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbooth_adapters::CommandLine;
use toolbooth_adapters::builtin::{self, BuiltinSettings, SearchEndpoint};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_contracts::contract::BUILTIN_RUNTIME;

use super::{Adapters, hidden};
use crate::config::Loaded;
use crate::failure::Failure;

/// Adds the built-in tools and returns their entries for the registry.
pub(super) fn add(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<Vec<Value>, Failure> {
    let (executor, entries) = builtin::tools(settings(loaded, launcher)?);
    adapters.add_local(BUILTIN_RUNTIME, Arc::new(executor));
    Ok(entries)
}

fn settings(loaded: &Loaded, launcher: &Launcher) -> Result<BuiltinSettings, Failure> {
    let builtin = &loaded.config.builtin;
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let roots = match &builtin.roots {
        Some(roots) => roots.iter().map(|root| loaded.path(root)).collect(),
        None => vec![here],
    };
    let search = builtin.web_search.endpoint.clone().map(|url| SearchEndpoint {
        url,
        timeout: Duration::from_millis(builtin.web_search.timeout_ms.unwrap_or(10_000)),
    });
    let this = std::env::current_exe().map_err(|error| {
        Failure::configuration(format!("this program cannot be found: {error}"))
    })?;
    let worker = CommandLine {
        argv: vec![this.display().to_string().into(), crate::WORKER.into(), "doc_parser".into()],
        ..CommandLine::default()
    };
    Ok(BuiltinSettings {
        roots,
        hidden: hidden(loaded),
        search,
        document_worker: Some((launcher.clone(), worker)),
    })
}
