//! The result of verification.
//!
//! Doc: records.md#verification

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of problems in a report.
pub const PROBLEMS_MAX: usize = 1_000;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `changed`, `missing`, `unaccounted-event`, `checkpoint-differs`, `signature`,
    /// `receipt-changed`, `receipt-missing`, `receipt-unaccounted`, `key-missing`,
    /// `key-unaccounted`, `pin-unaccounted`, `approval-changed`, `approval-missing`,
    /// `order-changed`, `order-missing`, `budget-changed`, `budget-missing`, `call-changed`, `call-missing`, `document-changed`, `document-missing`,
    /// `history-changed`, `log-changed`, `log-missing`, `log-unaccounted`, `head-differs`,
    /// `index-differs`, `structure-differs`, `digest-key-missing` or `truncated`.
    pub kind: String,
    /// The writer of the log; empty if there is none.
    pub writer: String,
    /// The place in its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A sentence that describes the problem.
    pub message: String,
}

/// The result of verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// Whether no problem was found.
    pub ok: bool,
    /// The number of verified events.
    pub events: u64,
    /// The problems.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Adds a problem of no place in a log.
    pub fn add(&mut self, kind: &str, message: String) {
        self.ok = false;
        let (kind, writer, seq) = (kind.to_owned(), String::new(), None);
        self.problems.push(Problem { kind, writer, seq, message });
    }
}

/// The problems that a part of verification has found.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(
        &mut self,
        kind: &str,
        writer: &str,
        seq: impl Into<Option<u64>>,
        message: impl Into<String>,
    ) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(Problem {
                kind: kind.to_owned(),
                writer: writer.to_owned(),
                seq: seq.into(),
                message: message.into(),
            });
        }
    }

    /// Whether a problem at or after a place of a log was already added.
    pub(super) fn name(&self, writer: &str, from: u64) -> bool {
        let is = |problem: &Problem| problem.seq.is_some_and(|seq| seq >= from);
        self.0.iter().any(|problem| problem.writer == writer && is(problem))
    }

    /// Returns the report, sorted by writer and place, regardless of the part that found a problem.
    pub(super) fn report(all: impl IntoIterator<Item = Self>, events: u64) -> VerifyReport {
        let mut problems: Vec<Problem> = all.into_iter().flat_map(|found| found.0).collect();
        problems.sort_by_key(|problem| (problem.writer.clone(), problem.seq.unwrap_or(u64::MAX)));
        problems.truncate(PROBLEMS_MAX);
        VerifyReport { ok: problems.is_empty(), events, problems }
    }
}
