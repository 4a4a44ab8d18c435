//! What a person says of a configuration that is not trusted yet: to all of it, or entry by entry.
//!
//! Doc: importing.md#questions, trust.md#the-question

use std::collections::{BTreeMap, BTreeSet};

use super::{Judged, Trusted};
use crate::config::Loaded;
use crate::terminal;

/// What a person has said of the entries of a configuration that are not trusted yet.
#[derive(Debug)]
pub(crate) struct Consent {
    /// Entries that may not be started.
    refused: BTreeSet<String>,
}

impl Consent {
    /// Shows what the configuration would start that is not trusted, and asks: for all, then one by one.
    /// Where nobody can answer, nothing is agreed to but by `yes`,
    /// which is said of the sections that are added alone.
    pub(crate) fn ask(judged: &Judged, yes: bool, asks: bool, added: &[String]) -> Self {
        let mut refused: BTreeSet<String> =
            judged.changes.iter().map(|change| change.name.clone()).collect();
        if yes {
            // What else the configuration has is not said yes to by importing something.
            refused.retain(|name| !added.contains(name));
        } else if asks && !refused.is_empty() {
            judged.told().iter().for_each(|line| crate::note(line));
            if terminal::confirm("start and trust all of this?") {
                refused.clear();
            } else if refused.len() > 1 {
                refused.retain(|name| {
                    judged.told_of(name).iter().for_each(|line| crate::note(line));
                    !terminal::confirm(&format!("start and trust `{}`?", name.escape_debug()))
                });
            }
        }
        Self { refused }
    }

    /// A configuration to be started as far as it was agreed to: whoever calls leaves out the rest,
    /// which [`refused`](Self::refused) names.
    pub(crate) fn trusted(&self, loaded: Loaded) -> Trusted {
        Trusted::starting_nothing(loaded)
    }

    /// Sections that are not started, with the reason.
    pub(crate) fn refused(
        &self,
        sections: &[(&'static str, String)],
    ) -> BTreeMap<(&'static str, String), String> {
        let is_refused = |(kind, name): &&(&'static str, String)| {
            self.refused.contains(&format!("{kind}.{name}"))
        };
        // Another entry, such as a wider sandbox for all, holds for each of them.
        let other = self
            .refused
            .iter()
            .find(|name| !sections.iter().any(|(kind, own)| **name == format!("{kind}.{own}")));
        let reason = |section: &(&'static str, String)| match (other, is_refused(&section)) {
            (_, true) => Some("nobody has said yes to it; `toolbooth trust` asks".to_owned()),
            (Some(other), _) => Some(format!(
                "`{}` of the configuration is not trusted; `toolbooth trust` asks",
                other.escape_debug()
            )),
            (None, false) => None,
        };
        let told = |section: &(&'static str, String)| Some((section.clone(), reason(section)?));
        sections.iter().filter_map(told).collect()
    }

    /// Keeps as trusted what was agreed to.
    pub(crate) fn keep(&self, judged: &Judged) {
        if let Err(failure) = judged.keep(|name| !self.refused.contains(name)) {
            crate::note(&format!("the trust is not kept: {}", failure.message));
        }
    }
}
