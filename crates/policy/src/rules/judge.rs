//! Judges questions by the rules that are bound to their tools.
//!
//! Path: 5. Doc: policy.md#rules

use std::sync::Arc;

use cedar_policy::Entity;
use toolbooth_contracts::CallContext;
use toolbooth_contracts::history::CountedIn;

use super::bind::{BoundRules, BoundTool};
use super::historic::HistoricRules;
use super::parties::Parties;
use super::reads::Reads;
use super::set::RuleSet;
use super::slice::Applying;
use super::values::ContextMembers;
use super::{entities, values};
use crate::engine::{ItemQuestion, Question, Uncountable};
use crate::error::EngineError;

impl BoundRules {
    /// Returns the rules that apply to a tool call, and those that must be evaluated once their windows are
    /// known.
    pub(super) fn applying(
        &self,
        question: &Question<'_>,
    ) -> Result<(Applying, Option<HistoricRules>), EngineError> {
        let id = question.contract.tool_id.as_str();
        let unbound = || EngineError(format!("the rules are not bound to `{id}`"));
        let tool = self.tools.get(id).ok_or_else(unbound)?;
        if let Some(reason) = &tool.failure {
            return Err(EngineError(reason.clone()));
        }
        let (set, slice) = (&self.set, &*tool.slice);
        let known = slice.known();
        if let Some(applying) = known.filter(|_| !slice.is_historic()) {
            return Ok((applying.clone(), None));
        }
        let parties = tool.parties.of(question, || {
            Parties::new(question.caller, question.grants, tool.entities(question)?)
        })?;
        let mut applying = match known {
            Some(known) => known.clone(),
            None => {
                let parts = tool.parts(question, &slice.plain_reads)?;
                slice.plain(set, &parties.evaluation(parts))?
            }
        };
        if !slice.is_historic() {
            return Ok((applying, None));
        }
        let parts = tool.parts(question, &slice.historic_reads)?;
        if tool.reading.is_empty() {
            // Rules that read a window which is not declared cannot be evaluated, and deny.
            slice.historic(set, &parties.evaluation(parts), &mut applying)?;
            return Ok((applying, None));
        }
        let caller = &question.caller.name;
        let historic = HistoricRules {
            windows: set.windows.of_call(&tool.reading, caller, question.claimed),
            set: Arc::clone(set),
            tool: Arc::clone(tool),
            parties,
            parts,
            applying: applying.clone(),
        };
        Ok((applying, Some(historic)))
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

    /// Returns the rules that apply to a request for a prompt, a resource or a template.
    pub(super) fn applying_to_item(
        &self,
        question: &ItemQuestion<'_>,
    ) -> Result<Applying, EngineError> {
        let ItemQuestion { caller, grants, .. } = question;
        let parties = Parties::new(caller, grants, entities::item(question.item)?)?;
        let parts = context(&self.items.reads, question.claimed, question.at)?;
        let evaluation = parties.evaluation(parts);
        let mut applying = self.items.plain(&self.set, &evaluation)?;
        self.items.historic(&self.set, &evaluation, &mut applying)?;
        Ok(applying)
    }
}

impl RuleSet {
    /// Adds the rules that apply to a trace.
    pub(super) fn trace(&self, applying: &Applying, trace: &mut Vec<String>) {
        let told = |rules: &[usize], verb: &str| -> Vec<String> {
            let rules = rules.iter().map(|index| self.rule(*index));
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
    /// Returns the parts of the context that rules read, except for the windows.
    fn parts(&self, question: &Question<'_>, reads: &Reads) -> Result<ContextMembers, EngineError> {
        let mut parts = context(reads, question.claimed, question.at)?;
        if let (Some(reads), Some(types)) = (reads.of("args"), &self.arguments) {
            let arguments = types.record.convert(question.arguments, &reads, "");
            let arguments = arguments.map_err(|error| EngineError(error.to_string()))?;
            parts.push(("args".to_owned(), arguments));
        }
        Ok(parts)
    }

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
fn context(reads: &Reads, claimed: &CallContext, at: &str) -> Result<ContextMembers, EngineError> {
    let mut parts = Vec::new();
    if reads.of("time").is_some() {
        parts.push(("time".to_owned(), values::datetime(at.to_owned())?));
    }
    if reads.of("claimed").is_some() {
        let texts = [
            ("agentId", &claimed.agent_id),
            ("phaseId", &claimed.phase_id),
            ("epicId", &claimed.epic_id),
        ];
        let mut fields: ContextMembers = texts
            .into_iter()
            .filter_map(|(name, text)| {
                let text = text.as_ref()?;
                Some((name.to_owned(), values::text(text.clone())))
            })
            .collect();
        if let Some(turn) = claimed.turn_index {
            let turn = i64::try_from(turn).map_err(|_| {
                EngineError("the turn is larger than a whole number of rules".into())
            })?;
            fields.push(("turnIndex".to_owned(), values::whole(turn)));
        }
        parts.push(("claimed".to_owned(), values::record(fields)));
    }
    Ok(parts)
}
