//! The lock: the tools and items that an operator approved, and the check of listings against it.
//!
//! The functions accept text and open no file. The lock does not contain operator settings, so a
//! changed timeout quarantines nothing.
//!
//! Doc: registry.md#the-lock

mod change;
mod diff;
mod items;
mod pins;
mod schema;
mod show;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbooth_contracts::json;
use toolbooth_contracts::port::{ItemKind, Listing, Offers};

pub use change::{Compatibility, FieldChange, Word, WordChange};
pub use diff::{Change, ToolDiff, compare, diff};
pub use items::{LockedItem, diff_items, locked_id};
pub use pins::UnrecordedPin;
pub use show::text as show_text;

use crate::source_claims::SourceClaims;
use crate::suspicion::{self, Look, Suspicion};
use crate::tool::{RegisteredTool, Source};

/// The major version of lock files that this build reads.
const VERSION_MAJOR: &str = "1";
/// The version that this build writes.
const VERSION: &str = "1.1.0";
/// Prefix of the versions with tools that have no extra members such as `icons` and `_meta`.
const VERSION_OF_TOOLS: &str = "1.0.";

/// The lock file: the approved tools, prompts, resources and templates, by id.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockFile {
    /// Semantic version of the format.
    version: String,
    /// The approved tools.
    tools: BTreeMap<String, LockedTool>,
    /// Sources with a pinned first listing; only in the file of first-use pins.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    sources: BTreeSet<String>,
    /// The approved prompts, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prompts: BTreeMap<String, LockedItem>,
    /// The approved resources, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resources: BTreeMap<String, LockedItem>,
    /// The approved resource templates, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    templates: BTreeMap<String, LockedItem>,
    /// Sources with a pinned first listing of prompts, resources and templates; only in the file of
    /// first-use pins.
    #[serde(rename = "itemSources", default, skip_serializing_if = "BTreeSet::is_empty")]
    item_sources: BTreeSet<String>,
    /// Pins without an audit event yet, items by id with kind; only in the file of first-use pins.
    /// Absent in a file that an earlier version wrote: all its pins count as unrecorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unrecorded: Option<BTreeSet<String>>,
}

/// One approved tool: its source and the claims of the source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LockedTool {
    /// The source, `command:NAME` or `mcp:NAME`.
    pub source: String,
    /// The source digest: SHA-256 of the claims below in canonical form, in hex.
    pub source_digest: String,
    /// The name of the tool at its source.
    pub name: String,
    /// The display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result.
    pub output_schema: Value,
    /// The hints of the source about the tool, as MCP defines them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
    /// Other members that the source lists for clients, such as `icons` and `_meta`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl LockedTool {
    fn of(tool: &RegisteredTool) -> Self {
        let said = SourceClaims::of(tool.contract());
        Self {
            source: tool.source().to_string(),
            source_digest: tool.source_digest().to_owned(),
            name: said.name,
            title: said.title,
            description: said.description,
            input_schema: said.input_schema,
            output_schema: said.output_schema,
            annotations: said.annotations,
            extra: said.extra,
        }
    }

    /// The approved claims of the source.
    #[must_use]
    pub fn claims(&self) -> SourceClaims {
        SourceClaims {
            name: self.name.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            output_schema: self.output_schema.clone(),
            annotations: self.annotations.clone(),
            extra: self.extra.clone(),
        }
    }
}

/// Why a lock file is invalid. An invalid file approves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLock {
    /// The error as a sentence.
    pub message: String,
    /// Line and column, from 1, if they are known.
    pub place: Option<(usize, usize)>,
}

impl std::fmt::Display for InvalidLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidLock {}

