//! `hook`: decides on a call of a client's own tool, on the path of every call.
//!
//! Doc: hooks.md#decisions, hooks.md#caller

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_contracts::{
    CallContext, Caller, CallerKind, Conversation, ErrorCode, Status, ToolCall, ToolName,
    ToolResult,
};
use toolbooth_import::{HookCall, HookClient};

use super::maintenance::Maintenance;
use crate::callers;
use crate::compose::Runtime;
use crate::config::{DurabilitySetting, Hook, Loaded};
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
    let end = Instant::now() + limit.mul_f64(0.8);
    let left = || end.saturating_duration_since(Instant::now());
    let mut gateway = None;
    let decided = tokio::time::timeout(left(), decided(client, end, trusted, &mut gateway)).await;
    let decision = match decided {
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
    // The decision is recorded. The end of the log and the notifications get the remaining time.
    if let Some((runtime, _maintenance)) = gateway {
        match tokio::time::timeout(left(), runtime.shut_down()).await {
            Ok(Ok(())) => (),
            Ok(Err(failure)) => crate::notice(&failure.text()),
            Err(_) => crate::notice("the records were not closed in time"),
        }
    }
    output::json_line(&decision);
    Ok(true)
}

async fn decided(
    client: HookClient,
    end: Instant,
    trusted: Result<Trusted, Failure>,
    gateway: &mut Option<(Arc<Runtime>, Maintenance)>,
) -> Result<Decision, Failure> {
    let call = read(client)?;
    let loaded = trusted?;
    let hook = configured(client, &loaded)?;
    let caller = caller_of(client, &hook, &loaded).await?;
    if let Some(server) = &call.server {
        if hook.gateways.contains(server) {
            return Ok(Decision::permit());
        }
        // Judged by its name, it would be taken for a tool of the client's own.
        if !call.tool.starts_with("mcp_") {
            let message = format!("a tool of the server `{server}` has a name without `mcp_`");
            return Err(Failure::new(USAGE, "invalid-message", message));
        }
    }
    let HookCall { tool, input, session_id, .. } = call;
    let args = serde_json::to_string(&Value::Object(input)).and_then(RawValue::from_string);
    let args = args.map_err(|error| Failure::usage(format!("the arguments: {error}")))?;
    let runtime = Arc::new(Runtime::build(OfflineGateway::build(loaded).await?).await?);
    // The call can wait for an approval longer than a lease lasts.
    let maintenance = Maintenance::of_command(&runtime);
    let (runtime, _) = gateway.insert((runtime, maintenance));
    // A call that waits for its approval is answered before the time is over.
    let limit = end.saturating_duration_since(Instant::now()).mul_f64(0.8);
    let asked = ToolCall {
        tool: ToolName::Id(client.tool_id(&tool)),
        args: Some(args),
        context: CallContext {
            agent_id: Some(client.as_str().to_owned()),
            session_id,
            deadline_ms: Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
            ..CallContext::default()
        },
        caller,
        toolset: Some(Arc::from(client.runtime_id())),
    };
    let (conversation, _counterpart) = Conversation::pair(false);
    let result = runtime.proxy.call(asked, conversation).await;
    Ok(of_result(client, &tool, &result))
}

/// Returns the caller that the calls of a client belong to.
async fn caller_of(client: HookClient, hook: &Hook, loaded: &Loaded) -> Result<Caller, Failure> {
    let setting = || format!("hooks.{}.caller", client.as_str());
    let caller = callers::acting(loaded, hook.caller.as_deref().unwrap_or("local")).await;
    let caller = caller.map_err(|failure| failure.at(setting()))?;
    if caller.kind() == CallerKind::Operator {
        let message = "an agent cannot be the operator";
        return Err(Failure::configuration(message).at(setting()));
    }
    Ok(caller)
}

/// Checks the settings of a client's hook, and returns the caller that its calls belong to.
pub(super) async fn check(client: HookClient, loaded: &Loaded) -> Result<Caller, Failure> {
    let hook = configured(client, loaded)?;
    caller_of(client, &hook, loaded).await
}

/// Returns the settings of a client's hook.
fn configured(client: HookClient, loaded: &Loaded) -> Result<Hook, Failure> {
    let Some(hook) = loaded.config.hooks.of(client) else {
        return Err(not_configured(client, loaded));
    };
    if loaded.config.store.durability == DurabilitySetting::Memory {
        let message = "each hook is a process of its own, and `memory` keeps nothing between them";
        return Err(Failure::configuration(message).at("store.durability"));
    }
    Ok(hook.clone())
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
    if result.replayed {
        // What the client would do now is another effect than that of the earlier call.
        return Decision::deny(
            "Toolbooth denied this call: a call with the same key was permitted before, and its tool is \
             to run once.",
        );
    }
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
                    ". An operator can grant the approval {id}; then try the same call again."
                ));
            }
        }
        _ => (),
    }
    Decision::deny(reason)
}

/// Prints the client settings by which the client runs this program with the configuration in use. `data`
/// is the data folder, if the command line names it.
pub(super) fn settings(
    client: HookClient,
    limit: Duration,
    loaded: &Loaded,
    data: Option<&Path>,
    format: Format,
) -> Result<bool, Failure> {
    configured(client, loaded)?;
    let Some(file) = &loaded.file else { return Err(not_configured(client, loaded)) };
    let this = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("this program cannot be found: {error}")))?;
    let mut words = vec![text(&this)?, "hook".to_owned(), client.as_str().to_owned()];
    words.extend(["--config".to_owned(), text(file)?]);
    if let Some(data) = data {
        words.extend(["--data".to_owned(), text(data)?]);
    }
    words.extend(["--timeout".to_owned(), limit.as_secs().to_string()]);
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let (settings_file, settings) = client.settings(&words.join(" "), limit + MARGIN);
    if !format.is_json() {
        crate::notice(&format!("add this to {settings_file}:"));
    }
    output::json(&settings);
    Ok(true)
}

/// Returns an absolute path as text.
fn text(path: &Path) -> Result<String, Failure> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::usage("the path is not UTF-8, which settings of clients must be")
            .at(path.display().to_string())
    })
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
    let caller = check(client, &offline.loaded).await?;
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
