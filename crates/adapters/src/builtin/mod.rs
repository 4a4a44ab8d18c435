//! The tools that are compiled in: a calculator, a document parser, files to read, web search.
//!
//! Path: 7. Doc: execution.md#built-in-tools

mod calculator;
pub mod documents;
mod files;
mod search;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

pub use files::Roots;
pub use search::SearchEndpoint;

use crate::command_line::CommandLine;
use crate::functions::Functions;
use crate::launcher::Launcher;

/// What the tools that are compiled in need.
#[derive(Debug, Clone, Default)]
pub struct BuiltinSettings {
    /// Folders that files are read beneath.
    pub roots: Vec<PathBuf>,
    /// What is the gateway's own beneath them: never read.
    pub hidden: Vec<PathBuf>,
    /// The search endpoint; without one `web_search` is not configured.
    pub search: Option<SearchEndpoint>,
    /// The command that parses a document it gets on standard input, and what starts it; without
    /// one documents are parsed in this process.
    pub document_worker: Option<(Launcher, CommandLine)>,
}

/// The executor of the tools that are compiled in, and their registry entries.
#[must_use]
pub fn tools(settings: BuiltinSettings) -> (Functions, Vec<Value>) {
    let mut functions = Functions::default();
    let roots = Arc::new(Roots::open(&settings.roots, &settings.hidden));
    let mut entries = vec![
        calculator::add(&mut functions),
        documents::add(&mut functions, Arc::clone(&roots), settings.document_worker),
        search::add(&mut functions, settings.search),
    ];
    entries.extend(files::add(&mut functions, roots));
    for entry in &mut entries {
        // They change nothing, and this is the operator's own program saying so.
        if let Some(policy) = entry.get_mut("policy").and_then(Value::as_object_mut) {
            policy.insert("readOnly".to_owned(), json!(true));
        }
    }
    (functions, entries)
}
