//! Serves calls, the list of tools, discovery and health.
//!
//! Path: 1, 10. Doc: front-doors.md#http

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use http::{HeaderMap, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::conversation::CancelHandle;
use toolbooth_contracts::{CallRequest, Caller, Conversation, ErrorCode, ToolCall, named_members};
use toolbooth_proxy::Submission;

use super::{HttpDoor, Problem, ProblemCode, read_json};

/// Tools of one page, unless the request sets `limit`.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 5_000;

/// Tells the call when the client disconnects: the route's future is dropped then.
struct HangUpOnDrop(CancelHandle);

impl Drop for HangUpOnDrop {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

pub(super) async fn call(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let bad = |title: String| Problem::new(ProblemCode::INVALID_REQUEST, title).into_response();
    let bytes = match read_json(&headers, body).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into_response(),
    };
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let read = named_members::object(&mut reader);
    let mut request: CallRequest = match read.and_then(|request| reader.end().map(|()| request)) {
        Ok(request) => request,
        Err(error) => return bad(format!("the body is not a call: {error}")),
    };
    if headers.get_all("idempotency-key").iter().count() > 1 {
        return bad("there are two headers `Idempotency-Key`".to_owned());
    }
    if let Some(key) = headers.get("idempotency-key") {
        let Ok(key) = key.to_str() else {
            return bad("the header `Idempotency-Key` is not text".to_owned());
        };
        // In the IETF draft the header's value is a quoted string; unquoted values are accepted
        // too.
        let key = key.trim().trim_matches('"').to_owned();
        if key.is_empty() {
            return bad("the header `Idempotency-Key` is blank".to_owned());
        }
        match &request.context.idempotency_key {
            Some(own) if *own != key => {
                return bad("`Idempotency-Key` and `context.idempotencyKey` differ".to_owned());
            }
            _ => request.context.idempotency_key = Some(key),
        }
    }
    if wants_async(&headers) {
        return submit(&door, request, &caller).await;
    }
    let (conversation, cancel) = Conversation::detached();
    let hang_up_on_drop = HangUpOnDrop(cancel);
    let call = ToolCall::new(request, caller).by_any_name();
    let result = door.gateway.proxy.call_inline(call, conversation).await;
    let answer = match Problem::of(&result) {
        Some(problem) => problem.into_response(),
        None => Json(result).into_response(),
    };
    drop(hang_up_on_drop);
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

/// After how many milliseconds to submit a call again that the full queue did not take.
const FULL_RETRY_MS: u64 = 5_000;

async fn submit(door: &HttpDoor, request: CallRequest, caller: &Caller) -> Response {
    match door.gateway.calls.submit(request, caller).await {
        Ok(Submission::Taken(call)) => {
            let location = format!("/v1/calls/{}", encoded(&call.call_id));
            let headers = [
                ("location", location),
                ("preference-applied", "respond-async".to_owned()),
                ("retry-after", "1".to_owned()),
            ];
            (StatusCode::ACCEPTED, headers, Json(call)).into_response()
        }
        Ok(Submission::BadId(message)) => {
            Problem::new(ErrorCode::InvalidArgs, message).into_response()
        }
        Ok(Submission::Conflict) => {
            let title = "another call with this id was handed over before".to_owned();
            Problem::new(ErrorCode::IdempotencyConflict, title).into_response()
        }
        Ok(Submission::Full) => {
            let title = "too many calls wait; try again later".to_owned();
            let problem = Problem::new(ErrorCode::Overloaded, title);
            Problem { retry_after_ms: Some(FULL_RETRY_MS), ..problem }.into_response()
        }
        Err(error) => Problem::unavailable(&error),
    }
}

/// All but the unreserved characters (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a call's id for a path: all but unreserved characters become `%XX`.
pub(crate) fn encoded(id: &str) -> String {
    utf8_percent_encode(id, RESERVED).to_string()
}

fn no_such_call() -> Response {
    let title = "there is no such asynchronous call";
    Problem::new(ProblemCode::NOT_FOUND, title).into_response()
}

/// Serves the state of an asynchronous call of this caller, with its result once it has ended.
pub(super) async fn queued(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match door.gateway.calls.get(&caller, &id).await {
        Ok(Some(call)) => Json(call).into_response(),
        Ok(None) => no_such_call(),
        Err(error) => Problem::unavailable(&error),
    }
}

/// Requests the cancellation of an asynchronous call of this caller.
pub(super) async fn cancel(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    match door.gateway.calls.cancel(&caller, &id).await {
        Ok(true) => StatusCode::ACCEPTED.into_response(),
        Ok(false) => match door.gateway.calls.get(&caller, &id).await {
            Ok(Some(_)) => {
                let title = "the call has ended already";
                Problem::new(ProblemCode::ALREADY_ENDED, title).into_response()
            }
            Ok(None) => no_such_call(),
            Err(error) => Problem::unavailable(&error),
        },
        Err(error) => Problem::unavailable(&error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    cursor: Option<String>,
    limit: Option<usize>,
    /// Search text. The answer is then a single page, with the best matches first.
    q: Option<String>,
}

pub(super) async fn tools(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
    page: Result<Query<Page>, QueryRejection>,
) -> Response {
    let Ok(Query(page)) = page else {
        let title = "the query takes `q`, `cursor` (text) and `limit` (a number)";
        return Problem::new(ProblemCode::INVALID_REQUEST, title).into_response();
    };
    let limit = page.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let cursor = page.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let view = door.gateway.catalogue.view(&caller);
    let (tools, next) = match page.q {
        Some(query) => {
            let Some(found) = view.search_aside(query, limit).await else {
                let title = "the search failed";
                return Problem::new(ProblemCode::INTERNAL, title).into_response();
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

/// Refreshes the tools of every source; only for operators.
pub(super) async fn discover(
    State(door): State<Arc<HttpDoor>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    if let Err(error) = door.gateway.proxy.operator(&caller) {
        return super::records::refused(&error);
    }
    let states = door.gateway.catalogue.refresh_all().await;
    Json(json!({ "sources": states })).into_response()
}

pub(super) async fn healthz() -> Response {
    Json(json!({ "ok": true })).into_response()
}

pub(super) async fn readyz(State(door): State<Arc<HttpDoor>>) -> Response {
    match (door.readiness)().await {
        Ok(()) => Json(json!({ "ok": true })).into_response(),
        Err(error) => {
            tracing::warn!(reason = with_causes(&*error), "not ready");
            let title = "calls cannot be recorded at the moment".to_owned();
            Problem::new(ErrorCode::RecordUnavailable, title).into_response()
        }
    }
}

pub(crate) async fn method_not_allowed() -> Response {
    let title = "this path does not take this method";
    Problem::new(ProblemCode::METHOD_NOT_ALLOWED, title).into_response()
}

pub(super) async fn not_found() -> Response {
    Problem::new(ProblemCode::NOT_FOUND, "there is nothing at this path").into_response()
}
