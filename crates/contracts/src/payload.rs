//! The result of a tool: the received bytes, with the places of members that the call path reads.
//!
//! A tree is built only if a schema, a receipt's fields or a known secret needs one.
//!
//! Path: 7, 8. Doc: call-path.md#the-result

use std::borrow::Cow;
use std::ops::Range;

#[cfg(feature = "schemars")]
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::json::{JsonFault, JsonText, Kind, Reader};

/// A content block as MCP defines it: an object with a `type`. Types that this version does not know
/// pass unchanged. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ContentBlock {
    json: JsonText,
    /// The places of the values of `type` and `text`.
    kind: Option<Range<usize>>,
    text: Option<Range<usize>>,
    has_meta: bool,
}

impl ContentBlock {
    /// Creates a text block.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        const BEFORE: &str = r#"{"type":"text","text":"#;
        let own = JsonText::of_text(text.as_ref());
        let range = BEFORE.len()..BEFORE.len() + own.bytes();
        let json = JsonText::checked(format!("{BEFORE}{own}}}"), 1);
        Self { json, kind: Some(8..14), text: Some(range), has_meta: false }
    }

    /// Creates a block from a document.
    #[must_use]
    pub fn new(json: JsonText) -> Self {
        let mut reader = Reader::new(json.as_str());
        // Text that has passed the gate is always readable.
        let ranges = BlockRanges::read(&mut reader).unwrap_or_default();
        let BlockRanges { kind, text, has_meta } = ranges;
        Self { json, kind, text, has_meta }
    }

    /// Reads a block at a reader's position.
    ///
    /// # Errors
    /// As [`Reader::json`].
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, JsonFault> {
        reader.kind();
        let start = reader.position();
        let (ranges, json) = reader.json_of(BlockRanges::read)?;
        if json.bytes() != reader.position() - start {
            // White space was removed, so the ranges have changed.
            return Ok(Self::new(json));
        }
        let own = |range: Range<usize>| range.start - start..range.end - start;
        let BlockRanges { kind, text, has_meta } = ranges;
        Ok(Self { json, kind: kind.map(own), text: text.map(own), has_meta })
    }

    /// Reads a list of blocks at a reader's position.
    ///
    /// # Errors
    /// As [`Reader::json`].
    pub fn read_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, JsonFault> {
        let mut blocks = Vec::new();
        reader.items(|reader| {
            blocks.push(Self::read(reader)?);
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Creates a block from a tree.
    ///
    /// # Errors
    /// As [`JsonText::of`].
    pub fn of(tree: &Value) -> Result<Self, JsonFault> {
        JsonText::of(tree).map(Self::new)
    }

    /// Returns the document of the block.
    #[must_use]
    pub fn json(&self) -> &JsonText {
        &self.json
    }

    /// Builds a new tree of the block at each call.
    #[must_use]
    pub fn tree(&self) -> Value {
        self.json.tree()
    }

    fn said(&self, range: &Option<Range<usize>>) -> Option<Cow<'_, str>> {
        Reader::new(self.json.as_str().get(range.clone()?)?).text().ok()
    }

    /// Returns the `type`.
    #[must_use]
    pub fn kind(&self) -> Option<Cow<'_, str>> {
        self.said(&self.kind)
    }

    /// Returns the text of a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        if self.kind()? == "text" { self.said(&self.text) } else { None }
    }

    /// Whether the block, or the resource in it, has metadata.
    #[must_use]
    pub fn has_meta(&self) -> bool {
        self.has_meta
    }

    /// Whether the block has the form that every block must have.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        self.kind.is_some()
    }
}

/// The places within a block, from the beginning of the reader's text.
#[derive(Default)]
struct BlockRanges {
    kind: Option<Range<usize>>,
    text: Option<Range<usize>>,
    has_meta: bool,
}

impl BlockRanges {
    fn read(reader: &mut Reader<'_>) -> Result<Self, JsonFault> {
        let mut own = Self::default();
        if reader.kind() != Kind::Object {
            reader.skip()?;
            return Ok(own);
        }
        reader.members(|reader, name| {
            let kind = reader.kind();
            match name.as_ref() {
                "type" if kind == Kind::Text => own.kind = Some(reader.skipped()?),
                "text" if kind == Kind::Text => own.text = Some(reader.skipped()?),
                "resource" if kind == Kind::Object => reader.members(|reader, name| {
                    own.has_meta |= name == "_meta";
                    reader.skip()
                })?,
                _ => {
                    own.has_meta |= name == "_meta";
                    reader.skip()?;
                }
            }
            Ok(())
        })?;
        Ok(own)
    }
}

