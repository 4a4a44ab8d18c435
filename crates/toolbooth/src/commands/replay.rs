//! `policy replay` and `policy explain --call`: judge recorded calls by other rules.
//!
//! Doc: policy.md#rehearsing

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolbooth_audit::reads::LogFilter;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::decision::DecisionInputs;
use toolbooth_policy::{Decision, Rehearsed};

use super::judge::{Judge, NotJudged, UNDECIDED};
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
/// Changed calls that one JSON document lists.
const LISTED_MAX: usize = 100_000;

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
    /// Who had to approve; absent in logs of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    approvers: Option<Approvers>,
}

impl Before {
    /// Whether it is decided in the same way now. Approvers that are not recorded count as the same.
    fn is_same(&self, after: &Rehearsed) -> bool {
        let by_same = self.approvers.is_none() || self.approvers == after.approvers;
        self.decision == after.decision && by_same
    }
}

/// Calls that change alike.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    tool: String,
    caller: String,
    before: Before,
    /// The decision, who must approve, and the rule.
    after: (Decision, Option<Approvers>, String),
}

/// The findings of a replay so far.
#[derive(Debug, Default)]
struct Findings {
    changed: u64,
    same: u64,
    listed: Vec<Changed>,
    /// The number of calls that change, by tool, caller, and both decisions.
    kinds: BTreeMap<Kind, u64>,
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
            let changed = findings.add(log, judge.judge(log));
            findings.tell(changed, format);
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
    Ok(whole && findings.changed == 0)
}

/// Returns the time a millisecond after a time of a record.
fn after(at: &str) -> String {
    let next = at
        .parse()
        .ok()
        .and_then(|at: jiff::Timestamp| at.checked_add(jiff::SignedDuration::from_millis(1)).ok());
    next.map_or_else(|| at.to_owned(), |next| format!("{next:.3}"))
}

/// Explains a past call: the recorded decision, and the decision of the policy in force on the same
/// inputs. Runs no tool.
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
            Err(not_judged) => (Value::Null, not_judged.reason().into()),
        };
        // What was known of the caller is shown, also where the log names it by its digest.
        let mut inputs = inputs.clone();
        if let Ok(Some(caller)) = judge.caller(&inputs) {
            inputs = DecisionInputs { caller: Some(caller.clone()), ..inputs };
        }
        let (decision, call) = (before(&inputs).decision, &log.call_id);
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
        before(inputs).decision.as_str(),
        if is_same { ", in force" } else { "" }
    ));
    match now {
        Ok(now) => {
            output::line(&format!("now, with the same inputs (policy {version}):"));
            policy::print(&now);
        }
        Err(not_judged) => {
            output::line(&format!("it cannot be judged again: {}", not_judged.reason()));
        }
    }
    Ok(whole)
}

/// Returns the recorded decision.
fn before(inputs: &DecisionInputs) -> Before {
    let of = |decision| Before { decision, rule: inputs.rule.clone(), approvers: None };
    match (&inputs.approval, inputs.denied) {
        (Some(rule), false) => {
            let (rule, approvers) = (rule.clone(), inputs.approvers);
            Before { decision: Decision::Approval, rule, approvers }
        }
        (None, false) => of(Decision::Permit),
        (_, true) => of(Decision::Deny),
    }
}

/// Returns a decision with those who must approve, if they are known.
fn written(decision: Decision, approvers: Option<Approvers>) -> String {
    let decision = decision.as_str();
    approvers.map_or_else(|| decision.to_owned(), |by| format!("{decision} of `{}`", by.as_str()))
}

impl Findings {
    fn not_judged(&mut self, reason: String) {
        *self.unjudged.entry(reason).or_default() += 1;
    }

    /// Counts a call; returns it if its decision would change.
    fn add(&mut self, log: &AgentLog, judged: Result<Rehearsed, NotJudged>) -> Option<Changed> {
        let before = log.decision_inputs.as_ref().map(before);
        let (before, after) = match (before, judged) {
            (Some(before), Ok(after)) if before.is_same(&after) => {
                self.same += 1;
                return None;
            }
            (Some(before), Ok(after)) => (before, after),
            (None, Ok(_)) => {
                self.not_judged(UNDECIDED.to_owned());
                return None;
            }
            (_, Err(not_judged)) => {
                self.not_judged(not_judged.reason());
                return None;
            }
        };
        self.changed += 1;
        let kind = Kind {
            tool: log.tool_name.clone(),
            caller: log.caller.clone(),
            before: before.clone(),
            after: (after.decision, after.approvers, after.rule.clone()),
        };
        *self.kinds.entry(kind).or_default() += 1;
        Some(Changed {
            call_id: log.call_id.clone(),
            tool_id: log.tool_name.clone(),
            caller: log.caller.clone(),
            at: log.timestamp.clone(),
            before,
            after,
        })
    }

    /// Prints a changed call, or keeps it for the JSON document.
    fn tell(&mut self, changed: Option<Changed>, format: Format) {
        let Some(changed) = changed else { return };
        if format.is_json() {
            if self.listed.len() < LISTED_MAX {
                self.listed.push(changed);
            }
            return;
        }
        let Changed { call_id, tool_id, caller, at, before, after } = changed;
        output::foreign(&format!(
            "{at} {call_id} {tool_id} by {caller}: {} by `{}`, now {} by `{}`: {}",
            written(before.decision, before.approvers),
            before.rule,
            written(after.decision, after.approvers),
            after.rule,
            after.reason
        ));
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
                "changesOmitted": self.changed.saturating_sub(self.listed.len() as u64),
                "reasons": reasons,
            }));
        }
        let rows: Vec<Vec<String>> = self
            .kinds
            .iter()
            .map(|(Kind { tool, caller, before, after: (decision, approvers, rule) }, calls)| {
                vec![
                    tool.clone(),
                    caller.clone(),
                    format!("{} by `{}`", written(before.decision, before.approvers), before.rule),
                    format!("{} by `{rule}`", written(*decision, *approvers)),
                    calls.to_string(),
                ]
            })
            .collect();
        if !rows.is_empty() {
            output::table(&["TOOL", "CALLER", "BEFORE", "AFTER", "CALLS"], &rows);
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
