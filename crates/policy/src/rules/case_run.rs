//! Runs cases by the rules that are bound to tools.
//!
//! Doc: policy.md#cases

use std::collections::HashMap;

use serde_json::Value;
use toolbooth_contracts::history::seen;
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, Identity};

use super::arguments::{ArgumentTypes, escaped};
use super::bind::BoundRules;
use super::cases::{Case, Decision, TIME, Told};
use crate::caller::Grant;
use crate::engine::{EngineTool, Question, Verdict};
use crate::rule_finding::{RuleCode, RuleFinding};

impl BoundRules {
    /// Runs the cases of the set, those of unknown tools excepted.
    pub(super) fn run_cases(&self, tools: &[EngineTool<'_>]) -> Vec<RuleFinding> {
        let tools: HashMap<&str, &EngineTool<'_>> =
            tools.iter().map(|tool| (tool.contract.tool_id.as_str(), tool)).collect();
        let mut findings = Vec::new();
        for Case { place, told } in &self.set.cases {
            let Some(tool) = tools.get(told.tool.as_str()) else {
                let message =
                    format!("the case `{}` is about `{}`, no known tool", told.name, told.tool);
                findings.push(RuleFinding::new(RuleCode::UnboundCase, place.clone(), message));
                continue;
            };
            // Such a tool is quarantined, and its findings tell why.
            if self.tools.get(&told.tool).is_some_and(|bound| bound.failure.is_some()) {
                continue;
            }
            if let Some(message) = self.failure(told, tool) {
                let message = format!("the case `{}` fails: {message}", told.name);
                findings.push(RuleFinding::new(RuleCode::Case, place.clone(), message));
            }
        }
        findings
    }

    /// Returns what is otherwise than a case expects.
    fn failure(&self, told: &Told, tool: &EngineTool<'_>) -> Option<String> {
        if let Some(message) = unknown_argument(told, tool) {
            return Some(message);
        }
        let identity = Identity::named(&told.caller)?;
        let identity = identity.with_groups(told.groups.clone()).with_scopes(told.scopes.clone());
        let grants: Vec<Grant> =
            told.grants.iter().filter_map(|grant| Grant::parse(grant).ok()).collect();
        let claimed = CallContext {
            agent_id: told.claimed.agent_id.clone(),
            phase_id: told.claimed.phase_id.clone(),
            epic_id: told.claimed.epic_id.clone(),
            session_id: told.claimed.session_id.clone(),
            turn_index: told.claimed.turn_index,
            ..CallContext::default()
        };
        let arguments = Value::Object(told.args.clone());
        let word = TrustLevel::parse(&tool.contract.policy.trust_level);
        let question = Question {
            caller: &identity,
            contract: tool.contract,
            arguments: &arguments,
            claimed: &claimed,
            grants: &grants,
            trust: told.trust.or(word).unwrap_or(TrustLevel::Untrusted),
            at: told.at.as_deref().unwrap_or(TIME),
        };
        let counted = self.counted(&question);
        let own = counted.as_deref().unwrap_or_default();
        let applying = self.applying(&question).and_then(|(applying, historic)| match historic {
            Some(rules) => rules.applying(&seen(&rules.windows, own, &told.earlier())),
            None => Ok(applying),
        });
        let (rules, decision, why) = match (&applying, &counted) {
            (Ok(_), Err(uncountable)) => {
                let rule = format!("`history.{}`", uncountable.window);
                (Vec::new(), Decision::Deny, format!("by {rule} ({})", uncountable.reason))
            }
            (Ok(applying), Ok(_)) => {
                let all = applying.permits.iter().chain(&applying.forbids);
                let rules: Vec<&str> = all.map(|i| self.set.rule(*i).id()).collect();
                let (decision, why) = match applying.verdict(&self.set) {
                    Verdict::Permit { rule, approval: None } => (Decision::Permit, rule),
                    Verdict::Permit { approval: Some(need), .. } => (Decision::Approval, need.rule),
                    Verdict::Deny { rule, .. } => (Decision::Deny, rule),
                    // The windows are given.
                    Verdict::Depends(_) => (Decision::Error, "history".to_owned()),
                };
                (rules, decision, format!("by `{why}`"))
            }
            (Err(error), _) => (Vec::new(), Decision::Error, format!("({error})")),
        };
        if let Some(expected) = told.decision.filter(|expected| *expected != decision) {
            let (expected, decision) = (expected.as_str(), decision.as_str());
            return Some(format!("`{expected}` is expected, and it is `{decision}` {why}"));
        }
        if let Some(missing) = told.applying.iter().find(|rule| !rules.contains(&rule.as_str())) {
            return Some(format!("`{missing}` does not apply; these do: {}", rules.join(", ")));
        }
        let other = told.not_match.iter().find(|rule| rules.contains(&rule.as_str()))?;
        Some(format!("`{other}` applies"))
    }
}

/// Returns what is wrong with the first argument of a case that the tool does not have, or that is probably misspelt: the
/// decision on such a call tells nothing.
fn unknown_argument(told: &Told, tool: &EngineTool<'_>) -> Option<String> {
    if told.args.is_empty() {
        return None;
    }
    let schema = &tool.contract.input_schema;
    let arguments = ArgumentTypes::of(schema);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let is_unknown = |name: &&String| {
        arguments.at(&format!("/{}", escaped(name))) == Some(None)
            && (is_closed || nearest(name, arguments.names()).is_some())
    };
    let unknown = told.args.keys().find(is_unknown)?;
    let message = format!("`{}` has no argument `{unknown}`", told.tool);
    Some(match nearest(unknown, arguments.names()) {
        Some(near) => format!("{message}; is `{near}` meant?"),
        None => message,
    })
}
