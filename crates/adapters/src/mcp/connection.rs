//! The connection to one server: opened when it is needed, again after it was lost.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig,
    ClientRequest, CustomRequest, Implementation, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, RequestMetaObject, SubscriptionFilter,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, Peer, PeerRequestOptions,
    RequestHandle, RunningService, ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use toolbooth_contracts::conversation::Progress;
use toolbooth_contracts::witness::{AppliedSandbox, EgressRefusal};
use toolbooth_contracts::{Conversation, Witness};

use super::http::{RawHttp, Untaken, unwrap};
use super::stdio::{ChildTransport, Shared};
use super::{Failure, Reach, ServerSettings};
use crate::launcher::Launcher;
use crate::secrets::{KnownSecrets, Setting};

/// First pause after a connection that failed; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

type Conversations = Arc<Mutex<HashMap<ProgressToken, Conversation>>>;

/// Hears what the server says by itself.
#[derive(Clone)]
struct Listener {
    changed: async_channel::Sender<()>,
    conversations: Conversations,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("toolbooth", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), this)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        // One that waits says the same.
        let _ = self.changed.try_send(());
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let conversations = self.conversations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(conversation) = conversations.get(&progress.progress_token) {
            conversation.progress(Progress {
                progress: progress.progress,
                total: progress.total,
                message: progress.message,
            });
        }
    }
}

/// A live connection.
pub(super) struct Connection {
    peer: Peer<RoleClient>,
    service: tokio::sync::Mutex<Option<RunningService<RoleClient, Listener>>>,
    conversations: Conversations,
    child: Option<Arc<Shared>>,
    /// Requests that a server by URL cannot have taken.
    untaken: Untaken,
    secrets: KnownSecrets,
}

impl Connection {
    fn options(timeout: Duration, meta: Map<String, Value>) -> PeerRequestOptions {
        let options = PeerRequestOptions::with_timeout(timeout);
        if meta.is_empty() { options } else { options.with_meta(RequestMetaObject::from(meta)) }
    }

    async fn send(
        &self,
        method: &str,
        params: Value,
        meta: Map<String, Value>,
        timeout: Duration,
    ) -> Result<RequestHandle<RoleClient>, Failure> {
        let request = ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)));
        self.peer
            .send_cancellable_request(request, Self::options(timeout, meta))
            .await
            .map_err(|error| Failure { sent: false, stderr: self.last_words(), error })
    }

    /// How the server is contained.
    pub(super) fn sandbox(&self) -> Option<AppliedSandbox> {
        self.child.as_ref().and_then(|child| child.sandbox.clone())
    }

    /// Bytes that the server has printed on standard error so far.
    pub(super) fn printed(&self) -> u64 {
        self.child.as_ref().map(|child| child.printed()).unwrap_or_default()
    }

    /// Notes what a rule of the server's sandbox stopped in a call that failed with `answer`, before
    /// which the server had printed so many bytes.
    pub(super) fn explain(&self, answer: &str, printed: u64, witness: &Witness) {
        if let Some(child) = &self.child {
            child.explain(answer, printed, witness);
        }
    }

    /// What the server was given in confidence.
    pub(super) fn secrets(&self) -> &KnownSecrets {
        &self.secrets
    }

    fn last_words(&self) -> String {
        self.child.as_ref().map(|child| child.last_words()).unwrap_or_default()
    }

    fn failure(&self, error: ServiceError, id: &rmcp::model::RequestId) -> Failure {
        let untaken = self.untaken.take(id);
        let sent = match (&error, &self.child) {
            (_, Some(child)) => child.was_sent(id),
            _ if untaken => false,
            (ServiceError::TransportSend(dynamic), None) => {
                match dynamic.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
                    Some(StreamableHttpError::Client(error)) => {
                        !(error.is_connect() || error.is_builder())
                    }
                    Some(
                        StreamableHttpError::AuthRequired(_)
                        | StreamableHttpError::InsufficientScope(_)
                        | StreamableHttpError::SessionExpired
                        | StreamableHttpError::ReservedHeaderConflict(_),
                    ) => false,
                    _ => true,
                }
            }
            _ => true,
        };
        Failure { sent, stderr: self.last_words(), error }
    }

    /// One request that is no call.
    pub(super) async fn request(
        &self,
        method: &str,
        params: Value,
        meta: Map<String, Value>,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let handle = self.send(method, params, meta, timeout).await?;
        let id = handle.id.clone();
        match handle.await_response().await {
            Ok(result) => {
                if let Some(child) = &self.child {
                    child.was_sent(&id);
                }
                let unexpected = |_| ServiceError::UnexpectedResponse;
                unwrap(result).map_err(unexpected).map_err(|error| self.failure(error, &id))
            }
            Err(error) => Err(self.failure(error, &id)),
        }
    }

    /// One call; `None` where it was told to stop before it was answered.
    pub(super) async fn call(
        &self,
        params: Value,
        meta: Map<String, Value>,
        timeout: Duration,
        conversation: &Conversation,
    ) -> Result<Option<Value>, Failure> {
        let handle = self.send("tools/call", params, meta, timeout).await?;
        let (id, token) = (handle.id.clone(), handle.progress_token.clone());
        let conversations = || self.conversations.lock().unwrap_or_else(PoisonError::into_inner);
        conversations().insert(token.clone(), conversation.clone());
        let peer = handle.peer.clone();
        let answered = tokio::select! {
            answered = handle.await_response() => Some(answered),
            () = conversation.cancelled() => None,
        };
        conversations().remove(&token);
        let Some(answered) = answered else {
            let reason = Some("the caller cancelled the call".to_owned());
            let param = CancelledNotificationParam::new(Some(id.clone()), reason);
            let told = peer.send_notification(CancelledNotification::new(param).into());
            // A server that cannot be told is gone, which is as good.
            let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
            if let Some(child) = &self.child {
                child.was_sent(&id);
            }
            self.untaken.take(&id);
            return Ok(None);
        };
        match answered {
            Ok(result) => {
                if let Some(child) = &self.child {
                    child.was_sent(&id);
                }
                unwrap(result)
                    .map(Some)
                    .map_err(|_| self.failure(ServiceError::UnexpectedResponse, &id))
            }
            Err(error) => Err(self.failure(error, &id)),
        }
    }

    async fn close(&self) {
        if let Some(mut service) = self.service.lock().await.take() {
            // The transport ends the child; one that does not end is killed there.
            let _ = service.close_with_timeout(Duration::from_secs(6)).await;
        }
    }
}

