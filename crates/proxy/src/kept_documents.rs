//! The documents that this process has handed to the store: contracts, policies and callers that logs name.
//!
//! Path: 9. Doc: records.md#documents

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolbooth_audit::documents::{Document, REMEMBERED};
use toolbooth_audit::ledger::Moment;
use toolbooth_contracts::decision::RequestedItem;
use toolbooth_contracts::json::canonical;
use toolbooth_registry::RegisteredTool;

use crate::world::World;

/// Bytes of a policy that is kept. A larger one is not read back in a reasonable time.
const POLICY_BYTES_MAX: usize = 32 << 20;
/// Documents that are remembered; with more, all are handed over again.
const REMEMBERED_MAX: usize = 20_000;

/// The world, the tool and the item by which a call or a request was judged.
#[derive(Clone)]
pub(crate) struct JudgedBy {
    pub(crate) world: Arc<World>,
    /// `None` for prompts and resources, and where tools are switched off.
    pub(crate) tool: Option<Arc<RegisteredTool>>,
    /// The prompt or the resource.
    pub(crate) item: Option<RequestedItem>,
}

impl JudgedBy {
    /// Whether the policy document of the call is small enough for the store.
    pub(crate) fn is_kept(&self) -> bool {
        self.world.policy.document().len() <= POLICY_BYTES_MAX
    }
}

/// The documents that the store has, by their digests, each with the time when it was handed over.
#[derive(Debug, Default)]
pub(crate) struct KeptDocuments(Mutex<HashMap<String, i64>>);

impl KeptDocuments {
    /// Returns the documents of a judged call that the store may not have. `caller` is the digest and the text
    /// of the caller's attributes, if the log names them by digest.
    pub(crate) fn lacking(
        &self,
        by: &JudgedBy,
        caller: Option<(String, String)>,
        at: &Moment,
    ) -> Vec<Document> {
        let policy = &by.world.policy;
        let contract_digest = by.tool.as_ref().map_or("", |tool| tool.contract_digest());
        let version = policy.version();
        let of_caller = caller.as_ref().map_or("", |(digest, _)| digest.as_str());
        let is_kept = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let remembered_ms = i64::try_from(REMEMBERED.as_millis()).unwrap_or_default();
            let recent = |at_ms: &i64| at.epoch_ms.saturating_sub(*at_ms) < remembered_ms;
            [contract_digest, version, of_caller].map(|digest| kept.get(digest).is_some_and(recent))
        };
        let document = |digest: &str, text: Arc<str>| Document {
            digest: digest.to_owned(),
            text,
            used: at.text.clone(),
        };
        let mut lacking = Vec::new();
        let [has_contract, has_policy, has_caller] = is_kept;
        if let Some(tool) = by.tool.as_ref().filter(|_| !has_contract) {
            let contract = serde_json::to_value(tool.contract().as_ref()).unwrap_or_default();
            lacking.push(document(contract_digest, canonical(&contract).into()));
        }
        if !has_policy {
            lacking.push(document(version, Arc::clone(policy.document())));
        }
        if let Some((digest, text)) = caller.filter(|_| !has_caller) {
            lacking.push(document(&digest, text.into()));
        }
        lacking
    }

    /// Remembers documents that the store has accepted.
    pub(crate) fn keep(&self, documents: &[Document], at: &Moment) {
        if documents.is_empty() {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= REMEMBERED_MAX {
            kept.clear();
        }
        kept.extend(documents.iter().map(|document| (document.digest.clone(), at.epoch_ms)));
    }
}
