//! Searches tools by words: BM25 over ids, titles, descriptions and parameter names.
//!
//! An index contains only the tools that one caller can see, so a ranking reveals nothing about other
//! tools.
//!
//! Doc: registry.md#search

use std::fmt;
use std::sync::Arc;

use bm25::{Document, SearchEngine, SearchEngineBuilder, Tokenizer};
use rust_stemmers::{Algorithm, Stemmer};
use serde_json::Value;

use crate::tool::RegisteredTool;

/// Maximum length of a query, in characters; the rest is ignored.
pub const QUERY_CHARS_MAX: usize = 1_000;
/// Maximum length of the indexed text of one tool, in characters.
const TEXT_CHARS_MAX: usize = 20_000;

/// Stop words, which are not indexed.
const STOP_WORDS: [&str; 32] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "i", "in", "is", "it",
    "its", "of", "on", "or", "that", "the", "this", "to", "use", "used", "using", "want", "when",
    "which", "will", "with", "you",
];

/// A tokenizer that splits ids, prose and camelCase into lower-case stems.
struct Words(Stemmer);

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let mut word = String::new();
        let mut lower = false;
        let mut finish = |word: &mut String| {
            if !word.is_empty() && !STOP_WORDS.contains(&word.as_str()) {
                out.push(self.0.stem(word).into_owned());
            }
            word.clear();
        };
        for character in text.chars() {
            if !character.is_alphanumeric() {
                finish(&mut word);
                lower = false;
                continue;
            }
            if character.is_uppercase() && lower {
                finish(&mut word);
            }
            lower = character.is_lowercase() || character.is_numeric();
            word.extend(character.to_lowercase());
        }
        finish(&mut word);
        out
    }
}

/// An index over tools.
pub struct SearchIndex {
    engine: SearchEngine<u32, u32, Words>,
    tools: Vec<Arc<RegisteredTool>>,
}

impl fmt::Debug for SearchIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchIndex").field("tools", &self.tools.len()).finish_non_exhaustive()
    }
}

impl SearchIndex {
    /// An index over `tools`.
    #[must_use]
    pub fn new(tools: Vec<Arc<RegisteredTool>>) -> Self {
        let documents: Vec<Document<u32>> =
            (0u32..).zip(&tools).map(|(at, tool)| Document::new(at, text(tool))).collect();
        let words = Words(Stemmer::create(Algorithm::English));
        let engine =
            SearchEngineBuilder::<u32, u32, Words>::with_tokenizer_and_documents(words, documents)
                .build();
        Self { engine, tools }
    }

    /// The best `limit` tools for `query`, best first. Tools of equal score are sorted by id.
    #[must_use]
    pub fn search(&self, query: &str, limit: usize) -> Vec<Arc<RegisteredTool>> {
        let query: String = query.chars().take(QUERY_CHARS_MAX).collect();
        let mut found: Vec<(f32, &Arc<RegisteredTool>)> = self
            .engine
            .search(&query, None)
            .into_iter()
            .filter_map(|result| {
                let at = usize::try_from(result.document.id).ok()?;
                Some((result.score, self.tools.get(at)?))
            })
            .collect();
        found.sort_by(|(a, one), (b, two)| b.total_cmp(a).then_with(|| one.id().cmp(two.id())));
        found.truncate(limit);
        found.into_iter().map(|(_, tool)| Arc::clone(tool)).collect()
    }
}

/// The indexed text of a tool. Id and title are repeated, so that they weigh more than the
/// description.
fn text(tool: &RegisteredTool) -> String {
    let contract = tool.contract();
    let id = contract.tool_id.as_str();
    let title = contract.title.as_deref().unwrap_or_default();
    let mut out = format!("{id} {id} {id} {title} {title} ");
    out.push_str(contract.description.as_deref().unwrap_or_default());
    parameters(&contract.input_schema, &mut out, 0);
    if out.len() > TEXT_CHARS_MAX {
        out = out.chars().take(TEXT_CHARS_MAX).collect();
    }
    out
}

fn parameters(schema: &Value, out: &mut String, depth: usize) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, property) in properties {
        if out.len() > TEXT_CHARS_MAX {
            return;
        }
        out.push(' ');
        out.push_str(name);
        if depth < 3 {
            parameters(property, out, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbooth_contracts::Guard;

    use super::*;
    use crate::tool::Source;

    fn index(tools: &[(&str, &str)]) -> SearchIndex {
        let tools = tools.iter().map(|(id, description)| {
            let entry = json!({"name": id, "description": description, "output_schema": {},
                "input_schema": {"type": "object", "properties": {"recipientPhone": {}}}});
            Arc::new(RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap())
        });
        SearchIndex::new(tools.collect())
    }

    #[test]
    fn tools_are_found_by_every_word_of_theirs() {
        let index = index(&[
            ("leads.create", "Creates a lead for a customer who called."),
            ("mail.sendMessage", "Sends electronic mail."),
            ("calendar.list_events", "Lists appointments between two dates."),
        ]);
        let best = |query: &str| {
            index.search(query, 1).first().map(|tool| tool.id().to_string()).unwrap_or_default()
        };
        assert_eq!(best("create leads"), "leads.create");
        assert_eq!(best("SENDING a message"), "mail.sendMessage");
        assert_eq!(best("appointment"), "calendar.list_events");
        assert_eq!(index.search("phone", 10).len(), 3, "parameter names count");
        assert!(index.search("", 10).is_empty() && index.search("qwertz", 10).is_empty());
        assert_eq!(index.search("phone", 2).len(), 2);
    }

    #[test]
    fn an_index_of_nothing_finds_nothing() {
        assert!(index(&[]).search("x", 5).is_empty());
    }
}
