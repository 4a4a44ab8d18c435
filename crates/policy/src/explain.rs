//! Explains a decision: each step with what it saw and its result, by the code that decides.
//!
//! Path: 3, 5. Doc: policy.md#explaining

use serde::Serialize;
use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::History;

use crate::authorizer::{Authorizer, ToolStatus};
use crate::denial::{Denial, DenialRule};
use crate::engine::ApprovalNeed;
use crate::permit::{AskedCall, Permit};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepResult {
    /// The call goes on.
    Passes,
    /// The step does not hold here.
    Skipped,
    /// The call needs an approval.
    Asks,
    /// The call is denied.
    Denies,
}

/// One step of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedStep {
    /// The step.
    pub step: &'static str,
    /// The inputs of the step.
    pub saw: String,
    /// Its result.
    pub result: StepResult,
}

/// A decision with its steps, up to the one that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `permit`, `approval` or `deny`.
    pub decision: &'static str,
    /// The rule that decided.
    pub rule: String,
    /// The reason.
    pub reason: String,
    /// The code that the call would get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The steps.
    pub steps: Vec<ExplainedStep>,
}

/// The steps in their order.
const STEPS: [&str; 10] = [
    "flags",
    "tool-set",
    "whitelist",
    "status",
    "arguments",
    "permissions",
    "rules",
    "trust",
    "approval",
    "charges",
];

impl Authorizer {
    /// Explains the decision on a call. `objection` is the guard's finding about its arguments. If the
    /// permit depends on windows, `history` returns their values.
    #[must_use]
    pub fn explain(
        &self,
        status: &ToolStatus,
        call: &AskedCall<'_>,
        objection: Option<&str>,
        history: &dyn Fn(&Permit) -> History,
    ) -> Explanation {
        let mut trace = Vec::new();
        let access = self.access(call.caller, call.contract, status);
        let decided = match (access, objection) {
            (Err(denial), _) => Err(denial),
            (Ok(_), Some(objection)) => {
                return self.told("arguments", status, call, &trace, |steps| Explanation {
                    decision: "deny",
                    rule: "arguments".to_owned(),
                    reason: objection.to_owned(),
                    code: Some(ErrorCode::InvalidArgs),
                    steps,
                });
            }
            (Ok(access), None) => {
                let permit = self.authorize_traced(access, call, Some(&mut trace));
                permit.and_then(|permit| match permit.windows() {
                    None => Ok(permit),
                    Some(_) => {
                        trace.clear();
                        self.complete(&permit, &history(&permit), Some(&mut trace))
                    }
                })
            }
        };
        match decided {
            Err(denial) => self.told(step_of(&denial), status, call, &trace, |steps| Explanation {
                decision: "deny",
                rule: denial.rule.as_str().to_owned(),
                reason: match &denial.cause {
                    Some(cause) => format!("{}: {cause}", denial.reason),
                    None => denial.reason.clone(),
                },
                code: Some(denial.code),
                steps,
            }),
            Ok(permit) => {
                let mut told = self.told("", status, call, &trace, |steps| Explanation {
                    decision: "permit",
                    rule: permit.rule().to_owned(),
                    reason: "permitted".to_owned(),
                    code: None,
                    steps,
                });
                told.add_permit(&permit);
                told
            }
        }
    }

    /// Returns the explanation with the steps up to the one that denied.
    fn told(
        &self,
        denying: &str,
        status: &ToolStatus,
        call: &AskedCall<'_>,
        trace: &[String],
        explanation: impl FnOnce(Vec<ExplainedStep>) -> Explanation,
    ) -> Explanation {
        let mut steps = Vec::new();
        for step in STEPS {
            let is_last = step == denying;
            let passes = match (is_last, step) {
                (true, _) => StepResult::Denies,
                (false, "whitelist") if !self.flags.tools_policy => StepResult::Skipped,
                (false, "rules") if self.engine.is_none() => StepResult::Skipped,
                _ => StepResult::Passes,
            };
            let saw = self.saw(step, status, call, trace);
            steps.push(ExplainedStep { step, saw, result: passes });
            if is_last {
                break;
            }
        }
        explanation(steps)
    }

