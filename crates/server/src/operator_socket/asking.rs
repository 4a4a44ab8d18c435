//! Asks a gateway to decide on an approval, and for the definitions that its servers list.
//!
//! Doc: front-doors.md#operator-socket

use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::approval::Approval;

use super::DEFINITIONS;
use crate::http::{Problem, ProblemCode, encoded};

/// The time in which a gateway answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the answer to a decision.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Bytes of the definitions.
const DEFINITIONS_BYTES_MAX: usize = 256 << 20;

/// The answer of a running gateway.
#[derive(Debug)]
pub enum Answer {
    /// The approval after the decision.
    Decided(Box<Approval>),
    /// The decision does not count: the code (`policy-denied`, `already-decided`, `approval-expired`), and
    /// the reason.
    Refused(&'static str, String),
    /// The gateway does not know the approval.
    None,
    /// The gateway did not answer as it should: whether it has decided is not known.
    Unknown,
}

/// Asks the gateway at the other end to decide as the operator.
pub async fn decide(stream: UnixStream, id: &str, grants: bool, reason: Option<&str>) -> Answer {
    let decision = if grants { "approve" } else { "reject" };
    let mut body = json!({ "decision": decision });
    if let (Some(reason), Some(members)) = (reason, body.as_object_mut()) {
        members.insert("reason".to_owned(), json!(reason));
    }
    let request = Request::post(format!("/v1/approvals/{}", encoded(id)))
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()));
    let told = timeout(PATIENCE, exchange(stream, request, ANSWER_BYTES_MAX)).await;
    let told = told.ok().and_then(|told| told.ok());
    match told.and_then(|(status, told)| read(status, &told)).unwrap_or(Answer::Unknown) {
        Answer::Decided(approval) if !states(&approval, id, grants) => Answer::Unknown,
        answer => answer,
    }
}

/// Asks the gateway at the other end for the tools and items that its servers list: a lock file that approves
/// them. `None` if it does not answer so.
pub async fn definitions(stream: UnixStream) -> Option<Bytes> {
    let request = Request::get(DEFINITIONS).body(Body::empty());
    let told = timeout(PATIENCE, exchange(stream, request, DEFINITIONS_BYTES_MAX)).await;
    let (status, told) = told.ok()?.ok()?;
    (status == StatusCode::OK).then_some(told)
}

/// Whether an approval has this id and such a decision.
fn states(approval: &Approval, id: &str, grants: bool) -> bool {
    approval.approval_id == id && approval.decisions.iter().any(|own| own.granted == grants)
}

/// Reads an answer; `None` if it does not state whether there is a decision.
fn read(status: StatusCode, told: &[u8]) -> Option<Answer> {
    match status {
        StatusCode::OK => {
            serde_json::from_slice(told).ok().map(|approval| Answer::Decided(Box::new(approval)))
        }
        StatusCode::NOT_FOUND => Some(Answer::None),
        _ => {
            let problem: Problem = serde_json::from_slice(told).ok()?;
            let refusals = [
                ErrorCode::PolicyDenied.as_str(),
                ProblemCode::ALREADY_DECIDED.name,
                ProblemCode::APPROVAL_EXPIRED.name,
            ];
            let code = refusals.into_iter().find(|code| *code == problem.code)?;
            Some(Answer::Refused(code, problem.title))
        }
    }
}

async fn exchange(
    stream: UnixStream,
    request: http::Result<Request<Body>>,
    answer_bytes_max: usize,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let mut request = request?;
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let exchanged = async {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        Ok((parts.status, to_bytes(Body::new(body), answer_bytes_max).await?))
    };
    let exchanged = exchanged.await;
    driving.abort();
    exchanged
}
