//! A page of a listing, and how large it may be.
//!
//! Path: 10. Doc: front-doors.md#listings

use bytes::Bytes;
use serde_json::{Map, Value};

use super::answer_text::AnswerText;
use super::codec::Id;

/// Bytes of the tools on one page, where the answer is a JSON document.
pub(super) const DOCUMENT_PAGE_BYTES: usize = 8 << 20;
/// Bytes of the tools on one page, where the answer is an event.
pub(super) const EVENT_PAGE_BYTES: usize = 1 << 20;
/// Bytes of the tools on one page, where the answer is a part of a batch.
pub(super) const BATCH_PAGE_BYTES: usize = 256 << 10;

/// A page of a listing.
#[derive(Debug)]
pub(super) struct Page {
    /// The name of the member with the items.
    pub(super) member: &'static str,
    /// The items, with commas between them.
    pub(super) items: Bytes,
    /// All other members of the result.
    pub(super) rest: Map<String, Value>,
}

impl Page {
    /// Returns the answer to a request.
    pub(super) fn answer(self, id: &Id) -> AnswerText {
        let Self { member, items, rest } = self;
        let id = id.as_json();
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"{member}":["#);
        let mut tail = String::from("]");
        for (name, value) in rest {
            tail.push_str(&format!(",{}:{value}", Value::from(name)));
        }
        tail.push_str("}}");
        AnswerText::of_pieces([head.into(), items, tail.into()])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_the_result_of_its_request() {
        for (items, rest, expected) in [
            ("", json!({}), r#"{"jsonrpc":"2.0","id":"a\"b","result":{"tools":[]}}"#),
            (
                "{},{}",
                json!({ "nextCursor": "x\"", "ttlMs": 0 }),
                r#"{"jsonrpc":"2.0","id":"a\"b","result":{"tools":[{},{}],"nextCursor":"x\"","ttlMs":0}}"#,
            ),
        ] {
            let rest = rest.as_object().unwrap().clone();
            let page = Page { member: "tools", items: Bytes::from_static(items.as_bytes()), rest };
            let id = Id::of(&json!("a\"b")).unwrap();
            assert_eq!(page.answer(&id).whole(), expected);
        }
    }
}
