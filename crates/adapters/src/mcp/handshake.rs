//! Performs the handshake with a server: the modern one, with the legacy one as a fallback.
//!
//! For a server that is known as legacy, the order is reversed.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::time::Duration;

use http::HeaderMap;
use serde_json::Map;
use toolbooth_mcp::{Era, version};

use super::calls::{Purpose, Ticket};
use super::channel::{Line, Transport};
use super::envelope;
use super::fault::Fault;
use super::greeting::{self, Greeting};
use super::headers;
use super::http::SessionHeaders;
use super::request::RequestMeta;
use super::results::RpcResult;

/// How long a child may leave the modern handshake unanswered before the legacy one is tried. Legacy
/// servers may not respond to unknown requests. At most half of the connect timeout.
const CHILD_PATIENCE: Duration = Duration::from_secs(4);
/// Like [`CHILD_PATIENCE`], over HTTP, where every request has its own response.
const HTTP_PATIENCE: Duration = Duration::from_secs(8);

/// The reason for a failed handshake.
#[derive(Debug)]
pub(super) enum Ungreeted {
    /// A retry would fail in the same way.
    Final(String),
    /// The server failed on one handshake; after a restart it may support the other.
    Confused(String),
}

/// Performs the handshake within `timeout`, which the caller enforces; `known` is the last known
/// era.
pub(super) async fn greet(
    line: &Line,
    known: Option<Era>,
    timeout: Duration,
) -> Result<(Greeting, SessionHeaders), Ungreeted> {
    let (mut ticket, _) = line.incoming.calls.open(Purpose::Own);
    if known == Some(Era::Legacy) {
        let failed = match initialize(line).await {
            Ok(greeted) => return Ok(greeted),
            Err(failed) => failed,
        };
        return discover(line, &mut ticket, timeout).await.map_err(|_| failed);
    }
    match discover(line, &mut ticket, timeout).await {
        Ok(greeted) => Ok(greeted),
        Err(Ungreeted::Final(reason)) => Err(Ungreeted::Final(reason)),
        Err(Ungreeted::Confused(reason)) => {
            tracing::debug!(reason, "a server is asked again in the legacy way");
            let failed = match initialize(line).await {
                Ok(greeted) => return Ok(greeted),
                Err(failed) => failed,
            };
            // A modern server that started slowly may have responded to the first request by now.
            match ticket.answer.try_recv() {
                Ok(Ok(result)) => modern(result).map_err(|_| failed),
                _ => Err(failed),
            }
        }
    }
}

/// Reads the result of the modern handshake.
fn modern(result: RpcResult) -> Result<(Greeting, SessionHeaders), Ungreeted> {
    let greeting = greeting::discovered(&result.tree()).ok_or_else(|| {
        Ungreeted::Confused("the response to `server/discover` is not valid".to_owned())
    })?;
    Ok((greeting, modern_speech()))
}

fn modern_speech() -> SessionHeaders {
    SessionHeaders::new(version::modern(), None)
}

async fn discover(
    line: &Line,
    ticket: &mut Ticket,
    timeout: Duration,
) -> Result<(Greeting, SessionHeaders), Ungreeted> {
    let request = greeting::discover();
    let speech = modern_speech();
    let (patience, headers) = match &line.transport {
        Transport::Stdio(_) => (CHILD_PATIENCE, HeaderMap::new()),
        Transport::Http(_) => (HTTP_PATIENCE, headers::of(&request, &[])),
    };
    let meta = RequestMeta::of(&request.meta);
    let exchange = line.exchange(ticket, &request, &meta, &speech, headers);
    let answered = match tokio::time::timeout(patience.min(timeout / 2), exchange).await {
        Ok(posted) => posted.answered,
        Err(_) => Err(Fault::Timeout),
    };
    match answered {
        Ok(result) => modern(result),
        Err(Fault::Refused(refusal)) if greeting::is_modern_refusal(&refusal) => {
            Err(Ungreeted::Final(format!("the server refused: {refusal}")))
        }
        // No server listens at the URL.
        Err(Fault::Lost(reason))
            if matches!(line.transport, Transport::Http(_)) && !ticket.was_sent() =>
        {
            Err(Ungreeted::Final(reason))
        }
        Err(fault) => Err(Ungreeted::Confused(operator_message(&fault))),
    }
}

fn operator_message(fault: &Fault) -> String {
    match fault {
        Fault::Refused(refusal) => format!("the server refused: {refusal}"),
        other => other.to_string(),
    }
}

/// Performs the legacy handshake.
pub(super) async fn initialize(line: &Line) -> Result<(Greeting, SessionHeaders), Ungreeted> {
    let request = greeting::initialize();
    let (mut ticket, _) = line.incoming.calls.open(Purpose::Own);
    let speech = SessionHeaders::default();
    let none = HeaderMap::new();
    let posted = line.exchange(&mut ticket, &request, &RequestMeta::default(), &speech, none).await;
    let result = match posted.answered {
        Ok(result) => result,
        Err(fault) => return Err(Ungreeted::Confused(operator_message(&fault))),
    };
    let greeting = greeting::initialized(&result.tree())
        .map_err(|error| Ungreeted::Confused(error.to_string()))?;
    let speech = SessionHeaders::new(&greeting.version, posted.session.as_deref());
    let body = envelope::notification("notifications/initialized", &Map::new());
    match &line.transport {
        Transport::Stdio(stdio) => stdio.notify(body).await,
        Transport::Http(http) => http.notify(&speech, body, HeaderMap::new()).await,
    }
    Ok((greeting, speech))
}
