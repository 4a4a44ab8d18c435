//! Why a request to a server has no result.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use toolbooth_contracts::port::{ExecutionError, UpstreamError};
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_mcp::{Era, code};

use super::greeting;
use super::message::Refusal;
use super::results::RpcResult;

/// Bytes of a server's own sentence that an agent is shown.
const REFUSAL_BYTES_MAX: usize = 512;

/// What went wrong; the text is for operators.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// The server answered an error.
    #[error("the server refused with code {0}")]
    Refused(Refusal),
    /// No answer came in time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller told the request to stop.
    #[error("the request was told to stop")]
    Cancelled,
    /// An answer came, and it is none of the protocol.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    /// An answer came that is over the limit, in bytes.
    #[error("the server's answer has more than {0} bytes")]
    TooLarge(usize),
    /// The server answered that it needs more than the request has.
    #[error("the server asks for input, which is not passed on")]
    InputRequired,
    /// The server answered over HTTP, and with no message.
    #[error("{1}")]
    Status(u16, String),
    /// The connection could not be used, or broke.
    #[error("{0}")]
    Lost(String),
    /// The server does not know the session, and did not take the request.
    #[error("the server does not know the session any more")]
    SessionEnded,
}

/// Whether an error speaks of a session.
pub(super) fn names_session(refusal: &Refusal) -> bool {
    refusal.message.to_ascii_lowercase().contains("session")
}

/// The answer to a request.
pub(super) type Answered = Result<RpcResult, Fault>;

/// A request that has no result.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// Whether the request may have reached the server.
    pub(super) sent: bool,
    /// What the server printed on standard error.
    pub(super) stderr: String,
}

impl Failure {
    /// Whether it says that the server is not of the era in which it was asked, as one is that was
    /// replaced by another.
    pub(super) fn is_of_other_era(&self, era: Era) -> bool {
        match (&self.fault, era) {
            // In the modern era every refusal is a message.
            (Fault::Status(400 | 404 | 405, _), Era::Modern) => true,
            (Fault::Refused(refusal), Era::Modern) => {
                code::UNSUPPORTED_VERSION == refusal.code || (!self.sent && names_session(refusal))
            }
            (Fault::Refused(refusal), Era::Legacy) => {
                !self.sent && greeting::is_modern_refusal(refusal)
            }
            _ => false,
        }
    }

    /// The failure without what is to be kept secret, for operators; `server` is named first.
    fn internal(&self, server: &str, conceal: impl Fn(&str) -> String) -> String {
        let mut internal = format!("{server}: {}", self.fault);
        if !self.stderr.trim().is_empty() {
            internal = format!("{internal}\nstderr: {}", self.stderr);
        }
        conceal(&internal)
    }

    /// The failure of a call.
    pub(super) fn of_call(self, server: &str, conceal: impl Fn(&str) -> String) -> ExecutionError {
        let internal = self.internal(server, &conceal);
        let effect = if self.sent { Effect::Unknown } else { Effect::NotStarted };
        let error = ExecutionError::adapter(effect, internal);
        match self.fault {
            // The server answered: it did not run the tool, or it says that the tool failed.
            Fault::Refused(refusal) => {
                let not_run = [
                    code::INVALID_PARAMS,
                    code::METHOD_NOT_FOUND,
                    code::INVALID_REQUEST,
                    // The protocol has servers say these before anything runs.
                    code::HEADER_MISMATCH,
                    code::MISSING_CAPABILITY,
                    code::UNSUPPORTED_VERSION,
                ]
                .contains(&refusal.code);
                let effect = if not_run { Effect::NotStarted } else { effect };
                let message = sentence(&refusal.message, &conceal);
                let safe = if message.is_empty() {
                    format!("the tool's server refused the call ({})", refusal.code)
                } else {
                    format!("the tool's server refused the call ({}): {message}", refusal.code)
                };
                ExecutionError { effect, ..error }.with_safe(safe)
            }
            Fault::Timeout => ExecutionError { code: ErrorCode::Timeout, ..error },
            Fault::Cancelled => ExecutionError { code: ErrorCode::Cancelled, ..error },
            // Some answer came, so the request was taken.
            Fault::Unreadable(_) => ExecutionError { effect: Effect::Unknown, ..error }
                .with_safe("the tool's server gave an answer that cannot be read"),
            Fault::TooLarge(limit) => {
                let safe = format!("the tool's server gave an answer of more than {limit} bytes");
                ExecutionError { effect: Effect::Unknown, ..error }.with_safe(safe)
            }
            Fault::InputRequired => ExecutionError { effect: Effect::Unknown, ..error }
                .with_safe("the tool asks for input, which this gateway does not pass on"),
            Fault::Status(status, _) => {
                let safe = format!(
                    "the tool's server answered with status {status}; {}",
                    effect_sentence(effect)
                );
                error.with_safe(safe)
            }
            Fault::Lost(_) | Fault::SessionEnded => error.with_safe(lost(effect)),
        }
    }

