//! What MCP has to say of the arguments of a call, once its tool is known.
//!
//! Path: 4. Doc: front-doors.md#headers

use std::sync::OnceLock;

use http::HeaderMap;
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{Arguments, ToolContract};
use toolbooth_mcp::header;
use toolbooth_proxy::ArgumentRules;

use super::headers;
use super::rpc_error::RpcError;

/// Compares the headers that repeat arguments, and removes nulls that stand for absent arguments: those
/// of arguments that headers repeat and, for a strict dialect, those that its declaration made possible.
pub(super) struct CallRules {
    /// Whether the client has the declaration of a strict dialect.
    strict: bool,
    /// The headers that repeat arguments; `None` where the transport has none.
    headers: Option<HeaderMap>,
    /// What the headers disagree in, as the transport tells it.
    mismatch: OnceLock<RpcError>,
}

impl CallRules {
    pub(super) fn new(strict: bool, headers: Option<HeaderMap>) -> Self {
        Self { strict, headers, mismatch: OnceLock::new() }
    }

    /// What the headers disagree in with the arguments; `None` where they agree, or were not compared,
    /// because the caller may not know the tool: the answer would reveal it.
    pub(super) fn mismatch(&self) -> Option<RpcError> {
        self.mismatch.get().cloned()
    }
}

impl ArgumentRules for CallRules {
    fn apply(
        &self,
        contract: &ToolContract,
        arguments: Arguments,
    ) -> Result<Arguments, ArgumentError> {
        let schema = &contract.input_schema;
        let is_annotated = header::is_annotated(schema);
        if is_annotated
            && let Some(given) = &self.headers
            && let Err(error) = headers::check_params(given, schema, arguments.tree())
        {
            let (keyword, message) = ("header".to_owned(), error.message.clone());
            let _ = self.mismatch.set(error);
            return Err(ArgumentError { path: String::new(), keyword, message });
        }
        // Most calls have none.
        if !(self.strict || is_annotated) || !arguments.as_str().contains("null") {
            return Ok(arguments);
        }
        Ok(arguments.changed(|tree| {
            headers::drop_nulls(schema, tree);
            if self.strict {
                *tree = without_widened_nulls(schema, std::mem::take(tree));
            }
        }))
    }
}
