//! Approved prompts, resources and templates, in the lock file and as first-use pins.
//!
//! Reads and writes no file.
//!
//! Doc: registry.md#prompts-and-resources

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbooth_contracts::port::{DiscoveredItem, ItemKind};

use super::approvals::NEW;
use super::change::{Compatibility, FieldChange, text_change};
use super::diff::{self, Change, ToolDiff};
use super::{Approvals, InvalidLock, Lock, LockFile, NewTools, Objection, Suspicious};
use crate::digest;
use crate::items::{RegisteredItem, locked_id, spaced_document};
use crate::suspicion::{self, Suspicion};
use crate::tool::Source;

/// One approved prompt, resource or template: its source and its document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LockedItem {
    /// The source, `mcp:NAME`.
    pub source: String,
    /// SHA-256 of the canonical document, in hex.
    pub source_digest: String,
    /// The whole item as the source listed it.
    pub document: Map<String, Value>,
}

impl LockedItem {
    fn of(item: &RegisteredItem) -> Self {
        Self {
            source: item.source().to_string(),
            source_digest: item.source_digest().to_owned(),
            document: item.document().clone(),
        }
    }

    fn matches(&self, item: &RegisteredItem) -> bool {
        self.source == item.source().to_string()
            && (self.source_digest == item.source_digest()
                || spaced_document(&self.document) == spaced_document(item.document()))
    }

    fn discovered(&self, kind: ItemKind) -> DiscoveredItem {
        let key = self.document.get(kind.key_member()).and_then(Value::as_str);
        DiscoveredItem { key: key.unwrap_or_default().to_owned(), document: self.document.clone() }
    }
}

impl LockFile {
    fn section(&self, kind: ItemKind) -> &BTreeMap<String, LockedItem> {
        match kind {
            ItemKind::Prompt => &self.prompts,
            ItemKind::Resource => &self.resources,
            ItemKind::Template => &self.templates,
        }
    }

    fn section_mut(&mut self, kind: ItemKind) -> &mut BTreeMap<String, LockedItem> {
        match kind {
            ItemKind::Prompt => &mut self.prompts,
            ItemKind::Resource => &mut self.resources,
            ItemKind::Template => &mut self.templates,
        }
    }

    /// The approved item with this id and kind, such as `prompt:ID`.
    #[must_use]
    pub fn get_item(&self, text: &str) -> Option<&LockedItem> {
        let (kind, id) = locked_id(text)?;
        self.section(kind).get(id)
    }

    /// All approved items by their ids with their kinds.
    pub fn items(&self) -> impl Iterator<Item = (String, &LockedItem)> {
        ItemKind::ALL.into_iter().flat_map(|kind| {
            let section = self.section(kind).iter();
            section.map(move |(id, item)| (format!("{kind}:{id}"), item))
        })
    }

    /// Approves the current form of an item.
    pub fn approve_item(&mut self, item: &RegisteredItem) {
        self.section_mut(item.kind()).insert(item.id().to_owned(), LockedItem::of(item));
    }

    /// Removes an item by its id with its kind. Returns whether it was approved.
    pub(super) fn forget_item(&mut self, text: &str) -> bool {
        locked_id(text).is_some_and(|(kind, id)| self.section_mut(kind).remove(id).is_some())
    }

    /// As [`LockFile::take_over`], for an item.
    pub(super) fn take_over_item(&mut self, other: &Self, text: &str) {
        let Some((kind, id)) = locked_id(text) else { return };
        match other.section(kind).get(id) {
            Some(item) => drop(self.section_mut(kind).insert(id.to_owned(), item.clone())),
            None => drop(self.section_mut(kind).remove(id)),
        }
    }

    /// Whether the first listing of a source's prompts, resources and templates is pinned, even if
    /// it was empty.
    #[must_use]
    pub fn has_seen_items(&self, source: &Source) -> bool {
        self.item_sources.contains(&source.to_string())
    }