impl PartialEq for ContentBlock {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Serialize for ContentBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        JsonText::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(feature = "schemars")]
impl JsonSchema for ContentBlock {
    fn schema_name() -> Cow<'static, str> {
        "ContentBlock".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "A content block as MCP defines it: an object with a `type`. Types that this version does not know\npass unchanged."
        })
    }
}

/// The result of a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Payload {
    /// The content blocks; `None` if the result has no list of them.
    pub content: Option<Vec<ContentBlock>>,
    /// The structured content.
    pub structured_content: Option<JsonText>,
    /// Metadata of the result, an object.
    pub meta: Option<JsonText>,
}

impl Payload {
    /// Creates a payload of one text block.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self { content: Some(vec![ContentBlock::text(text)]), ..Self::default() }
    }

    /// Creates a payload of data, and of the same data as text for callers that read text only.
    #[must_use]
    pub fn data(data: JsonText) -> Self {
        Self {
            content: Some(vec![ContentBlock::text(data.as_str())]),
            structured_content: Some(data),
            meta: None,
        }
    }

    /// Returns the size of content and structured content as JSON, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size(self.content.as_deref().unwrap_or_default(), self.structured_content.as_ref())
    }

    /// Returns all documents of the payload.
    pub fn parts(&self) -> impl Iterator<Item = &JsonText> {
        let blocks = self.content.iter().flatten().map(ContentBlock::json);
        blocks.chain(&self.structured_content).chain(&self.meta)
    }
}

/// Returns the size of a result as JSON, in bytes.
#[must_use]
pub fn size(content: &[ContentBlock], structured: Option<&JsonText>) -> usize {
    // Brackets and commas of the list.
    let list = content.len().max(1) + 1;
    let blocks: usize = content.iter().map(|block| block.json.bytes()).sum();
    list + blocks + structured.map_or(0, JsonText::bytes)
}

/// Returns the data to which `result` refers in `receiptFields` if there is no structured content: the
/// first text block, read as JSON.
#[must_use]
pub fn text_as_data(content: &[ContentBlock]) -> Option<Value> {
    let text = content.iter().find_map(ContentBlock::as_text)?;
    crate::json::parse(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_read_in_place() {
        let own = ContentBlock::text("a \"b\"\n");
        assert_eq!(own.as_text().unwrap(), "a \"b\"\n");
        assert_eq!(own, ContentBlock::of(&json!({"type": "text", "text": "a \"b\"\n"})).unwrap());
        let block: ContentBlock =
            serde_json::from_str(r#"{ "text": "t", "type": "text", "_meta": {} }"#).unwrap();
        assert_eq!((block.as_text().unwrap().as_ref(), block.has_meta()), ("t", true));
        let image = ContentBlock::of(&json!({"type": "image", "text": "no"})).unwrap();
        assert_eq!((image.kind().unwrap().as_ref(), image.as_text()), ("image", None));
        for ill in [json!([]), json!({"type": 1}), json!("text"), json!({})] {
            assert!(!ContentBlock::of(&ill).unwrap().is_well_formed(), "{ill}");
        }
    }

    #[test]
    fn blocks_are_read_where_they_stand() {
        let text = r#"[{"type":"text","text":"a\u0062"}, { "text" : "c", "type" : "text" }]"#;
        let source = std::sync::Arc::new(text.to_owned());
        let mut reader = Reader::of_source(&source);
        let blocks = ContentBlock::read_all(&mut reader).unwrap();
        let texts: Vec<_> = blocks.iter().map(|block| block.as_text().unwrap()).collect();
        assert_eq!(texts, ["ab", "c"]);
        assert_eq!(blocks[1].json().as_str(), r#"{"text":"c","type":"text"}"#);
    }

    #[test]
    fn sizes_are_those_of_the_text() {
        for blocks in [vec![], vec![ContentBlock::text("a")], vec![ContentBlock::text("a"); 3]] {
            assert_eq!(size(&blocks, None), serde_json::to_string(&blocks).unwrap().len());
        }
        let payload = Payload::data(JsonText::of(&json!({"a": 1})).unwrap());
        assert_eq!(payload.bytes(), r#"[{"type":"text","text":"{\"a\":1}"}]{"a":1}"#.len());
    }
}
