//! `call` and `plan`: run calls through the call path that every front door uses.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::json::{self, JsonFaultKind};
use toolbooth_contracts::plan::{Plan, PlanReport, StepStatus};
use toolbooth_contracts::{
    CallContext, Conversation, ErrorCode, Status, ToolCall, ToolName, ToolResult, named_members,
};
use toolbooth_proxy::{InvalidPlan, Limits, StageReport, View, check_plan};
use toolbooth_registry::Source;

use super::maintenance::Maintenance;
use super::signals::{Signals, interrupted};
use super::text_argument;
use crate::callers;
use crate::cli::Context;
use crate::compose::Runtime;
use crate::failure::{Failure, USAGE};
use crate::offline::{OfflineGateway, report_assumptions};
use crate::output::{self, Format};
use crate::trust::Trusted;

pub(super) async fn call(
    loaded: Trusted,
    tool: &str,
    args: &str,
    context: Context,
    explain: bool,
    format: Format,
) -> Result<bool, Failure> {
    let text = text_argument(args)?;
    let args = arguments(&text)?;
    report_assumptions(&loaded);
    let caller = callers::named(&loaded, &context.caller).await?;
    let offline = OfflineGateway::build(loaded).await?;
    find(&offline, std::iter::once(tool)).await;
    let runtime = Arc::new(Runtime::build(offline).await?);
    let mut maintenance = Maintenance::of_command(&runtime);
    runtime.record_discovered().await;
    let visible = runtime.offline.catalogue.view(&caller);
    let asked = ToolCall {
        tool: ToolName::IdOrWire(tool.to_owned()),
        args: Some(args),
        context: CallContext {
            call_id: context.call_id,
            agent_id: Some(context.agent),
            turn_index: context.turn,
            phase_id: context.phase,
            epic_id: context.epic,
            session_id: context.session,
            idempotency_key: context.idempotency_key,
            deadline_ms: None,
        },
        caller,
        toolset: None,
    };
    let (conversation, counterpart) = Conversation::pair(false);
    let cancel = counterpart.cancel.clone();
    let mut signals = Signals::new()?;
    let mut calling = std::pin::pin!(runtime.proxy.call_explained(asked, conversation));
    let called = tokio::select! {
        called = &mut calling => Ok(called),
        stop = stopped(&mut signals, &mut maintenance) => Err(stop),
    };
    let ((result, reports), stop) = match called {
        Ok(called) => (called, None),
        // The call is cancelled, and still receives its receipt.
        Err(stop) => {
            cancel.cancel();
            tokio::select! {
                called = calling => (called, Some(stop)),
                () = signals.received() => return Err(interrupted()),
            }
        }
    };
    let ended = end(&runtime, &mut signals, stop.is_some()).await;
    maintenance.end().await;
    // What has happened is told, however the command ends.
    let hint = unknown_tool(tool, &result, &visible);
    show_result(&result, reports, explain, hint, format);
    finish(stop, ended)?;
    Ok(result.status == Status::Succeeded)
}

/// Returns the name that an unknown tool was probably meant to have. Only of tools that the caller may see: a hidden
/// tool answers like an unknown one.
fn unknown_tool(tool: &str, result: &ToolResult, visible: &View) -> Option<String> {
    let code = result.error.as_ref()?.code;
    if code != ErrorCode::UnregisteredTool {
        return None;
    }
    let names: Vec<String> =
        visible.all(None, usize::MAX).0.into_iter().map(|tool| tool.wire_name).collect();
    nearest(tool, names.iter().map(String::as_str)).map(str::to_owned)
}

