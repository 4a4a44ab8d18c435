//! The routes beside the MCP endpoint.
//!
//! Path: 1, 10. Doc: front-doors.md#http

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::{IntoResponse, Json, Response};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::conversation::CancelHandle;
use toolbooth_contracts::{CallRequest, Caller, Conversation, ToolCall};

use super::{BODY_BYTES_MAX, HttpDoor, Problem};

/// Tools of one page, where the request says nothing.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 5_000;

/// Tells the tool when the client hangs up: the route's future is dropped then.
struct HangUp(CancelHandle);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(super) async fn call(
    State(door): State<HttpDoor>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let bad = |title: String| Problem::new(400, "invalid-request", title).into_response();
    let Ok(bytes) = axum::body::to_bytes(body, BODY_BYTES_MAX).await else {
        let title = format!("a request has at most {BODY_BYTES_MAX} bytes");
        return Problem::new(413, "too-large", title).into_response();
    };
    let mut request: CallRequest = match serde_json::from_slice(&bytes) {
        Ok(request) => request,
        Err(error) => return bad(format!("the body is no call: {error}")),
    };
    if let Some(key) = headers.get("idempotency-key") {
        let Ok(key) = key.to_str() else {
            return bad("the header `Idempotency-Key` is not text".to_owned());
        };
        // The header form of RFC drafts is a quoted string; both forms are taken.
        let key = key.trim().trim_matches('"').to_owned();
        match &request.context.idempotency_key {
            Some(own) if *own != key => {
                return bad("`Idempotency-Key` and `context.idempotencyKey` differ".to_owned());
            }
            _ => request.context.idempotency_key = Some(key),
        }
    }
    let (conversation, cancel) = Conversation::detached();
    let hang_up = HangUp(cancel);
    let result = door.house.proxy.call(ToolCall::new(request, caller), conversation).await;
    let answer = match Problem::of(&result) {
        Some(problem) => problem.into_response(),
        None => Json(result).into_response(),
    };
    drop(hang_up);
    answer
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    cursor: Option<String>,
    limit: Option<usize>,
    /// Words to search for; the best tools come first then, on one page.
    q: Option<String>,
}

pub(super) async fn tools(
    State(door): State<HttpDoor>,
    Extension(caller): Extension<Caller>,
    page: Result<Query<Page>, QueryRejection>,
) -> Response {
    let Ok(Query(page)) = page else {
        let title = "the query takes `q`, `cursor` (text) and `limit` (a number)".to_owned();
        return Problem::new(400, "invalid-request", title).into_response();
    };
    let limit = page.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let cursor = page.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let view = door.house.catalogue.view(&caller);
    let (tools, next) = match page.q {
        Some(query) => {
            let searching = tokio::task::spawn_blocking(move || view.search(&query, limit));
            let Ok(found) = searching.await else {
                let title = "the search failed".to_owned();
                return Problem::new(500, "internal", title).into_response();
            };
            (found, None)
        }
        None => view.all(cursor, limit),
    };
    let tools: Vec<Value> = tools
        .iter()
        .map(|visible| {
            let contract = visible.tool.contract();
            let mut row = json!({
                "toolId": contract.tool_id,
                "wireName": visible.wire_name,
                "category": contract.category,
                "source": visible.tool.source().to_string(),
                "state": visible.state,
                "inputSchema": contract.input_schema,
                "outputSchema": contract.output_schema,
            });
            let texts = [("title", &contract.title), ("description", &contract.description)];
            for (name, text) in texts {
                if let (Some(text), Some(members)) = (text, row.as_object_mut()) {
                    members.insert(name.to_owned(), json!(text));
                }
            }
            row
        })
        .collect();
    let mut out = json!({ "tools": tools });
    if let (Some(next), Some(members)) = (next, out.as_object_mut()) {
        members.insert("next".to_owned(), json!(next));
    }
    Json(out).into_response()
}

/// Asks every source for its tools, for an operator.
pub(super) async fn discover(
    State(door): State<HttpDoor>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let world = door.house.proxy.worlds().now();
    if let Err(denial) = world.policy.operator(&caller) {
        return Problem::new(403, denial.code.as_str(), denial.reason).into_response();
    }
    let states = door.house.catalogue.refresh_all().await;
    Json(json!({ "sources": states })).into_response()
}

pub(super) async fn healthz() -> Response {
    Json(json!({ "ok": true })).into_response()
}

pub(super) async fn readyz(State(door): State<HttpDoor>) -> Response {
    match (door.readiness)().await {
        Ok(()) => Json(json!({ "ok": true })).into_response(),
        Err(reason) => {
            tracing::warn!(reason, "not ready");
            let title = "calls cannot be recorded at the moment".to_owned();
            Problem::new(503, "record-unavailable", title).into_response()
        }
    }
}

pub(super) async fn method_not_allowed() -> Response {
    let title = "this path does not take this method".to_owned();
    Problem::new(405, "method-not-allowed", title).into_response()
}

pub(super) async fn not_found() -> Response {
    Problem::new(404, "not-found", "there is nothing at this path".to_owned()).into_response()
}
