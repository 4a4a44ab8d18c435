//! Handlers: the exports of Node or Python files as tools, in one long-lived worker per domain.
//!
//! `os.create_task` calls the export `create_task` of `os.js` or `os.py`. A worker takes one call
//! at a time; one that is cut off in the middle of a call is killed and replaced.
//!
//! Path: 7. Doc: execution.md#handlers

mod worker;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{
    ContentBlock, Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome, ToolOutput,
};

use worker::{Failure, Reply, Worker};

/// In which language a folder's handlers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `DOMAIN.js`, `DOMAIN.mjs` or `DOMAIN.cjs`, run by `node`.
    Node,
    /// `DOMAIN.py`, run by `python3`.
    Python,
}

/// A folder with handler files.
#[derive(Debug, Clone)]
pub struct HandlerFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The language; `None` = whichever file is there.
    pub language: Option<Language>,
    /// The domains it serves; `None` = every domain that no other folder names.
    pub domains: Option<Vec<String>>,
    /// The interpreter; `None` = `node` or `python3` from `PATH`.
    pub interpreter: Option<String>,
}

/// Runs handlers.
#[derive(Debug)]
pub struct Handlers {
    folders: Vec<HandlerFolder>,
    workers: Mutex<HashMap<String, Arc<Mutex<Slot>>>>,
}

/// The worker of a domain, and what its file exported when it was last asked.
#[derive(Debug, Default)]
struct Slot {
    worker: Option<Worker>,
    exports: Option<(SystemTime, Vec<String>)>,
}

struct HandlerFile {
    path: PathBuf,
    language: Language,
    interpreter: Option<String>,
}

impl Handlers {
    /// Handlers of these folders; a folder that names a domain comes before one that takes all.
    #[must_use]
    pub fn new(folders: Vec<HandlerFolder>) -> Self {
        Self { folders, workers: Mutex::new(HashMap::new()) }
    }

    fn file(&self, domain: &str) -> Result<HandlerFile, String> {
        let named = |folder: &&HandlerFolder| {
            folder.domains.as_ref().is_some_and(|domains| domains.iter().any(|name| name == domain))
        };
        let folder = self
            .folders
            .iter()
            .find(named)
            .or_else(|| self.folders.iter().find(|folder| folder.domains.is_none()))
            .ok_or_else(|| format!("no `[runtimes.NAME]` serves the domain `{domain}`"))?;
        // A domain is one part of a tool id, so it cannot lead out of the folder; `/` could.
        if domain.contains('/') || domain.starts_with('.') || domain.is_empty() {
            return Err(format!("`{domain}` is no domain"));
        }
        let candidates = [
            ("js", Language::Node),
            ("mjs", Language::Node),
            ("cjs", Language::Node),
            ("py", Language::Python),
        ];
        candidates
            .into_iter()
            .filter(|(_, language)| folder.language.is_none_or(|wanted| wanted == *language))
            .map(|(extension, language)| {
                (folder.folder.join(format!("{domain}.{extension}")), language)
            })
            .find(|(path, _)| path.is_file())
            .map(|(path, language)| HandlerFile {
                path,
                language,
                interpreter: folder.interpreter.clone(),
            })
            .ok_or_else(|| {
                let wanted = match folder.language {
                    Some(Language::Python) => "py",
                    Some(Language::Node) => "js",
                    None => "js or .py",
                };
                let place = folder.folder.join(domain);
                format!("the handler file `{}.{wanted}` is not there", shown(&place))
            })
    }

    async fn slot(&self, domain: &str) -> Arc<Mutex<Slot>> {
        let mut workers = self.workers.lock().await;
        Arc::clone(workers.entry(domain.to_owned()).or_default())
    }
}

/// A path as people know it: without the folders above the project.
fn shown(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).collect();
    let short: PathBuf = parts.into_iter().rev().collect();
    short.display().to_string()
}

