//! The principal, the action and the resource of a question, as entities of rules.
//!
//! Path: 5. Doc: policy.md#rules

use std::sync::{Arc, Mutex};

use cedar_policy::{Entities, Entity};
use cedar_policy_core::ast::{Context, EntityUID, EntityUIDEntry, Request};
use toolbooth_contracts::Identity;
use toolbooth_contracts::trust::TrustLevel;

use super::entities;
use super::evaluation::Evaluation;
use super::values::ContextMembers;
use crate::caller::Grant;
use crate::engine::Question;
use crate::error::EngineError;

/// The principal, the action and the resource, as entities.
#[derive(Debug)]
pub(super) struct Parties {
    entities: Entities,
    /// The principal, the action and the resource.
    uids: [EntityUIDEntry; 3],
}

impl Parties {
    pub(super) fn new(
        caller: &Identity,
        grants: &[Grant],
        [resource, action]: [Entity; 2],
    ) -> Result<Self, EngineError> {
        let caller = entities::caller(caller, grants)?;
        let uids = [&caller, &action, &resource].map(|entity| {
            let own: EntityUID = entity.uid().into();
            EntityUIDEntry::from(own)
        });
        let entities = Entities::from_entities([caller, resource, action], None);
        Ok(Self { entities: entities.map_err(|error| EngineError(error.to_string()))?, uids })
    }

    /// Returns the question with these parts of the context.
    pub(super) fn evaluation(&self, parts: ContextMembers) -> Evaluation<'_> {
        let parts = parts.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let [caller, action, resource] = self.uids.clone();
        let context = Context::Value(Arc::new(parts));
        let request = Request::new_unchecked(caller, action, resource, Some(context));
        Evaluation::new(request, &self.entities)
    }
}

/// The parties of the last question about a tool: most tools have few callers, and making entities costs as much as
/// several rules.
#[derive(Debug, Default)]
pub(super) struct LastParties(Mutex<Option<PartiesOfQuestion>>);

#[derive(Debug)]
struct PartiesOfQuestion {
    caller: Identity,
    grants: Vec<Grant>,
    trust: TrustLevel,
    parties: Arc<Parties>,
}

impl LastParties {
    /// Returns the parties of a question, made by `make` where they are not those of the last one.
    pub(super) fn of(
        &self,
        question: &Question<'_>,
        make: impl FnOnce() -> Result<Parties, EngineError>,
    ) -> Result<Arc<Parties>, EngineError> {
        // A decision that runs at the same time is not waited for.
        let Ok(mut last) = self.0.try_lock() else { return make().map(Arc::new) };
        let known = last.as_ref().filter(|known| {
            known.caller == *question.caller
                && known.grants == question.grants
                && known.trust == question.trust
        });
        if let Some(known) = known {
            return Ok(Arc::clone(&known.parties));
        }
        let parties = Arc::new(make()?);
        *last = Some(PartiesOfQuestion {
            caller: question.caller.clone(),
            grants: question.grants.to_vec(),
            trust: question.trust,
            parties: Arc::clone(&parties),
        });
        Ok(parties)
    }
}
