//! Defines how a program ended.
//!
//! Path: 7. Doc: execution.md#processes

use toolbooth_launcher::wire::{Report, Unstarted};

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramEnd {
    /// By itself, with a code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It used up its wall time or its processor time and was ended.
    Timeout(&'static str),
    /// Its output exceeded the limit and it was ended.
    OutputLimit(String),
    /// It wrote more beneath a path than the limit allows and was ended.
    WriteLimit(String),
    /// It exceeded its memory limit and was ended.
    MemoryLimit,
    /// The call was cancelled; it was ended.
    Cancelled,
    /// It was never started, for this reason.
    Unstarted(Unstarted),
    /// The launcher failed or was lost. The outcome of the program is unknown.
    Lost,
}

impl ProgramEnd {
    /// Converts a launcher's report; `None` = the launcher was lost.
    #[must_use]
    pub fn of(report: Option<Report>) -> Self {
        match report {
            Some(Report::Exit(code)) => Self::Exit(code),
            Some(Report::Signal(signal)) => Self::Signal(signal),
            Some(Report::MemoryLimit) => Self::MemoryLimit,
            Some(Report::CpuLimit) => Self::Timeout("its processor time"),
            Some(Report::WriteLimit { path, bytes_max }) => {
                Self::WriteLimit(format!("more than {bytes_max} bytes are beneath `{path}`"))
            }
            Some(Report::Unstarted(unstarted)) => Self::Unstarted(unstarted),
            // The launcher had received its order, so the program may have run.
            Some(Report::Failed(_) | Report::Primitives(_)) | None => Self::Lost,
        }
    }

    /// Returns the kind, as in codes and records.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exit(_) => "exit",
            Self::Signal(_) => "signal",
            Self::Timeout(_) => "timeout",
            Self::OutputLimit(_) | Self::WriteLimit(_) => "output-limit",
            Self::MemoryLimit => "memory-limit",
            Self::Cancelled => "cancelled",
            Self::Unstarted(_) | Self::Lost => "launcher-error",
        }
    }

    /// Returns a predicate for a sentence about the process, such as `was ended by signal 9`.
    #[must_use]
    pub fn described(&self) -> String {
        match self {
            Self::Exit(code) => format!("ended with exit code {code}"),
            Self::Signal(signal) => format!("was ended by signal {signal}"),
            Self::Timeout(what) => format!("used up {what}"),
            Self::OutputLimit(what) | Self::WriteLimit(what) => format!("was ended: {what}"),
            Self::MemoryLimit => "used more memory than it may".to_owned(),
            Self::Cancelled => "was cancelled".to_owned(),
            Self::Unstarted(unstarted) => {
                format!("could not be started: {}: {}", unstarted.step, unstarted.cause)
            }
            Self::Lost => "was lost with its launcher".to_owned(),
        }
    }
}