/// The SDK's words without the types of its transports, which say nothing to an operator.
fn without_types(text: &str) -> String {
    const END: &str = "] error: ";
    let cause = text.split_once("Transport [").and_then(|(_, rest)| rest.split_once(END));
    let cause = cause.map_or(text, |(_, cause)| cause);
    cause.split(", when send ").next().unwrap_or(cause).to_owned()
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    failed: Option<(Instant, Duration, String)>,
    closed: bool,
}

/// A server, connected or not.
pub(super) struct Link {
    settings: ServerSettings,
    launcher: Launcher,
    refusals: Witness,
    state: tokio::sync::Mutex<State>,
    changed: (async_channel::Sender<()>, async_channel::Receiver<()>),
    /// The child that is being connected to.
    starting: Mutex<Option<Arc<Shared>>>,
}

impl Link {
    pub(super) fn new(settings: ServerSettings, launcher: Launcher, refusals: Witness) -> Self {
        let (state, changed) = (tokio::sync::Mutex::default(), async_channel::bounded(1));
        Self { settings, launcher, refusals, state, changed, starting: Mutex::default() }
    }

    /// A link to the same server for one caller, with these variables or headers in addition.
    pub(super) fn of_caller(&self, caller: &str, credentials: Vec<(String, Setting)>) -> Self {
        let mut settings = self.settings.clone();
        match &mut settings.reach {
            Reach::Stdio(child) => {
                child.line.env.extend(credentials);
                // What a server keeps for one caller is no other's.
                if let Some(own) = &mut child.line.own {
                    let digest = Sha256::digest(caller.as_bytes());
                    let hex: String =
                        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                    own.as_mut_os_string().push(format!("@{hex}"));
                }
            }
            Reach::Http { headers, .. } => {
                let replaced =
                    |name: &str| credentials.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
                headers.retain(|(name, _)| !replaced(name));
                headers.extend(credentials);
            }
        }
        Self::new(settings, self.launcher.clone(), self.refusals.clone())
    }

    pub(super) fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    pub(super) fn changes(&self) -> Option<async_channel::Receiver<()>> {
        Some(self.changed.1.clone())
    }

