//! Converts operations of an OpenAPI document to contracts of endpoint tools.
//!
//! Doc: importing.md#openapi

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use toolbooth_contracts::json as gate;
use toolbooth_registry::discovered::tool_id;

mod definitions;

use crate::error::ImportError;
use definitions::Definitions;

/// Methods of operations, in the order of the import.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
/// Longest chain of references that is followed.
const REFERENCES_MAX: usize = 32;

/// Contracts, and notices of parts that they cannot express.
#[derive(Debug, Default)]
pub struct Operations {
    /// Contracts in the format of the registry file.
    pub contracts: Vec<Value>,
    /// Notices for the operator.
    pub notices: Vec<String>,
}

/// Reads a document that is JSON or YAML.
///
/// # Errors
/// [`ImportError::JsonAt`], [`ImportError::NoUtf8`], [`ImportError::NoYaml`].
pub fn document(text: &[u8]) -> Result<Value, ImportError> {
    if text.trim_ascii_start().starts_with(b"{") {
        return gate::parse(text).map_err(|fault| {
            let (line, column) = gate::line_column(text, fault.offset);
            ImportError::JsonAt { line, column, message: fault.message }
        });
    }
    let text = std::str::from_utf8(text).map_err(|_| ImportError::NoUtf8)?;
    // As YAML 1.2 has it: `no`, `on` and `y` are texts, and so is a number with a zero before it.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
    };
    serde_saphyr::from_str_with_options::<Value>(text, options)
        .map_err(|error| ImportError::NoYaml(error.to_string()))
}

/// Returns the contracts of all operations of a document. `endpoint` is the name of the service in
/// the configuration.
///
/// # Errors
/// [`ImportError::OpenApiVersion`], [`ImportError::NoPaths`].
pub fn operations(document: &Value, endpoint: &str) -> Result<Operations, ImportError> {
    let version = document.get("openapi").and_then(Value::as_str).unwrap_or_default();
    if !version.starts_with("3.") {
        return Err(ImportError::OpenApiVersion);
    }
    let paths = document.get("paths").and_then(Value::as_object);
    let paths = paths.ok_or(ImportError::NoPaths)?;
    let mut api = Api {
        document,
        // Version 3.0 has a dialect of its own; 3.1 is JSON Schema.
        old: version.starts_with("3.0"),
        out: Operations::default(),
        ids: BTreeSet::new(),
        wanted: BTreeMap::new(),
    };
    for (path, item) in paths {
        if !path.starts_with('/') {
            api.out.notices.push(format!("`{path}` does not begin with `/` and was left out"));
            continue;
        }
        let item = api.followed(item);
        for method in METHODS {
            if let Some(operation) = item.get(method).and_then(Value::as_object) {
                api.operation(endpoint, path, method, item, operation);
            }
        }
    }
    Ok(api.out)
}

struct Api<'d> {
    document: &'d Value,
    old: bool,
    out: Operations,
    ids: BTreeSet<String>,
    /// How often each id was requested.
    wanted: BTreeMap<String, usize>,
}

