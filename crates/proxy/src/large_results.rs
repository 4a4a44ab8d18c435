//! Large results: an agent gets the beginning and a link, and reads the rest from the receipt that
//! stores it.
//!
//! Path: 10. Doc: execution.md#large-results

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::payload;
use toolbooth_contracts::receipt::StoredResult;
use toolbooth_contracts::{ContentBlock, ToolResult};

use crate::error::PieceError;
use crate::trail::boundary;

/// Prefix of links to stored results: they are resources of the gateway's own server.
pub(crate) const RESULT_URI: &str = "toolbooth+gateway:results/";
/// The same prefix, in the form of that server.
const OWN_URI: &str = "results/";
/// Maximum bytes of a text that are shown.
const PREVIEW_BYTES: usize = 4 << 10;
/// Bytes that are read at once: the default if the agent sets no limit, and the maximum.
const READ_BYTES: usize = 64 << 10;
const READ_BYTES_MAX: usize = 1 << 20;
/// Steps and bytes of a pointer, at most.
const POINTER_STEPS_MAX: usize = 128;
const POINTER_BYTES_MAX: usize = 4 << 10;

/// A part of a stored result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// One content block, by its place.
    Block(usize),
    /// The structured content.
    Structured,
}

/// The location of a stored part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) receipt_id: String,
    part: Part,
}

impl Link {
    /// Parses a link; the bare id of a receipt means the first block.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(RESULT_URI).or_else(|| text.strip_prefix(OWN_URI));
        let rest = rest.unwrap_or(text);
        let (id, part) = match rest.split_once('/') {
            None => (rest, Part::Block(0)),
            Some((id, "structured")) => (id, Part::Structured),
            Some((id, index)) => (id, Part::Block(index.parse().ok()?)),
        };
        let is_id = !id.is_empty()
            && id.len() <= 64
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_id.then(|| Self { receipt_id: id.to_owned(), part })
    }

    fn uri(&self) -> String {
        match self.part {
            Part::Block(index) => format!("{RESULT_URI}{}/{index}", self.receipt_id),
            Part::Structured => format!("{RESULT_URI}{}/structured", self.receipt_id),
        }
    }
}

/// The content of a part, with its own type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ResultPart {
    Text {
        mime_type: String,
        text: String,
    },
    Blob {
        mime_type: String,
        base64: String,
    },
    /// A block of another kind, unchanged.
    Other(ContentBlock),
}

impl ResultPart {
    /// Returns the part of a result that a link names.
    pub(crate) fn of(result: &StoredResult, link: &Link) -> Option<Self> {
        match link.part {
            Part::Structured => Some(Self::Text {
                mime_type: "application/json".to_owned(),
                text: result.structured_content.as_ref()?.as_str().to_owned(),
            }),
            Part::Block(index) => {
                let block = result.content.get(index)?;
                Some(Self::of_block(block).unwrap_or_else(|| Self::Other(block.clone())))
            }
        }
    }

    fn of_block(block: &ContentBlock) -> Option<Self> {
        if let Some(text) = block.as_text() {
            return Some(Self::Text { mime_type: "text/plain".into(), text: text.into_owned() });
        }
        let member =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let mime = |value: &Value, standard: &str| {
            member(value, "mimeType").unwrap_or_else(|| standard.to_owned())
        };
        let kind = block.kind()?;
        if !matches!(kind.as_ref(), "image" | "audio" | "resource") {
            return None;
        }
        let value = &block.tree();
        match kind.as_ref() {
            "image" | "audio" => Some(Self::Blob {
                mime_type: mime(value, "application/octet-stream"),
                base64: member(value, "data")?,
            }),
            _ => {
                let resource = value.get("resource")?;
                match (member(resource, "text"), member(resource, "blob")) {
                    (Some(text), _) => {
                        Some(Self::Text { mime_type: mime(resource, "text/plain"), text })
                    }
                    (None, Some(base64)) => Some(Self::Blob {
                        mime_type: mime(resource, "application/octet-stream"),
                        base64,
                    }),
                    (None, None) => None,
                }
            }
        }
    }

