//! Manages the sessions of the legacy era over HTTP.
//!
//! A session belongs to the caller that made it. It ends when it is idle for too long, or when its
//! caller makes too many.
//!
//! Doc: front-doors.md#sessions

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::Caller;
use toolbooth_contracts::conversation::LogLevel;
use toolbooth_mcp::{code, version};

use super::client::Client;
use super::codec::{self, Fault, Message, Notification, Request};
use super::door::Door;
use super::exchange;
use super::in_flight::{InFlight, Running, cancelled};
use super::notifications::{Membership, SUBSCRIPTIONS_MAX};
use super::outgoing::{Answer, OUTGOING_MAX, Outgoing};
use super::page::BATCH_PAGE_BYTES;
use super::rpc_error::RpcError;
use super::session_table::{SessionTable, Tracked};
use crate::error::NoSession;
use crate::http::Held;

/// The revision that has batches.
pub(super) const BATCHES: &str = "2025-03-26";
pub(super) const NO_BATCHES: &str =
    "this revision of the protocol has no batches; send each message by itself";

/// The parameters of `initialize`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialize {
    protocol_version: String,
    #[serde(default)]
    client_info: Option<Value>,
}

impl Initialize {
    /// Returns the version of the session: the requested one if it is supported, otherwise the
    /// newest.
    pub(super) fn version(&self) -> String {
        let known = version::legacy();
        let asked = known.iter().find(|version| **version == self.protocol_version);
        asked.or(known.last()).cloned().unwrap_or_default()
    }

    /// Returns the client's name for itself, at most 256 characters.
    pub(super) fn name(&self) -> Option<String> {
        let name = self.client_info.as_ref()?.get("name")?.as_str()?;
        Some(name.chars().take(256).collect())
    }
}

/// Limits of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sessions of one caller.
    pub per_caller_max: usize,
    /// Sessions of all callers.
    pub all_max: usize,
    /// Maximum time that a session may be idle, with no request in progress and no stream open.
    pub idle: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { per_caller_max: 1_000, all_max: 10_000, idle: Duration::from_secs(1_800) }
    }
}

/// One session.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) version: String,
    pub(super) client: Client,
    pub(super) in_flight: InFlight,
    pub(super) membership: Membership,
    /// Cancelled when the session ends.
    pub(super) ended: CancellationToken,
    state: Mutex<State>,
}

struct State {
    used: Instant,
    log_level: Option<LogLevel>,
    /// Ends the open stream when another is opened.
    stream: Option<CancellationToken>,
}

impl Session {
    pub(super) fn new(
        id: String,
        version: &str,
        client: Client,
        membership: Membership,
        in_flight: InFlight,
    ) -> Self {
        let state = State { used: Instant::now(), log_level: None, stream: None };
        Self {
            id,
            version: version.to_owned(),
            client,
            in_flight,
            membership,
            ended: CancellationToken::new(),
            state: Mutex::new(state),
        }
    }

    /// Applies a notification of the client. All but cancellations are ignored.
    pub(super) fn notified(&self, notification: &Notification) {
        if let Some(id) = cancelled(notification) {
            self.in_flight.cancel(&id);
        }
    }

    /// Runs one request to its end.
    pub(super) async fn run(
        &self,
        door: &Door,
        client: Client,
        request: Request,
        meta: Map<String, Value>,
        running: Running,
        outgoing: mpsc::Sender<Outgoing>,
    ) {
        match self.answer(door, &request, &meta).await {
            Some(answered) => {
                let answer = Answer::new(&request.id, answered.map(Into::into));
                exchange::send_answer(Some(running), answer, &outgoing).await;
            }
            None => {
                let stop = running.stop.clone();
                exchange::run(door, &client, request, meta, stop, Some(running), outgoing).await;
            }
        }
        self.touch();
    }

