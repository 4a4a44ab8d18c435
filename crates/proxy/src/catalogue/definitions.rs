//! The definitions that sources list to a catalogue, and the addition of those of another catalogue.
//!
//! A server can have tools in a running gateway that a new copy of it does not list.
//!
//! Path: 3. Doc: registry.md#the-lock

use std::sync::Arc;

use toolbooth_registry::lock::LockFile;
use toolbooth_registry::{RegisteredItem, RegisteredTool, Source, SourceItems, discovered};

use super::Catalogue;
use crate::world::World;

/// The tools and items that were added from another catalogue: their ids, items with their kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddedDefinitions {
    /// Those that the source did not list here, and that are not approved.
    pub new: Vec<String>,
    /// Those that are approved otherwise, whether the source lists them here or not.
    pub replaced: Vec<String>,
}

impl AddedDefinitions {
    fn add(&mut self, id: String, is_new: bool) {
        if is_new { self.new.push(id) } else { self.replaced.push(id) }
    }
}

impl Catalogue {
    /// The tools and items of the last listings, in the form of a lock file that approves them.
    #[must_use]
    pub fn definitions(&self) -> LockFile {
        let world = self.worlds.now();
        // The others have tools from approvals at most.
        let has_listed = |source: &Source| {
            self.tracked(source).is_some_and(|source| source.status().listed.is_some())
        };
        let mut out = LockFile::empty();
        for tool in world.registry.iter().filter(|tool| has_listed(tool.source())) {
            out.approve(tool);
        }
        for item in world.items.iter().filter(|item| has_listed(item.source())) {
            out.approve_item(item);
        }
        out
    }

    /// Adds the [definitions](Self::definitions) of another catalogue, for each tool and item that the source does
    /// not list here, or lists as it is approved.
    pub async fn add_definitions(&self, definitions: &LockFile) -> AddedDefinitions {
        self.edit(|world| {
            let mut added = AddedDefinitions::default();
            for source in &self.sources {
                let entry = &source.entry;
                let listing = definitions.listing(&entry.id);
                let (new_items, _) = SourceItems::of_listing(&entry.id, &listing);
                let known = &world.registry;
                let (mut new_tools, _) =
                    discovered::register_all(&entry.id, listing, &entry.policy, &self.guard, known);
                new_tools.retain(|tool| takes_tool(world, tool));
                let new_items: Vec<Arc<RegisteredItem>> =
                    new_items.iter().filter(|item| takes_item(world, item)).cloned().collect();
                let approved = world.approvals.lock.approved();
                for tool in &new_tools {
                    let is_known = world.registry.get(tool.id().as_str()).is_some()
                        || approved.is_some_and(|lock| lock.of_tool(tool).is_some());
                    added.add(tool.id().to_string(), !is_known);
                }
                for id in new_items.iter().map(|item| item.locked_id()) {
                    let is_known = world.items.locked(&id).is_some()
                        || approved.is_some_and(|lock| lock.get_item(&id).is_some());
                    added.add(id, !is_known);
                }
                if !new_tools.is_empty() {
                    let is_kept = |tool: &&Arc<RegisteredTool>| {
                        tool.source() == &entry.id
                            && new_tools.iter().all(|new| new.id() != tool.id())
                    };
                    let mut tools: Vec<Arc<RegisteredTool>> =
                        world.registry.iter().filter(is_kept).cloned().collect();
                    tools.append(&mut new_tools);
                    let _ = world.registry.replace_source(&entry.id, tools);
                }
                if !new_items.is_empty() {
                    let own = world.items.source(&entry.id).map(|own| SourceItems::clone(own));
                    let items = own.unwrap_or_default().with(new_items);
                    let _ = world.items.replace_source(&entry.id, items);
                }
            }
            added
        })
        .await
    }
}

/// Whether the world has no tool of this id, or has it as it is approved.
fn takes_tool(world: &World, tool: &RegisteredTool) -> bool {
    let Some(own) = world.registry.get(tool.id().as_str()) else { return true };
    let locked = world.approvals.lock.approved().and_then(|lock| lock.of_tool(own));
    own.source() == tool.source()
        && own.source_digest() != tool.source_digest()
        && locked.is_some_and(|(_, locked)| locked.source_digest == own.source_digest())
}

/// As [`takes_tool`], for an item.
fn takes_item(world: &World, item: &RegisteredItem) -> bool {
    let Some(own) = world.items.locked(&item.locked_id()) else { return true };
    let locked = world.approvals.lock.approved().and_then(|lock| lock.get_item(&own.locked_id()));
    own.source() == item.source()
        && own.source_digest() != item.source_digest()
        && locked.is_some_and(|locked| locked.source_digest == own.source_digest())
}
