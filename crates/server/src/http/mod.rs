//! The HTTP front door: the MCP endpoint, calls, tools, and health.
//!
//! Path: 1, 10. Doc: front-doors.md#http

mod hosts;
mod problem;
mod records;
mod routes;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use problem::{Problem, status_of};

use crate::House;
use crate::auth::Authenticator;
use crate::mcp;

/// Bytes of one request.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Tells whether the records can be written; a sentence where they cannot.
pub type Readiness =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// What the HTTP front door needs.
#[derive(Clone)]
pub struct HttpDoor {
    /// What it opens onto.
    pub house: House,
    /// Who calls.
    pub authenticator: Arc<dyn Authenticator>,
    /// Whether calls can be served.
    pub readiness: Readiness,
}

/// Serves until `stopping` is cancelled, then lets requests end; streams end with `ending`.
///
/// # Errors
/// Where the listener breaks.
pub async fn serve(
    listener: TcpListener,
    door: HttpDoor,
    stopping: CancellationToken,
    ending: CancellationToken,
) -> std::io::Result<()> {
    let app = router(door, &ending).into_make_service_with_connect_info::<SocketAddr>();
    // Without it answers in small pieces wait for acknowledgements.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, app)
        .with_graceful_shutdown(async move { stopping.cancelled().await })
        .await
}

fn router(door: HttpDoor, ending: &CancellationToken) -> Router {
    let endpoint = mcp::service(door.house.clone(), ending);
    let protocol = Router::new()
        .route_service("/mcp", endpoint)
        .layer(from_fn(mcp::carry_calls))
        .layer(from_fn_with_state(mcp::SessionOwners::default(), mcp::bind_sessions));
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
        .with_state(door.clone());
    let health = Router::new()
        .route("/healthz", get(routes::healthz))
        .route("/readyz", get(routes::readyz))
        .with_state(door.clone());
    protocol
        .merge(calls)
        .layer(from_fn_with_state(door, authenticate))
        .merge(health)
        .fallback(routes::not_found)
        .layer(from_fn(hosts::guard))
}

async fn authenticate(
    State(door): State<HttpDoor>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match door.authenticator.authenticate(&parts, peer).await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => {
            tracing::warn!(%error, "a request was not authenticated");
            Problem::new(401, "not-authenticated", error.to_string()).into_response()
        }
    }
}
