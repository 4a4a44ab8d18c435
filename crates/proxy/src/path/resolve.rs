//! Stage 3, in one world: the flag, the tool, its visibility to the caller, and its status.
//!
//! Path: 3. Doc: call-path.md#stages

use std::sync::Arc;

use toolbooth_contracts::ErrorCode;
use toolbooth_policy::Access;
use toolbooth_registry::RegisteredTool;

use super::enter::AskedTool;
use crate::entry::{Entered, Refused, SourceVerified};
use crate::kept_documents::JudgedBy;
use crate::world::World;

/// The tool of the call, in the world that judges it.
pub(super) struct FoundTool {
    pub(super) entered: Entered<AskedTool>,
    pub(super) world: Arc<World>,
    pub(super) tool: Arc<RegisteredTool>,
}

/// A tool that the caller may see and that is active. Only this stage constructs it.
pub(super) struct Resolved {
    pub(super) found: FoundTool,
    pub(super) access: Access,
    _stage: (),
}

pub(super) fn resolve(verified: SourceVerified<AskedTool>) -> Result<Resolved, Refused> {
    let (mut entered, world) = verified.into_parts();
    let trail = &mut entered.trail;
    world.tool_id(&entered.asked.name).clone_into(&mut trail.tool_id);
    trail.policy_version = world.policy.version().to_owned();
    // The flag is checked before the look-up. Otherwise its response would reveal which tools exist.
    if let Err(denial) = world.policy.enabled() {
        trail.judge_by(JudgedBy { world, tool: None, item: None });
        return Err(Refused::denied(entered.trail, denial));
    }
    // A tool that the door does not show does not exist for the caller, nor does one that is hidden
    // from it. Both are decided by the name alone, before it is known whether there is such a tool, so
    // that the time is the same.
    let shown = world.shows_tool(entered.toolset.as_ref(), &trail.tool_id)
        && !world.policy.hides_tool(&trail.caller, &trail.tool_id);
    let tool = world.registry.get(&trail.tool_id).filter(|_| shown).cloned();
    let Some(tool) = tool else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    trail.judge_by(JudgedBy {
        world: Arc::clone(&world),
        tool: Some(Arc::clone(&tool)),
        item: None,
    });
    match world.policy.access(&trail.caller, tool.contract(), world.status(&tool)) {
        Ok(access) => {
            Ok(Resolved { found: FoundTool { entered, world, tool }, access, _stage: () })
        }
        Err(denial) => Err(Refused::denied(entered.trail, denial)),
    }
}
