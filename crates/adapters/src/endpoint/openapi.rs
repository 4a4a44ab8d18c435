//! Builds requests from the operations of an OpenAPI 3 document.
//!
//! The arguments have the names that `import openapi` assigns: those of path and query parameters,
//! and `body`.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value};
use url::Url;

use super::request::{Request, segment};
use crate::error::{FillError, OpenApiError};

/// Longest chain of references that is followed.
const REFERENCES_MAX: usize = 32;
/// Methods of operations.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// The operations of a document, by `METHOD path`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operations {
    /// The URL before the paths, without a final `/`.
    base: String,
    operations: BTreeMap<String, Operation>,
}

#[derive(Debug, Clone, PartialEq)]
struct Operation {
    method: Method,
    path: String,
    parameters: Vec<Parameter>,
    /// The argument that is the body.
    body: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parameter {
    argument: String,
    name: String,
    location: ParameterLocation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterLocation {
    Path,
    /// `explode` is the form `a=1&a=2`; else `a=1,2`. `deep` is `a[b]=1`.
    Query {
        explode: bool,
        deep: bool,
    },
}

impl Operations {
    /// Reads a document. `base` is the URL of the service; absent = the document's first server.
    ///
    /// # Errors
    /// [`OpenApiError`]: it is not an OpenAPI 3 document, or contains no URL of the service.
    pub fn read(document: &Value, base: Option<&str>) -> Result<Self, OpenApiError> {
        let version = document.get("openapi").and_then(Value::as_str).unwrap_or_default();
        if !version.starts_with("3.") {
            return Err(OpenApiError::Version);
        }
        let first = document.pointer("/servers/0/url").and_then(Value::as_str);
        let base =
            base.or(first.filter(|url| url.starts_with("http"))).ok_or(OpenApiError::NoServer)?;
        let mut operations = BTreeMap::new();
        let paths = document.get("paths").and_then(Value::as_object);
        for (path, item) in paths.ok_or(OpenApiError::NoPaths)? {
            let item = followed(document, item);
            for method in METHODS {
                let Some(operation) = item.get(method).and_then(Value::as_object) else { continue };
                let name = format!("{} {path}", method.to_uppercase());
                operations.insert(name, read(document, path, method, item, operation)?);
            }
        }
        Ok(Self { base: base.trim_end_matches('/').to_owned(), operations })
    }

    /// Whether an operation of this name exists.
    #[must_use]
    pub fn has(&self, target: &str) -> bool {
        self.operations.contains_key(target)
    }

    /// Returns the request of an operation; `None` = no operation has this name. `base` replaces the
    /// URL of the service.
    pub(crate) fn fill(
        &self,
        target: &str,
        base: Option<&str>,
        arguments: &Value,
    ) -> Option<Result<Request, FillError>> {
        let operation = self.operations.get(target)?;
        let base = base.map_or(self.base.as_str(), |base| base.trim_end_matches('/'));
        Some(operation.fill(base, arguments))
    }
}

/// Returns the target of a chain of references within the document.
fn followed<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    let mut here = value;
    for _ in 0..REFERENCES_MAX {
        let to = here.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        match to.and_then(|pointer| document.pointer(pointer)) {
            Some(next) => here = next,
            None => break,
        }
    }
    here
}

fn read(
    document: &Value,
    path: &str,
    method: &str,
    item: &Value,
    operation: &Map<String, Value>,
) -> Result<Operation, OpenApiError> {
    let mut parameters: Vec<Parameter> = Vec::new();
    let shared = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let mine = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    for parameter in shared.chain(mine) {
        let parameter = followed(document, parameter);
        let text = |name: &str| parameter.get(name).and_then(Value::as_str);
        let Some(name) = text("name") else { continue };
        let location = match text("in") {
            Some("path") => ParameterLocation::Path,
            Some("query") => ParameterLocation::Query {
                explode: parameter.get("explode") != Some(&Value::Bool(false)),
                deep: text("style") == Some("deepObject"),
            },
            // Headers and cookies carry credentials, which agents must not choose.
            _ => continue,
        };
        let is_path = location == ParameterLocation::Path;
        if let Some(known) = parameters.iter_mut().find(|known| {
            known.name == name && (known.location == ParameterLocation::Path) == is_path
        }) {
            // A parameter of the operation overrides that of its path.
            known.location = location;
            continue;
        }
        let taken = parameters.iter().any(|known| known.argument == name);
        let argument = match (taken, is_path) {
            (true, false) => format!("query_{name}"),
            _ => name.to_owned(),
        };
        parameters.push(Parameter { argument, name: name.to_owned(), location });
    }
    let body = operation.get("requestBody").map(|body| followed(document, body));
    let json = body.and_then(|body| body.get("content")).and_then(Value::as_object);
    let has_body = json.is_some_and(|types| types.keys().any(|kind| is_json(kind)));
    let taken = parameters.iter().any(|known| known.argument == "body");
    let body = has_body.then(|| if taken { "requestBody" } else { "body" }.to_owned());
    let method = Method::from_bytes(method.to_uppercase().as_bytes())
        .map_err(|_| OpenApiError::Method(method.to_owned()))?;
    Ok(Operation { method, path: path.to_owned(), parameters, body })
}

/// Whether a media type is JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let bare = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    bare == "application/json" || bare == "text/json" || bare.ends_with("+json")
}

