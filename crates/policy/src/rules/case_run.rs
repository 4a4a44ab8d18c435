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
use super::cases::{Case, CaseFields, Decision, TIME};
use crate::caller::Grant;
use crate::engine::{EngineTool, Question, Verdict};
use crate::rule_finding::{RuleCode, RuleFinding};

impl BoundRules {
    /// Runs the cases of the set, those of unknown tools excepted.
    pub(super) fn run_cases(&self, tools: &[EngineTool<'_>]) -> Vec<RuleFinding> {
        let tools: HashMap<&str, &EngineTool<'_>> =
            tools.iter().map(|tool| (tool.contract.tool_id.as_str(), tool)).collect();
        let mut findings = Vec::new();
        for Case { location, fields } in &self.set.cases {
            let Some(tool) = tools.get(fields.tool.as_str()) else {
                let message =
                    format!("the case `{}` is about `{}`, no known tool", fields.name, fields.tool);
                findings.push(RuleFinding::new(RuleCode::UnboundCase, location.clone(), message));
                continue;
            };
            // Such a tool is quarantined, and its findings tell why.
            if self.tools.get(&fields.tool).is_some_and(|bound| bound.failure.is_some()) {
                continue;
            }
            if let Some(message) = self.failure(fields, tool) {
                let message = format!("the case `{}` fails: {message}", fields.name);
                findings.push(RuleFinding::new(RuleCode::Case, location.clone(), message));
            }
        }
        findings
    }

    /// Returns the difference between the decision and the expectation of a case.
    fn failure(&self, fields: &CaseFields, tool: &EngineTool<'_>) -> Option<String> {
        if let Some(message) = unknown_argument(fields, tool) {
            return Some(message);
        }
        let identity = Identity::named(&fields.caller)?;
        let identity =
            identity.with_groups(fields.groups.clone()).with_scopes(fields.scopes.clone());
        let grants: Vec<Grant> =
            fields.grants.iter().filter_map(|grant| Grant::parse(grant).ok()).collect();
        let claimed = CallContext {
            agent_id: fields.claimed.agent_id.clone(),
            phase_id: fields.claimed.phase_id.clone(),
            epic_id: fields.claimed.epic_id.clone(),
            session_id: fields.claimed.session_id.clone(),
            turn_index: fields.claimed.turn_index,
            ..CallContext::default()
        };
        let arguments = Value::Object(fields.args.clone());
        let word = TrustLevel::parse(&tool.contract.policy.trust_level);
        let question = Question {
            caller: &identity,
            contract: tool.contract,
            arguments: &arguments,
            claimed: &claimed,
            grants: &grants,
            trust: fields.trust.or(word).unwrap_or(TrustLevel::Untrusted),
            at: fields.at.as_deref().unwrap_or(TIME),
        };
        let counted = self.counted(&question);
        let own = counted.as_deref().unwrap_or_default();
        let applying = self.applying(&question).and_then(|(applying, historic)| match historic {
            Some(rules) => rules.applying(&seen(&rules.windows, own, &fields.earlier())),
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
        if let Some(expected) = fields.decision.filter(|expected| *expected != decision) {
            let (expected, decision) = (expected.as_str(), decision.as_str());
            return Some(format!("`{expected}` is expected, and it is `{decision}` {why}"));
        }
        if let Some(missing) = fields.applying.iter().find(|rule| !rules.contains(&rule.as_str())) {
            return Some(format!("`{missing}` does not apply; these do: {}", rules.join(", ")));
        }
        let other = fields.not_match.iter().find(|rule| rules.contains(&rule.as_str()))?;
        Some(format!("`{other}` applies"))
    }
}

/// Describes the first argument of a case that the tool does not have, or that is probably misspelt. The decision on
/// such a call has no meaning.
fn unknown_argument(fields: &CaseFields, tool: &EngineTool<'_>) -> Option<String> {
    if fields.args.is_empty() {
        return None;
    }
    let schema = &tool.contract.input_schema;
    let arguments = ArgumentTypes::of(schema);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let is_unknown = |name: &&String| {
        arguments.at(&format!("/{}", escaped(name))) == Some(None)
            && (is_closed || nearest(name, arguments.names()).is_some())
    };
    let unknown = fields.args.keys().find(is_unknown)?;
    let message = format!("`{}` has no argument `{unknown}`", fields.tool);
    Some(match nearest(unknown, arguments.names()) {
        Some(near) => format!("{message}; is `{near}` meant?"),
        None => message,
    })
}
