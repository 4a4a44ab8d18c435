//! First-use pins: the port that stores them, and the pinned tools and items.
//!
//! Makes no decision: the registry judges which tools are pinned.
//!
//! Path: 3. Doc: registry.md#first-use

use std::sync::Arc;

use async_trait::async_trait;
use toolbooth_contracts::ToolId;
use toolbooth_registry::lock::{LockFile, NewTools};
use toolbooth_registry::{RegisteredItem, RegisteredTool, Source};

use crate::error::PinError;

/// The tools of a source's listing that are to be pinned.
#[derive(Debug, Clone)]
pub struct FirstListing {
    /// The source.
    pub source: Source,
    /// Its tools to pin, accepted as listed; can be empty.
    pub tools: Vec<Arc<RegisteredTool>>,
    /// Its prompts, resources and templates to pin, accepted as listed; can be empty.
    pub items: Vec<Arc<RegisteredItem>>,
    /// Whether tools are pinned although the source was seen before.
    pub new_tools: NewTools,
    /// The pins that this process knows.
    pub known: LockFile,
}

impl FirstListing {
    /// Returns stored pins with the listing added.
    #[must_use]
    pub fn added_to(&self, mut pins: LockFile) -> Pinned {
        let tools = pins.pin(&self.source, &self.tools, self.new_tools);
        let items = pins.pin_items(&self.source, &self.items, self.new_tools);
        Pinned { pins, tools, items }
    }
}

/// The result of [`PinStore::pin`].
#[derive(Debug, Clone)]
pub struct Pinned {
    /// All pins, those of other processes included.
    pub pins: LockFile,
    /// The tools with pins that were written now.
    pub tools: Vec<ToolId>,
    /// The prompts, resources and templates with pins that were written now, by id with their kind.
    pub items: Vec<String>,
}

/// Stores the first listing of each source.
#[async_trait]
pub trait PinStore: Send + Sync {
    /// Pins a listing durably, before any of its tools is offered. Existing pins stay unchanged, also
    /// those that another process wrote.
    ///
    /// # Errors
    /// [`PinError`], where nothing was pinned; the tools stay quarantined then.
    async fn pin(&self, listing: FirstListing) -> Result<Pinned, PinError>;
}

/// Pins for this process only, for commands that change nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct InMemoryPins;

#[async_trait]
impl PinStore for InMemoryPins {
    async fn pin(&self, listing: FirstListing) -> Result<Pinned, PinError> {
        // Nothing is written, so there are no new pins to report.
        let pinned = listing.added_to(listing.known.clone());
        Ok(Pinned { tools: Vec::new(), items: Vec::new(), ..pinned })
    }
}

/// A tool or an item that was pinned at first use. An audit event is written for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedTool {
    /// The tool's id; an item's id with its kind, such as `prompt:s.greet`.
    pub tool_id: String,
    /// The digest of the tool or item as its source lists it.
    pub source_digest: String,
}

/// The first use of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstUse {
    /// The source.
    pub source: Source,
    /// The tools that were pinned.
    pub tools: Vec<PinnedTool>,
}
