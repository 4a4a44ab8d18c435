//! Reads JSON-RPC envelopes of MCP tolerantly and writes them byte by byte.
//!
//! It does no I/O and stores no state.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolbooth_contracts::json::{JsonFault, JsonFaultKind, Reader};
use toolbooth_mcp::code;
use toolbooth_mcp::lines::Overlong as _;

use super::message::{BATCH_MAX, Message, Refusal, Reply};
use super::results::RpcResult;
use super::scan::Scan;

/// Longest message of a server, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The byte order mark, which some programs print first.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The members of an envelope, unread.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// The messages of a batch, unread.
struct Batch<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Batch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    if all.len() == BATCH_MAX {
                        return Err(A::Error::custom("the batch is too long"));
                    }
                    all.push(item);
                }
                Ok(all)
            }
        }
        deserializer.deserialize_seq(Items).map(Batch)
    }
}

/// Reads the messages in `bytes`: one, or those of a batch. A response is read in one pass. Other
/// messages, and those that the gate rejects, are small or rare and need further passes.
pub(super) fn read(bytes: impl Into<Vec<u8>>) -> Vec<Message> {
    let bytes = match String::from_utf8(bytes.into()) {
        Ok(text) => {
            let source = Arc::new(text);
            if let Ok(Some(answer)) = answer(&source) {
                return vec![answer];
            }
            Arc::unwrap_or_clone(source).into_bytes()
        }
        Err(error) => error.into_bytes(),
    };
    let bytes = bytes.trim_ascii();
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes).trim_ascii();
    if bytes.is_empty() {
        return Vec::new();
    }
    if bytes.first() == Some(&b'[') {
        return match serde_json::from_slice::<Batch<'_>>(bytes) {
            Ok(Batch(items)) if !items.is_empty() => {
                items.iter().flat_map(|item| read_one(item.get().as_bytes())).collect()
            }
            Ok(_) => vec![Message::Unreadable { id: None, reason: "an empty batch".to_owned() }],
            Err(error) => unreadable(bytes, &error.to_string()),
        };
    }
    read_one(bytes)
}

/// Reads a response with a result that passes the gate and no other member; `None` for other
/// messages.
fn answer(source: &Arc<String>) -> Result<Option<Message>, JsonFault> {
    let mut reader = Reader::of_source(source);
    let (mut id, mut result, mut is_other) = (None, None, false);
    reader.members(|reader, name| {
        match name.as_ref() {
            "jsonrpc" => reader.skip()?,
            "id" => id = reader.json().map(|id| own_id(id.as_str()))?,
            "result" => result = Some(RpcResult::read(reader)?),
            _ => {
                is_other = true;
                reader.skip()?;
            }
        }
        Ok(())
    })?;
    reader.end()?;
    let result = result.filter(|found| !is_other && !found.is_null());
    Ok(id
        .zip(result)
        .map(|(id, found)| Message::Answer { id: Some(id), reply: Reply::Result(found) }))
}

fn read_one(bytes: &[u8]) -> Vec<Message> {
    let envelope: Envelope<'_> = match serde_json::from_slice(bytes) {
        Ok(envelope) => envelope,
        Err(error) => return unreadable(bytes, &error.to_string()),
    };
    if let Some(method) = envelope.method {
        return vec![match envelope.id {
            Some(id) => Message::Request { id: id.to_owned(), method },
            None => {
                Message::Notification { method, params: envelope.params.map(ToOwned::to_owned) }
            }
        }];
    }
    let id = match envelope.id.map(|id| own_id(id.get())) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => {
            tracing::debug!("a server answered a request that was never made");
            return Vec::new();
        }
    };
    let reply = match (envelope.result, envelope.error) {
        (Some(result), None) => match self::result(result) {
            Ok(found) => Reply::Result(found),
            Err(reason) => return vec![Message::Unreadable { id, reason }],
        },
        (None, Some(error)) => match refusal(error) {
            Ok(refusal) => Reply::Refused(refusal),
            Err(reason) => return vec![Message::Unreadable { id, reason }],
        },
        _ => {
            let reason = "it has neither a result nor an error, or both".to_owned();
            return vec![Message::Unreadable { id, reason }];
        }
    };
    vec![Message::Answer { id, reply }]
}

fn unreadable(bytes: &[u8], reason: &str) -> Vec<Message> {
    let mut scan = Scan::default();
    scan.feed(bytes);
    scan.unreadable(reason)
}

/// Reads the id of a request of the gateway; some servers return it as text.
fn own_id(json: &str) -> Option<u64> {
    json.trim_matches('"').parse().ok()
}

/// Like [`own_id`], for a value.
pub(super) fn own_id_of(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn refusal(raw: &RawValue) -> Result<Refusal, String> {
    let document = document(raw)?;
    let code = document.get("code").and_then(Value::as_i64);
    let code = code.ok_or_else(|| "an error without a code".to_owned())?;
    let message = document.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Refusal { code, message, data: document.get("data").cloned().map(Box::new) })
}

