//! Approvals: the request of a call, the decision of a person, and approvals as stored.
//!
//! Doc: policy.md#approval

use serde::Deserialize;
use toolbooth_contracts::approval::{Approval, ApprovalDecision, ApprovalState, Approvers};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::json::JsonText;

use crate::digest::of_record;
use crate::moment::Moment;

/// The fact of an event that names the approval that it accounts for.
pub(crate) const APPROVAL: &str = "approvalId";
/// The fact of an event that states the revision of the approval that it accounts for.
pub(crate) const APPROVAL_REVISION: &str = "approvalRevision";

/// The fact of an event that states when the approval that it accounts for expires.
pub(crate) const APPROVAL_EXPIRES: &str = "approvalExpiresAt";

/// The approval that a call needs.
#[derive(Debug, Clone)]
pub struct ApprovalRequest {
    /// The id of the approval if a new one is requested.
    pub approval_id: String,
    /// The rule that asks for it.
    pub rule: String,
    /// SHA-256 of the rule, in hex. An approval that another rule asked for does not count.
    pub rule_digest: String,
    /// Who must approve.
    pub approvers: Approvers,
    /// The time from which a new request counts for nothing, RFC 3339 UTC.
    pub expires_at: String,
    /// The redacted arguments, for those who decide.
    pub arguments: Option<JsonText>,
    /// Requests with ids after this one can still be decided: ids increase with time.
    pub open_after: String,
}

/// Maximum number of undecided requests of one caller that have not expired.
pub const PENDING_MAX: u64 = 1_000;

/// A caller, and the id after which its undecided requests are counted.
pub type PendingName = (String, String);

/// The call that an approval is bound to, and the rule that asks for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApprovalName {
    /// The tool.
    pub tool: String,
    /// The caller.
    pub caller: String,
    /// The digest of the arguments.
    pub args_digest: String,
    /// The digest of the contract.
    pub contract_digest: String,
    /// The digest of the rule; `None` for approvals of earlier versions.
    pub rule_digest: Option<String>,
}

impl ApprovalName {
    /// Returns the call and rule of an approval.
    #[must_use]
    pub fn of(approval: &Approval) -> Self {
        Self {
            tool: approval.tool_id.clone(),
            caller: approval.caller.clone(),
            args_digest: approval.args_digest.clone(),
            contract_digest: approval.contract_digest.clone(),
            rule_digest: approval.rule_digest.clone(),
        }
    }

    /// Whether an approval is for exactly this call and rule.
    #[must_use]
    pub fn names(&self, approval: &Approval) -> bool {
        approval.tool_id == self.tool
            && approval.caller == self.caller
            && approval.args_digest == self.args_digest
            && approval.contract_digest == self.contract_digest
            && approval.rule_digest == self.rule_digest
    }

    /// Whether an approval is for exactly this call and rule, and is not spent.
    #[must_use]
    pub fn fits(&self, approval: &Approval) -> bool {
        approval.state != ApprovalState::Spent && self.names(approval)
    }
}

/// A decision of a person on an approval.
#[derive(Debug, Clone)]
pub struct ApprovalVerdict {
    /// The approval.
    pub approval_id: String,
    /// Its call and rule, as they are stored.
    pub name: ApprovalName,
    /// Whether it is granted; otherwise it is rejected.
    pub grants: bool,
    /// The caller who decides.
    pub by: String,
    /// Whether this caller has the right of an operator.
    pub is_operator: bool,
    /// The reason. The caller can read it.
    pub reason: Option<String>,
    /// The time from which the decision counts for nothing, RFC 3339 UTC.
    pub expires_at: String,
    /// The current time.
    pub at: Moment,
}

/// The result of an [`ApprovalVerdict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// The decision is recorded; the approval can still be pending for the decision of another person.
    Done(Box<Approval>),
    /// It was decided before, or spent: nothing changed.
    Already(Box<Approval>),
    /// It has expired, or another request has replaced it.
    Expired,
    /// The caller decides on its own call, and another person must.
    OwnCall,
    /// The caller has granted it before, and another person must too.
    SamePerson,
    /// The caller has no right to decide.
    Denied,
    /// There is no such approval.
    Missing,
}

