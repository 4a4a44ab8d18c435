//! Answers the list methods for tools, prompts, resources and templates, in pages.
//!
//! Path: 10. Doc: front-doors.md#listings

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbooth_contracts::port::ItemKind;
use toolbooth_proxy::{DocumentForm, View};

use super::client::Client;
use super::codec::Request;
use super::declared::tool_document;
use super::page::Page;
use super::rpc_error::RpcError;
use super::search;
use crate::{Gateway, Listing};

/// Prompts, resources or templates of one page.
const ITEMS: usize = 500;

/// Returns the documents of items, with commas between them.
fn joined(items: impl Iterator<Item = Value>) -> Bytes {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(",").into()
}

/// Answers one of the `…/list` methods.
pub(super) fn answer(
    gateway: &Gateway,
    view: &View,
    client: &Client,
    request: &Request,
) -> Result<Page, RpcError> {
    #[derive(Deserialize)]
    struct ListParams {
        #[serde(default)]
        cursor: Option<String>,
    }
    let cursor = request.params.read::<ListParams>()?.cursor.filter(|cursor| !cursor.is_empty());
    let method = request.method.as_str();
    let toolset = client.toolset.as_deref().unwrap_or_default();
    // A cursor is valid for one listing of one caller in one tool set.
    let listing = format!("{method}\0{}\0{toolset}", client.caller.name());
    let after = match &cursor {
        None => None,
        Some(cursor) => match gateway.proxy.position(&listing, cursor) {
            Some(position) => Some(position),
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
    let form = match client.is_modern() {
        true => DocumentForm::Modern,
        false => DocumentForm::Legacy,
    };
    let (member, items, next) = match kind {
        // Callers without permission to search get the whole list.
        None if gateway.listing == Listing::Search && search::is_possible(view) => {
            ("tools", joined(search::tools(view, form).into_iter()), None)
        }
        None => {
            let documents = view.documents(form, |tool| tool_document(tool, form).to_string());
            let (items, next) = documents.page(after.as_deref(), client.page_bytes);
            ("tools", items, next.map(str::to_owned))
        }
        Some((member, kind)) => {
            let (items, next) = view.items(kind, after.as_deref(), ITEMS);
            (member, joined(items.into_iter().map(|item| Value::Object(item.document))), next)
        }
    };
    let mut rest = Map::new();
    if let Some(position) = next {
        rest.insert("nextCursor".to_owned(), json!(gateway.proxy.cursor(&listing, &position)));
    }
    Ok(Page { member, items, rest })
}
