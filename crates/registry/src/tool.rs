//! One registered tool: its contract, its compiled schemas and its digests.
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
use toolbooth_contracts::{Arguments, Guard, GuardedArguments, ToolId};

use crate::digest;
use crate::source_claims::SourceClaims;

/// The origin of a contract.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The registry file.
    File,
    /// This program: the tool is compiled in.
    Builtin,
    /// A discovery command.
    Command(String),
    /// An MCP server.
    Mcp(String),
}

impl Source {
    /// Whether the contract was made from a listing of the source. Contracts of the file and
    /// compiled-in ones were not.
    #[must_use]
    pub fn is_discovered(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Mcp(_))
    }

    /// The name in configuration; `file` or `builtin` for the sources without a name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::File => "file",
            Self::Builtin => "builtin",
            Self::Command(name) | Self::Mcp(name) => name,
        }
    }

    /// Parses the form that `Display` writes; `None` for other text.
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

/// A tool with all values that are computed once, at registration.
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
    /// The schemas converted to draft 2020-12; `None` if they need no conversion or have none.
    shown_input: Option<Value>,
    shown_output: Option<Value>,
    listing_digest: u64,
    /// The digest of the entry from which a listed tool was made.
    entry_digest: Option<String>,
}

impl RegisteredTool {
    /// A tool from an entry of either dialect.
    ///
    /// # Errors
    /// All findings of the guard, if the entry is not a valid contract.
    pub fn from_entry(
        entry: &Value,
        source: Source,
        guard: &Guard,
    ) -> Result<Self, Vec<ContractFinding>> {
        guard.examine(entry).map(|guarded| Self::new(guarded, source))
    }

    /// A tool from an entry that the guard accepted.
    #[must_use]
    pub fn new(guarded: Guarded, source: Source) -> Self {
        let Guarded { contract, warnings, input, output } = guarded;
        let contract_digest = digest::of_contract(&contract);
        let source_digest = SourceClaims::of(&contract).digest();
        // The guard refuses a contract without a target.
        let adapter =
            contract.execution.adapter().unwrap_or_else(|| AdapterId::Local(String::new()));
        let shown_input = in_2020_12(&contract.input_schema);
        let shown_output = in_2020_12(&contract.output_schema);
        let mut hasher = DefaultHasher::new();
        SourceClaims { name: String::new(), ..SourceClaims::of(&contract) }
            .digest()
            .hash(&mut hasher);
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
            entry_digest: None,
        }
    }

    /// A listed tool, from its entry with this digest.
    ///
    /// # Errors
    /// As [`RegisteredTool::from_entry`].
    pub(crate) fn listed(
        entry: &Value,
        entry_digest: String,
        source: Source,
        guard: &Guard,
    ) -> Result<Self, Vec<ContractFinding>> {
        let tool = Self::from_entry(entry, source, guard)?;
        Ok(Self { entry_digest: Some(entry_digest), ..tool })
    }

    /// Whether it is the tool of a source, made from the entry with this digest.
    pub(crate) fn is_of(&self, source: &Source, entry_digest: &str) -> bool {
        self.source == *source && self.entry_digest.as_deref() == Some(entry_digest)
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

    /// The origin of the contract.
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

    /// The *contract digest*: SHA-256 of the canonical contract, in hex.
    #[must_use]
    pub fn contract_digest(&self) -> &str {
        &self.contract_digest
    }

    /// The *source digest*: SHA-256 of the source's claims, in hex.
    #[must_use]
    pub fn source_digest(&self) -> &str {
        &self.source_digest
    }

    /// The input schema as shown to clients: in draft 2020-12 if it can be converted.
    #[must_use]
    pub fn shown_input(&self) -> &Value {
        self.shown_input.as_ref().unwrap_or(&self.contract.input_schema)
    }

    /// The output schema as shown to clients: in draft 2020-12 if it can be converted.
    #[must_use]
    pub fn shown_output(&self) -> &Value {
        self.shown_output.as_ref().unwrap_or(&self.contract.output_schema)
    }

    /// Whether the contract specifies the form of a structured result.
    #[must_use]
    pub fn declares_output(&self) -> bool {
        let schema = &self.contract.output_schema;
        let is_empty = schema.as_object().is_some_and(serde_json::Map::is_empty);
        !is_empty && *schema != Value::Bool(true)
    }

    /// A hash of title, description, schemas, annotations and extra members. It is comparable
    /// within one process only.
    #[must_use]
    pub fn listing_digest(&self) -> u64 {
        self.listing_digest
    }

    /// The warnings of the guard.
    #[must_use]
    pub fn warnings(&self) -> &[ContractFinding] {
        &self.warnings
    }

    /// Guards the arguments of a call: by their keys, the tool's bound on their size, and the input schema.
    ///
    /// # Errors
    /// The faults of the arguments; at least one.
    pub fn guard(&self, arguments: Arguments) -> Result<GuardedArguments, Vec<ArgumentError>> {
        let bytes_max = self.contract.capabilities.asset_bytes_max();
        GuardedArguments::guard(arguments, &self.input, bytes_max)
    }

    /// Whether the output schema constrains the structured result.
    #[must_use]
    pub fn judges_output(&self) -> bool {
        !self.output.accepts_everything()
    }

    /// All violations of the output schema by the structured result. `None` means that there is no
    /// structured result; only a schema that accepts everything allows that.
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
