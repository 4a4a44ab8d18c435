//! Judges recorded calls with their recorded contracts and callers, by the rules of a replay.
//!
//! Doc: policy.md#rehearsing

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolbooth_audit::LedgerError;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::decision::{CallerInputs, DecisionInputs, RequestedItem};
use toolbooth_contracts::secret::REDACTED;
use toolbooth_contracts::{CallContext, Caller, ToolContract};
use toolbooth_policy::{
    AskedCall, Authorizer, Decision, EngineTool, Explanation, Item, Rehearsed, ToolStatus,
};
use toolbooth_proxy::{Operations, World};

use super::records;
use crate::failure::Failure;

/// The rules by which calls are judged, and the contracts that are known, by their digests.
pub(super) struct Judge<'w> {
    pub(super) authorizer: Authorizer,
    contracts: HashMap<&'w str, &'w Arc<ToolContract>>,
    /// The recorded attributes of callers, by their digests; `None` if they cannot be read.
    callers: HashMap<String, Option<CallerInputs>>,
    /// Contracts of removed or changed tools, with the rules bound to them; or the reason why a contract is
    /// missing.
    earlier: HashMap<String, Result<(Authorizer, Arc<ToolContract>), String>>,
}

/// Contracts that the tools had earlier, and callers, at most.
const EARLIER_MAX: usize = 10_000;

/// Why a call without inputs is not judged.
pub(super) const UNDECIDED: &str = "it was refused before its inputs were recorded";

/// The reason for not judging a call that was denied before its arguments were checked, and that would
/// pass that check now.
const UNCHECKED: &str = "it was denied before its arguments were checked, and now would not be";

/// Why a request is not judged that was denied by a pause or a quarantine, and would not be denied otherwise.
const STOPPED: &str = "what it asked for was paused or in quarantine, and is not denied otherwise";

/// The reason for not judging a request whose log lacks the id of its item.
const NAMELESS: &str = "the log does not have the whole name of what it asked for";

/// Why a call whose contract is not known is not judged.
const GONE: &str = "its tool is gone or has changed, and the contract that it had was not kept";

/// Why a call is not judged.
pub(super) enum NotJudged {
    /// Rules do not decide on it: it was refused before.
    Undecided,
    /// It cannot be judged, for this reason.
    Unjudged(String),
}

impl NotJudged {
    pub(super) fn reason(self) -> String {
        match self {
            Self::Undecided => UNDECIDED.to_owned(),
            Self::Unjudged(reason) => reason,
        }
    }
}

