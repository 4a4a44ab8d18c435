//! `approvals`: lists approvals, and grants or rejects them as the operator.
//!
//! Doc: policy.md#approval

use serde_json::json;
use toolbooth_audit::reads::Page;
use toolbooth_contracts::Caller;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_proxy::{
    APPROVAL_REASON_BYTES_MAX, ApprovalFilter, Decided, Operations, OperationsError,
};
use toolbooth_server::operator_socket::Answer;

use super::records::{nothing_yet, one, open, unreadable, whole};
use crate::cli::Approvals;
use crate::compose::Runtime;
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::operator_socket;
use crate::output::{self, Format};
use crate::records;
use crate::times::now;
use crate::trust::Trusted;

pub(super) async fn approvals(loaded: Trusted, command: Approvals) -> Result<bool, Failure> {
    match command {
        Approvals::List { state, tool, caller, before, limit, shown } => {
            // Without a state, those that can be decided.
            let open_only = state.is_none();
            let state = match state.as_deref() {
                None => Some(ApprovalState::Pending),
                Some("any") => None,
                Some(word) => Some(ApprovalState::parse(word).ok_or_else(|| {
                    Failure::usage(format!("there is no state `{}`", word.escape_debug()))
                        .at("--state")
                        .hint("`pending`, `granted`, `rejected`, `spent` or `any`")
                })?),
            };
            let filter = ApprovalFilter { id: None, state, tool, caller, before, limit };
            let now = now();
            let (page, next) = match open(&loaded).await? {
                Some(operations) => {
                    let wanted = |approval: &Approval| !(open_only && approval.has_expired(&now));
                    listed(&operations, filter, wanted).await?
                }
                None => {
                    nothing_yet(&loaded);
                    (Page::default(), None)
                }
            };
            if shown.format.is_json() {
                let mut out = page.document("approvals");
                out.extend(next.map(|next| ("next".to_owned(), json!(next))));
                output::json(&out);
                return Ok(whole(&page.damaged));
            }
            let rows: Vec<Vec<String>> =
                page.found.iter().map(|approval| row(approval, &now)).collect();
            let head = ["REQUESTED", "TOOL", "CALLER", "STATE", "NEEDS", "ARGUMENTS", "APPROVAL"];
            output::table(&head, &rows);
            if let Some(next) = next {
                crate::notice(&format!("more follow: --before {next}"));
            }
            Ok(whole(&page.damaged))
        }
        Approvals::Show { id, shown } => {
            let found = match open(&loaded).await? {
                Some(operations) => operations.approval(&id).await.map_err(unreadable)?,
                None => None,
            };
            one(found, "approval", &id, shown.format)
        }
        Approvals::Approve { id, reason, shown } => {
            decide(loaded, &id, true, reason, shown.format).await
        }
        Approvals::Reject { id, reason, shown } => {
            decide(loaded, &id, false, reason, shown.format).await
        }
    }
}

/// Returns the wanted approvals of one page, and the id that the next one begins after. Pages are read until this one
/// is full: those that have expired stand between the others.
async fn listed(
    operations: &Operations,
    mut filter: ApprovalFilter,
    wanted: impl Fn(&Approval) -> bool,
) -> Result<(Page<Approval>, Option<String>), Failure> {
    let mut all = Page::default();
    loop {
        let page = operations.approvals(filter.clone()).await.map_err(unreadable)?;
        let last = page.found.last().map(|approval| approval.approval_id.clone());
        all.add_damaged(page.damaged);
        let mut found = page.found.into_iter().filter(|approval| wanted(approval));
        all.found.extend(found.by_ref().take(filter.limit - all.found.len()));
        if found.next().is_some() {
            let next = all.found.last().map(|approval| approval.approval_id.clone());
            return Ok((all, next));
        }
        let next = last.filter(|_| page.more);
        if next.is_none() || all.found.len() >= filter.limit {
            return Ok((all, next));
        }
        filter.before = next;
    }
}

/// The most characters of arguments in a table.
const SHOWN_MAX: usize = 60;

fn row(approval: &Approval, now: &str) -> Vec<String> {
    let state = match approval.state {
        ApprovalState::Pending | ApprovalState::Granted if approval.has_expired(now) => "expired",
        state => state.as_str(),
    };
    let arguments = approval.arguments.as_ref().map(|text| text.as_str()).unwrap_or_default();
    let mut shown: String = arguments.chars().take(SHOWN_MAX).collect();
    if shown.len() < arguments.len() {
        shown.push('…');
    }
    vec![
        approval.requested_at.clone(),
        approval.tool_id.clone(),
        approval.caller.clone(),
        state.to_owned(),
        approval.approvers.as_str().to_owned(),
        shown,
        approval.approval_id.clone(),
    ]
}

