//! Who asks for what, as entities of rules.
//!
//! Path: 5. Doc: policy.md#rules

use cedar_policy::{Context, Entities, Entity, EntityUid, Request, RestrictedExpression};
use toolbooth_contracts::Identity;

use super::entities;
use crate::caller::Grant;
use crate::error::EngineError;

/// Who asks for what, as entities.
pub(super) struct Parties {
    pub(super) entities: Entities,
    /// The caller, the action and what it is about.
    uids: [EntityUid; 3],
}

impl Parties {
    pub(super) fn new(
        caller: &Identity,
        grants: &[Grant],
        [resource, action]: [Entity; 2],
    ) -> Result<Self, EngineError> {
        let caller = entities::caller(caller, grants)?;
        let uids = [caller.uid(), action.uid(), resource.uid()];
        let entities = Entities::from_entities([caller, resource, action], None).map_err(told)?;
        Ok(Self { entities, uids })
    }

    /// Returns the request with these parts of the context.
    pub(super) fn request(
        &self,
        parts: Vec<(String, RestrictedExpression)>,
    ) -> Result<Request, EngineError> {
        let context = Context::from_pairs(parts).map_err(told)?;
        let [caller, action, resource] = self.uids.clone();
        Request::new(caller, action, resource, context, None).map_err(told)
    }
}

fn told(error: impl std::error::Error) -> EngineError {
    EngineError(error.to_string())
}
