//! How far a tool is believed to keep to itself: the floor of its containment.
//!
//! What a tool says is never believed; this is about what it could do.
//!
//! Doc: policy.md#trust

use std::collections::BTreeMap;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The levels that mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TrustLevel {
    /// Anything may be behind it.
    Untrusted,
    /// It should be contained where that is possible.
    Sandbox,
    /// It runs as the gateway does.
    Trusted,
    /// It is the gateway's own.
    Builtin,
}

impl TrustLevel {
    /// The level that is written as `word`.
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

    /// Whether tools of this level run as the gateway does.
    #[must_use]
    pub fn is_free(self) -> bool {
        self >= Self::Trusted
    }
}

/// What an operator's own words for trust mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustLevels(BTreeMap<String, TrustLevel>);

impl TrustLevels {
    /// The four levels, and these words.
    #[must_use]
    pub fn with(words: BTreeMap<String, TrustLevel>) -> Self {
        Self(words)
    }

    /// The level of a word; one that nobody mapped is `untrusted`.
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
    fn a_word_that_nobody_mapped_is_untrusted() {
        let levels = TrustLevels::with([("vendor".to_owned(), TrustLevel::Sandbox)].into());
        assert_eq!(levels.of("vendor"), TrustLevel::Sandbox);
        assert_eq!(levels.of("trusted"), TrustLevel::Trusted);
        assert_eq!(levels.of("frobnicated"), TrustLevel::Untrusted);
    }
}
