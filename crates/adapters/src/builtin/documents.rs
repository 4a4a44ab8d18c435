//! Implements `doc_parser`: converts text, Markdown, HTML, JSON, CSV and PDF to text, metadata and
//! headings.
//!
//! It parses external bytes, so the gateway runs it in a worker process.

mod html;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::json::read_as;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::sandbox::{Enforce, SandboxLimits, SandboxProfile};
use toolbooth_contracts::{Effect, ErrorCode, Outcome, ToolOutput};

use super::files::{DOCUMENT_BYTES_MAX, Roots, blocking};
use crate::command_line::CommandLine;
use crate::functions::FunctionError;
use crate::functions::{Functions, entry};
use crate::launcher::Launcher;
use crate::outcome::ProgramEnd;
use crate::process::{self, Bounds};

/// Maximum bytes of text in the result. Longer text is truncated, and the result states that.
const TEXT_BYTES_MAX: usize = 1 << 20;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
// Models are not given schemas with `oneOf` at the top, so the choice is checked by the tool.
struct Document {
    /// Path of the document, beneath the folders that may be read. Give this or `content`.
    #[schemars(length(min = 1, max = 4096))]
    path: Option<String>,
    /// The document itself, if it is text.
    content: Option<String>,
    /// Its media type, such as `text/html`. By default derived from the path and the content.
    media_type: Option<String>,
}

/// The header that a worker receives before the bytes of the document.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    media_type: String,
}

pub(super) fn add(
    functions: &mut Functions,
    roots: Arc<Roots>,
    worker: Option<(Launcher, CommandLine)>,
) -> Value {
    functions.insert(
        "doc_parser",
        Arc::new(move |arguments, conversation| {
            let (roots, worker) = (Arc::clone(&roots), worker.clone());
            Box::pin(async move {
                let read = blocking(move || {
                    let document: Document =
                        read_as(arguments.tree()).map_err(|error| error.to_string())?;
                    let (bytes, path) = match (document.path, document.content) {
                        (Some(path), None) => (roots.read(&path, DOCUMENT_BYTES_MAX)?, path),
                        (None, Some(content)) => (content.into_bytes(), String::new()),
                        _ => return Err("give either `path` or `content`".into()),
                    };
                    let media_type =
                        document.media_type.unwrap_or_else(|| guess(&path, &bytes).to_owned());
                    Ok((bytes, media_type))
                })
                .await;
                let (bytes, media_type) = match read {
                    Ok(read) => read,
                    Err(error) => return Outcome::Done(ToolOutput::text(error.0).into_error()),
                };
                let Some((launcher, worker)) = worker else {
                    let parsed = blocking(move || parse(&bytes, &media_type)).await;
                    return Outcome::Done(match parsed {
                        Ok(data) => answer(data),
                        Err(error) => ToolOutput::text(error.0).into_error(),
                    });
                };
                let mut input = serde_json::to_vec(&Header { media_type }).unwrap_or_default();
                input.push(b'\n');
                input.extend_from_slice(&bytes);
                // Escapes can make the answer larger than the text.
                let profile = profile();
                let bounds = Bounds { profile: Some(&profile), ..Bounds::free(TEXT_BYTES_MAX * 8) };
                match process::run(&launcher, &worker, input, bounds, &conversation).await {
                    Ok(finished) => from_worker(finished),
                    Err(error) => Outcome::Failed(ExecutionError::adapter(
                        Effect::NotStarted,
                        error.to_string(),
                    )),
                }
            })
        }),
        Arc::new(|| Readiness::Ready),
    );
    entry::<Document>(
        "doc_parser",
        "Reads text, Markdown, HTML, JSON, CSV and PDF documents: text, metadata and headings.",
    )
}

/// Returns the profile of a worker. It has no access, because it receives the document as input.
fn profile() -> SandboxProfile {
    SandboxProfile {
        enforce: Enforce::BestEffort,
        limits: Some(SandboxLimits {
            cpu_s: Some(30),
            memory_mb: Some(1024),
            pids: Some(16),
            open_files: Some(64),
            file_mb: Some(0),
            ..SandboxLimits::default()
        }),
        ..SandboxProfile::default()
    }
}

fn from_worker(finished: process::Finished) -> Outcome {
    let internal = || format!("stderr: {}", crate::text::plain(&finished.stderr));
    match finished.ended {
        ProgramEnd::Exit(0) => {
            match serde_json::from_slice::<Result<Value, String>>(&finished.stdout) {
                Ok(Ok(data)) => Outcome::Done(answer(data)),
                Ok(Err(sentence)) => Outcome::Done(ToolOutput::text(sentence).into_error()),
                Err(error) => {
                    Outcome::Failed(ExecutionError::adapter(Effect::Completed, error.to_string()))
                }
            }
        }
        ProgramEnd::Cancelled => Outcome::Failed(ExecutionError {
            code: ErrorCode::Cancelled,
            effect: Effect::Unknown,
            safe: None,
            internal: internal(),
        }),
        // A document may kill the worker, but not the gateway.
        ended => Outcome::Done(ToolOutput {
            internal: Some(format!("{ended:?} {}", internal())),
            ..ToolOutput::text("the document is too large or too complex to be parsed").into_error()
        }),
    }
}

fn answer(data: Value) -> ToolOutput {
    let text = data.get("text").and_then(Value::as_str).unwrap_or_default();
    ToolOutput::text_and_data(text, &data)
}

