//! Accepts connections up to a limit and serves HTTP/1.1 on each.
//!
//! Path: 1. Doc: front-doors.md#limits

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::ErrorCode;

use super::body::{AnswerBody, Budget, Held, LimitedBody};
use super::connections::{Activity, IdleConnections};
use super::door_names::DoorNames;
use super::limits::{BUFFER_BYTES_MAX, HEAD_BYTES_MAX};
use super::stream::DeadlineStream;
#[cfg(feature = "tls")]
use super::tls::CountedStream;
use super::{Limits, Problem, answers, head};
use crate::auth::Connection;
use crate::peer::PeerOwners;

/// The time that an evicted connection has to end.
const EVICTION: Duration = Duration::from_secs(1);
/// Refusals that may be in progress; further connections are closed without an answer.
const REFUSALS_MAX: usize = 32;
/// The time that a refused client has to read its answer.
const REFUSAL: Duration = Duration::from_secs(1);
/// The pause after an error of the listener, most likely a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The state that all connections of a listener share.
pub(super) struct Serving {
    pub(super) router: Router,
    /// The host and origin names that a request may state.
    pub(super) names: Arc<DoorNames>,
    pub(super) peers: Arc<dyn PeerOwners>,
    pub(super) limits: Limits,
    pub(super) budget: Budget,
    /// The door's TLS; `None` = it speaks plain HTTP.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Arc<super::Tls>>,
}

