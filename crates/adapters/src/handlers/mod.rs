//! Runs the exports of Node or Python files as tools, in a bounded pool of long-lived workers for
//! each domain.
//!
//! `os.create_task` calls the export `create_task` of `os.js` or `os.py`. A worker runs one call at
//! a time. A worker that is interrupted during a call is ended and replaced.
//!
//! Path: 7. Doc: execution.md#handlers

mod reply;
mod worker;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolbooth_contracts::contract::{OnSignal, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::SandboxMismatch;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::trust::TrustLevels;
use toolbooth_contracts::{
    Conversation, Dispatch, Effect, ErrorCode, ExecutionLog, Executor, Outcome, ToolOutput,
};

use crate::error::HandlerError;
use crate::launcher::Launcher;
use crate::mutex::lock;
use crate::outcome::ProgramEnd;
use crate::process::CLOSE;
use crate::sandbox::{self, ProfileSetting};
use crate::secrets::Setting;
use reply::Reply;
use worker::{Failure, Worker};

/// The language of a folder's handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
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
    /// The language; `None` = that of the existing file.
    pub language: Option<Language>,
    /// Its domains; `None` = every domain that no other folder names.
    pub domains: Option<Vec<String>>,
    /// The interpreter; `None` = `node` or `python3` from `PATH`.
    pub interpreter: Option<String>,
    /// Maximum number of workers per domain.
    pub workers_max: usize,
    /// Variables in addition to those of their profile.
    pub env: Vec<(String, Setting)>,
    /// Their sandbox.
    pub sandbox: ProfileSetting,
}

/// Default of the maximum number of workers per domain.
pub const WORKERS_MAX: usize = 4;

/// The executor of handlers.
#[derive(Debug)]
pub struct Handlers {
    folders: Vec<HandlerFolder>,
    levels: TrustLevels,
    launcher: Launcher,
    execution_log: ExecutionLog,
    pools: Mutex<HashMap<PoolKey, Arc<Pool>>>,
}

/// The domain, and whether its workers are contained. Contained and uncontained tools share no
/// worker.
type PoolKey = (String, bool);

/// The workers of a domain, and the last known exports of its file.
#[derive(Debug)]
struct Pool {
    slots: Arc<Semaphore>,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<(SystemTime, Worker)>,
    exports: Option<(SystemTime, Vec<String>)>,
}

/// A worker that a call has borrowed. If it is not given back, it is ended.
struct Lent {
    pool: Arc<Pool>,
    worker: Worker,
    of: SystemTime,
    slot: OwnedSemaphorePermit,
}

struct HandlerFile {
    path: PathBuf,
    language: Language,
    folder: HandlerFolder,
}

impl Handlers {
    /// Creates handlers of these folders; a folder that names a domain has priority over one without
    /// domains.
    #[must_use]
    pub fn new(folders: Vec<HandlerFolder>, levels: TrustLevels, launcher: Launcher) -> Self {
        let (execution_log, pools) = (ExecutionLog::default(), Mutex::new(HashMap::new()));
        Self { folders, levels, launcher, execution_log, pools }
    }

    /// Returns the same handlers, which record refused egress in `execution_log`.
    #[must_use]
    pub fn with_execution_log(self, execution_log: ExecutionLog) -> Self {
        Self { execution_log, ..self }
    }

    fn file(&self, domain: &str) -> Result<HandlerFile, HandlerError> {
        let named = |folder: &&HandlerFolder| {
            folder.domains.as_ref().is_some_and(|domains| domains.iter().any(|name| name == domain))
        };
        let folder = self
            .folders
            .iter()
            .find(named)
            .or_else(|| self.folders.iter().find(|folder| folder.domains.is_none()))
            .ok_or_else(|| HandlerError::Unserved(domain.to_owned()))?;
        // The domain must not lead out of the folder, which it could with a `/`.
        if domain.contains('/') || domain.starts_with('.') || domain.is_empty() {
            return Err(HandlerError::NoDomain(domain.to_owned()));
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
            .map(|(path, language)| HandlerFile { path, language, folder: folder.clone() })
            .ok_or_else(|| {
                let wanted = match folder.language {
                    Some(Language::Python) => "py",
                    Some(Language::Node) => "js",
                    None => "js or .py",
                };
                let wanted_path = folder.folder.join(domain);
                HandlerError::NoFile(format!("{}.{wanted}", shown(&wanted_path)))
            })
    }

    /// Returns the profile of the workers that serve a tool.
    fn profile(&self, file: &HandlerFile, contract: &ToolContract) -> Option<SandboxProfile> {
        let trust = self.levels.of(&contract.policy.trust_level);
        file.folder.sandbox.profile(sandbox::default_profile, trust)
    }

    fn pool(&self, key: PoolKey, workers_max: usize) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        let make = || {
            let slots = Arc::new(Semaphore::new(workers_max.max(1)));
            Arc::new(Pool { slots, state: Mutex::default() })
        };
        Arc::clone(pools.entry(key).or_insert_with(make))
    }

