//! The seam to the SDK: lets tool calls pass with their arguments as the bytes that came.
//!
//! The SDK's typed calls drop what they do not know and lose duplicate keys. A call whose
//! `requestState` is no text is handed on as it came, so that is what every call is given here;
//! the arguments' own text travels in it.
//!
//! Path: 1. Doc: front-doors.md#mcp

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The method of a tool call.
pub(super) const CALL: &str = "tools/call";

#[derive(Deserialize)]
struct Envelope<'a> {
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// A message with a tool call's arguments carried as text; `None` for every other message.
pub(super) fn carry(message: &[u8]) -> Option<Vec<u8>> {
    let envelope: Envelope<'_> = serde_json::from_slice(message).ok()?;
    if envelope.method.as_deref() != Some(CALL) {
        return None;
    }
    let text = envelope.params.and_then(|params| raw_arguments(params.get()));
    let mut value: Value = serde_json::from_slice(message).ok()?;
    let params = value.get_mut("params")?.as_object_mut()?;
    let state = params.get("requestState").cloned().unwrap_or_default();
    params.insert("requestState".to_owned(), json!([state, text]));
    // What is no object would be refused before the proxy has seen it.
    if params.get("arguments").is_some_and(|arguments| !arguments.is_object()) {
        params.shift_remove("arguments");
    }
    serde_json::to_vec(&value).ok()
}

/// The text of the member `arguments`; of the last one, where there are several.
fn raw_arguments(params: &str) -> Option<String> {
    struct Last(Option<String>);
    impl<'de> serde::de::Visitor<'de> for Last {
        type Value = Option<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(
            mut self,
            mut map: A,
        ) -> Result<Option<String>, A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                let value = map.next_value::<&RawValue>()?;
                if key == "arguments" {
                    self.0 = Some(value.get().to_owned());
                }
            }
            Ok(self.0)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(params);
    serde::de::Deserializer::deserialize_map(&mut deserializer, Last(None)).ok()?
}

/// The error for a message that the SDK cannot read (JSON-RPC 2.0, 5.1).
pub(super) fn unreadable(message: &[u8]) -> Value {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(message).is_ok();
    let (code, message) = if is_json {
        (-32_600, "the body is no message of this protocol")
    } else {
        (-32_700, "the body is not JSON")
    };
    json!({ "jsonrpc": "2.0", "id": null, "error": { "code": code, "message": message } })
}

/// A tool call as it came.
pub(super) struct Carried {
    pub(super) name: String,
    /// The arguments' text, where there are any.
    pub(super) arguments: Option<Box<RawValue>>,
    /// Whether they are an object, as the protocol wants it.
    pub(super) well_formed: bool,
}

/// Reads a carried call; an error sentence where it names no tool.
pub(super) fn uncarry(params: Option<&Value>) -> Result<Carried, &'static str> {
    let params = params.and_then(Value::as_object).ok_or("`params` must be an object")?;
    let name = params.get("name").and_then(Value::as_str).ok_or("`name` must be text")?;
    let carried = params.get("requestState").and_then(|state| state.get(1));
    let text = match carried {
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => None,
        // A call that came by another way than ours has its arguments in their place.
        None => params.get("arguments").map(Value::to_string),
    };
    let arguments = match text {
        Some(text) => Some(RawValue::from_string(text).map_err(|_| "`arguments` must be JSON")?),
        None => None,
    };
    let well_formed = arguments.as_ref().is_none_or(|raw| raw.get().trim_start().starts_with('{'));
    Ok(Carried { name: name.to_owned(), arguments, well_formed })
}

/// `_meta` without what belongs to the protocol itself.
pub(super) fn own_meta<'m>(meta: &'m Map<String, Value>, key: &str) -> Option<&'m Value> {
    meta.get(&format!("toolbooth/{key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_travel_as_the_bytes_that_came() {
        let message = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{ "a":1e2, "a":9007199254740993 }}}"#;
        let carried: Value = serde_json::from_slice(&carry(message).unwrap()).unwrap();
        let read = uncarry(carried.get("params")).unwrap();
        assert_eq!(read.arguments.unwrap().get(), r#"{ "a":1e2, "a":9007199254740993 }"#);
        assert!(read.well_formed);
    }

    #[test]
    fn unreadable_messages_are_told_apart() {
        assert_eq!(unreadable(b"{nonsense")["error"]["code"], -32_700);
        assert_eq!(unreadable(b"[1]")["error"]["code"], -32_600);
    }

    #[test]
    fn odd_arguments_are_told_from_none() {
        let read = |text: &str| {
            let message = format!(r#"{{"method":"tools/call","params":{{"name":"t"{text}}}}}"#);
            let carried: Value =
                serde_json::from_slice(&carry(message.as_bytes()).unwrap()).unwrap();
            uncarry(carried.get("params"))
                .map(|read| (read.arguments.map(|raw| raw.get().to_owned()), read.well_formed))
        };
        assert_eq!(read(""), Ok((None, true)));
        assert_eq!(read(r#","arguments":[1]"#), Ok((Some("[1]".into()), false)));
        assert_eq!(read(r#","arguments":null"#), Ok((Some("null".into()), false)));
        assert!(carry(br#"{"method":"tools/list"}"#).is_none());
        assert!(carry(b"nonsense").is_none());
    }
}
