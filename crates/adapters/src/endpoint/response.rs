//! Reads the response of an endpoint as the result of a tool, or as its failure.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};
use futures_util::StreamExt;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use toolbooth_contracts::causes::{causes, with_causes};
use toolbooth_contracts::json::{JsonText, parse};
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Effect, ErrorCode, Payload, ToolOutput};

use super::{Endpoint, request};
use crate::net_guard::ResolveError;
use crate::text::plain;
use crate::tracked_body;

/// Maximum characters of the error title that an endpoint returns.
const TITLE_CHARS_MAX: usize = 300;

/// Maximum bytes of an error response that are stored for operators.
const FAILURE_BYTES_MAX: usize = 64 << 10;

/// Converts the failure of a request without a response. `taken`: the server may have received all
/// of it.
pub(super) fn failed(
    error: &reqwest::Error,
    taken: bool,
    before: Effect,
    refuse: impl FnOnce(String) -> ExecutionError,
) -> ExecutionError {
    let mut told = String::new();
    for cause in causes(error) {
        if let Some(ResolveError::Refused(reason)) = cause.downcast_ref() {
            return refuse(reason.to_string());
        }
        told = cause.to_string();
    }
    let unsent = error.is_connect() || error.is_builder();
    let effect = if unsent || !taken { before } else { Effect::Unknown };
    if error.is_timeout() && !unsent {
        return ExecutionError { code: ErrorCode::Timeout, effect, safe: None, internal: told };
    }
    ExecutionError::adapter(effect, told).with_safe("the tool's endpoint cannot be reached")
}

/// Reads at most `most` bytes of a body; returns them, and whether the body is complete. The limit
/// applies to decompressed bytes.
async fn body(response: reqwest::Response, most: usize) -> reqwest::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        let space = most.saturating_sub(bytes.len());
        bytes.extend_from_slice(chunk.get(..space.min(chunk.len())).unwrap_or_default());
        if chunk.len() > space {
            return Ok((bytes, false));
        }
    }
    Ok((bytes, true))
}

/// Decodes a text by the charset of its media type, UTF-8 if there is none or it is not known. JSON is UTF-8 whatever its
/// charset says (RFC 8259, 8.1), unless it is not. Also returns whether no bytes had to be replaced.
fn decoded<'b>(bytes: &'b [u8], media_type: &str) -> (Cow<'b, str>, bool) {
    let parameters = media_type.split(';').skip(1).filter_map(|own| own.split_once('='));
    let mut named = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    let label = named.next().map(|(_, label)| label.trim().trim_matches('"'));
    let encoding = label.and_then(|label| Encoding::for_label_no_replacement(label.as_bytes()));
    let (text, has_errors) = UTF_8.decode_with_bom_removal(bytes);
    match encoding {
        Some(encoding) if has_errors || !request::is_json(media_type) => {
            let (text, has_errors) = encoding.decode_with_bom_removal(bytes);
            (text, !has_errors)
        }
        _ => (text, !has_errors),
    }
}

fn is_text(media_type: &str) -> bool {
    let bare = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    bare.is_empty()
        || bare.starts_with("text/")
        || bare.ends_with("+xml")
        || ["application/xml", "application/yaml", "application/x-ndjson"].contains(&bare.as_str())
}

impl Endpoint {
    pub(super) async fn answer(
        &self,
        response: reqwest::Response,
        before: Effect,
    ) -> Result<ToolOutput, ExecutionError> {
        let status = response.status();
        let media_type = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let fine = status.as_u16() < 400;
        let most = if fine { self.settings.response_bytes_max } else { FAILURE_BYTES_MAX };
        let (bytes, whole) = body(response, most).await.map_err(|error| {
            let internal = format!("the response broke off: {}", with_causes(&error));
            if error.is_timeout() {
                let (code, effect) = (ErrorCode::Timeout, Effect::Unknown);
                return ExecutionError { code, effect, safe: None, internal };
            }
            ExecutionError::adapter(Effect::Unknown, internal)
        })?;
        if !fine {
            return Err(self.refusal(status, &bytes, before));
        }
        if !whole {
            return Err(ExecutionError {
                code: ErrorCode::ResultTooLarge,
                effect: Effect::Completed,
                safe: None,
                internal: format!("the response has more than {most} bytes"),
            });
        }
        // The agent must not see the secrets given to the endpoint.
        let secrets = self.secrets();
        let invalid = |internal: String| ExecutionError {
            code: ErrorCode::InvalidToolResult,
            effect: Effect::Completed,
            safe: None,
            internal: secrets.conceal_text(&internal),
        };
        let (mut text, is_exact) = decoded(&bytes, &media_type);
        // In text that only a person or a model reads, a character can be replaced.
        if !is_exact && request::is_json(&media_type) {
            return Err(invalid(
                "the response says that it is JSON, but its text cannot be decoded".to_owned(),
            ));
        }
        if secrets.has_numbers() {
            text = secrets.conceal_text(&text).into();
        }
        let is_json = request::is_json(&media_type) || media_type.is_empty();
        if is_json && !text.trim().is_empty() {
            match JsonText::parse(&*text) {
                Ok(data) => {
                    let data = secrets.concealed_json(&data).unwrap_or(data);
                    return Ok(ToolOutput::new(Payload::data(data)));
                }
                Err(fault) if !media_type.is_empty() => {
                    let message = format!("the response says that it is JSON, but: {fault}");
                    return Err(invalid(message));
                }
                Err(_) => (),
            }
        }
        if is_text(&media_type) || text.trim().is_empty() {
            return Ok(ToolOutput::text(secrets.conceal_text(&plain(text.as_bytes()))));
        }
        Err(invalid(format!("the response is `{media_type}`, neither JSON nor text")))
    }

    /// Converts a response with a status of 400 or more into an error.
    fn refusal(&self, status: StatusCode, bytes: &[u8], before: Effect) -> ExecutionError {
        let secrets = self.secrets();
        let text = secrets.conceal_text(&plain(bytes));
        let problem = parse(text.as_bytes()).unwrap_or_default();
        let word = |name: &str| problem.get(name).and_then(Value::as_str).map(str::to_owned);
        let title = word("title").or_else(|| word("message")).or_else(|| word("error"));
        let title = title.or_else(|| status.canonical_reason().map(str::to_owned));
        let title = secrets.conceal_text(&plain(title.unwrap_or_default().as_bytes()));
        let title: String = title.chars().take(TITLE_CHARS_MAX).collect();
        // A server that responded with a redirect before may have processed the request.
        let effect = if tracked_body::says_not_taken(status) { before } else { Effect::Unknown };
        let safe = format!("the tool's endpoint answered {}: {title}", status.as_u16());
        ExecutionError::adapter(effect, format!("status {status}: {text}")).with_safe(safe)
    }
}
