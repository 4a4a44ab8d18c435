//! Verifies that documents have the digests that name them, and that those which logs name exist.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};

use super::event_fields::{LogFields, Read};
use super::report::Problems;
use crate::documents::{RawDocument, is_named};

/// The documents that were found, and those that logs name.
#[derive(Debug, Default)]
pub(super) struct Documents {
    found: BTreeSet<String>,
    /// Each with the place of one log that names it.
    named: BTreeMap<String, (String, u64)>,
}

impl Documents {
    /// Adds the documents that a log names.
    pub(super) fn log(&mut self, read: &Read, log: &LogFields) {
        let Some(inputs) = log.decision_inputs.as_ref().filter(|inputs| inputs.documents) else {
            return;
        };
        let own = inputs.contract_digest.iter().chain(&inputs.caller_digest);
        for digest in own.chain([&inputs.policy_version]) {
            if !self.named.contains_key(digest) {
                self.named.insert(digest.clone(), (read.writer.clone(), read.seq));
            }
        }
    }

    /// Checks a stored document.
    pub(super) fn document(&mut self, raw: &RawDocument, problems: &mut Problems) {
        self.found.insert(raw.digest.clone());
        if !raw.text.as_deref().is_some_and(|text| is_named(&raw.digest, text)) {
            let message = format!("the document {} was changed", raw.digest.escape_debug());
            problems.add("document-changed", "", None, message);
        }
    }

    /// Returns the documents that logs name and that were not found, each with the place of a log.
    pub(super) fn take_missing(&mut self) -> Vec<(String, (String, u64))> {
        let named = std::mem::take(&mut self.named);
        named.into_iter().filter(|(digest, _)| !self.found.contains(digest)).collect()
    }
}