    /// Answers the methods of the session itself; `None` for all others.
    async fn answer(
        &self,
        door: &Door,
        request: &Request,
        meta: &Map<String, Value>,
    ) -> Option<Result<Value, RpcError>> {
        let done = || Value::Object(Map::new());
        Some(match request.method.as_str() {
            "logging/setLevel" => request.params.read::<SetLevel>().map(|SetLevel { level }| {
                self.state().log_level = Some(level);
                done()
            }),
            "resources/subscribe" => match request.params.read::<Resource>() {
                Ok(Resource { uri }) => {
                    let subscribed = door.subscribe(&self.client(), &uri, meta).await;
                    subscribed.and_then(|subscription| {
                        if self.membership.add(subscription) {
                            return Ok(done());
                        }
                        let message = format!(
                            "a session subscribes to at most {SUBSCRIPTIONS_MAX} resources"
                        );
                        Err(RpcError::new(code::SERVER_ERROR, message))
                    })
                }
                Err(error) => Err(error),
            },
            "resources/unsubscribe" => request.params.read::<Resource>().map(|Resource { uri }| {
                self.membership.remove(&uri);
                done()
            }),
            _ => return None,
        })
    }

    /// Answers the messages of a batch concurrently; notifications before the answers are dropped.
    pub(super) async fn batch(
        self: &Arc<Self>,
        door: &Door,
        messages: Vec<Result<Message, Fault>>,
        held: Option<&Held>,
    ) -> Vec<Bytes> {
        let (mut answering, mut answers) = (Vec::new(), Vec::new());
        for message in messages {
            match message {
                Err(fault) => answers.push(fault.answer()),
                Ok(Message::Answer) => (),
                Ok(Message::Notification(notification)) => self.notified(&notification),
                Ok(Message::Request(request)) => {
                    let meta = request.params.meta();
                    let begun = meta.and_then(|meta| {
                        self.in_flight.begin(&request.id).map(|running| (meta, running))
                    });
                    let (meta, running) = match begun {
                        Ok(begun) => begun,
                        Err(error) => {
                            answers.push(codec::error_answer(Some(&request.id), &error));
                            continue;
                        }
                    };
                    let (door, session) = (door.clone(), Arc::clone(self));
                    let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
                    let held = held.cloned();
                    // In its own task a request outlives the client's connection, and can still be
                    // cancelled.
                    answering.push(tokio::spawn(async move {
                        let client = Client { page_bytes: BATCH_PAGE_BYTES, ..session.client() };
                        let run = session.run(&door, client, request, meta, running, outgoing);
                        let answered = tokio::join!(run, exchange::answer_of(receiver)).1;
                        drop(held);
                        answered
                    }));
                }
            }
        }
        for answered in answering {
            answers.extend(answered.await.ok().flatten());
        }
        answers
    }

