//! Reads the results of a server in one pass, with the parts that a call uses.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use serde_json::Value;
use toolbooth_contracts::json::{JsonFault, JsonText, Kind, Reader};
use toolbooth_contracts::{ContentBlock, Payload};

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RpcResult {
    /// A result that passes the gate, with the parts that a call uses.
    Fit(Box<FitResult>),
    /// A result with a part that the gate rejects, such as a number out of range. It is judged where
    /// the effect is known.
    Unfit(Value),
}

/// The text of a result, with the parts of a tool's result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FitResult {
    json: JsonText,
    pub(super) payload: Payload,
    /// `None`: `isError` is no boolean.
    pub(super) is_error: Option<bool>,
    /// Whether it is the last result of its request.
    pub(super) is_complete: bool,
}

/// Reads a boolean; `null` is as if it were absent.
fn flag(json: &str) -> Option<bool> {
    match json {
        "true" => Some(true),
        "false" | "null" => Some(false),
        _ => None,
    }
}

impl RpcResult {
    /// Reads a result at the position of a reader, in one pass.
    ///
    /// # Errors
    /// The fault for which the gate rejects it.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, JsonFault> {
        let parts = |reader: &mut Reader<'_>| {
            let (mut payload, mut is_error, mut is_complete) =
                (Payload::default(), Some(false), true);
            if reader.kind() != Kind::Object {
                reader.skip()?;
                return Ok((payload, is_error, is_complete));
            }
            reader.members(|reader, name| {
                let kind = reader.kind();
                match name.as_ref() {
                    "content" if kind == Kind::Array => {
                        payload.content = Some(ContentBlock::read_all(reader)?);
                    }
                    // Not a list: stage 8 reports it.
                    "content" => payload.content = Some(vec![ContentBlock::read(reader)?]),
                    "structuredContent" => {
                        payload.structured_content =
                            Some(reader.json()?).filter(|data| !data.is_null());
                    }
                    "_meta" if kind == Kind::Object => payload.meta = Some(reader.json()?),
                    "isError" => is_error = flag(reader.json()?.as_str()),
                    "resultType" => {
                        is_complete = reader.json()?.as_text().as_deref() == Some("complete");
                    }
                    _ => reader.skip()?,
                }
                Ok(())
            })?;
            Ok((payload, is_error, is_complete))
        };
        let ((payload, is_error, is_complete), json) = reader.json_of(parts)?;
        Ok(Self::Fit(Box::new(FitResult { json, payload, is_error, is_complete })))
    }

    /// Whether the result is `null`.
    pub(super) fn is_null(&self) -> bool {
        match self {
            Self::Fit(read) => read.json.is_null(),
            Self::Unfit(tree) => tree.is_null(),
        }
    }

    /// Returns the whole result as a tree.
    pub(super) fn tree(self) -> Value {
        match self {
            Self::Fit(read) => read.json.tree(),
            Self::Unfit(tree) => tree,
        }
    }
}
