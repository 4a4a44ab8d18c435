//! Serves approvals: a list, one, and the decision on one.
//!
//! Operators see all of them; other callers see those that they have requested.
//!
//! Path: 1, 10. Doc: front-doors.md#approvals

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use toolbooth_contracts::approval::ApprovalState;
use toolbooth_contracts::{Caller, ErrorCode, named_members};
use toolbooth_proxy::{
    APPROVAL_REASON_BYTES_MAX, ApprovalFilter, Decided, OperationsError, ToolProxy,
};

use super::records::{PAGE_DEFAULT, PAGE_MAX, bad, one, refused};
use super::{Problem, ProblemCode, read_json, routes};

/// Returns the routes of the HTTP door.
pub(super) fn every(proxy: ToolProxy) -> Router {
    Router::new()
        .route("/v1/approvals", get(list))
        .route("/v1/approvals/{id}", get(show).post(decide))
        .method_not_allowed_fallback(routes::method_not_allowed)
        .with_state(proxy)
}

/// Returns the route of decisions alone.
pub(crate) fn decisions(proxy: ToolProxy) -> Router {
    Router::new()
        .route("/v1/approvals/{id}", post(decide))
        .method_not_allowed_fallback(routes::method_not_allowed)
        .fallback(routes::not_found)
        .with_state(proxy)
}

fn failed(error: &OperationsError) -> Response {
    match error {
        OperationsError::Ledger(error) => Problem::unavailable(error),
        other => refused(other),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approvals {
    state: Option<String>,
    tool: Option<String>,
    caller: Option<String>,
    before: Option<String>,
    limit: Option<usize>,
}

async fn list(
    State(proxy): State<ToolProxy>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<Approvals>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return bad("the query takes `state`, `tool`, `caller`, `before` and `limit` (a number)");
    };
    let state = match query.state.as_deref().map(|text| (text, ApprovalState::parse(text))) {
        None => None,
        Some((_, Some(state))) => Some(state),
        Some((text, None)) => return bad(format!("there is no state `{}`", text.escape_debug())),
    };
    let Approvals { tool, caller: asked, before, limit, .. } = query;
    let limit = limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let filter = ApprovalFilter { id: None, state, tool, caller: asked, before, limit };
    match proxy.approvals(&caller, filter).await {
        Ok(page) => {
            let last = page.found.last().filter(|_| page.more);
            let next = last.map(|approval| approval.approval_id.clone());
            let mut out = page.document("approvals");
            out.extend(next.map(|next| ("next".to_owned(), Value::String(next))));
            Json(Value::Object(out)).into_response()
        }
        Err(error) => failed(&error),
    }
}

async fn show(
    State(proxy): State<ToolProxy>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match proxy.approval(&caller, &id).await {
        Ok(found) => one(found, "approval"),
        Err(error) => failed(&error),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Approve,
    Reject,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    decision: Verdict,
    reason: Option<String>,
}

async fn decide(
    State(proxy): State<ToolProxy>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let bytes = match read_json(&headers, body).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into_response(),
    };
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let read = named_members::object(&mut reader).and_then(|read| reader.end().map(|()| read));
    let Ok(Decision { decision, reason }) = read else {
        return bad(
            "the body is `{\"decision\": \"approve\" or \"reject\"}`, optionally with `reason`",
        );
    };
    if reason.as_ref().is_some_and(|reason| reason.len() > APPROVAL_REASON_BYTES_MAX) {
        return bad(format!("a reason has at most {APPROVAL_REASON_BYTES_MAX} bytes"));
    }
    let grants = matches!(decision, Verdict::Approve);
    let problem = |code: ProblemCode, title: &str| Problem::new(code, title).into_response();
    let denied = |title: &str| problem(ErrorCode::PolicyDenied.into(), title);
    match proxy.decide_approval(&caller, &id, grants, reason).await {
        Ok(Decided::Done(approval)) => Json(approval).into_response(),
        Ok(Decided::Missing) => one(None::<()>, "approval"),
        Ok(Decided::Already(approval)) => {
            let title = format!("the approval is {} already", approval.state.as_str());
            problem(ProblemCode::ALREADY_DECIDED, &title)
        }
        Ok(Decided::Expired) => {
            let title = "the approval has expired, or a later request has replaced it";
            problem(ProblemCode::APPROVAL_EXPIRED, title)
        }
        Ok(Decided::OwnCall) => denied("another person must decide on your own call"),
        Ok(Decided::SamePerson) => denied("you have granted it; a second person must too"),
        Ok(Decided::Denied) => denied("this needs the right of an operator"),
        Err(error) => failed(&error),
    }
}
