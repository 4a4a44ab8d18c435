//! Judges whether the tools of a source are approved, and quarantines or leaves out the others.
//!
//! Doc: registry.md#the-lock

use std::collections::HashMap;

use super::{Lock, Objection, diff, matches};
use crate::source_claims::SourceClaims;
use crate::suspicion::{self, Look, Suspicion};
use crate::tool::RegisteredTool;

/// The treatment of a discovered tool that no lock contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NewTools {
    /// It is quarantined.
    #[default]
    Deny,
    /// It is accepted.
    Allow,
}

/// The treatment of a discovered tool with suspicious text that is not approved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Suspicious {
    /// It is quarantined.
    #[default]
    Quarantine,
    /// It is accepted, with a warning.
    Warn,
}

/// The rules by which discovered tools and items are judged.
#[derive(Debug, Clone, Default)]
pub struct Approvals {
    /// The approved tools.
    pub lock: Lock,
    /// The treatment of tools without an approval.
    pub new_tools: NewTools,
    /// The treatment of suspicious text.
    pub suspicious: Suspicious,
}

impl Approvals {
    /// Whether the current form of the tool is approved.
    fn is_approved(&self, tool: &RegisteredTool) -> bool {
        self.lock.approved().is_some_and(|lock| {
            let locked = lock.of_tool(tool);
            locked.is_some_and(|(_, locked)| matches(lock, locked, tool))
        })
    }

    /// Whether the extra members of a tool are hidden, because its approval is of a version that
    /// does not cover them.
    #[must_use]
    pub fn hides_extra(&self, tool: &RegisteredTool) -> bool {
        if tool.contract().shown.is_empty() || !tool.source().is_discovered() {
            return false;
        }
        self.lock.approved().is_some_and(|lock| {
            !lock.knows_extra(&tool.source().to_string())
                && lock.of_tool(tool).is_some_and(|(_, locked)| locked.extra.is_empty())
        })
    }

    /// Judges all discovered tools of a registry; tools of other sources get no objection. The
    /// result has the tools with an objection, by id.
    #[must_use]
    pub fn judge<'t>(
        &self,
        tools: impl Iterator<Item = &'t RegisteredTool>,
    ) -> HashMap<String, Objection> {
        let all: Vec<&RegisteredTool> = tools.collect();
        let mut objections: HashMap<String, Objection> = HashMap::new();
        for (tool, suspicions) in self.unapproved(&all) {
            let reason = self.reason(tool, &suspicions);
            if reason.is_some() || !suspicions.is_empty() {
                let objection = Objection { quarantine: reason, suspicions };
                objections.insert(tool.id().to_string(), objection);
            }
        }
        objections
    }

    /// The discovered tools without an approval of their current form, each with its suspicious text.
    pub(super) fn unapproved<'t>(
        &self,
        all: &[&'t RegisteredTool],
    ) -> Vec<(&'t RegisteredTool, Vec<Suspicion>)> {
        let discovered = all.iter().copied().filter(|tool| tool.source().is_discovered());
        let unapproved: Vec<&RegisteredTool> =
            discovered.filter(|tool| !self.is_approved(tool)).collect();
        if unapproved.is_empty() {
            return Vec::new();
        }
        // Tools of all sources by look: a name may resemble that of an approved or compiled-in
        // tool.
        let mut looks: HashMap<String, Vec<(String, &RegisteredTool)>> = HashMap::new();
        for tool in all {
            let Look { look, spelling } = Look::of(tool.target());
            let alike = looks.entry(look).or_default();
            let known =
                alike.iter().any(|(own, one)| *own == spelling && one.source() == tool.source());
            if !known && alike.len() < LOOKS_MAX {
                alike.push((spelling, tool));
            }
        }
        let scanned = unapproved.into_iter().map(|tool| {
            let mut suspicions = suspicion::of(&SourceClaims::of(tool.contract()));
            suspicions.extend(resembles(tool, &looks));
            (tool, suspicions)
        });
        scanned.collect()
    }

    pub(super) fn suspicious_reason(&self, suspicions: &[Suspicion]) -> Option<String> {
        suspicions
            .first()
            .filter(|_| self.suspicious == Suspicious::Quarantine)
            .map(|first| format!("suspicious-description: {} in {}", first.kind, first.place))
    }

    fn reason(&self, tool: &RegisteredTool, suspicions: &[Suspicion]) -> Option<String> {
        let suspicious = self.suspicious_reason(suspicions);
        if let Some((_, locked)) = self.lock.approved().and_then(|lock| lock.of_tool(tool)) {
            if locked.source != tool.source().to_string() {
                return Some(format!(
                    "it was approved as a tool of {}, and comes from {} now",
                    locked.source,
                    tool.source()
                ));
            }
            let changed = diff::changes(&locked.claims(), &SourceClaims::of(tool.contract()));
            return Some(diff::summary(&changed));
        }
        match &self.lock {
            Lock::Missing => Some("the lock file is missing".to_owned()),
            Lock::File(_) if self.new_tools == NewTools::Deny => Some(NEW.to_owned()),
            Lock::Off | Lock::File(_) => suspicious,
            // No tool passes without its pin: those that first use accepts are pinned before they
            // are published.
            Lock::FirstUse(pins) => Some(suspicious.unwrap_or_else(|| {
                let new = pins.has_seen(tool.source()) && self.new_tools == NewTools::Deny;
                if new { NEW.to_owned() } else { "it is not pinned yet".to_owned() }
            })),
        }
    }
}

/// The reason for the quarantine of a tool that its source did not list before.
pub(super) const NEW: &str = "it is new and not approved yet";

/// Maximum number of tools that are stored for one look.
const LOOKS_MAX: usize = 8;

/// The suspicion that a tool's name looks like the name of another source's tool.
fn resembles(
    tool: &RegisteredTool,
    looks: &HashMap<String, Vec<(String, &RegisteredTool)>>,
) -> Option<Suspicion> {
    let Look { look, spelling } = Look::of(tool.target());
    let (_, lookalike) = looks
        .get(&look)?
        .iter()
        .find(|(other, one)| *other != spelling && one.source() != tool.source())?;
    Some(Suspicion {
        kind: suspicion::SuspicionKind::ConfusableName,
        place: "name".to_owned(),
        shown: format!("`{}` looks like `{}`", suspicion::visible(tool.target()), lookalike.id()),
    })
}
