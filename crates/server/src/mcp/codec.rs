//! Reads and writes JSON-RPC 2.0 messages, as MCP restricts them.
//!
//! A message is scanned once; its parameters stay raw JSON until they are read. Ambiguous messages,
//! for example with a repeated member, are rejected.
//!
//! Path: 1, 10. Doc: front-doors.md#messages

mod params;
mod write;

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use serde::de::{Error as _, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use toolbooth_mcp::code;

pub(super) use self::params::Params;
pub(super) use self::write::{Body, answer, batch, error_answer, notification};
use super::rpc_error::RpcError;

/// Maximum bytes of an id.
const ID_BYTES_MAX: usize = 1_024;
/// Maximum messages of one batch.
const BATCH_MAX: usize = 100;

/// The id of a request as JSON text: a string or a whole number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Id(String);

impl Id {
    fn read(raw: &RawValue) -> Option<Self> {
        if raw.get().len() > ID_BYTES_MAX {
            return None;
        }
        match serde_json::from_str(raw.get()).ok()? {
            // Serialized again, so that equal ids have equal text.
            text @ Value::String(_) => Some(Self(text.to_string())),
            Value::Number(number) => {
                let text = number.to_string();
                let digits = text.strip_prefix('-').unwrap_or(&text);
                digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(Self(text))
            }
            _ => None,
        }
    }

    /// Reads an id from a value inside a message; `None` if it has another type.
    pub(super) fn of(value: &Value) -> Option<Self> {
        Self::read(&serde_json::value::to_raw_value(value).ok()?)
    }

    /// Returns the id as JSON.
    pub(super) fn as_json(&self) -> &str {
        &self.0
    }

    /// Returns the id as a value.
    pub(super) fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// A request, which requires an answer.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) id: Id,
    pub(super) method: String,
    pub(super) params: Params,
}

/// A notification, which gets no answer.
#[derive(Debug, Clone)]
pub(super) struct Notification {
    pub(super) method: String,
    pub(super) params: Params,
}

/// One message of a client.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Request(Request),
    Notification(Notification),
    /// An answer to a request of the gateway.
    Answer,
}

/// The content of a body or a line.
#[derive(Debug)]
pub(super) enum Incoming {
    One(Message),
    /// A batch, which only the revision 2025-03-26 has.
    Batch(Vec<Result<Message, Fault>>),
}

/// The error of a rejected message, with the id of the request if that could be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) id: Option<Id>,
    pub(super) error: RpcError,
}

impl Fault {
    fn invalid(id: Option<Id>, message: &'static str) -> Self {
        Self { id, error: RpcError::new(code::INVALID_REQUEST, message) }
    }

    /// Returns the error as a message.
    pub(super) fn answer(&self) -> Bytes {
        error_answer(self.id.as_ref(), &self.error)
    }
}

/// Reads a member that is present, even as `null`, as `Some`.
fn there<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

/// Maximum members that are stored one by one; no method has as many.
const MEMBERS_MAX: usize = 32;

/// Parameters that fit [`Params::Members`]; others fail to deserialize.
struct Read(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Read;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Read, A::Error> {
                let mut read: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some(name) = members.next_key::<String>()? {
                    let is_double = read.iter().any(|(own, _)| *own == name);
                    if is_double || read.len() == MEMBERS_MAX {
                        return Err(A::Error::custom("parameters of another form"));
                    }
                    read.push((name, members.next_value()?));
                }
                Ok(Read(read))
            }
        }
        from.deserialize_map(Visitor)
    }
}

/// A message with an object as parameters, or without parameters. Nearly every message has this
/// form.
#[derive(Deserialize)]
struct Plain<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "there")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(default)]
    params: Option<Read>,
}

/// Reads a request or a notification in one pass; `None` for everything else.
fn plain(text: &str) -> Option<Message> {
    let Plain { jsonrpc, id, method, params } = serde_json::from_str(text).ok()?;
    if jsonrpc != "2.0" {
        return None;
    }
    let params = Params::Members(params.map(|read| read.0).unwrap_or_default());
    let method = method.into_owned();
    Some(match id {
        None => Message::Notification(Notification { method, params }),
        Some(raw) => Message::Request(Request { id: Id::read(raw)?, method, params }),
    })
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "there")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "there")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "there")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "there")]
    error: Option<&'a RawValue>,
}

