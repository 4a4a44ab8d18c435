//! The target of a request in one world: the server, its own names, and the status of the item.
//!
//! Path: 3. Doc: call-path.md#requests

use toolbooth_contracts::port::{Ask, CompletionReference, ItemKind};
use toolbooth_policy::{Item, ToolStatus};
use toolbooth_registry::discovered::tool_id;
use toolbooth_registry::{RegisteredItem, Source, item_id};

use super::upstreams::{UpstreamEntry, Upstreams};
use crate::world::World;

/// The target of a request.
pub(super) struct Target {
    /// The server's name.
    pub(super) server: String,
    pub(super) upstream: UpstreamEntry,
    kind: ItemKind,
    server_id: String,
    pub(super) id: String,
    /// Its key at the server.
    key: String,
    /// The request with the server's own names.
    pub(super) ask: Ask,
}

impl Target {
    /// Finds the item that a request names; `None` if it does not exist. Does not check whether the caller
    /// may see it.
    pub(super) fn find(upstreams: &Upstreams, world: &World, ask: &Ask) -> Option<Self> {
        match ask {
            Ask::GetPrompt { name, arguments } => {
                let prompt = prompt(world, name)?;
                let name = prompt.key().to_owned();
                let ask = Ask::GetPrompt { name, arguments: arguments.clone() };
                Self::of_item(upstreams, prompt, ask)
            }
            Ask::ReadResource { uri } => {
                Self::resource(upstreams, world, uri, |uri| Ask::ReadResource { uri })
            }
            Ask::Subscribe { uri } => {
                Self::resource(upstreams, world, uri, |uri| Ask::Subscribe { uri })
            }
            Ask::Unsubscribe { uri } => {
                Self::resource(upstreams, world, uri, |uri| Ask::Unsubscribe { uri })
            }
            Ask::Complete { reference, argument, context } => {
                let complete = |reference| Ask::Complete {
                    reference,
                    argument: argument.clone(),
                    context: context.clone(),
                };
                match reference {
                    CompletionReference::Prompt(name) => {
                        let prompt = prompt(world, name)?;
                        let own = CompletionReference::Prompt(prompt.key().to_owned());
                        Self::of_item(upstreams, prompt, complete(own))
                    }
                    CompletionReference::Resource(uri) => {
                        let own = |uri| complete(CompletionReference::Resource(uri));
                        let (server, key) = world.uris.of_wire(uri)?;
                        let items = world.items.source(&Source::Mcp(server));
                        let template = items.and_then(|items| items.get(ItemKind::Template, key));
                        match template {
                            Some(template) => {
                                Self::of_item(upstreams, template, own(key.to_owned()))
                            }
                            None => Self::resource(upstreams, world, uri, own),
                        }
                    }
                }
            }
        }
    }

    fn of_item(upstreams: &Upstreams, item: &RegisteredItem, ask: Ask) -> Option<Self> {
        Some(Self {
            upstream: upstreams.get(item.server())?.clone(),
            server: item.server().to_owned(),
            kind: item.kind(),
            server_id: item.server_id().to_owned(),
            id: item.id().to_owned(),
            key: item.key().to_owned(),
            ask,
        })
    }

    /// A resource, listed or not, of a server that has resources.
    fn resource(
        upstreams: &Upstreams,
        world: &World,
        uri: &str,
        ask: impl FnOnce(String) -> Ask,
    ) -> Option<Self> {
        let (server, own) = world.asked_resource(uri)?;
        let upstream = upstreams.get(&server)?.clone();
        let items = world.items.source(&Source::Mcp(server.clone()));
        if items.is_some_and(|items| items.has_none(ItemKind::Resource)) {
            return None;
        }
        Some(Self {
            upstream,
            kind: ItemKind::Resource,
            server_id: tool_id(&server),
            id: item_id(ItemKind::Resource, &server, own),
            key: own.to_owned(),
            ask: ask(own.to_owned()),
            server,
        })
    }

    /// Returns the status of the item. It is not called for a caller from whom the item is hidden, because
    /// the time that it takes would reveal the item.
    pub(super) fn status<'w>(&self, world: &'w World) -> &'w ToolStatus {
        match self.kind {
            ItemKind::Resource => world.resource_status(&self.server, &self.key),
            kind => world.status_of(&Source::Mcp(self.server.clone()), kind, &self.key),
        }
    }

    /// Returns the item in the form that the policy uses.
    pub(super) fn item(&self) -> Item<'_> {
        Item { kind: self.kind, server: &self.server_id, id: &self.id }
    }
}

/// Finds a prompt by its name on the wire, or by its id if no name equals it.
fn prompt<'w>(world: &'w World, name: &str) -> Option<&'w RegisteredItem> {
    world.items.prompt(world.prompt_names.tool_id(name)).map(AsRef::as_ref)
}
