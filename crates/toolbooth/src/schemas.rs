//! The JSON Schemas of all public types, for `docs/schemas`.
//!
//! Doc: formats.md#schemas

use schemars::{JsonSchema, schema_for};
use serde_json::{Map, Value};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::plan::{Plan, PlanReport};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::{CallRequest, ToolResult};
use toolbooth_registry::file::RegistryFile;
use toolbooth_registry::lock::LockFile;

use crate::config::Config;

/// Returns the schema of the configuration, with the names that its file has: `secret_ref` where JSON documents
/// have `secretRef`.
fn configuration() -> Value {
    fn rename(schema: &mut Value) {
        match schema {
            Value::Object(members) => {
                if let Some(own) = members.remove("secretRef") {
                    members.insert("secret_ref".to_owned(), own);
                }
                members.values_mut().for_each(rename);
            }
            Value::Array(items) => items.iter_mut().for_each(rename),
            Value::String(name) if name == "secretRef" => *name = "secret_ref".to_owned(),
            _ => (),
        }
    }
    let mut schema = schema_for!(Config).to_value();
    rename(&mut schema);
    schema
}

/// Returns every schema under the name of its file.
pub(crate) fn all() -> Value {
    fn of<T: JsonSchema>() -> Value {
        schema_for!(T).to_value()
    }
    let all: [(&str, Value); 10] = [
        ("registry-file", of::<RegistryFile>()),
        ("lock-file", of::<LockFile>()),
        ("call-request", of::<CallRequest>()),
        ("tool-result", of::<ToolResult>()),
        ("receipt", of::<Receipt>()),
        ("agent-log", of::<AgentLog>()),
        ("audit-event", of::<AuditEvent>()),
        ("plan", of::<Plan>()),
        ("plan-report", of::<PlanReport>()),
        ("configuration", configuration()),
    ];
    let all: Map<String, Value> =
        all.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use toolbooth_contracts::schema::CompiledSchema;

    use super::*;

    /// The example of a configuration, and the same with the alternatives that its comments name.
    fn examples() -> [Value; 2] {
        let text = include_str!("../../../examples/toolbooth.toml");
        let mut lines: Vec<&str> = Vec::new();
        for line in text.lines() {
            let setting = line.strip_prefix("# ").filter(|rest| {
                let name = rest.split(" = ").next().unwrap_or_default();
                rest.starts_with('[')
                    || (name.len() < rest.len()
                        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
            });
            if let Some((name, _)) = setting.and_then(|setting| setting.split_once(" = ")) {
                let section = lines.iter().rposition(|line| line.starts_with('[')).unwrap_or(0);
                let other = format!("{name} =");
                let before = lines.split_off(section);
                lines.extend(before.into_iter().filter(|line| !line.starts_with(&other)));
            }
            lines.push(setting.unwrap_or(line));
        }
        [text.to_owned(), lines.join("\n")].map(|text| toml::from_str(&text).unwrap())
    }

    /// Notes for each setting of a schema whether one of the values has it.
    fn mark_settings<'s>(
        schema: &'s Value,
        root: &'s Value,
        values: &[&Value],
        name: &'s str,
        found: &mut BTreeMap<(&'s str, &'s str), bool>,
    ) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap();
            mark_settings(&root["$defs"][name], root, values, name, found);
        }
        for list in ["anyOf", "oneOf"] {
            for one in schema.get(list).and_then(Value::as_array).into_iter().flatten() {
                mark_settings(one, root, values, name, found);
            }
        }
        let own = schema.get("properties").and_then(Value::as_object);
        for (setting, schema) in own.into_iter().flatten() {
            let inner: Vec<&Value> = values.iter().filter_map(|value| value.get(setting)).collect();
            *found.entry((name, setting)).or_default() |= !inner.is_empty();
            if !inner.is_empty() {
                mark_settings(schema, root, &inner, name, found);
            }
        }
        let members = || values.iter().filter_map(|value| value.as_object()).flatten();
        let others: Vec<&Value> = members()
            .filter(|(setting, _)| own.is_none_or(|own| !own.contains_key(*setting)))
            .map(|(_, value)| value)
            .collect();
        let items = || values.iter().filter_map(|value| value.as_array()).flatten();
        for (keyword, inner) in
            [("additionalProperties", others), ("items", items().collect::<Vec<_>>())]
        {
            if let Some(schema) = schema.get(keyword).filter(|_| !inner.is_empty()) {
                mark_settings(schema, root, &inner, name, found);
            }
        }
    }

    #[test]
    fn the_example_of_a_configuration_has_every_setting() {
        let (schema, examples) = (configuration(), examples());
        let mut found = BTreeMap::new();
        mark_settings(&schema, &schema, &examples.iter().collect::<Vec<_>>(), "", &mut found);
        let missing: Vec<_> = found.iter().filter(|(_, has)| !**has).collect();
        assert!(missing.is_empty() && found.len() > 150, "{} {missing:?}", found.len());
    }

    #[test]
    fn the_example_of_a_configuration_is_valid_by_its_schema() {
        let schema = CompiledSchema::compile(&configuration()).unwrap();
        for example in examples() {
            assert_eq!(schema.errors(&example), []);
        }
        let mut wrong = examples()[0].clone();
        wrong["store"]["bytes_maximum"] = Value::from(1);
        assert_eq!(schema.errors(&wrong).len(), 1);
    }
}
