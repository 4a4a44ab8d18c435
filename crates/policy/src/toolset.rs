//! Tool sets of a front door: the tools and items that the door shows, out of those that the caller may
//! see.
//!
//! A tool set is never wider than the caller's rights, because both are checked.
//!
//! Path: 3. Doc: policy.md#tool-sets-of-a-door

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::port::ItemKind;

use crate::caller::{may_select_of, selects_all_of};
use crate::item::Item;

/// The tools and items that a front door shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSet {
    /// Tools.
    pub tools: Vec<ToolPattern>,
    /// Prompts; `None` = those of the servers of which `tools` selects all tools.
    pub prompts: Option<Vec<ToolPattern>>,
    /// Resources and templates; `None` as for prompts.
    pub resources: Option<Vec<ToolPattern>>,
}

impl ToolSet {
    /// Whether the set contains the tool.
    #[must_use]
    pub fn has_tool(&self, tool_id: &str) -> bool {
        self.tools.iter().any(|pattern| pattern.selects(tool_id))
    }

    fn of_kind(&self, kind: ItemKind) -> Option<&[ToolPattern]> {
        match kind {
            ItemKind::Prompt => self.prompts.as_deref(),
            ItemKind::Resource | ItemKind::Template => self.resources.as_deref(),
        }
    }

    /// Whether the set contains the prompt, resource or template.
    #[must_use]
    pub fn has(&self, item: &Item<'_>) -> bool {
        match self.of_kind(item.kind) {
            Some(patterns) => patterns.iter().any(|pattern| pattern.selects(item.id)),
            None => self.tools.iter().any(|pattern| selects_all_of(pattern, item.server)),
        }
    }

    /// Whether the set can contain an item of this kind of a server.
    #[must_use]
    pub fn has_some_of(&self, kind: ItemKind, server: &str) -> bool {
        match self.of_kind(kind) {
            Some(patterns) => patterns.iter().any(|pattern| may_select_of(pattern, server)),
            None => self.tools.iter().any(|pattern| selects_all_of(pattern, server)),
        }
    }

    /// Whether the set can contain a tool of a server.
    #[must_use]
    pub fn has_tools_of(&self, server: &str) -> bool {
        self.tools.iter().any(|pattern| may_select_of(pattern, server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<ToolPattern> {
        texts.iter().map(|text| ToolPattern::try_from((*text).to_owned()).unwrap()).collect()
    }

    fn item<'i>(kind: ItemKind, server: &'i str, id: &'i str) -> Item<'i> {
        Item { kind, server, id }
    }

    #[test]
    fn what_is_not_said_follows_whole_servers() {
        let set = ToolSet { tools: patterns(&["files.*", "mail.send"]), ..ToolSet::default() };
        assert!(set.has_tool("files.read") && set.has_tool("mail.send"));
        assert!(set.has(&item(ItemKind::Prompt, "files", "files.greet")));
        assert!(set.has(&item(ItemKind::Resource, "files", "files.file:///a")));
        assert!(!set.has(&item(ItemKind::Prompt, "mail", "mail.send")), "one tool of it only");
        assert!(set.has_some_of(ItemKind::Template, "files"));
        assert!(!set.has_some_of(ItemKind::Prompt, "mail") && set.has_tools_of("mail"));
    }

    #[test]
    fn what_is_said_counts_alone() {
        let set = ToolSet {
            tools: patterns(&["*"]),
            prompts: Some(Vec::new()),
            resources: Some(patterns(&["files.file:///open/*"])),
        };
        assert!(!set.has(&item(ItemKind::Prompt, "files", "files.greet")));
        assert!(set.has(&item(ItemKind::Resource, "files", "files.file:///open/a")));
        assert!(!set.has(&item(ItemKind::Resource, "files", "files.file:///shut/a")));
        assert!(set.has_some_of(ItemKind::Resource, "files"));
        assert!(!set.has_some_of(ItemKind::Resource, "mail"));
    }
}
