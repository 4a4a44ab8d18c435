//! Listing of sources: each with its own timeout, one listing of a source at a time.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use toolbooth_contracts::port::{ItemKind, Listing};
use toolbooth_policy::ToolStatus;
use toolbooth_registry::{RegisteredTool, Source, SourceItems, discovered};

use super::Catalogue;
use super::source::{SourceState, Ticket, TrackedSource};
use crate::aside;
use crate::world::World;

/// How long further change notifications of a source are collected before it is listed again.
const DEBOUNCE: Duration = Duration::from_millis(200);

impl Catalogue {
    /// Registers the tools that the lock or the pins contain of every source, until the source itself
    /// has answered. An unavailable source loses none of its approved tools.
    pub async fn restore_locked(&self) {
        self.edit(|world| {
            let approvals = Arc::clone(&world.approvals);
            let Some(locked) = approvals.lock.approved() else { return };
            for source in &self.sources {
                let entry = &source.entry;
                let listing = locked.listing(&entry.id);
                let (items, wrong) = SourceItems::of_listing(&entry.id, &listing);
                let known = &world.registry;
                let (tools, problems) =
                    discovered::register_all(&entry.id, listing, &entry.policy, &self.guard, known);
                for problem in problems.into_iter().chain(wrong) {
                    tracing::warn!(source = %entry.id, problem, "an approved tool is left out");
                }
                if !tools.is_empty() || !items.is_empty() {
                    source.status().unverified = true;
                }
                if !items.is_empty() {
                    let _ = world.items.replace_source(&entry.id, items.restored());
                }
                let _ = world.registry.replace_source(&entry.id, tools);
            }
        })
        .await;
    }

    /// Lists every source at the same time, each with its own timeout. Publishes each listing as
    /// soon as it is complete.
    pub async fn refresh_all(&self) -> Vec<SourceState> {
        self.refresh_only(|_| true).await
    }

    /// As [`Catalogue::refresh_all`], for the sources that `wanted` selects.
    pub async fn refresh_only(&self, wanted: impl Fn(&Source) -> bool) -> Vec<SourceState> {
        let chosen = self.sources.iter().filter(|source| wanted(&source.entry.id));
        let mut states: Vec<SourceState> = chosen
            .map(|source| self.refresh(source))
            .collect::<FuturesUnordered<_>>()
            .collect()
            .await;
        states.sort_by(|a, b| a.source.cmp(&b.source));
        states
    }

    /// Lists sources again after their change notifications, and every `interval` without one.
    /// Runs until it is dropped.
    pub async fn keep_fresh(&self, interval: Duration) {
        let mut watching: FuturesUnordered<_> =
            self.sources.iter().map(|source| self.keep_one_fresh(source, interval)).collect();
        while watching.next().await.is_some() {}
    }

    async fn keep_one_fresh(&self, source: &TrackedSource, interval: Duration) {
        loop {
            match &source.notified {
                Some(changes) => {
                    tokio::select! {
                        notified = changes.recv() => match notified {
                            // Counted now and not after the debounce: a call in between must wait
                            // for the new listing.
                            Ok(()) => source.status().changes += 1,
                            Err(_) => return,
                        },
                        // A notification may have been lost.
                        () = tokio::time::sleep(interval) => {
                            self.refresh(source).await;
                            continue;
                        }
                    }
                    // Several notifications at once are one listing.
                    let until = tokio::time::Instant::now() + DEBOUNCE;
                    while let Ok(Ok(())) = tokio::time::timeout_at(until, changes.recv()).await {
                        source.status().changes += 1;
                    }
                }
                None => tokio::time::sleep(interval).await,
            }
            self.refresh(source).await;
        }
    }

    async fn refresh(&self, source: &TrackedSource) -> SourceState {
        self.refresh_after(source, None).await
    }

    /// Lists a source, one listing at a time. For a call that has `arrived`, skips the listing if one that
    /// began after it has been published meanwhile, or if no listing is needed any more.
    pub(super) async fn refresh_after(
        &self,
        source: &TrackedSource,
        arrived: Option<Ticket>,
    ) -> SourceState {
        let mut published = source.published.lock().await;
        let is_served = |arrived| {
            published.is_some_and(|published| published > arrived) || !source.needs_verification()
        };
        if arrived.is_some_and(is_served) {
            return self.report(source, Vec::new());
        }
        let began = self.ticket();
        let state = self.list(source).await;
        *published = Some(began);
        state
    }

