//! Renders tool declarations in each provider's form.
//!
//! A part that a form cannot express is reported as a finding, and not dropped silently.
//!
//! Doc: registry.md#declarations

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::{Declaration, DeclarationFinding, RenderedDeclarations};
use toolbooth_contracts::json::{Step, pointer};
use toolbooth_contracts::port::DeclarationFormat;

/// Returns all formats; [`by_name`] selects one.
#[must_use]
pub fn all() -> Vec<Arc<dyn DeclarationFormat>> {
    vec![
        Arc::new(Gemini),
        Arc::new(OpenAi { responses: false, strict: false }),
        Arc::new(OpenAi { responses: true, strict: false }),
        Arc::new(Anthropic),
        Arc::new(Mcp),
    ]
}

/// Returns the format with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Arc<dyn DeclarationFormat>> {
    all().into_iter().find(|format| format.name() == name)
}

fn named(declaration: &Declaration) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".to_owned(), json!(declaration.wire_name));
    if let Some(description) = &declaration.description {
        out.insert("description".to_owned(), json!(description));
    }
    out
}

/// Adds a finding for each part of a declaration that a function declaration has no field for.
fn unsaid(declaration: &Declaration, findings: &mut Vec<DeclarationFinding>) {
    let mut tell = |path: &str, message: &str| {
        findings.push(DeclarationFinding {
            tool_id: declaration.tool_id.clone(),
            path: path.to_owned(),
            message: message.to_owned(),
        });
    };
    if declaration.title.is_some() {
        tell("/title", "the form has no place for a title");
    }
    if declaration.output_schema.is_some() {
        tell("/outputSchema", "the form has no place for an output schema");
    }
    if declaration.annotations.as_ref().is_some_and(|hints| !hints.is_empty()) {
        tell("/annotations", "the form has no place for hints");
    }
}

fn render(
    declarations: &[Declaration],
    one: impl Fn(&Declaration, &mut Vec<DeclarationFinding>) -> Value,
) -> (Vec<Value>, Vec<DeclarationFinding>) {
    let mut findings = Vec::new();
    let rendered = declarations
        .iter()
        .map(|declaration| {
            unsaid(declaration, &mut findings);
            one(declaration, &mut findings)
        })
        .collect();
    (rendered, findings)
}

/// `{functionDeclarations: [{name, description, parametersJsonSchema}]}`.
#[derive(Debug, Clone, Copy)]
pub struct Gemini;

impl DeclarationFormat for Gemini {
    fn name(&self) -> &str {
        "gemini"
    }

    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations {
        let (items, findings) = render(declarations, |declaration, _| {
            let mut out = named(declaration);
            out.insert("parametersJsonSchema".to_owned(), declaration.parameters.clone());
            Value::Object(out)
        });
        RenderedDeclarations { document: json!({ "functionDeclarations": items }), findings }
    }
}

/// The dialect that a request names if its model received strict declarations.
pub const STRICT_DIALECT: &str = "openai-strict";

/// The chat form (`{type: "function", function: {…}}`) and the responses form (flat), each with and
/// without strict mode.
#[derive(Debug, Clone, Copy)]
pub struct OpenAi {
    /// Whether it is the flat form.
    pub responses: bool,
    /// Whether every property is required, optional ones nullable, and no other property is
    /// allowed.
    pub strict: bool,
}

impl DeclarationFormat for OpenAi {
    fn name(&self) -> &str {
        if self.responses { "openai-responses" } else { "openai" }
    }

    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations {
        let (items, findings) = render(declarations, |declaration, findings| {
            let mut function = named(declaration);
            let mut root = Root { declaration, findings };
            root.description(OPENAI_DESCRIPTION_MAX);
            let mut parameters = root.object(&OPENAI_ROOT);
            if self.strict {
                parameters = Strict { declaration, findings, path: Vec::new() }.schema(&parameters);
            }
            function.insert("parameters".to_owned(), parameters);
            // The responses form takes what is not said as strict where it can.
            if self.strict || self.responses {
                function.insert("strict".to_owned(), json!(self.strict));
            }
            if self.responses {
                let mut flat = Map::new();
                flat.insert("type".to_owned(), json!("function"));
                flat.extend(function);
                Value::Object(flat)
            } else {
                json!({ "type": "function", "function": function })
            }
        });
        RenderedDeclarations { document: Value::Array(items), findings }
    }
}