/// The subject of a recorded call or request.
enum Subject<'i> {
    /// A tool, by the digest of its contract.
    Tool(&'i String),
    Item(&'i RequestedItem),
    /// Nothing: tools were switched off, so that none was looked up.
    Nothing,
}

impl<'w> Judge<'w> {
    pub(super) fn of(authorizer: Authorizer, world: &'w World) -> Self {
        let tools = world.registry().iter();
        let contracts = tools.map(|tool| (tool.contract_digest(), tool.contract())).collect();
        Self { authorizer, contracts, callers: HashMap::new(), earlier: HashMap::new() }
    }

    /// Reads the contracts that logs name and that no tool has any more.
    pub(super) async fn learn(
        &mut self,
        operations: &Operations,
        logs: impl Iterator<Item = &AgentLog>,
    ) -> Result<(), Failure> {
        for log in logs {
            let Some(inputs) = &log.decision_inputs else { continue };
            if let Some(digest) = &inputs.caller_digest
                && !self.callers.contains_key(digest)
                && self.callers.len() < EARLIER_MAX
            {
                let document = match operations.document(digest).await {
                    Err(LedgerError::Damaged(_)) => None,
                    document => document.map_err(records::unreadable)?,
                };
                let known = document.and_then(|text| serde_json::from_str(&text).ok());
                self.callers.insert(digest.clone(), known);
            }
            let Some(digest) = &inputs.contract_digest else { continue };
            let is_known =
                self.contracts.contains_key(digest.as_str()) || self.earlier.contains_key(digest);
            if is_known || self.earlier.len() >= EARLIER_MAX {
                continue;
            }
            let read = match operations.document(digest).await {
                Ok(Some(text)) => self.bound(digest, &text),
                Ok(None) => Err(GONE.to_owned()),
                Err(LedgerError::Damaged(_)) => {
                    Err("the contract that its tool had is damaged".to_owned())
                }
                Err(error) => return Err(records::unreadable(error)),
            };
            self.earlier.insert(digest.clone(), read);
        }
        Ok(())
    }

    /// Binds the rules to a contract that a tool had.
    fn bound(&self, digest: &str, text: &str) -> Result<(Authorizer, Arc<ToolContract>), String> {
        let contract: ToolContract = serde_json::from_str(text)
            .map_err(|_| "the contract that its tool had is of another form".to_owned())?;
        let tool = EngineTool { contract: &contract, digest };
        let (authorizer, fit) = self.authorizer.bound(&[tool]);
        match fit.failures.get(contract.tool_id.as_str()) {
            Some(reason) => {
                Err(format!("the rules do not fit the contract that its tool had: {reason}"))
            }
            None => Ok((authorizer, Arc::new(contract))),
        }
    }

    /// Returns the recorded attributes of a caller; `None` if the log has none.
    pub(super) fn caller<'s>(
        &'s self,
        inputs: &'s DecisionInputs,
    ) -> Result<Option<&'s CallerInputs>, NotJudged> {
        let Some(digest) = &inputs.caller_digest else { return Ok(inputs.caller.as_ref()) };
        let reason = match self.callers.get(digest) {
            Some(Some(known)) => return Ok(Some(known)),
            Some(None) => "what was known of its caller cannot be read".to_owned(),
            None => format!("more than {EARLIER_MAX} large callers are named"),
        };
        Err(NotJudged::Unjudged(reason))
    }

    /// Returns the contract with this digest, and the rules that are bound to it.
    fn known(&self, digest: &str) -> Result<(&Authorizer, &Arc<ToolContract>), NotJudged> {
        if let Some(contract) = self.contracts.get(digest) {
            return Ok((&self.authorizer, contract));
        }
        match self.earlier.get(digest) {
            Some(Ok((authorizer, contract))) => Ok((authorizer, contract)),
            Some(Err(reason)) => Err(NotJudged::Unjudged(reason.clone())),
            None => Err(NotJudged::Unjudged(format!(
                "its tool is gone or has changed, and more than {EARLIER_MAX} such contracts are named"
            ))),
        }
    }

    /// Returns the recorded attributes of the caller, and the subject of its call.
    fn inputs_of<'i>(
        &'i self,
        inputs: &'i DecisionInputs,
    ) -> Result<(&'i CallerInputs, Subject<'i>), NotJudged> {
        match (self.caller(inputs)?, &inputs.contract_digest, &inputs.item) {
            (Some(caller), Some(digest), _) => Ok((caller, Subject::Tool(digest))),
            (Some(_), None, Some(item)) if item.partial => {
                Err(NotJudged::Unjudged(NAMELESS.to_owned()))
            }
            (Some(caller), None, Some(item)) => Ok((caller, Subject::Item(item))),
            (Some(caller), None, None) if inputs.unchecked => Ok((caller, Subject::Nothing)),
            // A log of an earlier version.
            _ if inputs.denied => Err(NotJudged::Undecided),
            _ => Err(NotJudged::Unjudged("its inputs were not recorded".to_owned())),
        }
    }

    pub(super) fn judge(&self, log: &AgentLog) -> Result<Rehearsed, NotJudged> {
        let unjudged = |reason: &str| NotJudged::Unjudged(reason.to_owned());
        let inputs = log.decision_inputs.as_ref().ok_or(NotJudged::Undecided)?;
        let (known, subject) = self.inputs_of(inputs)?;
        let caller = Caller::authenticated(known.identity(&log.caller));
        let claimed = claimed(log, inputs);
        let at = judged_at(log, inputs);
        let digest = match subject {
            Subject::Tool(digest) => digest,
            Subject::Item(RequestedItem { kind, server, .. }) => {
                let item = Item { kind: *kind, server, id: &log.tool_name };
                let judged = self.authorizer.rehearse_item(&caller, &item, &claimed, &at);
                let is_known = !inputs.unchecked || judged.decision == Decision::Deny;
                return if is_known { Ok(judged) } else { Err(unjudged(STOPPED)) };
            }
            Subject::Nothing => {
                let denied = self.authorizer.rehearse_flags();
                return denied.ok_or_else(|| unjudged(UNCHECKED));
            }
        };
        let (authorizer, contract) = self.known(digest)?;
        if inputs.unchecked {
            let denied = authorizer.rehearse_access(&caller, contract);
            return denied.ok_or_else(|| unjudged(UNCHECKED));
        }
        let arguments = arguments(authorizer, contract, log)?;
        let call = AskedCall {
            caller: &caller,
            contract,
            arguments: &arguments,
            claimed: &claimed,
            at: &at,
        };
        authorizer.rehearse(&call, inputs).map_err(|error| NotJudged::Unjudged(error.to_string()))
    }

    /// Explains what the policy decides on a recorded call. The explanation of a request for a prompt or a resource
    /// has no steps.
    pub(super) fn explain(
        &self,
        log: &AgentLog,
        inputs: &DecisionInputs,
    ) -> Result<Explanation, NotJudged> {
        let (known, subject) = self.inputs_of(inputs)?;
        let Subject::Tool(digest) = subject else {
            return self.judge(log).map(|Rehearsed { decision, rule, reason, code, .. }| {
                Explanation { decision: decision.as_str(), rule, reason, code, steps: Vec::new() }
            });
        };
        let (authorizer, contract) = self.known(digest)?;
        let arguments = match inputs.unchecked {
            // It is denied before its arguments count, or not judged.
            true => self.judge(log).map(|_| json!({}))?,
            false => arguments(authorizer, contract, log)?,
        };
        let call = AskedCall {
            caller: &Caller::authenticated(known.identity(&log.caller)),
            contract,
            arguments: &arguments,
            claimed: &claimed(log, inputs),
            at: &judged_at(log, inputs),
        };
        // A window that was not recorded is told, and not taken for an empty one.
        let judged = authorizer.rehearse(&call, inputs);
        judged.map_err(|error| NotJudged::Unjudged(error.to_string()))?;
        let history = |_: &_| inputs.history.clone();
        Ok(authorizer.explain(&ToolStatus::Active, &call, None, &history))
    }
}

