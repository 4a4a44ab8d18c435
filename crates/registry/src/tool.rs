//! A tool as it stands in the registry: its contract, its compiled schemas, its digests.
//!
//! Path: 3. Doc: registry.md#in-memory

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::finding::ContractFinding;
use toolbooth_contracts::guard::Guarded;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::schema::CompiledSchema;
use toolbooth_contracts::schema_dialect::in_2020_12;
use toolbooth_contracts::{Guard, ToolId};

use crate::digest;
use crate::said::Said;

/// Where a contract comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The registry file.
    File,
    /// Compiled in.
    Builtin,
    /// A discovery command.
    Command(String),
    /// An MCP server.
    Mcp(String),
}

impl Source {
    /// Whether an operator wrote the contract, as against a source that was asked for its tools.
    #[must_use]
    pub fn is_discovered(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Mcp(_))
    }

    /// The name in configuration; the kind where there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::File => "file",
            Self::Builtin => "builtin",
            Self::Command(name) | Self::Mcp(name) => name,
        }
    }

    /// The source that is written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match (text, text.split_once(':')) {
            ("file", _) => Some(Self::File),
            ("builtin", _) => Some(Self::Builtin),
            (_, Some(("command", name))) => Some(Self::Command(name.to_owned())),
            (_, Some(("mcp", name))) => Some(Self::Mcp(name.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Builtin => f.write_str("builtin"),
            Self::Command(name) => write!(f, "command:{name}"),
            Self::Mcp(name) => write!(f, "mcp:{name}"),
        }
    }
}

/// A tool with everything that is worked out once, when it is registered.
#[derive(Debug)]
pub struct RegisteredTool {
    contract: Arc<ToolContract>,
    source: Source,
    input: CompiledSchema,
    output: CompiledSchema,
    adapter: AdapterId,
    contract_digest: String,
    source_digest: String,
    warnings: Vec<ContractFinding>,
    /// The schemas in draft 2020-12, where they are in an older one.
    shown_input: Option<Value>,
    shown_output: Option<Value>,
    listing_digest: u64,
}

impl RegisteredTool {
    /// A tool from an entry of either dialect.
    ///
    /// # Errors
    /// Every finding of the guard, where the entry is no contract.
    pub fn from_entry(
        entry: &Value,
        source: Source,
        guard: &Guard,
    ) -> Result<Self, Vec<ContractFinding>> {
        guard.examine(entry).map(|guarded| Self::new(guarded, source))
    }

    /// A tool from what the guard has passed.
    #[must_use]
    pub fn new(guarded: Guarded, source: Source) -> Self {
        let Guarded { contract, warnings, input, output } = guarded;
        let contract_digest = digest::of_contract(&contract);
        let source_digest = Said::of(&contract).digest();
        // The guard refuses a contract without a target.
        let adapter =
            contract.execution.adapter().unwrap_or_else(|| AdapterId::Local(String::new()));
        let shown_input = in_2020_12(&contract.input_schema);
        let shown_output = in_2020_12(&contract.output_schema);
        let mut hasher = DefaultHasher::new();
        Said { name: String::new(), ..Said::of(&contract) }.digest().hash(&mut hasher);
        let listing_digest = hasher.finish();
        Self {
            contract: Arc::new(contract),
            source,
            input,
            output,
            adapter,
            contract_digest,
            source_digest,
            warnings,
            shown_input,
            shown_output,
            listing_digest,
        }
    }

    /// The tool's id.
    #[must_use]
    pub fn id(&self) -> &ToolId {
        &self.contract.tool_id
    }

    /// The contract.
    #[must_use]
    pub fn contract(&self) -> &Arc<ToolContract> {
        &self.contract
    }

    /// Where the contract comes from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The name of the target's owner: runtime, server or endpoint.
    #[must_use]
    pub fn target_owner(&self) -> &str {
        match &self.adapter {
            AdapterId::Local(name) | AdapterId::Mcp(name) | AdapterId::Endpoint(name) => name,
        }
    }

    /// The tool's name at its target.
    #[must_use]
    pub fn target(&self) -> &str {
        self.contract.execution.target.as_deref().unwrap_or(self.contract.tool_id.as_str())
    }

    /// Whether both call the same tool of the same owner.
    #[must_use]
    pub fn same_target(&self, other: &Self) -> bool {
        self.adapter == other.adapter && self.target() == other.target()
    }

    /// The adapter that serves the tool.
    #[must_use]
    pub fn adapter(&self) -> &AdapterId {
        &self.adapter
    }

    /// SHA-256 of the canonical contract, in hex.
    #[must_use]
    pub fn contract_digest(&self) -> &str {
        &self.contract_digest
    }

    /// SHA-256 of what the source says, in hex.
    #[must_use]
    pub fn source_digest(&self) -> &str {
        &self.source_digest
    }

    /// The input schema as clients are shown it: in draft 2020-12.
    #[must_use]
    pub fn shown_input(&self) -> &Value {
        self.shown_input.as_ref().unwrap_or(&self.contract.input_schema)
    }

    /// The output schema as clients are shown it: in draft 2020-12.
    #[must_use]
    pub fn shown_output(&self) -> &Value {
        self.shown_output.as_ref().unwrap_or(&self.contract.output_schema)
    }

    /// Tells apart what clients are listed of tools: title, description, schemas, hints and the
    /// rest. For comparisons within one process.
    #[must_use]
    pub fn listing_digest(&self) -> u64 {
        self.listing_digest
    }

    /// What the guard warned of.
    #[must_use]
    pub fn warnings(&self) -> &[ContractFinding] {
        &self.warnings
    }

    /// Everything that is wrong with the arguments, by the input schema.
    #[must_use]
    pub fn argument_errors(&self, arguments: &Value) -> Vec<ArgumentError> {
        self.input.errors(arguments)
    }

    /// Everything that is wrong with the structured result, by the output schema; `None` stands
    /// for an absent one, which only a schema of `{}` accepts.
    #[must_use]
    pub fn output_errors(&self, structured: Option<&Value>) -> Vec<ArgumentError> {
        match structured {
            _ if self.output.accepts_everything() => Vec::new(),
            Some(value) => self.output.errors(value),
            None => vec![ArgumentError {
                path: String::new(),
                keyword: "structuredContent".to_owned(),
                message: "the tool declares an output schema and gave no structured content"
                    .to_owned(),
            }],
        }
    }
}
