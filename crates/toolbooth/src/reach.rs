//! Ways to reach tools, from configuration: built-in ones, handlers, commands, endpoints, servers.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use toolbooth_adapters::builtin::{BuiltinSettings, SearchEndpoint};
use toolbooth_adapters::command::{self, CallLine, CommandSettings, CommandTemplate, CommandTools};
use toolbooth_adapters::endpoint::{
    self, EndpointSettings, Operations, Plan, REDIRECTS_MAX, RequestTemplate,
};
use toolbooth_adapters::handlers::{self, HandlerFolder};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::{CallerSettings, Child, Credentials, Reach, ServerSettings};
use toolbooth_adapters::net_guard::Guard;
use toolbooth_adapters::process::CommandLine;
use toolbooth_adapters::sandbox::{Standing, server_profile};
use toolbooth_adapters::secrets;
use toolbooth_contracts::secret::{SecretLocation, SecretRef};
use toolbooth_contracts::trust::{TrustLevel, TrustLevels};

use crate::config::{self, Config, Loaded, Setting, ToolDefaults};
use crate::failure::Failure;

/// How long a server may take to connect, where nothing is said.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a command may take to list its tools, where nothing is said.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Where servers have their homes and caches, in the data folder.
const OWN_FOLDERS: &str = "servers";
/// Largest OpenAPI document, in bytes.
const DOCUMENT_BYTES_MAX: u64 = 32 << 20;

/// What starts every child: this program itself.
pub(crate) fn launcher(loaded: &Loaded) -> Result<Launcher, Failure> {
    let sandbox = &loaded.config.sandbox;
    let cgroup = sandbox.cgroup.as_ref().map(|folder| loaded.path(folder));
    let launcher = Launcher::of_this_program(cgroup).hiding(hidden(loaded));
    Ok(launcher.with_network(sandbox.network()?))
}

/// What no tool sees: records and keys, and settings that may hold what nobody should know.
fn hidden(loaded: &Loaded) -> Vec<PathBuf> {
    let own = std::iter::once(&loaded.data).chain(&loaded.file);
    own.map(|path| {
        // What is not there yet has a folder that is.
        let beside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.clone())
    })
    .collect()
}

/// What words for trust mean.
pub(crate) fn levels(config: &Config) -> TrustLevels {
    TrustLevels::with(config.trust.levels.clone())
}

/// The trust level of what a source runs beside single calls.
fn trust(config: &Config, own: &ToolDefaults) -> TrustLevel {
    let word = own.trust_level.as_ref().or(config.discovery.defaults.trust_level.as_ref());
    word.map_or(TrustLevel::Untrusted, |word| levels(config).of(word))
}

pub(crate) fn builtin_settings(
    loaded: &Loaded,
    launcher: &Launcher,
) -> Result<BuiltinSettings, Failure> {
    let builtin = &loaded.config.builtin;
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let roots = match &builtin.roots {
        Some(roots) => roots.iter().map(|root| loaded.path(root)).collect(),
        None => vec![here],
    };
    let search = builtin.web_search.endpoint.clone().map(|url| SearchEndpoint {
        url,
        timeout: Duration::from_millis(builtin.web_search.timeout_ms.unwrap_or(10_000)),
    });
    let this = std::env::current_exe().map_err(|error| {
        Failure::configuration(format!("this program cannot be found: {error}"))
    })?;
    let worker = CommandLine {
        argv: vec![this.display().to_string().into(), crate::WORKER.into(), "doc_parser".into()],
        ..CommandLine::default()
    };
    Ok(BuiltinSettings {
        roots,
        hidden: hidden(loaded),
        search,
        document_worker: Some((launcher.clone(), worker)),
    })
}

