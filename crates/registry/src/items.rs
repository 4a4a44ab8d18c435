//! Registered prompts, resources and resource templates, by source.
//!
//! The registry is a value that is cheap to clone. A change never affects earlier clones, which
//! readers hold.
//!
//! Path: 3. Doc: registry.md#prompts-and-resources

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolbooth_contracts::json::{WRAPPED_DEPTH_MAX, canonical, check_value, is_within};
use toolbooth_contracts::port::{DiscoveredItem, ItemKind, Listing, Offers};

use crate::digest;
use crate::discovered::tool_id;
use crate::error::ItemError;
use crate::source_claims::spaced;
use crate::template::{Reading, UriTemplate};
use crate::tool::Source;
use crate::uris::{ResourceUris, is_normal, normal_form};

/// Maximum number of items of one kind per source.
const ITEMS_MAX: usize = 20_000;
/// Maximum number of templates per source, because each URI may be matched against all of them.
const TEMPLATES_MAX: usize = 1_000;
/// Maximum size of an item's canonical document, in bytes.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Maximum length of an item's key, in bytes.
pub const KEY_BYTES_MAX: usize = 8 << 10;

/// A prompt, a resource or a template, with all values that are computed once.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredItem {
    kind: ItemKind,
    source: Source,
    key: String,
    server_id: String,
    id: String,
    document: Map<String, Value>,
    source_digest: String,
    /// The parsed key of a template.
    template: Option<UriTemplate>,
}

impl RegisteredItem {
    /// An item from the listing of its source.
    ///
    /// # Errors
    /// [`ItemError`], if its document is not in the protocol's form, or too large.
    pub fn new(kind: ItemKind, source: Source, item: DiscoveredItem) -> Result<Self, ItemError> {
        let DiscoveredItem { key, document } = item;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(ItemError::Key { bytes_max: KEY_BYTES_MAX });
        }
        let member = kind.key_member();
        if document.get(member).and_then(Value::as_str) != Some(key.as_str()) {
            return Err(ItemError::OtherKey { member });
        }
        let template = match kind {
            ItemKind::Template => Some(UriTemplate::parse(&key)?),
            ItemKind::Prompt | ItemKind::Resource => None,
        };
        let document = Value::Object(document);
        if let Err(fault) = check_value(&document) {
            return Err(ItemError::Json(fault));
        }
        if !is_within(&document, WRAPPED_DEPTH_MAX) {
            return Err(ItemError::Deep { levels_max: WRAPPED_DEPTH_MAX });
        }
        let text = canonical(&document);
        if text.len() > DOCUMENT_BYTES_MAX {
            let (bytes, bytes_max) = (text.len(), DOCUMENT_BYTES_MAX);
            return Err(ItemError::Large { bytes, bytes_max });
        }
        // It was made from an object above.
        let Value::Object(document) = document else { return Err(ItemError::OtherKey { member }) };
        let id = item_id(kind, source.name(), &key);
        let source_digest = digest::sha256_hex(text.as_bytes());
        let server_id = tool_id(source.name());
        Ok(Self { kind, source, key, server_id, id, document, source_digest, template })
    }

    /// The kind of the item.
    #[must_use]
    pub fn kind(&self) -> ItemKind {
        self.kind
    }

    /// The source of the item.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The name of its server.
    #[must_use]
    pub fn server(&self) -> &str {
        self.source.name()
    }

    /// The name of its server in the form of ids.
    #[must_use]
    pub fn server_id(&self) -> &str {
        &self.server_id
    }

    /// The key at its server: a name, a URI or a URI template.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The id that tool sets and records use: `SERVER.KEY`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id with its kind, which the lock uses: `prompt:SERVER.NAME`.
    #[must_use]
    pub fn locked_id(&self) -> String {
        format!("{}:{}", self.kind, self.id)
    }

    /// The whole item as its source lists it.
    #[must_use]
    pub fn document(&self) -> &Map<String, Value> {
        &self.document
    }

    /// SHA-256 of the canonical document, in hex.
    #[must_use]
    pub fn source_digest(&self) -> &str {
        &self.source_digest
    }

    /// Whether it is a template that may expand to `uri`, a URI in normal form.
    #[must_use]
    pub fn may_give(&self, uri: &str, reading: Reading) -> bool {
        self.template.as_ref().is_some_and(|template| template.may_give(uri, reading))
    }

    /// The document as shown to clients, with `shown` as its key.
    #[must_use]
    pub fn shown(&self, shown: &str) -> Map<String, Value> {
        let mut document = self.document.clone();
        document.insert(self.kind.key_member().to_owned(), Value::from(shown));
        document
    }

    /// The key as shown to clients, for resources and templates.
    #[must_use]
    pub fn shown_uri(&self, uris: &ResourceUris) -> String {
        uris.to_wire(self.server(), &self.key)
    }
}

