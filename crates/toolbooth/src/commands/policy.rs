//! `policy check` and `policy explain`: findings about the rules, and the reasons of a decision.
//!
//! Doc: policy.md#explaining

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::history::{History, WindowName};
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::{Arguments, CallContext, ToolName};
use toolbooth_policy::rules::{ChangedRule, RuleSet, StatedRule};
use toolbooth_policy::{Explanation, RuleSeverity};
use toolbooth_proxy::{Clock, SystemClock};

use super::{pause, text_argument, tools};
use crate::callers;
use crate::cli::Context;
use crate::config::Loaded;
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::{records, rules};

/// Checks the rules against all tools, and runs their cases.
pub(super) async fn check(offline: OfflineGateway, format: Format) -> Result<bool, Failure> {
    tools::everything(&offline).await;
    let world = offline.worlds.now();
    let fit = offline.rule_fit();
    offline.close().await;
    let count = |severity| {
        fit.findings.iter().filter(|finding| finding.code.severity() == severity).count()
    };
    let (errors, warnings) = (count(RuleSeverity::Error), count(RuleSeverity::Warning));
    let version = world.policy().version();
    if format.is_json() {
        let findings: Vec<Value> = fit
            .findings
            .iter()
            .map(|finding| {
                let mut row = json!({
                    "severity": finding.code.severity().as_str(),
                    "code": finding.code.as_str(),
                    "file": finding.location.file,
                    "line": finding.location.line,
                    "column": finding.location.column,
                    "message": finding.message,
                });
                let optional = [("tool", &finding.tool), ("hint", &finding.hint)];
                if let Some(members) = row.as_object_mut() {
                    let there = optional.into_iter().filter_map(|(name, value)| {
                        Some((name.to_owned(), json!(value.as_ref()?)))
                    });
                    members.extend(there);
                }
                row
            })
            .collect();
        output::json(&json!({ "ok": errors == 0, "policyVersion": version, "findings": findings }));
        return Ok(errors == 0);
    }
    for finding in &fit.findings {
        let word = finding.code.severity().as_str();
        let (code, location) = (finding.code.as_str(), &finding.location);
        output::foreign(&format!("{word}: {location}: {} ({code})", rules::about(finding)));
        if let Some(hint) = &finding.hint {
            output::foreign(&format!("  {hint}"));
        }
    }
    let tools = world.registry().len();
    output::line(&format!(
        "policy {version}: {tools} tool(s), {errors} error(s), {warnings} warning(s)"
    ));
    Ok(errors == 0)
}

/// Compares two sets of rules, rule by rule.
pub(super) async fn diff(
    loaded: &Loaded,
    before: &str,
    after: &str,
    format: Format,
) -> Result<bool, Failure> {
    let (before, after) = (
        Compared::read(loaded, before, "BEFORE").await?,
        Compared::read(loaded, after, "AFTER").await?,
    );
    let found = before.rules.differences(&after.rules);
    let settings = before.settings.zip(after.settings);
    let settings = settings.map(|(before, after)| changed_settings(&before, &after));
    if format.is_json() {
        let mut out = json!(found);
        if let (Some(settings), Some(members)) = (settings, out.as_object_mut()) {
            members.insert("settings".to_owned(), settings.into());
        }
        output::json(&out);
        return Ok(true);
    }
    for setting in settings.iter().flatten() {
        output::foreign(&format!("setting `{}`", output::cell(setting.get("name"))));
        for (sign, name) in [('-', "before"), ('+', "after")] {
            output::foreign(&format!("  {sign} {}", output::cell(setting.get(name))));
        }
    }
    let state = |sign: char, rule: &StatedRule| {
        rule.text.lines().for_each(|line| output::foreign(&format!("  {sign} {line}")));
    };
    for rule in &found.removed {
        output::foreign(&format!("removed `{}` ({})", rule.id, rule.place));
        state('-', rule);
    }
    for ChangedRule { parts, before, after } in &found.changed {
        let parts = parts.join(", ");
        output::foreign(&format!("changed `{}` ({}): {parts}", after.id, after.place));
        state('-', before);
        state('+', after);
    }
    for rule in &found.added {
        output::foreign(&format!("added `{}` ({})", rule.id, rule.place));
        state('+', rule);
    }
    output::line(&format!(
        "{} added, {} removed, {} changed, {} same",
        found.added.len(),
        found.removed.len(),
        found.changed.len(),
        found.same
    ));
    Ok(true)
}

/// One of two policies that are compared.
struct Compared {
    rules: Arc<RuleSet>,
    /// The document of a policy that was in force, without its rules.
    settings: Option<Map<String, Value>>,
}

/// Whether an argument is the version of a policy.
pub(super) fn is_version(argument: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    argument.len() == 32 && argument.bytes().all(is_digit)
}

