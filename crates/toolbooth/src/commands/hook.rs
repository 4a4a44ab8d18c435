//! `hook`: decides on a call of a client's own tool, on the path of every call.
//!
//! Doc: hooks.md#decisions, hooks.md#caller

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_contracts::{
    CallContext, CallerKind, Conversation, ErrorCode, Status, ToolCall, ToolName, ToolResult,
};
use toolbooth_import::{HookCall, HookClient};

use crate::callers;
use crate::compose::Runtime;
use crate::config::Loaded;
use crate::failure::{Failure, USAGE};
use crate::hook::Decision;
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::trust::Trusted;

/// The time by which the client's own timeout is longer.
const MARGIN: Duration = Duration::from_secs(15);

/// Prints the decision on the message on standard input. A failure is a denial: its code is for the agent, its
/// text for the operator.
pub(super) async fn decide(
    client: HookClient,
    limit: Duration,
    trusted: Result<Trusted, Failure>,
) -> Result<bool, Failure> {
    // The rest of the time is for the answer, and for the process that waits for it.
    let own = limit.mul_f64(0.9);
    let decision = match tokio::time::timeout(own, decided(client, own.mul_f64(0.8), trusted)).await
    {
        Ok(Ok(decision)) => decision,
        Ok(Err(failure)) => {
            crate::notice(&failure.text());
            let code = failure.code;
            Decision::deny(format!(
                "Toolbooth cannot decide on this call, so it is denied ({code}). The operator can look into \
                 it: `toolbooth doctor`."
            ))
        }
        Err(_) => Decision::deny("Toolbooth did not decide on this call in time, so it is denied."),
    };
    output::json_line(&decision);
    Ok(true)
}

async fn decided(
    client: HookClient,
    limit: Duration,
    trusted: Result<Trusted, Failure>,
) -> Result<Decision, Failure> {
    let call = read(client)?;
    let loaded = trusted?;
    let Some(hook) = loaded.config.hooks.of(client) else {
        return Err(not_configured(client, &loaded));
    };
    if call.server.as_ref().is_some_and(|server| hook.gateways.contains(server)) {
        return Ok(Decision::permit());
    }
    let name = hook.caller.as_deref().unwrap_or("local");
    let caller = callers::named(&loaded, name).await?;
    if caller.kind() == CallerKind::Operator {
        let message = "an agent cannot be the operator";
        return Err(Failure::configuration(message).at(format!("hooks.{}.caller", client.as_str())));
    }
    let HookCall { tool, input, session_id, .. } = call;
    let args = serde_json::to_string(&Value::Object(input)).and_then(RawValue::from_string);
    let args = args.map_err(|error| Failure::usage(format!("the arguments: {error}")))?;
    let asked = ToolCall {
        tool: ToolName::Id(client.tool_id(&tool)),
        args: Some(args),
        context: CallContext {
            agent_id: Some(client.as_str().to_owned()),
            session_id,
            deadline_ms: Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            ..CallContext::default()
        },
        caller,
        toolset: Some(Arc::from(client.runtime_id())),
    };
    let runtime = Runtime::build(OfflineGateway::build(loaded).await?).await?;
    let (conversation, _counterpart) = Conversation::pair(false);
    let result = runtime.proxy.call(asked, conversation).await;
    runtime.shut_down().await?;
    Ok(of_result(client, &tool, &result))
}

/// Reads the message of the client.
fn read(client: HookClient) -> Result<HookCall, Failure> {
    let mut message = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut message)
        .map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    client.read(&message).map_err(|error| {
        Failure::new(USAGE, "invalid-message", error.to_string())
            .hint(format!("this command is for hooks of {}", client.as_str()))
    })
}

fn not_configured(client: HookClient, loaded: &Loaded) -> Failure {
    let name = client.as_str();
    let file = loaded.file.as_ref().map_or_else(
        || "there is no toolbooth.toml here or above".to_owned(),
        |file| file.display().to_string(),
    );
    Failure::new(USAGE, "hook-not-configured", format!("there is no `[hooks.{name}]`"))
        .at(file)
        .hint(format!("add `[hooks.{name}]` to it; `--config FILE` chooses another one"))
}

/// Returns the decision that an answer of the path states.
fn of_result(client: HookClient, tool: &str, result: &ToolResult) -> Decision {
    let permitted = result.structured_content.as_ref().map(|content| content.tree());
    if result.status == Status::Succeeded && permitted == Some(json!({ "permitted": true })) {
        return Decision::permit();
    }
    let Some(error) = &result.error else {
        return Decision::deny("Toolbooth did not permit this call.");
    };
    let mut reason = format!("Toolbooth denied this call: {} ({})", error.message, error.code);
    let detail = |name: &str| error.details.get(name).and_then(Value::as_str);
    match error.code {
        ErrorCode::UnregisteredTool => {
            let id = client.tool_id(tool);
            reason.push_str(&format!(
                ". `{id}` is not a registered tool, or not for this caller; the operator can register it."
            ));
        }
        ErrorCode::ApprovalRequired => {
            if let Some(id) = detail("approvalId") {
                reason.push_str(&format!(
                    ". An operator can grant it (`toolbooth approvals approve {id}`); then try the same call \
                     again."
                ));
            }
        }
        _ => (),
    }
    Decision::deny(reason)
}

/// Prints what the settings of a client need, so that it asks this program with the configuration in use.
pub(super) fn settings(
    client: HookClient,
    limit: Duration,
    loaded: &Loaded,
    format: Format,
) -> Result<bool, Failure> {
    if loaded.config.hooks.of(client).is_none() {
        return Err(not_configured(client, loaded));
    }
    let Some(file) = &loaded.file else { return Err(not_configured(client, loaded)) };
    let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
    let this = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("this program cannot be found: {error}")))?;
    let words = [
        this.display().to_string(),
        "hook".to_owned(),
        client.as_str().to_owned(),
        "--config".to_owned(),
        file.display().to_string(),
        "--timeout".to_owned(),
        limit.as_secs().to_string(),
    ];
    let command = words.map(|word| quoted(&word)).join(" ");
    let (place, settings) = client.settings(&command, limit + MARGIN);
    if !format.is_json() {
        crate::notice(&format!("add this to {place}:"));
    }
    output::json(&settings);
    Ok(true)
}

/// Returns a word of a POSIX shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Lists the tools of a client that its hook can ask for.
pub(super) async fn list(
    client: HookClient,
    offline: OfflineGateway,
    format: Format,
) -> Result<bool, Failure> {
    let Some(hook) = offline.loaded.config.hooks.of(client) else {
        return Err(not_configured(client, &offline.loaded));
    };
    let caller = callers::named(&offline.loaded, hook.caller.as_deref().unwrap_or("local")).await?;
    let view = offline.catalogue.view(&caller).within(Some(Arc::from(client.runtime_id())));
    let (tools, _) = view.all(None, usize::MAX);
    offline.close().await;
    if format.is_json() {
        let tools: Vec<Value> = tools.iter().map(super::tools::row).collect();
        output::json(&json!({ "tools": tools }));
        return Ok(true);
    }
    let row = |contract: &toolbooth_contracts::ToolContract| {
        let read_only = contract.policy.read_only == Some(true);
        let kind = if read_only { "read" } else { "write" };
        vec![contract.tool_id.to_string(), kind.to_owned(), contract.permissions.join(", ")]
    };
    let rows: Vec<Vec<String>> = tools.iter().map(|tool| row(tool.tool.contract())).collect();
    output::table(&["TOOL", "ACTION", "PERMISSIONS"], &rows);
    Ok(true)
}
