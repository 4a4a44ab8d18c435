//! A prompt, a resource or a template, as the policy identifies it.
//!
//! Doc: policy.md#prompts-and-resources

use toolbooth_contracts::port::ItemKind;

/// A prompt, a resource or a template, as the policy identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'i> {
    /// Its kind.
    pub kind: ItemKind,
    /// The name of its server, as in ids.
    pub server: &'i str,
    /// Its id, `SERVER.NAME` or `SERVER.URI`.
    pub id: &'i str,
}

impl Item<'_> {
    /// Returns the permission for all servers. For one server, a slash and its name follow.
    #[must_use]
    pub fn permission(&self) -> &'static str {
        permission(self.kind)
    }
}

pub(crate) fn permission(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Prompt => "use:prompts",
        ItemKind::Resource | ItemKind::Template => "read:resources",
    }
}
