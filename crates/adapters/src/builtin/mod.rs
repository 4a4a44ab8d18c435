//! The tools that are compiled in: a calculator, a document parser, file access, web search.
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

/// The settings of the tools that are compiled in.
#[derive(Debug, Clone, Default)]
pub struct BuiltinSettings {
    /// Folders beneath which files can be read.
    pub roots: Vec<PathBuf>,
    /// The gateway's own paths beneath these folders, which are never read.
    pub hidden: Vec<PathBuf>,
    /// The search endpoint. Without one `web_search` is not configured.
    pub search: Option<SearchEndpoint>,
    /// The command that parses a document on its standard input, and its launcher. Without one,
    /// documents are parsed in this process.
    pub document_worker: Option<(Launcher, CommandLine)>,
}

/// Returns the executor of the tools that are compiled in, and their registry entries.
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
        // These tools change nothing, and the operator's own program is trusted to state that.
        if let Some(policy) = entry.get_mut("policy").and_then(Value::as_object_mut) {
            policy.insert("readOnly".to_owned(), json!(true));
        }
    }
    (functions, entries)
}
