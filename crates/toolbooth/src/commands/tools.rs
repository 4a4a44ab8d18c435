//! `list`, `search`, `show`, `discover`, `export`, `coverage`: show and export tools.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_adapters::declarations;
use toolbooth_contracts::ToolContract;
use toolbooth_policy::ToolStatus;
use toolbooth_proxy::Visible;
use toolbooth_registry::lock::Lock;
use toolbooth_registry::{RegisteredTool, Source, coverage as report, file};

use super::pause;
use crate::callers;
use crate::cli::{CoverageFormat, Form};
use crate::failure::{FAILED, Failure};
use crate::offline::{OfflineGateway, remember_names, report_first_uses};
use crate::output::{self, Format};

/// Asks every source and determines the state of every tool.
pub(super) async fn everything(offline: &OfflineGateway) {
    offline.catalogue.want_states().await;
    offline.catalogue.refresh_all().await;
    report_first_uses(offline);
}

pub(super) async fn list(
    offline: OfflineGateway,
    caller_name: &str,
    limit: Option<usize>,
    after: Option<&str>,
    format: Format,
) -> Result<bool, Failure> {
    let caller = callers::named(&offline.loaded, caller_name).await?;
    everything(&offline).await;
    pause::apply_and_report(&offline).await;
    remember_names(&offline);
    let (tools, next) = offline.catalogue.view(&caller).all(after, limit.unwrap_or(usize::MAX));
    offline.close().await;
    if format.is_json() {
        let tools: Vec<Value> = tools.iter().map(row).collect();
        let mut out = json!({ "tools": tools });
        if let (Some(next), Some(members)) = (next, out.as_object_mut()) {
            members.insert("next".to_owned(), json!(next));
        }
        output::json(&out);
        return Ok(true);
    }
    let rows: Vec<Vec<String>> = tools.iter().map(line).collect();
    output::table(&["TOOL", "STATE", "SOURCE", "IDEMPOTENCY", "DESCRIPTION"], &rows);
    if let Some(next) = next {
        crate::notice(&format!("more follow: --after {next}"));
    }
    Ok(true)
}

fn line(visible: &Visible) -> Vec<String> {
    let contract = visible.tool.contract();
    let description = contract.description.as_deref().unwrap_or_default();
    vec![
        contract.tool_id.to_string(),
        visible.state.map_or("unknown", |state| state.as_str()).to_owned(),
        visible.tool.source().to_string(),
        contract.idempotency.mode.as_str().to_owned(),
        description.lines().next().unwrap_or_default().chars().take(60).collect(),
    ]
}

pub(super) fn row(visible: &Visible) -> Value {
    let contract = visible.tool.contract();
    let mut out = Map::new();
    out.insert("toolId".to_owned(), json!(contract.tool_id));
    out.insert("wireName".to_owned(), json!(visible.wire_name));
    out.insert("category".to_owned(), json!(contract.category));
    out.insert("source".to_owned(), json!(visible.tool.source().to_string()));
    out.insert("state".to_owned(), json!(visible.state));
    for (name, text) in [("title", &contract.title), ("description", &contract.description)] {
        if let Some(text) = text {
            out.insert(name.to_owned(), json!(text));
        }
    }
    out.insert("target".to_owned(), json!(visible.tool.adapter().to_string()));
    out.insert("idempotency".to_owned(), json!(contract.idempotency.mode));
    out.insert("permissions".to_owned(), json!(contract.permissions));
    Value::Object(out)
}

pub(super) async fn show(
    offline: OfflineGateway,
    name: &str,
    caller_name: &str,
    format: Format,
) -> Result<bool, Failure> {
    let caller = callers::named(&offline.loaded, caller_name).await?;
    everything(&offline).await;
    let view = offline.catalogue.view(&caller);
    let found = view.find_any(name);
    pause::apply_and_report(&offline).await;
    offline.close().await;
    let Some(visible) = found else {
        let (tools, _) = view.all(None, usize::MAX);
        let ids: Vec<String> = tools.iter().map(|tool| tool.tool.id().to_string()).collect();
        let failure =
            Failure::new(FAILED, "unregistered-tool", format!("there is no tool `{name}`"));
        return Err(match toolbooth_contracts::id::nearest(name, ids.iter().map(String::as_str)) {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None => failure.hint("`toolbooth list` shows the tools"),
        });
    };
    let tool = &visible.tool;
    let mut out = row(&visible);
    if let Some(members) = out.as_object_mut() {
        let world = offline.worlds.now();
        let reason = match world.is_paused(tool, &caller) {
            true => Some("paused".to_owned()),
            false => world.state(tool).and_then(|state| state.reason.clone()),
        };
        if let Some(reason) = reason {
            members.insert("reason".to_owned(), json!(reason));
        }
        members.insert("contractDigest".to_owned(), json!(tool.contract_digest()));
        members.insert("sourceDigest".to_owned(), json!(tool.source_digest()));
        members.insert("warnings".to_owned(), json!(tool.warnings()));
        members.insert("contract".to_owned(), json!(tool.contract().as_ref()));
    }
    if format.is_json() {
        output::json(&out);
        return Ok(true);
    }
    let members = out.as_object().cloned().unwrap_or_default();
    for (name, value) in members.iter().filter(|(name, _)| *name != "contract") {
        output::foreign(&format!("{name:<16}{}", output::cell(Some(value))));
    }
    output::line("contract");
    output::json(&members.get("contract"));
    Ok(true)
}

