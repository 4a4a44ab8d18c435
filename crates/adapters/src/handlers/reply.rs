//! Reads the replies of a worker, one per line, each in one pass.
//!
//! Path: 7. Doc: execution.md#handlers

use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::json::{JsonFault, Kind, Reader};
use toolbooth_contracts::{ContentBlock, Payload, ToolOutput};

/// The reply of a handler.
#[derive(Debug)]
pub(super) enum Reply {
    /// A value.
    Result(ToolOutput),
    /// It threw an error with this message.
    Error(String),
    /// It returned a value that JSON cannot represent.
    Unserialisable(String),
    /// The export does not exist.
    Missing,
}

/// Reads a line of a worker in one pass: the id of its request, and the reply.
pub(super) fn read(line: Vec<u8>) -> Result<(Option<u64>, Reply), JsonFault> {
    // The gate reports bytes that are not text.
    Reader::of_bytes(&line)?;
    let source = Arc::new(String::from_utf8(line).unwrap_or_default());
    let mut reader = Reader::of_source(&source);
    let (mut id, mut result) = (None, None);
    let (mut missing, mut unserialisable, mut error) = (false, None, None);
    reader.members(|reader, name| {
        let is_text = reader.kind() == Kind::Text;
        match name.as_ref() {
            "id" => id = reader.json()?.as_str().parse().ok(),
            "missing" => {
                missing = true;
                reader.skip()?;
            }
            "unserialisable" if is_text => unserialisable = Some(reader.text()?.into_owned()),
            "error" if is_text => error = Some(reader.text()?.into_owned()),
            "result" => result = Some(returned(reader)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.end()?;
    let reply = match (missing, unserialisable, error) {
        (true, ..) => Reply::Missing,
        (_, Some(reason), _) => Reply::Unserialisable(reason),
        (_, _, Some(error)) => Reply::Error(error),
        _ => Reply::Result(result.unwrap_or_else(|| ToolOutput::data(&Value::Null))),
    };
    Ok((id, reply))
}

/// Reads the value that a handler returned. A string is text, an object with a list as `content` is
/// a whole result, any other value is data.
pub(super) fn returned(reader: &mut Reader<'_>) -> Result<ToolOutput, JsonFault> {
    if reader.kind() == Kind::Text {
        return Ok(ToolOutput::text(reader.text()?));
    }
    let read = |reader: &mut Reader<'_>| {
        let (mut payload, mut is_error) = (Payload::default(), false);
        if reader.kind() != Kind::Object {
            reader.skip()?;
            return Ok((payload, is_error));
        }
        reader.members(|reader, name| {
            let kind = reader.kind();
            match name.as_ref() {
                "content" if kind == Kind::Array => {
                    payload.content = Some(ContentBlock::read_all(reader)?);
                }
                "structuredContent" => payload.structured_content = Some(reader.json()?),
                "isError" => is_error = reader.json()?.as_str() == "true",
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        Ok((payload, is_error))
    };
    let ((payload, is_error), json) = reader.json_of(read)?;
    Ok(match payload.content {
        Some(_) => ToolOutput { is_error, ..ToolOutput::new(payload) },
        None => ToolOutput::new(Payload::data(json)),
    })
}
