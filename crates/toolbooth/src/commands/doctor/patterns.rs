//! `doctor`: checks that settings name known tools. A misspelled one denies, hides or logs nothing.

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::id::nearest;

use super::{Check, bad};
use crate::config::Config;
use crate::offline::OfflineGateway;

/// Returns the patterns of tools in settings, with their places.
fn patterns(config: &Config) -> Vec<(String, &ToolPattern)> {
    let mut all: Vec<(String, &ToolPattern)> = Vec::new();
    for (set, caller) in &config.callers {
        let shown = caller.tools.iter().flatten();
        all.extend(shown.map(|tool| (format!("callers.{set}.tools"), tool)));
        all.extend(caller.deny.iter().map(|tool| (format!("callers.{set}.deny"), tool)));
    }
    all.extend(
        config.policy.whitelist.iter().flatten().map(|tool| ("policy.whitelist".to_owned(), tool)),
    );
    all.extend(config.audit.tools.keys().map(|tool| ("audit.tools".to_owned(), tool)));
    all.extend(config.receipts.tools.keys().map(|tool| ("receipts.tools".to_owned(), tool)));
    all.extend(config.results.tools.keys().map(|tool| ("results.tools".to_owned(), tool)));
    all.extend(config.proxy.intents.keys().map(|tool| ("proxy.intents".to_owned(), tool)));
    all
}

/// Adds a warning for each pattern that selects no known tool.
pub(super) fn check(offline: &OfflineGateway, checks: &mut Vec<Check>) {
    let world = offline.worlds.now();
    let tools = world.registry().iter().map(|tool| tool.id().as_str());
    let known: Vec<&str> = tools.chain(world.items().iter().map(|item| item.id())).collect();
    for (setting, pattern) in patterns(&offline.loaded.config) {
        let text = pattern.as_str();
        // Others select resources, or everything.
        let is_of_tools = text != "*" && !text.contains(':');
        if !is_of_tools || known.iter().any(|id| pattern.selects(id)) {
            continue;
        }
        let name = text.strip_suffix(".*").unwrap_or(text);
        let remedy = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`toolbooth list` shows the known ones".to_owned(),
        };
        checks.push(bad(setting, "warning", format!("`{text}` selects no known tool"), remedy));
    }
}