impl ApprovalVerdict {
    /// Returns the approval after the decision, or the result if nothing changes. The only rule of
    /// decisions; every ledger calls it.
    pub(crate) fn decide(&self, before: &Approval) -> Result<Approval, Decided> {
        if before.has_expired(&self.at.text) {
            return Err(Decided::Expired);
        }
        let is_own = before.caller == self.by;
        match (is_own, before.approvers) {
            (true, Approvers::Caller) => (),
            (true, Approvers::One | Approvers::Two) => return Err(Decided::OwnCall),
            (false, _) if self.is_operator => (),
            (false, _) => return Err(Decided::Denied),
        }
        match (before.state, self.grants) {
            // A grant can be taken back until it is spent.
            (ApprovalState::Pending, _) | (ApprovalState::Granted, false) => (),
            _ => return Err(Decided::Already(Box::new(before.clone()))),
        }
        let grants = before.decisions.iter().filter(|decision| decision.granted);
        if self.grants && grants.clone().any(|decision| decision.by == self.by) {
            return Err(Decided::SamePerson);
        }
        let mut after = before.clone();
        after.decisions.push(ApprovalDecision {
            by: self.by.clone(),
            at: self.at.text.clone(),
            granted: self.grants,
            reason: self.reason.clone(),
        });
        after.state = match self.grants {
            true if grants.count() + 1 < before.approvers.count() => ApprovalState::Pending,
            true => ApprovalState::Granted,
            false => ApprovalState::Rejected,
        };
        if after.state != ApprovalState::Pending {
            after.expires_at = Some(self.expires_at.clone());
            after.arguments = None;
        }
        Ok(after)
    }

    /// Returns the event that accounts for the decision.
    pub(crate) fn event(&self) -> AuditEventKind {
        match self.grants {
            true => AuditEventKind::ApprovalGranted,
            false => AuditEventKind::ApprovalRejected,
        }
    }
}

/// Makes an event account for an approval.
pub(crate) fn account_for(body: &mut EventBody, approval: &Approval) {
    body.approval_digest = Some(of_record(approval));
    let facts = body.facts.get_or_insert_default();
    facts.insert(APPROVAL.to_owned(), approval.approval_id.clone().into());
    facts.insert(APPROVAL_REVISION.to_owned(), approval.revision.into());
    let expires = approval.expires_at.clone();
    facts.extend(expires.map(|end| (APPROVAL_EXPIRES.to_owned(), end.into())));
}

/// Whether an approval is of an earlier version, which had no decisions.
pub(crate) fn is_earlier(approval: &Approval) -> bool {
    approval.revision == 0 && approval.rule_digest.is_none() && approval.decisions.is_empty()
}

/// Whether an event accounts for an approval. Pending and spent approvals of earlier versions need
/// no event.
#[must_use]
pub fn has_accounting_event(approval: &Approval, event: Option<&str>) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        approval_digest: Option<String>,
    }
    let fields = event.and_then(|event| serde_json::from_str::<Fields>(event).ok());
    match fields.and_then(|fields| fields.approval_digest) {
        Some(digest) => digest == of_record(approval),
        // Earlier versions wrote no event, and no rule.
        None => {
            approval.audit_seq.is_none()
                && is_earlier(approval)
                && matches!(approval.state, ApprovalState::Pending | ApprovalState::Spent)
        }
    }
}

/// A filter for approvals; all conditions must match. The newest are first.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// The approval.
    pub id: Option<String>,
    /// The state.
    pub state: Option<ApprovalState>,
    /// The tool.
    pub tool: Option<String>,
    /// The caller that requested it.
    pub caller: Option<String>,
    /// Only approvals that were requested before this one.
    pub before: Option<String>,
    /// Maximum number of results.
    pub limit: usize,
}

/// An approval as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawApproval {
    /// The id in its row.
    pub id: String,
    /// Its JSON.
    pub bytes: String,
    /// The other columns of its row, in the order of [`APPROVAL_COLUMNS`]; empty if there are none.
    pub columns: Vec<Option<String>>,
    /// The event that the approval names as its accounting event.
    pub event: Option<String>,
}

/// The members of an approval that rows are filtered by.
pub const APPROVAL_COLUMNS: [&str; 5] =
    ["toolId", "caller", "argsDigest", "contractDigest", "state"];

impl RawApproval {
    /// Returns the approval if its row has its id.
    #[must_use]
    pub fn approval(&self) -> Option<Approval> {
        let approval: Approval = serde_json::from_str(&self.bytes).ok()?;
        (approval.approval_id == self.id).then_some(approval)
    }

    /// Returns the approval if its event accounts for it as it is. A decision is trusted because of
    /// its event, not because of its row.
    #[must_use]
    pub fn accounted(&self) -> Option<Approval> {
        self.approval().filter(|approval| has_accounting_event(approval, self.event.as_deref()))
    }
}
