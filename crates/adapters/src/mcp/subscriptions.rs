//! Maintains the resource subscriptions of one link across its connections.
//!
//! A legacy server gets one request for each resource. A modern server has one open request for all
//! resources and for changes of its lists. A new one opens before the old one ends.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use toolbooth_mcp::code;

use super::channel::Channel;
use super::fault::Fault;
use super::greeting;
use super::message::Refusal;
use super::request::Request;

/// Maximum number of subscribed resources of one link.
const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Timeout for accepting a subscription.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long changes of the wanted resources are collected before a request to a modern server,
/// because each request lists all resources.
const COLLECT: Duration = Duration::from_millis(50);
/// First and maximum pause before an ended subscription is requested again.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// The wanted resources; the number grows with each change.
#[derive(Debug, Clone, Default)]
struct Wanted {
    number: u64,
    uris: BTreeSet<String>,
}

/// The wanted resources that a modern server accepted.
#[derive(Debug, Clone)]
struct Accepted {
    number: u64,
    uris: Result<BTreeSet<String>, Fault>,
}

/// The subscriptions of a link.
#[derive(Debug)]
pub(super) struct Subscriptions {
    wanted: watch::Sender<Wanted>,
    accepted: watch::Sender<Accepted>,
    /// Serializes subscribing and unsubscribing.
    changing: tokio::sync::Mutex<()>,
    /// Whether another link has taken the resources over.
    is_replaced: AtomicBool,
    /// Whether a session was given up because it accepted no subscription, and none was accepted since.
    has_ended_session: AtomicBool,
}

impl Default for Subscriptions {
    fn default() -> Self {
        let accepted = Accepted { number: 0, uris: Ok(BTreeSet::new()) };
        Self {
            wanted: watch::Sender::default(),
            accepted: watch::Sender::new(accepted),
            changing: tokio::sync::Mutex::default(),
            is_replaced: AtomicBool::new(false),
            has_ended_session: AtomicBool::new(false),
        }
    }
}

fn refused(code: i64, message: &str) -> Fault {
    Fault::Refused(Refusal { code, message: message.to_owned(), data: None })
}

