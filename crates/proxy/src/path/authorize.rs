//! Stage 5: applies the policy to the final arguments.
//!
//! Path: 5. Doc: call-path.md#stages

use std::sync::Arc;

use toolbooth_contracts::GuardedArguments;
use toolbooth_contracts::history::History;
use toolbooth_policy::{AskedCall, Permit};

use super::guard::Guarded;
use super::resolve::FoundTool;
use crate::entry::Refused;
use crate::kept_documents::JudgedBy;
use crate::state::ProxyState;
use crate::trail::Judged;

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
    let grants = policy.rights(&trail.caller).map(|rights| rights.grants.as_slice());
    let grants = grants.unwrap_or_default().iter().map(|grant| grant.as_str().to_owned());
    let approval = permit.as_ref().ok().and_then(|permit| permit.approval());
    trail.judged = Some(Box::new(Judged {
        by: JudgedBy { world: Arc::clone(&found.world), tool: Arc::clone(&found.tool) },
        grants: grants.collect(),
        approval: approval.map(|need| need.rule.clone()),
        windows: permit
            .as_ref()
            .ok()
            .and_then(|permit| permit.windows().cloned())
            .unwrap_or_default(),
        history: History::new(),
        at: Some(at).filter(|at| !at.is_empty()),
    }));
    match permit {
        Ok(permit) => {
            trail.decision = Some(permit.summary());
            trail.shadow = permit.shadow().cloned();
            Ok(Authorized { found, permit, arguments, natural_key, _stage: () })
        }
        Err(denial) => Err(Refused::denied(found.entered.trail, denial)),
    }
}
