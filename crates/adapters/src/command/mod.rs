//! Runs commands as tools: arguments are JSON on standard input and placeholders of a template, the
//! result is standard output. No shell is used.
//!
//! Path: 3, 7. Doc: execution.md#command-discovered

mod discovery;
mod error_text;
mod template;

use async_trait::async_trait;
use toolbooth_contracts::contract::{OnSignal, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::SandboxMismatch;
use toolbooth_contracts::json::{JsonText, parse};
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::trust::TrustLevels;
use toolbooth_contracts::{
    Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome, Payload, ToolOutput,
};

pub use discovery::{CommandSource, CommandTools};
pub use error_text::ErrorText;
pub use template::CommandTemplate;

use crate::command_line::CommandLine;
use crate::error::{FillError, StartError, TemplateError};
use crate::launcher::Launcher;
use crate::outcome::ProgramEnd;
use crate::process::{self, Bounds};
use crate::sandbox;
use crate::text::{make_plain, plain};

/// Default maximum size of a listing, in bytes.
pub const LISTING_BYTES_MAX: usize = 10 << 20;
/// Maximum size of a result, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Splits a text from configuration into the POSIX words of a command line.
///
/// # Errors
/// [`TemplateError`], if the text has an open quote or names no program.
pub fn words(text: &str) -> Result<Vec<String>, TemplateError> {
    let words = shell_words::split(text)?;
    if words.is_empty() { Err(TemplateError::NoProgram) } else { Ok(words) }
}

/// How the command line of a tool is built.
#[derive(Debug, Clone)]
pub enum CallLine {
    /// The command that lists the tools also runs them. The tool's name is the last word.
    Named(CommandLine),
    /// Arguments replace the placeholders of a template.
    Filled {
        /// Variables and working directory. Its words are those of the template.
        line: CommandLine,
        /// The words of the command line.
        template: CommandTemplate,
    },
}

/// Settings for running commands.
#[derive(Debug, Clone)]
pub struct CommandSettings {
    /// The command line.
    pub line: CallLine,
    /// The output of a failed command that an agent sees.
    pub error_text: ErrorText,
    /// The sandbox profile of tools without one in their contract.
    pub sandbox: Option<SandboxProfile>,
    /// The trust levels of configured trust words.
    pub levels: TrustLevels,
}

/// Runs tools as commands, with one process for each call.
#[derive(Debug, Clone)]
pub struct CommandExecutor {
    settings: CommandSettings,
    launcher: Launcher,
}

impl CommandExecutor {
    /// Returns an executor with these settings.
    #[must_use]
    pub fn new(settings: CommandSettings, launcher: Launcher) -> Self {
        Self { settings, launcher }
    }

    fn profile(&self, contract: &ToolContract) -> Option<SandboxProfile> {
        let own = contract.sandbox.as_ref().or(self.settings.sandbox.as_ref());
        sandbox::of_call(own, self.settings.levels.of(&contract.policy.trust_level))
    }

    fn line(&self, dispatch: &Dispatch) -> Result<CommandLine, FillError> {
        let mut line = match &self.settings.line {
            CallLine::Named(line) => {
                let target = dispatch.target();
                if target.starts_with('-') || target.contains('\0') {
                    return Err(FillError::NameAsOption);
                }
                let mut line = line.clone();
                line.argv.push(target.into());
                line
            }
            CallLine::Filled { line, template } => {
                let words = template.fill(dispatch.arguments.tree())?;
                let argv = words.into_iter().map(Into::into).collect();
                CommandLine { argv, written: template.written(), ..line.clone() }
            }
        };
        if let Some(key) = &dispatch.idempotency_key {
            line.env.push(("TOOLBOOTH_IDEMPOTENCY_KEY".to_owned(), key.as_str().into()));
        }
        line.env.push(("TOOLBOOTH_CALL_ID".to_owned(), dispatch.call_id.to_string().into()));
        Ok(line)
    }
}

#[async_trait]
impl Executor for CommandExecutor {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let line = match self.line(&dispatch) {
            Ok(line) => line,
            Err(error) => {
                let sentence = error.to_string();
                return Outcome::Failed(
                    ExecutionError::adapter(Effect::NotStarted, sentence.clone())
                        .with_safe(sentence),
                );
            }
        };
        let profile = self.profile(&dispatch.contract);
        // The output must not contain the secrets that the command was given.
        let secrets = line.clone().with_secrets_of(profile.as_ref()).secrets();
        let bounds = Bounds {
            profile: profile.as_ref(),
            timeout: Some(dispatch.timeout),
            execution_log: dispatch.execution_log.clone(),
            ..Bounds::free(OUTPUT_BYTES_MAX)
        };
        let input = dispatch.arguments.as_str().as_bytes().to_vec();
        match process::run(&self.launcher, &line, input, bounds, &conversation).await {
            Ok(mut finished) => {
                for stream in [&mut finished.stdout, &mut finished.stderr] {
                    if secrets.is_empty() || (!secrets.has_numbers() && parse(stream).is_ok()) {
                        // A JSON document is redacted after it is parsed.
                        continue;
                    }
                    // Bytes that are not UTF-8 must not prevent the redaction of the text around
                    // them.
                    let text = String::from_utf8_lossy(stream);
                    let clean = secrets.conceal_text(&text);
                    if clean != text {
                        *stream = clean.into_bytes();
                    }
                }
                if finished.ended != ProgramEnd::Exit(0) {
                    let (stdout, stderr) = (plain(&finished.stdout), plain(&finished.stderr));
                    finished.record_denials(&stdout, &stderr, &dispatch.execution_log);
                }
                let on_signal = dispatch.contract.idempotency.on_signal.unwrap_or_default();
                let mut outcome = answer(finished, self.settings.error_text, on_signal);
                // Escapes of JSON and of terminals hide a secret until they are decoded.
                secrets.conceal_outcome(&mut outcome);
                outcome
            }
            Err(error) => Outcome::Failed(not_run(&error, &line.shown())),
        }
    }

    async fn readiness(&self, contract: &ToolContract, _probe: bool) -> Readiness {
        let line = match &self.settings.line {
            CallLine::Named(line) | CallLine::Filled { line, .. } => line,
        };
        let profile = self.profile(contract);
        let ready = line.clone().with_secrets_of(profile.as_ref()).readiness();
        if ready != Readiness::Ready {
            return ready;
        }
        if let Some(path) = profile.as_ref().and_then(|profile| line.missing_path(profile)) {
            let reason = format!("the path `{path}` of its sandbox is not there");
            return Readiness::NotConfigured(reason);
        }
        match profile {
            Some(profile) => match self.launcher.check(&profile).await {
                Ok(()) => Readiness::Ready,
                Err(unavailable) => Readiness::NotConfigured(unavailable.to_string()),
            },
            None => Readiness::Ready,
        }
    }

    fn satisfies_sandbox(
        &self,
        _contract: &ToolContract,
        _profile: &SandboxProfile,
    ) -> Result<(), SandboxMismatch> {
        // Each call is contained separately, or refused when it is started.
        Ok(())
    }
}

