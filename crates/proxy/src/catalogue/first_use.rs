//! First use: pins the first listing of a source before its tools are published.
//!
//! Path: 3. Doc: registry.md#first-use

use std::sync::Arc;

use toolbooth_contracts::ToolId;
use toolbooth_registry::Source;
use toolbooth_registry::lock::{Approvals, Lock, NewTools, Suspicious};

use super::{Catalogue, lock};
use crate::error::PinError;
use crate::pins::{FirstListing, FirstUse, PinnedTool};
use crate::world::World;

impl Catalogue {
    /// Pins the first listing of a source, if the lock works by first use. Returns whether the pins
    /// changed. A listing that cannot be pinned stays quarantined until a refresh pins it.
    pub(super) async fn pin(&self, world: &mut World, source: &Source) -> Result<bool, PinError> {
        let approvals = Arc::clone(&world.approvals);
        let Lock::FirstUse(known) = &approvals.lock else { return Ok(false) };
        // Pins of earlier versions lack prompts and resources; these are pinned now.
        let seen = known.has_seen(source) && known.has_seen_items(source);
        if seen && approvals.new_tools == NewTools::Deny {
            return Ok(false);
        }
        let tools = approvals.to_pin(source, world.registry.iter());
        let items = approvals.items_to_pin(source, world.items.iter());
        if seen && tools.is_empty() && items.is_empty() {
            return Ok(false);
        }
        if approvals.suspicious == Suspicious::Warn {
            // A pinned tool is judged without suspicions, so the warning must come now.
            let objections = approvals.judge(world.registry.iter().map(AsRef::as_ref));
            let objections_to_items = approvals.judge_items(items.iter().map(AsRef::as_ref));
            let ids = tools.iter().map(|tool| tool.id().to_string());
            for id in ids.chain(items.iter().map(|item| item.locked_id())) {
                let objection = objections.get(&id).or_else(|| objections_to_items.get(&id));
                for suspicion in objection.into_iter().flat_map(|found| &found.suspicions) {
                    tracing::warn!(tool.id = id, %suspicion, "pinned, and suspicious");
                }
            }
        }
        let listing = FirstListing {
            source: source.clone(),
            tools,
            items,
            new_tools: approvals.new_tools,
            known: known.clone(),
        };
        let pinned = match &self.pins {
            Some(pins) => pins.pin(listing).await,
            None => Err(PinError::NoStore),
        };
        let pinned = pinned?;
        let of_tool = |tool_id: &ToolId| {
            let source_digest = world.registry.get(tool_id.as_str())?.source_digest().to_owned();
            Some(PinnedTool { tool_id: tool_id.to_string(), source_digest })
        };
        let of_item = |id: &String| {
            let item = world.items.locked(id)?;
            let source_digest = item.source_digest().to_owned();
            Some(PinnedTool { tool_id: id.clone(), source_digest })
        };
        let tools = pinned.tools.iter().filter_map(of_tool);
        let tools: Vec<PinnedTool> = tools.chain(pinned.items.iter().filter_map(of_item)).collect();
        if !tools.is_empty() {
            tracing::info!(source = %source, tools = tools.len(), "a source is pinned at first use");
            lock(&self.first_uses).push(FirstUse { source: source.clone(), tools });
        }
        let lock = Lock::FirstUse(pinned.pins);
        world.approvals = Arc::new(Approvals { lock, ..Approvals::clone(&approvals) });
        Ok(true)
    }

    /// Takes the listings that were pinned since the last call of this function.
    #[must_use]
    pub fn take_first_uses(&self) -> Vec<FirstUse> {
        std::mem::take(&mut *lock(&self.first_uses))
    }
}