/// Keywords that OpenAI does not take at the top of parameters.
const OPENAI_ROOT: [&str; 10] =
    ["allOf", "anyOf", "const", "else", "enum", "if", "not", "oneOf", "then", "$ref"];
/// Keywords that Anthropic does not take there.
const ANTHROPIC_ROOT: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Characters of a description that OpenAI takes.
const OPENAI_DESCRIPTION_MAX: usize = 1_024;

/// The part of a declaration that a form limits at its top.
struct Root<'d> {
    declaration: &'d Declaration,
    findings: &'d mut Vec<DeclarationFinding>,
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
    fn description(&mut self, most: usize) {
        let description = self.declaration.description.as_deref().unwrap_or_default();
        let found = description.chars().count();
        if found > most {
            let message = format!("the provider takes {most} characters; these are {found}");
            self.tell(&["description"], message);
        }
    }

    /// Returns the parameters as an object with properties, without these keywords at its top. Calls are checked by them
    /// all the same.
    fn object(&mut self, without: &[&str]) -> Value {
        let Value::Object(members) = &self.declaration.parameters else {
            return self.declaration.parameters.clone();
        };
        let mut out = members.clone();
        for keyword in without {
            // A choice between objects is what the properties beside it do not say.
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
    fn names(&mut self, is_allowed: impl Fn(&str) -> bool, allowed: &str) {
        let properties = self.declaration.parameters.get("properties").and_then(Value::as_object);
        for name in properties.into_iter().flat_map(Map::keys).filter(|name| !is_allowed(name)) {
            let message = format!("the provider takes names of properties with {allowed}");
            self.tell(&["properties", name], message);
        }
    }
}

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
struct Strict<'d> {
    declaration: &'d Declaration,
    findings: &'d mut Vec<DeclarationFinding>,
    path: Vec<Step>,
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

    fn schema(&mut self, schema: &Value) -> Value {
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

/// `[{name, description, input_schema}]`.
#[derive(Debug, Clone, Copy)]
pub struct Anthropic;

impl DeclarationFormat for Anthropic {
    fn name(&self) -> &str {
        "anthropic"
    }

    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations {
        let (items, findings) = render(declarations, |declaration, findings| {
            let mut out = named(declaration);
            let mut root = Root { declaration, findings };
            let is_allowed = |name: &str| {
                let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
                (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
            };
            root.names(is_allowed, "1 to 64 letters, digits, `_`, `.` and `-`");
            out.insert("input_schema".to_owned(), root.object(&ANTHROPIC_ROOT));
            Value::Object(out)
        });
        RenderedDeclarations { document: Value::Array(items), findings }
    }
}

/// `{tools: […]}`, as an MCP server lists them. It can express every declaration.
#[derive(Debug, Clone, Copy)]
pub struct Mcp;

impl DeclarationFormat for Mcp {
    fn name(&self) -> &str {
        "mcp"
    }

    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations {
        let tools: Vec<Value> = declarations
            .iter()
            .map(|declaration| {
                let mut out = named(declaration);
                if let Some(title) = &declaration.title {
                    out.insert("title".to_owned(), json!(title));
                }
                out.insert("inputSchema".to_owned(), declaration.parameters.clone());
                if let Some(schema) = &declaration.output_schema {
                    out.insert("outputSchema".to_owned(), schema.clone());
                }
                if let Some(annotations) = &declaration.annotations {
                    out.insert("annotations".to_owned(), Value::Object(annotations.clone()));
                }
                for (name, value) in &declaration.extra {
                    out.entry(name.clone()).or_insert_with(|| value.clone());
                }
                Value::Object(out)
            })
            .collect();
        RenderedDeclarations { document: json!({ "tools": tools }), findings: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
