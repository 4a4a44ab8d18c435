//! `policy replay` and `policy explain --call`: judge recorded calls by other rules.
//!
//! Doc: policy.md#rehearsing

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::LogFilter;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::decision::DecisionInputs;
use toolbooth_contracts::secret::REDACTED;
use toolbooth_contracts::{CallContext, Caller, ToolContract};
use toolbooth_policy::{
    AskedCall, Authorizer, Decision, EngineTool, Explanation, Rehearsed, ToolStatus,
};
use toolbooth_proxy::{Operations, World};

use super::{policy, records, tools};
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::times::time;
use crate::{rules, settings};

/// Logs that are read at once.
const PAGE: usize = 5_000;
/// Logs of one call that are read.
const LOGS_MAX: usize = 100;
/// Changed calls that are listed.
const LISTED_MAX: usize = 1_000;

/// A call whose decision would change.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changed {
    call_id: String,
    tool_id: String,
    caller: String,
    at: String,
    before: Before,
    after: Rehearsed,
}

/// The recorded decision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Before {
    decision: Decision,
    rule: String,
}

/// Calls that change alike.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    tool: String,
    caller: String,
    before: Before,
    /// The decision and the rule.
    after: (Decision, String),
}

/// What a replay has found so far.
#[derive(Debug, Default)]
struct Findings {
    changed: u64,
    same: u64,
    listed: Vec<Changed>,
    /// The calls that change, by tool, caller, and both decisions, with an example.
    kinds: BTreeMap<Kind, (u64, String)>,
    unjudged: BTreeMap<String, u64>,
}

/// Judges the calls since a time by the rules at `policy`, or by those of the configuration.
pub(super) async fn replay(
    offline: OfflineGateway,
    since: &str,
    policy: Option<&Path>,
    format: Format,
) -> Result<bool, Failure> {
    let since = time(Some(since), "--since")?;
    let rules = match policy {
        Some(path) => Some(rules::read_at(&offline.loaded, path, "--policy")?),
        None => rules::read(&offline.loaded)?,
    };
    let operations = records::need(&offline.loaded).await?;
    tools::everything(&offline).await;
    let world = offline.worlds.now();
    let base = settings::without_rules(&offline.loaded)?;
    let authorizer = match rules {
        Some(rules) => base.with_engine(Arc::new(rules)),
        None => base,
    };
    let (authorizer, fit) = world.bind(&authorizer);
    offline.close().await;
    rules::check(&fit)?;
    rules::report_warnings(&fit);
    let mut judge = Judge::of(authorizer, &world);
    let mut findings = Findings::default();
    let (mut until, mut seen) = (None, BTreeSet::new());
    let mut whole = true;
    loop {
        let filter = LogFilter {
            since: since.clone(),
            until: until.clone(),
            limit: PAGE,
            ..LogFilter::default()
        };
        let page = operations.agent_logs(filter).await.map_err(records::unreadable)?;
        whole &= records::whole(&page.damaged);
        // Pages are divided by time, and a time may be that of several logs.
        let fresh: Vec<&AgentLog> =
            page.found.iter().filter(|log| !seen.contains(&log.id)).collect();
        judge.learn(&operations, fresh.iter().copied()).await?;
        for log in &fresh {
            findings.add(log, judge.judge(log));
        }
        let oldest = page.found.iter().map(|log| log.timestamp.as_str()).min();
        let (Some(oldest), false) = (oldest, fresh.is_empty()) else { break };
        let next = after(oldest);
        seen = page
            .found
            .iter()
            .filter(|log| log.timestamp < next)
            .map(|log| log.id.clone())
            .collect();
        until = Some(next);
    }
    findings.print(format, judge.authorizer.version());
    Ok(whole)
}

/// Returns the time a millisecond after a time of a record.
fn after(at: &str) -> String {
    let next = at
        .parse()
        .ok()
        .and_then(|at: jiff::Timestamp| at.checked_add(jiff::SignedDuration::from_millis(1)).ok());
    next.map_or_else(|| at.to_owned(), |next| format!("{next:.3}"))
}

/// The rules by which calls are judged, and the contracts that are known, by their digests.
struct Judge<'w> {
    authorizer: Authorizer,
    contracts: HashMap<&'w str, &'w Arc<ToolContract>>,
    /// Contracts of tools that are gone or have changed, with the rules bound to them; else why there is none.
    earlier: HashMap<String, Result<(Authorizer, Arc<ToolContract>), String>>,
}

/// Contracts that the tools had earlier, at most.
const EARLIER_MAX: usize = 10_000;

/// Why a call without inputs is not judged.
const UNDECIDED: &str = "it was refused before its inputs were recorded";

/// Why a call whose contract is not known is not judged.
const GONE: &str = "its tool is gone or has changed, and the contract that it had was not kept";

/// Why a call is not judged.
enum NotJudged {
    /// Rules do not decide on it: it was refused before.
    Undecided,
    /// It cannot be judged, for this reason.
    Unjudged(String),
}

