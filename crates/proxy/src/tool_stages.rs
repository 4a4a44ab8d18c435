//! What stages 3 and 5 do with a tool: for a call of it, and for a request that reads a stored result as the tool does.
//!
//! Path: 3, 5. Doc: call-path.md#stages

use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::ErrorCode;
use toolbooth_policy::{Access, AskedCall, Denial, Permit};
use toolbooth_registry::RegisteredTool;

use crate::entry::{Entered, Refused};
use crate::kept_documents::JudgedBy;
use crate::state::ProxyState;
use crate::trail::CallTrail;
use crate::world::World;

/// A tool that the caller may see and that is active.
pub(crate) struct VisibleTool<A> {
    pub(crate) entered: Entered<A>,
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) access: Access,
}

/// Finds the tool with the id that `tool_id` returns.
///
/// # Errors
/// A refusal. A tool that the door does not show does not exist for the caller, nor does one that is hidden from it.
/// Both are decided by the name alone, before it is known whether there is such a tool, so that the time is the same.
pub(crate) fn find<A>(
    mut entered: Entered<A>,
    world: &Arc<World>,
    tool_id: fn(&Entered<A>) -> &str,
) -> Result<VisibleTool<A>, Refused> {
    let id = tool_id(&entered);
    let shown = world.shows_tool(entered.toolset.as_ref(), id)
        && !world.policy.hides_tool(&entered.trail.caller, id);
    let tool = world.registry.get(id).filter(|_| shown).cloned();
    let Some(tool) = tool else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    let trail = &mut entered.trail;
    let by = JudgedBy { world: Arc::clone(world), tool: Some(Arc::clone(&tool)), item: None };
    trail.judge_by(by);
    match world.policy.access(&trail.caller, tool.contract(), world.status(&tool)) {
        Ok(access) => Ok(VisibleTool { entered, tool, access }),
        Err(denial) => Err(Refused::denied(entered.trail, denial)),
    }
}

/// Applies the policy to arguments, and notes in the trail what it permits.
///
/// # Errors
/// The denial, which is not noted yet.
pub(crate) fn authorize(
    state: &ProxyState,
    trail: &mut CallTrail,
    world: &World,
    tool: &RegisteredTool,
    access: Access,
    arguments: &Value,
) -> Result<Permit, Denial> {
    let policy = &world.policy;
    // Only an engine asks for the time.
    let at = if policy.has_engine() { state.parts.clock.now().text } else { String::new() };
    let call = AskedCall {
        caller: &trail.caller,
        contract: tool.contract(),
        arguments,
        claimed: &trail.context,
        at: &at,
    };
    let permit = policy.authorize(access, &call);
    trail.checked(Some(at).filter(|at| !at.is_empty()));
    let permit = permit?;
    if let Some(judged) = &mut trail.judged {
        judged.approval = permit.approval().cloned();
        judged.windows = permit.windows().cloned().unwrap_or_default();
    }
    trail.permitted(permit.summary(), permit.shadow());
    Ok(permit)
}
