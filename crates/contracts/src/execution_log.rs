//! What an executor saw of a call that belongs in the records, whatever the outcome.
//!
//! A note is written at the moment it happens, so it is there also where the call is cut off.
//!
//! Path: 7, 9. Doc: execution.md#what-the-records-say

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Refusals that are noted of one call; further ones are counted with the last.
pub const REFUSALS_MAX: usize = 32;

/// Denials of the sandbox that are noted of one call.
pub const DENIALS_MAX: usize = 8;

/// Hosts that are noted of one call.
pub const REACHED_MAX: usize = 32;

/// The sandbox that was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AppliedSandbox {
    /// Digest of the profile as it was applied, in hex.
    pub digest: String,
    /// What was wanted and is not there, such as `landlock`; empty for a required profile.
    pub missing: Vec<String>,
    /// Hosts that were reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reached: Vec<EgressReached>,
}

/// A way out that a contained tool tried and was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressRefusal {
    /// What it named.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Why it was refused.
    pub reason: String,
    /// How often.
    pub times: u64,
}

/// A host that a contained tool has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EgressReached {
    /// Its name, as the tool asked for it; else its address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How many connections were made.
    pub times: u64,
}

/// What was observed of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// How the tool was contained; `None` = not at all.
    pub sandbox: Option<AppliedSandbox>,
    /// Refused ways out.
    pub egress: Vec<EgressRefusal>,
    /// Hosts that were reached; at most [`REACHED_MAX`], connections to further ones count with the
    /// last.
    pub reached: Vec<EgressReached>,
    /// What rules of the sandbox stopped, at most [`DENIALS_MAX`].
    pub denied: Vec<SandboxDenial>,
    /// The error by which the tool's own server refused the call.
    pub refusal: Option<ServerRefusal>,
}

/// An error of a tool's own server, as it said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRefusal {
    /// The protocol's error code.
    pub code: i64,
    /// What the server said beside its sentence.
    pub data: Option<serde_json::Value>,
}

/// Something that a rule of a tool's sandbox stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDenial {
    /// A sentence for operators: the profile, what it stopped, and the line that would allow it.
    pub sentence: String,
    /// Whether the sentence names nothing but what the tool's own answer names.
    pub open: bool,
}

/// Where an executor notes what it sees.
#[derive(Debug, Clone, Default)]
pub struct ExecutionLog(Arc<Mutex<Observations>>);

impl ExecutionLog {
    fn observed(&self) -> MutexGuard<'_, Observations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tool runs in this sandbox.
    pub fn contained(&self, sandbox: AppliedSandbox) {
        self.observed().sandbox = Some(sandbox);
    }

    /// The tool was refused a way out; tells whether this refusal is noted by itself, and not counted
    /// with another.
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

    /// The tool has reached a host.
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

    /// A rule of the sandbox stopped something.
    pub fn sandbox_denied(&self, denial: SandboxDenial) {
        let mut observed = self.observed();
        if observed.denied.len() < DENIALS_MAX && !observed.denied.contains(&denial) {
            observed.denied.push(denial);
        }
    }

    /// The tool's own server refused the call.
    pub fn refused(&self, refusal: ServerRefusal) {
        self.observed().refusal = Some(refusal);
    }

    /// Refused ways out that were noted, which stay.
    #[must_use]
    pub fn egress(&self) -> Vec<EgressRefusal> {
        self.observed().egress.clone()
    }

    /// Everything that was noted; nothing is left.
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
