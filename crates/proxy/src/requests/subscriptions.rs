//! Subscriptions to resources: counted, so that a server is asked once to subscribe and once to
//! unsubscribe.
//!
//! Path: 2, 7. Doc: call-path.md#subscriptions

use std::sync::Arc;

use tokio::runtime::Handle;
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{CallContext, Caller, Conversation, ErrorCode};

use super::forward::{Unanswered, send};
use super::records::{NoAnswer, no_answer};
use super::request::{RequestError, ServerRequest, tell_log};
use super::resolve::{Permitted, enter, resolve, verify_source};
use super::subscription_table::{AskedOnce, Key};
use super::upstreams::UpstreamEntry;
use crate::entry::Refused;
use crate::state::ProxyState;

/// A caller's request for the updates of a resource.
#[derive(Debug, Clone)]
pub struct SubscribeRequest {
    /// The resource's URI on the wire.
    pub uri: String,
    /// The context, as the agent claims it.
    pub context: CallContext,
    /// The caller.
    pub caller: Caller,
    /// The tool set of the door, by name.
    pub within: Option<Arc<str>>,
}

/// A subscription, until it is dropped. If it was the last one to a resource, the server is asked to
/// unsubscribe.
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
    /// The URI of the resource in updates.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

/// One holder of a subscription.
struct Held {
    state: Arc<ProxyState>,
    runtime: Handle,
    entry: UpstreamEntry,
    caller: Caller,
    key: Key,
    asked: AskedOnce,
}

impl Drop for Held {
    fn drop(&mut self) {
        let subscriptions = &self.state.subscriptions;
        if !subscriptions.give_up(&self.key, &self.caller) {
            return;
        }
        let (state, entry, key) = (Arc::clone(&self.state), self.entry.clone(), self.key.clone());
        let (asked, caller) = (Arc::clone(&self.asked), self.caller.clone());
        let ending = async move {
            let mut asked = asked.lock().await;
            // Another subscriber may have arrived meanwhile and uses the existing subscription.
            if state.subscriptions.is_held(&key) {
                return;
            }
            if *asked {
                *asked = false;
                let ask = Ask::Unsubscribe { uri: key.uri.clone() };
                let (conversation, _cancel) = Conversation::detached();
                let told = send(&state, &entry, ask, caller, None, &conversation, None).await;
                if let Err(error) = told {
                    tracing::debug!(server = key.server, %error, "a subscription did not end");
                }
            }
            state.subscriptions.forget(&key);
        };
        self.state.tasks.spawn_on(ending, &self.runtime);
    }
}

/// Subscribes; runs in a task of its own.
pub(crate) async fn subscribe(
    state: Arc<ProxyState>,
    request: SubscribeRequest,
) -> Result<Subscription, RequestError> {
    let caller = request.caller.clone();
    let done = match run(&state, request).await {
        Ok(subscription) => Ok(subscription),
        Err(none) => Err(no_answer(&state, none).await),
    };
    tell_log("subscribe", &caller, done.as_ref().err());
    done
}

async fn run(state: &Arc<ProxyState>, request: SubscribeRequest) -> Result<Subscription, NoAnswer> {
    let SubscribeRequest { uri, context, caller, within } = request;
    let ask = Ask::Subscribe { uri: uri.clone() };
    let (conversation, _cancel) = Conversation::detached();
    let request = ServerRequest { ask, context, caller: caller.clone(), within };
    let verified = verify_source(state, enter(state, request, conversation)?).await?;
    let Permitted { entered, target, uris, .. } = resolve(state, verified).await?;
    let Ask::Subscribe { uri: own } = &target.ask else {
        return Err(Refused::new(entered.trail, ErrorCode::InvalidArgs).into());
    };
    let key = Key {
        server: target.server.clone(),
        uri: own.clone(),
        caller: target.upstream.per_caller.then(|| caller.clone()),
    };
    let Some(asked) = state.subscriptions.hold(&key, &caller) else {
        let refused = Refused::new(entered.trail, ErrorCode::Overloaded);
        return Err(refused.saying("there are too many subscriptions").into());
    };
    // From here on, every exit drops `held`, which removes the subscriber.
    let held = Held {
        state: Arc::clone(state),
        runtime: Handle::current(),
        entry: target.upstream.clone(),
        caller: caller.clone(),
        key,
        asked: Arc::clone(&asked),
    };
    // Another subscriber to the same resource may still wait for the server.
    let patience = entered.time_left(state).unwrap_or(target.upstream.timeout);
    let Ok(mut asked) = tokio::time::timeout(patience, asked.lock()).await else {
        return Err(Refused::new(entered.trail, ErrorCode::Timeout).into());
    };
    let left = entered.time_left(state);
    if !*asked {
        let ask = target.ask.clone();
        let sent =
            send(state, &target.upstream, ask, caller, None, &entered.conversation, left).await;
        if let Err(error) = sent {
            return Err(Unanswered::of(state, entered.trail, &error, &target, &uris).into());
        }
        *asked = true;
    }
    drop(asked);
    let uri = uris.to_wire(&target.server, &held.key.uri);
    Ok(Subscription { uri, _held: held })
}
