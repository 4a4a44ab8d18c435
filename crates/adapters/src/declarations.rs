//! Renders tool declarations in each provider's form.
//!
//! A part that a form cannot express is reported as a finding, and not dropped silently.
//!
//! Doc: registry.md#declarations

mod root;
mod strict;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::{Declaration, DeclarationFinding, RenderedDeclarations};
use toolbooth_contracts::port::DeclarationFormat;

use root::{ANTHROPIC_ROOT, OPENAI_DESCRIPTION_MAX, OPENAI_ROOT, Root};
use strict::Strict;

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
            // In the responses form, a missing `strict` means strict mode if the schema allows it.
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