impl<'w> Judge<'w> {
    fn of(authorizer: Authorizer, world: &'w World) -> Self {
        let tools = world.registry().iter();
        let contracts = tools.map(|tool| (tool.contract_digest(), tool.contract())).collect();
        Self { authorizer, contracts, earlier: HashMap::new() }
    }

    /// Reads the contracts that logs name and that no tool has any more.
    async fn learn(
        &mut self,
        operations: &Operations,
        logs: impl Iterator<Item = &AgentLog>,
    ) -> Result<(), Failure> {
        for log in logs {
            let inputs = log.decision_inputs.as_ref();
            let Some(digest) = inputs.and_then(|inputs| inputs.contract_digest.as_ref()) else {
                continue;
            };
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

    /// Returns the contract with this digest, and the rules that are bound to it.
    fn known(&self, digest: &str) -> Result<(&Authorizer, &Arc<ToolContract>), NotJudged> {
        if let Some(contract) = self.contracts.get(digest) {
            return Ok((&self.authorizer, contract));
        }
        match self.earlier.get(digest) {
            Some(Ok((authorizer, contract))) => Ok((authorizer, contract)),
            Some(Err(reason)) => Err(NotJudged::Unjudged(reason.clone())),
            None => Err(NotJudged::Unjudged(GONE.to_owned())),
        }
    }

    fn judge(&self, log: &AgentLog) -> Result<(Before, Rehearsed), NotJudged> {
        let unjudged = |reason: &str| NotJudged::Unjudged(reason.to_owned());
        let inputs = log.decision_inputs.as_ref().ok_or(NotJudged::Undecided)?;
        let (Some(digest), Some(caller)) = (&inputs.contract_digest, &inputs.caller) else {
            // A denial before the arguments counted, or a log of an earlier version.
            return Err(match inputs.denied {
                true => NotJudged::Undecided,
                false => unjudged("its inputs were not recorded"),
            });
        };
        let (authorizer, contract) = self.known(digest)?;
        let arguments = arguments(authorizer, log)?;
        let caller = Caller::authenticated(caller.identity(&log.caller));
        let claimed = claimed(log, inputs);
        let call = AskedCall {
            caller: &caller,
            contract,
            arguments: &arguments,
            claimed: &claimed,
            at: &judged_at(log, inputs),
        };
        let after = authorizer.rehearse(&call, inputs);
        let after = after.map_err(|window| {
            NotJudged::Unjudged(format!("the window `{window}` was not recorded with it"))
        })?;
        Ok((before(inputs), after))
    }

    /// Explains what the policy decides on a recorded call.
    fn explain(&self, log: &AgentLog, inputs: &DecisionInputs) -> Result<Explanation, NotJudged> {
        let (Some(digest), Some(caller)) = (&inputs.contract_digest, &inputs.caller) else {
            return Err(match inputs.denied {
                true => NotJudged::Undecided,
                false => NotJudged::Unjudged("its inputs were not recorded".to_owned()),
            });
        };
        let (authorizer, contract) = self.known(digest)?;
        let arguments = arguments(authorizer, log)?;
        let call = AskedCall {
            caller: &Caller::authenticated(caller.identity(&log.caller)),
            contract,
            arguments: &arguments,
            claimed: &claimed(log, inputs),
            at: &judged_at(log, inputs),
        };
        // A window that was not recorded is told, and not taken for an empty one.
        authorizer.rehearse(&call, inputs).map_err(|window| {
            NotJudged::Unjudged(format!("the window `{window}` was not recorded with it"))
        })?;
        let history = |_: &_| inputs.history.clone();
        Ok(authorizer.explain(&ToolStatus::Active, &call, None, &history))
    }
}

/// Returns the arguments, if all are known that the rules read.
fn arguments(authorizer: &Authorizer, log: &AgentLog) -> Result<Value, NotJudged> {
    let unjudged = |reason: &str| NotJudged::Unjudged(reason.to_owned());
    let reads = |pointer: &str| authorizer.reads_argument(&log.tool_name, pointer);
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

/// Returns what the agent claimed.
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

/// Explains a past call: what was decided on it, and what the policy in force would decide with the same
/// inputs. Nothing runs.
pub(super) async fn explain(
    offline: OfflineGateway,
    call: &str,
    format: Format,
) -> Result<bool, Failure> {
    let operations = records::need(&offline.loaded).await?;
    let filter = LogFilter { call: Some(call.to_owned()), limit: LOGS_MAX, ..LogFilter::default() };
    let page = operations.agent_logs(filter).await.map_err(records::unreadable)?;
    let whole = records::whole(&page.damaged);
    let decided = |log: &&AgentLog| log.decision_inputs.is_some();
    let log = page.found.iter().filter(decided).max_by(|a, b| a.timestamp.cmp(&b.timestamp));
    let Some((log, inputs)) = log.and_then(|log| Some((log, log.decision_inputs.as_ref()?))) else {
        let message = format!("no decision on the call `{}` is recorded", call.escape_debug());
        return Err(Failure::new(FAILED, "not-found", message)
            .hint("`toolbooth logs query` shows the calls that are recorded"));
    };
    tools::everything(&offline).await;
    let world = offline.worlds.now();
    offline.close().await;
    let mut judge = Judge::of(world.policy().clone(), &world);
    judge.learn(&operations, std::iter::once(log)).await?;
    let now = judge.explain(log, inputs);
    let version = judge.authorizer.version();
    let is_same = version == inputs.policy_version;
    if format.is_json() {
        let (now, why) = match now {
            Ok(now) => (json!(now), Value::Null),
            Err(NotJudged::Unjudged(why)) => (Value::Null, why.into()),
            Err(NotJudged::Undecided) => (Value::Null, UNDECIDED.into()),
        };
        let (decision, call) = (before(inputs).decision, &log.call_id);
        output::json(&json!({
            "callId": call, "toolId": log.tool_name, "caller": log.caller, "at": log.timestamp,
            "decision": decision, "inputs": inputs, "policyVersion": version, "now": now,
            "unjudged": why,
        }));
        return Ok(whole);
    }
    let DecisionInputs { rule, reason, policy_version, .. } = inputs;
    output::foreign(&format!(
        "{} {} by {}: {} by `{rule}`: {reason} (policy {policy_version}{})",
        log.timestamp,
        log.tool_name,
        log.caller,
        word(before(inputs).decision),
        if is_same { ", in force" } else { "" }
    ));
    match now {
        Ok(now) => {
            output::line(&format!("now, with the same inputs (policy {version}):"));
            policy::print(&now);
        }
        Err(NotJudged::Unjudged(why)) => {
            output::line(&format!("it cannot be judged again: {why}"));
        }
        Err(NotJudged::Undecided) => {
            output::line(&format!("it cannot be judged again: {UNDECIDED}"));
        }
    }
    Ok(whole)
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

/// Returns the recorded decision.
fn before(inputs: &DecisionInputs) -> Before {
    match (&inputs.approval, inputs.denied) {
        (Some(rule), false) => Before { decision: Decision::Approval, rule: rule.clone() },
        (None, false) => Before { decision: Decision::Permit, rule: inputs.rule.clone() },
        (_, true) => Before { decision: Decision::Deny, rule: inputs.rule.clone() },
    }
}

impl Findings {
    fn add(&mut self, log: &AgentLog, judged: Result<(Before, Rehearsed), NotJudged>) {
        let (before, after) = match judged {
            Ok((before, after)) if before.decision == after.decision => {
                self.same += 1;
                return;
            }
            Ok(changed) => changed,
            Err(not_judged) => {
                let reason = match not_judged {
                    NotJudged::Undecided => UNDECIDED.to_owned(),
                    NotJudged::Unjudged(reason) => reason,
                };
                *self.unjudged.entry(reason).or_default() += 1;
                return;
            }
        };
        self.changed += 1;
        let kind = Kind {
            tool: log.tool_name.clone(),
            caller: log.caller.clone(),
            before: before.clone(),
            after: (after.decision, after.rule.clone()),
        };
        let known = self.kinds.entry(kind).or_insert((0, log.call_id.clone()));
        known.0 += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(Changed {
                call_id: log.call_id.clone(),
                tool_id: log.tool_name.clone(),
                caller: log.caller.clone(),
                at: log.timestamp.clone(),
                before,
                after,
            });
        }
    }

    fn print(&self, format: Format, version: &str) {
        let unjudged: u64 = self.unjudged.values().sum();
        if format.is_json() {
            let reasons: Vec<Value> = self
                .unjudged
                .iter()
                .map(|(reason, calls)| json!({ "reason": reason, "calls": calls }))
                .collect();
            return output::json(&json!({
                "policyVersion": version,
                "changed": self.changed,
                "same": self.same,
                "unjudged": unjudged,
                "changes": self.listed,
                "reasons": reasons,
            }));
        }
        let rows: Vec<Vec<String>> = self
            .kinds
            .iter()
            .map(|(Kind { tool, caller, before, after: (decision, rule) }, (calls, example))| {
                vec![
                    tool.clone(),
                    caller.clone(),
                    format!("{} by `{}`", word(before.decision), before.rule),
                    format!("{} by `{rule}`", word(*decision)),
                    calls.to_string(),
                    example.clone(),
                ]
            })
            .collect();
        if !rows.is_empty() {
            output::table(&["TOOL", "CALLER", "BEFORE", "AFTER", "CALLS", "EXAMPLE"], &rows);
        }
        for (reason, calls) in &self.unjudged {
            output::line(&format!("{calls} call(s) cannot be judged: {reason}"));
        }
        output::line(&format!(
            "policy {version}: {} changed, {} same, {unjudged} unjudged",
            self.changed, self.same
        ));
    }
}

fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Permit => "permit",
        Decision::Approval => "approval",
        Decision::Deny => "deny",
    }
}
