//! Discovers tools that a command lists.
//!
//! Path: 3. Doc: execution.md#command-discovered

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolbooth_contracts::Conversation;
use toolbooth_contracts::error::SourceError;
use toolbooth_contracts::json::parse;
use toolbooth_contracts::port::{DiscoveredTool, Listing, ToolSource};
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};
use toolbooth_contracts::trust::TrustLevel;

use super::error_text::ErrorText;
use crate::command_line::CommandLine;
use crate::launcher::Launcher;
use crate::outcome::ProgramEnd;
use crate::process::{self, Bounds};
use crate::sandbox;
use crate::text::plain;

/// A configured pair of commands.
#[derive(Debug, Clone)]
pub struct CommandTools {
    /// The name in configuration.
    pub name: String,
    /// Lists the tools.
    pub discover: CommandLine,
    /// Runs one tool. Its name is the last word of the line.
    pub call: CommandLine,
    /// Time limit for listing.
    pub discover_timeout: Duration,
    /// Maximum size of a listing, in bytes.
    pub listing_bytes_max: usize,
    /// The output of a failed command that an agent sees.
    pub error_text: ErrorText,
    /// The sandbox profile of tools without one in their contract.
    pub sandbox: Option<SandboxProfile>,
    /// The trust level of the listing command.
    pub trust: TrustLevel,
}

/// A source that runs the command to list its tools.
#[derive(Debug, Clone)]
pub struct CommandSource {
    id: String,
    tools: CommandTools,
    launcher: Launcher,
}

impl CommandSource {
    /// Returns the source `command:NAME`.
    #[must_use]
    pub fn new(tools: CommandTools, launcher: Launcher) -> Self {
        Self { id: format!("command:{}", tools.name), tools, launcher }
    }
}

#[async_trait]
impl ToolSource for CommandSource {
    fn name(&self) -> &str {
        &self.id
    }

    fn timeout(&self) -> Duration {
        // The command is killed at its own timeout, so the catalogue's timeout must be a little
        // longer.
        self.tools.discover_timeout + Duration::from_secs(2)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        let tools = &self.tools;
        let shown = tools.discover.shown();
        let error =
            |what: String| SourceError(tools.discover.conceal(&format!("`{shown}` {what}")));
        let (conversation, _cancel) = Conversation::detached();
        // An operator configured the command to be run. Its responses are checked like any others.
        let profile = sandbox::of_call(tools.sandbox.as_ref(), tools.trust)
            .map(|profile| SandboxProfile { enforce: Enforce::BestEffort, ..profile });
        let bounds = Bounds {
            profile: profile.as_ref(),
            timeout: Some(tools.discover_timeout),
            ..Bounds::free(tools.listing_bytes_max)
        };
        let run = process::run(&self.launcher, &tools.discover, Vec::new(), bounds, &conversation);
        let finished = run.await.map_err(|cause| error(format!("is not run: {cause}")))?;
        match &finished.ended {
            ProgramEnd::Exit(0) => (),
            ProgramEnd::Timeout("its time") | ProgramEnd::Cancelled => {
                let ms = tools.discover_timeout.as_millis();
                return Err(error(format!("did not answer within {ms} ms")));
            }
            ProgramEnd::OutputLimit(_) => {
                let most = tools.listing_bytes_max;
                return Err(error(format!("printed more than {most} bytes")));
            }
            ended => {
                let stderr = first_line(&finished.stderr);
                let why = finished.denials(&plain(&finished.stderr));
                return Err(error(format!("{}{stderr}{why}", ended.described())));
            }
        }
        let mut document = parse(&finished.stdout)
            .map_err(|fault| error(format!("printed no JSON document: {fault}")))?;
        tools
            .discover
            .clone()
            .with_secrets_of(profile.as_ref())
            .secrets()
            .conceal_definition(&mut document);
        listing(&document)
            .ok_or_else(|| error("did not print a list of function declarations".to_owned()))
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        None
    }
}

fn first_line(stderr: &[u8]) -> String {
    plain(stderr).lines().next().map(|line| format!(": {line}")).unwrap_or_default()
}

/// Returns the declarations in a document: a list of them, or of `{functionDeclarations: […]}`.
fn listing(document: &Value) -> Option<Listing> {
    let items = document.as_array()?;
    let mut listing = Listing::default();
    for (index, item) in items.iter().enumerate() {
        let nested = item.get("functionDeclarations").or_else(|| item.get("function_declarations"));
        match nested.and_then(Value::as_array) {
            Some(inner) => {
                for (at, item) in inner.iter().enumerate() {
                    add(&mut listing, item, &format!("item {index}.{at}"));
                }
            }
            None => add(&mut listing, item, &format!("item {index}")),
        }
    }
    Some(listing)
}

fn add(listing: &mut Listing, item: &Value, location: &str) {
    let name = item.get("name").and_then(Value::as_str).filter(|name| !name.trim().is_empty());
    let Some(name) = name else {
        listing.problems.push(format!("{location} is not a declaration: it has no `name`"));
        return;
    };
    // A name is part of a command line. The command would read a name like an option as one.
    if name.starts_with('-') || name.contains('\0') {
        listing
            .problems
            .push(format!("{location} has a name that a command would read as an option"));
        return;
    }
    let schema = item
        .get("parametersJsonSchema")
        .or_else(|| item.get("parameters"))
        .cloned()
        .unwrap_or_else(|| json!({ "type": "object" }));
    listing.tools.push(DiscoveredTool {
        name: name.to_owned(),
        title: None,
        description: item.get("description").and_then(Value::as_str).map(str::to_owned),
        input_schema: schema,
        output_schema: None,
        annotations: None::<Map<String, Value>>,
        extra: serde_json::Map::new(),
    });
}
