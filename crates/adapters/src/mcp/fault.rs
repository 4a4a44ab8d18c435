//! The reasons why a request to a server has no result.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_mcp::{Era, code};

use super::greeting;
use super::message::Refusal;
use super::results::RpcResult;

/// Maximum bytes of a server's error message that an agent sees.
const REFUSAL_BYTES_MAX: usize = 512;

/// A fault of a request; the text is for operators.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// The server returned an error.
    #[error("the server refused with code {0}")]
    Refused(Refusal),
    /// No response arrived in time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The response does not follow the protocol.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    /// The response exceeds the limit, in bytes.
    #[error("the server's answer has more than {0} bytes")]
    TooLarge(usize),
    /// The server requires more input than the request contains.
    #[error("the server asks for input, which is not passed on")]
    InputRequired,
    /// The server sent an HTTP response without a message.
    #[error("{1}")]
    Status(u16, String),
    /// The connection could not be used, or broke.
    #[error("{0}")]
    Lost(String),
    /// The server does not know the session and did not process the request.
    #[error("the server does not know the session any more")]
    SessionEnded,
}

/// Whether an error mentions a session.
pub(super) fn names_session(refusal: &Refusal) -> bool {
    refusal.message.to_ascii_lowercase().contains("session")
}

/// The response to a request.
pub(super) type Answered = Result<RpcResult, Fault>;

/// The failure of a request.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// Whether the request may have reached the server.
    pub(super) sent: bool,
    /// The server's output on standard error.
    pub(super) stderr: String,
}

impl Failure {
    /// Whether the server refuses all further requests of this connection: it does not know the session, or it
    /// rejects the credentials. The credentials may have been replaced meanwhile.
    pub(super) fn needs_new_session(&self) -> bool {
        matches!(self.fault, Fault::SessionEnded | Fault::Status(401, _))
    }

    /// Whether the failure shows that the server is not of the era of the request, for example
    /// because another server replaced it.
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

    /// Describes the failure for operators, without secrets; `server` is named first.
    fn internal(&self, server: &str, conceal: impl Fn(&str) -> String) -> String {
        let mut internal = format!("{server}: {}", self.fault);
        if !self.stderr.trim().is_empty() {
            internal = format!("{internal}\nstderr: {}", self.stderr);
        }
        conceal(&internal)
    }

    /// Converts the failure of a call.
    pub(super) fn of_call(self, server: &str, conceal: impl Fn(&str) -> String) -> ExecutionError {
        let internal = self.internal(server, &conceal);
        let effect = if self.sent { Effect::Unknown } else { Effect::NotStarted };
        let error = ExecutionError::adapter(effect, internal);
        match self.fault {
            // The server responded: it did not run the tool, or the tool failed.
            Fault::Refused(refusal) => {
                // The protocol uses these codes for errors before the tool runs. SDKs also return the other codes
                // when a tool raises an error or asks the client for input.
                let not_run =
                    [code::HEADER_MISMATCH, code::UNSUPPORTED_VERSION].contains(&refusal.code);
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
            // A response arrived, so the server received the request.
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

    /// Converts the failure of a request that is not a call.
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

/// Describes to an agent the effect of a call without a response.
fn effect_sentence(effect: Effect) -> &'static str {
    match effect {
        Effect::NotStarted => "the call was not made",
        _ => "whether the call took effect is not known",
    }
}

/// Describes to an agent the loss of a server before or during a call.
pub(super) fn lost(effect: Effect) -> String {
    let how = match effect {
        Effect::NotStarted => "cannot be reached",
        _ => "went away in mid-call",
    };
    format!("the tool's server {how}; {}", effect_sentence(effect))
}

/// Returns a server's message on one line, without control characters and secrets, truncated to
/// [`REFUSAL_BYTES_MAX`].
fn sentence(text: &str, conceal: impl Fn(&str) -> String) -> String {
    // Each step may join or split a secret, so secrets are concealed after each.
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
        let error = refused(-32_000, "no \x1b[31mspace\x1b[0m\n for hunter2\u{7}", true);
        assert_eq!(
            error.safe.as_deref(),
            Some("the tool's server refused the call (-32000): no space for <secret>")
        );
        assert_eq!(error.effect, Effect::Unknown);
        let error = refused(-32_000, "hun\u{7}ter2 and \x1b[1mhunt\x1b[0mer2", true);
        assert!(error.safe.unwrap().ends_with(": <secret> and <secret>"));
        for (code, effect) in [
            (code::INVALID_PARAMS, Effect::Unknown),
            (code::INVALID_REQUEST, Effect::Unknown),
            (code::METHOD_NOT_FOUND, Effect::Unknown),
            (code::MISSING_CAPABILITY, Effect::Unknown),
            (code::HEADER_MISMATCH, Effect::NotStarted),
            (code::UNSUPPORTED_VERSION, Effect::NotStarted),
        ] {
            assert_eq!(refused(code, "m", true).effect, effect, "{code}");
        }
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