pub(super) async fn search(
    offline: OfflineGateway,
    query: &str,
    caller_name: &str,
    limit: usize,
    format: Format,
) -> Result<bool, Failure> {
    let caller = callers::named(&offline.loaded, caller_name).await?;
    everything(&offline).await;
    pause::apply_and_report(&offline).await;
    remember_names(&offline);
    let found = offline.catalogue.view(&caller).search(query, limit);
    offline.close().await;
    if format.is_json() {
        output::json(&json!({ "tools": found.iter().map(row).collect::<Vec<_>>() }));
        return Ok(true);
    }
    if found.is_empty() {
        crate::notice("no tool has these words; `toolbooth list` shows all");
        return Ok(true);
    }
    let rows: Vec<Vec<String>> = found.iter().map(line).collect();
    output::table(&["TOOL", "STATE", "SOURCE", "IDEMPOTENCY", "DESCRIPTION"], &rows);
    Ok(true)
}

pub(super) async fn discover(
    offline: OfflineGateway,
    wanted: &[String],
    write: bool,
    format: Format,
) -> Result<bool, Failure> {
    for source in wanted {
        if !Source::parse(source).is_some_and(|source| source.is_discovered()) {
            let failure = Failure::usage(format!("`{source}` is not a source that can be asked"));
            return Err(failure.hint("sources are `mcp:NAME` and `command:NAME`"));
        }
    }
    let chosen =
        |source: &Source| wanted.is_empty() || wanted.iter().any(|own| *own == source.to_string());
    let states = offline.catalogue.refresh_only(chosen).await;
    report_first_uses(&offline);
    remember_names(&offline);
    let world = offline.worlds.now();
    offline.close().await;
    if let Some(unknown) =
        wanted.iter().find(|own| states.iter().all(|state| state.source != **own))
    {
        return Err(Failure::usage(format!("there is no source `{unknown}` in the configuration")));
    }
    let listed =
        |tool: &&Arc<RegisteredTool>| tool.source().is_discovered() && chosen(tool.source());
    let tools: Vec<&Arc<RegisteredTool>> = world.registry().iter().filter(listed).collect();
    let contracts: Vec<&ToolContract> = tools.iter().map(|tool| tool.contract().as_ref()).collect();
    let ok = states.iter().all(|state| state.unhealthy.is_none());
    let mut written = None;
    if write {
        // A quarantined tool must be reviewed first.
        let trusted: Vec<&ToolContract> = tools
            .iter()
            .filter(|tool| !matches!(world.status(tool), ToolStatus::Quarantined(_)))
            .map(|tool| tool.contract().as_ref())
            .collect();
        written = Some(write_contracts(&offline, &trusted)?);
    }
    if format.is_json() {
        let mut out = json!({ "sources": states, "tools": contracts });
        if let (Some((path, count)), Some(members)) = (&written, out.as_object_mut()) {
            members.insert("written".to_owned(), json!({ "file": path, "tools": count }));
        }
        output::json(&out);
        return Ok(ok);
    }
    let rows: Vec<Vec<String>> = states
        .iter()
        .map(|state| {
            let health = state.unhealthy.clone().unwrap_or_else(|| "answers".to_owned());
            let resources = state.resources + state.templates;
            let counts = [state.tools, state.prompts, resources].map(|count| count.to_string());
            let [tools, prompts, resources] = counts;
            vec![state.source.clone(), tools, prompts, resources, health]
        })
        .collect();
    output::table(&["SOURCE", "TOOLS", "PROMPTS", "RESOURCES", "STATE"], &rows);
    for state in &states {
        for problem in &state.problems {
            output::foreign(&format!("  {}: {problem}", state.source));
        }
        for quarantined in &state.quarantined {
            output::foreign(&format!("  {}: in quarantine: {quarantined}", state.source));
        }
        for suspicious in &state.suspicious {
            output::foreign(&format!("  {}: suspicious: {suspicious}", state.source));
        }
    }
    for contract in contracts {
        output::line(contract.tool_id.as_str());
    }
    if let Some((path, count)) = written {
        output::line(&format!(
            "{path}: {count} contract(s) written; read them before you rely on them"
        ));
    }
    Ok(ok)
}

