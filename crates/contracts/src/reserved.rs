//! Reserved error codes and kinds of audit events.
//!
//! Their names are fixed, and this version neither returns these codes nor writes these kinds.
//!
//! Doc: call-path.md#codes

use crate::code::ErrorCode;
use crate::event::AuditEventKind;

/// Reserved error codes.
pub const CODES: &[ErrorCode] = &[];

/// Reserved kinds of audit events.
pub const EVENTS: &[AuditEventKind] = &[];
