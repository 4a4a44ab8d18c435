//! The strict form of OpenAI's schemas.
//!
//! Doc: registry.md#declarations

use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::{Declaration, DeclarationFinding};
use toolbooth_contracts::json::{Step, pointer};

/// Formats that strict mode takes.
const STRICT_FORMATS: [&str; 9] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"];

/// Keywords that strict mode rejects.
const NOT_STRICT: [&str; 26] = [
    "$anchor",
    "$id",
    "allOf",
    "contains",
    "default",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "discriminator",
    "else",
    "example",
    "examples",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "not",
    "nullable",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Converts a schema to strict form, and reports the parts that strict mode cannot express.
pub(super) struct Strict<'d> {
    pub(super) declaration: &'d Declaration,
    pub(super) findings: &'d mut Vec<DeclarationFinding>,
    pub(super) path: Vec<Step>,
}

impl Strict<'_> {
    fn tell(&mut self, keyword: Option<&str>, message: impl Into<String>) {
        let mut path = self.path.clone();
        path.extend(keyword.map(|keyword| Step::Key(keyword.to_owned())));
        self.findings.push(DeclarationFinding {
            tool_id: self.declaration.tool_id.clone(),
            path: pointer(&path),
            message: message.into(),
        });
    }

    fn below<T>(&mut self, steps: &[Step], work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.extend_from_slice(steps);
        let out = work(self);
        self.path.truncate(length);
        out
    }

    fn all(&mut self, keyword: &str, schemas: &[Value]) -> Value {
        let key = Step::Key(keyword.to_owned());
        let said = schemas.iter().enumerate().map(|(at, schema)| {
            self.below(&[key.clone(), Step::Index(at)], |this| this.schema(schema))
        });
        said.collect()
    }

    pub(super) fn schema(&mut self, schema: &Value) -> Value {
        let Value::Object(members) = schema else {
            // A bare `true` accepts any value, which strict mode cannot express.
            if *schema == Value::Bool(true) {
                self.tell(None, "strict mode wants a type");
            }
            return schema.clone();
        };
        let key = |name: &str| Step::Key(name.to_owned());
        let required: Vec<&str> = members
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let mut out = Map::new();
        for (keyword, value) in members {
            let said = match (keyword.as_str(), value) {
                (name, _) if NOT_STRICT.contains(&name) => {
                    self.tell(Some(name), format!("strict mode does not take `{name}`"));
                    continue;
                }
                ("format", Value::String(format)) if !STRICT_FORMATS.contains(&&**format) => {
                    self.tell(
                        Some("format"),
                        format!("strict mode does not take the format `{format}`"),
                    );
                    continue;
                }
                ("properties", Value::Object(properties)) => {
                    let mut said = Map::new();
                    for (name, property) in properties {
                        let inner =
                            self.below(&[key(keyword), key(name)], |this| this.schema(property));
                        let optional = !required.contains(&name.as_str());
                        said.insert(name.clone(), if optional { nullable(inner) } else { inner });
                    }
                    Value::Object(said)
                }
                ("$defs" | "definitions", Value::Object(definitions)) => {
                    let mut said = Map::new();
                    for (name, definition) in definitions {
                        let inner =
                            self.below(&[key(keyword), key(name)], |this| this.schema(definition));
                        said.insert(name.clone(), inner);
                    }
                    Value::Object(said)
                }
                ("items", Value::Array(_)) => {
                    self.tell(Some("items"), "strict mode does not take a list of schemas here");
                    continue;
                }
                ("items", inner) => self.below(&[key(keyword)], |this| this.schema(inner)),
                ("anyOf", Value::Array(choices)) => self.all(keyword, choices),
                ("oneOf", Value::Array(choices)) => {
                    self.tell(Some("oneOf"), "strict mode has `anyOf` only, which is wider");
                    let choices = self.all(keyword, choices);
                    out.insert("anyOf".to_owned(), choices);
                    continue;
                }
                (_, other) => other.clone(),
            };
            out.insert(keyword.clone(), said);
        }
        self.close(members, &mut out);
        Value::Object(out)
    }

    /// Makes every property required and allows no other property.
    fn close(&mut self, members: &Map<String, Value>, out: &mut Map<String, Value>) {
        let is_object = members.get("type").and_then(Value::as_str) == Some("object");
        if !is_object && !members.contains_key("properties") {
            let typed = ["type", "enum", "const", "anyOf", "oneOf", "$ref"];
            if !typed.iter().any(|keyword| members.contains_key(*keyword)) {
                self.tell(None, "strict mode wants a type");
            }
            return;
        }
        let names: Vec<String> = out
            .get("properties")
            .and_then(Value::as_object)
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default();
        match members.get("additionalProperties") {
            Some(extra) if *extra != json!(false) => {
                self.tell(
                    Some("additionalProperties"),
                    "strict mode takes no additional properties",
                );
            }
            None if names.is_empty() && !self.path.is_empty() => {
                self.tell(None, "strict mode takes no object whose properties are not listed");
            }
            _ => (),
        }
        out.insert("required".to_owned(), json!(names));
        out.insert("additionalProperties".to_owned(), json!(false));
    }
}

fn nullable(schema: Value) -> Value {
    match schema.get("type") {
        Some(Value::String(one)) if one != "null" => {
            let widened = json!([one, "null"]);
            let mut schema = schema;
            if let Some(members) = schema.as_object_mut() {
                members.insert("type".to_owned(), widened);
                if let Some(Value::Array(values)) = members.get_mut("enum")
                    && !values.contains(&Value::Null)
                {
                    values.push(Value::Null);
                }
            }
            schema
        }
        Some(Value::Array(types)) if types.contains(&json!("null")) => schema,
        _ => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}
