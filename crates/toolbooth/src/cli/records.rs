//! Defines the command line of the records: `audit`, `store`, `logs`, `receipts`.
//!
//! Doc: formats.md#commands

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Shown;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventFormat {
    Table,
    Json,
    Jsonl,
    Csv,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Prints events, oldest first.
    #[command(
        after_help = "Example: toolbooth audit query --tool calculator --since 1h --format jsonl"
    )]
    Query {
        #[command(flatten)]
        filter: EventFilterArgs,
        /// The output format.
        #[arg(long, value_enum, default_value = "table")]
        format: EventFormat,
    },
    /// Prints the newest events; with `-f`, also those that follow.
    Tail {
        /// Continue as events are written.
        #[arg(short, long)]
        follow: bool,
        /// The number of events to begin with.
        #[arg(short = 'n', long, default_value_t = 20)]
        lines: usize,
        /// The output format.
        #[arg(long, value_enum, default_value = "table")]
        format: EventFormat,
    },
    /// Prints counts and latencies of each tool.
    #[command(after_help = "Example: toolbooth audit stats --since 24h")]
    Stats {
        /// From this time on: RFC 3339, or a duration before now, such as `1h` or `7d`.
        #[arg(long)]
        since: Option<String>,
        /// Before this time.
        #[arg(long)]
        until: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Writes all events: `jsonl` as hashed, for `verify --file`; `csv`; `ocsf`, an API Activity a line, for
    /// a SIEM.
    #[command(
        after_help = "Examples:\n  toolbooth audit export > audit.jsonl\n  toolbooth audit export --format ocsf --since 1d --out today.ocsf.jsonl"
    )]
    Export {
        /// The format.
        #[arg(long, value_enum, default_value = "jsonl")]
        format: ExportFormat,
        /// From this time on; a partial log cannot be verified.
        #[arg(long)]
        since: Option<String>,
        /// Before this time.
        #[arg(long)]
        until: Option<String>,
        /// The file, which must not exist (Parquet, an optional feature: a folder); default: standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Recomputes every digest and reports mismatches.
    #[command(
        after_help = "Examples:\n  toolbooth audit verify\n  toolbooth audit verify --file audit.jsonl --key NAME+HASH+KEY --checkpoint kept.note\n  toolbooth audit verify --proof call.proof --key NAME+HASH+KEY"
    )]
    Verify {
        /// The store to verify: a data folder or a URL; default: the configured one.
        #[arg(long, value_name = "FOLDER|URL")]
        store: Option<String>,
        /// Verify an export in JSON Lines instead.
        #[arg(long, value_name = "FILE", conflicts_with = "store")]
        file: Option<PathBuf>,
        /// A key or a file of keys that must sign the checkpoints; can be repeated; default: the keys in the
        /// logs.
        #[arg(long, value_name = "KEY|FILE")]
        key: Vec<String>,
        /// A file with checkpoints that were stored outside.
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        /// Check only this proof; needs `--key`.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["store", "file", "checkpoint"])]
        proof: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Writes a proof that the log of a checkpoint contains a call.
    #[command(after_help = "Example: toolbooth audit prove CALL_ID > call.proof")]
    Prove {
        /// The call.
        call: String,
    },
    /// Writes a proof that the log of one checkpoint is a prefix of the log of another.
    ProveConsistency {
        /// A file with the earlier checkpoint; if it contains several, the last one.
        first: PathBuf,
        /// A file with the later checkpoint.
        second: PathBuf,
    },
    /// Prints the keys that sign the logs of this store.
    Keys {
        #[command(flatten)]
        shown: Shown,
    },
    /// Accepts a database that was restored from a backup, and records that.
    AcceptRestore {
        /// Also if the database contains the newest checkpoint of this folder.
        #[arg(long)]
        anyway: bool,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Jsonl,
    Csv,
    Ocsf,
    #[cfg(feature = "parquet")]
    Parquet,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Copies all records into a new folder; a gateway can run meanwhile.
    #[command(after_help = "Example: toolbooth store backup /backups/toolbooth-2026-01-31")]
    Backup {
        /// The folder, which must not exist.
        to: PathBuf,
        #[command(flatten)]
        shown: Shown,
    },
    /// Replaces the records by a backup; the old records are stored next to them.
    Restore {
        /// The folder of the backup.
        from: PathBuf,
        #[command(flatten)]
        shown: Shown,
    },
    /// Returns the space of removed records to the disk.
    Vacuum {
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResolvedAs {
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PruneWhat {
    Receipts,
    Logs,
    Audit,
    Calls,
    Approvals,
}

#[derive(Debug, Args)]
pub(crate) struct EventFilterArgs {
    /// Only this tool.
    #[arg(long)]
    pub(crate) tool: Option<String>,
    /// Only this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Only this caller.
    #[arg(long)]
    pub(crate) caller: Option<String>,
    /// Only this status.
    #[arg(long, value_parser = ["succeeded", "failed", "denied", "not_configured"])]
    pub(crate) status: Option<String>,
    /// Only this error code.
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// From this time on: RFC 3339, or a duration before now, such as `1h` or `7d`.
    #[arg(long)]
    pub(crate) since: Option<String>,
    /// Before this time.
    #[arg(long)]
    pub(crate) until: Option<String>,
    /// Only this call.
    #[arg(long)]
    pub(crate) call: Option<String>,
    /// The maximum number; the newest are printed.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit: usize,
}

/// The filter of agent logs.
#[derive(Debug, Args)]
pub(crate) struct LogFilterArgs {
    /// Only this tool.
    #[arg(long)]
    pub(crate) tool: Option<String>,
    /// Only this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Only this caller.
    #[arg(long)]
    pub(crate) caller: Option<String>,
    /// Only this error code.
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// Only this turn.
    #[arg(long)]
    pub(crate) turn: Option<u64>,
    /// Only this phase.
    #[arg(long)]
    pub(crate) phase: Option<String>,
    /// Only this epic.
    #[arg(long)]
    pub(crate) epic: Option<String>,
    /// Only this call.
    #[arg(long)]
    pub(crate) call: Option<String>,
    /// Only errors (`true`), or only successes (`false`).
    #[arg(long)]
    pub(crate) error: Option<bool>,
    /// From this time on: RFC 3339, or a duration before now, such as `1h` or `7d`.
    #[arg(long)]
    pub(crate) since: Option<String>,
    /// Before this time.
    #[arg(long)]
    pub(crate) until: Option<String>,
    /// The maximum number; the newest are printed.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit: usize,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Logs {
    /// Prints agent logs, oldest first.
    Query {
        #[command(flatten)]
        filter: Box<LogFilterArgs>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one agent log.
    Show {
        /// The log's id.
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Receipts {
    /// Prints receipts, newest first.
    List {
        /// Only this tool.
        #[arg(long)]
        tool: Option<String>,
        /// Only this caller.
        #[arg(long)]
        caller: Option<String>,
        /// Only this call.
        #[arg(long)]
        call: Option<String>,
        /// Only this state.
        #[arg(long, value_parser = ["in_flight", "awaiting_input", "succeeded", "failed", "in_doubt"])]
        state: Option<String>,
        /// Continue after this receipt.
        #[arg(long)]
        after: Option<String>,
        /// The maximum number.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        shown: Shown,
    },
    /// Resolves a call with an unknown outcome; later calls with its key get this result.
    #[command(
        after_help = "Example: toolbooth receipts resolve 0192… --as succeeded --result '{\"order\": 17}'"
    )]
    Resolve {
        /// The receipt's id.
        id: String,
        /// The outcome of the call.
        #[arg(long = "as", value_enum, value_name = "OUTCOME")]
        outcome: ResolvedAs,
        /// The result for later calls: JSON, `@FILE`, or `-` for standard input.
        #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
        result: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Removes old records: by `[retention]`, or from before a time. Held keys remain held. The audit log is
    /// shortened only up to a signed checkpoint.
    #[command(after_help = "Example: toolbooth receipts prune --before 90d --what logs")]
    Prune {
        /// From before this time: RFC 3339, or a duration before now, such as `90d`.
        #[arg(long)]
        before: Option<String>,
        /// The kind of the records.
        #[arg(long, value_enum, default_value = "receipts", requires = "before")]
        what: PruneWhat,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one receipt.
    Show {
        /// The id of the receipt or of its call, or a prefix of one of them.
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Approvals {
    /// Lists approvals, the newest first; without a state, those that can be decided.
    List {
        /// Those in this state: `pending`, `granted`, `rejected`, `spent`, or `any`.
        #[arg(long)]
        state: Option<String>,
        /// Those of this tool, by id.
        #[arg(long, value_name = "ID")]
        tool: Option<String>,
        /// Those that this caller has requested.
        #[arg(long, value_name = "NAME")]
        caller: Option<String>,
        /// Those that were requested before this one.
        #[arg(long, value_name = "APPROVAL")]
        before: Option<String>,
        /// At most this number.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one approval, with the redacted arguments until it is decided.
    Show {
        /// The id of the approval.
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Grants an approval, as the operator: the call can run once.
    Approve {
        /// The id of the approval.
        id: String,
        /// The reason, for the records.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Rejects an approval, as the operator, or takes back one that was granted and is not spent.
    Reject {
        /// The id of the approval.
        id: String,
        /// The reason, for the records.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Creates an API key and prints it once. A key of this name that has ended is replaced.
    #[command(after_help = "\
Examples:
  toolbooth keys create intern --group interns
  toolbooth keys create ci --expires 90d --format json")]
    Create {
        /// The name; the holder is the caller `key:NAME`.
        name: String,
        /// A group of the holder, which `[callers]` can match as `group:NAME`; can be repeated.
        #[arg(long = "group", value_name = "NAME")]
        groups: Vec<String>,
        /// When it expires: RFC 3339, or a duration from now, such as `90d`; default: never.
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Lists the API keys, without their texts.
    List {
        #[command(flatten)]
        shown: Shown,
    },
    /// Revokes an API key. Running gateways refuse it within a second.
    Revoke {
        /// The name.
        name: String,
        #[command(flatten)]
        shown: Shown,
    },
}

/// The calls that a pause concerns; without an option, all calls.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct PauseArgs {
    /// The calls of this tool, by id.
    #[arg(long, value_name = "ID")]
    pub(crate) tool: Option<String>,
    /// The calls and requests to this server.
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,
    /// The calls and requests of this caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`.
    #[arg(long, value_name = "NAME")]
    pub(crate) caller: Option<String>,
}
