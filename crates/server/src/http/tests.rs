//! Tests the accept loop with raw bytes over real connections.
//!
//! Waits for events, never for fixed times.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::accept::{self, Serving};
use super::body::Budget;
use super::{Limits, read_json};
use crate::auth::Connection;
use crate::peer::{PeerOwner, PeerOwners};

/// Longer than any test needs; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Short, for deadlines that a test waits for.
const SOON: Duration = Duration::from_millis(50);

struct Owned(PeerOwner);

impl PeerOwners for Owned {
    fn owner(&self, _peer: SocketAddr, _local: SocketAddr) -> PeerOwner {
        self.0
    }
}

/// The state that a test shares with its routes.
#[derive(Clone)]
struct Shared {
    /// Signals that a request has arrived at `/wait`.
    arrived: mpsc::UnboundedSender<()>,
    /// Lets requests at `/wait` end.
    release: Arc<Semaphore>,
    /// Signals that the body of `/endless` was dropped.
    given_up: mpsc::UnboundedSender<()>,
    /// The pieces that `/stream` sends.
    stream: Arc<std::sync::Mutex<Option<mpsc::Receiver<Bytes>>>>,
}

struct Door {
    address: SocketAddr,
    budget: Budget,
    stopping: CancellationToken,
    serving: JoinHandle<()>,
    arrived: mpsc::UnboundedReceiver<()>,
    release: Arc<Semaphore>,
    given_up: mpsc::UnboundedReceiver<()>,
    stream: mpsc::Sender<Bytes>,
}

async fn wait(State(shared): State<Shared>) -> &'static str {
    let _ = shared.arrived.send(());
    let _permit = shared.release.acquire().await.unwrap();
    "waited"
}

async fn echo(State(shared): State<Shared>, headers: HeaderMap, body: Body) -> Response {
    match read_json(&headers, body).await {
        Ok(bytes) if headers.contains_key("x-wait") => {
            wait(State(shared)).await;
            bytes.into_response()
        }
        Ok(bytes) => bytes.into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// A body without an end, or one that a channel feeds.
enum Source {
    Endless(mpsc::UnboundedSender<()>),
    Channel(mpsc::Receiver<Bytes>),
}

impl http_body::Body for Source {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Endless(_) => std::task::Poll::Ready(Some(Bytes::from_static(&[b'x'; 65_536]))),
            Self::Channel(channel) => channel.poll_recv(context),
        }
        .map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::Endless(given_up) = self {
            let _ = given_up.send(());
        }
    }
}

async fn door(limits: Limits, owner: PeerOwner) -> Door {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (arrived, arrivals) = mpsc::unbounded_channel();
    let (given_up, gives_up) = mpsc::unbounded_channel();
    let (stream, streamed) = mpsc::channel(1);
    let release = Arc::new(Semaphore::new(0));
    let shared = Shared {
        arrived,
        release: Arc::clone(&release),
        given_up,
        stream: Arc::new(std::sync::Mutex::new(Some(streamed))),
    };
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route(
            "/owner",
            get(|Extension(c): Extension<Connection>| async move { format!("{:?}", c.owner) }),
        )
        .route("/wait", get(wait))
        .route("/echo", post(echo))
        .route(
            "/endless",
            get(|State(shared): State<Shared>| async move {
                Body::new(Source::Endless(shared.given_up.clone())).into_response()
            }),
        )
        .route(
            "/stream",
            get(|State(shared): State<Shared>| async move {
                let channel = shared.stream.lock().unwrap().take().unwrap();
                Body::new(Source::Channel(channel)).into_response()
            }),
        )
        .with_state(shared);
    let budget = Budget::new(limits.body_bytes_budget);
    let serving = Serving {
        router,
        names: Arc::default(),
        peers: Arc::new(Owned(owner)),
        limits,
        budget: budget.clone(),
        #[cfg(feature = "tls")]
        tls: None,
    };
    let stopping = CancellationToken::new();
    let serving = tokio::spawn(accept::accept(listener, serving, stopping.clone()));
    let (arrived, given_up) = (arrivals, gives_up);
    Door { address, budget, stopping, serving, arrived, release, given_up, stream }
}

fn limits() -> Limits {
    Limits {
        connections_max: 100,
        header_timeout: PATIENCE,
        body_timeout: PATIENCE,
        write_timeout: PATIENCE,
        body_bytes_budget: 1 << 20,
        ..Limits::default()
    }
}

struct Client(TcpStream);

impl Door {
    async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// Returns a connection after its first answer, so that it is accepted and idle.
    async fn idle(&self) -> Client {
        let mut client = self.client().await;
        assert_eq!(client.get("/").await.0, 200);
        client
    }
}

