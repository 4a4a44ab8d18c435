//! Stage 3, in one world: the flag, the tool, its visibility to the caller, and its status.
//!
//! Path: 3. Doc: call-path.md#stages

use std::sync::Arc;

use toolbooth_policy::Access;
use toolbooth_registry::RegisteredTool;

use super::enter::AskedTool;
use crate::entry::{Entered, Refused, SourceVerified};
use crate::tool_stages::{self, VisibleTool};
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
    let (entered, world) = verified.begin(|world, entered| {
        world.tool_id(&entered.asked.name).clone_into(&mut entered.trail.tool_id);
    })?;
    let VisibleTool { entered, tool, access } =
        tool_stages::find(entered, &world, |entered| &entered.trail.tool_id)?;
    Ok(Resolved { found: FoundTool { entered, world, tool }, access, _stage: () })
}
