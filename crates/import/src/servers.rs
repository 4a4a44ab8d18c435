//! Reads the servers in the configurations of MCP clients, each of which has its own format.
//!
//! Doc: importing.md#clients

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use serde_json::{Map, Value};
use toolbooth_adapters::secrets::with_placeholders;
use toolbooth_contracts::secret::SecretShapes;
use url::{Host, Url};

use crate::client::Client;
use crate::error::ImportError;
use crate::keeper::{Keeper, variable};
use crate::section::{Section, Sections};
use crate::server_ids::ServerIds;

/// The content of a client's configuration.
#[derive(Debug, Default)]
pub struct Imported {
    /// Sections to be written, by kind and name.
    pub sections: Sections,
    /// The names of all servers in the client's file, except this gateway.
    pub servers: Vec<String>,
    /// Notices for the operator.
    pub notices: Vec<String>,
}

/// Reads the text of a client's configuration. `path` is its location, to which relative paths in it
/// are relative. `shapes` recognises secrets. A server at `door`, where the gateway listens, is the gateway itself.
///
/// # Errors
/// [`ImportError::NoToml`], [`ImportError::NoJson`].
pub fn read(
    client: Client,
    path: &Path,
    text: &str,
    shapes: &SecretShapes,
    door: Option<SocketAddr>,
) -> Result<Imported, ImportError> {
    let document = document(client, text)?;
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut reading =
        Reading { client, base: base(client, &whole), shapes, door, imported: Imported::default() };
    let mut servers: Vec<&Map<String, Value>> = Vec::new();
    servers.extend(document.get(client.member()).and_then(Value::as_object));
    if client == Client::Claude {
        // One file for all projects; only the servers of the current folder are used.
        let here = std::env::current_dir().unwrap_or_default();
        let project = document
            .get("projects")
            .and_then(|projects| projects.get(here.to_string_lossy().as_ref()))
            .and_then(|project| project.get("mcpServers"));
        servers.extend(project.and_then(Value::as_object));
    }
    let mut ids = ServerIds::default();
    for (name, server) in servers.into_iter().flatten() {
        let is_ours = server.as_object().is_some_and(|server| is_this_gateway(server, door));
        if !is_ours && !reading.imported.servers.contains(name) {
            reading.imported.servers.push(name.clone());
        }
        if let Some(why) = ids.unusable(name).filter(|_| !is_ours) {
            reading.notice(format!("the server `{}` was left out: {why}", name.escape_debug()));
            continue;
        }
        match server.as_object() {
            Some(members) if members.get("command").is_some_and(is_no_command) => {
                reading.notice(format!("`{name}` was left out: its `command` is no text"));
            }
            Some(members) => {
                if reading.server(name, members) {
                    ids.add(name);
                }
            }
            None => reading.notice(format!("`{name}` is not a server and was left out")),
        }
    }
    if client == Client::Gemini {
        reading.commands(&document);
        reading.leave_out_unused(&document);
    }
    Ok(reading.imported)
}

fn is_no_command(value: &Value) -> bool {
    !matches!(value, Value::String(_) | Value::Array(_) | Value::Null)
}

/// Reads the file as a document, which may contain comments.
fn document(client: Client, text: &str) -> Result<Value, ImportError> {
    if client == Client::Codex {
        let table: toml::Table = toml::from_str(text)
            .map_err(|error| ImportError::NoToml(error.message().to_owned()))?;
        return serde_json::to_value(table).map_err(|error| ImportError::NoToml(error.to_string()));
    }
    jsonc_parser::parse_to_serde_value::<Value>(text, &ParseOptions::default())
        .map_err(ImportError::NoJson)
}

