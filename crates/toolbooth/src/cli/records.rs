//! The command line of the records: `audit`, `store`, `logs`, `receipts`.
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
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: EventFormat,
    },
    /// Prints the newest events, and with `-f` those that follow.
    Tail {
        /// Go on as events are written.
        #[arg(short, long)]
        follow: bool,
        /// How many to begin with.
        #[arg(short = 'n', long, default_value_t = 20)]
        lines: usize,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: EventFormat,
    },
    /// Counts and latencies of each tool.
    #[command(after_help = "Example: toolbooth audit stats --since 24h")]
    Stats {
        /// From this time on: RFC 3339, or so long ago, such as `1h` or `7d`.
        #[arg(long)]
        since: Option<String>,
        /// Before this time.
        #[arg(long)]
        until: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Writes every event: `jsonl` as they were hashed, for `verify --file`; `csv`; `ocsf`, one API
    /// Activity a line, for a SIEM.
    #[command(
        after_help = "Examples:\n  toolbooth audit export > audit.jsonl\n  toolbooth audit export --format ocsf --since 1d --out today.ocsf.jsonl"
    )]
    Export {
        /// The form.
        #[arg(long, value_enum, default_value = "jsonl")]
        format: ExportFormat,
        /// From this time on; a part of a log cannot be verified.
        #[arg(long)]
        since: Option<String>,
        /// Before this time.
        #[arg(long)]
        until: Option<String>,
        /// The file to write, which must not be there (for Parquet, which is an optional feature of the
        /// build, a folder); else standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Re-computes every digest, and names the first place where something is wrong.
    #[command(
        after_help = "Examples:\n  toolbooth audit verify\n  toolbooth audit verify --file audit.jsonl --key NAME+HASH+KEY --checkpoint kept.note\n  toolbooth audit verify --proof call.proof --key NAME+HASH+KEY"
    )]
    Verify {
        /// The store to verify: a data folder or a URL; else the configured one.
        #[arg(long, value_name = "FOLDER|URL")]
        store: Option<String>,
        /// An export in JSON Lines instead.
        #[arg(long, value_name = "FILE", conflicts_with = "store")]
        file: Option<PathBuf>,
        /// A key by which checkpoints must be signed, or a file with such keys; may be given more
        /// than once. Else the keys are taken that the logs themselves name.
        #[arg(long, value_name = "KEY|FILE")]
        key: Vec<String>,
        /// A file with checkpoints that were kept outside.
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        /// Check this proof alone; needs `--key`.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["store", "file", "checkpoint"])]
        proof: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Writes a proof that a call is in the log that a checkpoint covers.
    #[command(after_help = "Example: toolbooth audit prove CALL_ID > call.proof")]
    Prove {
        /// The call.
        call: String,
    },
    /// Writes a proof that the log of one checkpoint is the beginning of that of another.
    ProveConsistency {
        /// A file with the earlier checkpoint; of several, its last one.
        first: PathBuf,
        /// A file with the later one.
        second: PathBuf,
    },
    /// Prints the keys by which the logs of this store are signed.
    Keys {
        #[command(flatten)]
        shown: Shown,
    },
    /// Takes a database that was put back from a backup as it is, and writes that down.
    AcceptRestore {
        /// Also where the newest checkpoint of this folder is there.
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
    /// Copies the records into a new folder, whole, also while a gateway runs.
    #[command(after_help = "Example: toolbooth store backup /backups/toolbooth-2026-01-31")]
    Backup {
        /// The folder, which must not be there.
        to: PathBuf,
        #[command(flatten)]
        shown: Shown,
    },
    /// Puts a backup in the place of the records; what was there is kept beside them.
    Restore {
        /// The folder of the backup.
        from: PathBuf,
        #[command(flatten)]
        shown: Shown,
    },
    /// Gives space of removed records back to the disk.
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
}

#[derive(Debug, Args)]
pub(crate) struct EventFilterArgs {
    /// Of this tool.
    #[arg(long)]
    pub(crate) tool: Option<String>,
    /// Of this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Of this caller.
    #[arg(long)]
    pub(crate) caller: Option<String>,
    /// With this status.
    #[arg(long, value_parser = ["succeeded", "failed", "denied", "not_configured"])]
    pub(crate) status: Option<String>,
    /// With this error code.
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// From this time on: RFC 3339, or so long ago, such as `1h` or `7d`.
    #[arg(long)]
    pub(crate) since: Option<String>,
    /// Before this time.
    #[arg(long)]
    pub(crate) until: Option<String>,
    /// Of this call.
    #[arg(long)]
    pub(crate) call: Option<String>,
    /// At most so many; the newest.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit: usize,
}

/// Which agent logs.
#[derive(Debug, Args)]
pub(crate) struct LogFilterArgs {
    /// Of this tool.
    #[arg(long)]
    pub(crate) tool: Option<String>,
    /// Of this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Of this caller.
    #[arg(long)]
    pub(crate) caller: Option<String>,
    /// With this error code.
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// Of this turn.
    #[arg(long)]
    pub(crate) turn: Option<u64>,
    /// Of this phase.
    #[arg(long)]
    pub(crate) phase: Option<String>,
    /// Of this epic.
    #[arg(long)]
    pub(crate) epic: Option<String>,
    /// Of this call.
    #[arg(long)]
    pub(crate) call: Option<String>,
    /// Only errors (`true`), or only successes (`false`).
    #[arg(long)]
    pub(crate) error: Option<bool>,
    /// From this time on: RFC 3339, or so long ago, such as `1h` or `7d`.
    #[arg(long)]
    pub(crate) since: Option<String>,
    /// Before this time.
    #[arg(long)]
    pub(crate) until: Option<String>,
    /// At most so many; the newest.
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
        /// Of this tool.
        #[arg(long)]
        tool: Option<String>,
        /// Of this caller.
        #[arg(long)]
        caller: Option<String>,
        /// Of this call.
        #[arg(long)]
        call: Option<String>,
        /// In this state.
        #[arg(long, value_parser = ["in_flight", "awaiting_input", "succeeded", "failed", "in_doubt"])]
        state: Option<String>,
        /// Go on after this receipt.
        #[arg(long)]
        after: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        shown: Shown,
    },
    /// Settles a call of which nobody knows whether it took effect; what is said is what later
    /// calls with its key get.
    #[command(
        after_help = "Example: toolbooth receipts resolve 0192… --as succeeded --result '{\"order\": 17}'"
    )]
    Resolve {
        /// The receipt's id.
        id: String,
        /// What came of it.
        #[arg(long = "as", value_enum, value_name = "OUTCOME")]
        outcome: ResolvedAs,
        /// The result that later calls get: JSON, `@FILE`, or `-` for standard input.
        #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
        result: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Removes old records: as `[retention]` says, or those from before a time. Keys that are held
    /// stay held, and the audit log is shortened only up to a signed checkpoint.
    #[command(after_help = "Example: toolbooth receipts prune --before 90d --what logs")]
    Prune {
        /// From before this time: RFC 3339, or so long ago, such as `90d`.
        #[arg(long)]
        before: Option<String>,
        /// Of which kind.
        #[arg(long, value_enum, default_value = "receipts", requires = "before")]
        what: PruneWhat,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one receipt.
    Show {
        /// The receipt's id or its call's, or how one of them begins.
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
}
