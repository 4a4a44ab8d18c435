//! Answers the list methods for tools, prompts, resources and templates, in pages.
//!
//! Path: 10. Doc: front-doors.md#listings

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbooth_contracts::port::ItemKind;
use toolbooth_proxy::View;

use super::client::Client;
use super::codec::Request;
use super::declared::tool_document;
use super::rpc_error::RpcError;
use super::search;
use crate::{Gateway, Listing};

/// Items of one page.
const PAGE: usize = 500;

/// Answers one of the `…/list` methods.
pub(super) fn answer(
    gateway: &Gateway,
    view: &View,
    client: &Client,
    request: &Request,
) -> Result<Value, RpcError> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        cursor: Option<String>,
    }
    let cursor = request.params.read::<Page>()?.cursor.filter(|cursor| !cursor.is_empty());
    let method = request.method.as_str();
    let toolset = client.toolset.as_deref().unwrap_or_default();
    // A cursor is valid for one listing of one caller in one tool set.
    let listing = format!("{method}\0{}\0{toolset}", client.caller.name());
    let after = match &cursor {
        None => None,
        Some(cursor) => match gateway.proxy.position(&listing, cursor) {
            Some(place) => Some(place),
            None => {
                let message = "the cursor is not one of this listing; begin without one";
                return Err(RpcError::invalid_params(message));
            }
        },
    };
    let kind = match method {
        "prompts/list" => Some(("prompts", ItemKind::Prompt)),
        "resources/list" => Some(("resources", ItemKind::Resource)),
        "resources/templates/list" => Some(("resourceTemplates", ItemKind::Template)),
        _ => None,
    };
    let (member, items, next) = match kind {
        // Callers without permission to search get the whole list.
        None if gateway.listing == Listing::Search && search::is_possible(view) => {
            ("tools", search::tools(view, client), None)
        }
        None => {
            let (tools, next) = view.listed(after.as_deref(), PAGE);
            ("tools", tools.iter().map(|tool| tool_document(tool, client)).collect(), next)
        }
        Some((member, kind)) => {
            let (items, next) = view.items(kind, after.as_deref(), PAGE);
            (member, items.into_iter().map(|item| Value::Object(item.document)).collect(), next)
        }
    };
    let mut result = Map::new();
    result.insert(member.to_owned(), Value::Array(items));
    if let Some(place) = next {
        result.insert("nextCursor".to_owned(), json!(gateway.proxy.cursor(&listing, &place)));
    }
    Ok(Value::Object(result))
}