    /// Returns the inputs of a step.
    fn saw(
        &self,
        step: &str,
        status: &ToolStatus,
        call: &AskedCall<'_>,
        trace: &[String],
    ) -> String {
        let AskedCall { caller, contract, .. } = *call;
        let tool = contract.tool_id.as_str();
        let rights = self.rights(caller);
        let list = |items: &[&str]| match items {
            [] => "none".to_owned(),
            items => items.join(", "),
        };
        let on = |is_on| if is_on { "on" } else { "off" };
        match step {
            "flags" => format!(
                "mcp_tools {}, tools_policy {}",
                on(self.flags.mcp_tools),
                on(self.flags.tools_policy)
            ),
            "tool-set" => match rights {
                None => format!("`{}` has no rights", caller.name()),
                Some(rights) if rights.sees(tool) => format!("`{}` sees `{tool}`", caller.name()),
                Some(_) => format!("`{tool}` is hidden from `{}`", caller.name()),
            },
            "whitelist" => match self.whitelist.allows(tool) {
                true => format!("`{tool}` is on it"),
                false => format!("`{tool}` is not on it"),
            },
            "status" => match status {
                ToolStatus::Active if self.pauses().has_all() => "all calls are paused".to_owned(),
                ToolStatus::Active if self.pauses().has_caller(caller.name()) => {
                    format!("`{}` is paused", caller.name())
                }
                ToolStatus::Active => "active".to_owned(),
                ToolStatus::Quarantined(reason) => format!("quarantined: {reason}"),
                ToolStatus::Paused => format!("`{tool}` or its server is paused"),
            },
            "arguments" => "the arguments and the input schema".to_owned(),
            "permissions" => {
                let needed: Vec<&str> = contract.permissions.iter().map(String::as_str).collect();
                let grants = rights.map(|rights| rights.grants.as_slice()).unwrap_or_default();
                let grants: Vec<&str> = grants.iter().map(crate::Grant::as_str).collect();
                format!("needed: {}; granted: {}", list(&needed), list(&grants))
            }
            "rules" => match (&self.engine, trace) {
                (None, _) => "there are none".to_owned(),
                (Some(_), []) => "no rule applies".to_owned(),
                (Some(_), trace) => trace.join(", "),
            },
            "trust" => {
                let word = &contract.policy.trust_level;
                format!("`{word}` counts as {}", self.trust_levels.of(word).as_str())
            }
            "approval" => match self.approval_setting(contract) {
                None => "the settings ask for none".to_owned(),
                Some(need) => asks(&need),
            },
            _ => "no limits".to_owned(),
        }
    }
}

/// Returns which rule asks for an approval, and of whom.
fn asks(need: &ApprovalNeed) -> String {
    let of = match need.by {
        Approvers::Caller => "the caller itself or an operator",
        Approvers::One => "an operator",
        Approvers::Two => "two operators",
    };
    format!("`{}` asks {of}", need.rule)
}

impl Explanation {
    /// Adds the approval and the charges of a permit, and the decision of the rules in shadow mode.
    fn add_permit(&mut self, permit: &Permit) {
        for step in &mut self.steps {
            if let ("rules", Some(shadow)) = (step.step, permit.shadow()) {
                let DecisionSummary { rule, reason } = shadow;
                step.saw = format!("{}; in shadow: `{rule}`: {reason}", step.saw);
            }
            match (step.step, permit.approval()) {
                ("approval", Some(need)) => {
                    step.saw = asks(need);
                    step.result = StepResult::Asks;
                }
                ("charges", _) if !permit.charges().is_empty() => {
                    let charges = permit.charges().iter().map(|charge| match charge {
                        Charge::Slots { max } => format!("at most {max} at once"),
                        Charge::Rate { per_min } => format!("{per_min} calls a minute"),
                        Charge::Budget { key, .. } => format!("the budget `{key}`"),
                    });
                    let charges = charges.collect::<Vec<_>>().join(", ");
                    step.saw = format!("{charges} (what is used up is counted when a call runs)");
                }
                _ => (),
            }
        }
        if let Some(need) = permit.approval() {
            self.decision = "approval";
            self.rule = need.rule.clone();
            self.reason = "an approval is needed".to_owned();
            self.code = Some(ErrorCode::ApprovalRequired);
        } else if let Some((code, reason)) = permit.charges().iter().find_map(unpayable) {
            self.decision = "deny";
            self.rule = "charges".to_owned();
            self.reason = reason;
            self.code = Some(code);
            if let Some(step) = self.steps.last_mut() {
                step.result = StepResult::Denies;
            }
        }
    }
}

/// Returns why no call can ever be charged to this limit, if so.
fn unpayable(charge: &Charge) -> Option<(ErrorCode, String)> {
    match charge {
        Charge::Rate { per_min: 0 } => {
            Some((ErrorCode::RateLimited, "the contract allows 0 calls a minute".to_owned()))
        }
        Charge::Budget { key, units, limit } if units > limit => {
            let reason = format!("one call costs more than the budget `{key}` has for a day");
            Some((ErrorCode::BudgetExceeded, reason))
        }
        _ => None,
    }
}

/// Returns the step of a denial.
fn step_of(denial: &Denial) -> &'static str {
    match denial.rule {
        DenialRule::ToolsDisabled => "flags",
        DenialRule::ToolSet => "tool-set",
        DenialRule::Whitelist => "whitelist",
        DenialRule::Quarantine | DenialRule::Pause => "status",
        DenialRule::Permissions => "permissions",
        DenialRule::Engine(_) | DenialRule::EngineError => "rules",
        // No call is denied by the right to operate.
        DenialRule::Operator => "permissions",
    }
}

#[cfg(test)]
mod tests;
