//! Connects to upstream MCP servers, as child processes or over HTTP, in both eras of the protocol.
//!
//! Each server has one connection, or one per caller where configured, and many calls share it. A
//! connection opens on first use and reopens after a loss. Results pass unchanged, except for
//! secrets and reserved members.
//!
//! Path: 3, 7. Doc: execution.md#mcp-servers

mod callers;
mod calls;
mod channel;
mod connection;
mod envelope;
mod fault;
mod greeting;
mod handshake;
mod headers;
mod http;
mod link;
mod listing;
mod message;
mod notifications;
mod opener;
mod request;
mod resolver;
mod results;
mod scan;
mod screening;
mod sse;
mod stdio;
mod subscriptions;
mod upstream;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::{SandboxMismatch, SourceError};
use toolbooth_contracts::execution_log::ServerRefusal;
use toolbooth_contracts::port::{ExecutionError, Listing, ToolSource};
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::{
    Caller, ContentBlock, Conversation, Dispatch, Effect, ErrorCode, ExecutionLog, Executor,
    Outcome,
};

use toolbooth_mcp::header_table::HeaderTables;

use callers::CallerLinks;
pub use callers::{CallerSettings, Credentials};
use link::{Link, Served, Unserved};
use request::Request;

use crate::command_line::CommandLine;
use crate::launcher::Launcher;
use crate::sandbox;
use crate::secrets::Setting;

/// A server that is a child process.
#[derive(Debug, Clone)]
pub struct Child {
    /// The command.
    pub line: CommandLine,
    /// Its sandbox profile; `None` = it runs as the gateway does.
    pub profile: Option<SandboxProfile>,
}

/// The transport of a server.
#[derive(Debug, Clone)]
pub enum ServerTransport {
    /// A child process that speaks over its standard input and output.
    Stdio(Box<Child>),
    /// Streamable HTTP.
    Http {
        /// The URL of the endpoint.
        url: Setting,
        /// Headers, credentials included.
        headers: Vec<(String, Setting)>,
    },
}

/// A configured server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The name in configuration.
    pub name: String,
    /// Its transport.
    pub transport: ServerTransport,
    /// The connect timeout.
    pub startup_timeout: Duration,
    /// Settings for connections per caller; `None` = all callers share one connection.
    pub callers: Option<CallerSettings>,
}

/// An MCP server as a source of tools, an executor, and an upstream for its other features.
pub struct McpServer {
    id: String,
    link: Arc<Link>,
    callers: Option<CallerLinks>,
    header_tables: HeaderTables<ToolContract>,
}

impl McpServer {
    /// Creates a server that is not connected yet. `refusals` records the egress that its sandbox
    /// refuses.
    #[must_use]
    pub fn new(settings: ServerSettings, launcher: Launcher, refusals: ExecutionLog) -> Arc<Self> {
        let id = format!("mcp:{}", settings.name);
        let callers = settings.callers.clone().map(CallerLinks::new);
        let link = Arc::new(Link::new(settings, launcher, refusals));
        Arc::new(Self { id, link, callers, header_tables: HeaderTables::default() })
    }

    /// Returns the link that serves a caller.
    async fn link_of(&self, caller: &Caller) -> Result<Arc<Link>, ExecutionError> {
        let link = match &self.callers {
            Some(callers) => callers.of(caller, &self.link).await?,
            None => Arc::clone(&self.link),
        };
        link.used_by(caller.name());
        Ok(link)
    }
}

#[async_trait]
impl ToolSource for McpServer {
    fn name(&self) -> &str {
        &self.id
    }

    fn timeout(&self) -> Duration {
        // Connecting and listing each have the server's own timeout.
        self.link.settings().startup_timeout * 2 + Duration::from_secs(1)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        listing::list(&self.link, self.link.settings().startup_timeout).await
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        Some(self.link.notifications().changes.receiver())
    }
}

