//! Plans: several calls in an order, each through the whole call path, with partial results.
//!
//! Path: 2. Doc: call-path.md#plans

mod references;
mod step_reports;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolbooth_contracts::plan::{Plan, PlanReport, PlanStep, StepReport, StepStatus};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{
    Arguments, CallContext, Caller, Conversation, Effect, ErrorCode, ToolCall, ToolName, ToolResult,
};

use crate::error::{InvalidPlan, ReferenceError};
use crate::path::{CallOptions, DedupKey};
use crate::proxy::ToolProxy;
use references::{references, resolved};
use step_reports::{blank, report, skipped_step, stopped_step};

/// Steps of one plan that run at once.
const PARALLEL_MAX: usize = 16;

fn invalid(step: Option<&str>, message: impl Into<String>) -> InvalidPlan {
    InvalidPlan { step: step.map(str::to_owned), message: message.into() }
}

/// A step that has been checked.
struct Step {
    step: PlanStep,
    /// Steps that must have ended before, by index.
    after: BTreeSet<usize>,
    /// Steps that must have succeeded before, by index.
    needs: BTreeSet<usize>,
}

/// Checks a plan without running it: ids, needs, cycles, references, size.
///
/// # Errors
/// [`InvalidPlan`], for the first fault.
pub fn check_plan(plan: &Plan, steps_max: usize) -> Result<(), InvalidPlan> {
    if plan.plan_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
        return Err(invalid(None, "`planId` must not be blank"));
    }
    checked(plan.clone(), steps_max).map(drop)
}

impl ToolProxy {
    /// Runs a plan; always returns partial results. The agent's context is passed to each step.
    ///
    /// # Errors
    /// [`InvalidPlan`], before anything runs.
    pub async fn plan(
        &self,
        plan: Plan,
        caller: &Caller,
        context: &CallContext,
    ) -> Result<PlanReport, InvalidPlan> {
        let (conversation, _cancel) = Conversation::detached();
        self.plan_until(plan, caller, context, &conversation).await
    }

    /// As [`ToolProxy::plan`], until the conversation is cancelled: no step begins afterwards. Steps that run are
    /// awaited; those that have not begun are `skipped`, with the code `cancelled`.
    ///
    /// # Errors
    /// As [`ToolProxy::plan`].
    pub async fn plan_until(
        &self,
        plan: Plan,
        caller: &Caller,
        context: &CallContext,
        conversation: &Conversation,
    ) -> Result<PlanReport, InvalidPlan> {
        run(self, plan, caller, context, conversation).await
    }
}