impl<'d> Api<'d> {
    /// Returns the target of a chain of references within the document.
    fn followed(&self, value: &'d Value) -> &'d Value {
        let mut here = value;
        for _ in 0..REFERENCES_MAX {
            let to = here.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
            match to.and_then(|pointer| self.document.pointer(pointer)) {
                Some(next) => here = next,
                None => break,
            }
        }
        here
    }

    fn operation(
        &mut self,
        endpoint: &str,
        path: &str,
        method: &str,
        item: &'d Value,
        operation: &'d Map<String, Value>,
    ) {
        let text = |name: &str| operation.get(name).and_then(Value::as_str);
        let own = text("operationId").map_or_else(|| format!("{method}_{path}"), str::to_owned);
        let own: String = tool_id(&own).replace(['/', '.'], "_");
        let base = format!("{endpoint}.{}", own.trim_matches('_'));
        let mut id = tool_id(&base);
        while !self.ids.insert(id.clone()) {
            let number = self.wanted.entry(base.clone()).or_insert(1);
            *number += 1;
            id = tool_id(&format!("{base}_{number}"));
        }
        let mut definitions = Definitions::default();
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let shared = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let mine = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let all: Vec<&Value> = shared.chain(mine).map(|own| self.followed(own)).collect();
        for part in parts(path) {
            let is_it = |own: &&&Value| own["name"].as_str() == Some(part) && own["in"] == "path";
            if all.iter().find(is_it).is_none() {
                self.out.notices.push(format!(
                    "{id}: no parameter is the part `{{{part}}}` of its path; it is taken for a text"
                ));
                properties.insert(part.to_owned(), json!({ "type": "string" }));
                required.push(json!(part));
            }
        }
        for parameter in all {
            let Some(name) = parameter.get("name").and_then(Value::as_str) else { continue };
            match parameter.get("in").and_then(Value::as_str) {
                Some("path" | "query") => (),
                Some(location) => {
                    // Headers and cookies carry credentials, which agents must not choose.
                    self.out.notices.push(format!("{id}: the {location} `{name}` was left out"));
                    continue;
                }
                None => continue,
            }
            let schema = parameter.get("schema").or_else(|| {
                let media = parameter.get("content").and_then(Value::as_object);
                media.and_then(|media| media.values().next()).and_then(|one| one.get("schema"))
            });
            let mut schema =
                schema.map_or_else(|| json!({}), |schema| self.schema(schema, &mut definitions));
            let described = parameter.get("description").and_then(Value::as_str);
            if let (Some(text), Some(members)) = (described, schema.as_object_mut()) {
                members.entry("description").or_insert_with(|| json!(text));
            }
            let must = parameter.get("required") == Some(&Value::Bool(true))
                || parameter.get("in").and_then(Value::as_str) == Some("path");
            if must && !required.contains(&json!(name)) {
                required.push(json!(name));
            }
            let location = parameter.get("in").and_then(Value::as_str).unwrap_or_default();
            // A path parameter has priority for the name; another one of the same name is prefixed
            // with its place.
            if properties.contains_key(name)
                && location != "path"
                && !overrides(item, operation, name, location)
            {
                let other = format!("{location}_{name}");
                self.out
                    .notices
                    .push(format!("{id}: the {location} parameter `{name}` is `{other}`"));
                properties.insert(other, schema);
            } else {
                properties.insert(name.to_owned(), schema);
            }
        }
        if let Some(body) = operation.get("requestBody").map(|body| self.followed(body)) {
            match json_content(body) {
                Some(schema) => {
                    let schema = self.schema(schema, &mut definitions);
                    // The body has a name of its own, so that it hides no parameter.
                    let name = if properties.contains_key("body") { "requestBody" } else { "body" };
                    properties.insert(name.to_owned(), schema);
                    if body.get("required") == Some(&Value::Bool(true)) {
                        required.push(json!(name));
                    }
                }
                None => {
                    self.out.notices.push(format!("{id}: its body is not JSON and was left out"));
                }
            }
        }
        let mut input = json!({
            "type": "object", "properties": properties, "additionalProperties": false,
        });
        if let (false, Some(members)) = (required.is_empty(), input.as_object_mut()) {
            members.insert("required".to_owned(), Value::Array(required));
        }
        self.definitions(&mut definitions);
        definitions.attach(&mut input);
        let safe = matches!(method, "get" | "head" | "options" | "trace");
        let verb = if safe { "read" } else { "write" };
        let mut contract = json!({
            "toolId": id,
            "category": "function",
            "inputSchema": input,
            "outputSchema": self.output(operation),
            "capabilities": {},
            "execution": {
                "endpointRef": endpoint,
                "target": format!("{} {path}", method.to_uppercase()),
            },
            "policy": { "timeoutMs": 30_000, "trustLevel": "untrusted" },
            "permissions": [format!("{verb}:{}", permission(endpoint))],
            "idempotency": { "mode": if safe { "safe-retry" } else { "on-key" } },
        });
        if let Some(members) = contract.as_object_mut() {
            if let Some(title) = text("summary") {
                members.insert("title".to_owned(), json!(title));
            }
            let described = text("description").or_else(|| text("summary"));
            let described = described
                .map_or_else(|| format!("{} {path}", method.to_uppercase()), str::to_owned);
            members.insert("description".to_owned(), json!(described));
        }
        self.out.contracts.push(contract);
    }

    /// Returns the schema of the first success if it is JSON; `{}` = anything.
    fn output(&self, operation: &'d Map<String, Value>) -> Value {
        let responses = operation.get("responses").and_then(Value::as_object);
        let success = responses.and_then(|all| {
            let mut found: Vec<(&String, &Value)> =
                all.iter().filter(|(status, _)| status.starts_with('2')).collect();
            found.sort_by_key(|(status, _)| (*status).clone());
            found.first().map(|(_, response)| *response)
        });
        let schema = success.map(|response| self.followed(response)).and_then(json_content);
        let Some(schema) = schema else { return json!({}) };
        let mut definitions = Definitions::default();
        let mut out = self.schema(schema, &mut definitions);
        self.definitions(&mut definitions);
        if out.is_object() {
            definitions.attach(&mut out);
        }
        out
    }

    /// Converts a schema to a self-contained one: references point into `$defs`, and the dialect of
    /// version 3.0 becomes draft 2020-12.
    fn schema(&self, schema: &'d Value, definitions: &mut Definitions) -> Value {
        match schema {
            Value::Array(items) => {
                items.iter().map(|item| self.schema(item, definitions)).collect()
            }
            Value::Object(members) => {
                let mut out = Map::new();
                for (key, value) in members {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(to)) => {
                            out.insert(key.clone(), self.reference(to, definitions));
                        }
                        // Keywords of OpenAPI only.
                        ("discriminator" | "xml" | "externalDocs", _) => (),
                        ("example", value) => {
                            out.insert("examples".to_owned(), json!([value]));
                        }
                        ("nullable", _) if self.old => (),
                        ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(exclusive)) => {
                            let limit =
                                if key == "exclusiveMinimum" { "minimum" } else { "maximum" };
                            if let (true, Some(limit)) = (exclusive, members.get(limit)) {
                                out.insert(key.clone(), limit.clone());
                            }
                        }
                        ("enum" | "const" | "default" | "examples" | "required", value) => {
                            out.insert(key.clone(), value.clone());
                        }
                        (
                            "properties" | "patternProperties" | "$defs" | "dependentSchemas",
                            Value::Object(inner),
                        ) => {
                            let inner: Map<String, Value> = inner
                                .iter()
                                .map(|(name, schema)| {
                                    (name.clone(), self.schema(schema, definitions))
                                })
                                .collect();
                            out.insert(key.clone(), Value::Object(inner));
                        }
                        (_, value) => {
                            out.insert(key.clone(), self.schema(value, definitions));
                        }
                    }
                }
                if self.old && members.get("nullable") == Some(&Value::Bool(true)) {
                    return nullable(out);
                }
                Value::Object(out)
            }
            other => other.clone(),
        }
    }

    fn reference(&self, to: &str, definitions: &mut Definitions) -> Value {
        let pointer =
            to.strip_prefix('#').map(|fragment| percent_decode_str(fragment).decode_utf8_lossy());
        let Some(pointer) = pointer.filter(|own| self.document.pointer(own.as_ref()).is_some())
        else {
            // The guard reports that the reference leaves the document.
            return json!(to);
        };
        json!(format!("#/$defs/{}", definitions.name_of(&pointer)))
    }

    /// Adds the referenced schemas in a loop, because a chain may be longer than the stack allows.
    fn definitions(&self, definitions: &mut Definitions) {
        while let Some((name, pointer)) = definitions.open.pop() {
            let target = self.document.pointer(&pointer).unwrap_or(&Value::Null);
            let schema = self.schema(target, definitions);
            definitions.definitions.insert(name, schema);
        }
    }
}

