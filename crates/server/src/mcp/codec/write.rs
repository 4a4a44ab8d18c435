//! Writes answers and notifications.
//!
//! Path: 10. Doc: front-doors.md#messages

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::Id;
use crate::mcp::call_result::CallResult;
use crate::mcp::rpc_error::RpcError;

/// The result of a request. The result of a call is serialized directly, without a `Value`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::mcp) enum Body {
    /// Any other result.
    Document(Value),
    /// The result of a call.
    Call(Box<CallResult>),
}

impl From<Value> for Body {
    fn from(document: Value) -> Self {
        Self::Document(document)
    }
}

/// Returns the answer to a request.
pub(in crate::mcp) fn answer(id: &Id, answered: Result<Body, RpcError>) -> Bytes {
    #[derive(Serialize)]
    struct Answer<'a> {
        jsonrpc: &'static str,
        id: Value,
        result: &'a Body,
    }
    match answered {
        Ok(result) => {
            let bytes = match &result {
                Body::Document(_) => 0,
                Body::Call(call) => call.bytes(),
            };
            encode(&Answer { jsonrpc: "2.0", id: id.value(), result: &result }, bytes)
        }
        Err(error) => error_answer(Some(id), &error),
    }
}

/// Returns the error as an answer; its id is `null` if no id could be read.
pub(in crate::mcp) fn error_answer(id: Option<&Id>, error: &RpcError) -> Bytes {
    let id = id.map_or(Value::Null, Id::value);
    encode(&json!({ "jsonrpc": "2.0", "id": id, "error": error }), 0)
}

/// Returns a notification of the gateway.
pub(in crate::mcp) fn notification(method: &str, params: Option<Value>) -> Bytes {
    let mut message = json!({ "jsonrpc": "2.0", "method": method });
    if let (Some(params), Some(members)) = (params, message.as_object_mut()) {
        members.insert("params".to_owned(), params);
    }
    encode(&message, 0)
}

/// Joins the answers of a batch into one message.
pub(in crate::mcp) fn batch(answers: &[Bytes]) -> Bytes {
    let mut batch =
        Vec::with_capacity(answers.iter().map(Bytes::len).sum::<usize>() + answers.len() + 1);
    for (at, answer) in answers.iter().enumerate() {
        batch.push(if at == 0 { b'[' } else { b',' });
        batch.extend_from_slice(answer);
    }
    batch.push(b']');
    batch.into()
}

/// Serializes a message, of which about `bytes` are known.
fn encode(message: &impl Serialize, bytes: usize) -> Bytes {
    let mut text = Vec::with_capacity(bytes + 512);
    // Values of JSON are always serialisable.
    if serde_json::to_writer(&mut text, message).is_err() {
        text.clear();
    }
    text.into()
}
