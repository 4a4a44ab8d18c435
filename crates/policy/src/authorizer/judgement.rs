//! Asks the rules engine, and applies its verdict to a call.
//!
//! Path: 5. Doc: policy.md#steps

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::{ApprovalSetting, ToolContract};
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::CountedIn;
use toolbooth_contracts::trust::TrustLevel;

use super::Authorizer;
use crate::denial::{Denial, DenialRule};
use crate::engine::{
    ApprovalNeed, Binding, DependentVerdict, EngineTool, Question, Uncountable, Verdict,
};
use crate::error::EngineError;
use crate::permit::AskedCall;
use crate::rule_finding::RuleFinding;

/// Returns the answer of an engine. A panic of the engine becomes an error. Otherwise the call would end
/// without a record, or the writer thread would end.
pub(crate) fn caught<T>(ask: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    let panicked = |_| Err(EngineError("the engine panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(panicked)
}

/// A call that the rules permit.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) rule: String,
    pub(crate) approval: Option<ApprovalNeed>,
    /// The decision of rules that are not enforced.
    pub(crate) shadow: Option<DecisionSummary>,
    /// The windows that count the call.
    pub(crate) counted: Vec<CountedIn>,
    /// Why windows cannot count it, if that is not enforced.
    pub(crate) uncountable: Option<DecisionSummary>,
    /// The verdict on which the permit depends.
    pub(crate) depends: Option<Arc<dyn DependentVerdict>>,
}

impl Judged {
    pub(super) fn by(rule: String, approval: Option<ApprovalNeed>) -> Self {
        Self { rule, approval, shadow: None, counted: Vec::new(), uncountable: None, depends: None }
    }

    fn in_shadow(decision: DecisionSummary) -> Self {
        Self { shadow: Some(decision), ..Self::by("shadow".to_owned(), None) }
    }
}

/// How the rules fit the tools to which they are bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFit {
    /// Tools that the rules do not fit, with the reasons. They must not be called.
    pub failures: BTreeMap<String, String>,
    /// All findings, also about the rules themselves.
    pub findings: Vec<RuleFinding>,
}

impl Authorizer {
    /// Runs step 6.
    pub(super) fn judge(
        &self,
        call: &AskedCall<'_>,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Judged, Denial> {
        let Some(engine) = &self.engine else { return Ok(Judged::by("default".to_owned(), None)) };
        let AskedCall { caller, contract, arguments, claimed, at } = *call;
        let grants = self.rights(caller).map(|rights| rights.grants.as_slice());
        let question = Question {
            caller: caller.identity(),
            grants: grants.unwrap_or_default(),
            contract,
            arguments,
            trust: self.trust_levels.of(&contract.policy.trust_level),
            claimed,
            at,
        };
        let mut judged = self.enforced(caught(|| engine.judge_traced(&question, trace)))?;
        let counted = caught(|| Ok(engine.counted(&question)));
        match counted.map_err(Denial::of_engine).and_then(|counted| {
            counted.map_err(|Uncountable { window, reason }| {
                let rule = DenialRule::Engine(format!("history.{window}"));
                Denial::new(ErrorCode::PolicyDenied, rule, reason)
            })
        }) {
            Ok(counted) => judged.counted = counted,
            Err(denial) => {
                if !self.is_shadow {
                    return Err(denial);
                }
                // What depends on windows is decided, and recorded, once they are known.
                judged.uncountable = Some(denial.summary());
            }
        }
        Ok(judged)
    }

    /// Returns the consequence of the engine's verdict, which is not enforced in shadow mode.
    pub(crate) fn enforced(&self, verdict: Result<Verdict, EngineError>) -> Result<Judged, Denial> {
        let denial = match verdict {
            Ok(Verdict::Depends(verdict)) => {
                let rule = Judged::by("history".to_owned(), None);
                return Ok(Judged { depends: Some(verdict), ..rule });
            }
            Ok(Verdict::Permit { rule, approval }) => {
                return Ok(match approval {
                    Some(ApprovalNeed { rule, .. }) if self.is_shadow => {
                        let reason = "the rule would ask for an approval".to_owned();
                        Judged::in_shadow(DecisionSummary { rule, reason })
                    }
                    need => Judged::by(rule, need),
                });
            }
            Ok(Verdict::Deny { rule, reason }) => {
                Denial::new(ErrorCode::PolicyDenied, DenialRule::Engine(rule), reason)
            }
            Err(error) => Denial::of_engine(error),
        };
        match self.is_shadow {
            true => Ok(Judged::in_shadow(denial.summary())),
            false => Err(denial),
        }
    }

    /// Returns the approval that the contract, or the trust in the tool, requires.
    pub(crate) fn approval_setting(&self, contract: &ToolContract) -> Option<ApprovalNeed> {
        let need = |setting: &str| ApprovalNeed::of_setting(setting, Approvers::One);
        if contract.policy.approval == Some(ApprovalSetting::Always) {
            return Some(need("policy.approval"));
        }
        self.needs_approval_by_trust(&contract.policy.trust_level).then(|| need("trust"))
    }

    /// Binds the rules to the tools of a world. Returns the authorizer that judges these tools, with
    /// the tools that the rules do not fit, and all findings.
    #[must_use]
    pub fn bound(&self, tools: &[EngineTool<'_>]) -> (Self, RuleFit) {
        let Some(Binding { engine, failures, findings }) =
            self.engine.as_ref().and_then(|engine| engine.bind(tools))
        else {
            return (self.clone(), RuleFit::default());
        };
        // Rules in shadow must not stop a tool.
        let failures = if self.is_shadow { BTreeMap::new() } else { failures };
        // The digest of the rules is the same, and so is the version.
        (Self { engine: Some(engine), ..self.clone() }, RuleFit { failures, findings })
    }

    fn needs_approval_by_trust(&self, word: &str) -> bool {
        let level = self.trust_levels.of(word);
        let selects = |own: &String| own == word || TrustLevel::parse(own) == Some(level);
        self.approval_by_trust.iter().any(selects)
    }
}