/// The id of an item. The id of a prompt has the form of a tool id; other ids end in the unchanged
/// URI or template.
#[must_use]
pub fn item_id(kind: ItemKind, server: &str, key: &str) -> String {
    match kind {
        ItemKind::Prompt => tool_id(&format!("{server}.{key}")),
        ItemKind::Resource | ItemKind::Template => format!("{}.{key}", tool_id(server)),
    }
}

/// The canonical document with white space collapsed in titles and descriptions.
pub(crate) fn spaced_document(document: &Map<String, Value>) -> String {
    canonical(&spaced(&Value::Object(document.clone())))
}

/// The prompts, resources and templates of one source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceItems {
    offers: Offers,
    /// Whether the items come from approvals only, so that the source may have more.
    restored: bool,
    items: BTreeMap<(ItemKind, String), Arc<RegisteredItem>>,
    /// Keys of resources that are not in normal form, by their normal form; `None` if several keys
    /// have the same.
    respelled: HashMap<String, Option<String>>,
}

impl SourceItems {
    /// The valid items of a listing, and a sentence for each reason why items were rejected.
    #[must_use]
    pub fn of_listing(source: &Source, listing: &Listing) -> (Self, Vec<String>) {
        let mut out = Self { offers: listing.offers, ..Self::default() };
        let mut problems = Vec::new();
        let mut ids: HashMap<String, ()> = HashMap::new();
        for (kind, listed) in [
            (ItemKind::Prompt, &listing.prompts),
            (ItemKind::Resource, &listing.resources),
            (ItemKind::Template, &listing.templates),
        ] {
            let most = if kind == ItemKind::Template { TEMPLATES_MAX } else { ITEMS_MAX };
            if listed.len() > most {
                problems.push(format!(
                    "{} {kind}s are left out: at most {most} are taken",
                    listed.len() - most
                ));
            }
            for item in listed.iter().take(most) {
                let name: String = item.key.chars().take(120).collect();
                let mut leave_out = |reason: &str| {
                    problems
                        .push(format!("{kind} `{}` is left out: {reason}", name.escape_debug()));
                };
                match RegisteredItem::new(kind, source.clone(), item.clone()) {
                    Err(error) => leave_out(&error.to_string()),
                    Ok(item) => match ids.insert(item.locked_id(), ()) {
                        Some(()) => leave_out("another one has its id"),
                        None => {
                            out.respell(&item);
                            out.items.insert((kind, item.key.clone()), Arc::new(item));
                        }
                    },
                }
            }
        }
        (out, problems)
    }

    fn respell(&mut self, item: &RegisteredItem) {
        let normal = normal_form(&item.key);
        if item.kind == ItemKind::Resource && normal != item.key {
            let several = |known: &mut Option<String>| *known = None;
            let known = self.respelled.entry(normal).and_modify(several);
            known.or_insert_with(|| Some(item.key.clone()));
        }
    }

    /// The URI to request from the server for a URI of a client. For a listed URI, or its normal form,
    /// this is the listed URI. Any other URI must be in normal form, so that patterns see one spelling.
    /// `None` if it is not, or if several listed URIs have this normal form.
    #[must_use]
    pub fn asked_uri<'u>(&'u self, uri: &'u str) -> Option<&'u str> {
        if self.get(ItemKind::Resource, uri).is_some() {
            return Some(uri);
        }
        match self.respelled.get(uri) {
            Some(listed) => listed.as_deref(),
            None => is_normal(uri).then_some(uri),
        }
    }

    /// The capabilities that the source offers in addition to tools.
    #[must_use]
    pub fn offers(&self) -> Offers {
        self.offers
    }

    /// Marks the items as taken from approvals, until the source itself answers.
    #[must_use]
    pub fn restored(self) -> Self {
        Self { restored: true, ..self }
    }

    /// Adds items of the same source. They replace those with their keys.
    #[must_use]
    pub fn with(mut self, items: impl IntoIterator<Item = Arc<RegisteredItem>>) -> Self {
        for item in items {
            if self.get(item.kind, &item.key).is_none() {
                self.respell(&item);
            }
            match item.kind {
                ItemKind::Prompt => self.offers.prompts = true,
                ItemKind::Resource | ItemKind::Template => self.offers.resources = true,
            }
            self.items.insert((item.kind, item.key.clone()), item);
        }
        self
    }