impl Compared {
    /// Reads the rules of a file, of a folder, or of a version of the policy.
    async fn read(loaded: &Loaded, argument: &str, name: &str) -> Result<Self, Failure> {
        if !is_version(argument) {
            let rules = rules::read_at(loaded, Path::new(argument), name)?;
            return Ok(Self { rules, settings: None });
        }
        let document = super::records::need(loaded).await?.document(argument).await;
        let Some(text) = document.map_err(super::records::unreadable)? else {
            let message = format!("no policy with the version `{argument}` is kept");
            return Err(Failure::new(FAILED, "not-found", message)
                .at(name.to_owned())
                .hint("a policy is kept with the first call whose arguments it judges, as long as the logs are"));
        };
        let unreadable = |reason: String| {
            let message = format!("the policy `{argument}` cannot be read: {reason}");
            Failure::new(FAILED, "invalid-policy", message).at(name.to_owned())
        };
        let bundle: Value =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        let rules = RuleSet::of_bundle(&bundle);
        let rules = rules.map_err(|error| unreadable(with_causes(&error)))?;
        let Value::Object(mut settings) = bundle else {
            return Err(unreadable("it is no object".to_owned()));
        };
        let windows = settings
            .remove("rules")
            .and_then(|mut rules| rules.get_mut("windows").map(Value::take));
        settings.insert("history".to_owned(), windows.unwrap_or(Value::Null));
        Ok(Self { rules, settings: Some(settings) })
    }
}

/// Returns the settings that differ, each with both values.
fn changed_settings(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<Value> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    changed
        .map(|name| json!({ "name": name, "before": before.get(name), "after": after.get(name) }))
        .collect()
}

/// Returns the calls in these windows by the records of the store; none without a store.
async fn earlier(
    loaded: &Loaded,
    windows: BTreeMap<String, WindowName>,
    at_ms: i64,
) -> Result<History, Failure> {
    let mut earlier = History::new();
    if windows.is_empty() {
        return Ok(earlier);
    }
    let Some(reads) = records::reads(loaded, None).await? else { return Ok(earlier) };
    for (name, window) in windows {
        let totals = reads.window(window, at_ms).await;
        let totals = totals.map_err(super::records::unreadable)?;
        earlier.insert(name, totals.seen(at_ms));
    }
    Ok(earlier)
}

/// Explains the decision on a call. Runs no tool.
pub(super) async fn explain(
    offline: OfflineGateway,
    tool: &str,
    args: &str,
    context: Context,
    format: Format,
) -> Result<bool, Failure> {
    let caller = callers::named(&offline.loaded, &context.caller).await?;
    let text = text_argument(args)?;
    let text = String::from_utf8(text)
        .ok()
        .and_then(|text| serde_json::value::RawValue::from_string(text).ok().map(Arguments::parse));
    let arguments = match text {
        Some(Ok(arguments)) => arguments,
        Some(Err(unfit)) => {
            return Err(Failure::usage(unfit.reason.to_error().message).at("--args"));
        }
        None => return Err(Failure::usage("the arguments are not JSON").at("--args")),
    };
    tools::everything(&offline).await;
    pause::apply(&offline).await?;
    let world = offline.worlds.now();
    let claimed = CallContext {
        agent_id: Some(context.agent),
        turn_index: context.turn,
        phase_id: context.phase,
        epic_id: context.epic,
        session_id: context.session,
        ..CallContext::default()
    };
    let now = SystemClock::default().now();
    let name = ToolName::IdOrWire(tool.to_owned());
    let windows = world.windows(&caller, &name, &arguments, &claimed, &now.text);
    let earlier = earlier(&offline.loaded, windows, now.epoch_ms).await?;
    let explanation = world.explain(&caller, &name, arguments, &claimed, &now.text, &earlier);
    offline.close().await;
    let Some(explanation) = explanation else {
        let known: Vec<&str> = world.registry().iter().map(|tool| tool.id().as_str()).collect();
        let message = format!("there is no tool `{tool}`");
        let failure = Failure::new(FAILED, "unregistered-tool", message);
        return Err(match nearest(tool, known) {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None => failure.hint("`toolbooth list` shows the tools"),
        });
    };
    match format.is_json() {
        true => output::json(&explanation),
        false => print(&explanation),
    }
    Ok(true)
}

/// Prints an explanation for persons.
pub(super) fn print(explanation: &Explanation) {
    let rows: Vec<Vec<String>> = explanation
        .steps
        .iter()
        .map(|step| {
            let result = serde_json::to_value(step.result).unwrap_or_default();
            let result = result.as_str().unwrap_or_default().to_owned();
            vec![step.step.to_owned(), result, step.saw.clone()]
        })
        .collect();
    if !rows.is_empty() {
        output::table(&["STEP", "RESULT", "SAW"], &rows);
    }
    let (decision, rule) = (explanation.decision, &explanation.rule);
    output::foreign(&format!("{decision} by `{rule}`: {}", explanation.reason));
}
