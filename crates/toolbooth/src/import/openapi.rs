//! Operations of an OpenAPI document as contracts of endpoint tools.
//!
//! Doc: importing.md#openapi

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};
use toolbooth_adapters::OpenApiError;
use toolbooth_contracts::json as gate;
use toolbooth_registry::discovered::tool_id;

use crate::failure::Failure;

/// Largest document that is read, in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Methods of operations, in the order in which they are taken.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
/// Longest chain of references that is followed.
const REFERENCES_MAX: usize = 32;

/// Contracts, and what could not be said in them.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    pub(crate) contracts: Vec<Value>,
    pub(crate) notices: Vec<String>,
}

/// Reads a document, JSON or YAML, and makes a contract of each operation. `endpoint` is the name
/// under which the service is configured.
pub(crate) fn read(path: &Path, endpoint: &str) -> Result<Operations, Failure> {
    let place = path.display().to_string();
    let wrong = |message: String| Failure::usage(message).at(place.clone());
    let unreadable = |error: std::io::Error| wrong(format!("the file cannot be read: {error}"));
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(wrong("the file is too large".to_owned()));
    }
    let text = std::fs::read(path).map_err(unreadable)?;
    let document = if text.trim_ascii_start().starts_with(b"{") {
        gate::parse(&text).map_err(|fault| {
            let (line, column) = gate::line_column(&text, fault.offset);
            Failure::usage(format!("the file is no JSON: {}", fault.message))
                .at(format!("{place}:{line}:{column}"))
        })?
    } else {
        let text =
            String::from_utf8(text).map_err(|_| wrong("the file is not UTF-8".to_owned()))?;
        serde_saphyr::from_str::<Value>(&text)
            .map_err(|error| wrong(format!("the file is no YAML: {error}")))?
    };
    operations(&document, endpoint).map_err(|error| wrong(error.to_string()))
}

