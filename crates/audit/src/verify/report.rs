//! What verification found.
//!
//! Doc: records.md#verification

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most problems that a report lists.
pub const PROBLEMS_MAX: usize = 1_000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `changed`, `missing`, `unaccounted-event`, `checkpoint-differs`, `signature`,
    /// `receipt-changed`, `receipt-missing`, `receipt-unaccounted`, `key-missing`,
    /// `key-unaccounted`, `pin-unaccounted`, `approval-changed`, `approval-missing`,
    /// `call-changed`, `call-missing`, `log-changed`, `log-missing`, `log-unaccounted`, `head-differs`,
    /// `index-differs` or `truncated`.
    pub kind: String,
    /// The writer whose log it is; empty where there is none.
    pub writer: String,
    /// The place in its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A sentence.
    pub message: String,
}

/// What verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// Whether everything fits.
    pub ok: bool,
    /// How many events were looked at.
    pub events: u64,
    /// What does not fit.
    pub problems: Vec<Problem>,
}

/// Problems as they are found, by each part of verification.
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

    /// Whether a place of a log, from one on, was named already.
    pub(super) fn name(&self, writer: &str, from: u64) -> bool {
        let is = |problem: &Problem| problem.seq.is_some_and(|seq| seq >= from);
        self.0.iter().any(|problem| problem.writer == writer && is(problem))
    }

    /// The report. The first place comes first, whatever was found by which way.
    pub(super) fn report(all: impl IntoIterator<Item = Self>, events: u64) -> VerifyReport {
        let mut problems: Vec<Problem> = all.into_iter().flat_map(|found| found.0).collect();
        problems.sort_by_key(|problem| (problem.writer.clone(), problem.seq.unwrap_or(u64::MAX)));
        problems.truncate(PROBLEMS_MAX);
        VerifyReport { ok: problems.is_empty(), events, problems }
    }
}
