//! The results of a server as they are handed on: without what only the gateway may say, and
//! without requests for input.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use serde_json::{Map, Value};
use toolbooth_contracts::{ContentBlock, ToolOutput};

use super::fault::{Failure, Fault};

/// Prefixes of members of `_meta` that belong to the gateway, or to one connection.
const RESERVED_META: [&str; 2] = ["toolbooth/", "io.modelcontextprotocol/"];
/// Members of a result that ask for input.
const INPUT_MEMBERS: [&str; 3] = ["resultType", "inputRequests", "requestState"];

/// The result of a request, where it asks for nothing, without the members that could.
///
/// # Errors
/// The failure, or [`Fault::InputRequired`] where the result is not the last one of its request.
pub(super) fn completed(result: Result<Value, Failure>) -> Result<Value, Failure> {
    complete(result?).map_err(|fault| Failure { fault, sent: true, stderr: String::new() })
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

/// The output of a tool, as it came but for reserved members of `_meta`.
pub(super) fn output(result: Value) -> ToolOutput {
    let Value::Object(mut members) = result else { return ToolOutput::default() };
    strip(&mut members);
    let content = match members.shift_remove("content") {
        Some(Value::Array(mut blocks)) => {
            blocks.iter_mut().for_each(strip_block);
            Some(blocks.into_iter().map(ContentBlock).collect())
        }
        // Not a list: stage 8 says so.
        Some(other) => Some(vec![ContentBlock(other)]),
        None => None,
    };
    ToolOutput {
        tool_id: None,
        content,
        structured_content: members
            .shift_remove("structuredContent")
            .filter(|value| !value.is_null()),
        is_error: members.get("isError") == Some(&Value::Bool(true)),
        meta: match members.shift_remove("_meta") {
            Some(Value::Object(meta)) => Some(meta),
            _ => None,
        },
        internal: None,
    }
}

/// Removes reserved members of `_meta` from the answer to a request that is no call.
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
                // Some servers write a list.
                Some(Value::Array(blocks)) => blocks.iter_mut().for_each(strip_block),
                Some(block) => strip_block(block),
                None => (),
            }
        }
    }
}

/// Removes them from a content block, and from the resource that it may hold.
fn strip_block(block: &mut Value) {
    if let Value::Object(members) = block {
        strip(members);
        if let Some(Value::Object(resource)) = members.get_mut("resource") {
            strip(resource);
        }
    }
}

/// Removes reserved members from `_meta`; one that has no others goes.
fn strip(members: &mut Map<String, Value>) {
    let Some(Value::Object(meta)) = members.get_mut("_meta") else { return };
    meta.retain(|name, _| !RESERVED_META.iter().any(|prefix| name.starts_with(prefix)));
    if meta.is_empty() {
        members.shift_remove("_meta");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn forged() -> Value {
        json!({ "a": 1, "toolbooth/errorCode": "x", "io.modelcontextprotocol/related-task": 2 })
    }

    #[test]
    fn a_server_does_not_speak_for_the_gateway() {
        let output = output(json!({
            "content": [
                { "type": "text", "text": "t", "_meta": forged() },
                { "type": "resource", "resource": { "uri": "r:1", "_meta": forged() } },
            ],
            "structuredContent": { "_meta": forged() },
            "_meta": forged(),
        }));
        let own = json!({ "a": 1 });
        assert_eq!(output.meta.map(Value::Object), Some(own.clone()));
        let content = output.content.unwrap();
        assert_eq!(content[0].0["_meta"], own);
        assert_eq!(content[1].0["resource"]["_meta"], own);
        // The tool's own data is not of the protocol.
        assert_eq!(output.structured_content, Some(json!({ "_meta": forged() })));

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
