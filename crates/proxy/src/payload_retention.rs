//! Determines which payloads are stored for each tool: in agent logs, and in receipts for replay.
//!
//! Path: 9. Doc: records.md#payloads

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::agent_log::LogLevel;

/// The form of a result that a receipt stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Results {
    /// The result, so that a replay returns it again.
    #[default]
    Keep,
    /// Its digest; a replay states that the result was not stored.
    Digest,
}

/// When a tool starts, after its call is judged, charged and claimed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// After the claim is durable.
    #[default]
    Durable,
    /// At once, for calls without a key of tools that an operator marked `readOnly`.
    Relaxed,
}

/// Determines which payloads are stored for each tool.
#[derive(Debug, Clone, Default)]
pub struct PayloadRetention {
    log: PerTool<LogLevel>,
    results: PerTool<Results>,
    inline_bytes: PerTool<usize>,
    intent: PerTool<Intent>,
}

#[derive(Debug, Clone, Default)]
struct PerTool<T> {
    standard: T,
    /// Narrower patterns come first.
    tools: Vec<(ToolPattern, T)>,
}

impl<T: Copy> PerTool<T> {
    fn new(standard: T, mut tools: Vec<(ToolPattern, T)>) -> Self {
        // An id is narrower than a pattern, a longer pattern narrower than a shorter one.
        tools.sort_by_key(|(pattern, _)| {
            let text = pattern.as_str();
            (text.ends_with('*'), std::cmp::Reverse(text.len()))
        });
        Self { standard, tools }
    }

    fn of(&self, tool: &str) -> T {
        let own = self.tools.iter().find(|(pattern, _)| pattern.selects(tool));
        own.map_or(self.standard, |(_, own)| *own)
    }
}

impl PayloadRetention {
    /// Sets the level of the agent log: for all tools, and for those that patterns select.
    #[must_use]
    pub fn with_log(self, standard: LogLevel, tools: Vec<(ToolPattern, LogLevel)>) -> Self {
        Self { log: PerTool::new(standard, tools), ..self }
    }

    /// Sets the form of stored results: for all tools, and for those that patterns select.
    #[must_use]
    pub fn with_results(self, standard: Results, tools: Vec<(ToolPattern, Results)>) -> Self {
        Self { results: PerTool::new(standard, tools), ..self }
    }

    /// Sets the bytes of text above which an agent gets the beginning of a result and a link; 0 =
    /// never. Applies to all tools, with other values for those that patterns select.
    #[must_use]
    pub fn with_inline_bytes(self, standard: usize, tools: Vec<(ToolPattern, usize)>) -> Self {
        Self { inline_bytes: PerTool::new(standard, tools), ..self }
    }

    /// Sets when tools start: all, and those that patterns select. It applies to calls without a key of
    /// tools that an operator marked `readOnly`. Others start after their claim is durable.
    #[must_use]
    pub fn with_intent(self, standard: Intent, tools: Vec<(ToolPattern, Intent)>) -> Self {
        Self { intent: PerTool::new(standard, tools), ..self }
    }

    pub(crate) fn intent(&self, tool: &str) -> Intent {
        self.intent.of(tool)
    }

    pub(crate) fn inline_bytes(&self, tool: &str) -> usize {
        self.inline_bytes.of(tool)
    }

    pub(crate) fn log(&self, tool: &str) -> LogLevel {
        self.log.of(tool)
    }

    pub(crate) fn results(&self, tool: &str) -> Results {
        self.results.of(tool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrower_pattern_decides() {
        let pattern = |text: &str| ToolPattern::try_from(text.to_owned()).unwrap();
        let retention = PayloadRetention::default().with_log(
            LogLevel::Full,
            vec![
                (pattern("*"), LogLevel::None),
                (pattern("mail.*"), LogLevel::Digest),
                (pattern("mail.send"), LogLevel::Full),
            ],
        );
        assert_eq!(retention.log("mail.send"), LogLevel::Full);
        assert_eq!(retention.log("mail.read"), LogLevel::Digest);
        assert_eq!(retention.log("other"), LogLevel::None);
        assert_eq!(retention.results("other"), Results::Keep);
    }
}
