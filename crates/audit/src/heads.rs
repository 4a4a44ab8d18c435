//! The stored head of a writer's log.
//!
//! Doc: records.md#tamper-evidence

/// Whether a text can be the id of a writer: 1 to 128 ASCII letters, digits, `.`, `_` and `-`, not beginning with
/// `.`. It stands in names of files and in the first line of checkpoints. A memory ledger does not check it.
#[must_use]
pub fn is_writer_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_allowed)
}

/// The head of a writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterHead {
    /// The writer.
    pub writer: String,
    /// The number of events in its log.
    pub size: u64,
    /// The leaf hash of the last event, in hex.
    pub last_leaf: Option<String>,
    /// The Merkle root over the events, in hex; absent in logs of versions that did not store it.
    pub root: Option<String>,
    /// The beginning of the log that an earlier version pruned, if it was not adopted yet.
    pub pruned: Option<PrunedLog>,
    /// The other columns of the writer's row; absent if there are none.
    pub row: Option<WriterRow>,
}

/// The columns of a writer's row in addition to the head of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterRow {
    /// The start time, RFC 3339 UTC.
    pub started: String,
    /// Whether its log has ended.
    pub stopped: bool,
    /// Whether a checkpoint has named the final end of the log.
    pub named: bool,
    /// The note of its newest checkpoint.
    pub checkpoint: Option<String>,
}

/// The pruned beginning of a log, with the hashes that the tree over the rest requires.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrunedLog {
    /// The number of pruned events.
    pub size: u64,
    /// The leaf hash of the last pruned event, in hex.
    pub last_leaf: String,
    /// The roots of the full subtrees over the pruned events, largest first, in hex.
    pub peaks: Vec<String>,
    /// The signed checkpoint that covers the pruned events.
    pub note: String,
    /// The key that signs the log, as its first event named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The time before which receipts were pruned, as the pruned events stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts_before: Option<String>,
    /// The time before which agent logs were pruned, as the pruned events stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs_before: Option<String>,
}
