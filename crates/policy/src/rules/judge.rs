//! Judges questions by the rules that are bound to their tools.
//!
//! Path: 5. Doc: policy.md#rules

use std::collections::BTreeMap;

use cedar_policy::{Context, Entities, Entity, Request, RestrictedExpression};
use toolbooth_contracts::history::{CountedIn, WindowName};
use toolbooth_contracts::{CallContext, Identity};

use super::bind::{BoundRules, BoundTool};
use super::entities;
use super::history::HISTORY;
use super::reads::Reads;
use super::slice::{Applying, Slice};
use crate::caller::Grant;
use crate::engine::{ItemQuestion, Question, Uncountable};
use crate::error::EngineError;

impl BoundRules {
    /// Returns the rules that apply to a tool call.
    pub(super) fn applying(&self, question: &Question<'_>) -> Result<Applying, EngineError> {
        let id = question.contract.tool_id.as_str();
        let unbound = || EngineError(format!("the rules are not bound to `{id}`"));
        let tool = self.tools.get(id).ok_or_else(unbound)?;
        if let Some(reason) = &tool.failure {
            return Err(EngineError(reason.clone()));
        }
        let mut parts = context(&tool.slice.reads, question.claimed, question.at)?;
        if let (Some(reads), Some(types)) = (tool.slice.reads.of("args"), &tool.arguments) {
            let converted = types.record.convert(question.arguments, &reads, "");
            let arguments = converted.map_err(|error| EngineError(error.to_string()))?;
            parts.push(("args".to_owned(), arguments));
        }
        if let Some(history) = question.history.filter(|_| !tool.reading.is_empty()) {
            let windows = self.set.windows.context(&tool.reading, history)?;
            parts.push((HISTORY.to_owned(), windows));
        }
        let entities = tool.entities(question)?;
        // Rules that read a window which is not declared are evaluated here, and deny.
        let has_history = question.history.is_some() || tool.reading.is_empty();
        let Question { caller, grants, .. } = question;
        self.ask(&tool.slice, caller, grants, entities, parts, has_history)
    }

    /// Returns the windows that the rules of the tool read, by their names, if they are not known yet.
    pub(super) fn windows(&self, question: &Question<'_>) -> Option<BTreeMap<String, WindowName>> {
        let tool = self.tools.get(question.contract.tool_id.as_str())?;
        let is_open = question.history.is_none() && !tool.reading.is_empty();
        let caller = &question.caller.name;
        is_open.then(|| self.set.windows.of_call(&tool.reading, caller, question.claimed))
    }

    /// Whether a rule of the tool permits by windows over earlier calls.
    pub(super) fn permits_by_history(&self, question: &Question<'_>) -> bool {
        let tool = self.tools.get(question.contract.tool_id.as_str());
        tool.is_some_and(|tool| tool.slice.permits_by_history(&self.set))
    }

    /// Whether the rules of a tool, or a window that counts it, read an argument or a part of it.
    pub(super) fn reads_argument(&self, tool_id: &str, pointer: &str) -> bool {
        let Some(tool) = self.tools.get(tool_id) else { return false };
        tool.slice.reads.of("args").is_some_and(|reads| reads.reads_at(pointer))
            || self.set.windows.sums_at(&tool.counting, pointer)
    }

    /// Returns the windows that count a call.
    pub(super) fn counted(&self, question: &Question<'_>) -> Result<Vec<CountedIn>, Uncountable> {
        let Some(tool) = self.tools.get(question.contract.tool_id.as_str()) else {
            return Ok(Vec::new());
        };
        let Question { caller, claimed, arguments, .. } = question;
        self.set.windows.counted(&tool.counting, &caller.name, claimed, arguments)
    }

    fn ask(
        &self,
        slice: &Slice,
        caller: &Identity,
        grants: &[Grant],
        [resource, action]: [Entity; 2],
        parts: Vec<(String, RestrictedExpression)>,
        has_history: bool,
    ) -> Result<Applying, EngineError> {
        let told = |error: &dyn std::error::Error| EngineError(error.to_string());
        let caller = entities::caller(caller, grants)?;
        let context = Context::from_pairs(parts).map_err(|error| told(&error))?;
        let request = Request::new(caller.uid(), action.uid(), resource.uid(), context, None)
            .map_err(|error| told(&error))?;
        let entities = Entities::from_entities([caller, resource, action], None)
            .map_err(|error| told(&error))?;
        slice.applying(&self.set, &request, &entities, has_history)
    }

    /// Returns the rules that apply to a request for a prompt, a resource or a template.
    pub(super) fn applying_to_item(
        &self,
        question: &ItemQuestion<'_>,
    ) -> Result<Applying, EngineError> {
        let parts = context(&self.items.reads, question.claimed, question.at)?;
        let entities = entities::item(question.item)?;
        self.ask(&self.items, question.caller, question.grants, entities, parts, true)
    }

    /// Adds the rules that apply to a trace, and the windows that they have read.
    pub(super) fn trace(
        &self,
        question: &Question<'_>,
        applying: &Applying,
        trace: Option<&mut Vec<String>>,
    ) {
        let Some(trace) = trace else { return };
        if let Some(history) = question.history {
            trace.extend(self.set.windows.told(history));
        }
        let told = |rules: &[usize], verb: &str| -> Vec<String> {
            let rules = rules.iter().map(|index| self.set.rule(*index));
            let told = rules.map(|rule| match &rule.annotations.owner {
                Some(owner) => format!("`{}` {verb} (ask: {owner})", rule.id()),
                None => format!("`{}` {verb}", rule.id()),
            });
            told.collect()
        };
        trace.extend(told(&applying.forbids, "forbids"));
        trace.extend(told(&applying.permits, "permits"));
    }
}

impl BoundTool {
    /// Returns the tool and its action as entities.
    fn entities(&self, question: &Question<'_>) -> Result<[Entity; 2], EngineError> {
        let make = || {
            let groups = self.groups.iter().map(String::as_str);
            entities::tool(question.contract, question.trust, groups)
        };
        match self.entities.get() {
            Some((trust, entities)) if *trust == question.trust => Ok(entities.clone()),
            Some(_) => make(),
            None => {
                let entities = make()?;
                Ok(self.entities.get_or_init(|| (question.trust, entities)).1.clone())
            }
        }
    }
}

/// Returns the parts of the context that rules read, except for the arguments.
fn context(
    reads: &Reads,
    claimed: &CallContext,
    at: &str,
) -> Result<Vec<(String, RestrictedExpression)>, EngineError> {
    let mut parts = Vec::new();
    if reads.of("time").is_some() {
        parts.push(("time".to_owned(), RestrictedExpression::new_datetime(at)));
    }
    if reads.of("claimed").is_some() {
        let texts = [
            ("agentId", &claimed.agent_id),
            ("phaseId", &claimed.phase_id),
            ("epicId", &claimed.epic_id),
        ];
        let mut fields: Vec<(String, RestrictedExpression)> = texts
            .into_iter()
            .filter_map(|(name, text)| {
                let text = text.as_ref()?;
                Some((name.to_owned(), RestrictedExpression::new_string(text.clone())))
            })
            .collect();
        if let Some(turn) = claimed.turn_index {
            let turn = i64::try_from(turn).map_err(|_| {
                EngineError("the turn is larger than a whole number of rules".into())
            })?;
            fields.push(("turnIndex".to_owned(), RestrictedExpression::new_long(turn)));
        }
        let record = RestrictedExpression::new_record(fields);
        parts.push(("claimed".to_owned(), record.map_err(|error| EngineError(error.to_string()))?));
    }
    Ok(parts)
}
