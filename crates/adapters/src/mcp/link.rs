//! Links to one server: connects on demand and again after a loss.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use toolbooth_contracts::{Conversation, ExecutionLog};
use toolbooth_mcp::header_table::HeaderParam;
use toolbooth_mcp::{Era, code};

use super::ServerSettings;
use super::channel::Transport;
use super::connection::Connection;
use super::fault::{Failure, Fault};
use super::message::Refusal;
use super::notifications::{Changes, Notices, Notifications};
use super::opener::Opener;
use super::request::Request;
use super::results::RpcResult;
use super::subscriptions::Subscriptions;
use crate::error::{ConnectError, Unconnected};
use crate::launcher::Launcher;
use crate::mutex::lock;
use crate::secrets::Setting;

/// First pause after a failed connection attempt; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A connection that is lost sooner does not prove that the server is usable.
const SHORT_LIFE: Duration = Duration::from_secs(30);
/// How often a link with subscriptions checks its connection.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    failed: Option<(Instant, Duration, Unconnected)>,
    closed: bool,
    /// Number of connections opened so far, that of a link which this one replaces included.
    made: u64,
    opened: Option<Instant>,
    /// Number of consecutive connections that were lost soon after they were opened.
    short_lived: u32,
    /// The earliest time of the next connection.
    not_before: Option<Instant>,
}

impl State {
    /// Returns the connection if requests can be sent over it.
    fn live(&self) -> Option<&Arc<Connection>> {
        let is_live = |own: &&Arc<Connection>| !own.channel.is_session_over() && !own.is_closed();
        self.connection.as_ref().filter(is_live)
    }

    /// Records the loss of a connection.
    fn record_loss(&mut self) {
        let is_short = self.opened.is_some_and(|at| at.elapsed() < SHORT_LIFE);
        self.short_lived = if is_short { self.short_lived.saturating_add(1) } else { 0 };
        self.not_before = Some(Instant::now() + pause_after(self.short_lived));
    }
}

/// Returns the pause after consecutive short-lived connections; there is none after the first.
fn pause_after(short_lived: u32) -> Duration {
    match short_lived.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => BACKOFF_FIRST.saturating_mul(1 << doublings.min(16)).min(BACKOFF_MAX),
    }
}

/// The link to a server, connected or not.
pub(super) struct Link {
    opener: Opener,
    notifications: Notifications,
    subscriptions: Arc<Subscriptions>,
    state: tokio::sync::Mutex<State>,
    watching: Mutex<Option<JoinHandle<()>>>,
    /// Set when the link closes, so that a connection which is being opened does not hold it up.
    closing: watch::Sender<bool>,
}

/// A request that was submitted to a connection.
pub(super) struct Served {
    pub(super) connection: Arc<Connection>,
    /// Bytes that the server had printed on standard error before the request.
    pub(super) printed: u64,
    pub(super) result: Result<RpcResult, Failure>,
}

/// The reason why a request was not submitted.
#[derive(Debug)]
pub(super) enum Unserved {
    Cancelled,
    /// Another link has replaced this one, with its subscriptions.
    Replaced,
    Unreachable(Unconnected),
}

impl Link {
    pub(super) fn new(
        settings: ServerSettings,
        launcher: Launcher,
        refusals: ExecutionLog,
    ) -> Self {
        Self::with(Opener::new(settings, launcher, refusals))
    }

    fn with(opener: Opener) -> Self {
        let (changes, notices) = (Changes::new(), Notices::new());
        Self {
            opener,
            notifications: Notifications { changes, notices, caller: None, users: Arc::default() },
            subscriptions: Arc::default(),
            state: tokio::sync::Mutex::default(),
            watching: Mutex::default(),
            closing: watch::Sender::new(false),
        }
    }

    /// Returns a link to the same server for one caller, with additional variables or headers.
    pub(super) fn of_caller(&self, caller: &str, credentials: Vec<(String, Setting)>) -> Self {
        let mut link = Self::with(self.opener.of_caller(caller, credentials));
        link.notifications.notices = Arc::clone(&self.notifications.notices);
        link.notifications.caller = Some(caller.to_owned());
        link
    }

