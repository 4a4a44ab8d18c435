//! Stage 5: applies the policy to the final arguments.
//!
//! Path: 5. Doc: call-path.md#stages

use toolbooth_contracts::GuardedArguments;
use toolbooth_policy::{AskedCall, Permit};

use super::guard::Guarded;
use super::resolve::FoundTool;
use crate::entry::Refused;
use crate::state::ProxyState;

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
    let trail = &mut found.entered.trail;
    let policy = &found.world.policy;
    // Only an engine asks for the time.
    let at = if policy.has_engine() { state.parts.clock.now().text } else { String::new() };
    let call = AskedCall {
        caller: &trail.caller,
        contract: found.tool.contract(),
        arguments: arguments.tree(),
        claimed: &trail.context,
        at: &at,
    };
    let permit = policy.authorize(access, &call);
    trail.checked(Some(at).filter(|at| !at.is_empty()));
    match permit {
        Ok(permit) => {
            if let Some(judged) = &mut trail.judged {
                judged.approval = permit.approval().cloned();
                judged.windows = permit.windows().cloned().unwrap_or_default();
            }
            trail.decision = Some(permit.summary());
            trail.shadow = permit.shadow().cloned();
            Ok(Authorized { found, permit, arguments, natural_key, _stage: () })
        }
        Err(denial) => Err(Refused::denied(found.entered.trail, denial)),
    }
}