async fn run(
    proxy: &ToolProxy,
    plan: Plan,
    caller: &Caller,
    context: &CallContext,
    conversation: &Conversation,
) -> Result<PlanReport, InvalidPlan> {
    let parts = &proxy.state().parts;
    check_plan(&plan, parts.limits.plan_steps_max)?;
    let plan_id = plan.plan_id.clone().unwrap_or_else(|| parts.ids.next());
    let steps = checked(plan, parts.limits.plan_steps_max)?;
    let skipped = |reason: String| PlanReport {
        plan_id: plan_id.clone(),
        skipped: true,
        reason: Some(reason),
        steps: Vec::new(),
    };
    if let Err(denial) = parts.worlds.now().policy.enabled() {
        return Ok(skipped(denial.reason));
    }
    if steps.is_empty() {
        return Ok(skipped("the plan names no tools".to_owned()));
    }
    let mut done: BTreeMap<usize, (StepReport, Option<Value>)> = BTreeMap::new();
    let mut waiting: BTreeSet<usize> = (0..steps.len()).collect();
    let mut running = FuturesUnordered::new();
    loop {
        let ready: Vec<usize> = waiting
            .iter()
            .copied()
            .filter(|at| {
                steps.get(*at).is_some_and(|step| {
                    step.after.union(&step.needs).all(|before| done.contains_key(before))
                })
            })
            .collect();
        let mut skipped_some = false;
        for at in ready {
            let Some(step) = steps.get(at) else { continue };
            let failed = step.needs.iter().find(|need| {
                done.get(need).is_none_or(|(report, _)| report.status != StepStatus::Succeeded)
            });
            if let Some(need) = failed {
                let need = steps.get(*need).map_or("", |step| step.step.id.as_str());
                done.insert(at, (skipped_step(&step.step, need), None));
                skipped_some = true;
            } else if conversation.is_cancelled() {
                done.insert(at, (stopped_step(&step.step), None));
                skipped_some = true;
            } else if running.len() < PARALLEL_MAX {
                let results: HashMap<&str, Option<&Value>> = steps
                    .iter()
                    .enumerate()
                    .filter_map(|(index, step)| {
                        let (report, result) = done.get(&index)?;
                        report.success.then_some((step.step.id.as_str(), result.as_ref()))
                    })
                    .collect();
                let mut left = parts.limits.argument_bytes_max;
                let args = resolved(&Value::Object(step.step.args.clone()), &results, &mut left);
                let who = (caller, context);
                running.push(run_step(proxy, &plan_id, at, &step.step, args, who));
            } else {
                continue;
            }
            waiting.remove(&at);
        }
        if skipped_some {
            continue;
        }
        match running.next().await {
            Some((at, mut report, result)) => {
                // It began as the plan was stopped, and was refused.
                let is_refused = report.code == Some(ErrorCode::Overloaded)
                    && report.effect == Some(Effect::NotStarted);
                if let (true, true, Some(step)) =
                    (is_refused, conversation.is_cancelled(), steps.get(at))
                {
                    report = StepReport { call_id: report.call_id, ..stopped_step(&step.step) };
                }
                done.insert(at, (report, result));
            }
            None => break,
        }
    }
    drop(running);
    let steps = done.into_values().map(|(report, _)| report).collect();
    Ok(PlanReport { plan_id, skipped: false, reason: None, steps })
}

async fn run_step(
    proxy: &ToolProxy,
    plan_id: &str,
    at: usize,
    step: &PlanStep,
    args: Result<Value, ReferenceError>,
    who: (&Caller, &CallContext),
) -> (usize, StepReport, Option<Value>) {
    let parts = &proxy.state().parts;
    let began = parts.clock.monotonic();
    let called = match args {
        Ok(args) => call_step(proxy, plan_id, step, args, who).await,
        Err(error) => Err(error.to_string()),
    };
    let elapsed = parts.clock.monotonic().saturating_sub(began);
    match called {
        Ok(result) => {
            let (report, value) = report(step, result, elapsed);
            (at, report, value)
        }
        Err(message) => {
            let code = ErrorCode::InvalidArgs;
            let error = CallError { code, message, details: Map::new() };
            (at, blank(step, StepStatus::Failed, Some(error), elapsed), None)
        }
    }
}

fn raw(tree: &Value) -> Result<Box<RawValue>, String> {
    RawValue::from_string(tree.to_string()).map_err(|error| error.to_string())
}

async fn call_step(
    proxy: &ToolProxy,
    plan_id: &str,
    step: &PlanStep,
    args: Value,
    (caller, context): (&Caller, &CallContext),
) -> Result<ToolResult, String> {
    let key = DedupKey::of_step(plan_id, &step.id);
    // A step has a call id and a key of its own.
    let context = CallContext { call_id: None, idempotency_key: None, ..context.clone() };
    // Arguments that fail the gate are passed to the guard as text, so that their refusal is recorded.
    let (arguments, args) = match Arguments::of(args) {
        Ok(arguments) => (Some(arguments), None),
        Err(tree) => (None, Some(raw(&tree)?)),
    };
    let call = ToolCall {
        tool: ToolName::IdOrWire(step.tool.clone()),
        args,
        context,
        caller: caller.clone(),
        toolset: None,
    };
    let (conversation, _cancel) = Conversation::detached();
    let options = CallOptions { dedup_key: Some(key), arguments, ..CallOptions::default() };
    Ok(proxy.run(call, conversation, options).await.result)
}