    /// As [`LockFile::pin`], for prompts, resources and templates. Returns their ids with their
    /// kinds.
    pub fn pin_items(
        &mut self,
        source: &Source,
        items: &[Arc<RegisteredItem>],
        new_tools: NewTools,
    ) -> Vec<String> {
        let first = self.item_sources.insert(source.to_string());
        if !first && new_tools == NewTools::Deny {
            return Vec::new();
        }
        let mut pinned = Vec::new();
        for item in items.iter().filter(|item| item.source() == source) {
            let section = self.section_mut(item.kind());
            if !section.contains_key(item.id()) {
                section.insert(item.id().to_owned(), LockedItem::of(item));
                self.mark_unrecorded(item.locked_id());
                pinned.push(item.locked_id());
            }
        }
        pinned
    }

    pub(super) fn check_items(&self) -> Result<(), InvalidLock> {
        for (id, item) in self.items() {
            if digest::of(&Value::Object(item.document.clone())) != item.source_digest {
                let message = format!(
                    "the digest of `{}` does not match its entry; the file was edited by hand",
                    id.escape_debug()
                );
                return Err(InvalidLock { message, location: None });
            }
        }
        Ok(())
    }

    pub(super) fn listed_items(&self, source: &str, kind: ItemKind) -> Vec<DiscoveredItem> {
        let own = self.section(kind).values().filter(|item| item.source == source);
        own.map(|item| item.discovered(kind)).collect()
    }

    pub(super) fn items_of_sources(&self, wanted: impl Fn(&str) -> bool) -> Self {
        let of = |kind| {
            let own = self.section(kind).iter().filter(|(_, item)| wanted(&item.source));
            own.map(|(id, item)| (id.clone(), item.clone())).collect()
        };
        Self {
            prompts: of(ItemKind::Prompt),
            resources: of(ItemKind::Resource),
            templates: of(ItemKind::Template),
            ..Self::empty()
        }
    }
}

impl Approvals {
    /// Judges items as [`Approvals::judge`] judges tools. The result is by id with kind.
    #[must_use]
    pub fn judge_items<'i>(
        &self,
        items: impl Iterator<Item = &'i RegisteredItem>,
    ) -> HashMap<String, Objection> {
        let mut objections = HashMap::new();
        for item in items.filter(|item| !self.is_approved_item(item)) {
            let suspicions = suspicion::of_document(item.document());
            let quarantine = self.item_reason(item, &suspicions);
            if quarantine.is_some() || !suspicions.is_empty() {
                objections.insert(item.locked_id(), Objection { quarantine, suspicions });
            }
        }
        objections
    }

    fn approved_item(&self, item: &RegisteredItem) -> Option<&LockedItem> {
        self.lock.approved()?.section(item.kind()).get(item.id())
    }

    fn is_approved_item(&self, item: &RegisteredItem) -> bool {
        self.approved_item(item).is_some_and(|locked| locked.matches(item))
    }

    fn item_reason(&self, item: &RegisteredItem, suspicions: &[Suspicion]) -> Option<String> {
        let suspicious = self.suspicious_reason(suspicions);
        if let Some(locked) = self.approved_item(item) {
            let source = item.source().to_string();
            if locked.source != source {
                return Some(format!(
                    "it was approved as a {} of {}, and comes from {source} now",
                    item.kind(),
                    locked.source
                ));
            }
            return Some(diff::summary(&changes(&locked.document, item.document())));
        }
        match &self.lock {
            Lock::Missing => Some("the lock file is missing".to_owned()),
            Lock::File(_) if self.new_tools == NewTools::Deny => Some(NEW.to_owned()),
            Lock::Off | Lock::File(_) => suspicious,
            Lock::FirstUse(pins) => Some(suspicious.unwrap_or_else(|| {
                let new = pins.has_seen_items(item.source()) && self.new_tools == NewTools::Deny;
                if new { NEW.to_owned() } else { "it is not pinned yet".to_owned() }
            })),
        }
    }

    /// The items of a source that first use pins, as [`Approvals::to_pin`] for tools.
    #[must_use]
    pub fn items_to_pin<'i>(
        &self,
        source: &Source,
        items: impl Iterator<Item = &'i Arc<RegisteredItem>>,
    ) -> Vec<Arc<RegisteredItem>> {
        let Lock::FirstUse(pins) = &self.lock else { return Vec::new() };
        if pins.has_seen_items(source) && self.new_tools == NewTools::Deny {
            return Vec::new();
        }
        let fresh = items.filter(|item| {
            item.source() == source
                && self.approved_item(item).is_none()
                && (self.suspicious == Suspicious::Warn
                    || suspicion::of_document(item.document()).is_empty())
        });
        fresh.cloned().collect()
    }
}