#[async_trait]
impl Executor for McpServer {
    fn may_block(&self) -> bool {
        false
    }

    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let link = match self.link_of(&dispatch.caller).await {
            Ok(link) => link,
            Err(error) => return Outcome::Failed(error),
        };
        let mut request = Request {
            method: "tools/call",
            arguments: Some(&dispatch.arguments),
            ..Request::default()
        };
        request.params.insert("name".to_owned(), json!(dispatch.target()));
        if let Some(key) = &dispatch.idempotency_key {
            request.meta.insert("toolbooth/idempotencyKey".to_owned(), json!(key));
        }
        let deadline = u64::try_from(dispatch.timeout.as_millis()).unwrap_or(u64::MAX);
        request.meta.insert("toolbooth/deadlineMs".to_owned(), json!(deadline));
        // The proxy enforces the tool's timeout. This longer one only bounds the wait for a lost
        // response.
        let timeout = dispatch.timeout + Duration::from_secs(5);
        let params = self.header_tables.of(&dispatch.contract, |contract| &contract.input_schema);
        let (asker, execution_log) = (Some(&conversation), Some(&dispatch.execution_log));
        let Served { connection, printed, result } =
            match link.serve(&request, &params, timeout, asker, execution_log).await {
                Ok(served) => served,
                Err(Unserved::Cancelled | Unserved::Replaced) => {
                    return Outcome::Failed(cancelled());
                }
                Err(Unserved::Unreachable(reason)) => {
                    let internal = format!("{}: {reason}", self.id);
                    return Outcome::Failed(
                        ExecutionError::adapter(Effect::NotStarted, internal)
                            .with_safe(fault::lost(Effect::NotStarted)),
                    );
                }
            };
        match screening::called(result) {
            Ok(mut output) => {
                // The result must not expose the server's secrets.
                connection.secrets().conceal_payload(&mut output.payload);
                if output.is_error {
                    let answer = texts(output.payload.content.as_deref().unwrap_or_default());
                    connection.explain(&answer, printed, &dispatch.execution_log);
                }
                Outcome::Done(output)
            }
            Err(failure) => {
                if failure.fault != fault::Fault::Cancelled {
                    connection.explain("", printed, &dispatch.execution_log);
                }
                if let fault::Fault::Refused(refusal) = &failure.fault {
                    let mut data = refusal.data.as_deref().cloned();
                    if let Some(data) = &mut data {
                        connection.secrets().conceal(data);
                    }
                    dispatch.execution_log.refused(ServerRefusal { code: refusal.code, data });
                }
                Outcome::Failed(failure.of_call(&self.id, |text| link.conceal(text)))
            }
        }
    }

    async fn readiness(&self, _contract: &ToolContract, probe: bool) -> Readiness {
        if !probe {
            return match &self.link.settings().transport {
                ServerTransport::Stdio(child) => child.line.readiness(),
                ServerTransport::Http { url, headers } => {
                    let mut settings =
                        std::iter::once(url).chain(headers.iter().map(|(_, value)| value));
                    let missing = settings.find_map(|setting| setting.resolve().err());
                    missing.map_or(Readiness::Ready, |error| {
                        Readiness::NotConfigured(error.to_string())
                    })
                }
            };
        }
        match self.link.connection().await {
            Ok(_) => Readiness::Ready,
            Err(error) => Readiness::Unhealthy(error.to_string()),
        }
    }

    fn satisfies_sandbox(
        &self,
        _contract: &ToolContract,
        profile: &SandboxProfile,
    ) -> Result<(), SandboxMismatch> {
        let ServerTransport::Stdio(child) = &self.link.settings().transport else {
            return Err(SandboxMismatch::Elsewhere);
        };
        let more = sandbox::exceeds(child.profile.as_ref(), profile);
        if more.is_empty() {
            return Ok(());
        }
        Err(SandboxMismatch::Wider { what: "server", more })
    }

    async fn close(&self) {
        if let Some(callers) = &self.callers {
            callers.close().await;
        }
        self.link.close().await;
        self.link.notifications().notices.close();
    }
}

/// Returns the text of content blocks.
fn texts(content: &[ContentBlock]) -> String {
    let texts: Vec<Cow<'_, str>> = content.iter().filter_map(ContentBlock::as_text).collect();
    texts.join("\n")
}

/// Returns the error of a call that was cancelled before it was submitted to a connection.
fn cancelled() -> ExecutionError {
    ExecutionError {
        code: ErrorCode::Cancelled,
        effect: Effect::NotStarted,
        safe: None,
        internal: "the call was cancelled".to_owned(),
    }
}
