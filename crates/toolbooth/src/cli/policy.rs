//! The commands about rules and the lock.
//!
//! Doc: formats.md#commands

use std::path::PathBuf;

use clap::Subcommand;

use super::{Context, Shown};

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Checks the rules against all tools, and runs their cases.
    Check {
        #[command(flatten)]
        shown: Shown,
    },
    /// Explains the decision on a call, step by step; runs nothing.
    #[command(
        after_help = "Example:\n  toolbooth policy explain pay.send --args '{\"amount\": 20}' --caller key:intern"
    )]
    Explain {
        /// The tool's id, or its name on the wire.
        #[arg(required_unless_present = "call", conflicts_with = "call")]
        tool: Option<String>,
        /// A past call, by its id: its decision then and now.
        #[arg(long, value_name = "CALL_ID")]
        call: Option<String>,
        /// The arguments as JSON; `@FILE`, or `-` for standard input.
        #[arg(long, default_value = "{}")]
        args: String,
        #[command(flatten)]
        context: Box<Context>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Compares two sets of rules, rule by rule.
    #[command(
        after_help = "Examples:\n  toolbooth policy diff rules stricter-rules\n  toolbooth policy diff 15b57a02025accaa803ded9608c99b85 rules"
    )]
    Diff {
        /// The first rules: a file, a folder, or a version of the policy that was in force.
        before: String,
        /// The second rules: a file, a folder, or a version.
        after: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Judges recorded calls by other rules, and lists the decisions that would change; runs
    /// nothing.
    #[command(
        after_help = "Example:\n  toolbooth policy replay --since 7d --policy stricter-rules"
    )]
    Replay {
        /// Calls since this time: RFC 3339, or so long ago, such as 1h or 7d.
        #[arg(long, default_value = "7d", value_name = "TIME")]
        since: String,
        /// Other rules, a file or a folder; default: those of the configuration.
        #[arg(long, value_name = "FILE|FOLDER")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LockAction {
    /// Shows differences from the lock or the pins: words of texts, structure of schemas.
    Diff {
        #[command(flatten)]
        shown: Shown,
    },
    /// Approves tools as their sources describe them now: shows the changes and asks.
    Approve {
        /// Tool ids, sources (`mcp:github`) or patterns (`github.*`); `TOOL@DIGEST` approves exactly the
        /// version in the output of `lock diff`, without asking. A removed tool is deleted from the lock.
        #[arg(required = true)]
        tools: Vec<String>,
        /// Approve without asking.
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        shown: Shown,
    },
}