/// Returns the names of the parts of a path that parameters stand for.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0))
}

/// Whether an operation overrides a parameter of its path.
fn overrides(item: &Value, operation: &Map<String, Value>, name: &str, location: &str) -> bool {
    let has = |list: Option<&Value>| {
        list.and_then(Value::as_array).into_iter().flatten().any(|own| {
            own.get("name").and_then(Value::as_str) == Some(name)
                && own.get("in").and_then(Value::as_str) == Some(location)
        })
    };
    has(item.get("parameters")) && has(operation.get("parameters"))
}

fn nullable(mut schema: Map<String, Value>) -> Value {
    match schema.get("type").cloned() {
        Some(Value::String(one)) => {
            schema.insert("type".to_owned(), json!([one, "null"]));
            if let Some(Value::Array(values)) = schema.get_mut("enum")
                && !values.contains(&Value::Null)
            {
                values.push(Value::Null);
            }
            Value::Object(schema)
        }
        _ => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

/// Returns the schema of the JSON among a body's media types.
fn json_content(body: &Value) -> Option<&Value> {
    let media = body.get("content")?.as_object()?;
    let is_json = |name: &str| {
        let name = name.split(';').next().unwrap_or_default().trim();
        name == "application/json" || name.ends_with("+json")
    };
    media.iter().find(|(name, _)| is_json(name)).and_then(|(_, media)| media.get("schema"))
}

/// Returns the resource of a permission.
fn permission(endpoint: &str) -> String {
    endpoint
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests;