    /// Returns a worker for the current version of the file; waits while all are busy.
    async fn borrow(
        &self,
        domain: &str,
        file: &HandlerFile,
        profile: Option<&SandboxProfile>,
    ) -> Result<Lent, HandlerError> {
        let pool = self.pool((domain.to_owned(), profile.is_some()), file.folder.workers_max);
        let slot = Arc::clone(&pool.slots).acquire_owned().await;
        let slot = slot.map_err(|_| HandlerError::Ending)?;
        let of = modified(&file.path);
        let idle = {
            let mut state = lock(&pool.state);
            // Workers of an older version of the file are ended.
            state.idle.retain(|(known, worker)| *known == of && worker.is_alive());
            state.idle.pop()
        };
        let worker = match idle {
            Some((_, worker)) => worker,
            None => {
                let (worker, exports) = Worker::start(
                    &self.launcher,
                    &file.path,
                    file.language,
                    &file.folder,
                    profile,
                    &self.execution_log,
                )
                .await?;
                lock(&pool.state).exports = Some((of, exports));
                worker
            }
        };
        Ok(Lent { pool, worker, of, slot })
    }
}

impl Lent {
    fn refund(self) {
        lock(&self.pool.state).idle.push((self.of, self.worker));
        drop(self.slot);
    }
}
/// Returns the last two components of a path, for messages.
fn shown(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).collect();
    let ending: PathBuf = parts.into_iter().rev().collect();
    ending.display().to_string()
}