fn show_result(
    result: &ToolResult,
    reports: Vec<StageReport>,
    explain: bool,
    meant: Option<String>,
    format: Format,
) {
    if format.is_json() {
        let mut out = serde_json::to_value(result).unwrap_or_default();
        if let (true, Some(members)) = (explain, out.as_object_mut()) {
            members.insert("explain".to_owned(), json!(reports));
        }
        return output::json(&out);
    }
    for block in &result.content {
        match block.as_text() {
            Some(text) => output::line(&toolbooth_adapters::text::plain(text.as_bytes())),
            None => output::json_line(block),
        }
    }
    if result.content.is_empty()
        && let Some(structured) = &result.structured_content
    {
        output::json(structured);
    }
    let mut told = format!("{} ", result.status);
    if let Some(error) = &result.error {
        told = format!("{told}({}) ", error.code);
    }
    if result.replayed {
        told.push_str("replayed ");
    }
    let receipt = result.receipt_id.as_deref().unwrap_or("none");
    crate::notice(&format!(
        "{told}in {:.1} ms, receipt {receipt}, call {}",
        result.duration_ms, result.call_id
    ));
    if let Some(near) = meant {
        crate::notice(&format!("help: did you mean `{near}`?"));
    }
    for warning in &result.warnings {
        crate::notice(&format!("warning: {warning}"));
    }
    if explain {
        for report in reports {
            crate::notice(&format!("{:>10.3} ms  {:<14}{}", report.ms, report.stage, report.note));
        }
    }
}

/// Why a command stops before its calls have ended.
enum Stop {
    Signal,
    /// A periodic task has ended.
    Defect(Failure),
}

/// Waits for a reason to stop.
async fn stopped(signals: &mut Signals, maintenance: &mut Maintenance) -> Stop {
    tokio::select! {
        () = signals.received() => Stop::Signal,
        failure = maintenance.failed() => Stop::Defect(failure),
    }
}

/// Closes the gateway, unless the second signal ends the command first. The first one asks for what happens already.
async fn end(runtime: &Runtime, signals: &mut Signals, has_stopped: bool) -> Result<(), Failure> {
    let second = async {
        if !has_stopped {
            signals.received().await;
        }
        signals.received().await;
    };
    tokio::select! {
        ended = runtime.shut_down() => ended,
        () = second => Err(interrupted()),
    }
}

/// Reports a failure beside calls that have ended. Their outcome is on standard output already.
fn finish(stop: Option<Stop>, ended: Result<(), Failure>) -> Result<(), Failure> {
    let defect = match stop {
        Some(Stop::Defect(failure)) => Err(failure),
        Some(Stop::Signal) | None => Ok(()),
    };
    ended.and(defect).map_err(|failure| {
        crate::notice(&failure.text());
        Failure::silent(failure.exit)
    })
}

/// Returns arguments as raw JSON. Text that is not JSON is wrong usage. Other invalid arguments are passed to
/// the gate, so that the rejection is recorded.
fn arguments(text: &[u8]) -> Result<Box<RawValue>, Failure> {
    let wrong = |message: String| {
        Failure::new(USAGE, "invalid-json", message)
            .at("--args")
            .hint("give a JSON object, `@FILE`, or `-`")
    };
    if let Err(fault) = json::parse(text)
        && matches!(fault.kind, JsonFaultKind::Syntax | JsonFaultKind::NotUtf8)
    {
        let (line, column) = json::line_column(text, fault.offset);
        return Err(wrong(format!(
            "the arguments are no JSON: {} (line {line}, column {column})",
            fault.message
        )));
    }
    let text = String::from_utf8_lossy(text).trim().to_owned();
    RawValue::from_string(text)
        .map_err(|error| wrong(format!("the arguments are no JSON: {error}")))
}

/// Asks the sources that can have a tool; none if the tool is already known.
async fn find<'t>(offline: &OfflineGateway, tools: impl Iterator<Item = &'t str>) {
    let world = offline.worlds.now();
    let config = &offline.loaded.config;
    let (mut servers, mut everything) = (Vec::new(), false);
    for tool in tools {
        let name = ToolName::IdOrWire(tool.to_owned());
        let id = world.tool_id(&name);
        match world.registry().get(id).map(|known| known.source()) {
            // The tool is known from the lock or from its pin. Only its source knows whether it is still the
            // approved one.
            Some(Source::Mcp(server)) => {
                servers.push(server.clone());
                continue;
            }
            Some(Source::Command(_)) => everything = true,
            Some(_) => continue,
            None => (),
        }
        let named = config.servers.keys().filter(|name| {
            let prefix = toolbooth_registry::discovered::tool_id(name);
            [".", "_"].iter().any(|dot| tool.starts_with(&format!("{prefix}{dot}")))
                || id.starts_with(&format!("{prefix}."))
        });
        let before = servers.len();
        servers.extend(named.cloned());
        everything |= servers.len() == before;
    }
    if everything {
        offline.catalogue.refresh_all().await;
    } else if !servers.is_empty() {
        let wanted =
            |source: &Source| matches!(source, Source::Mcp(name) if servers.contains(name));
        offline.catalogue.refresh_only(wanted).await;
    }
}