impl Subscriptions {
    /// Waits for the turn to make a change; only one runs at a time.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.borrow().uris.is_empty()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        self.wanted.borrow().uris.contains(uri)
    }

    /// Adds a resource and returns the number of this change.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn insert(&self, uri: &str) -> Result<u64, Fault> {
        if self.wanted.borrow().uris.len() >= SUBSCRIPTIONS_MAX {
            let told = format!("{SUBSCRIPTIONS_MAX} resources are subscribed to already");
            return Err(refused(code::INTERNAL_ERROR, &told));
        }
        Ok(self.change(|uris| {
            uris.insert(uri.to_owned());
        }))
    }

    /// Returns the number of the last change.
    pub(super) fn number(&self) -> u64 {
        self.wanted.borrow().number
    }

    /// Removes a resource.
    pub(super) fn remove(&self, uri: &str) {
        self.change(|uris| {
            uris.remove(uri);
        });
    }

    /// Adds the resources of an earlier link.
    pub(super) fn add(&self, uris: BTreeSet<String>) {
        self.change(|wanted| wanted.extend(uris));
    }

    /// Removes all resources for another link, and returns them.
    pub(super) fn take(&self) -> BTreeSet<String> {
        let mut taken = BTreeSet::new();
        self.change(|wanted| {
            // Set within the change: a resource that is not taken was inserted later, and its request sees this.
            self.is_replaced.store(true, Ordering::SeqCst);
            taken = std::mem::take(wanted);
        });
        taken
    }

    /// Whether another link has taken the resources over. A request that was under way is repeated there.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::SeqCst)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> u64 {
        let mut number = 0;
        self.wanted.send_modify(|wanted| {
            wanted.number += 1;
            number = wanted.number;
            change(&mut wanted.uris);
        });
        number
    }

    /// Waits until a modern server has accepted `uri` with the change `number`.
    pub(super) async fn accepted(&self, number: u64, uri: &str) -> Result<(), Fault> {
        let mut accepted = self.accepted.subscribe();
        let waiting = accepted.wait_for(|accepted| accepted.number >= number);
        let accepted = match tokio::time::timeout(ACCEPT_TIMEOUT, waiting).await {
            Ok(Ok(accepted)) => accepted.clone(),
            _ => return Err(Fault::Timeout),
        };
        if accepted.uris?.contains(uri) {
            return Ok(());
        }
        Err(refused(code::INVALID_PARAMS, "the server does not tell when this resource changes"))
    }

    /// Repeats all subscriptions at a legacy server after a connection was lost, and those that it does not accept
    /// again and again, with pauses.
    pub(super) async fn ask_again(&self, channel: &Channel) {
        let mut left = self.wanted.borrow().uris.clone();
        let mut pause = AGAIN_FIRST;
        loop {
            let mut failed = BTreeSet::new();
            for uri in left {
                if !self.contains(&uri) {
                    continue;
                }
                let mut request = Request { method: "resources/subscribe", ..Request::default() };
                request.params.insert("uri".to_owned(), Value::from(uri.as_str()));
                if let Err(failure) = channel.request(&request, &[], ACCEPT_TIMEOUT, None).await {
                    // Once: a server that answers so in a new session too is asked again with pauses.
                    if failure.needs_new_session()
                        && !self.has_ended_session.swap(true, Ordering::Relaxed)
                    {
                        return channel.session_over();
                    }
                    if pause == AGAIN_FIRST {
                        tracing::warn!(error = %failure.fault, "a subscription was lost with its connection");
                    }
                    failed.insert(uri);
                    continue;
                }
                self.has_ended_session.store(false, Ordering::Relaxed);
                // The resource may have changed without a subscription.
                channel.line.incoming.notifications.updated(uri);
            }
            if failed.is_empty() {
                return;
            }
            tokio::time::sleep(pause).await;
            (left, pause) = (failed, (pause * 2).min(AGAIN_MAX));
        }
    }

    fn accept(&self, number: u64, uris: Result<BTreeSet<String>, Fault>) {
        self.accepted.send_replace(Accepted { number, uris });
    }

    /// Maintains one open subscription at a modern server until the connection ends. `again`: an
    /// earlier connection existed.
    pub(super) async fn keep(&self, channel: Arc<Channel>, mut again: bool) {
        let mut wanted = self.wanted.subscribe();
        let mut open: Option<OpenSubscription> = None;
        let mut pause = AGAIN_FIRST;
        loop {
            let Wanted { number, uris } = wanted.borrow_and_update().clone();
            let listed = uris.iter().cloned().collect();
            let Some(params) = greeting::listen(&channel.greeting, listed) else {
                if let Some(last) = open.take() {
                    last.end(&channel).await;
                }
                self.accept(number, Ok(BTreeSet::new()));
                channel.set_listening();
                if collected(&mut wanted).await.is_err() {
                    return;
                }
                continue;
            };
            let opened = OpenSubscription::open(&channel, params).await;
            channel.set_listening();
            match opened {
                Ok((opened, accepted)) => {
                    // Both subscriptions are open at once, so that no change in between is lost.
                    if let Some(before) = open.replace(opened) {
                        before.end(&channel).await;
                    }
                    self.accept(number, Ok(accepted));
                    if std::mem::take(&mut again) {
                        let notifications = &channel.line.incoming.notifications;
                        notifications.changes.list_changed();
                        uris.into_iter().for_each(|uri| notifications.updated(uri));
                    }
                }
                Err(fault) => {
                    tracing::debug!(error = %fault, "a server accepts no subscription");
                    let is_final = matches!(fault, Fault::Refused(_));
                    self.accept(number, Err(fault));
                    if is_final && open.is_none() {
                        // The lists are polled instead. The subscription is retried when the wanted
                        // resources change.
                        if collected(&mut wanted).await.is_err() {
                            return;
                        }
                        continue;
                    }
                }
            }
            let began = tokio::time::Instant::now();
            let ended = async {
                // Without an open subscription, the next attempt follows after a pause.
                if let Some(opened) = &mut open {
                    let _ = (&mut opened.task).await;
                }
            };
            let is_over = tokio::select! {
                changed = collected(&mut wanted) => {
                    if changed.is_err() {
                        return;
                    }
                    false
                }
                () = ended => true,
            };
            if is_over {
                open = None;
                again = true;
                if channel.line.incoming.calls.is_closed() {
                    return;
                }
                if began.elapsed() > AGAIN_MAX {
                    pause = AGAIN_FIRST;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MAX);
            }
        }
    }
}

/// Waits for a change of the wanted resources, and shortly for further changes.
async fn collected(wanted: &mut watch::Receiver<Wanted>) -> Result<(), watch::error::RecvError> {
    wanted.changed().await?;
    tokio::time::sleep(COLLECT).await;
    Ok(())
}

/// An open subscription; dropping it ends its task.
struct OpenSubscription {
    id: u64,
    task: JoinHandle<Fault>,
}

impl Drop for OpenSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl OpenSubscription {
    /// Opens a subscription and returns the resources that the server accepted.
    async fn open(
        channel: &Arc<Channel>,
        params: Map<String, Value>,
    ) -> Result<(Self, BTreeSet<String>), Fault> {
        let (tell, told) = oneshot::channel();
        let own = Arc::clone(channel);
        let task = tokio::spawn(async move {
            own.listen(params, move |id, filter| {
                let _ = tell.send((id, filter));
            })
            .await
        });
        let mut opened = Self { id: 0, task };
        match tokio::time::timeout(ACCEPT_TIMEOUT, told).await {
            Ok(Ok((id, filter))) => {
                opened.id = id;
                let uris = filter.get("resourceSubscriptions").and_then(Value::as_array);
                let uris = uris.into_iter().flatten().filter_map(Value::as_str);
                Ok((opened, uris.map(str::to_owned).collect()))
            }
            Ok(Err(_)) => Err(match (&mut opened.task).await {
                Ok(fault) => fault,
                Err(_) => Fault::Lost("the subscription was given up".to_owned()),
            }),
            Err(_) => Err(Fault::Timeout),
        }
    }

    /// Ends the subscription and notifies the server.
    async fn end(self, channel: &Channel) {
        self.task.abort();
        channel.end_subscription(self.id).await;
    }
}
