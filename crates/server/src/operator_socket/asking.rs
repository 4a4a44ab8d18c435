//! Asks a gateway to decide on an approval.
//!
//! Doc: front-doors.md#operator-socket

use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::approval::Approval;

use crate::http::{Problem, ProblemCode, encoded};

/// The time in which a gateway answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

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
    let path = format!("/v1/approvals/{}", encoded(id));
    let told = timeout(PATIENCE, exchange(stream, &path, body.to_string())).await;
    let told = told.ok().and_then(|told| told.ok());
    match told.and_then(|(status, told)| read(status, &told)).unwrap_or(Answer::Unknown) {
        Answer::Decided(approval) if !states(&approval, id, grants) => Answer::Unknown,
        answer => answer,
    }
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
    path: &str,
    body: String,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let request = Request::post(path)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let exchanged = async {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        Ok((parts.status, to_bytes(Body::new(body), ANSWER_BYTES_MAX).await?))
    };
    let exchanged = exchanged.await;
    driving.abort();
    exchanged
}
