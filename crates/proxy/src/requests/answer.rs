//! Screens a server's response before any other code reads it.
//!
//! Path: 8. Doc: call-path.md#requests

use serde_json::Value;
use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::json::{WRAPPED_DEPTH_MAX, check_value, is_within};
use toolbooth_contracts::port::Ask;
use toolbooth_registry::uris::ResourceUris;

use super::forward::{Answered, Unanswered};
use super::request::event;
use crate::server_error::bytes;
use crate::state::ProxyState;
use crate::trail::CallTrail;

/// A response in the form that can be shown and recorded. Only this stage constructs it.
pub(super) struct Screened {
    pub(super) trail: Box<CallTrail>,
    pub(super) value: Value,
    _stage: (),
}

/// Stage 8: screens a response.
pub(super) fn screen(state: &ProxyState, answered: Answered) -> Result<Screened, Unanswered> {
    let Answered { trail, server, ask, uris, mut value, .. } = answered;
    map_uris(&mut value, &ask, &server, &uris);
    match objection(state, &ask, &value) {
        None => Ok(Screened { trail, value, _stage: () }),
        Some((code, internal)) => {
            let recorded = event(&ask).is_some();
            Err(Unanswered { trail, code, upstream: None, sentence: None, internal, recorded })
        }
    }
}

fn objection(state: &ProxyState, ask: &Ask, value: &Value) -> Option<(ErrorCode, String)> {
    let invalid = |internal: String| Some((ErrorCode::InvalidToolResult, internal));
    if let Err(fault) = check_value(value) {
        return invalid(format!("the answer at {}: {}", fault.pointer(), fault.message));
    }
    if !is_within(value, WRAPPED_DEPTH_MAX) {
        return invalid(format!("the answer is nested deeper than {WRAPPED_DEPTH_MAX} levels"));
    }
    let (size, most) = (bytes(value), state.parts.limits.result_bytes_max);
    if size > most {
        let internal = format!("the answer has {size} bytes, at most {most} are taken");
        return Some((ErrorCode::ResultTooLarge, internal));
    }
    let complete = value.get("resultType").is_none_or(|kind| kind == "complete");
    if !complete {
        return invalid("the server asks for input, which is not passed on".to_owned());
    }
    let list = |name: &str| value.get(name).and_then(Value::as_array);
    let text = |value: &Value, name: &str| value.get(name).is_some_and(Value::is_string);
    let (fits, form) = match ask {
        Ask::ReadResource { .. } => (
            list("contents").is_some_and(|contents| {
                contents
                    .iter()
                    .all(|one| text(one, "uri") && (text(one, "text") || text(one, "blob")))
            }),
            "`contents`, each with a `uri` and a `text` or a `blob`",
        ),
        Ask::GetPrompt { .. } => (
            list("messages").is_some_and(|messages| {
                messages.iter().all(|one| text(one, "role") && one.get("content").is_some())
            }),
            "`messages`, each with a `role` and a `content`",
        ),
        Ask::Complete { .. } => (
            value.get("completion").is_some_and(|completion| {
                let values = completion.get("values").and_then(Value::as_array);
                values.is_some_and(|values| values.iter().all(Value::is_string))
            }),
            "a `completion` with `values` that are texts",
        ),
        Ask::Subscribe { .. } | Ask::Unsubscribe { .. } => (value.is_object(), "an object"),
    };
    if fits { None } else { invalid(format!("the answer has not {form}")) }
}

/// Replaces the URIs of a response by those that clients know.
fn map_uris(value: &mut Value, ask: &Ask, server: &str, uris: &ResourceUris) {
    let list = |value: &'_ mut Value, name: &str| -> Vec<Value> {
        value.get_mut(name).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default()
    };
    let (name, mut items) = match ask {
        Ask::ReadResource { .. } => ("contents", list(value, "contents")),
        Ask::GetPrompt { .. } => ("messages", list(value, "messages")),
        _ => return,
    };
    for item in &mut items {
        match ask {
            Ask::ReadResource { .. } => {
                if let Some(Value::String(uri)) = item.get_mut("uri") {
                    *uri = uris.to_wire(server, uri);
                }
            }
            _ => match item.get_mut("content") {
                Some(Value::Array(blocks)) => {
                    blocks.iter_mut().for_each(|block| uris.map_block(server, block));
                }
                Some(block) => uris.map_block(server, block),
                None => (),
            },
        }
    }
    if let Some(list) = value.get_mut(name).filter(|list| list.is_array()) {
        *list = Value::Array(items);
    }
}
