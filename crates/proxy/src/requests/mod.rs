//! Requests to a server other than tool calls: resolve, authorize, forward, screen, record. They have
//! no claim, because nothing repeats a request by accident.
//!
//! Path: 2, 3, 5, 7, 8, 9. Doc: call-path.md#requests

mod answer;
mod forward;
mod records;
mod refusal;
mod request;
mod resolve;
pub(crate) mod subscription_table;
mod subscriptions;
mod target;
pub(crate) mod updates;
pub(crate) mod upstreams;

use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{Conversation, ErrorCode};

pub(crate) use subscriptions::subscribe;

pub use request::{RequestError, ServerRequest, UpstreamRefusal};
pub use subscriptions::{SubscribeRequest, Subscription};
pub use updates::ResourceUpdate;
pub use upstreams::{UpstreamEntry, Upstreams};

use crate::entry::Refused;
use crate::state::ProxyState;
use answer::Screened;
use records::NoAnswer;
use request::{event, kind, tell_log};

/// Runs the stages of one request.
pub(crate) async fn walk(
    state: Arc<ProxyState>,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<Value, RequestError> {
    let (kind, event) = (kind(&request.ask), event(&request.ask));
    let caller = request.caller.clone();
    let told = match run(&state, request, conversation).await {
        Ok(screened) => records::answered(&state, screened, event).await,
        Err(no_answer) => Err(records::no_answer(&state, no_answer).await),
    };
    tell_log(kind, &caller, told.as_ref().err());
    told
}

async fn run(
    state: &Arc<ProxyState>,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<Screened, NoAnswer> {
    let entered = resolve::enter(state, request, conversation)?;
    if matches!(entered.asked, Ask::Subscribe { .. } | Ask::Unsubscribe { .. }) {
        let message = "use `subscribe` for subscriptions";
        return Err(Refused::new(entered.trail, ErrorCode::InvalidArgs).saying(message).into());
    }
    let verified = resolve::verify_source(state, entered).await?;
    let permitted = resolve::resolve(state, verified).await?;
    let answered = forward::forward(state, permitted).await?;
    Ok(answer::screen(state, answered)?)
}