    /// Returns the new link, which subscribes to these resources as after the loss of a connection.
    pub(super) fn subscribed_to(mut self, uris: BTreeSet<String>) -> Arc<Self> {
        if uris.is_empty() {
            return Arc::new(self);
        }
        self.subscriptions.add(uris);
        self.state.get_mut().made = 1;
        let link = Arc::new(self);
        link.watch();
        link
    }

    /// Ends all subscriptions, and returns their resources.
    pub(super) fn take_subscriptions(&self) -> BTreeSet<String> {
        self.subscriptions.take()
    }

    pub(super) fn settings(&self) -> &ServerSettings {
        &self.opener.settings
    }

    /// Returns `text` with the server's secrets concealed.
    pub(super) fn conceal(&self, text: &str) -> String {
        self.opener.conceal(text)
    }

    /// Notes that a caller uses the link.
    pub(super) fn used_by(&self, caller: &str) {
        self.notifications.users.add(caller);
    }

    pub(super) fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    /// Whether the link has subscriptions.
    pub(super) fn is_subscribed(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    /// Returns the live connection, or opens a new one. If a caller gives up, the connection is still opened for the
    /// others.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Unconnected> {
        let state = self.state.lock().await;
        if let Some(connection) = state.live().filter(|_| !state.closed) {
            return Ok(Arc::clone(connection));
        }
        drop(state);
        let link = Arc::clone(self);
        let opening = tokio::spawn(async move { link.opened().await });
        match opening.await {
            Ok(opened) => opened,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends.
            Err(_) => Err(Unconnected::of(&ConnectError::Closing, |text| text.to_owned())),
        }
    }

