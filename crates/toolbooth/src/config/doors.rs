//! The settings of the front doors and of the call path: `[proxy]`, `[mcp]`, `[http]`, `[auth]`.
//!
//! Doc: configuration.md, configuration.md#auth

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_contracts::ToolPattern;
use toolbooth_proxy::Intent;
use toolbooth_proxy::OutputRule;
use toolbooth_registry::wire::Naming;
use toolbooth_registry::wire::Prefix;
use toolbooth_server::Listing;
use toolbooth_server::auth::Loopback;

/// The default address to listen on.
pub(crate) const LISTEN: &str = "127.0.0.1:7717";

/// Limits of the call path.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Proxy {
    /// Concurrent calls.
    pub(crate) in_flight_max: Option<usize>,
    /// Bytes of arguments.
    pub(crate) argument_bytes_max: Option<usize>,
    /// Bytes of a result.
    pub(crate) result_bytes_max: Option<usize>,
    /// The handling of a result that does not match its schema.
    pub(crate) output: OutputRule,
    /// When a tool starts that an operator marked `readOnly`: after its claim is durable, or at once. Calls
    /// with a key always wait.
    pub(crate) intent: Intent,
    /// The same for single tools or patterns; the narrower pattern applies.
    pub(crate) intents: BTreeMap<ToolPattern, Intent>,
    /// How long running calls can continue during shutdown, in milliseconds.
    pub(crate) shutdown_grace_ms: Option<u64>,
    /// The maximum run time of a tool that resets its timeout by progress, in milliseconds.
    pub(crate) progress_cap_ms: Option<u64>,
    /// How long a tool waits for input, in milliseconds.
    pub(crate) input_patience_ms: Option<u64>,
    /// The maximum number of waiting asynchronous calls. One caller can have half as many.
    pub(crate) queued_max: Option<usize>,
    /// Concurrent asynchronous calls of `serve`; 0 leaves them to `toolbooth worker`.
    pub(crate) workers: Option<usize>,
}

/// The MCP front door.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Mcp {
    /// The form of tool names on the wire.
    pub(crate) names: Naming,
    /// Whether names of upstream tools begin with the name of their server.
    pub(crate) prefix: Prefix,
    /// The content of `tools/list`.
    pub(crate) listing: Listing,
    /// The server with resource URIs that are shown unchanged, without the server name as prefix.
    pub(crate) bare_uris: Option<String>,
}

/// The HTTP front door.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Http {
    /// The address to listen on.
    pub(crate) listen: Option<String>,
    /// The loopback connections that can call without credentials.
    pub(crate) loopback: Loopback,
    /// The certificate and key with which the door speaks TLS, both in PEM; read again when they change.
    pub(crate) tls: Option<HttpTls>,
    /// Whether a proxy is in front of the door, which terminates TLS. No connection is `local` then.
    pub(crate) behind_proxy: bool,
    /// The addresses of the proxies, such as `10.0.0.0/8` or `127.0.0.1`; other connections are refused.
    pub(crate) trusted_proxies: Vec<String>,
    /// Names of the door that clients send as `Host`, in addition to its own address.
    pub(crate) hosts: Vec<String>,
    /// Origins of web pages that can call, such as `https://gateway.example`.
    pub(crate) origins: Vec<String>,
    /// Concurrent connections; absent = 16384, or a lower number that the limit of open files allows.
    pub(crate) connections_max: Option<usize>,
    /// Time for a request's head from its first byte, in milliseconds.
    pub(crate) header_timeout_ms: Option<u64>,
    /// Time for a request's body, in milliseconds.
    pub(crate) body_timeout_ms: Option<u64>,
    /// Time in which a client must accept part of its response, in milliseconds.
    pub(crate) write_timeout_ms: Option<u64>,
    /// Bytes of request bodies that are held for all connections.
    pub(crate) body_bytes_budget: Option<usize>,
    /// MCP sessions of all callers.
    pub(crate) sessions_max: Option<usize>,
    /// MCP sessions of one caller; a further session ends the one that is idle the longest.
    pub(crate) sessions_per_caller_max: Option<usize>,
    /// How long an MCP session may be idle, in milliseconds.
    pub(crate) session_idle_ms: Option<u64>,
}

impl Http {
    /// Returns the scheme of the door's URLs.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// The files of a certificate.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpTls {
    /// The certificate of the gateway, followed by those of its issuers.
    pub(crate) cert: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// Who calls.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// The caller of the stdio front door: `local` (the default), `key:NAME` or `jwt:ISSUER#SUBJECT`.
    pub(crate) stdio_caller: Option<String>,
    /// The URL of the MCP endpoint as clients reach it, such as `https://gateway.example/mcp`: the resource for
    /// which access tokens are issued; absent = that of the listening address, on loopback.
    pub(crate) resource: Option<String>,
    /// Scopes that every access token must have.
    pub(crate) scopes: Vec<String>,
    /// Issuers of access tokens (OAuth 2.1, JWT).
    pub(crate) issuers: BTreeMap<String, Issuer>,
}

/// An issuer of access tokens.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Issuer {
    /// The claim `iss` of its tokens, such as `https://id.example`.
    pub(crate) issuer: String,
    /// The address of its keys (JWKS); absent = the one in its metadata.
    #[serde(default)]
    pub(crate) jwks_uri: Option<String>,
    /// The audiences of which a token must have one; absent = the resource.
    #[serde(default)]
    pub(crate) audiences: Option<Vec<String>>,
    /// The claim with the groups of the caller: a name, or a JSON pointer such as `/realm_access/roles`. They are
    /// matched as `group:SECTION/NAME`.
    #[serde(default)]
    pub(crate) groups_claim: Option<String>,
}

/// The content of a front door of its own; never more than the caller can see.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolSet {
    /// Tools, by id or pattern.
    pub(crate) tools: Vec<ToolPattern>,
    /// Prompts, by `SERVER.NAME` or pattern; absent = those of servers with all their tools in `tools`.
    #[serde(default)]
    pub(crate) prompts: Option<Vec<ToolPattern>>,
    /// Resources, by `SERVER.URI` or pattern; absent as for prompts.
    #[serde(default)]
    pub(crate) resources: Option<Vec<ToolPattern>>,
}
