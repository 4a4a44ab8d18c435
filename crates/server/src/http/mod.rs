//! Serves the HTTP front door: the MCP endpoint, calls, records, tools and health.
//!
//! Path: 1, 10. Doc: front-doors.md#http

mod accept;
mod answers;
pub(crate) mod approvals;
mod body;
mod connections;
mod door_names;
mod head;
mod limits;
mod line_ends;
mod problem;
mod problem_code;
mod records;
mod resource;
mod routes;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{CONNECTION, WWW_AUTHENTICATE};
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::ErrorCode;
use toolbooth_proxy::DeniedAuthentication;

pub(crate) use body::{Held, read_json};
pub use door_names::DoorNames;
pub use limits::{CONNECTIONS_MAX, DESCRIPTORS_RESERVED, Limits, connections_fitting};
pub use problem::Problem;
pub use problem_code::ProblemCode;
pub use resource::ProtectedResource;
pub(crate) use routes::{encoded, method_not_allowed};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};

use crate::Gateway;
use crate::auth::{Authenticated, Authenticator, Connection, NotAuthenticated};
use crate::mcp;
pub use crate::message_size::BODY_BYTES_MAX;
use crate::peer::PeerOwners;
use accept::Serving;
use body::Budget;

/// Checks whether the records can be written; the error states the reason, for operators.
pub type Readiness = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Ready> + Send>> + Send + Sync>;

/// Whether the records can be written.
pub type Ready = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The parts of the HTTP front door.
#[derive(Clone)]
pub struct HttpDoor {
    /// The gateway that serves the requests.
    pub gateway: Gateway,
    /// Names the caller of each request.
    pub authenticator: Arc<dyn Authenticator>,
    /// Looks up the owners of client sockets on this machine.
    pub peers: Arc<dyn PeerOwners>,
    /// The names under which clients reach the door, and the proxies in front of it.
    pub names: Arc<DoorNames>,
    /// The door as a protected resource of OAuth, if it accepts access tokens.
    pub resource: Option<Arc<ProtectedResource>>,
    /// The door's TLS; `None` = it speaks plain HTTP.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<Tls>>,
    /// Answers `/readyz`.
    pub readiness: Readiness,
    /// Limits of connections and requests.
    pub limits: Limits,
}

/// Serves until `stopping` is cancelled, then waits for the requests in progress. Streams end when
/// `ending` is cancelled.
///
/// A connection that has no request in progress when `stopping` is cancelled is closed. Errors of the listener are
/// logged, and accepting goes on.
pub async fn serve(
    listener: TcpListener,
    door: HttpDoor,
    stopping: CancellationToken,
    ending: CancellationToken,
) {
    let serving = Serving {
        peers: Arc::clone(&door.peers),
        limits: door.limits,
        budget: Budget::new(door.limits.body_bytes_budget),
        #[cfg(feature = "tls")]
        tls: door.tls.clone(),
        names: Arc::clone(&door.names),
        router: router(door, &ending),
    };
    accept::accept(listener, serving, stopping).await;
}

fn router(door: HttpDoor, ending: &CancellationToken) -> Router {
    let endpoint = mcp::Endpoint::new(door.gateway.clone(), door.limits.sessions, ending);
    let endpoint = Arc::new(endpoint);
    // Shared, since the router clones its state for each request.
    let door = Arc::new(door);
    let protocol = Router::new()
        .route("/mcp", any(mcp::everything))
        .route("/mcp/{toolset}", any(mcp::toolset))
        .with_state(endpoint);
    let calls = Router::new()
        .route("/v1/calls", post(routes::call))
        .route("/v1/calls/{id}", get(routes::queued).delete(routes::cancel))
        .route("/v1/receipts", get(records::receipts))
        .route("/v1/receipts/{id}", get(records::receipt))
        .route("/v1/agent-logs", get(records::agent_logs))
        .route("/v1/agent-logs/{id}", get(records::agent_log))
        .route("/v1/tools", get(routes::tools))
        .route("/v1/discover", post(routes::discover))
        .method_not_allowed_fallback(routes::method_not_allowed)
        .with_state(Arc::clone(&door));
    let approvals = approvals::every(door.gateway.proxy.clone());
    let health = Router::new()
        .route("/healthz", get(routes::healthz))
        .route("/readyz", get(routes::readyz))
        .with_state(Arc::clone(&door));
    let health = match &door.resource {
        Some(own) => health.merge(resource::routes(Arc::clone(own))),
        None => health,
    };
    protocol
        .merge(calls)
        .merge(approvals)
        .layer(from_fn_with_state(door, authenticate))
        .merge(health)
        .fallback(routes::not_found)
}

/// Returns the answer to a request without valid credentials, with its challenge.
fn not_authenticated(
    error: &NotAuthenticated,
    own: Option<&ProtectedResource>,
    path: &str,
) -> Response {
    // Further requests on this connection would fail as well; closing it frees its place.
    let close = [(CONNECTION, "close")];
    if error.is_temporary() {
        let problem = Problem::new(ErrorCode::RecordUnavailable, error.to_string());
        return (close, Problem { retry_after_ms: Some(1_000), ..problem }).into_response();
    }
    let code = match error {
        NotAuthenticated::InsufficientScope { .. } => ProblemCode::INSUFFICIENT_SCOPE,
        _ => ProblemCode::NOT_AUTHENTICATED,
    };
    let problem = Problem::new(code, error.to_string());
    (close, [(WWW_AUTHENTICATE, resource::challenge(error, own, path))], problem).into_response()
}

/// The remaining time of the credentials of a request.
#[derive(Clone, Copy)]
pub(crate) struct ValidFor(pub(crate) Option<Duration>);

async fn authenticate(
    State(door): State<Arc<HttpDoor>>,
    Extension(connection): Extension<Connection>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let authenticated = match door.names.admits(&connection) {
        true => door.authenticator.authenticate(&parts, &connection).await,
        false => Err(NotAuthenticated::NotTheProxy),
    };
    match authenticated {
        Ok(Authenticated { caller, valid_for }) => {
            parts.extensions.insert(caller);
            parts.extensions.insert(ValidFor(valid_for));
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => {
            // Not a warning: any client that reaches the port could fill the log.
            tracing::debug!(reason = error.reason(), "a request was not authenticated");
            let reason = error.reason();
            let peer = door.names.client(&connection, &parts.headers);
            let (key, caller) = (error.key(), error.caller());
            let denied = DeniedAuthentication { reason, key, caller, peer };
            door.gateway.proxy.record_denied_authentication(denied).await;
            not_authenticated(&error, door.resource.as_deref(), parts.uri.path())
        }
    }
}
