//! Applies the rules of MCP to the arguments of a call, once its tool is known.
//!
//! Path: 4. Doc: front-doors.md#headers

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{Arguments, ToolContract};
use toolbooth_mcp::header_table::HeaderTables;
use toolbooth_proxy::ArgumentRules;

use super::headers;
use super::rpc_error::RpcError;

/// The rules of MCP for the arguments of a call. They compare the headers that repeat arguments,
/// and remove nulls that represent absent arguments. Such nulls are those of arguments that headers
/// repeat and, for a strict dialect, those that only its declaration allows.
pub(super) struct CallRules {
    /// Whether the client uses the declaration of a strict dialect.
    strict: bool,
    /// The headers that repeat arguments; `None` for a transport without headers.
    headers: Option<HeaderMap>,
    tables: Arc<HeaderTables<ToolContract>>,
    /// The mismatch between headers and arguments, as an error of the transport.
    mismatch: OnceLock<RpcError>,
}

impl CallRules {
    pub(super) fn new(
        strict: bool,
        headers: Option<HeaderMap>,
        tables: Arc<HeaderTables<ToolContract>>,
    ) -> Self {
        Self { strict, headers, tables, mismatch: OnceLock::new() }
    }

    /// Returns the mismatch between headers and arguments; `None` if they agree or were not
    /// compared. They are not compared for a tool that the caller must not know, because the answer
    /// would reveal it.
    pub(super) fn mismatch(&self) -> Option<RpcError> {
        self.mismatch.get().cloned()
    }
}

impl ArgumentRules for CallRules {
    fn apply(
        &self,
        contract: &Arc<ToolContract>,
        arguments: Arguments,
    ) -> Result<Arguments, ArgumentError> {
        let params = self.tables.of(contract, |contract| &contract.input_schema);
        if let Some(given) = &self.headers
            && let Err(error) = headers::check_params(given, &params, arguments.tree())
        {
            let (keyword, message) = ("header".to_owned(), error.message.clone());
            let _ = self.mismatch.set(error);
            return Err(ArgumentError { path: String::new(), keyword, message });
        }
        // Most calls have no nulls.
        if !self.strict && params.is_empty() || !arguments.as_str().contains("null") {
            return Ok(arguments);
        }
        Ok(arguments.changed(|tree| {
            headers::drop_nulls(&params, tree);
            if self.strict {
                *tree = without_widened_nulls(&contract.input_schema, std::mem::take(tree));
            }
        }))
    }
}