    /// Sends notifications of changes until `stop` is cancelled, the session or its caller's identity
    /// ends, or the receiver is dropped.
    pub(super) async fn stream(
        &self,
        stop: &CancellationToken,
        ended: impl Future<Output = ()>,
        outgoing: mpsc::Sender<Outgoing>,
    ) {
        tokio::select! {
            biased;
            () = stop.cancelled() => (),
            () = ended => (),
            () = self.ended.cancelled() => (),
            () = self.membership.outbox.send_to(&outgoing, None) => (),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client with its current log level.
    pub(super) fn client(&self) -> Client {
        Client { log_level: self.state().log_level, ..self.client.clone() }
    }

    /// Opens the session's only stream and ends the previous one. The stream must end when the
    /// token is cancelled.
    pub(super) fn take_stream(&self) -> CancellationToken {
        let token = self.ended.child_token();
        if let Some(before) = self.state().stream.replace(token.clone()) {
            before.cancel();
        }
        token
    }

    /// Notes that the stream with this token has ended.
    pub(super) fn leave_stream(&self, token: &CancellationToken) {
        token.cancel();
        let mut state = self.state();
        if state.stream.as_ref().is_some_and(CancellationToken::is_cancelled) {
            state.stream = None;
        }
        state.used = Instant::now();
    }

    pub(super) fn touch(&self) {
        self.state().used = Instant::now();
    }

    fn end(&self) {
        self.in_flight.cancel_all();
        self.membership.outbox.close();
        self.ended.cancel();
    }
}

#[derive(Deserialize)]
struct SetLevel {
    level: LogLevel,
}

#[derive(Deserialize)]
struct Resource {
    uri: String,
}

impl Tracked for Session {
    fn id(&self) -> &str {
        &self.id
    }

    fn caller(&self) -> &str {
        // Tokens of one subject can have different scopes.
        self.client.caller.name()
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        (state.stream.is_none() && self.in_flight.is_empty()).then_some(state.used)
    }
}

/// All sessions.
#[derive(Clone)]
pub(super) struct Sessions {
    limits: SessionLimits,
    all: Arc<Mutex<SessionTable<Session>>>,
}

impl Sessions {
    pub(super) fn new(limits: SessionLimits) -> Self {
        Self { limits, all: Arc::default() }
    }

    fn all(&self) -> MutexGuard<'_, SessionTable<Session>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session. If its caller has too many, the caller's longest idle session ends. If all
    /// callers together have too many, the longest idle session of the caller with the most
    /// sessions ends.
    pub(super) fn make(
        &self,
        id: String,
        caller: &Caller,
        name: Option<String>,
        version: &str,
        membership: Membership,
        toolset: Option<Arc<str>>,
    ) -> Result<Arc<Session>, NoSession> {
        let client = Client::legacy(caller.clone(), name, id.clone(), toolset);
        let in_flight = InFlight::default();
        let session = Arc::new(Session::new(id, version, client, membership, in_flight));
        self.end_idle();
        let now = Instant::now();
        let mut all = self.all();
        let own = all.of_caller(caller.name());
        let mut ended = None;
        if own >= self.limits.per_caller_max {
            ended = Some(all.take_longest_idle(caller.name(), now).ok_or(NoSession::TooMany)?);
        } else if all.len() >= self.limits.all_max {
            let (most, owner) = all.most().ok_or(NoSession::Full)?;
            // A caller never loses a session to a caller with as many sessions.
            let owner = if most > own { &*owner } else { caller.name() };
            ended = Some(all.take_longest_idle(owner, now).ok_or(NoSession::Full)?);
        }
        all.insert(Arc::clone(&session), now);
        drop(all);
        if let Some(ended) = ended {
            ended.end();
        }
        Ok(session)
    }

    /// Finds a session of the caller and notes its use. Sessions of other callers are not found.
    pub(super) fn find(&self, id: &str, caller: &Caller) -> Option<Arc<Session>> {
        let session = self.all().get(id).cloned().filter(|one| one.client.caller == *caller)?;
        session.touch();
        Some(session)
    }

    /// Ends a session; its requests are cancelled.
    pub(super) fn end(&self, session: &Session) {
        self.all().remove(&session.id);
        session.end();
    }

    /// Ends the sessions that have been idle for too long.
    pub(super) fn end_idle(&self) {
        let now = Instant::now();
        let Some(before) = now.checked_sub(self.limits.idle) else { return };
        let ended = self.all().take_idle_since(before, now);
        for session in ended {
            session.end();
        }
    }

    /// Ends idle sessions periodically until `ending` is cancelled, then ends all streams.
    pub(super) async fn maintain(self, ending: CancellationToken) {
        let every =
            (self.limits.idle / 4).clamp(Duration::from_millis(100), Duration::from_secs(60));
        while tokio::time::timeout(every, ending.cancelled()).await.is_err() {
            self.end_idle();
        }
        let all: Vec<Arc<Session>> = self.all().take_all();
        for session in all {
            session.membership.outbox.close();
            session.ended.cancel();
        }
    }
}
