//! The port to what a server offers beside tools: prompts, resources, completion, subscriptions.
//!
//! Path: 7. Doc: call-path.md#requests

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::conversation::Conversation;

/// What is asked of an upstream server beside calls of tools. Names and URIs are the server's own.
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
        /// Its arguments, where the caller sent any.
        arguments: Option<Map<String, Value>>,
    },
    /// Completes an argument.
    Complete {
        /// What the argument belongs to.
        reference: CompletionReference,
        /// The argument: `name`, and `value` as far as it was typed.
        argument: Value,
        /// Further context, such as arguments that are known.
        context: Option<Value>,
    },
    /// Starts to tell when a resource changes. Asking twice is as asking once.
    Subscribe {
        /// Its URI.
        uri: String,
    },
    /// Stops telling.
    Unsubscribe {
        /// Its URI.
        uri: String,
    },
}

/// What an argument that is to be completed belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionReference {
    /// A prompt, by name.
    Prompt(String),
    /// A resource template, or a resource, by URI.
    Resource(String),
}

/// What an upstream server tells by itself, beside changes of its listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A resource has changed, or may have changed while nobody listened.
    ResourceUpdated {
        /// Its URI, as the server has it.
        uri: String,
        /// The caller whose own connection told it; `None` = it concerns every caller.
        caller: Option<String>,
    },
}

/// What an upstream server offers beside tools. Requests and answers are opaque documents of the
/// protocol that the server speaks.
///
/// A server that was lost is connected to again, and asked again for what callers subscribed to.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The server, by its name in configuration.
    fn name(&self) -> &str;

    /// Asks the server on behalf of a caller. Never repeats a request. Progress and log lines of
    /// the request go to the conversation, and its cancel ends the request.
    ///
    /// # Errors
    /// Where the server does not answer, refuses, or was told to stop.
    async fn request(
        &self,
        ask: Ask,
        caller: &crate::Caller,
        conversation: Conversation,
    ) -> Result<Value, UpstreamError>;

    /// As [`Upstream::request`], through a door that shows the tool set `within`. Only a server whose
    /// answers depend on what a door shows looks at it.
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

    /// What the server tells by itself; each notice goes to one of the receivers.
    fn notices(&self) -> async_channel::Receiver<Notice>;
}

/// Why an upstream server did not serve a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    /// The server cannot be reached.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server refused, with its own code.
    #[error("the server refused with code {code}: {message}")]
    Refused {
        /// The protocol's error code.
        code: i64,
        /// The server's sentence.
        message: String,
        /// What the server said beside it.
        data: Option<Value>,
    },
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller told the request to stop.
    #[error("the request was told to stop")]
    Cancelled,
    /// The server answered, and the answer is none of the protocol.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
}