/// Whether the operator has decided so, as a gateway does that could not answer, and this holds.
fn has_decided(approval: &Approval, grants: bool) -> bool {
    let operator = Caller::operator();
    let holds = (approval.state == ApprovalState::Rejected) != grants;
    holds && approval.decisions.iter().any(|own| own.by == operator.name() && own.granted == grants)
}

fn show_decision(approval: &Approval, format: Format) -> Result<bool, Failure> {
    if format.is_json() {
        output::json(approval);
        return Ok(true);
    }
    let call = format!("the call of `{}` by {}", approval.tool_id, approval.caller);
    output::foreign(&match approval.state {
        ApprovalState::Pending => {
            format!("granted by one; a second operator must grant {call} too")
        }
        ApprovalState::Rejected => format!("rejected: {call} is refused"),
        ApprovalState::Spent => format!("granted: {call} has used it"),
        _ => format!("granted: {call} can run once"),
    });
    Ok(true)
}

/// Decides as a writer of its own. `is_unknown`: a gateway may have decided so.
async fn decide_in_store(
    loaded: Trusted,
    id: &str,
    grants: bool,
    reason: Option<String>,
    is_unknown: bool,
) -> Result<Decided, Failure> {
    let runtime = Runtime::build(OfflineGateway::build(loaded).await?).await?;
    let operator = records::operator()?;
    let mut decided = runtime.proxy.decide_approval(operator.caller(), id, grants, reason).await;
    if is_unknown && matches!(decided, Ok(Decided::SamePerson)) {
        let found = runtime.proxy.approval(operator.caller(), id).await;
        decided = found.map(|found| match found {
            Some(approval) => Decided::Already(Box::new(approval)),
            None => Decided::Missing,
        });
    }
    runtime.shut_down().await?;
    decided.map_err(|error| match error {
        OperationsError::Ledger(error) => unreadable(error),
        other => Failure::store(other.to_string()),
    })
}

async fn decide(
    loaded: Trusted,
    id: &str,
    grants: bool,
    reason: Option<String>,
    format: Format,
) -> Result<bool, Failure> {
    if reason.as_ref().is_some_and(|reason| reason.len() > APPROVAL_REASON_BYTES_MAX) {
        let message = format!("a reason has at most {APPROVAL_REASON_BYTES_MAX} bytes");
        return Err(Failure::usage(message).at("--reason"));
    }
    let asked = operator_socket::decide(&loaded.data, id, grants, reason.as_deref()).await;
    let is_unknown = match asked {
        Answer::Decided(approval) => return show_decision(&approval, format),
        Answer::Refused(code, message) => return Err(Failure::new(FAILED, code, message)),
        Answer::Unknown => true,
        Answer::None => false,
    };
    let decided = decide_in_store(loaded, id, grants, reason, is_unknown).await;
    let decided = match decided {
        Ok(Decided::Already(approval)) if is_unknown && has_decided(&approval, grants) => {
            Ok(approval)
        }
        Ok(decided) => {
            let is_sure = matches!(decided, Decided::Missing | Decided::OwnCall | Decided::Denied);
            decision(decided, id).map_err(|failure| (failure, is_unknown && !is_sure))
        }
        Err(failure) => Err((failure, is_unknown)),
    };
    match decided {
        Ok(approval) => show_decision(&approval, format),
        Err((failure, true)) => Err(failure.hint(format!(
            "a gateway that has not answered may have decided: see `toolbooth approvals show {id}`"
        ))),
        Err((failure, false)) => Err(failure),
    }
}

/// Returns the approval after the decision.
///
/// # Errors
/// The reason for which the decision does not count.
fn decision(decided: Decided, id: &str) -> Result<Box<Approval>, Failure> {
    let refused = |code, message: String| Err(Failure::new(FAILED, code, message));
    match decided {
        Decided::Done(approval) => Ok(approval),
        Decided::Already(approval) => {
            let state = approval.state.as_str();
            refused("already-decided", format!("the approval is {state} already"))
        }
        Decided::Expired => refused(
            "approval-expired",
            "the approval has expired, or a later request has replaced it".to_owned(),
        ),
        Decided::OwnCall => {
            refused("policy-denied", "another person must decide on the operator's call".to_owned())
        }
        Decided::SamePerson => refused(
            "policy-denied",
            "the operator has granted it; a second person must too".to_owned(),
        ),
        Decided::Denied => {
            refused("policy-denied", "this needs the right of an operator".to_owned())
        }
        Decided::Missing => {
            Err(Failure::new(FAILED, "not-found", format!("there is no approval `{id}`"))
                .hint("`toolbooth approvals list` shows those that can be decided"))
        }
    }
}
