//! The documents that this process has handed to the store: contracts and policies that logs name.
//!
//! Path: 9. Doc: records.md#documents

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolbooth_audit::documents::Document;
use toolbooth_audit::ledger::Moment;
use toolbooth_contracts::json::canonical;
use toolbooth_registry::RegisteredTool;

use crate::world::World;

/// The time after which a document is handed over again, so that the store knows of its use. It is half of the
/// time for which a use counts, because the clocks of replicas may differ.
const RENEWED_MS: i64 = 12 * 60 * 60 * 1_000;
/// Documents that are remembered; with more, all are handed over again.
const REMEMBERED_MAX: usize = 20_000;

/// What a call was judged by.
#[derive(Clone)]
pub(crate) struct JudgedBy {
    pub(crate) world: Arc<World>,
    pub(crate) tool: Arc<RegisteredTool>,
}

/// The documents that the store has, by their digests, each with the time when it was handed over.
#[derive(Debug, Default)]
pub(crate) struct KeptDocuments(Mutex<HashMap<String, i64>>);

impl KeptDocuments {
    /// Returns the documents of a judged call that the store may not have.
    pub(crate) fn lacking(&self, by: &JudgedBy, at: &Moment) -> Vec<Document> {
        let policy = &by.world.policy;
        let (contract_digest, version) = (by.tool.contract_digest(), policy.version());
        let is_kept = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = |at_ms: &i64| at.epoch_ms.saturating_sub(*at_ms) < RENEWED_MS;
            [contract_digest, version].map(|digest| kept.get(digest).is_some_and(recent))
        };
        let document = |digest: &str, text: String| Document {
            digest: digest.to_owned(),
            text,
            used: at.text.clone(),
        };
        let mut lacking = Vec::new();
        let [has_contract, has_policy] = is_kept;
        if !has_contract {
            let contract = serde_json::to_value(by.tool.contract().as_ref()).unwrap_or_default();
            lacking.push(document(contract_digest, canonical(&contract)));
        }
        if !has_policy {
            lacking.push(document(version, canonical(&policy.bundle())));
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
