//! Opens connections to one server with the secrets given to it.
//!
//! It stores no connection and does not delay attempts.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::str::FromStr;
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::execution_log::EgressRefusal;
use toolbooth_mcp::Era;

use super::calls::Calls;
use super::channel::{Channel, Line, Transport};
use super::connection::Connection;
use super::handshake::{self, Ungreeted};
use super::http::{Http, is_reserved};
use super::notifications::{Incoming, Notifications};
use super::stdio::{Shared, Stdio};
use super::{Child, ServerSettings, ServerTransport};
use crate::error::ConnectError;
use crate::launcher::Launcher;
use crate::mutex::lock;
use crate::secrets::{KnownSecrets, Setting};

/// The opener of connections to one server.
pub(super) struct Opener {
    pub(super) settings: ServerSettings,
    launcher: Launcher,
    refusals: ExecutionLog,
    /// The last known era of the server, shared by the links of all callers.
    era: Arc<Mutex<Option<Era>>>,
    /// The child to which a connection is being opened.
    starting: Mutex<Option<Arc<Shared>>>,
}
impl Opener {
    pub(super) fn new(
        settings: ServerSettings,
        launcher: Launcher,
        refusals: ExecutionLog,
    ) -> Self {
        let (era, starting) = (Arc::default(), Mutex::default());
        Self { settings, launcher, refusals, era, starting }
    }

    /// Returns an opener for the same server and one caller, with additional variables or headers.
    pub(super) fn of_caller(&self, caller: &str, credentials: Vec<(String, Setting)>) -> Self {
        let mut settings = self.settings.clone();
        match &mut settings.transport {
            ServerTransport::Stdio(child) => {
                child.line.env.extend(credentials);
                // Callers must not share the data that the server stores.
                if let Some(own) = &mut child.line.own {
                    let digest = Sha256::digest(caller.as_bytes());
                    let digest = HEXLOWER.encode(digest.get(..8).unwrap_or(&digest));
                    own.as_mut_os_string().push(format!("@{digest}"));
                }
            }
            ServerTransport::Http { headers, .. } => {
                let replaced =
                    |name: &str| credentials.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
                headers.retain(|(name, _)| !replaced(name));
                headers.extend(credentials);
            }
        }
        let own = Self::new(settings, self.launcher.clone(), self.refusals.clone());
        Self { era: Arc::clone(&self.era), ..own }
    }

    /// Returns `text` with the server's secrets concealed.
    pub(super) fn conceal(&self, text: &str) -> String {
        match &self.settings.transport {
            ServerTransport::Stdio(_) => self.secrets().conceal_text(text),
            ServerTransport::Http { url, .. } => {
                // Errors of the HTTP library contain the URL, which may be a secret as a whole.
                let text = match url.expose() {
                    Ok(filled) => text.replace(&filled, &url.shown()),
                    Err(_) => text.to_owned(),
                };
                self.secrets().conceal_text(&text)
            }
        }
    }

    fn secrets(&self) -> KnownSecrets {
        match &self.settings.transport {
            ServerTransport::Stdio(child) => {
                child.line.clone().with_secrets_of(child.profile.as_ref()).secrets()
            }
            ServerTransport::Http { url, headers } => {
                let headers = headers.iter().map(|(name, value)| (name.as_str(), value));
                Setting::known(std::iter::once(("", url)).chain(headers))
            }
        }
    }

    /// Opens a connection and dispatches its notifications to `notifications`.
    ///
    /// # Errors
    /// [`ConnectError`], for operators.
    pub(super) async fn open(
        &self,
        notifications: &Notifications,
    ) -> Result<Connection, ConnectError> {
        let secrets = self.secrets();
        let incoming = || Incoming {
            calls: Calls::new(secrets.clone()),
            notifications: notifications.clone(),
        };
        let known = *lock(&self.era);
        let timeout = self.settings.startup_timeout;
        let (line, (greeting, speech)) = match &self.settings.transport {
            ServerTransport::Stdio(child) => {
                let line = self.start(child, incoming()).await?;
                match handshake::greet(&line, known, timeout).await {
                    Ok(greeted) => (line, greeted),
                    Err(Ungreeted::Final(reason)) => {
                        return Err(ConnectError::Greeting(reason, self.starting_output()));
                    }
                    // Some servers exit on an unknown request. They are restarted and greeted in the
                    // other era first.
                    Err(Ungreeted::Confused(first)) => {
                        tracing::debug!(reason = first, "a server is started afresh");
                        drop(line);
                        let line = self.start(child, incoming()).await?;
                        let greeted = match known {
                            Some(Era::Legacy) => handshake::greet(&line, None, timeout).await,
                            _ => handshake::initialize(&line).await,
                        };
                        let greeted = greeted.map_err(|error| match error {
                            Ungreeted::Final(reason) | Ungreeted::Confused(reason) => {
                                ConnectError::Greeting(reason, self.starting_output())
                            }
                        })?;
                        (line, greeted)
                    }
                }
            }
            ServerTransport::Http { url, headers } => {
                let mut map = HeaderMap::new();
                for (name, value) in headers {
                    let name = HeaderName::from_str(name).map_err(ConnectError::HeaderName)?;
                    if is_reserved(&name) {
                        return Err(ConnectError::ReservedHeader(name));
                    }
                    let value = value.expose()?;
                    let mut value = HeaderValue::from_str(&value)
                        .map_err(|_| ConnectError::HeaderValue(name.clone()))?;
                    value.set_sensitive(true);
                    map.insert(name, value);
                }
                let url = url.expose()?;
                let http = Http::new(url, map, self.launcher.doors())?;
                let transport = Transport::Http(Arc::new(http));
                let line = Line { transport, incoming: incoming() };
                let greeted =
                    handshake::greet(&line, known, timeout).await.map_err(|error| match error {
                        Ungreeted::Final(reason) | Ungreeted::Confused(reason) => {
                            ConnectError::Greeting(reason, String::new())
                        }
                    })?;
                (line, greeted)
            }
        };
        *lock(&self.era) = Some(greeting.era);
        Ok(Connection::new(Channel::new(line, greeting, speech), secrets))
    }

    async fn start(&self, child: &Child, incoming: Incoming) -> Result<Line, ConnectError> {
        let stdio = Stdio::spawn(child, &self.launcher, &self.refusals, incoming.clone()).await;
        let program = || child.line.program().to_string();
        let stdio = stdio.map_err(|source| ConnectError::Start { program: program(), source })?;
        *lock(&self.starting) = Some(Arc::clone(&stdio.shared));
        Ok(Line { transport: Transport::Stdio(stdio), incoming })
    }

    /// Returns the output, exit status and sandbox denials of a child that failed to connect.
    pub(super) fn starting_output(&self) -> String {
        let starting = lock(&self.starting).take();
        let Some(shared) = starting else { return self.refused() };
        let output = shared.last_output();
        format!("\n{output}{}{}", shared.denied(&output), self.refused())
    }

    /// Describes the recently refused egress of the server.
    fn refused(&self) -> String {
        let refused = self.refusals.egress();
        let sentence = |one: &EgressRefusal| {
            format!("\nthe sandbox refused `{}:{}`: {}", one.host, one.port, one.reason)
        };
        refused.iter().map(sentence).collect()
    }
}