/// The folders with handlers; the default one is beside the registry file.
pub(crate) fn handler_folders(loaded: &Loaded) -> Result<Vec<HandlerFolder>, Failure> {
    let mut folders = Vec::new();
    for (name, runtime) in &loaded.config.runtimes {
        if runtime.kind != config::RuntimeKind::Handlers {
            continue;
        }
        let place = format!("runtimes.{name}");
        let wrong = |message: &str| Failure::configuration(message.to_owned()).at(place.clone());
        if runtime.command.is_some() || runtime.cwd.is_some() {
            return Err(wrong("`command` and `cwd` belong to a runtime of kind `command`"));
        }
        let dir = runtime.dir.as_ref().ok_or_else(|| wrong("a runtime of handlers needs `dir`"))?;
        if runtime.workers == Some(0) {
            return Err(wrong("`workers` must be more than 0"));
        }
        let sandboxes = &loaded.config.sandbox;
        folders.push(HandlerFolder {
            folder: loaded.path(dir),
            language: runtime.language.map(|language| match language {
                config::Language::Node => handlers::Language::Node,
                config::Language::Python => handlers::Language::Python,
            }),
            domains: match &runtime.domains {
                config::Domains::One(all) if all == "*" => None,
                config::Domains::One(one) => Some(vec![one.clone()]),
                config::Domains::Some(domains) => Some(domains.clone()),
            },
            interpreter: runtime.interpreter.clone(),
            workers_max: runtime.workers.unwrap_or(handlers::WORKERS_MAX),
            env: settings(loaded, &runtime.env),
            sandbox: sandboxes.standing(
                runtime.sandbox.as_ref(),
                &format!("{place}.sandbox"),
                Some(&loaded.path(dir)),
            )?,
        });
    }
    if folders.iter().all(|folder| folder.domains.is_some()) {
        let (registry, _) = loaded.registry();
        folders.push(HandlerFolder {
            folder: registry.parent().unwrap_or(&loaded.folder).join("handlers"),
            language: None,
            domains: None,
            interpreter: None,
            workers_max: handlers::WORKERS_MAX,
            env: Vec::new(),
            sandbox: Standing::Unsaid,
        });
    }
    Ok(folders)
}

/// A runtime whose tools are commands.
pub(crate) fn command_runtime(
    loaded: &Loaded,
    name: &str,
    runtime: &config::Runtime,
) -> Result<CommandSettings, Failure> {
    let place = format!("runtimes.{name}");
    let wrong = |message: String| Failure::configuration(message).at(place.clone());
    let of_handlers = runtime.dir.is_some() || runtime.workers.is_some();
    if of_handlers || runtime.language.is_some() || runtime.interpreter.is_some() {
        let message =
            "`dir`, `language`, `interpreter` and `workers` belong to a runtime of handlers";
        return Err(wrong(message.to_owned()));
    }
    let text = runtime.command.as_ref();
    let text = text.ok_or_else(|| wrong("a runtime of commands needs `command`".to_owned()))?;
    let words = words(text, &format!("{place}.command"))?;
    let template = CommandTemplate::parse(&words).map_err(wrong)?;
    let cwd = folder(loaded, runtime.cwd.as_ref());
    let line = CommandLine {
        // For what asks whether the program is there.
        argv: words.into_iter().take(1).map(secrets::Setting::Literal).collect(),
        env: settings(loaded, &runtime.env),
        cwd: Some(cwd.clone()),
        written: 1,
        own: None,
        profile_name: None,
    };
    let sandboxes = &loaded.config.sandbox;
    Ok(CommandSettings {
        line: CallLine::Filled { line, template },
        error_text: error_text(runtime.error_text),
        sandbox: sandboxes.of_calls(
            runtime.sandbox.as_ref(),
            &format!("{place}.sandbox"),
            present(&cwd).as_deref(),
        )?,
        levels: levels(&loaded.config),
    })
}

fn error_text(text: config::ErrorText) -> command::ErrorText {
    match text {
        config::ErrorText::Safe => command::ErrorText::Safe,
        config::ErrorText::Full => command::ErrorText::Full,
    }
}

