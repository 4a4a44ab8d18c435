//! Serves `subscriptions/listen`: a stream of change notifications of the modern era.
//!
//! Doc: front-doors.md#changes

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::codec::{self, Request};
use super::door::Door;
use super::notifications::{Lists, SUBSCRIPTIONS_MAX};
use super::outbox;
use super::outgoing::{Answer, Outgoing};
use super::rpc_error::RpcError;

/// The method.
pub(super) const METHOD: &str = "subscriptions/listen";

/// The changes that a client asks to be notified of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filter {
    #[serde(default)]
    tools_list_changed: bool,
    #[serde(default)]
    prompts_list_changed: bool,
    #[serde(default)]
    resources_list_changed: bool,
    #[serde(default)]
    resource_subscriptions: Vec<String>,
}

/// Reads the filter of a listen request.
///
/// # Errors
/// `-32602`, if it is malformed or has too many resources.
pub(super) fn filter(request: &Request) -> Result<Filter, RpcError> {
    #[derive(Deserialize)]
    struct Listen {
        notifications: Filter,
    }
    let filter = request.params.read::<Listen>()?.notifications;
    if filter.resource_subscriptions.len() > SUBSCRIPTIONS_MAX {
        let message = format!("one stream has at most {SUBSCRIPTIONS_MAX} resources");
        return Err(RpcError::invalid_params(message));
    }
    Ok(filter)
}

/// Sends notifications of changes until the client stops listening or the gateway ends. The caller
/// drops this future when the credentials of the client end.
pub(super) async fn run(
    door: &Door,
    client: &Client,
    request: &Request,
    filter: Filter,
    stop: CancellationToken,
    ending: CancellationToken,
    outgoing: mpsc::Sender<Outgoing>,
) {
    let lists = Lists {
        tools: filter.tools_list_changed,
        prompts: filter.prompts_list_changed,
        resources: filter.resources_list_changed,
    };
    let toolset: Option<&Arc<str>> = client.toolset.as_ref();
    let membership = door.notifications.join(&client.caller, toolset, lists);
    let mut accepted = Map::new();
    for (name, wanted) in [
        ("toolsListChanged", lists.tools),
        ("promptsListChanged", lists.prompts),
        ("resourcesListChanged", lists.resources),
    ] {
        if wanted {
            accepted.insert(name.to_owned(), json!(true));
        }
    }
    let mut uris = Vec::new();
    let no_meta = Map::new();
    for uri in filter.resource_subscriptions {
        // The acknowledgement omits resources with a failed subscription.
        let subscribed = tokio::select! {
            subscribed = door.subscribe(client, &uri, &no_meta) => subscribed,
            () = stop.cancelled() => return,
        };
        if let Ok(subscription) = subscribed
            && membership.add(subscription)
        {
            uris.push(uri);
        }
    }
    if !uris.is_empty() {
        accepted.insert("resourceSubscriptions".to_owned(), json!(uris));
    }
    let mut params = Map::new();
    params.insert("notifications".to_owned(), Value::Object(accepted));
    let acknowledged = "notifications/subscriptions/acknowledged";
    let first = outbox::tagged(acknowledged, params, Some(&request.id));
    if outgoing.send(Outgoing::Notice(first)).await.is_err() {
        return;
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = ending.cancelled() => (),
        () = membership.outbox.send_to(&outgoing, Some(&request.id)) => return,
    }
    let result = json!({
        "resultType": "complete",
        "_meta": { outbox::SUBSCRIPTION_ID: request.id.value() },
    });
    let message = codec::answer(&request.id, Ok(result.into()));
    let _ = outgoing.send(Outgoing::Answer(Answer { message: message.into(), error: None })).await;
}
