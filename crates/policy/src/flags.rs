//! The two switches: whether tools may be called, and whether the whitelist is enforced.
//!
//! Path: 3. Doc: policy.md#flags

use serde::{Deserialize, Serialize};

use crate::error::SettingError;

/// The two switches. Both are off by default: tools cannot be called. [`FeatureFlags::ON`] allows calls and enforces the
/// whitelist; `mcp_tools` alone allows calls and enforces none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureFlags {
    /// Whether tools may be called.
    pub mcp_tools: bool,
    /// Whether the whitelist is enforced.
    pub tools_policy: bool,
}

/// Parses the value of a switch; `None` for another text.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "on" => Some(true),
        "0" | "false" | "off" => Some(false),
        _ => None,
    }
}

impl FeatureFlags {
    /// Both switches on.
    pub const ON: Self = Self { mcp_tools: true, tools_policy: true };

    /// Returns the flags, overridden by the environment variables that are set.
    ///
    /// # Errors
    /// [`SettingError::Switch`].
    pub fn overridden(
        mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        for (name, flag) in
            [("MCP_TOOLS", &mut self.mcp_tools), ("TOOLS_POLICY", &mut self.tools_policy)]
        {
            if let Some(text) = variable(name) {
                *flag = switch(&text).ok_or(SettingError::Switch { name })?;
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_wins_and_nonsense_is_refused() {
        let set = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        assert_eq!(FeatureFlags::default(), FeatureFlags { mcp_tools: false, tools_policy: false });
        assert!(FeatureFlags::default().overridden(set("MCP_TOOLS", "on")).unwrap().mcp_tools);
        assert!(
            !FeatureFlags { mcp_tools: true, tools_policy: true }
                .overridden(set("TOOLS_POLICY", "0"))
                .unwrap()
                .tools_policy
        );
        let error = FeatureFlags::default().overridden(set("MCP_TOOLS", "yes")).unwrap_err();
        assert!(error.to_string().contains("MCP_TOOLS"), "{error}");
        for other in ["", "TRUE", "On", " 1"] {
            assert!(
                FeatureFlags::default().overridden(set("MCP_TOOLS", other)).is_err(),
                "{other}"
            );
        }
    }
}
