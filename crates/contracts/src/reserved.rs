//! Codes and event kinds that are reserved: their names are fixed, and no part of this version gives
//! a code or writes a kind that is listed here.
//!
//! Doc: call-path.md#codes

use crate::code::ErrorCode;
use crate::event::AuditEventKind;

/// Reserved error codes.
pub const CODES: &[ErrorCode] = &[ErrorCode::BudgetExceeded];

/// Reserved kinds of audit events.
pub const EVENTS: &[AuditEventKind] = &[
    AuditEventKind::PolicyRejected,
    AuditEventKind::PolicyShadowDenied,
    AuditEventKind::ApprovalGranted,
    AuditEventKind::AuthDenied,
    AuditEventKind::KeyCreated,
    AuditEventKind::KeyRevoked,
    AuditEventKind::Paused,
    AuditEventKind::Resumed,
];