/// Returns the error for a command that was not run.
pub(crate) fn not_run(error: &StartError, shown: &str) -> ExecutionError {
    let internal = format!("`{shown}`: {error}");
    match error {
        StartError::Unavailable(_) | StartError::Launcher(_) => ExecutionError {
            code: ErrorCode::SandboxUnavailable,
            effect: Effect::NotStarted,
            safe: None,
            internal,
        },
        StartError::Io(_) => ExecutionError {
            code: ErrorCode::NotConfigured,
            effect: Effect::NotStarted,
            safe: Some("the tool's command cannot be started".to_owned()),
            internal,
        },
    }
}

/// Returns the outcome of a finished command.
fn answer(finished: process::Finished, error_text: ErrorText, on_signal: OnSignal) -> Outcome {
    let stdout = plain(&finished.stdout);
    let stderr = plain(&finished.stderr);
    let said = (!stderr.trim().is_empty()).then(|| format!("stderr: {stderr}"));
    let internal = match (&finished.ended, said) {
        (ProgramEnd::Exit(0), said) => said,
        (ended, said) => {
            let how = format!("{}: the command {}", ended.kind(), ended.described());
            Some([Some(how), said].into_iter().flatten().collect::<Vec<_>>().join("\n"))
        }
    };
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
        ProgramEnd::Exit(0) => {
            let text = Payload::text(stdout.trim_end_matches('\n'));
            let data = String::from_utf8(finished.stdout).ok();
            let data = data.and_then(|text| JsonText::parse(text).ok());
            let structured_content = data.filter(JsonText::is_object);
            let mut output = ToolOutput::new(Payload { structured_content, ..text });
            make_plain(&mut output.payload);
            Outcome::Done(ToolOutput { internal, ..output })
        }
        ProgramEnd::Exit(_) => failed(format!("the command {}", finished.ended.described())),
        ProgramEnd::Signal(_) if finished.may_have_run && on_signal == OnSignal::Failed => {
            failed(format!("the command {}", finished.ended.described()))
        }
        ended => {
            let mut error = cut(&ended, finished.may_have_run, &stderr);
            if !stdout.trim().is_empty() {
                error.internal = format!("{}\nstdout: {}", error.internal, stdout.trim_end());
            }
            Outcome::Failed(error)
        }
    }
}

/// Returns the error for a process that ended without a result.
pub(crate) fn cut(ended: &ProgramEnd, may_have_run: bool, stderr: &str) -> ExecutionError {
    let ran = may_have_run && !matches!(ended, ProgramEnd::Unstarted(_));
    let effect = if ran { Effect::Unknown } else { Effect::NotStarted };
    let (code, safe) = match ended {
        ProgramEnd::Timeout(_) => (ErrorCode::Timeout, None),
        ProgramEnd::OutputLimit(_) => (ErrorCode::ResultTooLarge, None),
        ProgramEnd::WriteLimit(_) => {
            (ErrorCode::ResultTooLarge, Some("the tool wrote more than it may".to_owned()))
        }
        ProgramEnd::Cancelled => (ErrorCode::Cancelled, None),
        ProgramEnd::MemoryLimit => {
            (ErrorCode::AdapterFailed, Some("the tool used more memory than it may".to_owned()))
        }
        ProgramEnd::Unstarted(unstarted) if unstarted.program => {
            (ErrorCode::NotConfigured, Some("the tool's command cannot be started".to_owned()))
        }
        ProgramEnd::Unstarted(_) => (ErrorCode::SandboxUnavailable, None),
        ProgramEnd::Signal(_) => {
            (ErrorCode::AdapterFailed, Some(format!("the command {}", ended.described())))
        }
        ProgramEnd::Exit(_) | ProgramEnd::Lost => (ErrorCode::AdapterFailed, None),
    };
    let mut internal = format!("{}: the command {}", ended.kind(), ended.described());
    if !stderr.trim().is_empty() {
        internal = format!("{internal}\nstderr: {stderr}");
    }
    ExecutionError { code, effect, safe, internal }
}

#[cfg(test)]
mod tests;
