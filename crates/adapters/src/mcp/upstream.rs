//! Requests to a server other than tool calls: prompts, resources, completions, and subscriptions.
//!
//! Path: 7. Doc: call-path.md#requests

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::port::{Ask, CompletionReference, Notice, Upstream};
use toolbooth_contracts::{Caller, Conversation, ErrorCode};

use super::fault::Failure;
use super::link::{Link, Unserved};
use super::request::Request;
use super::{McpServer, screening};

/// How often a request finds its link replaced.
const REPLACED_MAX: usize = 3;
/// Minimum timeout of a request that is not a call.
const REQUEST_TIMEOUT_MIN: Duration = Duration::from_secs(30);

#[async_trait]
impl Upstream for McpServer {
    fn name(&self) -> &str {
        &self.link.settings().name
    }

    async fn request(
        &self,
        ask: Ask,
        caller: &Caller,
        conversation: Conversation,
    ) -> Result<Value, UpstreamError> {
        for _ in 0..REPLACED_MAX {
            let link = self.upstream_link(&ask, caller).await?;
            match ask_over(&link, ask.clone(), &conversation).await {
                Err(Unserved::Replaced) => (),
                asked => return answered(&link, asked),
            }
        }
        let reason = "the caller's credentials changed again and again";
        Err(UpstreamError::Unreachable(reason.to_owned()))
    }

    fn notices(&self) -> async_channel::Receiver<Notice> {
        self.link.notifications().notices.receiver()
    }
}

impl McpServer {
    /// Returns the link that serves a request of a caller.
    async fn upstream_link(&self, ask: &Ask, caller: &Caller) -> Result<Arc<Link>, UpstreamError> {
        match self.link_of(caller).await {
            Ok(link) => Ok(link),
            Err(error) if error.code == ErrorCode::NotConfigured => {
                if let (Some(callers), Ask::Unsubscribe { uri }) = (&self.callers, ask) {
                    callers.forget(caller, uri).await;
                }
                Err(UpstreamError::NotConfigured(error.internal))
            }
            Err(error) => Err(UpstreamError::Unreachable(error.internal)),
        }
    }
}

/// Sends a request over a link.
async fn ask_over(
    link: &Arc<Link>,
    ask: Ask,
    conversation: &Conversation,
) -> Result<Result<Value, Failure>, Unserved> {
    let timeout = link.settings().startup_timeout.max(REQUEST_TIMEOUT_MIN);
    match ask {
        Ask::Subscribe { uri } => link.subscribe(&uri, timeout, conversation).await,
        Ask::Unsubscribe { uri } => link.unsubscribe(&uri, timeout, conversation).await,
        other => {
            let served = link.serve(&asking(other), &[], timeout, Some(conversation), None).await;
            served.map(|served| {
                screening::completed(served.result).map(|mut result| {
                    served.connection.secrets().conceal(&mut result);
                    screening::strip_answer(&mut result);
                    result
                })
            })
        }
    }
}

/// Returns the answer to a request, or its error in the form of the port.
fn answered(
    link: &Link,
    asked: Result<Result<Value, Failure>, Unserved>,
) -> Result<Value, UpstreamError> {
    match asked {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(failure)) => Err(failure.of_request(|text| link.conceal(text))),
        Err(Unserved::Cancelled | Unserved::Replaced) => Err(UpstreamError::Cancelled),
        Err(Unserved::Unreachable(reason)) => Err(UpstreamError::Unreachable(reason.to_string())),
    }
}

/// Converts an ask into a request.
fn asking(ask: Ask) -> Request<'static> {
    let mut params = Map::new();
    let mut put = |name: &str, value: Value| params.insert(name.to_owned(), value);
    let method = match ask {
        Ask::ReadResource { uri } => {
            put("uri", uri.into());
            "resources/read"
        }
        Ask::GetPrompt { name, arguments } => {
            put("name", name.into());
            if let Some(arguments) = arguments {
                put("arguments", arguments.into());
            }
            "prompts/get"
        }
        Ask::Complete { reference, argument, context } => {
            let reference = match reference {
                CompletionReference::Prompt(name) => json!({ "type": "ref/prompt", "name": name }),
                CompletionReference::Resource(uri) => json!({ "type": "ref/resource", "uri": uri }),
            };
            put("ref", reference);
            put("argument", argument);
            if let Some(context) = context {
                put("context", context);
            }
            "completion/complete"
        }
        Ask::Subscribe { uri } => {
            put("uri", uri.into());
            "resources/subscribe"
        }
        Ask::Unsubscribe { uri } => {
            put("uri", uri.into());
            "resources/unsubscribe"
        }
    };
    Request { method, params, ..Request::default() }
}
