//! Tools that a command lists and a command runs: arguments as JSON on standard input, the result
//! on standard output, never a shell.
//!
//! Path: 3, 7. Doc: execution.md#command-discovered

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::json::parse;
use toolbooth_contracts::port::{DiscoveredTool, ExecutionError, Listing, SourceError, ToolSource};
use toolbooth_contracts::{
    Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome, ToolOutput,
};

use crate::process::{self, CommandLine, Ended};
use crate::text::plain;

/// Bytes of a listing, where configuration says nothing.
pub const LISTING_BYTES_MAX: usize = 10 << 20;
/// Bytes of a result.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// What an agent sees of a command that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ErrorText {
    /// Exit code or signal, and standard output.
    #[default]
    Safe,
    /// Standard error too.
    Full,
}

/// A command line from configuration: a list, or a text that is split into POSIX words.
///
/// # Errors
/// A sentence, where the text has an open quote or names no program.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let words = shell_words::split(text).map_err(|error| error.to_string())?;
    if words.is_empty() { Err("it names no program".to_owned()) } else { Ok(words) }
}

/// A configured pair of commands.
#[derive(Debug, Clone)]
pub struct CommandTools {
    /// The name in configuration.
    pub name: String,
    /// Lists the tools.
    pub discover: CommandLine,
    /// Runs one tool: its name comes last on the line.
    pub call: CommandLine,
    /// How long listing may take.
    pub discover_timeout: Duration,
    /// Bytes of a listing.
    pub listing_bytes_max: usize,
    /// What an agent sees of a failure.
    pub error_text: ErrorText,
}

/// Asks the command for its tools.
#[derive(Debug, Clone)]
pub struct CommandSource {
    id: String,
    tools: CommandTools,
}

impl CommandSource {
    /// The source `command:NAME`.
    #[must_use]
    pub fn new(tools: CommandTools) -> Self {
        Self { id: format!("command:{}", tools.name), tools }
    }
}

#[async_trait]
impl ToolSource for CommandSource {
    fn name(&self) -> &str {
        &self.id
    }

    fn timeout(&self) -> Duration {
        // The command is killed at its own timeout; the catalogue's comes a little later.
        self.tools.discover_timeout + Duration::from_secs(2)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        let tools = &self.tools;
        let shown = tools.discover.shown();
        let error =
            |what: String| SourceError(tools.discover.conceal(&format!("`{shown}` {what}")));
        let (conversation, cancel) = Conversation::detached();
        let run = process::run(&tools.discover, Vec::new(), tools.listing_bytes_max, &conversation);
        let timer = async {
            tokio::time::sleep(tools.discover_timeout).await;
            cancel.cancel();
            std::future::pending::<()>().await;
        };
        let finished = tokio::select! {
            finished = run => finished.map_err(|cause| error(format!("cannot be started: {cause}")))?,
            () = timer => return Err(error("did not answer in time".to_owned())),
        };
        match finished.ended {
            Ended::Exit(0) => (),
            Ended::Cancelled => {
                let ms = tools.discover_timeout.as_millis();
                return Err(error(format!("did not answer within {ms} ms")));
            }
            Ended::OutputLimit => {
                let most = tools.listing_bytes_max;
                return Err(error(format!("printed more than {most} bytes")));
            }
            Ended::Exit(code) => {
                let stderr = first_line(&finished.stderr);
                return Err(error(format!("ended with exit code {code}{stderr}")));
            }
            Ended::Signal(signal) => {
                let stderr = first_line(&finished.stderr);
                return Err(error(format!("was ended by signal {signal}{stderr}")));
            }
        }
        let document = parse(&finished.stdout)
            .map_err(|fault| error(format!("printed no JSON document: {fault}")))?;
        listing(&document).map_err(error)
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        None
    }
}

fn first_line(stderr: &[u8]) -> String {
    plain(stderr).lines().next().map(|line| format!(": {line}")).unwrap_or_default()
}

/// The declarations in a document: a list of them, or of `{functionDeclarations: […]}`.
fn listing(document: &Value) -> Result<Listing, String> {
    let items = document
        .as_array()
        .ok_or_else(|| "did not print a list of function declarations".to_owned())?;
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
    Ok(listing)
}

fn add(listing: &mut Listing, item: &Value, place: &str) {
    let name = item.get("name").and_then(Value::as_str).filter(|name| !name.trim().is_empty());
    let Some(name) = name else {
        listing.problems.push(format!("{place} is no declaration: it has no `name`"));
        return;
    };
    // A name goes on a command line; one that looks like an option would be read as one.
    if name.starts_with('-') || name.contains('\0') {
        listing.problems.push(format!("{place} has a name that a command would read as an option"));
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
    });
}

/// Runs the tools of a command.
#[derive(Debug, Clone)]
pub struct CommandExecutor(CommandTools);

impl CommandExecutor {
    /// An executor for these tools.
    #[must_use]
    pub fn new(tools: CommandTools) -> Self {
        Self(tools)
    }
}

