//! The tools in memory, by id; a new listing replaces all tools of its source.
//!
//! The registry is a value that is cheap to clone. A change never affects earlier clones, which
//! readers hold.
//!
//! Path: 3. Doc: registry.md#in-memory

use std::collections::HashMap;
use std::sync::Arc;

use toolbooth_contracts::ToolId;

use crate::tool::{RegisteredTool, Source};

/// All registered tools by id.
#[derive(Debug, Clone, Default)]
pub struct ToolRegistry {
    tools: Arc<HashMap<ToolId, Arc<RegisteredTool>>>,
    order: Arc<Vec<ToolId>>,
    /// Tools with an id that another source uses. They are registered again when that source drops the
    /// id.
    shelf: Arc<HashMap<ToolId, Arc<RegisteredTool>>>,
}

/// The result of registering a tool.
#[derive(Debug)]
#[must_use]
pub struct Registered {
    /// The tool that had the id before. The caller should log a warning and record an audit event.
    pub replaced: Option<Arc<RegisteredTool>>,
}

/// The result of replacing the tools of a source.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Whether the tools of the source changed.
    pub changed: bool,
    /// Tools that were rejected because their id is taken (`shadowed-tool`).
    pub shadowed: Vec<Shadowed>,
    /// Tools that were left out because their own source is another one.
    pub foreign: Vec<ToolId>,
    /// Ids at which a tool of the file, or a compiled-in one, replaced another source's tool, each
    /// with that source.
    pub replaced: Vec<(ToolId, Source)>,
}

/// A tool that was rejected because its id is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadowed {
    /// The id.
    pub tool_id: ToolId,
    /// The source of the tool that has the id.
    pub held_by: Source,
    /// Whether the file has a contract for the same tool of the same owner. This is intended and no
    /// conflict.
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

    /// Whether there are no tools.
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

    /// Registers one tool, and replaces the tool that has its id.
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

    /// Removes a tool, and those of other sources that it had replaced; returns the tool.
    pub fn unregister(&mut self, tool_id: &str) -> Option<Arc<RegisteredTool>> {
        Arc::make_mut(&mut self.shelf).remove(tool_id);
        let gone = Arc::make_mut(&mut self.tools).remove(tool_id)?;
        Arc::make_mut(&mut self.order).retain(|id| id.as_str() != tool_id);
        Some(gone)
    }

    /// Replaces all tools of a source at once. A tool of the file, or a compiled-in one, replaces
    /// another source's tool of the same id; a discovered tool never does. A tool whose own source is another one is
    /// left out.
    pub fn replace_source(
        &mut self,
        source: &Source,
        tools: Vec<impl Into<Arc<RegisteredTool>>>,
    ) -> Replaced {
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
            let tool: Arc<RegisteredTool> = tool.into();
            let id = tool.id().clone();
            if tool.source() != source {
                outcome.foreign.push(id);
                continue;
            }
            match all.get(&id) {
                Some(held) if source.is_discovered() || held.source() == source => {
                    let held_by = held.source().clone();
                    let adopted = held_by == Source::File && held.same_target(&tool);
                    if held_by == Source::File {
                        // It returns once the file drops the id.
                        shelf.entry(id.clone()).or_insert(tool);
                    }
                    outcome.shadowed.push(Shadowed { tool_id: id, held_by, adopted });
                    continue;
                }
                Some(held) => {
                    // Reported once, not at each edit of the file.
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
            all.insert(id, tool);
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
    fn a_tool_that_the_file_shadows_returns_when_the_file_drops_it() {
        let mut registry = ToolRegistry::default();
        let server = Source::Mcp("s".into());
        let listed = || vec![tool("s.a", server.clone()), tool("s.b", server.clone())];
        let _ = registry.replace_source(&Source::File, vec![tool("s.a", Source::File)]);
        for _ in 0..2 {
            let replaced = registry.replace_source(&server, listed());
            assert_eq!(replaced.shadowed.len(), 1);
            assert_eq!(*registry.get("s.a").unwrap().source(), Source::File);
        }
        let _ = registry.replace_source(&Source::File, Vec::<RegisteredTool>::new());
        assert_eq!(*registry.get("s.a").unwrap().source(), server);
        // After its source has dropped it, it does not return.
        let _ = registry.replace_source(&Source::File, vec![tool("s.a", Source::File)]);
        let _ = registry.replace_source(&server, vec![tool("s.b", server.clone())]);
        let _ = registry.replace_source(&Source::File, Vec::<RegisteredTool>::new());
        assert!(registry.get("s.a").is_none());
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
        registry.replace_source(&Source::File, Vec::<RegisteredTool>::new());
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