pub(super) async fn plan(
    loaded: Trusted,
    given: &str,
    caller_name: &str,
    format: Format,
) -> Result<bool, Failure> {
    // A plan is an object, so that a path needs no `@`.
    let text = if given.trim_start().starts_with(['{', '@', '-']) {
        text_argument(given)?
    } else {
        text_argument(&format!("@{given}"))?
    };
    let invalid = |message: String| Failure::new(USAGE, ErrorCode::InvalidPlan.as_str(), message);
    let value =
        json::parse(&text).map_err(|fault| invalid(format!("the plan is no JSON: {fault}")))?;
    let plan: Plan = named_members::object(value)
        .map_err(|error| invalid(format!("this is not a plan: {error}")))?;
    let refused = |error: InvalidPlan| {
        let failure = invalid(error.message);
        match error.step {
            Some(step) => failure.at(format!("steps.{step}")),
            None => failure,
        }
    };
    // The check precedes all requests to sources and all records.
    check_plan(&plan, Limits::default().plan_steps_max).map_err(refused)?;
    report_assumptions(&loaded);
    let caller = callers::named(&loaded, caller_name).await?;
    let offline = OfflineGateway::build(loaded).await?;
    let steps = plan.steps.iter().flatten().map(|step| step.tool.as_str());
    let names: Vec<String> =
        steps.chain(plan.tools.iter().flatten().map(String::as_str)).map(str::to_owned).collect();
    if offline.worlds.now().policy().enabled().is_ok() {
        find(&offline, names.iter().map(String::as_str)).await;
    }
    let runtime = Arc::new(Runtime::build(offline).await?);
    let mut maintenance = Maintenance::of_command(&runtime);
    runtime.record_discovered().await;
    let context = CallContext { agent_id: Some("cli".to_owned()), ..CallContext::default() };
    let mut signals = Signals::new()?;
    let (conversation, cancel) = Conversation::detached();
    let planning = runtime.proxy.plan_until(plan, &caller, &context, &conversation);
    let mut planning = std::pin::pin!(planning);
    let planned = tokio::select! {
        report = &mut planning => Ok(report),
        stop = stopped(&mut signals, &mut maintenance) => Err(stop),
    };
    let (report, ended, stop) = match planned {
        Ok(report) => (report, end(&runtime, &mut signals, false).await, None),
        // Running steps are settled or cancelled, and no further one begins.
        Err(stop) => {
            cancel.cancel();
            let (report, ended) = tokio::select! {
                both = async { tokio::join!(planning, runtime.shut_down()) } => both,
                () = signals.received() => return Err(interrupted()),
            };
            (report, ended, Some(stop))
        }
    };
    maintenance.end().await;
    let report = report.map_err(refused)?;
    show_report(&report, format);
    finish(stop, ended)?;
    Ok(report.skipped || report.steps.iter().all(|step| step.success))
}

fn show_report(report: &PlanReport, format: Format) {
    if format.is_json() {
        return output::json(report);
    }
    if let Some(reason) = &report.reason {
        output::line(&format!("skipped: {reason}"));
    }
    let rows: Vec<Vec<String>> = report
        .steps
        .iter()
        .map(|step| {
            let status = serde_json::to_value(step.status).unwrap_or(Value::Null);
            let mut told = output::cell(Some(&status));
            if step.replayed && step.status == StepStatus::Succeeded {
                told.push_str(" (replayed)");
            }
            let error = step.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
            vec![step.id.clone(), step.tool.clone(), told, format!("{:.3} s", step.elapsed), error]
        })
        .collect();
    output::table(&["STEP", "TOOL", "STATUS", "ELAPSED", "ERROR"], &rows);
}