/// Reads a result that was only skipped so far.
///
/// # Errors
/// The reason why it cannot be read.
fn result(raw: &RawValue) -> Result<RpcResult, String> {
    let source = Arc::new(raw.get().to_owned());
    let fault = match RpcResult::read(&mut Reader::of_source(&source)) {
        Ok(found) => return Ok(found),
        Err(fault) => fault,
    };
    match fault.kind {
        // Such a value is judged with the result, where the effect is known.
        JsonFaultKind::NumberTooLarge | JsonFaultKind::ReservedKey => {
            serde_json::from_str(raw.get()).map(RpcResult::Unfit).map_err(|error| error.to_string())
        }
        _ => Err(fault.message),
    }
}

/// Reads a whole document that was only skipped so far.
///
/// # Errors
/// The reason why it cannot be read.
fn document(raw: &RawValue) -> Result<Value, String> {
    result(raw).map(RpcResult::tree)
}

/// Returns the bytes of a notification.
pub(super) fn notification(method: &str, params: &Map<String, Value>) -> Vec<u8> {
    let params = Value::from(params.clone());
    let method = Value::from(method);
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#).into_bytes()
}

/// Returns the reply to a request of the server; only `ping` is supported.
pub(super) fn reply(id: &RawValue, method: &str) -> Vec<u8> {
    let id = id.get();
    if method == "ping" {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes();
    }
    let code = code::METHOD_NOT_FOUND;
    let error = format!(r#"{{"code":{code},"message":"method not found"}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes()
}

#[cfg(test)]
mod tests {

    use super::super::screening::called;
    use super::*;

    #[test]
    fn every_form_of_message_is_told_apart() {
        let one = |text: &[u8]| {
            let mut all = read(text);
            assert_eq!(all.len(), 1, "{all:?}");
            all.remove(0)
        };
        assert!(matches!(
            one(b"\xef\xbb\xbf{\"id\":3,\"result\":{}}"),
            Message::Answer { id: Some(3), reply: Reply::Result(_) }
        ));
        assert!(matches!(
            one(br#"{"id":3,"result":null,"error":{"code":-32000,"message":"m"}}"#),
            Message::Answer { id: Some(3), reply: Reply::Refused(Refusal { code: -32_000, .. }) }
        ));
        assert!(matches!(
            one(br#"{"id":null,"error":{"code":-32700,"message":"m"}}"#),
            Message::Answer { id: None, .. }
        ));
        assert!(matches!(one(br#"{"id":"s","method":"ping"}"#), Message::Request { .. }));
        assert!(matches!(one(br#"{"method":"n"}"#), Message::Notification { .. }));
        assert!(matches!(
            one(br#"{"id":3,"result":{},"id":4}"#),
            Message::Unreadable { id: Some(3), .. }
        ));
        assert!(matches!(one(br#"{"id":3}"#), Message::Unreadable { id: Some(3), .. }));
        assert!(matches!(one(b"listening on 80"), Message::Noise));
        assert_eq!(read(br#"[{"id":1,"result":{}},{"method":"n"}]"#).len(), 2);
        assert!(read(br#"{"id":"x","result":{}}"#).is_empty());
        assert!(read(b" \r\n").is_empty());
    }

    /// Changes a few bytes at a time, in a fixed pseudo-random sequence.
    #[test]
    fn no_bytes_are_too_strange() {
        let seeds: [&[u8]; 3] = [
            br#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\ud83d\ude00"}]}}"#,
            br#"[{"id":1,"error":{"code":-1,"message":"m","data":[1e9]}},{"method":"n","params":{}}]"#,
            b"\xef\xbb\xbf{\"method\":\"ping\",\"id\":\"a\"}",
        ];
        let mut random = 7u64;
        let mut next = move |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        for round in 0..20_000 {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                match next(3) {
                    0 => bytes[at] = u8::try_from(next(256)).unwrap(),
                    1 => bytes.truncate(at + 1),
                    _ => bytes.insert(at, b"{}[]\",:\\"[next(8)]),
                }
            }
            for message in read(bytes) {
                if let Message::Answer { reply: Reply::Result(result), .. } = message {
                    let _ = called(Ok(result));
                }
            }
        }
    }

    #[test]
    fn documents_that_no_client_reads_are_refused() {
        for text in [r#"{"a":"\ud800"}"#, r#"{"a":1,"a":2}"#, &("[".repeat(500) + &"]".repeat(500))]
        {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            assert!(document(raw).is_err(), "{text}");
        }
        let raw: &RawValue = serde_json::from_str(r#"{"a":1e400}"#).unwrap();
        assert!(document(raw).is_ok());
    }
}