/// Returns the arguments, if all are known that the rules read.
fn arguments(
    authorizer: &Authorizer,
    contract: &ToolContract,
    log: &AgentLog,
) -> Result<Value, NotJudged> {
    let unjudged = |reason: &str| NotJudged::Unjudged(reason.to_owned());
    let reads = |pointer: &str| authorizer.reads_argument(contract.tool_id.as_str(), pointer);
    let tree = log.input.as_ref().map(|input| input.tree());
    let lacking = match &tree {
        Some(tree) if tree.get("omitted").is_some() => {
            Some("its arguments were too large to be kept")
        }
        Some(tree) if tree.get("digest").is_some() && !is_full(tree) => {
            Some("only the digest of its arguments was kept")
        }
        Some(tree) if tree.is_object() => None,
        _ => Some("its arguments were not kept"),
    };
    let tree = match (lacking, tree) {
        (None, Some(tree)) => tree,
        (reason, _) if reads("") => return Err(unjudged(reason.unwrap_or_default())),
        _ => return Ok(json!({})),
    };
    let mut redacted = Vec::new();
    pointers(&tree, &mut String::new(), &mut redacted);
    match redacted.iter().any(|pointer| reads(pointer)) {
        true => Err(unjudged("an argument that the rules read was redacted")),
        false => Ok(tree),
    }
}

/// Returns when the call was judged; without a record of it, when the call came.
fn judged_at(log: &AgentLog, inputs: &DecisionInputs) -> String {
    let came = || {
        let ended: jiff::Timestamp = log.timestamp.parse().ok()?;
        let took = jiff::SignedDuration::try_from_secs_f64(log.duration_ms / 1_000.0).ok()?;
        Some(format!("{:.3}", ended.checked_sub(took).ok()?))
    };
    let recorded = inputs.judged_at.clone();
    recorded.or_else(came).unwrap_or_else(|| log.timestamp.clone())
}

/// Returns the context that the agent claimed.
fn claimed(log: &AgentLog, inputs: &DecisionInputs) -> CallContext {
    CallContext {
        agent_id: log.agent_id.clone(),
        turn_index: log.turn_index,
        phase_id: log.phase_id.clone(),
        epic_id: log.epic_id.clone(),
        session_id: inputs.session_id.clone(),
        ..CallContext::default()
    }
}

/// Whether an input with the member `digest` has others too, so that it is not the digest of one.
fn is_full(tree: &Value) -> bool {
    tree.as_object().is_some_and(|members| members.len() > 1)
}

/// Adds the JSON pointers of all redacted texts.
fn pointers(tree: &Value, at: &mut String, found: &mut Vec<String>) {
    let length = at.len();
    match tree {
        Value::String(text) if text.contains(REDACTED) => found.push(at.clone()),
        Value::Object(members) => {
            for (name, member) in members {
                at.push('/');
                at.push_str(&name.replace('~', "~0").replace('/', "~1"));
                pointers(member, at, found);
                at.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                at.push_str(&format!("/{index}"));
                pointers(item, at, found);
                at.truncate(length);
            }
        }
        _ => (),
    }
}
