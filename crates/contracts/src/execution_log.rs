//! The observations of an executor that are recorded for every outcome of a call.
//!
//! An observation is recorded immediately, so that it is available even if the call is cut off.
//!
//! Path: 7, 9. Doc: execution.md#what-the-records-say

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of refusals recorded per call; further ones are counted with the last.
pub const REFUSALS_MAX: usize = 32;

/// Maximum number of sandbox denials recorded per call.
pub const DENIALS_MAX: usize = 8;

/// Maximum number of hosts recorded per call.
pub const REACHED_MAX: usize = 32;

/// The sandbox that was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AppliedSandbox {
    /// Digest of the profile as it was applied, in hex.
    pub digest: String,
    /// Primitives that the profile requests and this machine lacks, such as `landlock`; empty for a
    /// required profile.
    pub missing: Vec<String>,
    /// Hosts that were reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reached: Vec<EgressReached>,
}

/// A refused outbound connection of a contained tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressRefusal {
    /// The host that the tool named.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The reason for the refusal.
    pub reason: String,
    /// The number of refusals.
    pub times: u64,
}

/// A host that a contained tool has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EgressReached {
    /// The name that the tool requested; else the address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of connections.
    pub times: u64,
}

/// The observations of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// The sandbox of the tool; `None` = no sandbox.
    pub sandbox: Option<AppliedSandbox>,
    /// Refused outbound connections.
    pub egress: Vec<EgressRefusal>,
    /// Hosts that were reached, at most [`REACHED_MAX`]; connections to further hosts are counted with
    /// the last.
    pub reached: Vec<EgressReached>,
    /// Denials of the sandbox, at most [`DENIALS_MAX`].
    pub denied: Vec<SandboxDenial>,
    /// The error with which the tool's own server refused the call.
    pub refusal: Option<ServerRefusal>,
}

/// An error of a tool's own server, as the server returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRefusal {
    /// The protocol's error code.
    pub code: i64,
    /// The data of the error, in addition to its message.
    pub data: Option<serde_json::Value>,
}

/// An action that a rule of a tool's sandbox denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDenial {
    /// A sentence for operators: the profile, the denied action, and the line that would allow it.
    pub sentence: String,
    /// Whether the sentence contains only names that the tool's own result contains.
    pub open: bool,
}

/// The log in which an executor records its observations.
#[derive(Debug, Clone, Default)]
pub struct ExecutionLog(Arc<Mutex<Observations>>);

impl ExecutionLog {
    fn observed(&self) -> MutexGuard<'_, Observations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the sandbox in which the tool runs.
    pub fn contained(&self, sandbox: AppliedSandbox) {
        self.observed().sandbox = Some(sandbox);
    }

    /// Notes a refused outbound connection. Returns whether it is a separate entry, not counted with
    /// another.
    pub fn egress_refused(&self, host: &str, port: u16, reason: &str) -> bool {
        let mut observed = self.observed();
        let same =
            |one: &&mut EgressRefusal| one.host == host && one.port == port && one.reason == reason;
        if let Some(known) = observed.egress.iter_mut().find(same) {
            known.times += 1;
            return false;
        }
        if observed.egress.len() < REFUSALS_MAX {
            let (host, reason) = (host.to_owned(), reason.to_owned());
            observed.egress.push(EgressRefusal { host, port, reason, times: 1 });
            return true;
        }
        if let Some(last) = observed.egress.last_mut() {
            last.times += 1;
        }
        false
    }

    /// Notes a host that the tool has reached.
    pub fn egress_reached(&self, host: &str, port: u16) {
        let mut observed = self.observed();
        let same = |one: &&mut EgressReached| one.host == host && one.port == port;
        if let Some(known) = observed.reached.iter_mut().find(same) {
            known.times += 1;
        } else if observed.reached.len() < REACHED_MAX {
            observed.reached.push(EgressReached { host: host.to_owned(), port, times: 1 });
        } else if let Some(last) = observed.reached.last_mut() {
            last.times += 1;
        }
    }

    /// Notes a denial of the sandbox.
    pub fn sandbox_denied(&self, denial: SandboxDenial) {
        let mut observed = self.observed();
        if observed.denied.len() < DENIALS_MAX && !observed.denied.contains(&denial) {
            observed.denied.push(denial);
        }
    }

    /// Notes that the tool's own server refused the call.
    pub fn refused(&self, refusal: ServerRefusal) {
        self.observed().refusal = Some(refusal);
    }

    /// Returns the refused outbound connections without removing them.
    #[must_use]
    pub fn egress(&self) -> Vec<EgressRefusal> {
        self.observed().egress.clone()
    }

    /// Removes and returns all observations.
    #[must_use]
    pub fn take(&self) -> Observations {
        std::mem::take(&mut *self.observed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_and_bounded() {
        let execution_log = ExecutionLog::default();
        for port in 0..100 {
            execution_log.egress_refused("a.example", port, "not listed");
            execution_log.egress_refused("a.example", 0, "not listed");
        }
        let observed = execution_log.take();
        assert_eq!(observed.egress.len(), REFUSALS_MAX);
        assert_eq!(observed.egress.iter().map(|one| one.times).sum::<u64>(), 200);
        assert_eq!(execution_log.take(), Observations::default());
    }
}
