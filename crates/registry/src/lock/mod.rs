//! The lock: the tools and items that an operator approved, and the check of listings against it.
//!
//! The functions accept text and open no file. The lock does not contain operator settings, so a
//! changed timeout quarantines nothing.
//!
//! Doc: registry.md#the-lock

mod approvals;
mod change;
mod diff;
mod items;
mod objection;
mod pins;
mod schema;
mod show;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbooth_contracts::json;
use toolbooth_contracts::port::{ItemKind, Listing, Offers};

pub use approvals::{Approvals, NewTools, Suspicious};
pub use change::{Compatibility, FieldChange, Word, WordChange};
pub use diff::{Change, ToolDiff, compare, diff};
pub use items::{LockedItem, diff_items};
pub use objection::Objection;
pub use pins::UnrecordedPin;
pub use show::text as show_text;

pub use crate::error::InvalidLock;
pub use crate::items::locked_id;
use crate::source_claims::SourceClaims;
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
            location: Some(json::line_column(text, fault.offset)),
        })?;
        let other = |message: String| InvalidLock { message, location: None };
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
                    "the digest of `{id}` does not match its entry; the file was edited by hand"
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

#[cfg(test)]
mod tests;
