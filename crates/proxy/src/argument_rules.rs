//! What a front door has to say of the arguments of a call, once the tool is known.
//!
//! Path: 4. Doc: call-path.md#stages

use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{Arguments, ToolContract};

/// What a front door checks or changes of arguments, as its protocol has it. The path asks it in stage 4,
/// after the gate and before the schema, and only where the caller has the permissions of the tool.
pub trait ArgumentRules: Send + Sync {
    /// The arguments that are judged, recorded and handed to the tool.
    ///
    /// # Errors
    /// What is wrong with them; the call is refused with `invalid-args`.
    fn apply(
        &self,
        contract: &ToolContract,
        arguments: Arguments,
    ) -> Result<Arguments, ArgumentError>;
}
