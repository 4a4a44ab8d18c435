//! The resources that one link is subscribed to, whatever connection it has.
//!
//! A legacy server is asked for each; a modern one has one open request for all of them and for
//! changes of its lists, which is made anew before the one before is ended.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::channel::Channel;
use super::fault::Fault;
use super::greeting;
use super::message::Refusal;
use super::request::Request;
use toolbooth_mcp::code;

/// Resources that one link is subscribed to.
const SUBSCRIPTIONS_MAX: usize = 1_000;
/// How long a server may take to accept a subscription.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long changes of what is wanted are collected before a modern server is asked: each request
/// names all resources.
const COLLECT: Duration = Duration::from_millis(50);
/// Pauses before a subscription that ended is asked for again: at first, and at most.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What is wanted; the number grows with each change.
#[derive(Debug, Clone, Default)]
struct Wanted {
    number: u64,
    uris: BTreeSet<String>,
}

/// What a modern server accepted of the wanted ones.
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
    /// One is made or ended at a time.
    changing: tokio::sync::Mutex<()>,
}

impl Default for Subscriptions {
    fn default() -> Self {
        let accepted = Accepted { number: 0, uris: Ok(BTreeSet::new()) };
        Self {
            wanted: watch::Sender::default(),
            accepted: watch::Sender::new(accepted),
            changing: tokio::sync::Mutex::default(),
        }
    }
}

fn refused(code: i64, message: &str) -> Fault {
    Fault::Refused(Refusal { code, message: message.to_owned(), data: None })
}

impl Subscriptions {
    /// One change at a time.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.borrow().uris.is_empty()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        self.wanted.borrow().uris.contains(uri)
    }

    /// Wants one more; gives the number of this change.
    ///
    /// # Errors
    /// Where there are too many.
    pub(super) fn insert(&self, uri: &str) -> Result<u64, Fault> {
        if self.wanted.borrow().uris.len() >= SUBSCRIPTIONS_MAX {
            let told = format!("{SUBSCRIPTIONS_MAX} resources are subscribed to already");
            return Err(refused(code::INTERNAL_ERROR, &told));
        }
        Ok(self.change(|uris| {
            uris.insert(uri.to_owned());
        }))
    }

    /// The number of the last change.
    pub(super) fn number(&self) -> u64 {
        self.wanted.borrow().number
    }

    /// Wants one no more.
    pub(super) fn remove(&self, uri: &str) {
        self.change(|uris| {
            uris.remove(uri);
        });
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

    /// Asks a legacy server again for everything, after a connection was lost.
    pub(super) async fn ask_again(&self, channel: &Channel) {
        let uris = self.wanted.borrow().uris.clone();
        for uri in uris {
            let mut request = Request { method: "resources/subscribe", ..Request::default() };
            request.params.insert("uri".to_owned(), Value::from(uri.as_str()));
            if let Err(failure) = channel.request(&request, None, ACCEPT_TIMEOUT, None).await {
                tracing::warn!(error = %failure.fault, "a subscription was lost with its connection");
            }
            // It may have changed while nobody listened.
            channel.line.incoming.notifications.updated(uri);
        }
    }

    fn accept(&self, number: u64, uris: Result<BTreeSet<String>, Fault>) {
        self.accepted.send_replace(Accepted { number, uris });
    }

    /// Keeps one subscription of a modern server open, until the connection is over. `again` says
    /// that a connection was there before.
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
                channel.note_listening();
                if collected(&mut wanted).await.is_err() {
                    return;
                }
                continue;
            };
            let opened = OpenSubscription::open(&channel, params).await;
            channel.note_listening();
            match opened {
                Ok((standing, accepted)) => {
                    // What changes in between is told by both.
                    if let Some(before) = open.replace(standing) {
                        before.end(&channel).await;
                    }
                    self.accept(number, Ok(accepted));
                    if std::mem::take(&mut again) {
                        let notifications = &channel.line.incoming.notifications;
                        notifications.changes.note();
                        uris.into_iter().for_each(|uri| notifications.updated(uri));
                    }
                }
                Err(fault) => {
                    tracing::debug!(error = %fault, "a server accepts no subscription");
                    let is_final = matches!(fault, Fault::Refused(_));
                    self.accept(number, Err(fault));
                    if is_final && open.is_none() {
                        // It is asked by the clock, and again when more is wanted.
                        if collected(&mut wanted).await.is_err() {
                            return;
                        }
                        continue;
                    }
                }
            }
            let began = tokio::time::Instant::now();
            let ended = async {
                // Where nothing is open, it is tried again after a pause.
                if let Some(standing) = &mut open {
                    let _ = (&mut standing.task).await;
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

/// Waits for a change of what is wanted, and a little longer for those that come with it.
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
    /// Opens a subscription; gives the resources that the server accepted.
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
        let mut standing = Self { id: 0, task };
        match tokio::time::timeout(ACCEPT_TIMEOUT, told).await {
            Ok(Ok((id, filter))) => {
                standing.id = id;
                let uris = filter.get("resourceSubscriptions").and_then(Value::as_array);
                let uris = uris.into_iter().flatten().filter_map(Value::as_str);
                Ok((standing, uris.map(str::to_owned).collect()))
            }
            Ok(Err(_)) => Err(match (&mut standing.task).await {
                Ok(fault) => fault,
                Err(_) => Fault::Lost("the subscription was given up".to_owned()),
            }),
            Err(_) => Err(Fault::Timeout),
        }
    }

    /// Ends the subscription, and tells the server.
    async fn end(self, channel: &Channel) {
        self.task.abort();
        channel.end_subscription(self.id).await;
    }
}
