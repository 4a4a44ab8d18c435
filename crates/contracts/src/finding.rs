//! Findings of the guard about an entry: a stable code, a location, and a sentence.
//!
//! Doc: contract.md#codes

use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! contract_codes {
    ($($(#[doc = $doc:literal])+ $name:ident $code:literal;)+) => {
        /// The kind of a finding about an entry; stable, in kebab-case, append-only.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schemars", derive(JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum ContractCode {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ContractCode {
            /// All codes, in the order in which the guard checks them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the code as it is written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }
        }
    };
}

contract_codes! {
    /// The entry is not an object, or a text field is not text.
    InvalidRoot "invalid-root";
    /// A value that the JSON gate rejects.
    NotJsonSafe "not-json-safe";
    /// A key that names a secret, or a value that is one.
    ForbiddenSecretField "forbidden-secret-field";
    /// One field in two spellings.
    AmbiguousField "ambiguous-field";
    /// The id is missing, blank, too long, or has other characters.
    InvalidToolId "invalid-tool-id";
    /// The category is not one of the six.
    InvalidCategory "invalid-category";
    /// The input schema is not an object, does not compile, or leaves the document.
    InvalidInputSchema "invalid-input-schema";
    /// The output schema is not an object, does not compile, or leaves the document.
    InvalidOutputSchema "invalid-output-schema";
    /// The capabilities are not an object.
    InvalidCapabilities "invalid-capabilities";
    /// The locales are not a list of texts.
    InvalidCapabilitiesLocales "invalid-capabilities-locales";
    /// The media types are not a list of texts.
    InvalidCapabilitiesMediaTypes "invalid-capabilities-media-types";
    /// A limit is not a number of at least 0.
    InvalidCapabilitiesLimit "invalid-capabilities-limit";
    /// The execution is not an object.
    InvalidExecution "invalid-execution";
    /// A target is blank or not text.
    InvalidExecutionField "invalid-execution-field";
    /// The execution names no target.
    MissingExecutionTarget "missing-execution-target";
    /// The policy is not an object.
    InvalidPolicy "invalid-policy";
    /// The timeout is not a whole number above 0.
    InvalidPolicyTimeout "invalid-policy-timeout";
    /// The rate limit is not a whole number of at least 0.
    InvalidPolicyRateLimit "invalid-policy-rate-limit";
    /// The cost tier is blank or not text.
    InvalidPolicyCostTier "invalid-policy-cost-tier";
    /// The trust level is blank or not text.
    InvalidPolicyTrustLevel "invalid-policy-trust-level";
    /// The concurrency is not a whole number above 0.
    InvalidPolicyConcurrency "invalid-policy-concurrency";
    /// The approval is not `never` or `always`.
    InvalidPolicyApproval "invalid-policy-approval";
    /// Another field of the policy has the wrong type.
    InvalidPolicyField "invalid-policy-field";
    /// A permission is not `verb:resource`.
    InvalidPermission "invalid-permission";
    /// The mode is not one of the four.
    InvalidIdempotencyMode "invalid-idempotency-mode";
    /// A keyed tool names no key field.
    MissingKeyField "missing-key-field";
    /// The key field is not a property of the input schema.
    UnknownKeyField "unknown-key-field";
    /// Another field of the idempotency has the wrong type.
    InvalidIdempotencyField "invalid-idempotency-field";
    /// A receipt field is not a dotted path from `result`.
    InvalidReceiptField "invalid-receipt-field";
    /// The sandbox profile is not valid.
    InvalidSandbox "invalid-sandbox";
    /// A near miss of a known key.
    MisspelledField "misspelled-field";
    /// A key that this version does not know (warning).
    UnknownField "unknown-field";
    /// There is no description (warning).
    MissingDescription "missing-description";
}

impl fmt::Display for ContractCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a finding rejects the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The finding rejects the entry.
    Error,
    /// The finding does not reject the entry.
    Warning,
}

/// The reason why an entry is not a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[error("{path}: {message} ({code})")]
pub struct ContractError {
    /// The code.
    pub code: ContractCode,
    /// The place, dotted, relative to the entry; the entry itself is `root`.
    pub path: String,
    /// The expected and the found form; never a secret's value.
    pub message: String,
}

/// One finding of the guard about an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct ContractFinding {
    /// Whether it rejects the entry.
    pub severity: Severity,
    /// The code.
    pub code: ContractCode,
    /// The place, dotted, relative to the entry; the entry itself is `root`.
    pub path: String,
    /// The expected and the found form; never a secret's value.
    pub message: String,
    /// A hint for the correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl From<ContractFinding> for ContractError {
    fn from(finding: ContractFinding) -> Self {
        Self { code: finding.code, path: finding.path, message: finding.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_agree_with_serde() {
        for code in ContractCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }

    #[test]
    fn golden_list_of_codes_only_grows() {
        let golden: Vec<&str> = include_str!("../golden/contract-codes.txt").lines().collect();
        let now: Vec<&str> = ContractCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(golden, now, "codes are append-only; add new ones to golden/contract-codes.txt");
    }
}
