//! Answers the MCP requests of every transport.
//!
//! Maps methods to functions of the proxy and the catalogue; makes no decisions.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp, front-doors.md#prompts-and-resources

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{Caller, CallerKind, Conversation, ErrorCode, ToolContract};
use toolbooth_mcp::code;
use toolbooth_mcp::header_table::HeaderTables;
use toolbooth_proxy::{
    ORDERS_EVERY, RequestError, ServerRequest, SubscribeRequest, Subscription, View,
};

use super::client::Client;
use super::codec::{Body, Request};
use super::greeting;
use super::notifications::Notifications;
use super::outgoing::Answered;
use super::rpc_error::RpcError;
use super::{lists, tools};
use crate::Gateway;

/// The MCP service that every transport uses.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) gateway: Gateway,
    pub(super) notifications: Notifications,
    header_tables: Arc<HeaderTables<ToolContract>>,
}

impl Door {
    pub(super) fn new(gateway: Gateway) -> Self {
        let notifications = Notifications::new(Arc::clone(&gateway.catalogue), &gateway.proxy);
        Self { gateway, notifications, header_tables: Arc::default() }
    }

    /// Whether the door answers a method in the client's era.
    pub(super) fn answers(&self, method: &str, client: &Client) -> bool {
        match method {
            "tools/list"
            | "tools/call"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "completion/complete" => true,
            "ping" => !client.is_modern(),
            "server/discover" => client.is_modern(),
            _ => false,
        }
    }

    /// Waits until the credentials of a stream have ended: by the end of their time, or by the
    /// revocation of a key. Streams end then: they are not authenticated again.
    pub(super) async fn credentials_ended(&self, caller: &Caller, valid_for: Option<Duration>) {
        if let Some(valid_for) = valid_for {
            return tokio::time::sleep(valid_for).await;
        }
        if caller.kind() != CallerKind::Key {
            return std::future::pending().await;
        }
        let proxy = &self.gateway.proxy;
        while proxy.check_identity(caller.identity()).is_ok() {
            tokio::time::sleep(ORDERS_EVERY).await;
        }
    }

    /// Returns a session id that cannot be guessed.
    pub(super) fn new_id(&self) -> String {
        let proxy = &self.gateway.proxy;
        format!("{}{}", proxy.new_id(), proxy.new_id()).replace('-', "")
    }

    /// Returns the client's view of the catalogue.
    pub(super) fn view(&self, client: &Client) -> View {
        self.gateway.catalogue.view(&client.caller).within(client.toolset.clone())
    }

    /// Answers one request. Sessions, log levels and subscriptions belong to a connection and are
    /// answered there.
    ///
    /// # Errors
    /// The error of JSON-RPC.
    pub(super) async fn answer(
        &self,
        client: &Client,
        request: Request,
        meta: Map<String, Value>,
        conversation: Conversation,
    ) -> Result<Answered, RpcError> {
        let method = request.method.clone();
        if !self.answers(&method, client) {
            return Err(RpcError::unknown_method(&method));
        }
        let mut result = match method.as_str() {
            "ping" => json!({}),
            "server/discover" => return Ok(greeting::discovered().into()),
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
                let mut page = lists::answer(&self.gateway, &self.view(client), client, &request)?;
                if client.is_modern() {
                    stamp(&method, &mut page.rest);
                }
                return Ok(Answered::Page(page));
            }
            "tools/call" => {
                let tables = Arc::clone(&self.header_tables);
                let called =
                    tools::call(&self.gateway, client, request, &meta, conversation, tables);
                return Ok(Body::Call(Box::new(called.await?)).into());
            }
            _ => self.ask(client, request, &meta, conversation).await?,
        };
        if let Some(members) = result.as_object_mut() {
            match client.is_modern() {
                true => stamp(&method, members),
                false => unstamp(members),
            }
        }
        Ok(result.into())
    }

    /// Sends a request for a prompt, a resource or a completion through the proxy.
    async fn ask(
        &self,
        client: &Client,
        request: Request,
        meta: &Map<String, Value>,
        conversation: Conversation,
    ) -> Result<Value, RpcError> {
        let ask = ask(&request)?;
        // Frees the raw parameters, because `ask` has its own copy.
        drop(request);
        let uri = match &ask {
            Ask::ReadResource { uri } => Some(uri.clone()),
            _ => None,
        };
        let asked = ServerRequest {
            ask,
            context: client.context(meta)?,
            caller: client.caller.clone(),
            within: client.toolset.clone(),
        };
        let answered = self.gateway.proxy.request(asked, conversation).await;
        answered.map_err(|error| refused(error, uri.as_deref(), client))
    }

    /// Subscribes to a resource.
    ///
    /// # Errors
    /// The error of JSON-RPC.
    pub(super) async fn subscribe(
        &self,
        client: &Client,
        uri: &str,
        meta: &Map<String, Value>,
    ) -> Result<Subscription, RpcError> {
        let asked = SubscribeRequest {
            uri: uri.to_owned(),
            context: client.context(meta)?,
            caller: client.caller.clone(),
            within: client.toolset.clone(),
        };
        let subscribed = self.gateway.proxy.subscribe(asked).await;
        subscribed.map_err(|error| refused(error, Some(uri), client))
    }
}