/// An HTTP endpoint; a sentence where a variable of its URL is not set.
pub(crate) fn endpoint(
    loaded: &Loaded,
    name: &str,
    said: &config::endpoints::Endpoint,
) -> Result<Result<EndpointSettings, String>, Failure> {
    let place = format!("endpoints.{name}");
    let wrong = |message: String| Failure::configuration(message).at(place.clone());
    let url = match &said.url {
        Some(url) => {
            match secrets::Setting::Template(url.clone()).resolve() {
                Ok(filled) => Some(filled),
                // Nothing else stops because of it.
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        None => None,
    };
    let url = url.as_ref().map(ExposeSecret::expose_secret);
    let plan = match (&said.openapi, url) {
        (Some(file), base) => {
            if said.method.is_some() || !said.query.is_empty() || said.body.is_some() {
                let message = "`method`, `query` and `body` come from the OpenAPI document";
                return Err(wrong(message.to_owned()));
            }
            let path = loaded.path(file);
            let document = document(&path).map_err(|message| {
                Failure::configuration(message).at(path.display().to_string())
            })?;
            let operations = Operations::read(&document, base);
            Plan::Operations(Box::new(operations.map_err(wrong)?))
        }
        (None, Some(url)) => {
            let query: Vec<(String, String)> =
                said.query.iter().map(|(name, text)| (name.clone(), text.clone())).collect();
            let template =
                RequestTemplate::parse(said.method.as_deref(), url, &query, said.body.clone());
            Plan::Template(Box::new(template.map_err(wrong)?))
        }
        (None, None) => return Err(wrong("an endpoint needs `url` or `openapi`".to_owned())),
    };
    if said.redirects > REDIRECTS_MAX {
        return Err(wrong(format!("`redirects` is at most {REDIRECTS_MAX}")));
    }
    let idempotency_header = said.idempotency_header.as_deref().map(http::HeaderName::from_str);
    let authorities = said.ca_file.as_ref().map(|file| std::fs::read(loaded.path(file)));
    Ok(Ok(EndpointSettings {
        name: name.to_owned(),
        plan,
        headers: settings(loaded, &said.headers),
        guard: Guard::new(said.allow_private),
        redirects: said.redirects,
        response_bytes_max: said.response_bytes_max.unwrap_or(endpoint::RESPONSE_BYTES_MAX),
        connect_timeout: said
            .connect_timeout_ms
            .map_or(endpoint::CONNECT_TIMEOUT, Duration::from_millis),
        idempotency_header: idempotency_header
            .transpose()
            .map_err(|_| wrong("`idempotency_header` is no header".to_owned()))?,
        authorities: authorities
            .transpose()
            .map_err(|error| wrong(format!("`ca_file` cannot be read: {error}")))?,
    }))
}

/// An OpenAPI document, JSON or YAML.
fn document(path: &Path) -> Result<serde_json::Value, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    if std::fs::metadata(path).map_err(unreadable)?.len() > DOCUMENT_BYTES_MAX {
        return Err("the file is too large".to_owned());
    }
    let text = std::fs::read(path).map_err(unreadable)?;
    if text.trim_ascii_start().starts_with(b"{") {
        return toolbooth_contracts::json::parse(&text)
            .map_err(|fault| format!("the file is no JSON: {fault}"));
    }
    let text = String::from_utf8(text).map_err(|_| "the file is not UTF-8".to_owned())?;
    serde_saphyr::from_str(&text).map_err(|error| format!("the file is no YAML: {error}"))
}

pub(crate) fn setting(loaded: &Loaded, setting: &Setting) -> secrets::Setting {
    match setting {
        Setting::Text(text) => secrets::Setting::Template(text.clone()),
        Setting::Secret(reference) => secrets::Setting::Secret(location(loaded, reference)),
    }
}

/// Where a secret of the configuration is kept; a relative path is relative to the configuration.
pub(crate) fn location(loaded: &Loaded, reference: &SecretRef) -> SecretLocation {
    match &reference.secret_ref {
        SecretLocation::File(path) => {
            SecretLocation::File(loaded.path(Path::new(path)).display().to_string())
        }
        other => other.clone(),
    }
}

pub(crate) fn settings(
    loaded: &Loaded,
    map: &BTreeMap<String, Setting>,
) -> Vec<(String, secrets::Setting)> {
    map.iter().map(|(name, value)| (name.clone(), setting(loaded, value))).collect()
}

/// The folder of a child; one that begins with a variable is no path of the configuration's.
fn folder(loaded: &Loaded, cwd: Option<&PathBuf>) -> secrets::Setting {
    let cwd = cwd.map_or_else(
        || loaded.folder.clone(),
        |cwd| {
            if cwd.starts_with("~") || cwd.to_string_lossy().starts_with("${") {
                cwd.clone()
            } else {
                loaded.path(cwd)
            }
        },
    );
    secrets::Setting::Template(cwd.display().to_string())
}

/// The folder that `cwd` stands for now; `None` where a variable of it is not set.
pub(crate) fn present(cwd: &secrets::Setting) -> Option<PathBuf> {
    let cwd = PathBuf::from(cwd.resolve().ok()?.expose_secret());
    Some(cwd.canonicalize().unwrap_or(cwd))
}

fn words(text: &config::CommandText, place: &str) -> Result<Vec<String>, Failure> {
    let words = match text {
        config::CommandText::Words(words) => Ok(words.clone()),
        config::CommandText::Text(text) => command::words(text),
    };
    match words {
        Ok(words) if !words.is_empty() => Ok(words),
        Ok(_) => Err(Failure::configuration("the command names no program").at(place.to_owned())),
        Err(error) => Err(Failure::configuration(format!("the command cannot be read: {error}"))
            .at(place.to_owned())),
    }
}

pub(crate) fn command_tools(
    loaded: &Loaded,
    name: &str,
    pair: &config::CommandPair,
) -> Result<CommandTools, Failure> {
    let place = format!("commands.{name}");
    let env = settings(loaded, &pair.env);
    let cwd = Some(folder(loaded, pair.cwd.as_ref()));
    let sandbox = loaded.config.sandbox.of_calls(
        pair.sandbox.as_ref(),
        &format!("{place}.sandbox"),
        cwd.as_ref().and_then(present).as_deref(),
    )?;
    let line = |argv: Vec<String>| CommandLine {
        written: argv.len(),
        own: None,
        profile_name: None,
        argv: argv.into_iter().map(secrets::Setting::Literal).collect(),
        env: env.clone(),
        cwd: cwd.clone(),
    };
    Ok(CommandTools {
        name: name.to_owned(),
        discover: line(words(&pair.discover_command, &format!("{place}.discover_command"))?),
        call: line(words(&pair.call_command, &format!("{place}.call_command"))?),
        discover_timeout: pair.discover_timeout_ms.map_or(DISCOVER_TIMEOUT, Duration::from_millis),
        listing_bytes_max: pair.listing_bytes_max.unwrap_or(command::LISTING_BYTES_MAX),
        error_text: error_text(pair.error_text),
        sandbox,
        trust: trust(&loaded.config, &pair.defaults),
    })
}

pub(crate) fn server_settings(
    loaded: &Loaded,
    name: &str,
    server: &config::Server,
) -> Result<ServerSettings, Failure> {
    let place = format!("servers.{name}");
    let wrong = |message: &str| Failure::configuration(message.to_owned()).at(place.clone());
    let reach = match (&server.command, &server.url) {
        (Some(_), Some(_)) => {
            return Err(wrong("a server has either `command` or `url`, not both"));
        }
        (None, None) => return Err(wrong("a server needs `command` or `url`")),
        (Some(program), None) => {
            if !server.headers.is_empty() {
                return Err(wrong("`headers` belong to a server with `url`"));
            }
            let argv = std::iter::once(program).chain(&server.args);
            let argv: Vec<_> = argv.map(|word| secrets::Setting::Template(word.clone())).collect();
            let cwd = folder(loaded, server.cwd.as_ref());
            let written = argv.len();
            let env = settings(loaded, &server.env);
            let own = Some(loaded.data.join(OWN_FOLDERS).join(folder_name(name)));
            let standing = loaded.config.sandbox.standing(
                server.sandbox.as_ref(),
                &format!("{place}.sandbox"),
                present(&cwd).as_deref(),
            )?;
            let profile_name = server.sandbox.as_ref().and_then(|said| said.name(name));
            let line = CommandLine { argv, env, cwd: Some(cwd), written, own, profile_name };
            let profile = standing.profile(server_profile, trust(&loaded.config, &server.defaults));
            Reach::Stdio(Box::new(Child { line, profile }))
        }
        (None, Some(url)) => {
            if !["http://", "https://", "${"].iter().any(|start| url.starts_with(start)) {
                return Err(wrong("`url` must begin with http:// or https://"));
            }
            if server.sandbox.is_some() {
                return Err(wrong("`sandbox` belongs to a server with `command`"));
            }
            let url = secrets::Setting::Template(url.clone());
            Reach::Http { url, headers: settings(loaded, &server.headers) }
        }
    };
    let startup_timeout = server.startup_timeout_ms.map_or(STARTUP_TIMEOUT, Duration::from_millis);
    let own = server.credentials == config::Credentials::Caller;
    let apart = own || server.isolation == config::Isolation::Caller;
    let callers = apart.then(|| CallerSettings {
        server: name.to_owned(),
        credentials: own.then(|| credentials(loaded, name)),
    });
    Ok(ServerSettings { name: name.to_owned(), reach, startup_timeout, callers })
}

/// A folder's name for a server: its own where that is one, else one that no other server has.
pub(crate) fn folder_name(server: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let leads_away = server.starts_with('.') || server.is_empty() || server.len() > 64;
    if server.chars().all(plain) && !leads_away {
        return server.to_owned();
    }
    let hex: String = server.bytes().take(100).map(|byte| format!("{byte:02x}")).collect();
    format!("@{hex}")
}

/// The callers' own variables or headers for a server: of the set that gives them their rights.
fn credentials(loaded: &Loaded, server: &str) -> Credentials {
    type Own = Option<Vec<(String, secrets::Setting)>>;
    let sets: BTreeMap<String, (Vec<String>, Own)> = loaded
        .config
        .callers
        .iter()
        .map(|(name, caller)| {
            let own = caller.secrets.get(server).map(|own| settings(loaded, own));
            (name.clone(), (caller.matches.clone(), own))
        })
        .collect();
    Arc::new(move |caller| {
        let (_, (_, own)) = toolbooth_policy::set_of(&sets, |(matches, _)| matches, caller)?;
        own.clone()
    })
}