    async fn list(&self, source: &TrackedSource) -> SourceState {
        let port = &source.entry.source;
        // A notification that arrives during the listing asks for another one.
        let changes = source.begin_listing();
        let listed = match tokio::time::timeout(port.timeout(), port.list()).await {
            Ok(Ok(listing)) => Ok(listing),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} ms", port.timeout().as_millis())),
        };
        match listed {
            Ok(listing) => self.accept(source, listing, changes).await,
            Err(reason) => {
                let before = source.status().unhealthy.replace(reason.clone());
                if changes > 0 || before.as_ref() != Some(&reason) {
                    tracing::warn!(
                        source = %source.entry.id,
                        reason,
                        "a source does not answer; its last tools are kept"
                    );
                    self.edit(|_| ()).await;
                }
                SourceState { unhealthy: Some(reason), ..self.report(source, Vec::new()) }
            }
        }
    }

    /// Registers a listing and publishes it, if it changes anything. `changes` is the count of
    /// change notifications when the listing began.
    async fn accept(&self, source: &TrackedSource, listing: Listing, changes: u64) -> SourceState {
        let entry = &source.entry;
        let names = listing.tools.iter().map(|tool| tool.name.clone()).collect();
        let mut problems = entry.policy.idle_settings(&names);
        let (id, policy) = (entry.id.clone(), entry.policy.clone());
        let (guard, known) = (self.guard.clone(), self.worlds.now());
        // Schemas are compiled, for up to seconds.
        let (items, wrong, tools, left_out) = aside::run(move || {
            let (items, wrong) = SourceItems::of_listing(&id, &listing);
            let (tools, left_out) =
                discovered::register_all(&id, listing, &policy, &guard, &known.registry);
            (items, wrong, tools, left_out)
        })
        .await;
        problems.extend(left_out.into_iter().chain(wrong));
        let publish = {
            let mut status = source.status();
            let recovered = status.unhealthy.take().is_some();
            let known = status.listed.replace(names);
            recovered || known != status.listed
        };
        let (replaced, unpinned) = self.swap(&entry.id, tools, items, publish).await;
        problems.extend(unpinned);
        {
            let mut status = source.status();
            status.unverified = false;
            if status.changes == changes {
                status.changes = 0;
            }
        }
        for shadowed in replaced.shadowed.iter().filter(|shadowed| !shadowed.adopted) {
            problems.push(format!(
                "`{}` is left out: {} has a tool of this id (shadowed-tool)",
                shadowed.tool_id, shadowed.held_by
            ));
        }
        for problem in &problems {
            tracing::warn!(source = %entry.id, problem, "part of a listing is not accepted");
        }
        self.report(source, problems)
    }

    /// Replaces the tools and items of a source by those of a listing. Publishes if they changed or
    /// `publish` is set. Also returns the reason if the source's first listing could not be pinned.
    async fn swap(
        &self,
        source: &Source,
        tools: Vec<Arc<RegisteredTool>>,
        items: SourceItems,
        publish: bool,
    ) -> (toolbooth_registry::Replaced, Vec<String>) {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        let replaced = world.registry.replace_source(source, tools);
        // Commands list tools only.
        let (changed, mut problems) = match source {
            Source::Mcp(_) => world.items.replace_source(source, items),
            _ => (false, Vec::new()),
        };
        // INVARIANT: a tool is pinned before the world that offers it is published. Otherwise a crash
        // could lose the pin of a tool that an agent has seen.
        let pinned = self.pin(&mut world, source).await;
        if publish || replaced.changed || changed || matches!(pinned, Ok(true)) {
            self.publish(world).await;
        }
        problems.extend(
            pinned.err().map(|error| format!("its first listing cannot be pinned: {error}")),
        );
        (replaced, problems)
    }

    /// The state of a source in the present world.
    fn report(&self, source: &TrackedSource, problems: Vec<String>) -> SourceState {
        let id = &source.entry.id;
        let world = self.worlds.now();
        let mut state = SourceState {
            source: id.to_string(),
            tools: 0,
            prompts: 0,
            resources: 0,
            templates: 0,
            problems,
            quarantined: Vec::new(),
            suspicious: Vec::new(),
            unhealthy: None,
        };
        for tool in world.registry.iter().filter(|tool| tool.source() == id) {
            state.tools += 1;
            if let ToolStatus::Quarantined(reason) = world.status(tool) {
                state.quarantined.push(format!("`{}`: {reason}", tool.id()));
            }
            let objection = world.objections.get(tool.id().as_str());
            for suspicion in objection.into_iter().flat_map(|objection| &objection.suspicions) {
                state.suspicious.push(format!("`{}`: {suspicion}", tool.id()));
            }
        }
        let Some(items) = world.items.source(id) else { return state };
        state.prompts = items.count(ItemKind::Prompt);
        state.resources = items.count(ItemKind::Resource);
        state.templates = items.count(ItemKind::Template);
        for item in items.iter() {
            let id = item.locked_id();
            if let ToolStatus::Quarantined(reason) = world.item_status(item) {
                state.quarantined.push(format!("`{}`: {reason}", id.escape_debug()));
            }
            let objection = world.objections.get(&id);
            for suspicion in objection.into_iter().flat_map(|objection| &objection.suspicions) {
                state.suspicious.push(format!("`{}`: {suspicion}", id.escape_debug()));
            }
        }
        state
    }
}
