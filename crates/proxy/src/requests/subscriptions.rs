//! Subscriptions to resources: counted, so that a server is asked once and told once to stop.
//!
//! Path: 2, 7. Doc: call-path.md#subscriptions

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{CallContext, Caller, Conversation, ErrorCode};

use super::forward::send;
use super::upstreams::UpstreamEntry;
use super::{
    Permitted, Refused, RequestError, ServerRequest, answer, code_of, enter, refuse, resolve,
    tell_log, verify_source,
};
use crate::proxy::ProxyState;

/// Subscriptions that may be held at once, over all callers.
const SUBSCRIPTIONS_MAX: usize = 16_384;
/// Subscriptions that one caller may hold at once.
const SUBSCRIPTIONS_OF_CALLER_MAX: usize = 4_096;

/// What a caller wants to be told of.
#[derive(Debug, Clone)]
pub struct SubscribeRequest {
    /// The resource's URI on the wire.
    pub uri: String,
    /// What the agent claims.
    pub context: CallContext,
    /// Who asks.
    pub caller: Caller,
    /// The tool set of the door, by name.
    pub within: Option<Arc<str>>,
}

/// A subscription, until it is dropped. Where it was the last to a resource, the server is told
/// to stop.
#[must_use]
pub struct Subscription {
    uri: String,
    _held: Held,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("uri", &self.uri).finish_non_exhaustive()
    }
}

impl Subscription {
    /// The URI by which updates name the resource.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

/// A resource at a server, on the connection of one caller where each has its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    server: String,
    uri: String,
    caller: Option<Caller>,
}

/// Whether the server has been asked; held while it is asked or told to stop, so that these never
/// pass one another.
type Asked = Arc<tokio::sync::Mutex<bool>>;

#[derive(Default)]
struct Table {
    held: HashMap<Key, (usize, Asked)>,
    by_caller: HashMap<Caller, usize>,
    all: usize,
}

/// Everything that callers are subscribed to.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<Table>);

impl Subscriptions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, key: &Key, caller: &Caller) -> Option<Asked> {
        let mut table = self.table();
        let own = table.by_caller.get(caller).copied().unwrap_or_default();
        if table.all >= SUBSCRIPTIONS_MAX || own >= SUBSCRIPTIONS_OF_CALLER_MAX {
            return None;
        }
        table.all += 1;
        table.by_caller.insert(caller.clone(), own + 1);
        let (count, asked) = table.held.entry(key.clone()).or_default();
        *count += 1;
        Some(Arc::clone(asked))
    }

    /// Gives one up; tells whether it was the last.
    fn give_up(&self, key: &Key, caller: &Caller) -> bool {
        let mut table = self.table();
        table.all = table.all.saturating_sub(1);
        if let Some(own) = table.by_caller.get_mut(caller) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                table.by_caller.remove(caller);
            }
        }
        table.held.get_mut(key).is_some_and(|(count, _)| {
            *count = count.saturating_sub(1);
            *count == 0
        })
    }

    fn is_held(&self, key: &Key) -> bool {
        self.table().held.get(key).is_some_and(|(count, _)| *count > 0)
    }

    fn forget(&self, key: &Key) {
        let mut table = self.table();
        if table.held.get(key).is_some_and(|(count, _)| *count == 0) {
            table.held.remove(key);
        }
    }
}

/// One holder of a subscription.
struct Held {
    inner: Arc<ProxyState>,
    runtime: Handle,
    entry: UpstreamEntry,
    caller: Caller,
    key: Key,
    asked: Asked,
}

impl Drop for Held {
    fn drop(&mut self) {
        let subscriptions = &self.inner.subscriptions;
        if !subscriptions.give_up(&self.key, &self.caller) {
            return;
        }
        let (inner, entry, key) = (Arc::clone(&self.inner), self.entry.clone(), self.key.clone());
        let (asked, caller) = (Arc::clone(&self.asked), self.caller.clone());
        let ending = async move {
            let mut asked = asked.lock().await;
            // Somebody may have come meanwhile, who finds it asked for.
            if inner.subscriptions.is_held(&key) {
                return;
            }
            if *asked {
                *asked = false;
                let ask = Ask::Unsubscribe { uri: key.uri.clone() };
                let (conversation, _cancel) = Conversation::detached();
                let told = send(&inner, &entry, ask, caller, None, &conversation, None).await;
                if let Err(error) = told {
                    tracing::debug!(server = key.server, %error, "a subscription did not end");
                }
            }
            inner.subscriptions.forget(&key);
        };
        self.inner.tasks.spawn_on(ending, &self.runtime);
    }
}

/// Subscribes; runs in a task of its own.
pub(crate) async fn subscribe(
    inner: Arc<ProxyState>,
    request: SubscribeRequest,
) -> Result<Subscription, RequestError> {
    let caller = request.caller.clone();
    let done = match run(&inner, request).await {
        Ok(subscription) => Ok(subscription),
        Err(refused) => Err(refuse(&inner, refused).await),
    };
    tell_log("subscribe", &caller, done.as_ref().err());
    done
}

async fn run(inner: &Arc<ProxyState>, request: SubscribeRequest) -> Result<Subscription, Refused> {
    let SubscribeRequest { uri, context, caller, within } = request;
    let ask = Ask::Subscribe { uri: uri.clone() };
    let (conversation, _cancel) = Conversation::detached();
    let request = ServerRequest { ask, context, caller: caller.clone(), within };
    let entered = verify_source(inner, enter(inner, request, conversation)?).await?;
    let Permitted { entered, target, uris } = resolve(inner, entered)?;
    let Ask::Subscribe { uri: own } = &target.ask else {
        return Err(Refused::new(entered.trail, ErrorCode::InvalidArgs));
    };
    let key = Key {
        server: target.server.clone(),
        uri: own.clone(),
        caller: target.upstream.per_caller.then(|| caller.clone()),
    };
    let Some(asked) = inner.subscriptions.hold(&key, &caller) else {
        let refused = Refused::new(entered.trail, ErrorCode::Overloaded);
        return Err(refused.saying("there are too many subscriptions"));
    };
    // From here on whatever ends this gives the subscription up.
    let held = Held {
        inner: Arc::clone(inner),
        runtime: Handle::current(),
        entry: target.upstream.clone(),
        caller: caller.clone(),
        key,
        asked: Arc::clone(&asked),
    };
    let now = inner.parts.clock.monotonic();
    let left = entered.deadline.map(|deadline| deadline.saturating_sub(now));
    let mut asked = asked.lock().await;
    if !*asked {
        let ask = target.ask.clone();
        let sent =
            send(inner, &target.upstream, ask, caller, None, &entered.conversation, left).await;
        if let Err(error) = sent {
            let upstream = answer::refusal(inner, &error, &target.server, &target.ask, &uris);
            return Err(Refused {
                message: upstream.as_ref().map(|told| told.message.clone()),
                upstream,
                internal: Some(inner.parts.shapes.redact(&error.to_string()).into_owned()),
                forwarded: true,
                recorded: false,
                ..Refused::new(entered.trail, code_of(&error))
            });
        }
        *asked = true;
    }
    drop(asked);
    let uri = uris.to_wire(&target.server, &held.key.uri);
    Ok(Subscription { uri, _held: held })
}
