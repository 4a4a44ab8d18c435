//! Rules as an engine of the policy, before and after they are bound to tools.
//!
//! Path: 5. Doc: policy.md#binding

use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::history::{CountedIn, DeclaredWindow};

use super::bind::BoundRules;
use super::set::RuleSet;
use crate::engine::{
    Binding, EngineTool, ItemQuestion, PolicyEngine, Question, Uncountable, Verdict,
};
use crate::error::EngineError;

/// Binds rules to tools, and returns findings about the bindings. For unchanged tools, it keeps the
/// bindings of `before`.
fn binding(set: &Arc<RuleSet>, tools: &[EngineTool<'_>], before: Option<&BoundRules>) -> Binding {
    let own = BoundRules::of(set, tools, before);
    let mut findings = own.findings();
    // Cases are about the set as it is loaded.
    if before.is_none() {
        findings.extend(own.run_cases(tools));
    }
    let failures = own
        .tools
        .iter()
        .filter_map(|(id, tool)| tool.failure.as_ref().map(|reason| (id.clone(), reason.clone())));
    Binding { failures: failures.collect(), findings, engine: Arc::new(own) }
}

impl PolicyEngine for Arc<RuleSet> {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        Err(EngineError("the rules are not bound to tools".to_owned()))
    }

    fn windows(&self) -> Vec<DeclaredWindow> {
        self.windows.declared()
    }

    fn bind(&self, tools: &[EngineTool<'_>]) -> Option<Binding> {
        Some(binding(self, tools, None))
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn bundle(&self) -> Value {
        self.bundle.clone()
    }
}

impl PolicyEngine for BoundRules {
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError> {
        self.judge_traced(question, None)
    }

    fn judge_traced(
        &self,
        question: &Question<'_>,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Verdict, EngineError> {
        let (applying, historic) = self.applying(question)?;
        if let Some(trace) = trace {
            self.set.trace(&applying, trace);
        }
        let Some(historic) = historic else { return Ok(applying.verdict(&self.set)) };
        let may_permit = historic.tool.slice.permits_by_history(&self.set);
        let denial = applying.denial(&self.set, may_permit);
        Ok(denial.unwrap_or_else(|| Verdict::Depends(Arc::new(historic))))
    }

    fn counted(&self, question: &Question<'_>) -> Result<Vec<CountedIn>, Uncountable> {
        BoundRules::counted(self, question)
    }

    fn windows(&self) -> Vec<DeclaredWindow> {
        self.set.windows.declared()
    }

    fn reads_argument(&self, tool_id: &str, pointer: &str) -> bool {
        BoundRules::reads_argument(self, tool_id, pointer)
    }

    fn judge_item(&self, question: &ItemQuestion<'_>) -> Result<Verdict, EngineError> {
        let applying = self.applying_to_item(question)?;
        Ok(applying.verdict(&self.set))
    }

    fn bind(&self, tools: &[EngineTool<'_>]) -> Option<Binding> {
        Some(binding(&self.set, tools, Some(self)))
    }

    fn version(&self) -> &str {
        &self.set.version
    }

    fn bundle(&self) -> Value {
        self.set.bundle.clone()
    }
}
