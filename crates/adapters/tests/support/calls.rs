//! Builds contracts and guarded calls for executors, and unwraps their outcomes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::schema::CompiledSchema;
use toolbooth_contracts::{
    Caller, Dispatch, ExecutionLog, Guard, GuardedArguments, Outcome, ToolContract, ToolOutput,
};

/// Returns the contract of a tool with this `execution`; `changes` replaces further members.
pub(crate) fn contract(execution: Value, changes: Value) -> ToolContract {
    let mut entry = json!({
        "toolId": "t.t", "category": "function", "description": "d",
        "inputSchema": {"type": "object"}, "outputSchema": {}, "capabilities": {},
        "execution": execution, "policy": {"timeoutMs": 30_000, "trustLevel": "trusted"},
        "permissions": [], "idempotency": {"mode": "none"},
    });
    let members = entry.as_object_mut().unwrap();
    members.extend(changes.as_object().unwrap().clone());
    Guard::new(Default::default()).validate_entry(&entry).unwrap()
}

/// Returns a call with the timeout of its contract.
pub(crate) fn dispatch(contract: ToolContract, arguments: &str) -> Dispatch {
    let anything = CompiledSchema::compile(&json!({})).unwrap();
    let arguments = arguments.parse().unwrap();
    Dispatch {
        timeout: Duration::from_millis(contract.policy.timeout_ms),
        contract: Arc::new(contract),
        arguments: GuardedArguments::guard(arguments, &anything, None).unwrap(),
        call_id: "call-1".to_owned().try_into().unwrap(),
        caller: Caller::local(),
        toolset: None,
        idempotency_key: Some("key-1".to_owned()),
        attempt: 1,
        execution_log: ExecutionLog::default(),
    }
}

/// Returns the output of a tool that asks for no input, or its error.
pub(crate) fn answered(outcome: Outcome) -> Result<ToolOutput, ExecutionError> {
    match outcome {
        Outcome::Done(output) => Ok(output),
        Outcome::Failed(error) => Err(error),
        Outcome::NeedsInput(_) => panic!("nothing is asked"),
    }
}