    /// The live connection; makes one where there is none.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut state = self.state.lock().await;
        if state.closed {
            return Err("the gateway is shutting down".to_owned());
        }
        if let Some(connection) = &state.connection {
            if !connection.peer.is_transport_closed() {
                return Ok(Arc::clone(connection));
            }
            if let Some(lost) = state.connection.take() {
                lost.close().await;
            }
        }
        if let Some((at, pause, reason)) = &state.failed
            && at.elapsed() < *pause
        {
            return Err(reason.clone());
        }
        let timeout = self.settings.startup_timeout;
        let opened = match tokio::time::timeout(timeout, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(format!(
                "no connection within {} ms{}",
                timeout.as_millis(),
                self.starting_output()
            )),
        };
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                state.failed = None;
                Ok(connection)
            }
            Err(reason) => {
                let reason = self.conceal(&reason);
                let before = state.failed.take().map(|(_, pause, _)| pause * 2);
                let pause = before.unwrap_or(BACKOFF_FIRST).min(BACKOFF_MAX);
                state.failed = Some((Instant::now(), pause, reason.clone()));
                Err(reason)
            }
        }
    }

    /// `text` without the values of what the server was given in confidence.
    pub(super) fn conceal(&self, text: &str) -> String {
        match &self.settings.reach {
            Reach::Stdio(child) => {
                child.line.clone().with_secrets_of(child.profile.as_ref()).conceal(text)
            }
            Reach::Http { url, headers } => {
                // Errors of the HTTP library repeat the address, which may be a secret as a whole.
                let text = match url.expose() {
                    Ok(filled) => text.replace(&filled, &url.shown()),
                    Err(_) => text.to_owned(),
                };
                let settings = std::iter::once(url).chain(headers.iter().map(|(_, value)| value));
                Setting::conceal_all(settings, &text)
            }
        }
    }

    fn secrets(&self) -> KnownSecrets {
        match &self.settings.reach {
            Reach::Stdio(child) => {
                let line = child.line.clone().with_secrets_of(child.profile.as_ref());
                let env = line.env.iter().map(|(_, value)| value);
                Setting::known(line.argv.iter().chain(env))
            }
            Reach::Http { url, headers } => {
                Setting::known(std::iter::once(url).chain(headers.iter().map(|(_, value)| value)))
            }
        }
    }

    async fn open(&self) -> Result<Connection, String> {
        let conversations = Conversations::default();
        let listener =
            Listener { changed: self.changed.0.clone(), conversations: Arc::clone(&conversations) };
        let auto = || ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let mut untaken = Untaken::default();
        let (service, child) = match &self.settings.reach {
            Reach::Stdio(child) => {
                let spawn = async || {
                    let spawned =
                        ChildTransport::spawn(child, &self.launcher, &self.refusals).await;
                    spawned.map_err(|error| format!("`{}`: {error}", child.line.program()))
                };
                let transport = spawn().await?;
                let shared = Arc::clone(&transport.shared);
                self.note_starting(&shared);
                match listener.clone().serve_with_lifecycle(transport, auto()).await {
                    Ok(service) => (service, Some(shared)),
                    Err(first) => {
                        // Some servers end at a question that they do not know; they are asked
                        // again, in the words of the era before.
                        tracing::debug!(error = %first, "a server is asked again in the legacy way");
                        let transport = spawn().await?;
                        let shared = Arc::clone(&transport.shared);
                        self.note_starting(&shared);
                        let legacy = ClientLifecycleMode::Initialize;
                        let service = listener
                            .serve_with_lifecycle(transport, legacy)
                            .await
                            .map_err(|error| error.to_string());
                        let service = match service {
                            Ok(service) => service,
                            Err(error) => {
                                return Err(format!("{error}{}", self.starting_output()));
                            }
                        };
                        (service, Some(shared))
                    }
                }
            }
            Reach::Http { url, headers } => {
                let mut map = HashMap::new();
                for (name, value) in headers {
                    let name = HeaderName::from_str(name).map_err(|error| error.to_string())?;
                    let value = value.expose().map_err(|error| error.to_string())?;
                    let mut value = HeaderValue::from_str(&value)
                        .map_err(|_| format!("the value of header `{name}` is not valid"))?;
                    value.set_sensitive(true);
                    map.insert(name, value);
                }
                let client = RawHttp::new().map_err(|error| error.to_string())?;
                untaken = client.untaken();
                let url = url.expose().map_err(|error| error.to_string())?;
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(map)
                    .reinit_on_expired_session(false);
                let transport = StreamableHttpClientTransport::with_client(client, config);
                let service = listener
                    .serve_with_lifecycle(transport, auto())
                    .await
                    .map_err(|error| without_types(&error.to_string()))?;
                (service, None)
            }
        };
        let peer = service.peer().clone();
        self.listen(&peer, &service);
        let service = tokio::sync::Mutex::new(Some(service));
        let secrets = self.secrets();
        Ok(Connection { peer, service, conversations, child, untaken, secrets })
    }

    fn note_starting(&self, shared: &Arc<Shared>) {
        let mut starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        *starting = Some(Arc::clone(shared));
    }

    /// What a child that could not be connected to has printed, how it ended, and what its sandbox
    /// stopped.
    fn starting_output(&self) -> String {
        let starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(shared) = starting else { return self.refused() };
        let output = shared.last_words();
        format!("\n{output}{}{}", shared.denied(&output), self.refused())
    }

    /// The ways out that the server was refused lately.
    fn refused(&self) -> String {
        let refused = self.refusals.egress();
        let sentence = |one: &EgressRefusal| {
            format!("\nthe sandbox refused `{}:{}`: {}", one.host, one.port, one.reason)
        };
        refused.iter().map(sentence).collect()
    }

    /// In the modern era changes are told only to those who listen for them.
    fn listen(&self, peer: &Peer<RoleClient>, service: &RunningService<RoleClient, Listener>) {
        let modern =
            service.peer_info().is_some_and(|info| !info.protocol_version.has_initialize());
        if !modern {
            return;
        }
        let (peer, changed) = (peer.clone(), self.changed.0.clone());
        tokio::spawn(async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            // A server that cannot tell is asked again by the clock.
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(_)) = subscription.next().await {
                let _ = changed.try_send(());
            }
        });
    }

    pub(super) async fn close(&self) {
        let mut state = self.state.lock().await;
        state.closed = true;
        if let Some(connection) = state.connection.take() {
            connection.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_without_types() {
        let text = "Send message error Transport [a::B<c::D>] error: Client error: refused, when send discover request";
        assert_eq!(without_types(text), "Client error: refused");
        assert_eq!(without_types("connection closed"), "connection closed");
    }
}