/// Returns the base folder of relative paths in a client's file; `None` for files that belong to a
/// user and not to a project.
fn base(client: Client, path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    match client {
        Client::Claude => (path.file_name()? == ".mcp.json").then(|| folder.to_owned()),
        Client::Vscode => folder.parent().map(Path::to_owned),
        _ => {
            let project = folder.parent()?.to_owned();
            let home = std::env::var_os("HOME").map(PathBuf::from);
            (home.as_deref() != Some(project.as_path())).then_some(project)
        }
    }
}

struct Reading<'s> {
    client: Client,
    base: Option<PathBuf>,
    shapes: &'s SecretShapes,
    door: Option<SocketAddr>,
    imported: Imported,
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().filter_map(scalar).collect(),
        other => scalar(other).into_iter().collect(),
    }
}

/// Returns a text, or a number or boolean written without quotes where a text is meant.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Whether a server is this gateway: as `--install` writes it, or the `door` at which it listens. A gateway behind
/// itself would start itself without end, and its calls would be those of the caller `local`.
fn is_this_gateway(members: &Map<String, Value>, door: Option<SocketAddr>) -> bool {
    let urls =
        ["url", "httpUrl", "serverUrl"].into_iter().filter_map(|name| members.get(name)?.as_str());
    if urls.filter_map(|url| url.parse().ok()).any(|url| is_door(&url, door)) {
        return true;
    }
    let command = members.get("command").and_then(Value::as_str).unwrap_or_default();
    let words = members.get("args").map(strings).unwrap_or_default();
    let named = Path::new(command).file_name().is_some_and(|name| name == "toolbooth");
    let this = std::env::current_exe().is_ok_and(|this| this == Path::new(command));
    (named || this) && words.iter().any(|word| word == "stdio")
}

/// Whether a URL leads to the MCP door of this machine at that port.
fn is_door(url: &Url, door: Option<SocketAddr>) -> bool {
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => is_own(address.into(), door),
        Some(Host::Ipv6(address)) => is_own(address.into(), door),
        None => false,
    };
    is_here && door.is_some_and(|door| url.port_or_known_default() == Some(door.port()))
}

fn is_own(address: IpAddr, door: Option<SocketAddr>) -> bool {
    let address = address.to_canonical();
    address.is_loopback()
        || address.is_unspecified()
        || door.is_some_and(|door| door.ip() == address)
}

fn millis(seconds: &Value) -> Option<i64> {
    let seconds = seconds.as_f64().filter(|seconds| (0.0..=86_400.0).contains(seconds))?;
    #[expect(clippy::cast_possible_truncation, reason = "at most a day")]
    Some((seconds * 1000.0) as i64)
}

