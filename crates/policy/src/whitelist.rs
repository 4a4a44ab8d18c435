//! The whitelist: which tools may be called by anybody.
//!
//! Path: 3. Doc: policy.md#whitelist

use toolbooth_contracts::ToolPattern;

use crate::error::SettingError;

/// Which tools may be called. The default allows all that is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whitelist(Option<Vec<ToolPattern>>);

impl Whitelist {
    /// All registered tools.
    #[must_use]
    pub fn all() -> Self {
        Self(None)
    }

    /// Exactly the tools that a pattern selects; none where there are no patterns.
    #[must_use]
    pub fn only(patterns: Vec<ToolPattern>) -> Self {
        Self(Some(patterns))
    }

    /// A comma-separated list: blanks are trimmed, empty items ignored, `domain.*` allowed. A
    /// list that names nothing allows nothing.
    ///
    /// # Errors
    /// [`SettingError::Pattern`], for the first item that is no pattern.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| ToolPattern::try_from(item.to_owned()).map_err(SettingError::from))
            .collect::<Result<Vec<_>, _>>()
            .map(Self::only)
    }

    /// Whether the tool is on it.
    #[must_use]
    pub fn allows(&self, tool_id: &str) -> bool {
        self.0.as_ref().is_none_or(|patterns| patterns.iter().any(|p| p.selects(tool_id)))
    }

    /// The patterns; `None` = all tools.
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
