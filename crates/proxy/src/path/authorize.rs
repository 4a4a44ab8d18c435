//! Stage 5: applies the policy to the final arguments.
//!
//! Path: 5. Doc: call-path.md#stages

use toolbooth_contracts::GuardedArguments;
use toolbooth_policy::Permit;

use super::guard::Guarded;
use super::resolve::FoundTool;
use crate::entry::Refused;
use crate::state::ProxyState;
use crate::tool_stages;

/// A call that the policy permits with these arguments. Only this stage constructs it.
pub(super) struct Authorized {
    pub(super) found: FoundTool,
    pub(super) permit: Permit,
    pub(super) arguments: GuardedArguments,
    pub(super) natural_key: Option<String>,
    _stage: (),
}

pub(super) fn authorize(state: &ProxyState, guarded: Guarded) -> Result<Authorized, Refused> {
    let Guarded { mut found, access, arguments, natural_key, .. } = guarded;
    let FoundTool { entered, world, tool } = &mut found;
    let tree = arguments.tree();
    match tool_stages::authorize(state, &mut entered.trail, world, tool, access, tree) {
        Ok(permit) => Ok(Authorized { found, permit, arguments, natural_key, _stage: () }),
        Err(denial) => Err(Refused::denied(found.entered.trail, denial)),
    }
}