/// Runs the worker: reads a header line and a document from `input`, and writes the result.
///
/// # Errors
/// If input or output fails.
pub fn serve_one(
    mut input: impl std::io::Read,
    mut output: impl std::io::Write,
) -> std::io::Result<()> {
    let mut all = Vec::new();
    input.read_to_end(&mut all)?;
    let end = all.iter().position(|byte| *byte == b'\n').unwrap_or(all.len());
    let (header, bytes) = all.split_at(end);
    let header: Header = serde_json::from_slice(header)?;
    let answer = parse(bytes.get(1..).unwrap_or_default(), &header.media_type);
    serde_json::to_writer(&mut output, &answer.map_err(|FunctionError(sentence)| sentence))?;
    output.flush()
}

fn guess(path: &str, bytes: &[u8]) -> &'static str {
    let extension = path.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match extension.as_deref() {
        Some("md" | "markdown") => "text/markdown",
        Some("html" | "htm" | "xhtml") => "text/html",
        Some("json") => "application/json",
        Some("csv") => "text/csv",
        Some("pdf") => "application/pdf",
        Some("txt" | "text" | "log") => "text/plain",
        _ if bytes.starts_with(b"%PDF-") => "application/pdf",
        _ => {
            let start = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).to_lowercase();
            let start = start.trim_start();
            if start.starts_with("<!doctype html") || start.starts_with("<html") {
                "text/html"
            } else if start.starts_with(['{', '[']) {
                "application/json"
            } else {
                "text/plain"
            }
        }
    }
}

struct Parsed {
    text: String,
    headings: Vec<Value>,
    metadata: Map<String, Value>,
}

impl Parsed {
    fn text(text: String) -> Self {
        Self { text, headings: Vec::new(), metadata: Map::new() }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }
}

/// Parses a document.
///
/// # Errors
/// A sentence, if the document does not match its media type, or the media type is unknown.
pub fn parse(bytes: &[u8], media_type: &str) -> Result<Value, FunctionError> {
    let plain_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = || {
        std::str::from_utf8(bytes)
            .map(|text| text.trim_start_matches('\u{feff}'))
            .map_err(|_| FunctionError::from("the document is not UTF-8 text"))
    };
    let parsed = match plain_type.as_str() {
        "application/pdf" => pdf(bytes)?,
        "text/html" | "application/xhtml+xml" => html::parsed(text()?),
        "text/markdown" => markdown(text()?),
        "application/json" => json_document(bytes)?,
        "text/csv" => csv_document(text()?)?,
        "text/plain" => Parsed::text(text()?.to_owned()),
        other => {
            let shown = other.escape_debug();
            return Err(format!("documents of type `{shown}` are not read").into());
        }
    };
    let mut parsed = parsed.with("mediaType", plain_type).with("bytes", bytes.len());
    if parsed.text.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !parsed.text.is_char_boundary(end) {
            end -= 1;
        }
        parsed.text.truncate(end);
        parsed = parsed.with("truncated", true);
    }
    Ok(json!({ "text": parsed.text, "headings": parsed.headings, "metadata": parsed.metadata }))
}

fn heading(level: usize, text: &str) -> Value {
    json!({ "level": level, "text": text.split_whitespace().collect::<Vec<_>>().join(" ") })
}

fn markdown(source: &str) -> Parsed {
    use pulldown_cmark::{Event, Parser, Tag, TagEnd};
    let mut headings = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for event in Parser::new(source) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                open = Some((level as usize, String::new()))
            }
            Event::End(TagEnd::Heading(_)) => {
                if let Some((level, text)) = open.take() {
                    headings.push(heading(level, &text));
                }
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some((_, heading)) = &mut open {
                    heading.push_str(&text);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some((_, heading)) = &mut open {
                    heading.push(' ');
                }
            }
            _ => (),
        }
    }
    Parsed { headings, ..Parsed::text(source.to_owned()) }
}

fn json_document(bytes: &[u8]) -> Result<Parsed, FunctionError> {
    let value = toolbooth_contracts::json::parse(bytes)
        .map_err(|fault| format!("the document is no JSON: {fault}"))?;
    let text = serde_json::to_string_pretty(&value).map_err(|error| error.to_string())?;
    let keys: Vec<&String> =
        value.as_object().map(|object| object.keys().collect()).unwrap_or_default();
    Ok(Parsed::text(text).with("keys", json!(keys)))
}

fn csv_document(source: &str) -> Result<Parsed, FunctionError> {
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(source.as_bytes());
    let columns: Vec<String> =
        reader.headers().map_err(|error| error.to_string())?.iter().map(str::to_owned).collect();
    let mut rows = 0usize;
    for record in reader.records() {
        record.map_err(|error| format!("the document is not valid CSV: {error}"))?;
        rows += 1;
    }
    Ok(Parsed::text(source.to_owned()).with("columns", json!(columns)).with("rows", rows))
}

fn pdf(bytes: &[u8]) -> Result<Parsed, FunctionError> {
    let bad = |error: lopdf::Error| {
        FunctionError(format!("the document is not a PDF that can be read: {error}"))
    };
    let document = lopdf::Document::load_mem(bytes).map_err(bad)?;
    if document.is_encrypted() {
        return Err("the document is encrypted".into());
    }
    let pages: Vec<u32> = document.get_pages().keys().copied().collect();
    let text = document.extract_text(&pages).map_err(bad)?;
    Ok(Parsed::text(text.trim().to_owned()).with("pages", pages.len()))
}

#[cfg(test)]
mod tests;
