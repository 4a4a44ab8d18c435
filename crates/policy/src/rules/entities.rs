//! Callers, tools and items as the entities of rules.
//!
//! Path: 5. Doc: policy.md#rules

use std::collections::{HashMap, HashSet};
use std::str::FromStr;
use std::sync::LazyLock;

use cedar_policy::{Entity, EntityId, EntityTypeName, EntityUid, RestrictedExpression};
use toolbooth_contracts::Identity;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::port::ItemKind;
use toolbooth_contracts::trust::TrustLevel;

use super::scope::{ACTION, READ_RESOURCES, TOOL, USE_PROMPTS, action_of};
use crate::caller::Grant;
use crate::error::EngineError;
use crate::item::Item;

/// The type of callers.
pub(super) const CALLER: &str = "Caller";
/// The type of their groups.
pub(super) const GROUP: &str = "Group";

/// The types of entities. Reading a name is slow, so each is read once.
struct Types {
    action: EntityTypeName,
    caller: EntityTypeName,
    group: EntityTypeName,
    prompt: EntityTypeName,
    resource: EntityTypeName,
    tool: EntityTypeName,
}

impl Types {
    fn read() -> Result<&'static Self, EngineError> {
        static TYPES: LazyLock<Result<Types, EngineError>> = LazyLock::new(|| {
            let read = |of: &str| {
                EntityTypeName::from_str(of)
                    .map_err(|error| EngineError(format!("`{of}` is no type: {error}")))
            };
            Ok(Types {
                action: read(ACTION)?,
                caller: read(CALLER)?,
                group: read(GROUP)?,
                prompt: read("Prompt")?,
                resource: read("Resource")?,
                tool: read(TOOL)?,
            })
        });
        TYPES.as_ref().map_err(Clone::clone)
    }
}

/// Returns the identifier of an entity.
fn uid(of: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(of.clone(), EntityId::new(id))
}

fn text(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

fn texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> RestrictedExpression {
    RestrictedExpression::new_set(texts.into_iter().map(text))
}

fn entity<const N: usize>(
    uid: EntityUid,
    attributes: [(&str, RestrictedExpression); N],
    parents: HashSet<EntityUid>,
) -> Result<Entity, EngineError> {
    let attributes: HashMap<String, RestrictedExpression> =
        attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Entity::new(uid, attributes, parents).map_err(|error| EngineError(error.to_string()))
}

/// Returns the caller, with its groups as parents.
pub(super) fn caller(identity: &Identity, grants: &[Grant]) -> Result<Entity, EngineError> {
    let types = Types::read()?;
    let parents = identity.groups.iter().map(|group| uid(&types.group, group)).collect();
    entity(
        uid(&types.caller, &identity.name),
        [
            ("name", text(&identity.name)),
            ("kind", text(identity.kind.as_str())),
            ("scopes", texts(identity.scopes.iter().map(String::as_str))),
            ("grants", texts(grants.iter().map(Grant::as_str))),
        ],
        parents,
    )
}

/// Returns a tool and its action. `groups` are the groups of the rules that it is in.
pub(super) fn tool<'g>(
    contract: &ToolContract,
    trust: TrustLevel,
    groups: impl Iterator<Item = &'g str>,
) -> Result<[Entity; 2], EngineError> {
    let id = contract.tool_id.as_str();
    let source = contract.execution.adapter().map(|adapter| adapter.to_string());
    let types = Types::read()?;
    let tool = entity(
        uid(&types.tool, id),
        [
            ("id", text(id)),
            ("category", text(contract.category.as_str())),
            ("permissions", texts(contract.permissions.iter().map(String::as_str))),
            ("trust", text(trust.as_str())),
            ("source", text(source.as_deref().unwrap_or_default())),
            ("readOnly", RestrictedExpression::new_bool(contract.policy.read_only == Some(true))),
        ],
        HashSet::new(),
    )?;
    let parents = groups.map(|group| uid(&types.action, group)).collect();
    Ok([tool, Entity::new_no_attrs(uid(&types.action, &action_of(id)), parents)])
}

/// Returns an item and its action.
pub(super) fn item(item: &Item<'_>) -> Result<[Entity; 2], EngineError> {
    let types = Types::read()?;
    let (of, action) = match item.kind {
        ItemKind::Prompt => (&types.prompt, USE_PROMPTS),
        ItemKind::Resource | ItemKind::Template => (&types.resource, READ_RESOURCES),
    };
    let attributes = [("id", text(item.id)), ("server", text(item.server))];
    let action = Entity::new_no_attrs(uid(&types.action, action), HashSet::new());
    Ok([entity(uid(of, item.id), attributes, HashSet::new())?, action])
}
