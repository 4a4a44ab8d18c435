//! The rules of a front door for the arguments of a call, applied once the tool is known.
//!
//! Path: 4. Doc: call-path.md#stages

use std::sync::Arc;

use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{Arguments, ToolContract};

/// Checks or changes arguments as the protocol of a front door defines. The call path applies it in
/// stage 4, after the gate and before the schema. It does so only if the caller has the permissions of
/// the tool.
pub trait ArgumentRules: Send + Sync {
    /// Returns the arguments that are judged, recorded and passed to the tool.
    ///
    /// # Errors
    /// The fault in the arguments; the call is refused with `invalid-args`.
    fn apply(
        &self,
        contract: &Arc<ToolContract>,
        arguments: Arguments,
    ) -> Result<Arguments, ArgumentError>;
}
