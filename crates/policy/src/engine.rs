//! The interface of policy engines: a pure verdict on one question.
//!
//! Path: 5. Doc: policy.md#rules

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::history::{CountedIn, DeclaredWindow, History, WindowName};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, Identity};

use crate::caller::Grant;
use crate::error::EngineError;
use crate::rule_finding::RuleFinding;

/// The inputs of a rule for a tool call.
#[derive(Debug)]
pub struct Question<'q> {
    /// The caller.
    pub caller: &'q Identity,
    /// The caller's grants.
    pub grants: &'q [Grant],
    /// The tool.
    pub contract: &'q ToolContract,
    /// The final arguments.
    pub arguments: &'q Value,
    /// The level of trust in the tool.
    pub trust: TrustLevel,
    /// The context that the agent claims.
    pub claimed: &'q CallContext,
    /// The time, RFC 3339 UTC with milliseconds.
    pub at: &'q str,
}

/// The inputs of a rule for a prompt, a resource or a template.
#[derive(Debug)]
pub struct ItemQuestion<'q> {
    /// The caller.
    pub caller: &'q Identity,
    /// The caller's grants.
    pub grants: &'q [Grant],
    /// The requested item.
    pub item: &'q crate::item::Item<'q>,
    /// The context that the agent claims.
    pub claimed: &'q CallContext,
    /// The time, RFC 3339 UTC with milliseconds.
    pub at: &'q str,
}

/// An approval that a call needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalNeed {
    /// The rule that requires it.
    pub rule: String,
    /// SHA-256 of the rule, in hex: an approval that another rule asked for does not count.
    pub rule_digest: String,
    /// Who must approve.
    pub by: Approvers,
}

impl ApprovalNeed {
    /// Returns the need of both: the strictest, bound to both rules. Of two equal ones it names the first.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let both = format!("{} {}", self.rule_digest, other.rule_digest);
        let rule_digest = HEXLOWER.encode(&Sha256::digest(both));
        let strictest = if other.by > self.by { other } else { self };
        Self { rule_digest, ..strictest }
    }

    /// Creates the need of an approval that a setting of this name asks for, with the name as its text.
    #[must_use]
    pub fn of_setting(name: &str, by: Approvers) -> Self {
        let rule_digest = HEXLOWER.encode(&Sha256::digest(name));
        Self { rule: name.to_owned(), rule_digest, by }
    }
}

/// The verdict of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A rule permits the request; it may require an approval.
    Permit {
        /// The rule.
        rule: String,
        /// The approval that the request needs.
        approval: Option<ApprovalNeed>,
    },
    /// The verdict depends on windows over earlier calls.
    Depends(Arc<dyn DependentVerdict>),
    /// A rule forbids the request, or no rule permits it.
    Deny {
        /// The rule.
        rule: String,
        /// The reason, in one sentence.
        reason: String,
    },
}

/// A verdict that depends on windows over earlier calls. All that needs no window is judged before, so
/// that little is left to do in the transaction of the claim.
pub trait DependentVerdict: std::fmt::Debug + Send + Sync {
    /// Returns the windows, by their names in rules.
    fn windows(&self) -> &BTreeMap<String, WindowName>;

    /// Returns the verdict with the windows, which include the call. Adds its reasons to `trace`, one
    /// sentence each. Pure: the same windows give the same verdict.
    ///
    /// # Errors
    /// As [`PolicyEngine::judge`].
    fn complete(
        &self,
        history: &History,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Verdict, EngineError>;
}

impl PartialEq for dyn DependentVerdict {
    fn eq(&self, other: &Self) -> bool {
        self.windows() == other.windows()
    }
}

impl Eq for dyn DependentVerdict {}

/// A call that a window cannot count: it has no exact amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncountable {
    /// The name of the window.
    pub window: String,
    /// The reason, in one sentence that caller and operator may see.
    pub reason: String,
}

/// A tool to which an engine is bound.
#[derive(Debug, Clone, Copy)]
pub struct EngineTool<'t> {
    /// The tool.
    pub contract: &'t ToolContract,
    /// The digest of its contract.
    pub digest: &'t str,
}

/// An engine that is bound to the tools of a world.
pub struct Binding {
    /// The engine that judges these tools.
    pub engine: Arc<dyn PolicyEngine>,
    /// Tools that the rules do not fit, with the reasons. They must not be called.
    pub failures: BTreeMap<String, String>,
    /// All findings, also about the rules themselves.
    pub findings: Vec<RuleFinding>,
}

/// An engine that judges questions by rules. Pure: the same question has the same verdict.
pub trait PolicyEngine: Send + Sync {
    /// Returns the verdict on a tool call.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the call is denied then.
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError>;

    /// As [`PolicyEngine::judge`]; adds the reasons of the verdict to `trace`, one sentence each.
    ///
    /// # Errors
    /// As [`PolicyEngine::judge`].
    fn judge_traced(
        &self,
        question: &Question<'_>,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Verdict, EngineError> {
        let _ = trace;
        self.judge(question)
    }

    /// Returns the windows that count a call.
    ///
    /// # Errors
    /// If a window sums an amount that the call does not state exactly; the call is denied then.
    fn counted(&self, question: &Question<'_>) -> Result<Vec<CountedIn>, Uncountable> {
        let _ = question;
        Ok(Vec::new())
    }

    /// Returns the windows that count calls.
    fn windows(&self) -> Vec<DeclaredWindow> {
        Vec::new()
    }

    /// Whether the rules read an argument of a tool, or a part of it, by its JSON pointer (RFC 6901). An
    /// engine that does not know reads everything.
    fn reads_argument(&self, tool_id: &str, pointer: &str) -> bool {
        let _ = (tool_id, pointer);
        true
    }

    /// Binds the rules to all tools of a world; called for each world before it is published. `None`
    /// from an engine that judges every tool without that.
    fn bind(&self, tools: &[EngineTool<'_>]) -> Option<Binding> {
        let _ = tools;
        None
    }

    /// Returns the verdict on a prompt, a resource or a template. An engine without rules for these
    /// denies all of them.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the request is denied then.
    fn judge_item(&self, _question: &ItemQuestion<'_>) -> Result<Verdict, EngineError> {
        Ok(Verdict::Deny {
            rule: "no-rule".to_owned(),
            reason: "the rules name only tools".to_owned(),
        })
    }

    /// Returns the digest of the rules.
    fn version(&self) -> &str;

    /// Returns the rules as a document, in which all affects verdicts. The version of the policy is its digest.
    fn bundle(&self) -> Value {
        json!({ "version": self.version() })
    }
}