impl LockFile {
    /// A lock that approves nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self { version: VERSION.to_owned(), ..Self::default() }
    }

    /// Reads a lock file.
    ///
    /// # Errors
    /// [`InvalidLock`] if the text is not JSON, has another form or another major version, or if a
    /// digest does not match its entry.
    pub fn parse(text: &[u8]) -> Result<Self, InvalidLock> {
        let value = json::parse(text).map_err(|fault| InvalidLock {
            message: fault.message.clone(),
            place: Some(json::line_column(text, fault.offset)),
        })?;
        let other = |message: String| InvalidLock { message, place: None };
        let version = value.get("version").and_then(Value::as_str).unwrap_or_default();
        if version.split('.').next() != Some(VERSION_MAJOR) {
            return Err(other(format!(
                "this build reads version {VERSION_MAJOR} of lock files, the file says `{}`",
                version.escape_debug()
            )));
        }
        let lock: Self = serde_json::from_value(value).map_err(|error| other(error.to_string()))?;
        for (id, tool) in &lock.tools {
            if tool.claims().digest() != tool.source_digest {
                return Err(other(format!(
                    "the digest of `{id}` is not that of what stands beside it; the file was \
                     changed by hand"
                )));
            }
        }
        lock.check_items()?;
        Ok(lock)
    }

    /// Whether the approvals of a source's tools cover extra members. Approvals that an earlier
    /// version wrote do not.
    fn knows_extra(&self, source: &str) -> bool {
        !self.version.starts_with(VERSION_OF_TOOLS) || self.item_sources.contains(source)
    }

    /// Marks every approval as covering extra members. Call it only for a file that was made while
    /// all sources answered.
    pub fn complete(&mut self) {
        self.version = VERSION.to_owned();
    }

    /// The file as text, sorted: equal locks have equal bytes.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).unwrap_or_default())
    }

    /// Approves the current form of a tool.
    pub fn approve(&mut self, tool: &RegisteredTool) {
        self.tools.insert(tool.id().to_string(), LockedTool::of(tool));
    }

    /// Removes a tool, or an item by its id with its kind. Returns whether it was approved.
    pub fn forget(&mut self, id: &str) -> bool {
        self.tools.remove(id).is_some() || self.forget_item(id)
    }

    /// The approved tool with this id.
    #[must_use]
    pub fn get(&self, tool_id: &str) -> Option<&LockedTool> {
        self.tools.get(tool_id)
    }

    /// All approved tools, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LockedTool)> {
        self.tools.iter().map(|(id, tool)| (id.as_str(), tool))
    }

    /// The approval of a tool, with the id under which it was approved. The search is by id, then
    /// by source and name, because an operator may have renamed the tool.
    #[must_use]
    pub fn of_tool(&self, tool: &RegisteredTool) -> Option<(&str, &LockedTool)> {
        let id = tool.id().as_str();
        let source = tool.source().to_string();
        self.tools
            .get_key_value(id)
            .or_else(|| {
                self.tools.iter().find(|(_, own)| own.source == source && own.name == tool.target())
            })
            .map(|(id, own)| (id.as_str(), own))
    }

    /// How many tools are approved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// How many prompts, resources and templates are approved.
    #[must_use]
    pub fn items_len(&self) -> usize {
        self.prompts.len() + self.resources.len() + self.templates.len()
    }

    /// Whether nothing is approved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.items_len() == 0
    }

    /// A listing of the approved tools and items of a source.
    #[must_use]
    pub fn listing(&self, source: &Source) -> Listing {
        let name = source.to_string();
        let tools = self.tools.values().filter(|tool| tool.source == name);
        let [prompts, resources, templates] =
            ItemKind::ALL.map(|kind| self.listed_items(&name, kind));
        Listing {
            tools: tools.map(|tool| tool.claims().into_discovered()).collect(),
            offers: Offers {
                prompts: !prompts.is_empty(),
                resources: !resources.is_empty() || !templates.is_empty(),
                ..Offers::default()
            },
            prompts,
            resources,
            templates,
            problems: Vec::new(),
        }
    }
}

/// The approved tools that discovered tools are compared with.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Lock {
    /// No lock: only suspicious text quarantines discovered tools.
    #[default]
    Off,
    /// The tools of the lock file.
    File(LockFile),
    /// The required lock file is missing: every discovered tool is quarantined.
    Missing,
    /// The first-use pins. A tool without a pin is quarantined until it is pinned.
    FirstUse(LockFile),
}

impl Lock {
    /// The approvals of the lock file or of the pins; `None` without them.
    #[must_use]
    pub fn approved(&self) -> Option<&LockFile> {
        match self {
            Self::File(lock) | Self::FirstUse(lock) => Some(lock),
            Self::Off | Self::Missing => None,
        }
    }
}

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

/// The result of judging a discovered tool or item, if there is an objection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objection {
    /// The reason for the quarantine; `None` if it is not quarantined.
    pub quarantine: Option<String>,
    /// Its unapproved suspicious text.
    pub suspicions: Vec<Suspicion>,
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
    fn unapproved<'t>(
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

    fn suspicious_reason(&self, suspicions: &[Suspicion]) -> Option<String> {
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
const NEW: &str = "it is new and not approved yet";

/// Whether a tool equals its approval, by digest or except for white space in its texts.
/// Differences are not used for this: a change of an unknown keyword counts too.
fn matches(lock: &LockFile, locked: &LockedTool, tool: &RegisteredTool) -> bool {
    if locked.source != tool.source().to_string() {
        return false;
    }
    if locked.source_digest == tool.source_digest() {
        return true;
    }
    let mut now = SourceClaims::of(tool.contract());
    if locked.extra.is_empty() && !lock.knows_extra(&locked.source) {
        now.extra.clear();
    }
    locked.claims().spaced() == now.spaced()
}

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

#[cfg(test)]
mod tests;
