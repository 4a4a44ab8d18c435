//! The registry in memory: every tool under its id, changed by whole sources.
//!
//! A value, cheap to clone: readers hold the one that was published, a change makes a new one.
//!
//! Path: 3. Doc: registry.md#in-memory

use std::collections::HashMap;
use std::sync::Arc;

use toolbooth_contracts::ToolId;

use crate::tool::{RegisteredTool, Source};

/// Every tool under its id.
#[derive(Debug, Clone, Default)]
pub struct ToolRegistry {
    tools: Arc<HashMap<ToolId, Arc<RegisteredTool>>>,
    order: Arc<Vec<ToolId>>,
    /// Tools whose id another source has taken; they come back when it lets go.
    shelf: Arc<HashMap<ToolId, Arc<RegisteredTool>>>,
}

/// What registering a tool did.
#[derive(Debug)]
#[must_use]
pub struct Registered {
    /// The tool that stood under the id before; worth a warning and an audit event.
    pub replaced: Option<Arc<RegisteredTool>>,
}

/// What replacing the tools of a source did.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Whether anything is different now.
    pub changed: bool,
    /// Tools that were refused because another source has their id (`shadowed-tool`).
    pub shadowed: Vec<Shadowed>,
    /// Tools that took the place of another source's tool by an operator's hand.
    pub replaced: Vec<(ToolId, Source)>,
}

/// A tool that was refused because another source has its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadowed {
    /// The id.
    pub tool_id: ToolId,
    /// The source that has it.
    pub held_by: Source,
    /// Whether an operator wrote a contract of his own for the very same tool: that is meant.
    pub adopted: bool,
}

impl ToolRegistry {
    /// The tool under `tool_id`.
    #[must_use]
    pub fn get(&self, tool_id: &str) -> Option<&Arc<RegisteredTool>> {
        self.tools.get(tool_id)
    }

