//! Reads a set of rules from the document of a policy that was in force.
//!
//! Doc: policy.md#versions

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use toolbooth_contracts::ToolPattern;

use super::history::{HistoryWindow, HistoryWindows, Within};
use super::set::RuleSet;
use super::source::RuleFile;
use crate::error::RecordedRulesError;

/// The rules of a policy, as its document states them.
#[derive(Deserialize)]
struct RecordedRules {
    language: String,
    files: Vec<RecordedFile>,
    windows: BTreeMap<String, RecordedWindow>,
}

#[derive(Deserialize)]
struct RecordedFile {
    name: String,
    text: String,
    cases: Option<RecordedCases>,
}

#[derive(Deserialize)]
struct RecordedCases {
    name: String,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordedWindow {
    tool: ToolPattern,
    window_ms: u64,
    sum: Option<String>,
    within: Within,
}

impl RuleSet {
    /// Reads the rules of a policy from its document ([`crate::Authorizer::bundle`]). A policy without rules
    /// has an empty set.
    ///
    /// # Errors
    /// [`RecordedRulesError`].
    pub fn of_bundle(bundle: &Value) -> Result<Arc<Self>, RecordedRulesError> {
        let rules = match bundle.get("rules") {
            None | Some(Value::Null) => None,
            Some(rules) => {
                Some(RecordedRules::deserialize(rules).map_err(RecordedRulesError::Form)?)
            }
        };
        let Some(RecordedRules { language, files, windows }) = rules else {
            return Self::read(&[], &HistoryWindows::default()).map_err(RecordedRulesError::Rules);
        };
        if language != "cedar" {
            return Err(RecordedRulesError::Language(language));
        }
        let file = |RecordedFile { name, text, cases }| {
            let cases = cases.map(|RecordedCases { name, text }| (name, text));
            RuleFile { name, text, cases }
        };
        let files: Vec<RuleFile> = files.into_iter().map(file).collect();
        let window = |(name, own): (String, RecordedWindow)| {
            let RecordedWindow { tool, window_ms, sum, within } = own;
            (name, HistoryWindow { tool, length: Duration::from_millis(window_ms), sum, within })
        };
        let windows = HistoryWindows::new(windows.into_iter().map(window).collect());
        let windows = windows.map_err(RecordedRulesError::Window)?;
        Self::read_all(&files, &windows, true).map_err(RecordedRulesError::Rules)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::PolicyEngine;

    #[test]
    fn a_recorded_set_is_read_as_it_was_in_force() {
        let text = "@id(\"all\") permit (principal, action, resource) \
                    unless { principal.name == \"Local\" };";
        let file = RuleFile { name: "a.cedar".to_owned(), text: text.to_owned(), cases: None };
        let windows = HistoryWindows::default();
        let refused = RuleSet::read(std::slice::from_ref(&file), &windows).unwrap_err();
        assert_eq!(refused[0].code.as_str(), "impossible-name");
        let bundle = json!({ "rules": { "language": "cedar", "windows": {},
            "files": [{ "name": file.name, "text": file.text, "cases": null }] } });
        assert_eq!(RuleSet::of_bundle(&bundle).unwrap().len(), 1);
    }

    #[test]
    fn a_set_that_is_read_from_its_document_is_the_same_set() {
        let text = "@id(\"all\") permit (principal, action, resource is Tool) \
                    unless { context.history.paid.sum.greaterThan(decimal(\"5.0\")) };";
        let cases = "[[case]]\nname = \"one\"\ntool = \"pay.send\"\ndecision = \"deny\"\n";
        let file = RuleFile {
            name: "rules/main.cedar".to_owned(),
            text: text.to_owned(),
            cases: Some(("rules/main.cases.toml".to_owned(), cases.to_owned())),
        };
        let window = HistoryWindow {
            tool: "pay.*".to_owned().try_into().unwrap(),
            length: Duration::from_secs(90),
            sum: Some("/amount".to_owned()),
            within: Within::Session,
        };
        let windows = HistoryWindows::new(BTreeMap::from([("paid".to_owned(), window)])).unwrap();
        let set = RuleSet::read(&[file], &windows).unwrap();
        let again = RuleSet::of_bundle(&json!({ "rules": set.bundle() })).unwrap();
        assert_eq!(again.bundle(), set.bundle());
        assert_eq!(set.differences(&again).same, 1);
        let none = RuleSet::of_bundle(&json!({ "rules": null })).unwrap();
        assert_eq!(none.differences(&set).added.len(), 1);
        let other = json!({ "rules": { "language": "rego", "files": [], "windows": {} } });
        assert!(RuleSet::of_bundle(&other).unwrap_err().to_string().contains("`rego`"));
        assert!(RuleSet::of_bundle(&json!({ "rules": 7 })).is_err());
    }
}
