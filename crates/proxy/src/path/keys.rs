//! The idempotency keys of a call, and the key that is forwarded to its tool.
//!
//! Path: 4, 6. Doc: call-path.md#idempotency

use serde_json::Value;
use toolbooth_audit::Digester;
use toolbooth_contracts::ToolContract;
use toolbooth_contracts::contract::{IdempotencyMode, KeyScope};
use toolbooth_contracts::json::canonical;

use crate::error::NoKey;
use crate::trail::CallTrail;

/// The unique key of a step of a plan, or of a queued call.
#[derive(Debug, Clone)]
pub(crate) struct DedupKey([String; 3]);

impl DedupKey {
    /// Returns the key of a step of a plan.
    pub(crate) fn of_step(plan_id: &str, step_id: &str) -> Self {
        Self(["plan", plan_id, step_id].map(str::to_owned))
    }

    /// Returns the key of a queued call.
    pub(crate) fn of_queued(caller: &str, call_id: &str) -> Self {
        Self(["queue", caller, call_id].map(str::to_owned))
    }

    /// Returns its digest with one key of the store.
    fn digest(&self, digester: &Digester) -> String {
        let Self([kind, first, second]) = self;
        digester.of_parts(&[kind, first, second])
    }
}

/// The keys of one call.
pub(super) struct Keys {
    /// Digests of the keys; the first is the call's own.
    pub(super) digests: Vec<String>,
    /// The key that is forwarded to the tool, equal on every attempt and replica.
    pub(super) forwarded: Option<String>,
    /// Whether the agent sent a key that the tool's mode ignores.
    pub(super) ignored: bool,
}

/// Returns the canonical form of a keyed tool's key; `None` for other tools.
///
/// # Errors
/// [`NoKey`], where the field is absent, null, blank or not scalar.
pub(super) fn natural(contract: &ToolContract, arguments: &Value) -> Result<Option<String>, NoKey> {
    let idempotency = &contract.idempotency;
    if idempotency.mode != IdempotencyMode::Keyed {
        return Ok(None);
    }
    let field = idempotency.key_field.clone().unwrap_or_default();
    match arguments.get(&field) {
        Some(Value::String(text)) if text.trim().is_empty() => Err(NoKey { field }),
        Some(key @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => {
            Ok(Some(canonical(key)))
        }
        _ => Err(NoKey { field }),
    }
}

/// Returns the keys of a call.
pub(super) fn of_call(
    digester: &Digester,
    contract: &ToolContract,
    trail: &CallTrail,
    natural_key: Option<String>,
    dedup_key: Option<&DedupKey>,
) -> Keys {
    let idempotency = &contract.idempotency;
    let tool = contract.tool_id.as_str();
    let caller = trail.caller.name();
    let explicit = trail.context.idempotency_key.as_deref().filter(|key| !key.trim().is_empty());
    let mut digests = Vec::new();
    // The current digest key of the store first; its earlier keys find the claims made with them.
    for digester in digester.all() {
        let scoped = |kind: &str, key: &str| digester.of_parts(&[kind, caller, tool, key]);
        match idempotency.mode {
            IdempotencyMode::Keyed => {
                let key = natural_key.clone().unwrap_or_default();
                digests.push(match idempotency.key_scope.unwrap_or_default() {
                    KeyScope::Tool => digester.of_parts(&["keyed", tool, &key]),
                    KeyScope::Caller => scoped("keyed-caller", &key),
                });
            }
            mode @ (IdempotencyMode::OnKey | IdempotencyMode::SafeRetry) => {
                digests.extend(explicit.map(|key| scoped("explicit", key)));
                if mode == IdempotencyMode::SafeRetry {
                    let claimed = trail.context.call_id.as_deref();
                    digests.extend(claimed.map(|call_id| scoped("call", call_id)));
                }
            }
            IdempotencyMode::None => (),
        }
        // In every idempotency mode, a plan that is submitted again repeats no step that succeeded. A
        // queued call that is delivered again is not a second call. The digests depend on the literal
        // `plan`.
        if idempotency.mode != IdempotencyMode::Keyed {
            digests.extend(dedup_key.map(|key| scoped("plan", &key.digest(digester))));
        }
    }
    let ignored = explicit.is_some()
        && matches!(idempotency.mode, IdempotencyMode::None | IdempotencyMode::Keyed);
    Keys { forwarded: digests.first().cloned(), digests, ignored }
}
