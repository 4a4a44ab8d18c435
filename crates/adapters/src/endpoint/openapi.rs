//! Builds requests from the operations of an OpenAPI 3 document.
//!
//! The arguments have the names that `import openapi` assigns: those of path and query parameters,
//! and `body`.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde_json::{Map, Value, json};
use url::Url;

use super::parameter::{Parameter, Style};
use super::request::{Request, is_json};
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
    /// Its own URL before the path, if the document gives it one.
    base: Option<String>,
    method: Method,
    path: String,
    parameters: Vec<Parameter>,
    /// The argument that is the body.
    body: Option<String>,
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
        let own = match base {
            Some(base) => base.to_owned(),
            None => first_server(document)?.ok_or(OpenApiError::NoServer)?,
        };
        let mut operations = BTreeMap::new();
        let paths = document.get("paths").and_then(Value::as_object);
        for (path, item) in paths.ok_or(OpenApiError::NoPaths)? {
            // Text before the first `/` would be part of the host.
            if !path.starts_with('/') {
                return Err(OpenApiError::Path(path.clone()));
            }
            let item = followed(document, item);
            for method in METHODS {
                let Some(operation) = item.get(method).and_then(Value::as_object) else { continue };
                let name = format!("{} {path}", method.to_uppercase());
                let own = match base {
                    Some(_) => None,
                    None => own_server(item, operation)?,
                };
                let operation = read(document, path, method, item, operation)?;
                operations.insert(name, Operation { base: own, ..operation });
            }
        }
        Ok(Self { base: own.trim_end_matches('/').to_owned(), operations })
    }

    /// Returns the hosts that get requests, with their ports where these are named.
    #[must_use]
    pub fn hosts(&self) -> BTreeSet<String> {
        let own = self.operations.values().map(|one| one.base.as_deref().unwrap_or(&self.base));
        let hosts = own.filter_map(|base| {
            let url = Url::parse(base).ok()?;
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            Some(format!("{}{port}", url.host_str()?))
        });
        hosts.collect()
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
        let base = base.or(operation.base.as_deref()).unwrap_or(&self.base);
        Some(operation.fill(base.trim_end_matches('/'), arguments))
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

/// Returns the URL of the first server of a document, a path or an operation, with the defaults of its variables.
fn first_server(of: &Value) -> Result<Option<String>, OpenApiError> {
    let Some(server) = of.pointer("/servers/0") else { return Ok(None) };
    let url = server.get("url").and_then(Value::as_str).filter(|url| url.starts_with("http"));
    let mut url = url.ok_or(OpenApiError::NoServer)?.to_owned();
    let variables = server.get("variables").and_then(Value::as_object);
    for (name, variable) in variables.into_iter().flatten() {
        if let Some(default) = variable.get("default").and_then(Value::as_str) {
            url = url.replace(&format!("{{{name}}}"), default);
        }
    }
    match url.contains(['{', '}']) {
        true => Err(OpenApiError::ServerVariable(url)),
        false => Ok(Some(url)),
    }
}

/// Returns the URL of the first server of an operation, or of its path.
fn own_server(
    item: &Value,
    operation: &Map<String, Value>,
) -> Result<Option<String>, OpenApiError> {
    let servers = operation.get("servers").map(|servers| json!({ "servers": servers }));
    match servers.as_ref().map(first_server).transpose()?.flatten() {
        None => first_server(item),
        own => Ok(own),
    }
}

fn read(
    document: &Value,
    path: &str,
    method: &str,
    item: &Value,
    operation: &Map<String, Value>,
) -> Result<Operation, OpenApiError> {
    let shared = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let mine = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<&Value> = shared.chain(mine).map(|own| followed(document, own)).collect();
    // A part of the path that is not declared is a text, as the import has it.
    let is_declared = |part: &str| {
        all.iter().any(|own| own["name"].as_str() == Some(part) && own["in"] == "path")
    };
    let parts = path.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0));
    let undeclared = parts.filter(|part| !is_declared(part)).map(|part| Parameter {
        argument: part.to_owned(),
        name: part.to_owned(),
        style: Style::Simple,
    });
    let mut parameters: Vec<Parameter> = undeclared.collect();
    for parameter in all {
        let text = |name: &str| parameter.get(name).and_then(Value::as_str);
        let Some(name) = text("name") else { continue };
        // Headers and cookies carry credentials, which agents must not choose.
        let Some(style) = Style::of(parameter) else { continue };
        let is_path = style.is_of_path();
        if let Some(known) = parameters
            .iter_mut()
            .find(|known| known.name == name && known.style.is_of_path() == is_path)
        {
            // A parameter of the operation overrides that of its path.
            known.style = style;
            continue;
        }
        let taken = parameters.iter().any(|known| known.argument == name);
        let argument = match (taken, is_path) {
            (true, false) => format!("query_{name}"),
            _ => name.to_owned(),
        };
        parameters.push(Parameter { argument, name: name.to_owned(), style });
    }
    let body = operation.get("requestBody").map(|body| followed(document, body));
    let json = body.and_then(|body| body.get("content")).and_then(Value::as_object);
    let has_body = json.is_some_and(|types| types.keys().any(|kind| is_json(kind)));
    let taken = parameters.iter().any(|known| known.argument == "body");
    let body = has_body.then(|| if taken { "requestBody" } else { "body" }.to_owned());
    let method = Method::from_bytes(method.to_uppercase().as_bytes())
        .map_err(|_| OpenApiError::Method(method.to_owned()))?;
    Ok(Operation { base: None, method, path: path.to_owned(), parameters, body })
}

