//! A call: the request on the wire, and the call with its authenticated caller.
//!
//! Path: 1. Doc: call-path.md#the-request

use std::sync::Arc;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::caller::Caller;

/// A request on the wire. It cannot specify the caller: an unknown member such as `caller` is rejected.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallRequest {
    /// The tool, by id, or by its name in declarations where no tool has this id.
    pub tool_id: String,
    /// The arguments, an object; raw until the guard parses it, absent = `{}`.
    #[serde(default, deserialize_with = "raw", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schemars",
        schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")
    )]
    pub args: Option<Box<RawValue>>,
    /// The context that the agent claims.
    #[serde(default, deserialize_with = "crate::named_members::object")]
    pub context: CallContext,
}

/// Reads a member that is there: `null` is a value, which the guard refuses.
fn raw<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(reader).map(Some)
}

/// Claims of the agent about itself and the call. None of them is trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallContext {
    /// The call's id; generated when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The agent's claimed name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The agent's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_index: Option<u64>,
    /// A phase of the agent's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_id: Option<String>,
    /// A larger piece of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epic_id: Option<String>,
    /// The session of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// An explicit idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// How long the caller waits, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// The name by which a call selects its tool. It is resolved in the world that judges the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolName {
    /// The tool's id.
    Id(String),
    /// A name on the wire, as in a declaration. An id that is not such a name selects the tool with this
    /// id.
    Wire(String),
    /// The tool's id if the tool exists, else a name on the wire; used in plans and over HTTP.
    IdOrWire(String),
}

impl ToolName {
    /// Returns the name as received.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Id(name) | Self::Wire(name) | Self::IdOrWire(name) => name,
        }
    }
}

/// A request with its caller, as the proxy accepts it.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The tool.
    pub tool: ToolName,
    /// The arguments as received; absent = `{}`.
    pub args: Option<Box<RawValue>>,
    /// The context that the agent claims.
    pub context: CallContext,
    /// The caller.
    pub caller: Caller,
    /// The tool set of the door, by name; `None` = everything that the caller may see.
    pub toolset: Option<Arc<str>>,
}

impl ToolCall {
    /// Creates a call from a request with the tool's id, and its authenticated caller.
    #[must_use]
    pub fn new(request: CallRequest, caller: Caller) -> Self {
        let CallRequest { tool_id, args, context } = request;
        Self { tool: ToolName::Id(tool_id), args, context, caller, toolset: None }
    }

    /// Returns the same call, in which the tool may be named as in a declaration.
    #[must_use]
    pub fn by_any_name(self) -> Self {
        let tool = match self.tool {
            ToolName::Id(name) => ToolName::IdOrWire(name),
            other => other,
        };
        Self { tool, ..self }
    }

    /// Returns the same call through a front door that shows only one tool set.
    #[must_use]
    pub fn within(self, toolset: Option<Arc<str>>) -> Self {
        Self { toolset, ..self }
    }
}

impl CallRequest {
    /// Creates a call of `tool_id` with arguments that are JSON text.
    ///
    /// # Errors
    /// Where `args` is not JSON.
    pub fn new(tool_id: impl Into<String>, args: &str) -> Result<Self, serde_json::Error> {
        Ok(Self {
            tool_id: tool_id.into(),
            args: Some(RawValue::from_string(args.to_owned())?),
            context: CallContext::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named_members::object;

    fn read(text: &str) -> Result<CallRequest, serde_json::Error> {
        object(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn lists_are_no_requests() {
        assert!(
            read(
                r#"{"toolId":"a.b","args":{"x":12345678901234567890123},"context":{"callId":"c"}}"#
            )
            .is_ok()
        );
        for list in [
            r#"["a.b",{"x":1},{"callId":"c"}]"#,
            r#"{"toolId":"a.b","context":["c","a",1,null,null,null,null,null]}"#,
            "[]",
        ] {
            assert!(read(list).is_err(), "{list}");
        }
    }

    #[test]
    fn wire_cannot_carry_a_caller() {
        let text = r#"{"toolId":"a","args":{},"caller":"local"}"#;
        assert!(serde_json::from_str::<CallRequest>(text).is_err());
        let text = r#"{"toolId":"a","context":{"caller":"local"}}"#;
        assert!(serde_json::from_str::<CallRequest>(text).is_err());
    }

    #[test]
    fn arguments_stay_the_bytes_that_came() {
        let text = r#"{"toolId":"a","args":{ "b" : 9007199254740993, "a":1 }}"#;
        let request: CallRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.args.unwrap().get(), r#"{ "b" : 9007199254740993, "a":1 }"#);
    }
}