    /// Whether the source itself declared that it has no items of this kind.
    #[must_use]
    pub fn has_none(&self, kind: ItemKind) -> bool {
        let offered = match kind {
            ItemKind::Prompt => self.offers.prompts,
            ItemKind::Resource | ItemKind::Template => self.offers.resources,
        };
        !self.restored && !offered
    }

    /// Whether there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many items of a kind there are.
    #[must_use]
    pub fn count(&self, kind: ItemKind) -> usize {
        self.of_kind(kind, None).count()
    }

    /// One item by its key at the server.
    #[must_use]
    pub fn get(&self, kind: ItemKind, key: &str) -> Option<&Arc<RegisteredItem>> {
        self.items.get(&(kind, key.to_owned()))
    }

    /// All items, by kind and key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredItem>> {
        self.items.values()
    }

    /// The items of a kind, by key, after the key `after`.
    pub fn of_kind<'i>(
        &'i self,
        kind: ItemKind,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'i Arc<RegisteredItem>> + use<'i> {
        use std::ops::Bound;
        let from = match after {
            Some(after) => Bound::Excluded((kind, after.to_owned())),
            None => Bound::Included((kind, String::new())),
        };
        self.items
            .range((from, Bound::Unbounded))
            .map(|(_, item)| item)
            .take_while(move |item| item.kind == kind)
    }
}

/// The prompts, resources and templates of all sources.
#[derive(Debug, Clone, Default)]
pub struct ItemRegistry {
    sources: Arc<BTreeMap<Source, Arc<SourceItems>>>,
    /// Prompts by id.
    prompts: Arc<HashMap<String, Arc<RegisteredItem>>>,
}

impl ItemRegistry {
    /// Replaces the items of a source. Returns whether anything changed, and a sentence for each
    /// prompt that was rejected because another source has its id.
    pub fn replace_source(&mut self, source: &Source, items: SourceItems) -> (bool, Vec<String>) {
        if self.sources.get(source).is_some_and(|known| **known == items) {
            return (false, Vec::new());
        }
        let mut items = items;
        let mut problems = Vec::new();
        let prompts = Arc::make_mut(&mut self.prompts);
        prompts.retain(|_, prompt| prompt.source != *source);
        items.items.retain(|(kind, _), item| {
            if *kind != ItemKind::Prompt {
                return true;
            }
            if let Some(held) = prompts.get(&item.id) {
                problems.push(format!(
                    "prompt `{}` is left out: {} has a prompt of this id",
                    item.id, held.source
                ));
                return false;
            }
            prompts.insert(item.id.clone(), Arc::clone(item));
            true
        });
        let changed = self.sources.get(source).is_none_or(|known| **known != items);
        Arc::make_mut(&mut self.sources).insert(source.clone(), Arc::new(items));
        (changed, problems)
    }

    /// The items of a source; `None` if they are not known yet.
    #[must_use]
    pub fn source(&self, source: &Source) -> Option<&Arc<SourceItems>> {
        self.sources.get(source)
    }

    /// All sources with their items, sorted by source.
    pub fn sources(&self) -> impl Iterator<Item = (&Source, &Arc<SourceItems>)> {
        self.sources.iter()
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredItem>> {
        self.sources.values().flat_map(|items| items.iter())
    }

    /// A prompt by its id.
    #[must_use]
    pub fn prompt(&self, id: &str) -> Option<&Arc<RegisteredItem>> {
        self.prompts.get(id)
    }

    /// An item by its id with its kind.
    #[must_use]
    pub fn locked(&self, locked_id: &str) -> Option<&Arc<RegisteredItem>> {
        let (kind, id) = self::locked_id(locked_id)?;
        if kind == ItemKind::Prompt {
            return self.prompts.get(id);
        }
        // Two servers may have the same name in ids, so every source is tried.
        self.sources.iter().find_map(|(source, items)| {
            let key = id.strip_prefix(&tool_id(source.name()))?.strip_prefix('.')?;
            items.get(kind, key)
        })
    }
}

/// Parses `prompt:ID`, `resource:ID` or `template:ID`; `None` for other text.
#[must_use]
pub fn locked_id(text: &str) -> Option<(ItemKind, &str)> {
    let (word, id) = text.split_once(':')?;
    let kind = ItemKind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
    Some((kind, id))
}

#[cfg(test)]
mod tests;
