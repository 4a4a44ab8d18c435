//! The rules of a tool that read windows over earlier calls, once its other rules are evaluated.
//!
//! Path: 5, 6. Doc: policy.md#history

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toolbooth_contracts::history::{History, WindowName};

use super::bind::BoundTool;
use super::history::HISTORY;
use super::parties::Parties;
use super::set::RuleSet;
use super::slice::Applying;
use super::values::ContextMembers;
use crate::engine::{DependentVerdict, Verdict};
use crate::error::EngineError;

/// The verdict on a call, of which only the rules that read windows are not evaluated yet.
pub(super) struct HistoricRules {
    pub(super) set: Arc<RuleSet>,
    pub(super) tool: Arc<BoundTool>,
    pub(super) parties: Arc<Parties>,
    /// The parts of the context that these rules read, except for the windows.
    pub(super) parts: ContextMembers,
    pub(super) windows: BTreeMap<String, WindowName>,
    /// The other rules that apply.
    pub(super) applying: Applying,
}

impl HistoricRules {
    /// Returns all rules that apply, with the windows.
    pub(super) fn applying(&self, history: &History) -> Result<Applying, EngineError> {
        let reads = &self.tool.slice.historic_reads;
        let windows = self.set.windows.context(&self.tool.reading, reads, history)?;
        let mut parts = self.parts.clone();
        parts.push((HISTORY.to_owned(), windows));
        let mut applying = self.applying.clone();
        let evaluation = self.parties.evaluation(parts);
        self.tool.slice.historic(&self.set, &evaluation, &mut applying)?;
        Ok(applying)
    }
}

impl DependentVerdict for HistoricRules {
    fn windows(&self) -> &BTreeMap<String, WindowName> {
        &self.windows
    }

    fn complete(
        &self,
        history: &History,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Verdict, EngineError> {
        let applying = self.applying(history)?;
        if let Some(trace) = trace {
            let is_read = |name: &str| self.windows.contains_key(name);
            let read = history.iter().filter(|(name, _)| is_read(name));
            trace.extend(self.set.windows.told(read));
            self.set.trace(&applying, trace);
        }
        Ok(applying.verdict(&self.set))
    }
}

impl fmt::Debug for HistoricRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.windows.keys().collect();
        f.debug_struct("HistoricRules").field("windows", &names).finish_non_exhaustive()
    }
}
