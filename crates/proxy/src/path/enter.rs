//! Stage 2 of a call: entry, and verification of the tool's source if required.
//!
//! Path: 2. Doc: call-path.md#stages

use std::sync::Arc;

use toolbooth_contracts::{Arguments, Conversation, ErrorCode, ToolCall, ToolName};

use super::keys::DedupKey;
use crate::argument_rules::ArgumentRules;
use crate::entry::{self, Arrival, Entered, Refused, SourceVerified};
use crate::state::ProxyState;
use crate::trail::{Input, NAME_BYTES_MAX};
use crate::worker_slot::WorkerSlot;

/// The inputs of a call that its caller did not send.
#[derive(Default)]
pub(crate) struct CallOptions {
    /// The key of a step of a plan, or of a queued call.
    pub(crate) dedup_key: Option<DedupKey>,
    /// Arguments that have passed the gate, in place of those of the call.
    pub(crate) arguments: Option<Arguments>,
    /// The rules of the front door for the arguments.
    pub(crate) rules: Option<Arc<dyn ArgumentRules>>,
    /// Whether each stage is reported.
    pub(crate) explain: bool,
    /// The code and the sentence with which a queued call is refused, whatever it asks for.
    pub(crate) refusal: Option<(ErrorCode, String)>,
    /// The place of a queued call, which it leaves while it waits for an approval.
    pub(crate) worker: Option<WorkerSlot>,
}

/// The requested tool.
pub(super) struct AskedTool {
    pub(super) name: ToolName,
    pub(super) dedup_key: Option<DedupKey>,
    pub(super) rules: Option<Arc<dyn ArgumentRules>>,
    /// The arguments, until they are moved to the trail.
    input: Input,
}

/// Assigns an id, a deadline and a slot to the call, and limits its size.
pub(super) fn enter(
    state: &ProxyState,
    call: ToolCall,
    conversation: Conversation,
    options: CallOptions,
) -> Result<Entered<AskedTool>, Refused> {
    let ToolCall { tool, args, context, caller, toolset } = call;
    let CallOptions { dedup_key, arguments, rules, refusal, .. } = options;
    // Absent arguments are `{}`; a `null` that was sent is not an object, and the guard rejects it.
    let input = match (arguments, args) {
        (Some(arguments), _) => Input::Judged(arguments),
        (None, Some(raw)) => Input::Raw(raw),
        (None, None) => Input::Judged(Arguments::default()),
    };
    let kind = kind(&tool);
    let name = tool.as_str().to_owned();
    let asked = AskedTool { name: tool, dedup_key, rules, input };
    let arrival = Arrival { asked, name, context, caller, toolset, conversation };
    let entered = entry::enter(state, arrival, |asked, mut trail| {
        // No tool can have an id of this length.
        if asked.name.as_str().len() > NAME_BYTES_MAX {
            return Err(Refused::new(trail, ErrorCode::UnregisteredTool));
        }
        let size = asked.input.bytes();
        let most = state.parts.limits.argument_bytes_max;
        if size > most {
            return Err(Refused::too_large(trail, size, most));
        }
        trail.input = std::mem::replace(&mut asked.input, Input::None);
        if let Some((code, message)) = refusal {
            return Err(Refused::new(trail, code).saying(message));
        }
        Ok(trail)
    });
    entered.map_err(|refused| named(state, kind, refused))
}

/// Lists the tool's source first, if that is required before the call and the caller can call the tool.
pub(super) async fn verify_source(
    state: &ProxyState,
    entered: Entered<AskedTool>,
) -> Result<SourceVerified<AskedTool>, Refused> {
    let kind = kind(&entered.asked.name);
    let verified = entry::verify_source(state, entered, |catalogue, world, entered| {
        let (name, caller) = (&entered.asked.name, &entered.trail.caller);
        catalogue.tool_to_verify(world, name, caller, entered.toolset.as_ref())
    });
    verified.await.map_err(|refused| named(state, kind, refused))
}

/// Returns the kind of a name as a constructor, to build another name of the same kind.
fn kind(name: &ToolName) -> fn(String) -> ToolName {
    match name {
        ToolName::Id(_) => ToolName::Id,
        ToolName::Wire(_) => ToolName::Wire,
        ToolName::IdOrWire(_) => ToolName::IdOrWire,
    }
}

/// Replaces the name in the trail of a refused call by the tool id of that name.
fn named(state: &ProxyState, kind: fn(String) -> ToolName, mut refused: Refused) -> Refused {
    let name = kind(std::mem::take(&mut refused.trail.tool_id));
    state.parts.worlds.now().tool_id(&name).clone_into(&mut refused.trail.tool_id);
    refused
}
