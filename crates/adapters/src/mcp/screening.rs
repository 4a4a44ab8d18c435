//! Screens the results of a server: removes members that only the gateway may set, and rejects
//! requests for input.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::{ContentBlock, Payload, ToolOutput};

use super::fault::{Failure, Fault};
use super::results::{FitResult, RpcResult};

/// Prefixes of members of `_meta` that are reserved for the gateway or for one connection.
const RESERVED_META: [&str; 2] = ["toolbooth/", "io.modelcontextprotocol/"];
/// Members of a result that ask for input.
const INPUT_MEMBERS: [&str; 3] = ["resultType", "inputRequests", "requestState"];

/// Returns the output of a tool, unchanged except for reserved members of `_meta`.
///
/// # Errors
/// [`Fault::InputRequired`] where the result is not the last one of its request.
fn output(result: RpcResult) -> Result<ToolOutput, Fault> {
    let FitResult { mut payload, is_error, is_complete, .. } = match result {
        RpcResult::Fit(read) => *read,
        RpcResult::Unfit(tree) => {
            complete(tree.clone())?;
            return Ok(ToolOutput::of(JsonText::of(&tree).map(Payload::data)));
        }
    };
    if !is_complete {
        return Err(Fault::InputRequired);
    }
    for block in payload.content.iter_mut().flatten().filter(|block| block.has_meta()) {
        let mut tree = block.tree();
        strip_block(&mut tree);
        // A block without some of its members still passes the gate.
        if let Ok(stripped) = ContentBlock::of(&tree) {
            *block = stripped;
        }
    }
    let is_own = |(name, _): &(Cow<'_, str>, JsonText)| !is_reserved(name);
    payload.meta = payload.meta.take().and_then(|meta| {
        let own: Vec<_> = meta.members().into_iter().filter(is_own).collect();
        let members = own.iter().map(|(name, member)| (name.as_ref(), member.clone()));
        (!own.is_empty()).then(|| JsonText::object(members))
    });
    let fault = is_error.is_none().then(|| "`isError` is not a boolean".to_owned());
    Ok(ToolOutput { is_error: is_error == Some(true), fault, ..ToolOutput::new(payload) })
}

/// Returns the result of a request that is not a call, without the members that can ask for input.
///
/// # Errors
/// The failure, or [`Fault::InputRequired`] where the result is not the last one of its request.
pub(super) fn completed(result: Result<RpcResult, Failure>) -> Result<Value, Failure> {
    complete(result?.tree()).map_err(incomplete)
}

/// Like [`completed`], for a call.
pub(super) fn called(result: Result<RpcResult, Failure>) -> Result<ToolOutput, Failure> {
    output(result?).map_err(incomplete)
}

fn incomplete(fault: Fault) -> Failure {
    Failure { fault, sent: true, stderr: String::new() }
}

fn complete(mut result: Value) -> Result<Value, Fault> {
    if let Value::Object(members) = &mut result {
        if members.get("resultType").is_some_and(|own| own != "complete") {
            return Err(Fault::InputRequired);
        }
        for name in INPUT_MEMBERS {
            members.shift_remove(name);
        }
    }
    Ok(result)
}

fn is_reserved(name: &str) -> bool {
    RESERVED_META.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes reserved members of `_meta` from the result of a request that is not a call.
pub(super) fn strip_answer(answer: &mut Value) {
    let Value::Object(members) = answer else { return };
    strip(members);
    if let Some(Value::Array(contents)) = members.get_mut("contents") {
        contents.iter_mut().for_each(strip_block);
    }
    if let Some(Value::Array(messages)) = members.get_mut("messages") {
        for message in messages {
            strip_block(message);
            match message.get_mut("content") {
                // Some servers send a list.
                Some(Value::Array(blocks)) => blocks.iter_mut().for_each(strip_block),
                Some(block) => strip_block(block),
                None => (),
            }
        }
    }
}

/// Removes reserved members of `_meta` from a content block and its resource.
fn strip_block(block: &mut Value) {
    if let Value::Object(members) = block {
        strip(members);
        if let Some(Value::Object(resource)) = members.get_mut("resource") {
            strip(resource);
        }
    }
}

/// Removes reserved members from `_meta`, and `_meta` itself if it is then empty.
fn strip(members: &mut Map<String, Value>) {
    let Some(Value::Object(meta)) = members.get_mut("_meta") else { return };
    meta.retain(|name, _| !is_reserved(name));
    if meta.is_empty() {
        members.shift_remove("_meta");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use toolbooth_contracts::json::Reader;

    use super::*;

    fn output(result: &Value) -> ToolOutput {
        let found = RpcResult::read(&mut Reader::new(&result.to_string())).unwrap();
        super::output(found).unwrap()
    }

    fn forged() -> Value {
        json!({ "a": 1, "toolbooth/errorCode": "x", "io.modelcontextprotocol/related-task": 2 })
    }

    #[test]
    fn a_result_is_an_error_or_not() {
        let told = |is_error: Value| {
            let told = output(&json!({ "content": [], "isError": is_error }));
            (told.is_error, told.fault.is_some())
        };
        assert_eq!((told(json!(true)), told(json!(false))), ((true, false), (false, false)));
        assert_eq!(told(Value::Null), (false, false));
        for other in [json!("yes"), json!(1), json!([true])] {
            assert_eq!(told(other), (false, true));
        }
    }

    #[test]
    fn a_server_does_not_speak_for_the_gateway() {
        let output = output(&json!({
            "content": [
                { "type": "text", "text": "t", "_meta": forged() },
                { "type": "resource", "resource": { "uri": "r:1", "_meta": forged() } },
            ],
            "structuredContent": { "_meta": forged() },
            "_meta": forged(),
        }));
        let own = json!({ "a": 1 });
        assert_eq!(output.payload.meta.unwrap(), own);
        let content = output.payload.content.unwrap();
        assert_eq!(content[0].tree()["_meta"], own);
        assert_eq!(content[1].tree()["resource"]["_meta"], own);
        // `structuredContent` is data of the tool, in which `_meta` is not reserved.
        assert_eq!(output.payload.structured_content.unwrap(), json!({ "_meta": forged() }));

        let mut answer = json!({
            "contents": [{ "uri": "r:1", "_meta": { "toolbooth/warnings": [] } }],
            "messages": [
                { "role": "user", "content": { "type": "text", "text": "t", "_meta": forged() } },
                { "role": "user", "content": [{ "_meta": forged() }] },
            ],
            "_meta": forged(),
        });
        strip_answer(&mut answer);
        assert_eq!(
            answer,
            json!({
                "contents": [{ "uri": "r:1" }],
                "messages": [
                    { "role": "user", "content": { "type": "text", "text": "t", "_meta": own } },
                    { "role": "user", "content": [{ "_meta": own }] },
                ],
                "_meta": own,
            })
        );
    }

    #[test]
    fn a_result_that_asks_for_input_is_none() {
        for kind in [json!("input_required"), json!("task"), json!(1), Value::Null] {
            let asking = json!({ "resultType": kind, "contents": [] });
            assert_eq!(complete(asking), Err(Fault::InputRequired), "{kind}");
        }
        let whole = json!({ "resultType": "complete", "inputRequests": {}, "requestState": "s",
            "ttlMs": 1, "contents": [] });
        assert_eq!(complete(whole), Ok(json!({ "ttlMs": 1, "contents": [] })));
        assert_eq!(complete(json!(["a"])), Ok(json!(["a"])));
    }
}