/// Returns domain and handler of a target: the first part, and the rest joined with `_`.
fn domain_and_handler(target: &str) -> (&str, String) {
    match target.split_once('.') {
        Some((domain, rest)) => (domain, rest.replace('.', "_")),
        None => ("", target.to_owned()),
    }
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Runs one call on a borrowed worker.
async fn answered(
    mut lent: Lent,
    dispatch: &Dispatch,
    conversation: &Conversation,
    (domain, handler): (&str, &str),
    began: tokio::time::Instant,
) -> Outcome {
    let context = json!({
        "toolId": dispatch.contract.tool_id,
        "callId": dispatch.call_id,
        "idempotencyKey": dispatch.idempotency_key,
        "attempt": dispatch.attempt,
    });
    let asked = lent.worker.ask(handler, &dispatch.arguments, &context);
    if conversation.is_cancelled() {
        return Outcome::Failed(cancelled(Effect::NotStarted));
    }
    let reply = tokio::select! {
        biased;
        reply = asked => Some(reply),
        () = conversation.cancelled() => None,
    };
    match reply {
        Some(Ok((reply, stderr))) => {
            if let Reply::Error(sentence) = &reply {
                lent.worker.explain(sentence, &stderr, &dispatch.execution_log);
            }
            lent.refund();
            finished(reply, stderr, domain, handler)
        }
        Some(Err(failure)) => {
            let effect = if failure.sent { Effect::Unknown } else { Effect::NotStarted };
            Outcome::Failed(match failure {
                Failure { too_large: true, internal, .. } => {
                    ExecutionError { code: ErrorCode::ResultTooLarge, effect, safe: None, internal }
                }
                Failure { ended: Some(ProgramEnd::MemoryLimit), internal, .. } => {
                    ExecutionError::adapter(effect, internal)
                        .with_safe("the tool used more memory than it may")
                }
                Failure { ended: Some(ProgramEnd::Timeout(_)), internal, .. } => {
                    ExecutionError { code: ErrorCode::Timeout, effect, safe: None, internal }
                }
                Failure { ended: Some(ended @ ProgramEnd::Signal(_)), internal, .. } => {
                    let how = format!("the handler's process {}", ended.described());
                    let on_signal = dispatch.contract.idempotency.on_signal;
                    if on_signal == Some(OnSignal::Failed) {
                        let internal = Some(internal);
                        let output = ToolOutput::text(how).into_error();
                        return Outcome::Done(ToolOutput { internal, ..output });
                    }
                    ExecutionError::adapter(effect, internal).with_safe(how)
                }
                Failure { internal, .. } => ExecutionError::adapter(effect, internal),
            })
        }
        None if began.elapsed() + CLOSE >= dispatch.timeout => Outcome::Failed(ExecutionError {
            code: ErrorCode::Timeout,
            internal: "timeout: the handler used up its time".to_owned(),
            ..cancelled(Effect::Unknown)
        }),
        None => Outcome::Failed(cancelled(Effect::Unknown)),
    }
}

#[async_trait]
impl Executor for Handlers {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let began = tokio::time::Instant::now();
        let (domain, handler) = domain_and_handler(dispatch.target());
        let file = match self.file(domain) {
            Ok(file) => file,
            Err(reason) => {
                return Outcome::Failed(ExecutionError::not_configured(reason.to_string()));
            }
        };
        let profile = self.profile(&file, &dispatch.contract);
        // A call that is cancelled while it waits has no effect. A worker that is dropped during its
        // start is ended with all its processes.
        let lent = tokio::select! {
            biased;
            () = conversation.cancelled() => return Outcome::Failed(cancelled(Effect::NotStarted)),
            lent = self.borrow(domain, &file, profile.as_ref()) => lent,
        };
        let lent = match lent {
            Ok(lent) => lent,
            Err(internal) => {
                let safe = format!("the handler file `{}` cannot be loaded", shown(&file.path));
                return Outcome::Failed(ExecutionError {
                    safe: Some(safe),
                    ..ExecutionError::not_configured(internal.to_string())
                });
            }
        };
        if let Some(sandbox) = &lent.worker.applied {
            dispatch.execution_log.contained(sandbox.clone());
        }
        // The outcome must not expose the worker's secrets.
        let secrets = lent.worker.secrets().clone();
        let mut outcome = answered(lent, &dispatch, &conversation, (domain, &handler), began).await;
        secrets.conceal_outcome(&mut outcome);
        outcome
    }

    async fn readiness(&self, contract: &ToolContract, _probe: bool) -> Readiness {
        let target = contract.execution.target.as_deref();
        let (domain, handler) =
            domain_and_handler(target.unwrap_or_else(|| contract.tool_id.as_str()));
        let file = match self.file(domain) {
            Ok(file) => file,
            Err(reason) => return Readiness::NotConfigured(reason.to_string()),
        };
        let profile = self.profile(&file, contract);
        let pool = self.pool((domain.to_owned(), profile.is_some()), file.folder.workers_max);
        let known = |pool: &Pool| {
            let now = modified(&file.path);
            let state = lock(&pool.state);
            let exports = state.exports.as_ref().filter(|(known, _)| *known == now);
            exports.map(|(_, exports)| exports.contains(&handler))
        };
        let exported = match known(&pool) {
            Some(exported) => exported,
            // If all workers are busy, none is free to report the exports.
            None if pool.slots.available_permits() == 0 => return Readiness::Ready,
            None => match self.borrow(domain, &file, profile.as_ref()).await {
                Ok(lent) => {
                    lent.refund();
                    known(&pool).unwrap_or_default()
                }
                Err(reason) => return Readiness::NotConfigured(reason.to_string()),
            },
        };
        if exported {
            Readiness::Ready
        } else {
            Readiness::NotConfigured(missing(domain, &handler))
        }
    }

    fn satisfies_sandbox(
        &self,
        contract: &ToolContract,
        profile: &SandboxProfile,
    ) -> Result<(), SandboxMismatch> {
        let target = contract.execution.target.as_deref();
        let (domain, _) = domain_and_handler(target.unwrap_or_else(|| contract.tool_id.as_str()));
        let file =
            self.file(domain).map_err(|error| SandboxMismatch::Missing(error.to_string()))?;
        let has = self.profile(&file, contract);
        let more = sandbox::exceeds(has.as_ref(), profile);
        if more.is_empty() {
            return Ok(());
        }
        Err(SandboxMismatch::Wider { what: "handler", more })
    }

    async fn close(&self) {
        let pools: Vec<_> = lock(&self.pools).drain().map(|(_, pool)| pool).collect();
        for pool in pools {
            pool.slots.close();
            let idle = std::mem::take(&mut lock(&pool.state).idle);
            for (_, worker) in idle {
                worker.end().await;
            }
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
        internal: "the handler was cancelled".to_owned(),
    }
}

fn finished(reply: Reply, stderr: String, domain: &str, handler: &str) -> Outcome {
    let internal = (!stderr.trim().is_empty()).then(|| format!("stderr: {stderr}"));
    match reply {
        Reply::Result(mut output) => {
            crate::text::make_plain(&mut output.payload);
            Outcome::Done(ToolOutput { internal, ..output })
        }
        // The handler completed, so its idempotency key must stay claimed.
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
