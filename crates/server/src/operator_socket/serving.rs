//! Serves the socket: one request for each connection of the gateway's own user.
//!
//! Path: 1, 10. Doc: front-doors.md#operator-socket

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use toolbooth_contracts::Caller;
use toolbooth_proxy::{Catalogue, ToolProxy};

use super::DEFINITIONS;
use crate::http::{Problem, ProblemCode, approvals, method_not_allowed};

/// Connections at once; others wait until one of them ends.
const CONNECTIONS_MAX: usize = 8;
/// The time for one connection.
const CONNECTION: Duration = Duration::from_secs(30);
/// Bytes of one request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// The pause after an error of the listener, most likely a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves decisions and definitions until this future is dropped.
pub async fn serve(listener: &UnixListener, proxy: ToolProxy, catalogue: Arc<Catalogue>) {
    let definitions = Router::new()
        .route(DEFINITIONS, get(definitions))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(catalogue);
    let router =
        approvals::decisions(proxy).merge(definitions).layer(Extension(Caller::operator()));
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of the operator is not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the user of a peer may decide: the gateway's own user, and root, can read the data folder.
fn may_decide(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

async fn connection(stream: UnixStream, router: Router) {
    match stream.peer_cred() {
        Ok(peer) if may_decide(peer.uid()) => (),
        Ok(peer) => return tracing::warn!(user = peer.uid(), "another user may not decide"),
        Err(error) => return tracing::warn!(%error, "the user of a connection is not known"),
    }
    let own = match stream.as_fd().try_clone_to_owned() {
        Ok(own) => own,
        Err(error) => return tracing::warn!(%error, "a connection of the operator is not served"),
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request| answer(&router, request, &own));
    let serving = http1::Builder::new()
        .header_read_timeout(None)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION, serving).await {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tracing::debug!(%error, "a connection of the operator ended early"),
        Err(_) => tracing::debug!("a connection of the operator was not complete in time"),
    }
}

/// Answers with the definitions of the last listings, as a lock file that approves them.
async fn definitions(State(catalogue): State<Arc<Catalogue>>) -> Response<Body> {
    let json = [(CONTENT_TYPE, "application/json")];
    (json, catalogue.definitions().to_text()).into_response()
}

/// Whether the peer still waits for an answer. After a request that was read as a whole, nothing follows but
/// the end.
fn is_waiting(stream: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(stream, &mut [0_u8; 1], flags).is_err_and(|error| error == Errno::AGAIN)
}

async fn answer(
    router: &TowerToHyperService<Router>,
    request: Request<Incoming>,
    stream: &OwnedFd,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    match to_bytes(Body::new(body), BODY_BYTES_MAX).await {
        // A command that has ended, perhaps long ago, has told its user that it did not decide.
        Ok(_) if !is_waiting(stream) => {
            let title = "the other end has not waited for the answer";
            Ok(Problem::new(ProblemCode::REQUEST_TIMEOUT, title).into_response())
        }
        Ok(bytes) => router.call(Request::from_parts(parts, Body::from(bytes))).await,
        Err(error) => {
            tracing::debug!(%error, "a body is not read");
            let title = format!("the body cannot be read, or has more than {BODY_BYTES_MAX} bytes");
            Ok(Problem::new(ProblemCode::TOO_LARGE, title).into_response())
        }
    }
}
