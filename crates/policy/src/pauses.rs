//! The pauses in force: calls that operators have stopped for the time being.
//!
//! Path: 3. Doc: policy.md#pauses

use std::collections::BTreeSet;

use toolbooth_contracts::order::PauseTarget;

/// The pauses in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses(BTreeSet<PauseTarget>);

impl FromIterator<PauseTarget> for Pauses {
    fn from_iter<T: IntoIterator<Item = PauseTarget>>(targets: T) -> Self {
        Self(targets.into_iter().collect())
    }
}

impl Pauses {
    /// Returns the pauses of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    /// Whether the calls of a tool are paused, or those to its server.
    #[must_use]
    pub fn has_tool(&self, tool_id: &str, server: Option<&str>) -> bool {
        // Without pauses, which is the normal case, nothing is allocated.
        !self.0.is_empty()
            && (self.0.contains(&PauseTarget::Tool(tool_id.to_owned()))
                || server.is_some_and(|server| self.has_server(server)))
    }

    /// Whether the calls and requests to a server are paused.
    #[must_use]
    pub fn has_server(&self, server: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&PauseTarget::Server(server.to_owned()))
    }

    /// Whether all calls and requests are paused.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.0.contains(&PauseTarget::All)
    }

    /// Whether the calls and requests of a caller are paused, or all of them.
    #[must_use]
    pub fn has_caller(&self, caller: &str) -> bool {
        !self.0.is_empty()
            && (self.0.contains(&PauseTarget::All)
                || self.0.contains(&PauseTarget::Caller(caller.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_concerns_only_its_target() {
        let pauses = |targets: &[&str]| -> Pauses {
            targets.iter().map(|text| PauseTarget::try_from((*text).to_owned()).unwrap()).collect()
        };
        let some = pauses(&["tool:a.b", "server:files", "caller:key:x"]);
        assert!(some.has_tool("a.b", None) && !some.has_tool("a.c", None));
        assert!(some.has_tool("a.c", Some("files")) && !some.has_tool("a.c", Some("a.b")));
        assert!(some.has_server("files") && !some.has_server("key:x"));
        assert!(some.has_caller("key:x") && !some.has_caller("local"));
        assert!(pauses(&["all"]).has_all() && !some.has_all());
        assert!(pauses(&["all"]).has_caller("local") && !Pauses::default().has_caller("local"));
        for wrong in ["", "tool:", "a.b", "all:", "callers:x"] {
            assert!(PauseTarget::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