impl Operation {
    fn fill(&self, base: &str, arguments: &Value) -> Result<Request, FillError> {
        let argument = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        let mut path = self.path.clone();
        let mut query: Vec<(String, String)> = Vec::new();
        for parameter in &self.parameters {
            let (name, shown) = (&parameter.name, &parameter.argument);
            let value = argument(shown);
            match (parameter.location, value) {
                (ParameterLocation::Path, None) => {
                    return Err(FillError::MissingInOperation(shown.clone()));
                }
                (ParameterLocation::Path, Some(value)) => {
                    let text = segment(&joined(value, shown)?, shown)?;
                    path = path.replace(&format!("{{{name}}}"), &text);
                }
                (ParameterLocation::Query { .. }, None) => (),
                (ParameterLocation::Query { explode, deep }, Some(value)) => match value {
                    Value::Array(items) if explode => {
                        for item in items {
                            query.push((name.clone(), scalar(item, shown)?));
                        }
                    }
                    Value::Object(members) if deep => {
                        for (member, value) in members {
                            query.push((format!("{name}[{member}]"), scalar(value, shown)?));
                        }
                    }
                    Value::Object(members) if explode => {
                        for (member, value) in members {
                            query.push((member.clone(), scalar(value, shown)?));
                        }
                    }
                    value => query.push((name.clone(), joined(value, shown)?)),
                },
            }
        }
        if path.contains(['{', '}']) {
            return Err(FillError::UndeclaredPart);
        }
        let text = format!("{base}{path}");
        let mut url = Url::parse(&text)?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(&name, &value);
        }
        let body = self.body.as_ref().and_then(|name| argument(name)).cloned();
        Ok(Request { method: self.method.clone(), url, body })
    }
}

fn scalar(value: &Value, name: &str) -> Result<String, FillError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ => Err(FillError::NoParameter(name.to_owned())),
    }
}

/// Returns a value, or the items of a list separated by commas.
fn joined(value: &Value, name: &str) -> Result<String, FillError> {
    match value {
        Value::Array(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| scalar(item, name)).collect();
            Ok(items?.join(","))
        }
        one => scalar(one, name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "openapi": "3.1.0",
            "servers": [{"url": "https://pets.example/v1/"}],
            "paths": {
                "/pets/{id}": {
                    "parameters": [{"$ref": "#/components/parameters/Id"}],
                    "get": {"parameters": [
                        {"name": "id", "in": "query"},
                        {"name": "tags", "in": "query", "explode": false},
                        {"name": "all", "in": "query"},
                        {"name": "by", "in": "query", "style": "deepObject"},
                        {"name": "X-Key", "in": "header"},
                    ]},
                    "put": {"requestBody": {"content": {"application/json": {"schema": {}}}}},
                },
            },
            "components": {"parameters": {"Id": {"name": "id", "in": "path", "required": true}}},
        })
    }

    #[test]
    fn operations_become_requests() {
        let operations = Operations::read(&document(), None).unwrap();
        let arguments = json!({
            "id": "a b", "query_id": 3, "tags": ["x", "y"], "all": [1, 2], "by": {"age": 2},
        });
        let made = operations.fill("GET /pets/{id}", None, &arguments).unwrap().unwrap();
        assert_eq!(
            made.url.as_str(),
            "https://pets.example/v1/pets/a%20b?id=3&tags=x%2Cy&all=1&all=2&by%5Bage%5D=2"
        );
        let arguments = json!({"id": 1, "body": {"name": "Rex"}});
        let made = operations
            .fill("PUT /pets/{id}", Some("http://127.0.0.1:1"), &arguments)
            .unwrap()
            .unwrap();
        assert_eq!(made.url.as_str(), "http://127.0.0.1:1/pets/1");
        assert_eq!((made.method, made.body), (Method::PUT, Some(json!({"name": "Rex"}))));
        assert!(operations.fill("GET /nowhere", None, &arguments).is_none());
        let error = operations.fill("GET /pets/{id}", None, &json!({})).unwrap().unwrap_err();
        assert!(error.to_string().contains("`id`"), "{error}");
    }

    #[test]
    fn a_document_that_is_none_is_refused() {
        for bad in [json!({}), json!({"openapi": "2.0"}), json!({"openapi": "3.0.0", "paths": {}})]
        {
            assert!(Operations::read(&bad, None).is_err(), "{bad}");
        }
        assert!(
            Operations::read(&json!({"openapi": "3.0.0", "paths": {}}), Some("http://a")).is_ok()
        );
    }
}
