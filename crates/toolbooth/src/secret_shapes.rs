//! By what secrets are known.
//!
//! Doc: records.md#redaction

use toolbooth_adapters::secret_rules;
use toolbooth_adapters::secrets::given_secrets;
use toolbooth_contracts::secret::SecretShapes;

/// By what secrets are known: the neutral shapes and a maintained set of rules.
pub(crate) fn shapes() -> SecretShapes {
    SecretShapes::with([secret_rules::shapes()])
}

/// By what secrets are kept out of records: the same, and the values that tools were given.
pub(crate) fn of_records() -> SecretShapes {
    SecretShapes::with([given_secrets(), secret_rules::shapes()])
}
