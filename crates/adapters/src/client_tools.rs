//! The executor of tools that an agent's client runs itself: it answers that the client may run them.
//!
//! Path: 7. Doc: hooks.md#records

use async_trait::async_trait;
use serde_json::json;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Conversation, Dispatch, Executor, Outcome, ToolOutput};

/// The executor of the tools of all clients. It runs nothing: its result states that the client may run the
/// tool, and its effect is that of the answer. What the client does then is not observed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientTools;

#[async_trait]
impl Executor for ClientTools {
    async fn execute(&self, dispatch: Dispatch, _conversation: Conversation) -> Outcome {
        let runtime = dispatch.contract.execution.local_runtime_id.as_deref();
        // The world shows these tools to no other door.
        if runtime.is_none() || dispatch.toolset.as_deref() != runtime {
            let reason = "the client runs this tool; only its hook can ask for it";
            return Outcome::Failed(ExecutionError::not_configured(reason));
        }
        Outcome::Done(ToolOutput::data(&json!({ "permitted": true })))
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        Readiness::Ready
    }
}
