//! Filters receipts, agent logs and events.
//!
//! Doc: records.md#reading

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::receipt::Receipt;

/// A filter for receipts; all conditions must match.
#[derive(Debug, Clone, Default)]
pub struct ReceiptFilter {
    /// The tool.
    pub tool: Option<String>,
    /// The caller.
    pub caller: Option<String>,
    /// The call.
    pub call: Option<String>,
    /// The state, in its text form.
    pub state: Option<String>,
    /// Only receipts after this one, in list order.
    pub after: Option<String>,
    /// Maximum number of results.
    pub limit: usize,
}

/// A filter for agent logs; all conditions must match.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// The tool.
    pub tool: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// The caller.
    pub caller: Option<String>,
    /// The error code.
    pub code: Option<String>,
    /// The turn.
    pub turn: Option<u64>,
    /// The phase.
    pub phase: Option<String>,
    /// The epic.
    pub epic: Option<String>,
    /// The call.
    pub call: Option<String>,
    /// Only errors, or only successes.
    pub error: Option<bool>,
    /// Start time, inclusive, RFC 3339 UTC.
    pub since: Option<String>,
    /// End time, exclusive, RFC 3339 UTC.
    pub until: Option<String>,
    /// Maximum number of results; the newest are returned.
    pub limit: usize,
}

/// A filter for events; all conditions must match.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// The tool.
    pub tool: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// The caller.
    pub caller: Option<String>,
    /// The status.
    pub status: Option<String>,
    /// The error code.
    pub code: Option<String>,
    /// The call.
    pub call: Option<String>,
    /// Start time, inclusive, RFC 3339 UTC.
    pub since: Option<String>,
    /// End time, exclusive, RFC 3339 UTC.
    pub until: Option<String>,
    /// Only events after this place in the store, for following and for paging.
    pub after: Option<u64>,
    /// Maximum number of results: the next ones if `after` is set, otherwise the newest.
    pub limit: usize,
}

fn is(wanted: Option<&String>, found: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| Some(wanted.as_str()) == found)
}

fn within(since: Option<&String>, until: Option<&String>, time: &str) -> bool {
    since.is_none_or(|since| time >= since.as_str())
        && until.is_none_or(|until| time < until.as_str())
}

impl ReceiptFilter {
    /// Whether a receipt matches.
    #[must_use]
    pub fn fits(&self, receipt: &Receipt) -> bool {
        is(self.tool.as_ref(), Some(&receipt.tool_id))
            && is(self.caller.as_ref(), Some(&receipt.caller))
            && is(self.call.as_ref(), Some(&receipt.call_id))
            && is(self.state.as_ref(), Some(receipt.state.as_str()))
            && self.after.as_ref().is_none_or(|after| receipt.receipt_id < *after)
    }
}

impl LogFilter {
    /// Whether an agent log matches.
    #[must_use]
    pub fn fits(&self, log: &AgentLog) -> bool {
        is(self.tool.as_ref(), Some(&log.tool_name))
            && is(self.agent.as_ref(), log.agent_id.as_deref())
            && is(self.caller.as_ref(), Some(&log.caller))
            && is(self.code.as_ref(), log.error_code.map(|code| code.as_str()))
            && is(self.phase.as_ref(), log.phase_id.as_deref())
            && is(self.epic.as_ref(), log.epic_id.as_deref())
            && is(self.call.as_ref(), Some(&log.call_id))
            && self.turn.is_none_or(|turn| log.turn_index == Some(turn))
            && self.error.is_none_or(|error| log.is_error == error)
            && within(self.since.as_ref(), self.until.as_ref(), &log.timestamp)
    }
}

impl EventFilter {
    /// Whether an event matches, regardless of its place.
    #[must_use]
    pub fn fits(&self, event: &AuditEvent) -> bool {
        let body = &event.body;
        is(self.tool.as_ref(), body.tool_name.as_deref())
            && is(self.agent.as_ref(), body.agent_id.as_deref())
            && is(self.caller.as_ref(), body.caller.as_deref())
            && is(self.call.as_ref(), body.call_id.as_deref())
            && is(self.status.as_ref(), body.status.map(|status| status.as_str()))
            && is(self.code.as_ref(), body.error_code.map(|code| code.as_str()))
            && within(self.since.as_ref(), self.until.as_ref(), &body.time)
    }
}
