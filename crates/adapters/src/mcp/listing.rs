//! Reads the lists of a server, page by page, within limits.
//!
//! Path: 3. Doc: execution.md#mcp-servers

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolbooth_contracts::error::SourceError;
use toolbooth_contracts::port::{DiscoveredItem, DiscoveredTool, Listing};
use toolbooth_mcp::{code, header};

use super::fault::{Failure, Fault};
use super::link::{Link, Unserved};
use super::request::Request;
use crate::secrets::KnownSecrets;

/// Maximum pages of a list, so that a server with an endless cursor is cut off.
const PAGES_MAX: usize = 1_000;
/// Maximum items of one kind per server.
const ITEMS_MAX: usize = 20_000;
/// Maximum bytes of the texts that one server lists, of all kinds together.
const LISTING_BYTES_MAX: usize = 32 << 20;
/// Maximum number of reported problems.
const PROBLEMS_MAX: usize = 100;

/// Members of a tool that have a field of their own in [`DiscoveredTool`].
const TOOL_MEMBERS: [&str; 6] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// A kind of items.
struct Kind {
    method: &'static str,
    /// The member of a page that contains the items.
    items: &'static str,
    /// The member that identifies an item.
    key: &'static str,
    /// Its name in messages.
    word: &'static str,
}

const TOOLS: Kind = Kind { method: "tools/list", items: "tools", key: "name", word: "tools" };
const PROMPTS: Kind =
    Kind { method: "prompts/list", items: "prompts", key: "name", word: "prompts" };
const RESOURCES: Kind =
    Kind { method: "resources/list", items: "resources", key: "uri", word: "resources" };
const TEMPLATES: Kind = Kind {
    method: "resources/templates/list",
    items: "resourceTemplates",
    key: "uriTemplate",
    word: "resource templates",
};

/// The reason why a list could not be read.
enum Unlisted {
    /// The server has no such list.
    Unknown(String),
    Other(String),
}

/// Estimates the size of a document, in bytes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum(),
        Value::Object(members) => members.iter().map(|(key, own)| key.len() + size(own) + 2).sum(),
        _ => 8,
    }
}

/// A reader of lists that counts their total size.
struct Pager<'a> {
    link: &'a Arc<Link>,
    timeout: Duration,
    bytes: usize,
    problems: Vec<String>,
}

/// Lists everything that a server offers.
pub(super) async fn list(link: &Arc<Link>, timeout: Duration) -> Result<Listing, SourceError> {
    let mut pager = Pager { link, timeout, bytes: 0, problems: Vec::new() };
    if let Ok(connection) = link.connection().await {
        // A server notifies of later changes only if it was subscribed to before the lists are read.
        connection.channel.listening().await;
    }
    let tools = pager.all(&TOOLS).await;
    let connection = link.connection().await;
    let mut listing = Listing::default();
    if let Ok(connection) = &connection {
        listing.offers = connection.channel.greeting.offers;
    }
    let offers = listing.offers;
    let tools = match tools {
        Ok(tools) => tools,
        // A server may offer prompts or resources but no tools.
        Err(Unlisted::Unknown(_)) if offers.prompts || offers.resources => Vec::new(),
        Err(Unlisted::Unknown(reason) | Unlisted::Other(reason)) => {
            return Err(SourceError(reason));
        }
    };
    for (name, tool) in tools {
        if let Err(reason) = header::check(tool.get("inputSchema").unwrap_or(&Value::Null)) {
            // The server would receive headers that cannot be compared with the arguments.
            pager.problem(format!("tool `{name}` is left out: {reason}"));
            continue;
        }
        listing.tools.push(discovered(name, tool));
    }
    if offers.prompts {
        listing.prompts = pager.items(&PROMPTS).await;
    }
    if offers.resources {
        listing.resources = pager.items(&RESOURCES).await;
        listing.templates = pager.items(&TEMPLATES).await;
    }
    listing.problems = pager.problems;
    Ok(listing)
}