/// Adds contracts to the registry file. Existing contracts with the same id are unchanged.
pub(super) fn write_contracts(
    offline: &OfflineGateway,
    contracts: &[&ToolContract],
) -> Result<(String, usize), Failure> {
    let (path, _) = offline.loaded.registry();
    let shown = path.display().to_string();
    let text = match crate::files::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            file::EMPTY.as_bytes().to_vec()
        }
        Err(error) => {
            return Err(Failure::configuration(format!(
                "the registry file cannot be read: {error}"
            ))
            .at(shown));
        }
    };
    let entries: Vec<Value> =
        contracts.iter().filter_map(|contract| serde_json::to_value(contract).ok()).collect();
    let guard = offline.catalogue.guard();
    let (text, count) = file::with_entries(&text, &shown, &entries, guard)
        .map_err(|error| crate::registry_file::rejected(&error))?;
    if count > 0 {
        super::lock::replace_file(&path, &text)?;
        offline.loaded.registry_written();
    }
    Ok((shown, count))
}

pub(super) async fn export(
    offline: OfflineGateway,
    form: Form,
    strict: bool,
    caller_name: &str,
) -> Result<bool, Failure> {
    let caller = callers::named(&offline.loaded, caller_name).await?;
    let openai = matches!(form, Form::Openai | Form::OpenaiResponses);
    if strict && !openai {
        return Err(Failure::usage("only the openai forms have a strict mode"));
    }
    everything(&offline).await;
    remember_names(&offline);
    let view = offline.catalogue.view(&caller);
    offline.close().await;
    let name = match form {
        Form::Registry => {
            let (tools, _) = view.listed(None, usize::MAX);
            let tools = tools.iter().map(|tool| tool.tool.contract().as_ref().clone()).collect();
            output::json(&file::RegistryFile { version: file::VERSION.to_owned(), tools });
            return Ok(true);
        }
        Form::Gemini => "gemini",
        Form::Openai => "openai",
        Form::OpenaiResponses => "openai-responses",
        Form::Anthropic => "anthropic",
        Form::Mcp => "mcp",
    };
    let declared = view.declarations();
    let rendered = if strict {
        use toolbooth_contracts::port::DeclarationFormat;
        let responses = form == Form::OpenaiResponses;
        declarations::OpenAi { responses, strict }.render(&declared)
    } else {
        declarations::by_name(name)
            .ok_or_else(|| Failure::usage(format!("there is no form `{name}`")))?
            .render(&declared)
    };
    output::json(&rendered.document);
    if strict {
        for finding in rendered.findings {
            crate::notice(&format!(
                "note: {}{}: {}",
                finding.tool_id, finding.path, finding.message
            ));
        }
    } else if !rendered.findings.is_empty() {
        let mut unsaid: BTreeMap<(String, String), usize> = BTreeMap::new();
        for finding in rendered.findings {
            *unsaid.entry((finding.path, finding.message)).or_default() += 1;
        }
        for ((path, message), tools) in unsaid {
            crate::notice(&format!("note: {path} of {tools} tool(s) is not said: {message}"));
        }
    }
    Ok(true)
}

pub(super) async fn coverage(
    offline: OfflineGateway,
    check: Option<PathBuf>,
    probe: bool,
    format: Option<CoverageFormat>,
) -> Result<bool, Failure> {
    // With a lock file the approved tools are known, so no source is started to count them. Pins belong to
    // this machine, so a report based on them is not comparable with another machine's report.
    if probe || !matches!(offline.worlds.now().approvals().lock, Lock::File(_)) {
        everything(&offline).await;
    }
    let covered = offline.catalogue.coverage(probe).await;
    offline.close().await;
    if let Some(path) = check {
        let current = match format {
            Some(CoverageFormat::Json) => {
                format!("{}\n", serde_json::to_string_pretty(&covered).unwrap_or_default())
            }
            _ => report::markdown(&covered),
        };
        let there = std::fs::read_to_string(&path).map_err(|error| {
            Failure::usage(format!("the coverage file cannot be read: {error}"))
                .at(path.display().to_string())
        })?;
        if there == current {
            if format == Some(CoverageFormat::Json) {
                output::json(&json!({ "ok": true }));
            }
            return Ok(true);
        }
        return Err(Failure::new(FAILED, "stale-coverage", "the coverage file is not up to date")
            .at(path.display().to_string())
            .hint("write it again: `toolbooth coverage --format md > FILE`"));
    }
    match format.unwrap_or(CoverageFormat::Table) {
        CoverageFormat::Json => output::json(&covered),
        CoverageFormat::Md => output::text(&report::markdown(&covered)),
        CoverageFormat::Table => {
            let rows: Vec<Vec<String>> = covered
                .tools
                .iter()
                .map(|row| {
                    vec![
                        row.tool_id.clone(),
                        row.state.as_str().to_owned(),
                        row.source.clone(),
                        row.target.clone(),
                        row.reason.clone().unwrap_or_default(),
                    ]
                })
                .collect();
            output::table(&["TOOL", "STATE", "SOURCE", "TARGET", "REASON"], &rows);
            let totals = covered.totals;
            output::line(&format!(
                "{} tool(s): {} real, {} not configured, {} quarantined, {} unhealthy",
                totals.total,
                totals.real,
                totals.not_configured,
                totals.quarantined,
                totals.unhealthy
            ));
        }
    }
    Ok(true)
}
