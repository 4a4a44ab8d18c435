//! The limits of a provider for the top level of a declaration.
//!
//! Doc: registry.md#declarations

use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::{Declaration, DeclarationFinding};
use toolbooth_contracts::json::{Step, pointer};

/// Keywords that OpenAI does not take at the top of parameters.
pub(super) const OPENAI_ROOT: [&str; 10] =
    ["allOf", "anyOf", "const", "else", "enum", "if", "not", "oneOf", "then", "$ref"];
/// Keywords that Anthropic does not take there.
pub(super) const ANTHROPIC_ROOT: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Characters of a description that OpenAI takes.
pub(super) const OPENAI_DESCRIPTION_MAX: usize = 1_024;

/// The part of a declaration that a form limits at its top.
pub(super) struct Root<'d> {
    pub(super) declaration: &'d Declaration,
    pub(super) findings: &'d mut Vec<DeclarationFinding>,
}

impl Root<'_> {
    fn tell(&mut self, path: &[&str], message: String) {
        let path: Vec<Step> = path.iter().map(|name| Step::Key((*name).to_owned())).collect();
        self.findings.push(DeclarationFinding {
            tool_id: self.declaration.tool_id.clone(),
            path: pointer(&path),
            message,
        });
    }

    /// Reports a description that is too long.
    pub(super) fn description(&mut self, most: usize) {
        let description = self.declaration.description.as_deref().unwrap_or_default();
        let found = description.chars().count();
        if found > most {
            let message = format!("the provider takes {most} characters; these are {found}");
            self.tell(&["description"], message);
        }
    }

    /// Returns the parameters as an object with properties, without these keywords at its top. Calls are checked by them
    /// all the same.
    pub(super) fn object(&mut self, without: &[&str]) -> Value {
        let Value::Object(members) = &self.declaration.parameters else {
            return self.declaration.parameters.clone();
        };
        let mut out = members.clone();
        // If only the choice has properties, the model learns the arguments from the choice alone.
        let has_properties = out.get("properties").and_then(Value::as_object);
        let has_properties = has_properties.is_some_and(|properties| !properties.is_empty());
        for keyword in without {
            if !has_properties && out.contains_key(*keyword) {
                let message = format!("the provider may refuse `{keyword}` at the top");
                self.tell(&[keyword], message);
                continue;
            }
            // A choice between objects restricts more than the properties beside it.
            if out.remove(*keyword).is_some() {
                let message = format!(
                    "the provider does not take `{keyword}` at the top; calls are checked by it"
                );
                self.tell(&[keyword], message);
            }
        }
        out.insert("type".to_owned(), json!("object"));
        out.entry("properties").or_insert_with(|| json!({}));
        Value::Object(out)
    }

    /// Reports names of properties with characters that a provider does not take.
    pub(super) fn names(&mut self, is_allowed: impl Fn(&str) -> bool, allowed: &str) {
        let properties = self.declaration.parameters.get("properties").and_then(Value::as_object);
        for name in properties.into_iter().flat_map(Map::keys).filter(|name| !is_allowed(name)) {
            let message = format!("the provider takes names of properties with {allowed}");
            self.tell(&["properties", name], message);
        }
    }
}