impl Pager<'_> {
    fn problem(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// Reads all items of a kind that is not a tool. A failure is reported as a problem and does not
    /// affect tools.
    async fn items(&mut self, kind: &Kind) -> Vec<DiscoveredItem> {
        match self.all(kind).await {
            Ok(items) => {
                let item = |(key, document)| DiscoveredItem { key, document };
                items.into_iter().map(item).collect()
            }
            // Templates are a part of resources that not every server supports.
            Err(Unlisted::Unknown(_)) if kind.method == TEMPLATES.method => Vec::new(),
            Err(Unlisted::Unknown(reason) | Unlisted::Other(reason)) => {
                self.problem(format!("its {} are not listed: {reason}", kind.word));
                Vec::new()
            }
        }
    }

    /// Reads all items of a kind, each with its key.
    async fn all(&mut self, kind: &Kind) -> Result<Vec<(String, Map<String, Value>)>, Unlisted> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        let mut seen = HashSet::new();
        for _ in 0..PAGES_MAX {
            let (mut page, secrets) = self.page(kind, cursor.as_deref()).await?;
            let next = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            let items = match page.get_mut(kind.items).map(Value::take) {
                Some(Value::Array(items)) => items,
                _ => return Err(Unlisted::Other(format!("the server listed no {}", kind.word))),
            };
            if all.len() + items.len() > ITEMS_MAX {
                let told = format!("the server lists more than {ITEMS_MAX} {}", kind.word);
                return Err(Unlisted::Other(told));
            }
            self.bytes += items.iter().map(size).sum::<usize>();
            if self.bytes > LISTING_BYTES_MAX {
                let told = format!("the server lists more than {LISTING_BYTES_MAX} bytes");
                return Err(Unlisted::Other(told));
            }
            for mut item in items {
                // Agents read definitions, which must not contain the server's secrets.
                secrets.conceal_definition(&mut item);
                let key = item.get(kind.key).and_then(Value::as_str).map(str::to_owned);
                match (key.filter(|key| !key.trim().is_empty()), item) {
                    (Some(key), Value::Object(item)) => all.push((key, item)),
                    _ => self.problem(format!("an item of the list has no `{}`", kind.key)),
                }
            }
            // An empty string is a valid cursor.
            match next {
                Some(next) if !seen.insert(next.clone()) => {
                    let shown: String = next.chars().take(80).collect();
                    let told = format!("the server repeats its cursor `{shown}`");
                    return Err(Unlisted::Other(told));
                }
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
        Err(Unlisted::Other(format!("the server lists more than {PAGES_MAX} pages")))
    }

    async fn page(
        &self,
        kind: &Kind,
        cursor: Option<&str>,
    ) -> Result<(Value, KnownSecrets), Unlisted> {
        let mut request = Request { method: kind.method, ..Request::default() };
        if let Some(cursor) = cursor {
            request.params.insert("cursor".to_owned(), Value::from(cursor));
        }
        let served = self.link.serve(&request, &[], self.timeout, None, None).await;
        let failure = match served {
            Ok(served) => match served.result {
                Ok(page) => return Ok((page.tree(), served.connection.secrets().clone())),
                Err(failure) => failure,
            },
            Err(Unserved::Unreachable(reason)) => {
                return Err(Unlisted::Other(format!("the server cannot be reached: {reason}")));
            }
            Err(Unserved::Cancelled | Unserved::Replaced) => {
                return Err(Unlisted::Other("it was stopped".to_owned()));
            }
        };
        let unknown = matches!(&failure.fault, Fault::Refused(refusal)
            if refusal.code == code::METHOD_NOT_FOUND);
        let told = self.operator_message(failure);
        Err(if unknown { Unlisted::Unknown(told) } else { Unlisted::Other(told) })
    }

    fn operator_message(&self, failure: Failure) -> String {
        let text = match &failure.fault {
            Fault::Refused(refusal) => format!("the server refused with code {refusal}"),
            other => other.to_string(),
        };
        self.link.conceal(&text)
    }
}

fn discovered(name: String, mut tool: Map<String, Value>) -> DiscoveredTool {
    let text = |tool: &Map<String, Value>, name: &str| {
        tool.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    let (title, description) = (text(&tool, "title"), text(&tool, "description"));
    let input_schema = tool.shift_remove("inputSchema").unwrap_or_else(|| json!({}));
    let output_schema = tool.shift_remove("outputSchema").filter(|schema| !schema.is_null());
    let annotations = match tool.shift_remove("annotations") {
        Some(Value::Object(annotations)) => Some(annotations),
        _ => None,
    };
    tool.retain(|member, _| !TOOL_MEMBERS.contains(&member.as_str()));
    DiscoveredTool {
        name,
        title,
        description,
        input_schema,
        output_schema,
        annotations,
        extra: tool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_lists_beside_is_kept() {
        let tool = json!({
            "name": "t", "title": "T", "inputSchema": {"type": "object"}, "outputSchema": null,
            "annotations": {"readOnlyHint": true}, "icons": [1], "_meta": {"a": 1}, "execution": {},
        });
        let Value::Object(members) = tool else { panic!("it is an object") };
        let tool = discovered("t".to_owned(), members);
        assert_eq!(tool.title.as_deref(), Some("T"));
        assert_eq!(tool.output_schema, None);
        assert_eq!(tool.extra.keys().collect::<Vec<_>>(), ["icons", "_meta", "execution"]);
    }
}
