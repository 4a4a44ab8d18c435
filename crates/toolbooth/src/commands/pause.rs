//! `pause` and `resume`: stop calls of all callers, of one caller, to one tool or to one server.
//!
//! Doc: policy.md#pauses

use serde_json::{Value, json};
use toolbooth_audit::orders::OrderChange;
use toolbooth_audit::stored_orders::StoredOrders;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::order::{Order, OrderSubject, Pause, PauseTarget};
use toolbooth_contracts::{Identity, ToolId};
use toolbooth_policy::Pauses;
use toolbooth_proxy::stored_pauses;
use toolbooth_registry::discovered::tool_id;

use super::orders::decide;
use super::records::{nothing_yet, open, unreadable, whole};
use crate::cli::PauseArgs;
use crate::config::Loaded;
use crate::failure::Failure;
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::trust::Trusted;

/// Maximum length of a reason, in bytes.
const REASON_BYTES_MAX: usize = 500;

pub(super) async fn pause(
    loaded: Trusted,
    target: PauseArgs,
    now: bool,
    reason: Option<String>,
    format: Format,
) -> Result<bool, Failure> {
    if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(
            Failure::usage(format!("a reason has at most {REASON_BYTES_MAX} bytes")).at("--reason")
        );
    }
    let target = target_of(&loaded, target)?;
    let configuration = loaded.clone();
    let change = OrderChange::Pause { target: target.clone(), cancel_running: now, reason };
    let order = decide(loaded, change).await?;
    let reported = report(&order, "calls are refused within a second", format);
    if let PauseTarget::Tool(tool) = &target {
        warn_of_unknown(configuration, tool).await;
    }
    reported
}

/// Warns if a paused tool is not known here: its id may be misspelt, and nothing would be paused. Another
/// gateway on the same store can have it.
async fn warn_of_unknown(loaded: Trusted, tool: &str) {
    let of_server = |name: &String| tool.starts_with(&format!("{}.", tool_id(name)));
    // A command can list any tool.
    if !loaded.config.commands.is_empty() || loaded.config.servers.keys().any(of_server) {
        return;
    }
    let Ok(offline) = OfflineGateway::build(loaded).await else { return };
    let world = offline.worlds.now();
    let known: Vec<&str> = world.registry().iter().map(|known| known.id().as_str()).collect();
    if !known.contains(&tool) {
        let near = nearest(tool, known.iter().copied());
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        crate::notice(&format!("warning: this configuration has no tool `{tool}`{near}"));
    }
    offline.close().await;
}

pub(super) async fn resume(
    loaded: Trusted,
    target: PauseArgs,
    format: Format,
) -> Result<bool, Failure> {
    // What was paused can always be resumed, even if it has left the configuration.
    let target = match target {
        PauseArgs { tool: Some(tool), .. } => PauseTarget::Tool(tool),
        PauseArgs { server: Some(server), .. } => PauseTarget::Server(server),
        PauseArgs { caller: Some(caller), .. } => PauseTarget::Caller(caller),
        PauseArgs { .. } => PauseTarget::All,
    };
    let order = decide(loaded, OrderChange::Resume { target }).await?;
    report(&order, "calls are accepted within a second", format)
}

/// Puts the stored pauses in force in a gateway without a store. Returns whether there are any.
///
/// # Errors
/// A failure if there is a store that cannot be read.
pub(super) async fn apply(offline: &OfflineGateway) -> Result<bool, Failure> {
    let Some(operations) = open(&offline.loaded).await? else { return Ok(false) };
    let pauses = stored_pauses(operations.orders().await.map_err(unreadable)?);
    let is_any = pauses != Pauses::default();
    offline.catalogue.edit(|world| world.set_pauses(pauses)).await;
    Ok(is_any)
}

/// As [`apply`]; prints whether there are any, or that they cannot be read.
pub(super) async fn apply_and_report(offline: &OfflineGateway) {
    match apply(offline).await {
        Ok(true) => crate::notice("calls are paused: `toolbooth pause --list` shows which"),
        Ok(false) => (),
        Err(failure) => crate::notice(&format!(
            "warning: the pauses cannot be read, so none is considered: {}",
            failure.message
        )),
    }
}

pub(super) async fn list(loaded: &Loaded, format: Format) -> Result<bool, Failure> {
    let found = match open(loaded).await? {
        Some(operations) => operations.orders().await.map_err(unreadable)?,
        None => {
            nothing_yet(loaded);
            StoredOrders::default()
        }
    };
    let is_whole = whole(&found.damaged);
    let pauses: Vec<(&Order, &Pause)> = found
        .orders
        .iter()
        .filter_map(|order| match &order.subject {
            OrderSubject::Pause(pause) if pause.in_force => Some((order, pause)),
            _ => None,
        })
        .collect();
    if format.is_json() {
        let rows: Vec<Value> = pauses.iter().map(|(order, pause)| row(order, pause)).collect();
        output::json(&json!({ "pauses": rows }));
        return Ok(is_whole);
    }
    let rows: Vec<Vec<String>> = pauses
        .iter()
        .map(|(order, pause)| {
            let reason = pause.reason.clone().unwrap_or_default();
            vec![pause.target.to_string(), order.at.clone(), order.by.clone(), reason]
        })
        .collect();
    output::table(&["PAUSED", "SINCE", "BY", "REASON"], &rows);
    Ok(is_whole)
}

/// Returns the target of a pause. A name that nothing has is an error, because nothing would stop.
fn target_of(loaded: &Loaded, target: PauseArgs) -> Result<PauseTarget, Failure> {
    match target {
        PauseArgs { tool: Some(tool), .. } => match ToolId::try_from(tool) {
            Ok(id) => Ok(PauseTarget::Tool(id.to_string())),
            Err(error) => Err(Failure::usage(with_causes(&error)).at("--tool")),
        },
        PauseArgs { server: Some(server), .. } => {
            let known = &loaded.config.servers;
            if known.contains_key(&server) {
                return Ok(PauseTarget::Server(server));
            }
            let message = format!("there is no server `{}`", server.escape_debug());
            let near = nearest(&server, known.keys().map(String::as_str));
            Err(Failure::usage(message).at("--server").hint(match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "servers are named in `[servers.NAME]` of the configuration".to_owned(),
            }))
        }
        PauseArgs { caller: Some(caller), .. } => match Identity::named(&caller) {
            Some(identity) => Ok(PauseTarget::Caller(identity.name)),
            None => Err(Failure::usage(format!("`{}` is no caller", caller.escape_debug()))
                .at("--caller")
                .hint("give `local`, `key:NAME` or `jwt:ISSUER#SUBJECT`")),
        },
        PauseArgs { .. } => Ok(PauseTarget::All),
    }
}

fn report(order: &Order, effect: &str, format: Format) -> Result<bool, Failure> {
    let OrderSubject::Pause(pause) = &order.subject else { return Ok(true) };
    if format.is_json() {
        output::json(&row(order, pause));
    } else {
        let state = if pause.in_force { "paused" } else { "resumed" };
        output::line(&format!("{}: {state}; {effect}", pause.target));
    }
    Ok(true)
}

fn row(order: &Order, pause: &Pause) -> Value {
    let mut row = json!({
        "target": pause.target,
        "paused": pause.in_force,
        "at": order.at,
        "by": order.by,
    });
    if let Some(row) = row.as_object_mut() {
        if pause.cancels_running {
            row.insert("cancelsRunning".to_owned(), json!(true));
        }
        row.extend(pause.reason.clone().map(|reason| ("reason".to_owned(), json!(reason))));
    }
    row
}