impl Operation {
    fn fill(&self, base: &str, arguments: &Value) -> Result<Request, FillError> {
        let argument = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        let mut path = self.path.clone();
        let mut query: Vec<String> = Vec::new();
        for parameter in &self.parameters {
            let (name, shown) = (&parameter.name, &parameter.argument);
            match (argument(shown), parameter.style.is_of_path()) {
                (None, true) => return Err(FillError::MissingInOperation(shown.clone())),
                (None, false) => (),
                (Some(value), true) => {
                    path = path.replace(&format!("{{{name}}}"), &parameter.in_path(value)?);
                }
                (Some(value), false) => parameter.add_to_query(value, &mut query)?,
            }
        }
        if path.contains(['{', '}']) {
            return Err(FillError::UndeclaredPart);
        }
        let text = format!("{base}{path}");
        let mut url = Url::parse(&text)?;
        query.splice(0..0, url.query().map(str::to_owned));
        if !query.is_empty() {
            url.set_query(Some(&query.join("&")));
        }
        let body = self.body.as_ref().and_then(|name| argument(name)).cloned();
        Ok(Request { method: self.method.clone(), url, body })
    }
}

#[cfg(test)]
mod tests {
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
            "https://pets.example/v1/pets/a%20b?id=3&tags=x,y&all=1&all=2&by%5Bage%5D=2"
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
    fn operations_are_sent_to_their_servers() {
        let document = json!({
            "openapi": "3.1.0",
            "servers": [{"url": "https://{host}/api/{ver}", "variables": {
                "host": {"default": "a.example"}, "ver": {"default": "v1"}}}],
            "paths": {
                "/plain": {"get": {}},
                "/x/{id}": {"get": {"parameters": [{"name": "id", "in": "query"}]}},
                "/path": {"servers": [{"url": "https://b.example/p/"}], "get": {},
                    "put": {"servers": [{"url": "https://c.example"}]}},
            },
        });
        let operations = Operations::read(&document, None).unwrap();
        let at = |operations: &Operations, target: &str| {
            operations.fill(target, None, &json!({})).unwrap().unwrap().url.to_string()
        };
        let undeclared = operations.fill("GET /x/{id}", None, &json!({"id": "a/b", "query_id": 1}));
        let undeclared = undeclared.unwrap().unwrap();
        assert_eq!(undeclared.url.as_str(), "https://a.example/api/v1/x/a%2Fb?id=1");
        assert_eq!(at(&operations, "GET /plain"), "https://a.example/api/v1/plain");
        assert_eq!(at(&operations, "GET /path"), "https://b.example/p/path");
        assert_eq!(at(&operations, "PUT /path"), "https://c.example/path");
        let hosts: Vec<String> = operations.hosts().into_iter().collect();
        assert_eq!(hosts, ["a.example", "b.example", "c.example"]);
        let configured = Operations::read(&document, Some("http://127.0.0.1:1")).unwrap();
        assert_eq!(at(&configured, "PUT /path"), "http://127.0.0.1:1/path");
        // A configured URL makes up for servers that no request can be sent to.
        let mut relative = document.clone();
        relative["paths"]["/path"]["servers"][0]["url"] = json!("/p");
        assert!(Operations::read(&relative, None).is_err());
        let configured = Operations::read(&relative, Some("http://127.0.0.1:1")).unwrap();
        assert_eq!(at(&configured, "GET /path"), "http://127.0.0.1:1/path");
        for host in ["@evil.example/x", ".evil.example/x", "x"] {
            let text = json!({"openapi": "3.1.0", "paths": {host: {"get": {}}}});
            let error = Operations::read(&text, Some("https://api.example")).unwrap_err();
            assert!(error.to_string().contains("does not begin with `/`"), "{error}");
        }
        let mut open = document.clone();
        open["servers"][0]["variables"] = json!({});
        let error = Operations::read(&open, None).unwrap_err();
        assert!(error.to_string().contains("{host}"), "{error}");
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
