//! The command line: what can be said.
//!
//! Doc: formats.md#commands

mod records;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use records::{
    Audit, EventFilterArgs, EventFormat, ExportFormat, LogFilterArgs, Logs, PruneWhat, Receipts,
    ResolvedAs, Store,
};

use crate::import::secrets::SecretPlace;
use crate::output::Format;

/// The gateway every AI-agent tool call passes through.
#[derive(Debug, Parser)]
#[command(
    name = "toolbooth",
    version,
    about,
    max_term_width = 100,
    after_help = "\
Examples:
  toolbooth init                                   write a commented configuration
  toolbooth serve                                  start the gateway on the loopback address
  toolbooth call calculator --args '{\"expression\": \"2^10\"}'
  toolbooth audit verify                           re-compute every digest of the records"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The configuration file; else `toolbooth.toml`, looked for upwards from here.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The data folder; else `.toolbooth` beside the configuration.
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// The configuration that is trusted for this run, whatever is in it; it must be the one that is
    /// used. `TOOLBOOTH_TRUST` names one too.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Shown {
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Context {
    /// What the agent calls itself.
    #[arg(long, default_value = "cli")]
    pub(crate) agent: String,
    /// The agent's turn.
    #[arg(long)]
    pub(crate) turn: Option<u64>,
    /// A phase of the agent's work.
    #[arg(long)]
    pub(crate) phase: Option<String>,
    /// A larger piece of work.
    #[arg(long)]
    pub(crate) epic: Option<String>,
    /// The call's id.
    #[arg(long)]
    pub(crate) call_id: Option<String>,
    /// An explicit idempotency key.
    #[arg(long)]
    pub(crate) idempotency_key: Option<String>,
    /// As whom to call: `local`, or a name from `[callers]`.
    #[arg(long, default_value = "local")]
    pub(crate) caller: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a commented `toolbooth.toml` and an empty registry into this folder.
    Init,
    /// Shows what a configuration starts, reads and reaches, and trusts it if somebody says yes.
    #[command(
        after_help = "Examples:\n  toolbooth trust                  the configuration of this folder\n  toolbooth trust clone/ --show    what it starts; trusts nothing"
    )]
    Trust {
        /// A configuration, or its folder; else the one that is used here.
        path: Option<PathBuf>,
        /// Trust it without a question.
        #[arg(long, short, conflicts_with_all = ["show", "forget", "list"])]
        yes: bool,
        /// Only show it; exit code 1 if it is not trusted.
        #[arg(long, conflicts_with_all = ["forget", "list"])]
        show: bool,
        /// Forget that it is trusted.
        #[arg(long, conflicts_with = "list")]
        forget: bool,
        /// Print the configurations that are trusted.
        #[arg(long, conflicts_with = "path")]
        list: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Checks a registry file, and tells everything that is wrong with it.
    #[command(after_help = "Example: toolbooth check tools.registry.json --format json")]
    Check {
        /// The file; else the configured one.
        file: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Lists the tools that a caller may see.
    List {
        /// As whom to look.
        #[arg(long, default_value = "local")]
        caller: String,
        /// At most so many.
        #[arg(long)]
        limit: Option<usize>,
        /// Go on after this tool id.
        #[arg(long)]
        after: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Finds tools by words: what they are called, what they do, what they take.
    #[command(after_help = "Example: toolbooth search 'send a message' --limit 5")]
    Search {
        /// What to look for.
        query: String,
        /// As whom to look.
        #[arg(long, default_value = "local")]
        caller: String,
        /// At most so many.
        #[arg(long, default_value_t = 10)]
        limit: usize,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one tool: its contract, where it comes from, whether it can run.
    Show {
        /// The tool, by its id or its name on the wire.
        tool: String,
        /// As whom to look.
        #[arg(long, default_value = "local")]
        caller: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Runs one call through the whole path.
    #[command(
        after_help = "Example: toolbooth call read_file --args '{\"path\": \"README.md\"}' --explain"
    )]
    Call {
        /// The tool, by its id or its name on the wire.
        tool: String,
        /// The arguments: JSON, `@FILE`, or `-` for standard input.
        #[arg(long, default_value = "{}", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
        args: String,
        #[command(flatten)]
        context: Context,
        /// Tell what each stage did, with its time.
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Runs a plan: several calls with their order.
    #[command(after_help = "Example: toolbooth plan '{\"tools\": [\"a\", \"b\"]}'")]
    Plan {
        /// The plan: JSON, a file, or `-` for standard input.
        #[arg(value_name = "JSON|FILE|-", allow_hyphen_values = true)]
        plan: String,
        /// As whom to call.
        #[arg(long, default_value = "local")]
        caller: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Serves MCP and HTTP on the loopback address.
    #[command(after_help = "Example: toolbooth serve --http 127.0.0.1:0")]
    Serve {
        /// Where to listen; else `http.listen` of the configuration, else 127.0.0.1:7717.
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
    },
    /// Serves MCP over standard input and output.
    #[command(after_help = "Examples:\n  toolbooth stdio\n  toolbooth stdio --toolset reading")]
    Stdio {
        /// The tool set to serve (`[toolsets.NAME]`) instead of everything.
        #[arg(long, value_name = "NAME")]
        toolset: Option<String>,
    },
    /// Runs asynchronous calls that others have handed over, until it is told to stop.
    #[command(after_help = "Example: toolbooth worker --at-once 8")]
    Worker {
        /// Calls at once.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
        at_once: u32,
    },
    /// Asks the configured sources for their tools, and prints the contracts.
    #[command(
        after_help = "Examples:\n  toolbooth discover\n  toolbooth discover --source mcp:files --write"
    )]
    Discover {
        /// Only this source, such as `mcp:files`; may be given more than once.
        #[arg(long, value_name = "SOURCE")]
        source: Vec<String>,
        /// Write the contracts that the registry file does not have into it, for review.
        #[arg(long)]
        write: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Writes down what servers and commands say of their tools; what changes later is not used
    /// until it is approved.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  toolbooth lock                 write the lock file, the first time\n  toolbooth lock diff            what has changed since\n  toolbooth lock approve files.read_file\n  toolbooth lock approve mcp:files --yes"
    )]
    Lock {
        #[command(subcommand)]
        action: Option<LockAction>,
        /// Approve every change too.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Takes over the servers of an MCP client, or the operations of an OpenAPI document.
    #[command(
        subcommand,
        after_help = "Examples:\n  toolbooth import claude                 servers of .mcp.json or ~/.claude.json\n  toolbooth import vscode --install       and point the editor at Toolbooth\n  toolbooth import claude --secrets env   and take secrets from variables\n  toolbooth import openapi api.yaml --endpoint shop --write"
    )]
    Import(Import),
    /// Prints declarations in a provider's form.
    #[command(after_help = "Example: toolbooth export --for gemini > declarations.json")]
    Export {
        /// The form.
        #[arg(long = "for", alias = "format", value_enum, value_name = "FORM")]
        form: Form,
        /// Every property required, for the forms that have a strict mode.
        #[arg(long)]
        strict: bool,
        /// As whom to look.
        #[arg(long, default_value = "local")]
        caller: String,
    },
    /// Tells for every tool whether it can really run.
    Coverage {
        /// Fail when this file is not what would be printed.
        #[arg(long, value_name = "FILE")]
        check: Option<PathBuf>,
        /// Really connect.
        #[arg(long)]
        probe: bool,
        /// How to print.
        #[arg(long, value_enum)]
        format: Option<CoverageFormat>,
    },
    /// Reads and verifies the audit log.
    #[command(subcommand)]
    Audit(Audit),
    /// Reads the agent logs.
    #[command(subcommand)]
    Logs(Logs),
    /// Reads the receipts, settles doubts, removes what is old.
    #[command(subcommand)]
    Receipts(Receipts),
    /// Copies and puts back the records.
    #[command(subcommand)]
    Store(Store),
    /// Finds out what is wrong with the set-up, and says what to do.
    Doctor {
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// `.mcp.json`, `~/.claude.json` (also this folder's project), `claude_desktop_config.json`.
    Claude(ClientArgs),
    /// `.gemini/settings.json`, its discovery and call commands included.
    Gemini(ClientArgs),
    /// `.cursor/mcp.json`.
    Cursor(ClientArgs),
    /// `.vscode/mcp.json`.
    Vscode(ClientArgs),
    /// `~/.codex/config.toml`.
    Codex(ClientArgs),
    /// Operations of an OpenAPI 3 document, as contracts of endpoint tools.
    Openapi {
        /// The document, JSON or YAML.
        file: PathBuf,
        /// The name of the endpoint: tools are called `NAME.OPERATION`.
        #[arg(long, value_name = "NAME")]
        endpoint: String,
        /// Write them into the registry file instead of printing them.
        #[arg(long)]
        write: bool,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// The client's file; else the usual places.
    pub(crate) file: Option<PathBuf>,
    /// Replace the servers that answered by Toolbooth in the client's file; it is copied first.
    #[arg(long, conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) install: bool,
    /// Bring the client's file back as it was before `--install`.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) undo: bool,
    /// Only say what would be done; starts no server.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Start no server to see which tools it lists.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) no_try: bool,
    /// Trust and start what is imported without a question.
    #[arg(long, short, conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) yes: bool,
    /// Replace the servers that did not answer too.
    #[arg(long, requires = "install")]
    pub(crate) force: bool,
    /// Where secrets and other values of the client's file go; else the key ring, or files of mode 0600.
    #[arg(long, value_enum, value_name = "PLACE", conflicts_with = "undo")]
    pub(crate) secrets: Option<SecretPlace>,
    #[command(flatten)]
    pub(crate) shown: Shown,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LockAction {
    /// Shows what differs from the lock or the pins: words of texts, structure of schemas.
    Diff {
        #[command(flatten)]
        shown: Shown,
    },
    /// Approves tools as their sources describe them now: shows the changes, and asks.
    Approve {
        /// Tools by id, a source (`mcp:github`), or a pattern (`github.*`); `TOOL@DIGEST` approves
        /// exactly what `lock diff` has shown, without asking. A tool that is gone is forgotten.
        #[arg(required = true)]
        tools: Vec<String>,
        /// Approve without asking.
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Gemini,
    Openai,
    OpenaiResponses,
    Anthropic,
    Mcp,
    Registry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CoverageFormat {
    Table,
    Json,
    Md,
}