    /// The failure of a request that is no call.
    pub(super) fn of_request(self, conceal: impl Fn(&str) -> String) -> UpstreamError {
        match self.fault {
            Fault::Refused(Refusal { code, message, data }) => UpstreamError::Refused {
                code,
                message: conceal(&message),
                data: data.map(|data| *data),
            },
            Fault::Timeout => UpstreamError::Timeout,
            Fault::Cancelled => UpstreamError::Cancelled,
            Fault::Unreadable(reason) => UpstreamError::Unreadable(conceal(&reason)),
            fault @ (Fault::TooLarge(_) | Fault::InputRequired) => {
                UpstreamError::Unreadable(fault.to_string())
            }
            fault @ (Fault::Status(..) | Fault::Lost(_) | Fault::SessionEnded) => {
                UpstreamError::Unreachable(conceal(&fault.to_string()))
            }
        }
    }
}

/// What an agent is told of a call whose answer did not come.
fn effect_sentence(effect: Effect) -> &'static str {
    match effect {
        Effect::NotStarted => "the call was not made",
        _ => "whether the call took effect is not known",
    }
}

/// What an agent is told where a server was lost before or during a call.
pub(super) fn lost(effect: Effect) -> String {
    let how = match effect {
        Effect::NotStarted => "cannot be reached",
        _ => "went away in mid-call",
    };
    format!("the tool's server {how}; {}", effect_sentence(effect))
}

/// A server's own words on one line, without control characters and secrets, cut to what an agent
/// is shown.
fn sentence(text: &str, conceal: impl Fn(&str) -> String) -> String {
    // Each step may put a secret together or break it, so they are looked for after each.
    let plain = conceal(&crate::text::plain(conceal(text).as_bytes()));
    let mut line = conceal(&plain.split_whitespace().collect::<Vec<_>>().join(" "));
    if line.len() > REFUSAL_BYTES_MAX {
        let end = (0..=REFUSAL_BYTES_MAX).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or_default());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: i64, message: &str, sent: bool) -> ExecutionError {
        let refusal = Refusal { code, message: message.to_owned(), data: None };
        let failure = Failure { fault: Fault::Refused(refusal), sent, stderr: String::new() };
        failure.of_call("mcp:s", |text| text.replace("hunter2", "<secret>"))
    }

    #[test]
    fn a_refusal_reaches_the_agent_screened() {
        let error = refused(-32_000, "no \x1b[31mroom\x1b[0m\n for hunter2\u{7}", true);
        assert_eq!(
            error.safe.as_deref(),
            Some("the tool's server refused the call (-32000): no room for <secret>")
        );
        assert_eq!(error.effect, Effect::Unknown);
        let error = refused(-32_000, "hun\u{7}ter2 and \x1b[1mhunt\x1b[0mer2", true);
        assert!(error.safe.unwrap().ends_with(": <secret> and <secret>"));
        assert_eq!(refused(-32_602, "m", true).effect, Effect::NotStarted);
        let long = refused(-1, &"ä".repeat(4_000), true).safe.unwrap();
        assert!(long.len() < 600 && long.ends_with('ä'));
    }

    #[test]
    fn the_effect_says_whether_anything_was_sent() {
        let lost = || Fault::Lost("x".to_owned());
        let unreadable = || Fault::Unreadable("x".to_owned());
        let gone =
            "the tool's server went away in mid-call; whether the call took effect is not known";
        let unreached = "the tool's server cannot be reached; the call was not made";
        let status = "the tool's server answered with status 503; the call was not made";
        let unread = "the tool's server gave an answer that cannot be read";
        for (fault, sent, code, effect, safe) in [
            (lost(), true, ErrorCode::AdapterFailed, Effect::Unknown, Some(gone)),
            (lost(), false, ErrorCode::AdapterFailed, Effect::NotStarted, Some(unreached)),
            (Fault::Timeout, true, ErrorCode::Timeout, Effect::Unknown, None),
            (Fault::Cancelled, false, ErrorCode::Cancelled, Effect::NotStarted, None),
            (unreadable(), true, ErrorCode::AdapterFailed, Effect::Unknown, Some(unread)),
            (
                Fault::SessionEnded,
                false,
                ErrorCode::AdapterFailed,
                Effect::NotStarted,
                Some(unreached),
            ),
            (
                Fault::Status(503, "x".to_owned()),
                false,
                ErrorCode::AdapterFailed,
                Effect::NotStarted,
                Some(status),
            ),
        ] {
            let failure = Failure { fault, sent, stderr: String::new() };
            let error = failure.of_call("mcp:s", str::to_owned);
            assert_eq!((error.code, error.effect), (code, effect), "{}", error.internal);
            assert_eq!(error.safe.as_deref(), safe, "{}", error.internal);
        }
    }
}
