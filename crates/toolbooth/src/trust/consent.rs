//! Asks a user to trust a configuration: all of it, or entry by entry.
//!
//! Doc: importing.md#questions, trust.md#the-question

use std::collections::{BTreeMap, BTreeSet};

use super::{Judged, Trusted};
use crate::config::Loaded;
use crate::terminal;

/// The answers of a user for the entries of a configuration that are not trusted yet.
#[derive(Debug)]
pub(crate) struct Consent {
    /// Entries that must not be started.
    refused: BTreeSet<String>,
}

impl Consent {
    /// Shows the untrusted entries that the configuration would start, and asks for all, then for each one.
    /// Without a user who can answer, only `yes` agrees, and only to the added sections.
    pub(crate) fn ask(judged: &Judged, yes: bool, asks: bool, added: &[String]) -> Self {
        let mut refused: BTreeSet<String> =
            judged.changes.iter().map(|change| change.name.clone()).collect();
        if yes {
            // Importing a section does not trust the other entries of the configuration.
            refused.retain(|name| !added.contains(name));
        } else if asks && !refused.is_empty() {
            judged.told().iter().for_each(|line| crate::notice(line));
            if terminal::confirm("start and trust all of this?") {
                refused.clear();
            } else if refused.len() > 1 {
                refused.retain(|name| {
                    judged.told_of(name).iter().for_each(|line| crate::notice(line));
                    !terminal::confirm(&format!("start and trust `{}`?", name.escape_debug()))
                });
            }
        }
        Self { refused }
    }

    /// Returns a configuration to start as far as it is agreed. The caller must leave out the sections that
    /// [`refused`](Self::refused) returns.
    pub(crate) fn trusted(&self, loaded: Loaded) -> Trusted {
        Trusted::starting_nothing(loaded)
    }

    /// Returns the sections that are not started, with the reason.
    pub(crate) fn refused(
        &self,
        sections: &[(&'static str, String)],
    ) -> BTreeMap<(&'static str, String), String> {
        let is_refused = |(kind, name): &&(&'static str, String)| {
            self.refused.contains(&format!("{kind}.{name}"))
        };
        // Another refused entry, such as a wider sandbox for all, affects every section.
        let other = self
            .refused
            .iter()
            .find(|name| !sections.iter().any(|(kind, own)| **name == format!("{kind}.{own}")));
        let reason = |section: &(&'static str, String)| match (other, is_refused(&section)) {
            (_, true) => Some("it is not trusted yet; `toolbooth trust` asks".to_owned()),
            (Some(other), _) => Some(format!(
                "`{}` of the configuration is not trusted; `toolbooth trust` asks",
                other.escape_debug()
            )),
            (None, false) => None,
        };
        let told = |section: &(&'static str, String)| Some((section.clone(), reason(section)?));
        sections.iter().filter_map(told).collect()
    }

    /// Stores the agreed entries as trusted.
    pub(crate) fn keep(&self, judged: &Judged) {
        if let Err(failure) = judged.keep(|name| !self.refused.contains(name)) {
            crate::notice(&format!("the trust is not kept: {}", failure.message));
        }
    }
}
