//! The stages of a request before it is sent: entry, verification of the server, resolution and
//! permission.
//!
//! Path: 2, 3, 5. Doc: call-path.md#requests

use std::sync::Arc;

use serde_json::{Value, json};
use toolbooth_contracts::contract::GATEWAY_RUNTIME;
use toolbooth_contracts::decision::RequestedItem;
use toolbooth_contracts::json::{check_value, hazardous_keys};
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{Conversation, ErrorCode};
use toolbooth_policy::{Denial, DenialRule, ToolStatus};
use toolbooth_registry::KEY_BYTES_MAX;
use toolbooth_registry::uris::ResourceUris;

use super::request::{ServerRequest, arguments, kind, name};
use super::target::Target;
use crate::entry::{self, Arrival, Entered, Refused, SourceVerified};
use crate::kept_documents::JudgedBy;
use crate::own_tools::READ_RESULT;
use crate::server_error::bytes;
use crate::shadow;
use crate::state::ProxyState;
use crate::tool_stages::{self, VisibleTool};
use crate::trail::{CallTrail, Input, NAME_BYTES_MAX};
use crate::world::World;

/// Stages 3 and 5 passed: the server and its own names are known, and the policy permits the request.
/// Only [`resolve`] constructs it.
pub(super) struct Permitted {
    pub(super) entered: Entered<Ask>,
    pub(super) target: Target,
    pub(super) uris: ResourceUris,
    _stage: (),
}

/// Runs stage 2, with names and arguments of limited size.
pub(super) fn enter(
    state: &ProxyState,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<Entered<Ask>, Refused> {
    let ServerRequest { ask, context, caller, within } = request;
    let name = shown_name(state, name(&ask));
    let arrival = Arrival { asked: ask, name, context, caller, toolset: within, conversation };
    entry::enter(state, arrival, |ask, mut trail| {
        trail.input = Input::Digest;
        // No name on the wire can be longer, so the item does not exist.
        if self::name(ask).len() > KEY_BYTES_MAX * 2 {
            return Err(Refused::new(trail, ErrorCode::UnregisteredTool));
        }
        let given = arguments(ask);
        let (size, most) = (bytes(&given), state.parts.limits.argument_bytes_max);
        if size > most {
            return Err(Refused::too_large(trail, size, most));
        }
        match objection(&given) {
            None => Ok(trail),
            Some(message) => Err(Refused::new(trail, ErrorCode::InvalidArgs).saying(message)),
        }
    })
}

/// Returns the fault of arguments, independent of the item that the request names.
fn objection(arguments: &Value) -> Option<String> {
    if let Err(fault) = check_value(arguments) {
        return Some(fault.message);
    }
    let is_hazardous = !hazardous_keys(arguments).is_empty();
    is_hazardous.then(|| "a key of the arguments is not allowed".to_owned())
}

/// Returns a name in the form of records: redacted, because a URI can contain a secret.
fn shown_name(state: &ProxyState, id: &str) -> String {
    state.parts.shapes.redact(id).into_owned()
}

/// Lists the server first, if that is required before its items are used.
pub(super) async fn verify_source(
    state: &ProxyState,
    entered: Entered<Ask>,
) -> Result<SourceVerified<Ask>, Refused> {
    entry::verify_source(state, entered, |catalogue, world, entered| {
        let target = Target::find(&state.parts.upstreams, world, &entered.asked)?;
        // A request for a hidden item must not take longer than one for a missing item.
        let may = world.shows_item(entered.toolset.as_ref(), &target.item())
            && world.policy.lists_item(&entered.trail.caller, &target.item(), &ToolStatus::Active);
        if may { catalogue.server_to_verify(&target.server) } else { None }
    })
    .await
}

/// Resolves and authorizes a request in one world: the flag, the item, its visibility to the caller,
/// its status, and the policy.
pub(super) async fn resolve(
    state: &ProxyState,
    verified: SourceVerified<Ask>,
) -> Result<Permitted, Refused> {
    let mut permitted = judge(state, verified)?;
    permitted.entered.trail = shadow::record(state, permitted.entered.trail).await?;
    Ok(permitted)
}

fn judge(state: &ProxyState, verified: SourceVerified<Ask>) -> Result<Permitted, Refused> {
    let (mut entered, world) = verified.begin(|_, _| ())?;
    let Some(target) = Target::find(&state.parts.upstreams, &world, &entered.asked) else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    if target.server == GATEWAY_RUNTIME {
        return resolve_kept_result(state, &world, entered, target);
    }
    let item = target.item();
    let shown = world.shows_item(entered.toolset.as_ref(), &item);
    if !shown || world.policy.hides_item(&entered.trail.caller, &item) {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    }
    let trail = &mut entered.trail;
    let status = target.status(&world);
    let at = state.parts.clock.now().text;
    let permit = world.policy.permit_item(&trail.caller, &item, status, &trail.context, &at);
    let is_whole = target.id.len() <= NAME_BYTES_MAX && shown_name(state, &target.id) == target.id;
    let by = RequestedItem { kind: item.kind, server: item.server.to_owned(), partial: !is_whole };
    trail.judge_by(JudgedBy { world: Arc::clone(&world), tool: None, item: Some(by) });
    let is_stopped =
        |denial: &Denial| matches!(denial.rule, DenialRule::Pause | DenialRule::Quarantine);
    if !permit.as_ref().is_err_and(is_stopped) {
        trail.checked(Some(at).filter(|_| world.policy.has_engine()));
    }
    match permit {
        Ok(permit) => {
            let sent = json!([kind(&target.ask), name(&target.ask), arguments(&target.ask)]);
            trail.permitted(permit.summary(), permit.shadow());
            name_target(state, trail, &target, &sent);
            Ok(Permitted { entered, target, uris: world.uris.clone(), _stage: () })
        }
        Err(denial) => {
            if denial.code != ErrorCode::UnregisteredTool {
                trail.name(shown_name(state, &target.id));
            }
            Err(Refused::denied(entered.trail, denial))
        }
    }
}

/// As [`resolve`], for a stored result: a caller that can call the tool that reads it can also read it
/// as a resource.
fn resolve_kept_result(
    state: &ProxyState,
    world: &Arc<World>,
    entered: Entered<Ask>,
    target: Target,
) -> Result<Permitted, Refused> {
    let VisibleTool { mut entered, tool, access } =
        tool_stages::find(entered, world, |_| READ_RESULT)?;
    let trail = &mut entered.trail;
    let arguments = json!({ "result": name(&target.ask) });
    match tool_stages::authorize(state, trail, world, &tool, access, &arguments) {
        Ok(permit) if permit.approval().is_none() && permit.windows().is_none() => {
            name_target(state, trail, &target, &arguments);
            Ok(Permitted { entered, target, uris: world.uris.clone(), _stage: () })
        }
        // Only calls can be approved, and judged by earlier ones.
        Ok(_) => {
            (trail.decision, trail.shadow) = (None, None);
            Err(Refused::new(entered.trail, ErrorCode::PolicyDenied))
        }
        Err(denial) => Err(Refused::denied(entered.trail, denial)),
    }
}

/// Puts the permitted item and the digest of the sent request into the trail.
fn name_target(state: &ProxyState, trail: &mut CallTrail, target: &Target, sent: &Value) {
    trail.name(shown_name(state, &target.id));
    trail.args_digest = Some(state.parts.ledger.digester().of(sent));
}
