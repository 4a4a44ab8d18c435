//! Judges recorded calls by other rules.
//!
//! Path: 5. Doc: policy.md#rehearsing

use serde::Serialize;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::decision::DecisionInputs;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::WindowName;
use toolbooth_contracts::{CallContext, Caller, ErrorCode, ToolContract};

use crate::authorizer::{Authorizer, ToolStatus};
use crate::denial::Denial;
use crate::error::UnrecordedWindow;
use crate::item::Item;
use crate::permit::{AskedCall, Permit};

/// How a call is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It may run.
    Permit,
    /// It needs an approval.
    Approval,
    /// It is denied.
    Deny,
}

impl Decision {
    /// Returns the decision as records and commands write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Approval => "approval",
            Self::Deny => "deny",
        }
    }
}

/// A decision on a recorded call, with the rule and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rehearsed {
    /// The decision.
    pub decision: Decision,
    /// The rule.
    pub rule: String,
    /// The reason, for operators.
    pub reason: String,
    /// Who must approve, if an approval is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Approvers>,
    /// The code that the call would get; `None` if it may run.
    #[serde(skip)]
    pub code: Option<ErrorCode>,
}

impl Rehearsed {
    fn denied(denial: &Denial) -> Self {
        let DecisionSummary { rule, reason } = denial.summary();
        Self { decision: Decision::Deny, rule, reason, approvers: None, code: Some(denial.code) }
    }

    fn of(judged: Result<Permit, Denial>) -> Self {
        let permit = match judged {
            Err(denial) => return Self::denied(&denial),
            Ok(permit) => permit,
        };
        match permit.approval() {
            None => {
                let DecisionSummary { rule, reason } = permit.summary();
                Self { decision: Decision::Permit, rule, reason, approvers: None, code: None }
            }
            Some(need) => Self {
                decision: Decision::Approval,
                rule: need.rule.clone(),
                reason: format!("an approval by `{}` is needed", need.by.as_str()),
                approvers: Some(need.by),
                code: Some(ErrorCode::ApprovalRequired),
            },
        }
    }
}

impl Authorizer {
    /// Judges a recorded call of a tool that is active, with the windows that were recorded with it.
    ///
    /// # Errors
    /// [`UnrecordedWindow`].
    pub fn rehearse(
        &self,
        call: &AskedCall<'_>,
        recorded: &DecisionInputs,
    ) -> Result<Rehearsed, UnrecordedWindow> {
        let access = self.access(call.caller, call.contract, &ToolStatus::Active);
        let permit = access.and_then(|access| self.authorize(access, call));
        let windows = permit.as_ref().ok().and_then(Permit::windows);
        let Some(windows) = windows else { return Ok(Rehearsed::of(permit)) };
        let is_known = |name: &String, window: &WindowName| {
            recorded.windows.get(name) == Some(window) && recorded.history.contains_key(name)
        };
        if let Some((missing, _)) = windows.iter().find(|(name, own)| !is_known(name, own)) {
            return Err(UnrecordedWindow(missing.clone()));
        }
        let complete = |permit: Permit| self.complete(&permit, &recorded.history, None);
        Ok(Rehearsed::of(permit.and_then(complete)))
    }

    /// Judges a call of an active tool by flags, tool sets, whitelist and permissions; `None` if these pass it.
    #[must_use]
    pub fn rehearse_access(&self, caller: &Caller, contract: &ToolContract) -> Option<Rehearsed> {
        let denial = match self.access(caller, contract, &ToolStatus::Active) {
            Err(denial) => denial,
            Ok(access) => access.lacking()?,
        };
        Some(Rehearsed::denied(&denial))
    }

    /// Judges a call by the flags; `None` if these pass it.
    #[must_use]
    pub fn rehearse_flags(&self) -> Option<Rehearsed> {
        self.enabled().err().map(|denial| Rehearsed::denied(&denial))
    }

    /// Judges a recorded request for a prompt, a resource or a template that is active.
    #[must_use]
    pub fn rehearse_item(
        &self,
        caller: &Caller,
        item: &Item<'_>,
        claimed: &CallContext,
        at: &str,
    ) -> Rehearsed {
        match self.permit_item(caller, item, &ToolStatus::Active, claimed, at) {
            Err(denial) => Rehearsed::denied(&denial),
            Ok(permit) => {
                let DecisionSummary { rule, mut reason } = permit.summary();
                if let Some(DecisionSummary { rule, reason: own }) = permit.shadow() {
                    reason = format!("{reason}; in shadow: `{rule}`: {own}");
                }
                Rehearsed { decision: Decision::Permit, rule, reason, approvers: None, code: None }
            }
        }
    }

    /// Whether the rules read an argument of a tool, or a part of it, by its JSON pointer.
    #[must_use]
    pub fn reads_argument(&self, tool_id: &str, pointer: &str) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.reads_argument(tool_id, pointer))
    }
}
