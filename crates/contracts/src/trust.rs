//! Trust levels of tools, which set the minimum of their containment.
//!
//! The output of a tool is never trusted; a level only concerns the actions that the tool could perform.
//!
//! Doc: policy.md#trust

use std::collections::BTreeMap;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The levels of trust in a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TrustLevel {
    /// Any behaviour of the tool must be expected, including harmful actions.
    Untrusted,
    /// The tool should be contained where that is possible.
    Sandbox,
    /// The tool runs with the gateway's own rights.
    Trusted,
    /// The tool is part of the gateway.
    Builtin,
}

impl TrustLevel {
    /// All of them, the lowest first.
    pub const ALL: [Self; 4] = [Self::Untrusted, Self::Sandbox, Self::Trusted, Self::Builtin];

    /// Returns the level that is written as `word`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "untrusted" => Some(Self::Untrusted),
            "sandbox" => Some(Self::Sandbox),
            "trusted" => Some(Self::Trusted),
            "builtin" => Some(Self::Builtin),
            _ => None,
        }
    }

    /// Returns the level as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted",
            Self::Sandbox => "sandbox",
            Self::Trusted => "trusted",
            Self::Builtin => "builtin",
        }
    }

    /// Whether tools of this level run with the gateway's own rights.
    #[must_use]
    pub fn is_free(self) -> bool {
        self >= Self::Trusted
    }
}

/// The mapping of an operator's own trust names to levels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TrustLevels(BTreeMap<String, TrustLevel>);

impl TrustLevels {
    /// Creates a mapping of the four levels and these names.
    #[must_use]
    pub fn with(words: BTreeMap<String, TrustLevel>) -> Self {
        Self(words)
    }

    /// Returns the level of a name; an unmapped name is `untrusted`.
    #[must_use]
    pub fn of(&self, word: &str) -> TrustLevel {
        let known = TrustLevel::parse(word).or_else(|| self.0.get(word).copied());
        known.unwrap_or(TrustLevel::Untrusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_a_level_is_untrusted() {
        let levels = TrustLevels::with([("vendor".to_owned(), TrustLevel::Sandbox)].into());
        assert_eq!(levels.of("vendor"), TrustLevel::Sandbox);
        assert_eq!(levels.of("trusted"), TrustLevel::Trusted);
        assert_eq!(levels.of("frobnicated"), TrustLevel::Untrusted);
    }
}