    /// How many tools there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// All tools, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.order.iter().filter_map(|id| self.tools.get(id))
    }

    /// At most `limit` tools that `filter` accepts, sorted by id, after the id `after`; and
    /// whether more follow.
    pub fn list(
        &self,
        after: Option<&str>,
        limit: usize,
        filter: impl Fn(&RegisteredTool) -> bool,
    ) -> (Vec<Arc<RegisteredTool>>, bool) {
        let from = after.map_or(0, |after| self.order.partition_point(|id| id.as_str() <= after));
        let mut found = Vec::new();
        for id in self.order.iter().skip(from) {
            if let Some(tool) = self.tools.get(id)
                && filter(tool)
            {
                if found.len() == limit {
                    return (found, true);
                }
                found.push(Arc::clone(tool));
            }
        }
        (found, false)
    }

    /// Registers a tool by hand: what stood under its id is replaced.
    pub fn register(&mut self, tool: RegisteredTool) -> Registered {
        let id = tool.id().clone();
        let replaced = Arc::make_mut(&mut self.tools).insert(id.clone(), Arc::new(tool));
        if replaced.is_none() {
            let order = Arc::make_mut(&mut self.order);
            let at = order.partition_point(|other| *other < id);
            order.insert(at, id);
        }
        Registered { replaced }
    }

    /// Takes a tool out.
    pub fn unregister(&mut self, tool_id: &str) -> Option<Arc<RegisteredTool>> {
        let gone = Arc::make_mut(&mut self.tools).remove(tool_id)?;
        Arc::make_mut(&mut self.order).retain(|id| id.as_str() != tool_id);
        Some(gone)
    }

    /// Swaps in all tools of a source at once: those that are gone go. The registry file replaces
    /// tools that are compiled in; a discovered tool never shadows another source's.
    pub fn replace_source(&mut self, source: &Source, tools: Vec<RegisteredTool>) -> Replaced {
        let mut outcome = Replaced::default();
        let before: HashMap<ToolId, String> = self
            .tools
            .values()
            .filter(|tool| tool.source() == source)
            .map(|tool| (tool.id().clone(), tool.contract_digest().to_owned()))
            .collect();
        let all = Arc::make_mut(&mut self.tools);
        let shelf = Arc::make_mut(&mut self.shelf);
        all.retain(|_, tool| tool.source() != source);
        shelf.retain(|_, tool| tool.source() != source);
        let mut after = 0;
        for tool in tools {
            let id = tool.id().clone();
            match all.get(&id) {
                Some(held) if source.is_discovered() || held.source() == source => {
                    let held_by = held.source().clone();
                    let adopted = held_by == Source::File && held.same_target(&tool);
                    outcome.shadowed.push(Shadowed { tool_id: id, held_by, adopted });
                    continue;
                }
                Some(held) => {
                    // Said once, not at each edit of the file.
                    if !shelf.contains_key(&id) {
                        outcome.replaced.push((id.clone(), held.source().clone()));
                    }
                    shelf.insert(id.clone(), Arc::clone(held));
                }
                None => (),
            }
            after += 1;
            let same = before.get(&id).is_some_and(|digest| digest == tool.contract_digest());
            outcome.changed |= !same;
            all.insert(id, Arc::new(tool));
        }
        outcome.changed |= after != before.len();
        shelf.retain(|id, tool| {
            let free = !all.contains_key(id);
            if free {
                all.insert(id.clone(), Arc::clone(tool));
            }
            !free
        });
        let mut order: Vec<ToolId> = all.keys().cloned().collect();
        order.sort_unstable();
        self.order = Arc::new(order);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbooth_contracts::Guard;

    use super::*;

    fn tool(id: &str, source: Source) -> RegisteredTool {
        let entry = json!({
            "toolId": id, "category": "function", "inputSchema": {"type": "object"}, "outputSchema": {},
            "capabilities": {}, "execution": {"localRuntimeId": "builtin"},
            "policy": {"timeoutMs": 1, "trustLevel": "trusted"}
        });
        RegisteredTool::from_entry(&entry, source, &Guard::default()).unwrap()
    }

    fn ids(registry: &ToolRegistry) -> Vec<&str> {
        registry.iter().map(|tool| tool.id().as_str()).collect()
    }

    #[test]
    fn sources_are_swapped_whole() {
        let mut registry = ToolRegistry::default();
        let server = Source::Mcp("s".into());
        registry.replace_source(
            &server,
            vec![tool("s.a", server.clone()), tool("s.b", server.clone())],
        );
        let held = registry.clone();
        let outcome = registry.replace_source(
            &server,
            vec![tool("s.b", server.clone()), tool("s.c", server.clone())],
        );
        assert!(outcome.changed);
        assert_eq!(ids(&registry), ["s.b", "s.c"]);
        assert_eq!(ids(&held), ["s.a", "s.b"], "a snapshot stays what it was");
        let again = registry.replace_source(
            &server,
            vec![tool("s.b", server.clone()), tool("s.c", server.clone())],
        );
        assert!(!again.changed);
    }

    #[test]
    fn discovered_tools_never_shadow() {
        let mut registry = ToolRegistry::default();
        registry.replace_source(&Source::Builtin, vec![tool("calculator", Source::Builtin)]);
        let command = Source::Command("c".into());
        let outcome = registry.replace_source(&command, vec![tool("calculator", command.clone())]);
        assert_eq!(outcome.shadowed.len(), 1);
        assert_eq!(registry.get("calculator").unwrap().source(), &Source::Builtin);
    }

    #[test]
    fn a_tool_comes_back_when_the_file_lets_go_of_its_id() {
        let mut registry = ToolRegistry::default();
        registry.replace_source(&Source::Builtin, vec![tool("calculator", Source::Builtin)]);
        let first = registry.replace_source(&Source::File, vec![tool("calculator", Source::File)]);
        assert_eq!(first.replaced.len(), 1);
        assert_eq!(registry.get("calculator").unwrap().source(), &Source::File);
        registry.replace_source(&Source::File, vec![]);
        assert_eq!(registry.get("calculator").unwrap().source(), &Source::Builtin);
        assert_eq!(ids(&registry), ["calculator"]);
    }

    #[test]
    fn registering_by_hand_says_what_was_replaced() {
        let mut registry = ToolRegistry::default();
        assert!(registry.register(tool("a", Source::Builtin)).replaced.is_none());
        let replaced = registry.register(tool("a", Source::File)).replaced.unwrap();
        assert_eq!(replaced.source(), &Source::Builtin);
        assert_eq!(ids(&registry), ["a"]);
        assert!(registry.unregister("a").is_some());
        assert!(registry.is_empty());
    }

    #[test]
    fn pages_follow_one_another() {
        let mut registry = ToolRegistry::default();
        for id in ["c", "a", "b"] {
            let _ = registry.register(tool(id, Source::File));
        }
        let (first, more) = registry.list(None, 2, |_| true);
        assert_eq!((first[0].id().as_str(), first[1].id().as_str(), more), ("a", "b", true));
        let (last, more) = registry.list(Some("b"), 2, |_| true);
        assert_eq!((last[0].id().as_str(), last.len(), more), ("c", 1, false));
    }
}
