//! The shapes by which secrets are recognised.
//!
//! Doc: records.md#redaction

use toolbooth_adapters::secret_rules;
use toolbooth_adapters::secrets::given_secrets;
use toolbooth_contracts::secret::SecretShapes;

/// Returns the shapes that recognise secrets: the neutral shapes and a maintained set of rules.
pub(crate) fn shapes() -> SecretShapes {
    SecretShapes::with([secret_rules::shapes()])
}

/// Returns the shapes that redact records: those of [`shapes`], and the values that tools were given.
pub(crate) fn of_records() -> SecretShapes {
    SecretShapes::with([given_secrets(), secret_rules::shapes()])
}
