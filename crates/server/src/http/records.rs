//! Serves receipts and agent logs to operators.
//!
//! Path: 10. Doc: front-doors.md#records

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbooth_contracts::Caller;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_proxy::{LogFilter, Operations, OperationsError, ReceiptFilter};

use super::{HttpDoor, Problem, ProblemCode};

/// Records of one page, unless the request sets `limit`.
pub(super) const PAGE_DEFAULT: usize = 100;
pub(super) const PAGE_MAX: usize = 1_000;

#[expect(clippy::result_large_err, reason = "a refusal is an answer, and is sent at once")]
fn operations(door: &HttpDoor, caller: &Caller) -> Result<Operations, Response> {
    door.gateway.proxy.operations(caller).map_err(|error| refused(&error))
}

/// Returns the answer to a caller that must not read the records, or from a gateway without
/// records.
pub(super) fn refused(error: &OperationsError) -> Response {
    match error {
        OperationsError::Denied(denial) => {
            Problem::new(denial.code, denial.reason.clone()).into_response()
        }
        other => Problem::new(ProblemCode::NOT_FOUND, other.to_string()).into_response(),
    }
}

pub(super) fn bad(title: impl Into<String>) -> Response {
    Problem::new(ProblemCode::INVALID_REQUEST, title.into()).into_response()
}

pub(super) fn one(found: Option<impl Serialize>, what: &str) -> Response {
    match found {
        Some(found) => Json(found).into_response(),
        None => {
            Problem::new(ProblemCode::NOT_FOUND, format!("there is no such {what}")).into_response()
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receipts {
    tool: Option<String>,
    caller: Option<String>,
    call: Option<String>,
    state: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn receipts(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<Receipts>, QueryRejection>,
) -> Response {
    let operations = match operations(&door, &caller) {
        Ok(operations) => operations,
        Err(refused) => return refused,
    };
    let Ok(Query(query)) = query else {
        return bad(
            "the query takes `tool`, `caller`, `call`, `state`, `after` and `limit` (a number)",
        );
    };
    if let Some(state) = query.state.as_deref().filter(|state| ClaimState::parse(state).is_none()) {
        return bad(format!("there is no state `{}`", state.escape_debug()));
    }
    let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let Receipts { tool, caller, call, state, after, .. } = query;
    match operations.receipts(ReceiptFilter { tool, caller, call, state, after, limit }).await {
        Ok(page) => {
            let last = page.found.last().filter(|_| page.more);
            let next = last.map(|receipt| receipt.receipt_id.clone());
            let mut out = page.document("receipts");
            out.extend(next.map(|next| ("next".to_owned(), Value::String(next))));
            Json(Value::Object(out)).into_response()
        }
        Err(error) => Problem::unavailable(&error),
    }
}

pub(super) async fn receipt(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match operations(&door, &caller) {
        Ok(operations) => match operations.receipt(&id).await {
            Ok(found) => one(found, "receipt"),
            Err(error) => Problem::unavailable(&error),
        },
        Err(refused) => refused,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Logs {
    tool: Option<String>,
    agent: Option<String>,
    caller: Option<String>,
    code: Option<String>,
    turn: Option<u64>,
    phase: Option<String>,
    epic: Option<String>,
    call: Option<String>,
    error: Option<bool>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn agent_logs(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<Logs>, QueryRejection>,
) -> Response {
    let operations = match operations(&door, &caller) {
        Ok(operations) => operations,
        Err(refused) => return refused,
    };
    let Ok(Query(query)) = query else {
        return bad(
            "the query takes `tool`, `agent`, `caller`, `code`, `turn` (a number), `phase`, `epic`, \
             `call`, `error` (true or false), `since`, `until` (RFC 3339 UTC) and `limit` (a number)",
        );
    };
    // The filter compares times as text, so all times must have one format.
    let is_time = |text: &str| {
        text.len() >= 20 && text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T')
    };
    let given = [query.since.as_deref(), query.until.as_deref()];
    if let Some(wrong) = given.into_iter().flatten().find(|text| !is_time(text)) {
        return bad(format!(
            "`{}` is not a time such as 2026-01-31T12:00:00.000Z",
            wrong.escape_debug()
        ));
    }
    let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let Logs { tool, agent, caller, code, turn, phase, epic, call, error, since, until, .. } =
        query;
    let filter = LogFilter {
        tool,
        agent,
        caller,
        code,
        turn,
        phase,
        epic,
        call,
        error,
        since,
        until,
        limit,
    };
    match operations.agent_logs(filter).await {
        Ok(page) => Json(Value::Object(page.document("logs"))).into_response(),
        Err(error) => Problem::unavailable(&error),
    }
}

pub(super) async fn agent_log(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match operations(&door, &caller) {
        Ok(operations) => match operations.agent_log(&id).await {
            Ok(found) => one(found, "agent log"),
            Err(error) => Problem::unavailable(&error),
        },
        Err(refused) => refused,
    }
}