impl Serving {
    fn speaks_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Accepts until `stopping` is cancelled, then waits for requests that are in progress.
///
/// Owns one task per connection; dropping this future aborts them.
pub(super) async fn accept(listener: TcpListener, serving: Serving, stopping: CancellationToken) {
    let serving = Arc::new(serving);
    let idle = IdleConnections::default();
    let (mut connections, mut refusals) = (JoinSet::new(), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            Some(_) = refusals.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Only that one connection failed.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                tracing::warn!(%error, "a connection is not accepted");
                idle.evict();
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(connection) = describe(&stream, peer, &*serving.peers) else { continue };
        if free_connection(&mut connections, &idle, serving.limits.connections_max).await {
            let (serving, stopping) = (Arc::clone(&serving), stopping.clone());
            connections.spawn(serve(stream, connection, serving, idle.join(), stopping));
        } else if refusals.len() < REFUSALS_MAX && !serving.speaks_tls() {
            refusals.spawn(refuse(stream));
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Whether one more connection fits. At the limit it first closes the connection that has been idle
/// the longest.
async fn free_connection(
    connections: &mut JoinSet<()>,
    idle: &IdleConnections,
    max: usize,
) -> bool {
    while connections.try_join_next().is_some() {}
    if connections.len() >= max && idle.evict() {
        let _ = timeout(EVICTION, connections.join_next()).await;
    }
    connections.len() < max
}

/// Describes the connection; `None` if it is closed already.
fn describe(stream: &TcpStream, peer: SocketAddr, peers: &dyn PeerOwners) -> Option<Connection> {
    // Otherwise small pieces of an answer wait for acknowledgements (Nagle's algorithm).
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok()?;
    // The look-up takes only microseconds, so it does not delay other connections. Later the peer
    // may have closed its socket.
    let owner = peers.owner(peer, local);
    // A connection that was reset before it was accepted no longer holds its addresses, and another
    // socket may have them. The look-up counts only if this connection has its peer afterwards.
    stream.peer_addr().ok()?;
    Some(Connection { peer, local, owner })
}

/// Serves one connection, after its handshake if the door speaks TLS.
async fn serve(
    stream: TcpStream,
    connection: Connection,
    serving: Arc<Serving>,
    activity: Arc<Activity>,
    stopping: CancellationToken,
) {
    #[cfg(feature = "tls")]
    if let Some(tls) = &serving.tls {
        let (counted, sent) = CountedStream::new(stream);
        let accepted = tokio::select! {
            biased;
            () = activity.evicted() => return,
            () = stopping.cancelled() => return,
            accepted = timeout(serving.limits.header_timeout, tls.accept(counted)) => accepted,
        };
        return match accepted {
            Ok(Ok(stream)) => {
                requests(stream, Some(sent), connection, serving, activity, stopping).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake was not complete in time"),
        };
    }
    requests(stream, None, connection, serving, activity, stopping).await;
}

/// Serves the requests of one connection. `sent` counts the bytes below TLS.
async fn requests<S>(
    stream: S,
    sent: Option<Arc<AtomicU64>>,
    connection: Connection,
    serving: Arc<Serving>,
    activity: Arc<Activity>,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let io =
        TokioIo::new(DeadlineStream::new(stream, sent, Arc::clone(&activity), &serving.limits));
    let router = TowerToHyperService::new(serving.router.clone());
    let service = {
        let activity = Arc::clone(&activity);
        service_fn(move |request| answer(&router, request, connection, &serving, &activity))
    };
    let mut http = std::pin::pin!(
        http1::Builder::new()
            // hyper's own deadline would end idle connections as well.
            .header_read_timeout(None)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(io, service)
    );
    let ended = tokio::select! {
        biased;
        () = activity.evicted() => return,
        ended = http.as_mut() => ended,
        () = stopping.cancelled() => {
            http.as_mut().graceful_shutdown();
            let at_once = std::future::poll_fn(|context| {
                Poll::Ready(http.as_mut().poll(context).is_ready())
            });
            // A request with an incomplete head has not begun.
            if at_once.await || activity.is_idle() {
                return;
            }
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn answer(
    router: &TowerToHyperService<Router>,
    mut request: Request<Incoming>,
    connection: Connection,
    serving: &Serving,
    activity: &Arc<Activity>,
) -> impl Future<Output = Result<Response<AnswerBody>, Infallible>> + use<> {
    let refused = head::refusal(request.uri(), request.headers(), &serving.names, &connection);
    request.extensions_mut().insert(connection);
    let activity = Arc::clone(activity);
    let begun = activity.begin().map(|in_progress| {
        let lease = serving.budget.lease();
        request.extensions_mut().insert(Held(Arc::clone(&lease)));
        let limited = request.map(|incoming| {
            LimitedBody::new(incoming, Arc::clone(&activity), Arc::clone(&lease), &serving.limits)
        });
        let answering = match refused {
            Some(problem) => Err(problem),
            None => Ok(router.call(limited)),
        };
        (answering, (in_progress, lease))
    });
    async move {
        match begun {
            Some((answering, held)) => {
                let mut response = match answering {
                    Ok(answering) => answers::as_json(answering.await?),
                    Err(problem) => problem.into_response(),
                };
                if activity.ends() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok(response.map(|body| AnswerBody { body, _held: held }))
            }
            // `serve` is about to drop the connection, because it was evicted.
            None => std::future::pending().await,
        }
    }
}

fn too_many_connections() -> Problem {
    let title = "too many connections are open; try again later";
    Problem { retry_after_ms: Some(1_000), ..Problem::new(ErrorCode::Overloaded, title) }
}

/// Answers 503 and allows the client up to [`REFUSAL`] to read it.
async fn refuse(mut stream: TcpStream) {
    let saying = async {
        stream.write_all(&too_many_connections().as_message()).await?;
        stream.shutdown().await?;
        // Closing with bytes unread would reset the connection.
        let mut scratch = [0; 4 << 10];
        while stream.read(&mut scratch).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(REFUSAL, saying).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpSocket;

    use super::*;
    use crate::peer::{PeerOwner, SocketDiagnostics};

    /// A connection was reset before it was accepted, and another socket has its addresses now.
    #[tokio::test]
    async fn a_connection_that_was_reset_is_not_taken_for_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let socket = || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket
        };
        let first = socket();
        first.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let from = first.local_addr().unwrap();
        let first = first.connect(to).await.unwrap();
        first.set_zero_linger().unwrap();
        drop(first);
        let second = socket();
        second.bind(from).unwrap();
        let connecting = second.connect(to);
        let second = tokio::time::timeout(Duration::from_secs(10), connecting).await;
        let _second = second.unwrap().unwrap();
        let (dead, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, from);
        // The kernel reports the owner of the second socket.
        let diagnostics = SocketDiagnostics::default();
        assert_eq!(diagnostics.owner(peer, to), PeerOwner::SameUser);
        assert!(describe(&dead, peer, &diagnostics).is_none());
        let (live, peer) = listener.accept().await.unwrap();
        let live = describe(&live, peer, &diagnostics).unwrap();
        assert_eq!(live.owner, PeerOwner::SameUser);
    }
}
