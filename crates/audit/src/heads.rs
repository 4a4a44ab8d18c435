//! The head of a writer's log, as a store keeps it.
//!
//! Doc: records.md#tamper-evidence

/// The head of a writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterHead {
    /// The writer.
    pub writer: String,
    /// How many events its log has.
    pub size: u64,
    /// Leaf hash of the last one, in hex.
    pub last_leaf: Option<String>,
    /// The Merkle root over them, in hex; absent in logs of versions that kept none.
    pub root: Option<String>,
    /// How many events at the beginning were pruned by an earlier version, where this was not taken
    /// over yet.
    pub pruned: Option<PrunedLog>,
    /// What else the row of the writer says; absent where nothing does.
    pub row: Option<WriterRow>,
}

/// What the row of a writer says beside the head of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterRow {
    /// When it began, RFC 3339 UTC.
    pub started: String,
    /// Whether its log has ended.
    pub stopped: bool,
    /// Whether a checkpoint has named its end for good.
    pub named: bool,
    /// The note of its newest checkpoint.
    pub checkpoint: Option<String>,
}

/// The beginning of a log that was pruned, as the tree over the rest needs it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrunedLog {
    /// How many events are gone.
    pub size: u64,
    /// Leaf hash of the last of them, in hex.
    pub last_leaf: String,
    /// The roots of the full subtrees over them, largest first, in hex.
    pub peaks: Vec<String>,
    /// The signed checkpoint that covers them.
    pub note: String,
    /// The key that signs the log, as its first event named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Up to when receipts were pruned, as the events that are gone said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts_before: Option<String>,
    /// Up to when agent logs were pruned, as the events that are gone said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs_before: Option<String>,
}
