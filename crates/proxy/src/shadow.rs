//! Records the decisions of rules in shadow mode.
//!
//! Path: 5. Doc: policy.md#shadow

use toolbooth_contracts::event::AuditEventKind;

use crate::entry::Refused;
use crate::state::ProxyState;
use crate::trail::CallTrail;

/// Records the decision that was not enforced, if there is one. Without the record nothing runs.
pub(crate) async fn record(
    state: &ProxyState,
    mut trail: Box<CallTrail>,
) -> Result<Box<CallTrail>, Refused> {
    let Some(decision) = trail.shadow.take().filter(|_| !trail.is_shadow_recorded) else {
        return Ok(trail);
    };
    trail.is_shadow_recorded = true;
    let mut event = trail.event(AuditEventKind::PolicyShadowDenied, &state.parts.clock.now());
    event.decision = Some(decision);
    match state.parts.ledger.record_events(vec![event]).await {
        Ok(()) => Ok(trail),
        Err(error) => Err(Refused::unrecorded(trail, &error)),
    }
}
