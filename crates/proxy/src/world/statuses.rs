//! Judges which tools and items of a world may be used.
//!
//! Path: 3. Doc: call-path.md#the-world

use std::sync::Arc;

use toolbooth_contracts::Caller;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::port::ItemKind;
use toolbooth_policy::ToolStatus;
use toolbooth_registry::template::Reading;
use toolbooth_registry::{RegisteredItem, RegisteredTool, Source};

use super::World;

/// A tool or an item that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The tool's id, or the item's with its kind, such as `prompt:s.greet`.
    pub id: String,
    /// Its source.
    pub source: Source,
}

impl World {
    /// Judges the discovered tools and items by the approvals, and all tools by whether the rules fit
    /// them. Returns those that are newly quarantined, or quarantined for another reason than before,
    /// each with the reason.
    pub fn judge(&mut self) -> Vec<(Judged, String)> {
        self.bind_rules();
        let rule_fit = Arc::clone(&self.rule_fit);
        let tools = self.registry.iter().map(AsRef::as_ref);
        let mut objections = self.approvals.judge(tools);
        objections.extend(self.approvals.judge_items(self.items.iter().map(AsRef::as_ref)));
        self.objections = Arc::new(objections);
        let mut fresh = self.judge_items();
        let before = std::mem::take(&mut self.statuses);
        for tool in self.registry.iter() {
            let id = tool.id();
            let objection = self.objections.get(id.as_str());
            let objection = objection.and_then(|objection| objection.quarantine.clone());
            let misfit = || rule_fit.failures.get(id.as_str()).cloned();
            match objection.or_else(misfit) {
                Some(reason) => {
                    let status = ToolStatus::Quarantined(reason.clone());
                    if before.get(id) != Some(&status) {
                        fresh.push((
                            Judged { id: id.to_string(), source: tool.source().clone() },
                            reason,
                        ));
                    }
                    self.statuses.insert(id.clone(), status);
                }
                None => {
                    let set = self.set_statuses.get(id).cloned();
                    self.statuses.extend(set.map(|status| (id.clone(), status)));
                }
            }
        }
        fresh
    }

    fn judge_items(&mut self) -> Vec<(Judged, String)> {
        let before = std::mem::take(&mut self.item_statuses);
        let mut fresh = Vec::new();
        for item in self.items.iter() {
            let id = item.locked_id();
            let objection = self.objections.get(&id);
            let Some(reason) = objection.and_then(|one| one.quarantine.clone()) else { continue };
            let status = ToolStatus::Quarantined(reason.clone());
            let source = item.source();
            let known =
                before.get(source).and_then(|kinds| kinds.get(&item.kind())?.get(item.key()));
            if known != Some(&status) {
                fresh.push((Judged { id, source: source.clone() }, reason));
            }
            let kinds = self.item_statuses.entry(source.clone()).or_default();
            kinds.entry(item.kind()).or_default().insert(item.key().to_owned(), status);
        }
        fresh
    }

    /// Returns the status of a prompt, a resource or a template.
    #[must_use]
    pub fn item_status(&self, item: &RegisteredItem) -> &ToolStatus {
        self.status_of(item.source(), item.kind(), item.key())
    }

    /// As [`World::item_status`], by source, kind and key.
    #[must_use]
    pub fn status_of(&self, source: &Source, kind: ItemKind, key: &str) -> &ToolStatus {
        let kinds = self.item_statuses.get(source);
        match kinds.and_then(|kinds| kinds.get(&kind)?.get(key)) {
            None if self.policy.pauses().has_server(source.name()) => &ToolStatus::Paused,
            own => own.unwrap_or(&ToolStatus::Active),
        }
    }

    /// Returns the status of a resource by its server's own URI, listed or not, because servers link to
    /// resources that they do not list. A URI that only quarantined templates match has their status.
    #[must_use]
    pub fn resource_status(&self, server: &str, uri: &str) -> &ToolStatus {
        match self.judged_resource_status(server, uri) {
            ToolStatus::Active if self.policy.pauses().has_server(server) => &ToolStatus::Paused,
            own => own,
        }
    }

    /// As [`World::resource_status`], without regard to pauses.
    fn judged_resource_status(&self, server: &str, uri: &str) -> &ToolStatus {
        let source = Source::Mcp(server.to_owned());
        let (Some(items), Some(statuses)) =
            (self.items.source(&source), self.item_statuses.get(&source))
        else {
            return &ToolStatus::Active;
        };
        if items.get(ItemKind::Resource, uri).is_some() {
            return self.status_of(&source, ItemKind::Resource, uri);
        }
        // Servers may treat a URI with a query or a final slash like the one without.
        let bare = uri.split('?').next().unwrap_or(uri).trim_end_matches('/');
        let resources = statuses.get(&ItemKind::Resource);
        let near = |key: &str| resources.and_then(|resources| resources.get(key));
        if let Some(near) = near(bare).or_else(|| near(&format!("{bare}/"))) {
            return near;
        }
        // Quarantined templates are tried first; active ones only if a quarantined one matches.
        let shut = statuses.get(&ItemKind::Template).into_iter().flatten();
        let shut = shut
            .map(|(key, status)| (items.get(ItemKind::Template, key), status))
            .find(|(template, _)| template.is_some_and(|one| one.may_give(uri, Reading::Wide)));
        let Some((_, shut)) = shut else { return &ToolStatus::Active };
        let open = items.of_kind(ItemKind::Template, None).any(|template| {
            *self.item_status(template) == ToolStatus::Active
                && template.may_give(uri, Reading::Narrow)
        });
        if open { &ToolStatus::Active } else { shut }
    }

    /// Returns the status of a tool.
    #[must_use]
    pub fn status(&self, tool: &RegisteredTool) -> &ToolStatus {
        let own = self.statuses.get(tool.id()).unwrap_or(&ToolStatus::Active);
        let server = match tool.adapter() {
            AdapterId::Mcp(server) => Some(server.as_str()),
            _ => None,
        };
        match own {
            ToolStatus::Active if self.policy.pauses().has_tool(tool.id().as_str(), server) => {
                &ToolStatus::Paused
            }
            own => own,
        }
    }

    /// Whether calls of the tool by this caller are paused.
    #[must_use]
    pub fn is_paused(&self, tool: &RegisteredTool, caller: &Caller) -> bool {
        *self.status(tool) == ToolStatus::Paused || self.policy.pauses().has_caller(caller.name())
    }
}