    /// Returns the part as the one content of a resource.
    pub(crate) fn as_resource(&self, uri: &str) -> Value {
        match self {
            Self::Text { mime_type, text } => {
                json!({ "contents": [{ "uri": uri, "mimeType": mime_type, "text": text }] })
            }
            Self::Blob { mime_type, base64 } => {
                json!({ "contents": [{ "uri": uri, "mimeType": mime_type, "blob": base64 }] })
            }
            Self::Other(block) => {
                let text = block.json().as_str();
                let mime_type = "application/json";
                json!({ "contents": [{ "uri": uri, "mimeType": mime_type, "text": text }] })
            }
        }
    }
}

/// The piece of a text that an agent requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// The link, or the id of the receipt.
    pub(crate) result: String,
    /// The first byte.
    pub(crate) offset: Option<usize>,
    /// How many bytes.
    pub(crate) length: Option<usize>,
    /// The first line, from 1.
    pub(crate) line: Option<usize>,
    /// How many lines.
    pub(crate) lines: Option<usize>,
    /// A JSON Pointer into the text, which is JSON then (RFC 6901).
    pub(crate) pointer: Option<String>,
}

/// A piece of a text, and a sentence about its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) extent: String,
}

impl Wanted {
    /// Returns the requested piece of `text`.
    pub(crate) fn of(&self, text: &str) -> Result<Piece, PieceError> {
        let narrowed;
        let text = match &self.pointer {
            None => text,
            Some(pointer) => {
                let found = pointed(text, pointer)?;
                narrowed = match serde_json::from_str::<String>(found.get()) {
                    Ok(text) => text,
                    Err(_) => found.get().to_owned(),
                };
                &narrowed
            }
        };
        if self.line.is_some() || self.lines.is_some() {
            if self.offset.is_some() || self.length.is_some() {
                return Err(PieceError::BytesAndLines);
            }
            return self.by_lines(text);
        }
        let total = text.len();
        if self.offset.is_some_and(|offset| offset > total) {
            return Err(PieceError::BytesEnd(total));
        }
        let start = boundary(text, self.offset.unwrap_or(0));
        let length = self.length.unwrap_or(READ_BYTES).min(READ_BYTES_MAX);
        let mut end = boundary(text, start.saturating_add(length));
        if end == start && length > 0 {
            // At least one character, so that the reader always reaches the end.
            end =
                start + text.get(start..).and_then(|t| t.chars().next()).map_or(0, char::len_utf8);
        }
        let more = if end < total { format!("; go on with `offset` {end}") } else { String::new() };
        let extent = format!("bytes {start} to {end} of {total}{more}");
        Ok(Piece { text: text.get(start..end).unwrap_or_default().to_owned(), extent })
    }

    fn by_lines(&self, text: &str) -> Result<Piece, PieceError> {
        let first = self.line.unwrap_or(1).max(1);
        let total = text.split_inclusive('\n').count();
        if first > total.max(1) {
            return Err(PieceError::LinesEnd(total));
        }
        let wanted = self.lines.unwrap_or(usize::MAX);
        let mut piece = String::new();
        let mut taken = 0;
        for line in text.split_inclusive('\n').skip(first - 1).take(wanted) {
            let space = if taken == 0 { READ_BYTES_MAX } else { READ_BYTES };
            if piece.len() + line.len() > space && taken > 0 {
                break;
            }
            piece.push_str(line.get(..boundary(line, READ_BYTES_MAX)).unwrap_or_default());
            taken += 1;
        }
        let next = first.saturating_add(taken);
        let before: usize = text.split_inclusive('\n').take(first - 1).map(str::len).sum();
        let whole = text.split_inclusive('\n').nth(first - 1).map_or(0, str::len);
        let more = match next <= total {
            // Only the first line can be too long.
            _ if whole > piece.len() => {
                format!("; line {first} is cut: go on with `offset` {}", before + piece.len())
            }
            true => format!("; go on with `line` {next}"),
            false => String::new(),
        };
        let last = next.saturating_sub(1);
        Ok(Piece { text: piece, extent: format!("lines {first} to {last} of {total}{more}") })
    }
}