    async fn opened(&self) -> Result<Arc<Connection>, Unconnected> {
        let mut state = self.state.lock().await;
        if state.closed {
            return Err(Unconnected::of(&ConnectError::Closing, |text| text.to_owned()));
        }
        if let Some(connection) = state.live() {
            return Ok(Arc::clone(connection));
        }
        if let Some(lost) = state.connection.take() {
            if lost.channel.is_session_over() {
                lost.end_tasks();
            } else {
                state.record_loss();
                lost.close().await;
            }
        }
        if let Some((at, pause, reason)) = &state.failed
            && at.elapsed() < *pause
        {
            return Err(reason.clone());
        }
        // A server that crashes repeatedly is restarted with a delay. The caller waits, and its call
        // is not lost.
        let timeout = self.settings().startup_timeout;
        let opening = async {
            if let Some(at) = state.not_before {
                tokio::time::sleep_until(at.into()).await;
            }
            match tokio::time::timeout(timeout, self.opener.open(&self.notifications)).await {
                Ok(opened) => opened,
                Err(_) => Err(ConnectError::Late(timeout, self.opener.starting_output())),
            }
        };
        let mut closing = self.closing.subscribe();
        let opened = tokio::select! {
            opened = opening => opened,
            _ = closing.wait_for(|is_closing| *is_closing) => Err(ConnectError::Closing),
        };
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                self.attend(&connection, state.made > 0);
                state.made += 1;
                state.connection = Some(Arc::clone(&connection));
                (state.failed, state.opened) = (None, Some(Instant::now()));
                Ok(connection)
            }
            Err(error) => {
                let reason = Unconnected::of(&error, |text| self.conceal(text));
                let before = state.failed.take().map(|(_, pause, _)| pause * 2);
                let pause = before.unwrap_or(BACKOFF_FIRST).min(BACKOFF_MAX);
                state.failed = Some((Instant::now(), pause, reason.clone()));
                Err(reason)
            }
        }
    }

    /// Starts the background tasks of a new connection; `again`: an earlier connection existed.
    fn attend(&self, connection: &Connection, again: bool) {
        let channel = Arc::clone(&connection.channel);
        let subscriptions = Arc::clone(&self.subscriptions);
        if channel.greeting.era == Era::Modern {
            connection.keep(tokio::spawn(async move {
                subscriptions.keep(channel, again).await;
            }));
            return;
        }
        if again && !subscriptions.is_empty() {
            let channel = Arc::clone(&channel);
            connection.keep(tokio::spawn(async move {
                subscriptions.ask_again(&channel).await;
            }));
        }
        if let Transport::Http(_) = channel.line.transport {
            connection.keep(tokio::spawn(async move {
                if channel.hear().await == Some(true) {
                    // Responses in flight arrive on their own streams, so the connection is not
                    // closed.
                    channel.session_over();
                }
            }));
        } else {
            // A legacy child notifies of changes without a subscription.
            channel.set_listening();
        }
    }

    /// Drops an HTTP connection after the server lost its session or changed its era. Responses in
    /// flight can still arrive on their own streams.
    async fn forget(&self, connection: &Arc<Connection>) {
        if connection.channel.child().is_some() {
            return;
        }
        let mut state = self.state.lock().await;
        if state.connection.as_ref().is_some_and(|own| Arc::ptr_eq(own, connection)) {
            state.connection = None;
            connection.end_tasks();
        }
    }

    /// Submits a request to the connection.
    ///
    /// If the server does not know the session, the request is submitted once more, to a new
    /// connection. This is not a retry: by the protocol, such a server has not processed the
    /// request. The client must then begin a new session.
    pub(super) async fn serve(
        self: &Arc<Self>,
        request: &Request<'_>,
        params: &[HeaderParam],
        timeout: Duration,
        conversation: Option<&Conversation>,
        execution_log: Option<&ExecutionLog>,
    ) -> Result<Served, Unserved> {
        let mut may_begin_anew = true;
        loop {
            let connected = match conversation {
                Some(conversation) => tokio::select! {
                    connected = self.connection() => connected,
                    () = conversation.cancelled() => return Err(Unserved::Cancelled),
                },
                None => self.connection().await,
            };
            let connection = connected.map_err(Unserved::Unreachable)?;
            if let (Some(execution_log), Some(sandbox)) = (execution_log, connection.sandbox()) {
                execution_log.contained(sandbox);
            }
            let printed = connection.printed();
            let mut result =
                connection.channel.request(request, params, timeout, conversation).await;
            if may_begin_anew
                && result.as_ref().is_err_and(|failure| failure.fault == Fault::SessionEnded)
            {
                may_begin_anew = false;
                self.forget(&connection).await;
                continue;
            }
            if let Err(failure) = &result
                && (failure.needs_new_session()
                    || failure.is_of_other_era(connection.channel.greeting.era))
            {
                // This request has its response; the next one repeats the handshake, with the present credentials.
                self.forget(&connection).await;
            }
            if let Err(Failure {
                fault: Fault::Refused(Refusal { data: Some(data), .. }), ..
            }) = &mut result
            {
                connection.secrets().conceal(data);
            }
            return Ok(Served { connection, printed, result });
        }
    }

    /// Waits for the turn to change subscriptions; `None` = the call was cancelled or timed out
    /// first.
    async fn turn(
        &self,
        timeout: Duration,
        conversation: &Conversation,
    ) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        tokio::select! {
            turn = tokio::time::timeout(timeout, self.subscriptions.turn()) => turn.ok(),
            () = conversation.cancelled() => None,
        }
    }

    /// Subscribes to changes of a resource.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        uri: &str,
        timeout: Duration,
        conversation: &Conversation,
    ) -> Result<Result<Value, Failure>, Unserved> {
        let failed = |fault| Ok(Err(Failure { fault, sent: true, stderr: String::new() }));
        let Some(turn) = self.turn(timeout, conversation).await else {
            return Err(Unserved::Cancelled);
        };
        // The turn is not held longer than the caller waits.
        let connected = tokio::select! {
            connected = tokio::time::timeout(timeout, self.connection()) => connected,
            () = conversation.cancelled() => return Err(Unserved::Cancelled),
        };
        let Ok(connected) = connected else { return Err(Unserved::Cancelled) };
        let connection = connected.map_err(Unserved::Unreachable)?;
        let greeting = &connection.channel.greeting;
        if !greeting.offers.subscribe {
            let message = "the server does not tell when a resource changes".to_owned();
            let code = code::METHOD_NOT_FOUND;
            return failed(Fault::Refused(Refusal { code, message, data: None }));
        }
        let is_wanted = self.subscriptions.contains(uri);
        if is_wanted && greeting.era == Era::Legacy {
            return Ok(Ok(Value::from(Map::new())));
        }
        // Recorded before the request, so that a connection opened meanwhile also subscribes.
        let number = if is_wanted {
            // Another caller may still wait for the server to accept it.
            self.subscriptions.number()
        } else {
            match self.subscriptions.insert(uri) {
                Ok(number) => number,
                Err(fault) => return failed(fault),
            }
        };
        if self.subscriptions.is_replaced() {
            return Err(Unserved::Replaced);
        }
        self.watch();
        let answered = match greeting.era {
            Era::Modern => {
                // Further subscriptions can join meanwhile and share one request.
                drop(turn);
                match self.subscriptions.accepted(number, uri).await {
                    Ok(()) => Ok(Ok(Value::from(Map::new()))),
                    Err(fault) => failed(fault),
                }
            }
            Era::Legacy => self.ask_of("resources/subscribe", uri, timeout, conversation).await,
        };
        if !matches!(answered, Ok(Ok(_))) {
            if self.subscriptions.is_replaced() {
                return Err(Unserved::Replaced);
            }
            self.subscriptions.remove(uri);
        }
        answered
    }

    /// Ends the subscription to a resource.
    pub(super) async fn unsubscribe(
        self: &Arc<Self>,
        uri: &str,
        timeout: Duration,
        conversation: &Conversation,
    ) -> Result<Result<Value, Failure>, Unserved> {
        let Some(_turn) = self.turn(timeout, conversation).await else {
            return Err(Unserved::Cancelled);
        };
        let nothing = || Ok(Ok(Value::from(Map::new())));
        let is_wanted = self.subscriptions.contains(uri);
        self.subscriptions.remove(uri);
        if self.subscriptions.is_replaced() {
            return Err(Unserved::Replaced);
        }
        if !is_wanted {
            return nothing();
        }
        // A server without a connection sends no notifications.
        let Ok(state) = tokio::time::timeout(timeout, self.state.lock()).await else {
            return Err(Unserved::Cancelled);
        };
        let live = state.connection.as_ref().filter(|connection| !connection.is_closed());
        let legacy = live.is_some_and(|one| one.channel.greeting.era == Era::Legacy);
        drop(state);
        if !legacy {
            return nothing();
        }
        self.ask_of("resources/unsubscribe", uri, timeout, conversation).await
    }

    async fn ask_of(
        self: &Arc<Self>,
        method: &'static str,
        uri: &str,
        timeout: Duration,
        conversation: &Conversation,
    ) -> Result<Result<Value, Failure>, Unserved> {
        let mut request = Request { method, ..Request::default() };
        request.params.insert("uri".to_owned(), Value::from(uri));
        let served = self.serve(&request, &[], timeout, Some(conversation), None).await?;
        // The protocol defines these results as empty; unscreened members must not be forwarded.
        Ok(served.result.map(|_| Value::from(Map::new())))
    }

    /// Starts a task that reconnects while there are subscriptions.
    fn watch(self: &Arc<Self>) {
        let mut watching = lock(&self.watching);
        if watching.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let link = Arc::downgrade(self);
        *watching = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(WATCH_INTERVAL).await;
                let Some(link) = link.upgrade() else { return };
                if link.is_subscribed() && link.connection().await.is_err() {
                    tracing::debug!(server = link.settings().name, "a server cannot be reached");
                }
            }
        }));
    }

    /// Closes the link once no request holds it.
    pub(super) async fn close_when_idle(self: Arc<Self>) {
        while Arc::strong_count(&self) > 1 {
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
        self.close().await;
    }

    pub(super) async fn close(&self) {
        if let Some(watching) = lock(&self.watching).take() {
            watching.abort();
        }
        self.closing.send_replace(true);
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
    fn a_server_that_dies_again_and_again_is_started_with_back_off() {
        let pauses: Vec<_> = (0..10).map(|count| pause_after(count).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!(pause_after(u32::MAX), BACKOFF_MAX);
        let mut state = State { opened: Some(Instant::now()), ..State::default() };
        state.record_loss();
        assert_eq!(state.short_lived, 1);
        state.opened = None;
        state.record_loss();
        assert_eq!(state.short_lived, 0);
    }
}
