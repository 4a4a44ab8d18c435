//! The port for requests to a server other than tool calls: prompts, resources, completion,
//! subscriptions.
//!
//! Path: 7. Doc: call-path.md#requests

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::conversation::Conversation;
use crate::error::UpstreamError;

/// A request to an upstream server other than a tool call. Names and URIs are the server's own.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// Reads a resource.
    ReadResource {
        /// Its URI.
        uri: String,
    },
    /// Fetches a prompt.
    GetPrompt {
        /// Its name.
        name: String,
        /// Its arguments, if the caller sent any.
        arguments: Option<Map<String, Value>>,
    },
    /// Completes an argument.
    Complete {
        /// The prompt or resource of the argument.
        reference: CompletionReference,
        /// The argument: `name`, and `value` as far as it was typed.
        argument: Value,
        /// Further context, such as arguments that are known.
        context: Option<Value>,
    },
    /// Subscribes to changes of a resource. A second subscription has no further effect.
    Subscribe {
        /// Its URI.
        uri: String,
    },
    /// Ends the subscription.
    Unsubscribe {
        /// Its URI.
        uri: String,
    },
}

/// The prompt or resource of an argument that is to be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionReference {
    /// A prompt, by name.
    Prompt(String),
    /// A resource template, or a resource, by URI.
    Resource(String),
}

/// A notification of an upstream server, other than changes of its listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A resource has changed, or may have changed while there was no listener.
    ResourceUpdated {
        /// Its URI, as the server defines it.
        uri: String,
        /// The caller with its own connection on which the notification arrived; `None` = it concerns
        /// every caller.
        caller: Option<String>,
    },
}

/// An upstream server, for requests other than tool calls. Requests and responses are opaque documents
/// of the protocol that the server speaks.
///
/// A lost connection is established again, and the callers' subscriptions are requested again.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Returns the name of the server in configuration.
    fn name(&self) -> &str;

    /// Sends a request to the server on behalf of a caller. It never repeats a request. Progress and log
    /// lines of the request are sent to the conversation, and its cancel ends the request.
    ///
    /// # Errors
    /// Where the server does not answer, refuses, or was told to stop.
    async fn request(
        &self,
        ask: Ask,
        caller: &crate::Caller,
        conversation: Conversation,
    ) -> Result<Value, UpstreamError>;

    /// As [`Upstream::request`], through a front door that shows the tool set `within`. Only a server
    /// with responses that depend on the tool set reads it.
    ///
    /// # Errors
    /// As [`Upstream::request`].
    async fn request_within(
        &self,
        ask: Ask,
        caller: &crate::Caller,
        within: Option<&std::sync::Arc<str>>,
        conversation: Conversation,
    ) -> Result<Value, UpstreamError> {
        let _ = within;
        self.request(ask, caller, conversation).await
    }

    /// Returns a receiver of the server's notices; each notice is sent to one of the receivers.
    fn notices(&self) -> async_channel::Receiver<Notice>;
}