impl Reading<'_> {
    fn notice(&mut self, text: String) {
        self.imported.notices.push(text);
    }

    /// Converts the client's own placeholders into those of Toolbooth; `${VAR}` stays.
    fn text(&mut self, server: &str, text: &str) -> String {
        let folder =
            self.base.as_ref().map_or_else(|| ".".to_owned(), |base| base.display().to_string());
        let notices = &mut self.imported.notices;
        let text = match self.client {
            Client::Gemini => crate::values::braced(text),
            _ => text.to_owned(),
        };
        let said = with_placeholders::<Infallible>(&text, |inner| {
            Ok(match (inner.split_once(':'), inner) {
                (Some(("env", name)), _) => format!("${{{name}}}"),
                (Some(("input", id)), _) => {
                    let variable = variable(&[id]);
                    notices.push(format!(
                        "servers.{server}: the client asks for `{id}`; Toolbooth takes it from the variable {variable}"
                    ));
                    format!("${{{variable}}}")
                }
                (_, "workspaceFolder") => folder.clone(),
                (_, "workspaceFolderBasename") => {
                    folder.rsplit('/').next().unwrap_or_default().to_owned()
                }
                (_, "userHome") => "${HOME}".to_owned(),
                (_, "pathSeparator" | "/") => std::path::MAIN_SEPARATOR.to_string(),
                (_, other) => format!("${{{other}}}"),
            })
        });
        match said {
            Ok(said) => said,
            Err(never) => match never {},
        }
    }

    fn texts(&mut self, server: &str, value: &Value) -> Vec<String> {
        strings(value).iter().map(|text| self.text(server, text)).collect()
    }

    fn members(&mut self, server: &str, value: &Value) -> Vec<(String, String)> {
        let members = value.as_object().into_iter().flatten();
        let given: Vec<(String, String)> =
            members.filter_map(|(name, value)| Some((name.clone(), scalar(value)?))).collect();
        given.into_iter().map(|(name, text)| (name, self.text(server, &text))).collect()
    }

    /// Reads a server. Returns whether it is imported.
    fn server(&mut self, name: &str, members: &Map<String, Value>) -> bool {
        if is_this_gateway(members, self.door) {
            self.notice(format!("`{name}` is Toolbooth itself and was left out"));
            return false;
        }
        let mut section = Section::default();
        let mut env: Vec<(String, String)> = Vec::new();
        let mut headers: Vec<(String, String)> = Vec::new();
        let (mut url, mut arguments, mut working) = (None, Vec::new(), None);
        for (key, value) in members {
            match key.as_str() {
                "command" => match value {
                    // Some clients accept a list here.
                    Value::Array(_) => {
                        let mut words = self.texts(name, value).into_iter();
                        section.set("command", words.next().unwrap_or_default());
                        arguments.splice(0..0, words);
                    }
                    other => {
                        let command = scalar(other).unwrap_or_default();
                        let command = self.text(name, &command);
                        let notices = &mut self.imported.notices;
                        let mut keeper =
                            Keeper { server: name, folder: None, shapes: self.shapes, notices };
                        section.set("command", keeper.worded("command", &command));
                    }
                },
                "args" => arguments.extend(self.texts(name, value)),
                "env" | "environment" => env.extend(self.members(name, value)),
                "env_vars" => {
                    let passed = strings(value).into_iter();
                    env.extend(passed.map(|name| (name.clone(), format!("${{{name}}}"))));
                }
                "cwd" => working = scalar(value).map(|text| self.text(name, &text)),
                "url" | "httpUrl" | "serverUrl" => {
                    url = scalar(value).map(|text| self.text(name, &text));
                }
                "headers" | "http_headers" => headers.extend(self.members(name, value)),
                "env_http_headers" => {
                    let named = self.members(name, value).into_iter();
                    headers.extend(named.map(|(header, name)| (header, format!("${{{name}}}"))));
                }
                "bearer_token_env_var" => {
                    let variable = scalar(value).unwrap_or_default();
                    headers.push(("Authorization".to_owned(), format!("Bearer ${{{variable}}}")));
                }
                "enabled_tools" | "includeTools" => section.list("tools", strings(value)),
                "disabled_tools" | "excludeTools" => section.list("deny", strings(value)),
                "startup_timeout_sec" | "startup_timeout_ms" | "tool_timeout_sec" | "timeout" => {
                    let milliseconds =
                        if key.ends_with("_sec") { millis(value) } else { value.as_i64() };
                    let setting = if key.starts_with("startup") {
                        "startup_timeout_ms"
                    } else {
                        "timeout_ms"
                    };
                    if let Some(milliseconds) = milliseconds.filter(|ms| *ms > 0) {
                        section.set(setting, milliseconds);
                    }
                }
                "enabled" | "disabled" => {
                    if value.as_bool() == Some(key == "disabled") {
                        section.set("enabled", false);
                    }
                }
                "description" => {
                    if let Some(text) = value.as_str() {
                        section.set("description", text);
                    }
                }
                "type" | "transport" => {
                    if value.as_str() == Some("sse") {
                        section.set("enabled", false);
                        self.notice(format!(
                            "servers.{name}: speaks the old SSE transport, which Toolbooth does not; it is written with `enabled = false`"
                        ));
                    }
                }
                "trust" => {
                    if value.as_bool() == Some(true) {
                        self.notice(format!(
                            "servers.{name}: `trust` was not taken over; say `defaults = {{ trust_level = \"trusted\" }}` where you mean it"
                        ));
                    }
                }
                other => self.notice(format!(
                    "servers.{name}: `{}` was not taken over",
                    other.escape_debug()
                )),
            }
        }
        if !members.contains_key("command") && url.is_none() {
            self.notice(format!("`{name}` has neither `command` nor `url` and was left out"));
            return false;
        }
        if members.contains_key("command") && url.take().is_some() {
            self.notice(format!("servers.{name}: has `command` and `url`; the command was taken"));
        }
        let folder = match (working, &self.base) {
            _ if !members.contains_key("command") => None,
            (Some(cwd), Some(base)) if !cwd.starts_with("${") => Some(base.join(cwd)),
            (Some(cwd), _) => Some(PathBuf::from(cwd)),
            (None, base) => base.clone(),
        };
        let mut keeper = Keeper {
            server: name,
            folder: folder.as_deref(),
            shapes: self.shapes,
            notices: &mut self.imported.notices,
        };
        if !arguments.is_empty() {
            section.list("args", keeper.arguments(arguments));
        }
        if let Some(url) = url {
            section.set("url", keeper.url(url));
        }
        for (kind, given) in [("env", env), ("headers", headers)] {
            if !given.is_empty() {
                let kept = given
                    .into_iter()
                    .map(|(name, text)| {
                        let kept = keeper.named(kind, &name, text);
                        (name, kept)
                    })
                    .collect();
                section.map(kind, kept);
            }
        }
        if let Some(folder) = folder {
            section.set("cwd", folder.display().to_string());
        }
        self.imported.sections.insert(("servers", name.to_owned()), section);
        true
    }

    /// Disables servers that Gemini does not start because of one of its lists.
    fn leave_out_unused(&mut self, document: &Value) {
        let at = |name: &str, old: &str| {
            let lists = document.get("mcp").and_then(|lists| lists.get(name));
            lists.or_else(|| document.get(old)).and_then(Value::as_array).map(|list| {
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
            })
        };
        let allowed = at("allowed", "allowMCPServers");
        let excluded = at("excluded", "excludeMCPServers").unwrap_or_default();
        for ((kind, name), section) in &mut self.imported.sections {
            let is_allowed = allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
            if *kind == "servers" && (excluded.contains(name) || !is_allowed) {
                section.set("enabled", false);
                self.imported.notices.push(format!(
                    "servers.{name}: the client does not start it; it is written with `enabled = false`"
                ));
            }
        }
    }

    /// Reads the commands that list and run tools, from either of their two places.
    fn commands(&mut self, document: &Value) {
        let at = |names: [&str; 2]| {
            let tools = document.get("tools").and_then(|tools| tools.get(names[0]));
            tools.or_else(|| document.get(names[1])).and_then(Value::as_str).map(str::to_owned)
        };
        let discovery = at(["discoveryCommand", "toolDiscoveryCommand"]);
        let call = at(["callCommand", "toolCallCommand"]);
        match (discovery, call) {
            (Some(discovery), Some(call)) => {
                let mut section = Section::default();
                let notices = &mut self.imported.notices;
                let mut keeper =
                    Keeper { server: "gemini", folder: None, shapes: self.shapes, notices };
                section.set("discover_command", keeper.worded("discover_command", &discovery));
                // The path of one program, which is called with the tool's name.
                section.list("call_command", [call]);
                section.set("error_text", "full");
                if let Some(base) = &self.base {
                    section.set("cwd", base.display().to_string());
                }
                let name = format!("{:?}", self.client).to_lowercase();
                self.imported.sections.insert(("commands", name), section);
            }
            (None, None) => (),
            _ => self.notice(
                "only one of the discovery and the call command is set; both were left out"
                    .to_owned(),
            ),
        }
    }
}