#[async_trait]
impl Executor for CommandExecutor {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let target = dispatch.target();
        if target.starts_with('-') || target.contains('\0') {
            return Outcome::Failed(ExecutionError::adapter(
                Effect::NotStarted,
                "the tool's name would be read as an option",
            ));
        }
        let mut line = self.0.call.clone();
        line.argv.push(target.into());
        if let Some(key) = &dispatch.idempotency_key {
            line.env.push(("TOOLBOOTH_IDEMPOTENCY_KEY".to_owned(), key.as_str().into()));
        }
        line.env.push(("TOOLBOOTH_CALL_ID".to_owned(), dispatch.call_id.to_string().into()));
        let input = dispatch.arguments.get().as_bytes().to_vec();
        match process::run(&line, input, OUTPUT_BYTES_MAX, &conversation).await {
            Ok(mut finished) => {
                // What the command was given in confidence it must not tell anybody.
                for stream in [&mut finished.stdout, &mut finished.stderr] {
                    if let Ok(text) = std::str::from_utf8(stream) {
                        let clean = line.conceal(text);
                        if clean != text {
                            *stream = clean.into_bytes();
                        }
                    }
                }
                answer(finished, self.0.error_text)
            }
            Err(error) => Outcome::Failed(ExecutionError {
                code: ErrorCode::NotConfigured,
                effect: Effect::NotStarted,
                safe: Some("the tool's command cannot be started".to_owned()),
                internal: format!("`{}` cannot be started: {error}", line.shown()),
            }),
        }
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        self.0.call.readiness()
    }
}

/// What a finished command means.
fn answer(finished: process::Finished, error_text: ErrorText) -> Outcome {
    let stdout = plain(&finished.stdout);
    let stderr = plain(&finished.stderr);
    let internal = (!stderr.trim().is_empty()).then(|| format!("stderr: {stderr}"));
    let failed = |how: String| {
        let mut text = how;
        if !stdout.trim().is_empty() {
            text = format!("{text}\n{}", stdout.trim_end());
        }
        if error_text == ErrorText::Full && !stderr.trim().is_empty() {
            text = format!("{text}\n{}", stderr.trim_end());
        }
        Outcome::Done(ToolOutput {
            internal: internal.clone(),
            ..ToolOutput::text(text).into_error()
        })
    };
    match finished.ended {
        Ended::Exit(0) => {
            let data = parse(&finished.stdout).ok().filter(Value::is_object);
            Outcome::Done(ToolOutput {
                structured_content: data,
                internal,
                ..ToolOutput::text(stdout.trim_end_matches('\n'))
            })
        }
        Ended::Exit(code) => failed(format!("the command ended with exit code {code}")),
        Ended::Signal(signal) => failed(format!("the command was ended by signal {signal}")),
        Ended::OutputLimit => Outcome::Failed(ExecutionError {
            code: ErrorCode::ResultTooLarge,
            // It was killed in the middle of its work.
            effect: Effect::Unknown,
            safe: None,
            internal: format!("the command printed more than {OUTPUT_BYTES_MAX} bytes"),
        }),
        Ended::Cancelled => Outcome::Failed(ExecutionError {
            code: ErrorCode::Cancelled,
            effect: Effect::Unknown,
            safe: None,
            internal: "the command was told to stop".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(script: &str) -> CommandSource {
        let line = CommandLine {
            argv: ["sh", "-c", script].map(Into::into).to_vec(),
            ..CommandLine::default()
        };
        CommandSource::new(CommandTools {
            name: "test".into(),
            discover: line.clone(),
            call: line,
            discover_timeout: Duration::from_millis(500),
            listing_bytes_max: 10_000,
            error_text: ErrorText::Safe,
        })
    }

    #[tokio::test]
    async fn both_forms_of_declarations_are_read() {
        let script = r#"echo '[{"name":"a","parametersJsonSchema":{"type":"object"}},{"functionDeclarations":[{"name":"b","description":"d"}]},{"x":1},{"name":"-rf"}]'; echo noise >&2"#;
        let listing = source(script).list().await.unwrap();
        let names: Vec<&str> = listing.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(listing.problems.len(), 2, "{:?}", listing.problems);
    }

    #[tokio::test]
    async fn bad_commands_get_errors_that_name_them() {
        for (script, expected) in [
            ("echo nonsense", "no JSON"),
            ("echo '{}'", "did not print a list"),
            ("echo oops >&2; exit 7", "exit code 7: oops"),
            ("kill -9 $$", "signal 9"),
            ("yes", "more than 10000 bytes"),
            ("sleep 60", "did not answer"),
            ("printf '\\377'", "no JSON"),
        ] {
            let error = source(script).list().await.unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("sh -c"), "{script}: {error}");
        }
    }

    #[test]
    fn commands_are_split_into_words_without_a_shell() {
        assert_eq!(words("a 'b c' $HOME").unwrap(), ["a", "b c", "$HOME"]);
        assert!(words("'open").is_err() && words("  ").is_err());
    }
}