/// Reads the content of a body or a line.
///
/// # Errors
/// `-32700` if it is not JSON, `-32600` if it is not a message, `-32602` if the parameters of a
/// request are not an object.
pub(super) fn read(bytes: &[u8]) -> Result<Incoming, Fault> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let not_json = || Fault {
        id: None,
        error: RpcError::new(code::PARSE_ERROR, "the message is not JSON (RFC 8259) in UTF-8"),
    };
    let text = std::str::from_utf8(bytes).map_err(|_| not_json())?;
    if let Some(message) = plain(text) {
        return Ok(Incoming::One(message));
    }
    let raw: &RawValue = serde_json::from_str(text).map_err(|_| not_json())?;
    let text = raw.get();
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| not_json())?;
        if items.is_empty() || items.len() > BATCH_MAX {
            return Err(Fault::invalid(None, "a batch has 1 to 100 messages"));
        }
        return Ok(Incoming::Batch(items.into_iter().map(|item| message(item.get())).collect()));
    }
    message(text).map(Incoming::One)
}

fn message(text: &str) -> Result<Message, Fault> {
    if let Some(message) = plain(text) {
        return Ok(message);
    }
    let no_message = "the message is not a JSON-RPC 2.0 message";
    let envelope: Envelope<'_> =
        serde_json::from_str(text).map_err(|_| Fault::invalid(None, no_message))?;
    let id = envelope.id.and_then(Id::read);
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return Err(Fault::invalid(id, "`jsonrpc` must be \"2.0\""));
    }
    let params = envelope.params.filter(|raw| raw.get() != "null");
    let params = params.map(|raw| Params::Whole(raw.to_owned())).unwrap_or_default();
    if let Some(name) = envelope.params.and_then(doubled) {
        let message = format!("`params` has the member `{}` twice", name.escape_debug());
        return Err(Fault { id, error: RpcError::invalid_params(message) });
    }
    match (envelope.method, envelope.id) {
        (Some(method), Some(_)) => match id {
            None => Err(Fault::invalid(
                None,
                "`id` must be text or a whole number, of at most 1,024 bytes",
            )),
            Some(id) if !is_object(&params) => Err(Fault {
                id: Some(id),
                error: RpcError::invalid_params("`params` must be an object"),
            }),
            Some(id) => Ok(Message::Request(Request { id, method: method.into_owned(), params })),
        },
        (Some(method), None) => {
            Ok(Message::Notification(Notification { method: method.into_owned(), params }))
        }
        (None, Some(_)) if envelope.result.is_some() != envelope.error.is_some() => {
            Ok(Message::Answer)
        }
        (None, _) => Err(Fault::invalid(id, no_message)),
    }
}

/// Returns the first member that an object has twice: two readers could take different ones.
fn doubled(object: &RawValue) -> Option<String> {
    struct Names(Option<String>);
    impl<'de> Deserialize<'de> for Names {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Names;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Names, A::Error> {
                    let (mut known, mut doubled) = (HashSet::new(), None);
                    while let Some((name, _)) = all.next_entry::<String, IgnoredAny>()? {
                        if !known.insert(name.clone()) {
                            doubled.get_or_insert(name);
                        }
                    }
                    Ok(Names(doubled))
                }
            }
            from.deserialize_map(Visitor)
        }
    }
    serde_json::from_str::<Names>(object.get()).ok()?.0
}

fn is_object(params: &Params) -> bool {
    match params {
        Params::Members(_) => true,
        Params::Whole(raw) => raw.get().starts_with('{'),
    }
}

/// Finds the id in the beginning of a message. Only a member of the message itself counts, not one
/// of a nested value.
pub(super) fn id_of_beginning(message: &[u8]) -> Option<Id> {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(byte) = message.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_text(message, at)?;
                let rest = message.get(end..)?.trim_ascii_start();
                if depth == 1
                    && message.get(at..end) == Some(b"\"id\"")
                    && let Some(value) = rest.strip_prefix(b":")
                {
                    let value = value.get(..ID_BYTES_MAX.min(value.len()))?;
                    let mut values = serde_json::Deserializer::from_slice(value).into_iter();
                    let id = values.next()?.ok()?;
                    // A number at the end of the bytes may be incomplete.
                    return if values.byte_offset() < value.len() { Id::of(&id) } else { None };
                }
                at = end;
                continue;
            }
            _ => (),
        }
        at += 1;
    }
    None
}

/// Returns the position after the quotation mark that ends the string at `start`.
fn end_of_text(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match message.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;