impl Client {
    async fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
    }

    async fn get(&mut self, path: &str) -> (u16, String, String) {
        self.ask(path).await;
        self.answer().await
    }

    /// Returns status, head and body. The body has the length that `content-length` states.
    async fn answer(&mut self) -> (u16, String, String) {
        let head = self.until("\r\n\r\n").await;
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_default();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        tokio::time::timeout(PATIENCE, self.0.read_exact(&mut body)).await.unwrap().unwrap();
        (status, head, String::from_utf8(body).unwrap())
    }

    async fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let byte = tokio::time::timeout(PATIENCE, self.0.read_u8()).await.unwrap();
            text.push(byte.unwrap_or_else(|_| {
                panic!("ended before an answer: {}", String::from_utf8_lossy(&text))
            }));
        }
        String::from_utf8(text).unwrap()
    }

    /// Waits until the server has closed the connection.
    async fn closed(&mut self) {
        let mut rest = Vec::new();
        // A reset closes the connection as well.
        let _ = tokio::time::timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
}

fn code(answer: &(u16, String, String)) -> (u16, String) {
    assert!(answer.1.contains("content-type: application/problem+json"), "{answer:?}");
    let problem: serde_json::Value = serde_json::from_str(&answer.2).unwrap();
    assert_eq!(problem["status"], answer.0);
    (answer.0, problem["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_full_door_closes_the_longest_idle_connection() {
    let door = door(Limits { connections_max: 3, ..limits() }, PeerOwner::SameUser).await;
    let (mut first, mut second, mut third) =
        (door.idle().await, door.idle().await, door.idle().await);
    assert_eq!(first.get("/").await.0, 200, "the second is now idle the longest");
    let mut fourth = door.idle().await;
    second.closed().await;
    for client in [&mut first, &mut third, &mut fourth] {
        assert_eq!(client.get("/").await.0, 200);
    }
}

#[tokio::test]
async fn an_unfinished_head_is_no_request_and_is_closed_for_others() {
    let door = door(Limits { connections_max: 2, ..limits() }, PeerOwner::SameUser).await;
    let mut slow = door.idle().await;
    slow.send("GET / HTT").await;
    let _other = door.idle().await;
    let _newer = door.idle().await;
    slow.closed().await;
}

#[tokio::test]
async fn requests_and_streams_in_progress_are_never_closed_for_others() {
    let mut door = door(Limits { connections_max: 2, ..limits() }, PeerOwner::SameUser).await;
    let (mut waiting, mut streaming) = (door.client().await, door.client().await);
    waiting.ask("/wait").await;
    door.arrived.recv().await.unwrap();
    streaming.ask("/stream").await;
    streaming.until("\r\n\r\n").await;
    for _ in 0..3 {
        let mut refused = door.client().await;
        let answer = refused.get("/").await;
        assert_eq!(code(&answer), (503, "overloaded".to_owned()));
        assert!(answer.1.contains("retry-after: 1\r\n"));
        refused.closed().await;
    }
    door.stream.send(Bytes::from_static(b"still here")).await.unwrap();
    assert!(streaming.until("still here").await.contains("still here"));
    door.release.add_permits(1);
    assert_eq!(waiting.answer().await.2, "waited");
    // The connection is idle now, so it is evicted for a new one.
    assert_eq!(door.client().await.get("/").await.0, 200);
    waiting.closed().await;
}

#[tokio::test]
async fn a_slow_head_is_refused_and_an_idle_connection_is_not() {
    let door = door(Limits { header_timeout: SOON, ..limits() }, PeerOwner::SameUser).await;
    let (mut silent, mut idle) = (door.client().await, door.idle().await);
    let mut slow = door.idle().await;
    slow.send("GET / HTTP/1.1\r\nhost: loc").await;
    assert_eq!(code(&slow.answer().await), (408, "request-timeout".to_owned()));
    slow.closed().await;
    // Both connections are older than the slow one.
    assert_eq!(idle.get("/").await.0, 200);
    assert_eq!(silent.get("/").await.0, 200);
}

#[tokio::test]
async fn a_slow_body_is_refused() {
    let door = door(Limits { body_timeout: SOON, ..limits() }, PeerOwner::SameUser).await;
    let mut slow = door.client().await;
    slow.send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").await;
    assert_eq!(code(&slow.answer().await), (408, "request-timeout".to_owned()));
    slow.closed().await;
    assert_eq!(door.budget.held(), 0);
}

const HALF: &str = "POST /echo HTTP/1.1\r\nhost: localhost\r\nx-wait: 1\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n";

#[tokio::test]
async fn bodies_of_all_connections_share_one_budget() {
    let mut door = door(Limits { body_bytes_budget: 20, ..limits() }, PeerOwner::SameUser).await;
    let (mut one, mut two) = (door.client().await, door.client().await);
    for client in [&mut one, &mut two] {
        client.send(HALF).await;
        client.send("12345678").await;
        door.arrived.recv().await.unwrap();
    }
    assert_eq!(door.budget.held(), 16, "held until the requests have ended");
    let mut third = door.client().await;
    third.send(HALF).await;
    third.send("12345678").await;
    let answer = third.answer().await;
    assert_eq!(code(&answer), (503, "overloaded".to_owned()));
    assert!(answer.1.contains("retry-after: 1\r\n"), "{}", answer.1);
    assert_eq!(third.get("/").await.0, 200, "its body was read, so that the connection lives on");
    door.release.add_permits(10);
    assert_eq!(one.answer().await.2, "12345678");
    assert_eq!(two.answer().await.2, "12345678");
    let mut fourth = door.client().await;
    fourth.send(HALF).await;
    fourth.send("12345678").await;
    assert_eq!(fourth.answer().await.0, 200);
    // A request releases its bytes before the next one on its connection is answered.
    assert_eq!(fourth.get("/").await.0, 200);
    assert_eq!(door.budget.held(), 0);
}

#[tokio::test]
async fn a_refused_body_is_still_read_for_a_moment_so_that_the_answer_arrives() {
    let door = door(Limits { body_bytes_budget: 1_000, ..limits() }, PeerOwner::SameUser).await;
    let mut client = door.client().await;
    let head = "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n";
    client.send(head).await;
    let body = vec![b' '; 4_000_000];
    client.0.write_all(&body).await.unwrap();
    assert_eq!(code(&client.answer().await), (503, "overloaded".to_owned()));
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused_before_and_while_it_comes() {
    let door = door(Limits { body_bytes_budget: 64 << 20, ..limits() }, PeerOwner::SameUser).await;
    let mut declared = door.client().await;
    declared.send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n").await;
    assert_eq!(code(&declared.answer().await), (413, "too-large".to_owned()));
    let mut chunked = door.client().await;
    chunked.send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n895440\r\n").await;
    let body = vec![b' '; 9_000_000];
    chunked.0.write_all(&body).await.unwrap();
    assert_eq!(code(&chunked.answer().await), (413, "too-large".to_owned()));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed_and_a_quiet_stream_is_not() {
    let mut door = door(Limits { write_timeout: SOON, ..limits() }, PeerOwner::SameUser).await;
    let mut streaming = door.client().await;
    streaming.ask("/stream").await;
    streaming.until("\r\n\r\n").await;
    let mut greedy = door.client().await;
    greedy.ask("/endless").await;
    tokio::time::timeout(PATIENCE, door.given_up.recv()).await.unwrap().unwrap();
    door.stream.send(Bytes::from_static(b"still here")).await.unwrap();
    assert!(streaming.until("still here").await.contains("still here"));
}

#[tokio::test]
async fn every_refusal_of_a_head_is_a_problem() {
    let door = door(limits(), PeerOwner::SameUser).await;
    let long = "x".repeat(40_000);
    let path = "y".repeat(30_000);
    let many = "a: b\r\n".repeat(200);
    for (request, status, name) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("GET / HTTP/9.9\r\nhost: localhost\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("GET / HTTP/1.1\r\nhost localhost\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n".to_owned(), 400, "invalid-request"),
        ("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(), 400, "invalid-request"),
        ("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}".to_owned(), 415, "unsupported-media-type"),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {long}\r\n\r\n"), 431, "head-too-large"),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), 431, "head-too-large"),
        (format!("GET /{path} HTTP/1.1\r\nhost: localhost\r\n\r\n"), 404, "not-found"),
        ("PUT / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 405, "method-not-allowed"),
        ("GET / HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:1\r\n\r\n".to_owned(), 403, "foreign-origin"),
    ] {
        let mut client = door.client().await;
        client.send(&request).await;
        let shown = request.get(..60).unwrap_or(&request).to_owned();
        assert_eq!(code(&client.answer().await), (status, name.to_owned()), "{shown}");
    }
}

#[tokio::test]
async fn requests_are_told_who_owned_the_connection_when_it_was_accepted() {
    for owner in [PeerOwner::SameUser, PeerOwner::OtherUser, PeerOwner::Unknown] {
        let door = door(limits(), owner).await;
        let mut client = door.client().await;
        for _ in 0..2 {
            assert_eq!(client.get("/owner").await.2, format!("{owner:?}"));
        }
    }
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_lets_requests_end() {
    let mut door = door(limits(), PeerOwner::SameUser).await;
    let (mut idle, mut silent, mut slow) =
        (door.idle().await, door.client().await, door.idle().await);
    slow.send("GET / HTT").await;
    let mut waiting = door.client().await;
    waiting.ask("/wait").await;
    door.arrived.recv().await.unwrap();
    door.stopping.cancel();
    idle.closed().await;
    silent.closed().await;
    slow.closed().await;
    assert!(!door.serving.is_finished(), "a request is in progress");
    door.release.add_permits(1);
    let (status, head, body) = waiting.answer().await;
    assert_eq!((status, body.as_str()), (200, "waited"));
    assert!(head.contains("connection: close"), "{head}");
    tokio::time::timeout(PATIENCE, door.serving).await.unwrap().unwrap();
}