/// Checks a plan before anything runs.
fn checked(plan: Plan, steps_max: usize) -> Result<Vec<Step>, InvalidPlan> {
    let (steps, in_sequence) = match (plan.steps, plan.tools) {
        (Some(_), Some(_)) => {
            return Err(invalid(None, "a plan has either `steps` or `tools`, not both"));
        }
        (Some(steps), None) => (steps, false),
        (None, tools) => (short_form(tools.unwrap_or_default()), true),
    };
    if steps.len() > steps_max {
        let message = format!("a plan has at most {steps_max} steps, this one has {}", steps.len());
        return Err(invalid(None, message));
    }
    let mut indexes: HashMap<String, usize> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        if step.id.trim().is_empty() {
            return Err(invalid(None, format!("step {at} has a blank id")));
        }
        if indexes.insert(step.id.clone(), at).is_some() {
            return Err(invalid(Some(&step.id), format!("two steps have the id `{}`", step.id)));
        }
    }
    let mut needs: Vec<BTreeSet<usize>> = Vec::new();
    for step in &steps {
        let mut own = BTreeSet::new();
        for need in &step.needs {
            let Some(index) = indexes.get(need) else {
                let message = format!("step `{}` needs `{need}`, which is no step", step.id);
                return Err(invalid(Some(&step.id), message));
            };
            own.insert(*index);
        }
        needs.push(own);
    }
    let all = transitive(&steps, &needs)?;
    for (at, step) in steps.iter().enumerate() {
        let from = references(&Value::Object(step.args.clone()))
            .map_err(|wrong| invalid(Some(&step.id), format!("step `{}`: {wrong}", step.id)))?;
        for from in from {
            let known = indexes.get(&from);
            if !known.is_some_and(|index| all.get(at).is_some_and(|needs| needs.contains(index))) {
                let message = format!(
                    "step `{}` refers to `{from}`, which it does not need; add it to `needs`",
                    step.id
                );
                return Err(invalid(Some(&step.id), message));
            }
        }
    }
    Ok(steps
        .into_iter()
        .zip(needs)
        .enumerate()
        .map(|(at, (step, needs))| Step {
            step,
            needs,
            after: if in_sequence && at > 0 { BTreeSet::from([at - 1]) } else { BTreeSet::new() },
        })
        .collect())
}

/// Returns one step per name; a repeated name gets a number.
fn short_form(tools: Vec<String>) -> Vec<PlanStep> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    tools
        .into_iter()
        .map(|tool| {
            let count = seen.entry(tool.clone()).or_default();
            *count += 1;
            let id = if *count == 1 { tool.clone() } else { format!("{tool}#{count}") };
            PlanStep { id, tool, args: Map::new(), needs: Vec::new() }
        })
        .collect()
}

/// Returns all steps that each step needs, directly or indirectly.
fn transitive(
    steps: &[PlanStep],
    needs: &[BTreeSet<usize>],
) -> Result<Vec<BTreeSet<usize>>, InvalidPlan> {
    let mut all: Vec<BTreeSet<usize>> = needs.to_vec();
    // Each round doubles the distance that is reached, so there are fewer rounds than steps.
    for _ in 0..steps.len() {
        let wider: Vec<BTreeSet<usize>> = all
            .iter()
            .map(|own| {
                let further = own.iter().filter_map(|index| all.get(*index)).flatten().copied();
                own.iter().copied().chain(further).collect()
            })
            .collect();
        if wider == all {
            break;
        }
        all = wider;
    }
    for (at, own) in all.iter().enumerate() {
        if own.contains(&at) {
            let id = steps.get(at).map_or("", |step| step.id.as_str());
            return Err(invalid(Some(id), format!("step `{id}` needs itself, through a cycle")));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