/// Domain and handler of a target: the first part, and the rest joined with `_`.
fn domain_and_handler(target: &str) -> (&str, String) {
    match target.split_once('.') {
        Some((domain, rest)) => (domain, rest.replace('.', "_")),
        None => ("", target.to_owned()),
    }
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

impl Slot {
    /// A worker over the file as it is now.
    async fn worker(&mut self, file: &HandlerFile) -> Result<&mut Worker, String> {
        let changed = modified(&file.path);
        let stale = self.exports.as_ref().is_none_or(|(known, _)| *known != changed);
        let dead = self.worker.as_mut().is_none_or(|worker| !worker.is_alive());
        if stale || dead {
            self.worker = None;
            let (worker, exports) =
                Worker::start(&file.path, file.language, file.interpreter.as_deref()).await?;
            self.exports = Some((changed, exports));
            self.worker = Some(worker);
        }
        self.worker.as_mut().ok_or_else(|| "the worker did not start".to_owned())
    }
}

#[async_trait]
impl Executor for Handlers {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let (domain, handler) = domain_and_handler(dispatch.target());
        let file = match self.file(domain) {
            Ok(file) => file,
            Err(reason) => return Outcome::Failed(ExecutionError::not_configured(reason)),
        };
        let slot = self.slot(domain).await;
        // Calls of one domain follow one another; one that is cancelled while it waits has done
        // nothing.
        let mut slot = tokio::select! {
            slot = slot.lock() => slot,
            () = conversation.cancelled() => return Outcome::Failed(cancelled(Effect::NotStarted)),
        };
        // A worker that is dropped while it starts is killed with its group.
        let started = tokio::select! {
            biased;
            () = conversation.cancelled() => return Outcome::Failed(cancelled(Effect::NotStarted)),
            started = slot.worker(&file) => started,
        };
        let worker = match started {
            Ok(worker) => worker,
            Err(internal) => {
                return Outcome::Failed(ExecutionError::adapter(Effect::NotStarted, internal));
            }
        };
        let context = json!({
            "toolId": dispatch.contract.tool_id,
            "callId": dispatch.call_id,
            "idempotencyKey": dispatch.idempotency_key,
            "attempt": dispatch.attempt,
        });
        let asked = worker.ask(&handler, dispatch.arguments.get(), &context);
        if conversation.is_cancelled() {
            return Outcome::Failed(cancelled(Effect::NotStarted));
        }
        let reply = tokio::select! {
            biased;
            reply = asked => Some(reply),
            () = conversation.cancelled() => None,
        };
        match reply {
            Some(Ok((reply, stderr))) => finished(reply, stderr, domain, &handler),
            Some(Err(failure)) => {
                let effect = if failure.sent { Effect::Unknown } else { Effect::NotStarted };
                slot.worker = None;
                Outcome::Failed(match failure {
                    Failure { too_large: true, internal, .. } => ExecutionError {
                        code: ErrorCode::ResultTooLarge,
                        effect,
                        safe: None,
                        internal,
                    },
                    Failure { internal, .. } => ExecutionError::adapter(effect, internal),
                })
            }
            None => {
                slot.worker = None;
                Outcome::Failed(cancelled(Effect::Unknown))
            }
        }
    }

    async fn readiness(&self, contract: &ToolContract, _probe: bool) -> Readiness {
        let target = contract.execution.target.as_deref();
        let (domain, handler) =
            domain_and_handler(target.unwrap_or_else(|| contract.tool_id.as_str()));
        let file = match self.file(domain) {
            Ok(file) => file,
            Err(reason) => return Readiness::NotConfigured(reason),
        };
        let slot = self.slot(domain).await;
        // A worker that is busy with a call has exported what is known of it.
        let Ok(mut slot) = slot.try_lock() else { return Readiness::Ready };
        if slot.exports.as_ref().is_none_or(|(known, _)| *known != modified(&file.path))
            && let Err(reason) = slot.worker(&file).await
        {
            return Readiness::NotConfigured(reason);
        }
        match &slot.exports {
            Some((_, exports)) if exports.contains(&handler) => Readiness::Ready,
            _ => Readiness::NotConfigured(missing(domain, &handler)),
        }
    }

    async fn close(&self) {
        let slots: Vec<_> = self.workers.lock().await.drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            slot.lock().await.worker = None;
        }
    }
}

fn missing(domain: &str, handler: &str) -> String {
    format!("the handler file of `{domain}` exports no function `{handler}`")
}

fn cancelled(effect: Effect) -> ExecutionError {
    ExecutionError {
        code: ErrorCode::Cancelled,
        effect,
        safe: None,
        internal: "the handler was told to stop".to_owned(),
    }
}

fn finished(reply: Reply, stderr: String, domain: &str, handler: &str) -> Outcome {
    let internal = (!stderr.trim().is_empty()).then(|| format!("stderr: {stderr}"));
    match reply {
        Reply::Result(value) => Outcome::Done(ToolOutput { internal, ..output(value) }),
        // The handler ran to its end; its key must stay held.
        Reply::Unserialisable(reason) => Outcome::Failed(ExecutionError {
            code: ErrorCode::InvalidToolResult,
            effect: Effect::Completed,
            safe: None,
            internal: format!("the handler's result cannot be written as JSON: {reason}"),
        }),
        Reply::Error(sentence) => Outcome::Done(ToolOutput {
            internal,
            ..ToolOutput::text(crate::text::plain(sentence.as_bytes())).into_error()
        }),
        Reply::Missing => Outcome::Failed(ExecutionError::not_configured(missing(domain, handler))),
    }
}

/// What a handler returned: a text is text, an object with `content` is a whole result, anything
/// else is data.
fn output(value: Value) -> ToolOutput {
    match value {
        Value::String(text) => ToolOutput::text(text),
        Value::Object(members) if members.get("content").is_some_and(Value::is_array) => {
            let blocks = members.get("content").and_then(Value::as_array).cloned();
            ToolOutput {
                content: blocks.map(|blocks| blocks.into_iter().map(ContentBlock).collect()),
                structured_content: members.get("structuredContent").cloned(),
                is_error: members.get("isError") == Some(&Value::Bool(true)),
                ..ToolOutput::default()
            }
        }
        other => ToolOutput::data(other),
    }
}