/// Parses a request for a prompt, a resource or a completion.
fn ask(request: &Request) -> Result<Ask, RpcError> {
    #[derive(Deserialize)]
    struct Read {
        uri: String,
    }
    #[derive(Deserialize)]
    struct Get {
        name: String,
        #[serde(default)]
        arguments: Option<Map<String, Value>>,
    }
    #[derive(Deserialize)]
    struct Complete {
        r#ref: Reference,
        argument: Argument,
        #[serde(default)]
        context: Option<Map<String, Value>>,
    }
    #[derive(Deserialize)]
    #[serde(tag = "type")]
    enum Reference {
        #[serde(rename = "ref/prompt")]
        Prompt { name: String },
        #[serde(rename = "ref/resource")]
        Resource { uri: String },
    }
    #[derive(Deserialize)]
    struct Argument {
        name: String,
        value: String,
    }
    use toolbooth_contracts::port::CompletionReference;
    Ok(match request.method.as_str() {
        "resources/read" => Ask::ReadResource { uri: request.params.read::<Read>()?.uri },
        "prompts/get" => {
            let Get { name, arguments } = request.params.read()?;
            Ask::GetPrompt { name, arguments }
        }
        _ => {
            let Complete { r#ref, argument, context } = request.params.read()?;
            Ask::Complete {
                reference: match r#ref {
                    Reference::Prompt { name } => CompletionReference::Prompt(name),
                    Reference::Resource { uri } => CompletionReference::Resource(uri),
                },
                argument: json!({ "name": argument.name, "value": argument.value }),
                context: context.map(Value::Object),
            }
        }
    })
}

/// Maps a refusal of the proxy, or of the server behind it, to a JSON-RPC error.
fn refused(error: RequestError, uri: Option<&str>, client: &Client) -> RpcError {
    if let Some(said) = error.upstream {
        // The eras have different codes for an unknown resource. Errors of the connection between
        // gateway and server do not concern the client.
        let code = match said.code {
            code::RESOURCE_NOT_FOUND if client.is_modern() => code::INVALID_PARAMS,
            code::INVALID_PARAMS if uri.is_some() && !client.is_modern() => {
                code::RESOURCE_NOT_FOUND
            }
            code::MISSING_CAPABILITY if client.lacks(said.data.as_ref()) => said.code,
            code::MISSING_CAPABILITY
            | code::HEADER_MISMATCH
            | code::UNSUPPORTED_VERSION
            | code::PARSE_ERROR
            | code::INVALID_REQUEST
            | code::METHOD_NOT_FOUND => code::SERVER_ERROR,
            other => other,
        };
        let (told, server) = (said.code, said.server);
        let data = match (said.data, uri) {
            (None, Some(uri))
                if code == code::INVALID_PARAMS || code == code::RESOURCE_NOT_FOUND =>
            {
                Some(json!({ "uri": uri }))
            }
            // The server's data contains the URI in the server's own form.
            (Some(Value::Object(mut data)), Some(uri)) if data.contains_key("uri") => {
                data.insert("uri".to_owned(), uri.into());
                Some(Value::Object(data))
            }
            (data, _) => data,
        };
        // Marks the error as the server's, so that it is not mistaken for an error of the gateway.
        let mut data = match data {
            Some(Value::Object(members)) => members,
            Some(other) => Map::from_iter([("upstream".to_owned(), other)]),
            None => Map::new(),
        };
        data.insert("toolbooth/server".to_owned(), server.into());
        if told != code {
            data.insert("toolbooth/upstreamCode".to_owned(), told.into());
        }
        let data = Some(Box::new(Value::Object(data)));
        return RpcError { code, message: said.message, data, upstream: true };
    }
    let mut data = json!({ "code": error.code, "callId": error.call_id });
    if let Some(data) = data.as_object_mut() {
        if !error.details.is_empty() {
            data.insert("details".to_owned(), Value::Object(error.details));
        }
        if let Some(after) = error.retry_after_ms {
            data.insert("retryAfterMs".to_owned(), after.into());
        }
    }
    match (error.code, uri) {
        (ErrorCode::UnregisteredTool, Some(uri)) => {
            let code =
                if client.is_modern() { code::INVALID_PARAMS } else { code::RESOURCE_NOT_FOUND };
            let data = json!({ "uri": uri, "code": error.code });
            RpcError::new(code, "ACCESS_DENIED: no such resource is available to you")
                .with_data(data)
        }
        (ErrorCode::UnregisteredTool, None) => {
            let data = json!({ "code": error.code });
            let message = "ACCESS_DENIED: no such prompt or resource is available to you";
            RpcError::invalid_params(message).with_data(data)
        }
        (ErrorCode::InvalidArgs, _) => RpcError::invalid_params(error.message).with_data(data),
        _ => RpcError::new(code::SERVER_ERROR, error.message).with_data(data),
    }
}

/// Adds the members that every result of the modern era has; legacy servers do not send them.
fn stamp(method: &str, members: &mut Map<String, Value>) {
    members.entry("resultType").or_insert_with(|| json!("complete"));
    if matches!(
        method,
        "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    ) {
        if !members.get("ttlMs").is_some_and(Value::is_u64) {
            members.insert("ttlMs".to_owned(), json!(0));
        }
        // The view of one caller must not be cached for another.
        members.insert("cacheScope".to_owned(), json!("private"));
    }
}

/// Removes the members that results of the legacy era do not have.
fn unstamp(members: &mut Map<String, Value>) {
    for name in ["resultType", "ttlMs", "cacheScope"] {
        members.shift_remove(name);
    }
}
