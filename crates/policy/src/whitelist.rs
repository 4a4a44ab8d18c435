//! The whitelist: the tools that may be called, independent of the caller.
//!
//! Path: 3. Doc: policy.md#whitelist

use serde::Serialize;
use toolbooth_contracts::ToolPattern;

use crate::error::SettingError;

/// The set of tools that may be called. The default allows all registered tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Whitelist(Option<Vec<ToolPattern>>);

impl Whitelist {
    /// Allows all registered tools.
    #[must_use]
    pub fn all() -> Self {
        Self(None)
    }

    /// Allows exactly the tools that a pattern selects; without patterns, it allows no tool.
    #[must_use]
    pub fn only(patterns: Vec<ToolPattern>) -> Self {
        Self(Some(patterns))
    }

    /// Parses a comma-separated list: blanks are trimmed, empty items ignored, `domain.*` allowed. An
    /// empty list allows no tool.
    ///
    /// # Errors
    /// [`SettingError::Pattern`], for the first item that is not a pattern.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| ToolPattern::try_from(item.to_owned()).map_err(SettingError::from))
            .collect::<Result<Vec<_>, _>>()
            .map(Self::only)
    }

    /// Whether the whitelist allows the tool.
    #[must_use]
    pub fn allows(&self, tool_id: &str) -> bool {
        self.0.as_ref().is_none_or(|patterns| patterns.iter().any(|p| p.selects(tool_id)))
    }

    /// Returns the patterns; `None` = all tools.
    #[must_use]
    pub fn patterns(&self) -> Option<&[ToolPattern]> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_people_write_them() {
        let list = Whitelist::parse(" calculator , files.* ,, ").unwrap();
        assert!(
            list.allows("calculator") && list.allows("files.read") && !list.allows("mail.send")
        );
        assert!(
            !Whitelist::parse(" , ").unwrap().allows("calculator"),
            "names none: nothing is allowed"
        );
        assert!(Whitelist::all().allows("anything"));
        assert!(Whitelist::parse("a b").is_err());
    }
}
