//! Declarations in each provider's form.
//!
//! What a form cannot say is a finding, not a silent loss.
//!
//! Doc: registry.md#declarations

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::{Declaration, DeclarationFinding, RenderedDeclarations};
use toolbooth_contracts::port::DeclarationFormat;

/// All formats, by the words that choose them.
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

/// The format that `name` chooses.
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

/// A finding for each part of a declaration that a function declaration has no place for.
fn unsaid(declaration: &Declaration, findings: &mut Vec<DeclarationFinding>) {
    let mut tell = |path: &str, message: &str| {
        findings.push(DeclarationFinding {
            tool_id: declaration.tool_id.clone(),
            path: path.to_owned(),
            message: message.to_owned(),
        });
    };
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

/// Chat (`{type: "function", function: {…}}`) and responses (flat), with and without strict mode.
#[derive(Debug, Clone, Copy)]
pub struct OpenAi {
    /// The flat form.
    pub responses: bool,
    /// Every property required, optional ones nullable, nothing additional.
    pub strict: bool,
}

impl DeclarationFormat for OpenAi {
    fn name(&self) -> &str {
        if self.responses { "openai-responses" } else { "openai" }
    }

    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations {
        let (items, findings) = render(declarations, |declaration, findings| {
            let mut function = named(declaration);
            let parameters = if self.strict {
                strict(&declaration.parameters, declaration, "", findings)
            } else {
                declaration.parameters.clone()
            };
            function.insert("parameters".to_owned(), parameters);
            if self.strict {
                function.insert("strict".to_owned(), json!(true));
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

/// Keywords that strict mode does not take.
const NOT_STRICT: [&str; 8] = [
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "dependentRequired",
    "propertyNames",
];

fn strict(
    schema: &Value,
    declaration: &Declaration,
    path: &str,
    findings: &mut Vec<DeclarationFinding>,
) -> Value {
    let Value::Object(members) = schema else {
        return match schema {
            Value::Array(items) => {
                items.iter().map(|item| strict(item, declaration, path, findings)).collect()
            }
            other => other.clone(),
        };
    };
    let mut out = Map::new();
    let required: Vec<&str> = members
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (keyword, value) in members {
        if NOT_STRICT.contains(&keyword.as_str()) {
            findings.push(DeclarationFinding {
                tool_id: declaration.tool_id.clone(),
                path: format!("{path}/{keyword}"),
                message: format!("strict mode does not take `{keyword}`"),
            });
            continue;
        }
        let inner = match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => properties
                .iter()
                .map(|(name, property)| {
                    let place = format!("{path}/properties/{name}");
                    let inner = strict(property, declaration, &place, findings);
                    let inner =
                        if required.contains(&name.as_str()) { inner } else { nullable(inner) };
                    (name.clone(), inner)
                })
                .collect(),
            ("$defs" | "definitions", Value::Object(definitions)) => definitions
                .iter()
                .map(|(name, definition)| {
                    let place = format!("{path}/{keyword}/{name}");
                    (name.clone(), strict(definition, declaration, &place, findings))
                })
                .collect(),
            ("items" | "anyOf", inner) => {
                strict(inner, declaration, &format!("{path}/{keyword}"), findings)
            }
            (_, other) => other.clone(),
        };
        out.insert(keyword.clone(), inner);
    }
    if out.get("type").and_then(Value::as_str) == Some("object") || out.contains_key("properties") {
        let names: Vec<String> = out
            .get("properties")
            .and_then(Value::as_object)
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default();
        out.insert("required".to_owned(), json!(names));
        if out.get("additionalProperties").is_some_and(|extra| *extra != json!(false)) {
            findings.push(DeclarationFinding {
                tool_id: declaration.tool_id.clone(),
                path: format!("{path}/additionalProperties"),
                message: "strict mode takes no additional properties".to_owned(),
            });
        }
        out.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(out)
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
        let (items, findings) = render(declarations, |declaration, _| {
            let mut out = named(declaration);
            out.insert("input_schema".to_owned(), declaration.parameters.clone());
            Value::Object(out)
        });
        RenderedDeclarations { document: Value::Array(items), findings }
    }
}

/// `{tools: […]}`, as an MCP server lists them; it can say everything.
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
                Value::Object(out)
            })
            .collect();
        RenderedDeclarations { document: json!({ "tools": tools }), findings: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declaration() -> Declaration {
        Declaration {
            wire_name: "os_create_task".into(),
            tool_id: "os.create_task".into(),
            title: None,
            description: Some("Creates a task.".into()),
            parameters: json!({"type": "object", "required": ["title"], "properties": {
                "title": {"type": "string"}, "tags": {"type": "array", "items": {"type": "object", "properties": {"n": {"enum": [1]}}}}}}),
            output_schema: Some(json!({"type": "object"})),
            annotations: None,
        }
    }

    #[test]
    fn each_provider_gets_its_form() {
        let all = [declaration()];
        let gemini = Gemini.render(&all);
        assert_eq!(gemini.document["functionDeclarations"][0]["name"], "os_create_task");
        assert_eq!(gemini.findings.len(), 1, "the output schema is not lost silently");
        let chat = OpenAi { responses: false, strict: false }.render(&all).document;
        assert_eq!(chat[0]["function"]["parameters"]["required"], json!(["title"]));
        let flat = OpenAi { responses: true, strict: false }.render(&all).document;
        assert_eq!(
            (&flat[0]["type"], &flat[0]["name"]),
            (&json!("function"), &json!("os_create_task"))
        );
        let anthropic = Anthropic.render(&all).document;
        assert!(anthropic[0]["input_schema"].is_object());
        assert!(Mcp.render(&all).document["tools"][0]["outputSchema"].is_object());
    }

    #[test]
    fn strict_mode_requires_everything_and_makes_optional_nullable() {
        let strict = OpenAi { responses: false, strict: true }.render(&[declaration()]).document;
        let parameters = &strict[0]["function"]["parameters"];
        assert_eq!(parameters["required"], json!(["title", "tags"]));
        assert_eq!(parameters["additionalProperties"], json!(false));
        assert_eq!(parameters["properties"]["tags"]["type"], json!(["array", "null"]));
        let inner = &parameters["properties"]["tags"]["items"];
        assert_eq!(inner["properties"]["n"], json!({"anyOf": [{"enum": [1]}, {"type": "null"}]}));
    }
}
