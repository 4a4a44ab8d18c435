//! The tools and items that a rule is about, by its scope.
//!
//! Path: 5. Doc: policy.md#scope

use std::collections::BTreeSet;

use cedar_policy::{ActionConstraint, EntityUid, Policy, ResourceConstraint};
use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::contract::{Category, ToolContract};

/// The type of actions.
pub(super) const ACTION: &str = "Action";
/// The type of tools.
pub(super) const TOOL: &str = "Tool";
/// The action of fetching a prompt, which is also its permission.
pub(super) const USE_PROMPTS: &str = "use:prompts";
/// The action of reading a resource, which is also its permission.
pub(super) const READ_RESOURCES: &str = "read:resources";

/// A group of tools that a rule can name as an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Group {
    /// All tools.
    Call,
    /// Tools that an operator marked as read-only.
    Read,
    /// All others.
    Write,
    /// Tools of a category.
    Category(String),
    /// Tools that need a permission.
    Permission(String),
    /// Tools with ids of a pattern.
    Pattern(ToolPattern),
}

impl Group {
    /// Returns the group with this name; `None` if it is no group's.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "call" => return Some(Self::Call),
            "read" => return Some(Self::Read),
            "write" => return Some(Self::Write),
            _ => (),
        }
        if let Some(category) = name.strip_prefix("category:") {
            return Category::NAMES
                .contains(&category)
                .then(|| Self::Category(category.to_owned()));
        }
        if let Some(permission) = name.strip_prefix("permission:") {
            return Some(Self::Permission(permission.to_owned()));
        }
        let pattern = || ToolPattern::try_from(name.to_owned()).ok();
        name.ends_with('*').then(pattern).flatten().map(Self::Pattern)
    }

    /// Whether a tool is in the group.
    pub(super) fn has(&self, contract: &ToolContract) -> bool {
        let is_read = contract.policy.read_only == Some(true);
        match self {
            Self::Call => true,
            Self::Read => is_read,
            Self::Write => !is_read,
            Self::Category(name) => contract.category.as_str() == name,
            Self::Permission(name) => contract.permissions.iter().any(|own| own == name),
            Self::Pattern(pattern) => pattern.selects(contract.tool_id.as_str()),
        }
    }
}

/// Returns the name of a tool's action: its id, unless a group has that name.
pub(super) fn action_of(tool_id: &str) -> String {
    match Group::parse(tool_id) {
        Some(_) => format!("tool:{tool_id}"),
        None => tool_id.to_owned(),
    }
}

/// Returns the tool id of an action's name that is no group.
pub(super) fn tool_of(action: &str) -> &str {
    action.strip_prefix("tool:").filter(|id| Group::parse(id).is_some()).unwrap_or(action)
}

/// The tools and items that a rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scope {
    /// Tools that it names.
    pub(super) tools: BTreeSet<String>,
    /// Groups of tools that it names.
    pub(super) groups: BTreeSet<String>,
    /// Whether it is about every tool.
    pub(super) every_tool: bool,
    /// Whether it is about prompts and resources.
    pub(super) items: bool,
}

impl Scope {
    /// Returns the scope of a rule.
    pub(super) fn of(rule: &Policy) -> Self {
        let mut scope = Self::default();
        match rule.action_constraint() {
            ActionConstraint::Any => {
                scope.every_tool = true;
                scope.items = true;
            }
            ActionConstraint::Eq(action) => scope.add(&action),
            ActionConstraint::In(actions) => actions.iter().for_each(|action| scope.add(action)),
        }
        let resource = match rule.resource_constraint() {
            ResourceConstraint::Any | ResourceConstraint::In(_) => return scope,
            ResourceConstraint::Is(of) | ResourceConstraint::IsIn(of, _) => (of.to_string(), None),
            ResourceConstraint::Eq(one) => (one.type_name().to_string(), Some(id_of(&one))),
        };
        match resource {
            (of, Some(tool)) if of == TOOL => {
                let named = scope.every_tool || !scope.groups.is_empty();
                scope.tools.retain(|own| *own == tool);
                if named {
                    scope.tools.insert(tool);
                }
                (scope.groups, scope.every_tool, scope.items) = Default::default();
            }
            (of, None) if of == TOOL => scope.items = false,
            _ => (scope.tools, scope.groups, scope.every_tool) = Default::default(),
        }
        scope
    }

    fn add(&mut self, action: &EntityUid) {
        let name = id_of(action);
        if name == USE_PROMPTS || name == READ_RESOURCES {
            self.items = true;
        } else if Group::parse(&name).is_some() {
            self.groups.insert(name);
        } else {
            self.tools.insert(tool_of(&name).to_owned());
        }
    }

    /// Whether it is about more tools than those it names.
    pub(super) fn is_general(&self) -> bool {
        self.every_tool || self.items || !self.groups.is_empty()
    }
}

/// Returns the id of an entity, without quotes.
pub(super) fn id_of(entity: &EntityUid) -> String {
    entity.id().unescaped().to_owned()
}

/// Returns the names of all actions in a rule.
pub(super) fn actions(rule: &Policy) -> BTreeSet<String> {
    let literals = rule.entity_literals();
    literals.iter().filter(|own| own.type_name().to_string() == ACTION).map(id_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope::of(&Policy::parse(None, text).unwrap())
    }

    #[test]
    fn the_scope_names_tools_groups_and_items() {
        let one = scope(r#"permit (principal, action == Action::"pay.send", resource);"#);
        assert_eq!(one.tools, ["pay.send".to_owned()].into());
        assert!(!one.is_general());
        let mixed =
            scope(r#"forbid (principal, action in [Action::"a.b", Action::"write"], resource);"#);
        assert_eq!((mixed.tools.len(), mixed.groups.len()), (1, 1));
        let every = scope("permit (principal, action, resource);");
        assert!(every.every_tool && every.items);
        assert!(!scope("permit (principal, action, resource is Tool);").items);
        let named = scope(r#"permit (principal, action, resource == Tool::"a.b");"#);
        assert!(named.tools.len() == 1 && !named.is_general());
        let items = scope("permit (principal, action, resource is Prompt);");
        assert!(items.items && !items.every_tool);
        let prompts = scope(r#"permit (principal, action == Action::"use:prompts", resource);"#);
        assert!(prompts.items && prompts.tools.is_empty());
        // Both must hold.
        let other =
            scope(r#"permit (principal, action == Action::"a.b", resource == Tool::"c.d");"#);
        assert!(other.tools.is_empty());
    }

    #[test]
    fn a_tool_with_the_name_of_a_group_has_another_action() {
        assert_eq!(action_of("read"), "tool:read");
        assert_eq!(action_of("files.read"), "files.read");
        assert_eq!(tool_of("tool:read"), "read");
        assert!(Group::parse("category:nothing").is_none() && Group::parse("files").is_none());
    }
}