/// The contracts of all operations.
pub(crate) fn operations(document: &Value, endpoint: &str) -> Result<Operations, OpenApiError> {
    let version = document.get("openapi").and_then(Value::as_str).unwrap_or_default();
    if !version.starts_with("3.") {
        return Err(OpenApiError::Version);
    }
    let paths = document.get("paths").and_then(Value::as_object);
    let paths = paths.ok_or(OpenApiError::NoPaths)?;
    let mut api = Api {
        document,
        // Version 3.0 has a dialect of its own; 3.1 is JSON Schema.
        old: version.starts_with("3.0"),
        out: Operations::default(),
        ids: BTreeSet::new(),
        wanted: BTreeMap::new(),
    };
    for (path, item) in paths {
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
    /// How often each id was wanted.
    wanted: BTreeMap<String, usize>,
}

impl<'d> Api<'d> {
    /// What a chain of references within the document ends at.
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
        let mut schemas = Schemas::default();
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let shared = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let mine = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
        for parameter in shared.chain(mine) {
            let parameter = self.followed(parameter);
            let Some(name) = parameter.get("name").and_then(Value::as_str) else { continue };
            match parameter.get("in").and_then(Value::as_str) {
                Some("path" | "query") => (),
                Some(place) => {
                    // Headers and cookies carry credentials; agents do not choose them.
                    self.out.notices.push(format!("{id}: the {place} `{name}` was left out"));
                    continue;
                }
                None => continue,
            }
            let schema = parameter.get("schema").or_else(|| {
                let media = parameter.get("content").and_then(Value::as_object);
                media.and_then(|media| media.values().next()).and_then(|one| one.get("schema"))
            });
            let mut schema =
                schema.map_or_else(|| json!({}), |schema| self.schema(schema, &mut schemas));
            let described = parameter.get("description").and_then(Value::as_str);
            if let (Some(text), Some(members)) = (described, schema.as_object_mut()) {
                members.entry("description").or_insert_with(|| json!(text));
            }
            let must = parameter.get("required") == Some(&Value::Bool(true))
                || parameter.get("in").and_then(Value::as_str) == Some("path");
            if must && !required.contains(&json!(name)) {
                required.push(json!(name));
            }
            let place = parameter.get("in").and_then(Value::as_str).unwrap_or_default();
            // The path's own name stays; another one of the same name says where it belongs.
            if properties.contains_key(name)
                && place != "path"
                && !overrides(item, operation, name, place)
            {
                let other = format!("{place}_{name}");
                self.out.notices.push(format!("{id}: the {place} parameter `{name}` is `{other}`"));
                properties.insert(other, schema);
            } else {
                properties.insert(name.to_owned(), schema);
            }
        }
        if let Some(body) = operation.get("requestBody").map(|body| self.followed(body)) {
            match json_content(body) {
                Some(schema) => {
                    let schema = self.schema(schema, &mut schemas);
                    // A body stands under a name of its own, so that no parameter is hidden.
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
        self.definitions(&mut schemas);
        schemas.attach(&mut input);
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

    /// The schema of the first success that is JSON; `{}` = anything.
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
        let mut schemas = Schemas::default();
        let mut out = self.schema(schema, &mut schemas);
        self.definitions(&mut schemas);
        if out.is_object() {
            schemas.attach(&mut out);
        }
        out
    }

    /// A schema that stands alone: references lead into `$defs`, and what version 3.0 says in its
    /// own way is said in draft 2020-12.
    fn schema(&self, schema: &'d Value, schemas: &mut Schemas) -> Value {
        match schema {
            Value::Array(items) => items.iter().map(|item| self.schema(item, schemas)).collect(),
            Value::Object(members) => {
                let mut out = Map::new();
                for (key, value) in members {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(to)) => {
                            out.insert(key.clone(), self.reference(to, schemas));
                        }
                        // Only OpenAPI knows them.
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
                                .map(|(name, schema)| (name.clone(), self.schema(schema, schemas)))
                                .collect();
                            out.insert(key.clone(), Value::Object(inner));
                        }
                        (_, value) => {
                            out.insert(key.clone(), self.schema(value, schemas));
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

    fn reference(&self, to: &str, schemas: &mut Schemas) -> Value {
        let pointer = to.strip_prefix('#').map(decoded);
        let Some(pointer) = pointer.filter(|own| self.document.pointer(own).is_some()) else {
            // The guard says that it leaves the document.
            return json!(to);
        };
        json!(format!("#/$defs/{}", schemas.name_of(&pointer)))
    }

    /// Says what was referred to, one after the other: a chain may be longer than a stack is deep.
    fn definitions(&self, schemas: &mut Schemas) {
        while let Some((name, pointer)) = schemas.open.pop() {
            let target = self.document.pointer(&pointer).unwrap_or(&Value::Null);
            let schema = self.schema(target, schemas);
            schemas.definitions.insert(name, schema);
        }
    }
}

/// A fragment with its `%XX` written out.
fn decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let hex = fragment.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Definitions that a schema refers to.
#[derive(Default)]
struct Schemas {
    definitions: BTreeMap<String, Value>,
    /// The name of each place that is referred to.
    names: BTreeMap<String, String>,
    taken: BTreeSet<String>,
    /// Names with the places that they stand for, still to be said.
    open: Vec<(String, String)>,
}

impl Schemas {
    /// The name of what stands at a place; places of the same last word get numbers.
    fn name_of(&mut self, pointer: &str) -> String {
        if let Some(name) = self.names.get(pointer) {
            return name.clone();
        }
        let word: String = pointer
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .chars()
            .map(
                |c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' },
            )
            .collect();
        let mut name = word.clone();
        if !self.taken.insert(name.clone()) {
            name = format!("{word}_{}", self.names.len());
            self.taken.insert(name.clone());
        }
        self.names.insert(pointer.to_owned(), name.clone());
        self.open.push((name.clone(), pointer.to_owned()));
        name
    }

    fn attach(self, schema: &mut Value) {
        if let (false, Some(members)) = (self.definitions.is_empty(), schema.as_object_mut()) {
            let definitions: Map<String, Value> = self.definitions.into_iter().collect();
            members.insert("$defs".to_owned(), Value::Object(definitions));
        }
    }
}

/// Whether an operation says anew what its path has said of the same parameter.
fn overrides(item: &Value, operation: &Map<String, Value>, name: &str, place: &str) -> bool {
    let has = |list: Option<&Value>| {
        list.and_then(Value::as_array).into_iter().flatten().any(|own| {
            own.get("name").and_then(Value::as_str) == Some(name)
                && own.get("in").and_then(Value::as_str) == Some(place)
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

/// The schema of the JSON among a body's media types.
fn json_content(body: &Value) -> Option<&Value> {
    let media = body.get("content")?.as_object()?;
    let is_json = |name: &str| {
        let name = name.split(';').next().unwrap_or_default().trim();
        name == "application/json" || name.ends_with("+json")
    };
    media.iter().find(|(name, _)| is_json(name)).and_then(|(_, media)| media.get("schema"))
}

/// The resource of a permission.
fn permission(endpoint: &str) -> String {
    endpoint
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests;
