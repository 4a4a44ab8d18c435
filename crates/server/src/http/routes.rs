//! The routes beside the MCP endpoint.
//!
//! Path: 1, 10. Doc: front-doors.md#http

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::conversation::CancelHandle;
use toolbooth_contracts::{CallRequest, Caller, Conversation, ErrorCode, ToolCall};
use toolbooth_proxy::Handed;

use super::{HttpDoor, Problem, read_json};

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
    let bytes = match read_json(&headers, body).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into_response(),
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
    if wants_async(&headers) {
        return hand_over(&door, request, &caller).await;
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

/// Whether a request prefers to be answered before its call has run (RFC 7240).
fn wants_async(headers: &HeaderMap) -> bool {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']))
        .any(|word| word.trim().eq_ignore_ascii_case("respond-async"))
}

async fn hand_over(door: &HttpDoor, request: CallRequest, caller: &Caller) -> Response {
    match door.house.calls.hand_over(request, caller).await {
        Ok(Handed::Taken(call)) => {
            let location = format!("/v1/calls/{}", encoded(&call.call_id));
            let headers = [
                ("location", location),
                ("preference-applied", "respond-async".to_owned()),
                ("retry-after", "1".to_owned()),
            ];
            (StatusCode::ACCEPTED, headers, Json(call)).into_response()
        }
        Ok(Handed::BadId(message)) => {
            Problem::new(400, ErrorCode::InvalidArgs.as_str(), message).into_response()
        }
        Ok(Handed::Conflict) => {
            let title = "another call with this id was handed over before".to_owned();
            Problem::new(422, ErrorCode::IdempotencyConflict.as_str(), title).into_response()
        }
        Ok(Handed::Full) => {
            let title = "too many calls wait; try again later".to_owned();
            Problem::new(503, ErrorCode::Overloaded.as_str(), title).into_response()
        }
        Err(error) => unavailable(&error),
    }
}

pub(super) fn unavailable(error: &dyn std::fmt::Display) -> Response {
    tracing::warn!(%error, "the store does not answer");
    let title = "the records do not answer at the moment; ask again".to_owned();
    let code = ErrorCode::RecordUnavailable.as_str();
    Problem { retry_after_ms: Some(1_000), ..Problem::new(503, code, title) }.into_response()
}

/// A call's id in a path: everything but unreserved characters (RFC 3986) as `%XX`.
fn encoded(id: &str) -> String {
    let mut out = String::new();
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn no_such_call() -> Response {
    let title = "there is no such asynchronous call".to_owned();
    Problem::new(404, "not-found", title).into_response()
}

/// An asynchronous call of this caller: where it stands, and its result once there is one.
pub(super) async fn queued(
    State(door): State<HttpDoor>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match door.house.calls.get(&caller, &id).await {
        Ok(Some(call)) => Json(call).into_response(),
        Ok(None) => no_such_call(),
        Err(error) => unavailable(&error),
    }
}

/// Wants an asynchronous call of this caller to stop.
pub(super) async fn cancel(
    State(door): State<HttpDoor>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match door.house.calls.cancel(&caller, &id).await {
        Ok(true) => StatusCode::ACCEPTED.into_response(),
        Ok(false) => match door.house.calls.get(&caller, &id).await {
            Ok(Some(_)) => {
                let title = "the call has ended already".to_owned();
                Problem::new(409, "already-ended", title).into_response()
            }
            Ok(None) => no_such_call(),
            Err(error) => unavailable(&error),
        },
        Err(error) => unavailable(&error),
    }
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