/// Returns the value that a pointer (RFC 6901) names in a JSON text, as it is written there. Skipped
/// values are not built.
fn pointed<'t>(text: &'t str, pointer: &str) -> Result<&'t RawValue, PieceError> {
    let none = || PieceError::NothingThere(pointer.to_owned());
    let mut here: &RawValue = serde_json::from_str(text).map_err(|_| PieceError::NoJson)?;
    if pointer.is_empty() {
        return Ok(here);
    }
    let tokens = pointer.strip_prefix('/').ok_or(PieceError::NoPointer)?;
    // The rest of the text is read once for each step.
    let is_deep = tokens.split('/').nth(POINTER_STEPS_MAX).is_some();
    if is_deep || pointer.len() > POINTER_BYTES_MAX {
        return Err(PieceError::LongPointer);
    }
    for token in tokens.split('/') {
        let token = token.replace("~1", "/").replace("~0", "~");
        let mut reader = serde_json::Deserializer::from_str(here.get());
        here = Step(&token).deserialize(&mut reader).ok().flatten().ok_or_else(none)?;
    }
    Ok(here)
}

/// One step of a pointer: the member or the item that a token names.
struct Step<'s>(&'s str);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = members.next_key::<String>()? {
            if key == self.0 {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let is_index = self.0 == "0" || !self.0.starts_with('0') && !self.0.starts_with('+');
        let wanted = self.0.parse::<usize>().ok().filter(|_| is_index);
        let (mut index, mut found) = (0usize, None);
        loop {
            let read = if wanted == Some(index) {
                let item = items.next_element()?;
                let is_there = item.is_some();
                found = item;
                is_there
            } else {
                items.next_element::<IgnoredAny>()?.is_some()
            };
            if !read {
                return Ok(found);
            }
            index = index.saturating_add(1);
        }
    }
}

/// Cuts large texts of a result, each followed by a link, and replaces large structured content by a link.
/// Does nothing if neither the texts together nor the structured content have more than `inline_bytes`.
/// Without a receipt there is nothing to link to.
pub(crate) fn truncate_large_texts(mut result: ToolResult, inline_bytes: usize) -> ToolResult {
    let Some(receipt_id) = result.receipt_id.clone() else { return result };
    // A text is never longer than the JSON that contains it.
    if payload::size(&result.content, result.structured_content.as_ref()) <= inline_bytes {
        return result;
    }
    let texts = result.content.iter().filter_map(ResultPart::of_block);
    let size: usize = texts
        .map(|kept| match kept {
            ResultPart::Text { text, .. } => text.len(),
            _ => 0,
        })
        .sum();
    let structured = result.structured_content.as_ref().map_or(0, JsonText::bytes);
    if size.max(structured) <= inline_bytes {
        return result;
    }
    // Small blocks among large ones stay whole.
    let whole = PREVIEW_BYTES.min(inline_bytes);
    let mut content = Vec::with_capacity(result.content.len() + 1);
    for (index, block) in result.content.into_iter().enumerate() {
        match ResultPart::of_block(&block) {
            Some(ResultPart::Text { mime_type, text }) if text.len() > whole => {
                let link = Link { receipt_id: receipt_id.clone(), part: Part::Block(index) };
                let shown = text.get(..boundary(&text, whole)).unwrap_or_default();
                let rest = text.len() - shown.len();
                let uri = link.uri();
                content.push(ContentBlock::text(format!(
                    "{shown}\n[… {rest} more bytes of {}: call `read_result` with {{\"result\":\"{uri}\"}}]",
                    text.len()
                )));
                content.push(link_block(&uri, &mime_type, text.len()));
            }
            _ => content.push(block),
        }
    }
    if structured > inline_bytes {
        let link = Link { receipt_id, part: Part::Structured };
        content.push(link_block(&link.uri(), "application/json", structured));
        result.structured_content = None;
    }
    result.content = content;
    result
}

fn link_block(uri: &str, mime_type: &str, bytes: usize) -> ContentBlock {
    let text = JsonText::of_text;
    ContentBlock::new(JsonText::object([
        ("type", text("resource_link")),
        ("uri", text(uri)),
        ("name", text("result")),
        ("title", text("The whole result")),
        ("mimeType", text(mime_type)),
        ("size", JsonText::of_count(bytes)),
    ]))
}

#[cfg(test)]
mod tests;