/// All changes of a document, by member; empty if only white space of texts differs.
fn changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<FieldChange> {
    let mut out = Vec::new();
    if spaced_document(before) == spaced_document(after) {
        return out;
    }
    let fresh = after.keys().filter(|key| !before.contains_key(*key));
    let names: Vec<&String> = before.keys().chain(fresh).collect();
    for name in names {
        let (one, two) = (before.get(name), after.get(name));
        if one == two {
            continue;
        }
        let text = |side: Option<&Value>| side.is_none_or(Value::is_string);
        if text(one) && text(two) {
            let [one, two] = [one, two].map(|side| side.and_then(Value::as_str));
            out.extend(text_change(name, "", one, two));
            continue;
        }
        // Requests for a prompt contain its arguments, so a change of these breaks callers.
        let breaks = name == "arguments";
        out.push(FieldChange {
            field: name.clone(),
            path: String::new(),
            before: one.cloned(),
            after: two.cloned(),
            words: Vec::new(),
            verdict: if breaks { Compatibility::Breaking } else { Compatibility::Compatible },
            reason: "the item is listed with something else here".to_owned(),
        });
    }
    out
}

/// The differences between the lock and the listed items, sorted by id, as [`diff::diff`] for
/// tools.
#[must_use]
pub fn diff_items<'i>(
    lock: &LockFile,
    items: impl Iterator<Item = &'i RegisteredItem>,
    objections: &HashMap<String, Objection>,
    answered: impl Fn(&Source) -> bool,
) -> Vec<ToolDiff> {
    let mut out = Vec::new();
    let mut present = HashSet::new();
    for item in items {
        let id = item.locked_id();
        let source = item.source().to_string();
        let (change, changes) = match lock.section(item.kind()).get(item.id()) {
            None => (Change::New, Vec::new()),
            Some(locked) => {
                let changes = changes(&locked.document, item.document());
                match (locked.source == source, changes.is_empty()) {
                    (false, _) => (Change::Moved, changes),
                    (true, false) => (Change::Changed, changes),
                    (true, true) => {
                        present.insert(id);
                        continue;
                    }
                }
            }
        };
        let worst = changes.iter().map(|change| change.verdict).max();
        let moved = if change == Change::Moved {
            Compatibility::Breaking
        } else {
            Compatibility::Compatible
        };
        out.push(ToolDiff {
            source,
            change,
            source_digest: Some(item.source_digest().to_owned()),
            verdict: worst.map_or(moved, |worst| worst.max(moved)),
            changes,
            suspicious: objections.get(&id).map(|one| one.suspicions.clone()).unwrap_or_default(),
            tool_id: id.clone(),
        });
        present.insert(id);
    }
    for (id, locked) in lock.items().filter(|(id, _)| !present.contains(id)) {
        if Source::parse(&locked.source).is_none_or(|source| answered(&source)) {
            out.push(ToolDiff {
                tool_id: id,
                source: locked.source.clone(),
                source_digest: None,
                change: Change::Removed,
                verdict: Compatibility::Breaking,
                changes: Vec::new(),
                suspicious: Vec::new(),
            });
        }
    }
    out.sort_by(|a, b| a.tool_id.cmp(&b.tool_id));
    out
}

#[cfg(test)]
mod tests;
