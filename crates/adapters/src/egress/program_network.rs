//! Connects one program in a sandbox to the addresses that its rules allow.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use toolbooth_contracts::ExecutionLog;

use super::allow_list::normal;
use super::{AllowList, NetworkRules, PROGRAM_PART, lock, unlisted};
use crate::error::AddressError;
use crate::net_guard::ResolveError;

/// Maximum addresses with remembered names, of one program.
pub(super) const NAMED_MAX: usize = 4096;
/// Maximum hosts that are logged, once each, of one program.
const LOGGED_MAX: usize = 4096;
/// Maximum addresses of one name.
const ADDRESSES_MAX: usize = 16;
/// Maximum names of one address.
pub(super) const NAMES_MAX: usize = 8;
/// Maximum concurrent look-ups for one program.
pub(super) const LOOKUPS_OF_PROGRAM_MAX: usize = 8;
/// Timeout for the look-up of a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The network of one contained program, as the gateway serves it.
pub(crate) struct ProgramNetwork {
    allowed: AllowList,
    pub(super) rules: NetworkRules,
    execution_log: ExecutionLog,
    /// The program, for the log.
    pub(super) program: String,
    pub(super) named: Mutex<NamesByAddress>,
    /// Hosts that were logged as reached.
    logged: Mutex<HashSet<(String, u16)>>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) lookups: Arc<Semaphore>,
}

/// Names with addresses that the program has received.
#[derive(Debug, Default)]
pub(super) struct NamesByAddress {
    pub(super) by_address: HashMap<IpAddr, Vec<String>>,
    /// The oldest first.
    pub(super) order: VecDeque<IpAddr>,
}

impl ProgramNetwork {
    pub(crate) fn new(
        allowed: AllowList,
        rules: NetworkRules,
        execution_log: ExecutionLog,
        program: String,
    ) -> Arc<Self> {
        let (named, logged) = (Mutex::default(), Mutex::default());
        let own = (rules.budget.connections_max / PROGRAM_PART).max(1);
        let connections = Arc::new(Semaphore::new(own));
        let lookups = Arc::new(Semaphore::new(LOOKUPS_OF_PROGRAM_MAX));
        Arc::new(Self {
            allowed,
            rules,
            execution_log,
            program,
            named,
            logged,
            connections,
            lookups,
        })
    }

    /// Checks the destination of a connection by its actual address. Returns the host for messages,
    /// or `None` after it has recorded a refusal.
    pub(super) fn judge(&self, to: SocketAddr) -> Option<String> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let names = lock(&self.named).by_address.get(&to.ip()).cloned().unwrap_or_default();
        let literal = to.ip().to_string();
        let listed = names.iter().find(|name| self.allowed.names(name, Some(to.port())));
        let shown = listed.or(names.last()).unwrap_or(&literal);
        let judged = if self.rules.is_door(to) {
            Err(AddressError::OwnDoor)
        } else if self.allowed.names(&literal, Some(to.port())) {
            // An address that an operator names literally is allowed as such.
            Ok(())
        } else if listed.is_some() || self.allowed.opens(to.port()) {
            self.rules.check(to)
        } else {
            Err(unlisted(shown, to.port()))
        };
        match judged {
            Ok(()) => Some(shown.clone()),
            Err(reason) => {
                self.record_refusal(shown, to.port(), &reason.to_string());
                None
            }
        }
    }

    /// Returns the addresses of a host that a program names itself. All of them are allowed
    /// destinations.
    pub(super) async fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let literal = normal(host).parse::<IpAddr>().is_ok();
        let named = self.allowed.names(host, Some(port));
        let refuse = |reason: AddressError| {
            self.record_refusal(host, port, &reason.to_string());
            let (host, reason) = (host.to_owned(), Box::new(reason));
            ResolveError::Refused(AddressError::OfProgram { host, port, reason })
        };
        if !named && !self.allowed.opens(port) {
            return Err(refuse(unlisted(host, port)));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found = match bare.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => self.look_up(host, port).await.map_err(|error| {
                ResolveError::Unresolved(format!("`{host}` cannot be resolved: {error}"))
            })?,
        };
        if found.is_empty() {
            return Err(ResolveError::Unresolved(format!("`{host}` has no address")));
        }
        // One forbidden address refuses the name, because the name must not decide which one is
        // used.
        for to in &found {
            let to = SocketAddr::new(to.ip().to_canonical(), to.port());
            if self.rules.is_door(to) {
                return Err(refuse(AddressError::OwnDoor));
            }
            if !(literal && named) {
                self.rules.check(to).map_err(|reason| {
                    refuse(if literal { reason } else { reason.of_name(host) })
                })?;
            }
        }
        Ok(found)
    }

    /// Returns the addresses of a name from this machine's resolver.
    ///
    /// # Errors
    /// If no address is found, or none in time.
    pub(super) async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let looking = async {
            // A program with many look-ups waits for its own ones and does not delay other programs.
            let own = Arc::clone(&self.lookups).acquire_owned().await;
            let shared = Arc::clone(&self.rules.budget.lookups).acquire_owned().await;
            let slots = (own.map_err(io::Error::other)?, shared.map_err(io::Error::other)?);
            let asked = (self.rules.resolver)(name.to_owned(), port);
            // A look-up that exceeds its timeout continues in its thread and still counts towards
            // the limit.
            let looking = tokio::spawn(async move {
                let found = asked.await;
                drop(slots);
                found
            });
            looking.await.map_err(io::Error::other)?
        };
        match tokio::time::timeout(LOOKUP_TIMEOUT, looking).await {
            Ok(found) => found.map(|mut found| {
                found.truncate(ADDRESSES_MAX);
                found
            }),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Whether the program can query the addresses of a name.
    pub(super) fn may_ask(&self, name: &str) -> bool {
        self.allowed.is_everywhere() || self.allowed.names(name, None)
    }

    /// Records the name of addresses that the program has received.
    pub(super) fn remember(&self, name: &str, addresses: &[IpAddr]) {
        let mut named = lock(&self.named);
        let NamesByAddress { by_address, order } = &mut *named;
        for address in addresses {
            let names = by_address.entry(*address).or_insert_with(|| {
                order.push_back(*address);
                Vec::new()
            });
            names.retain(|known| known != name);
            if names.len() >= NAMES_MAX {
                names.remove(0);
            }
            names.push(name.to_owned());
            if order.len() > NAMED_MAX
                && let Some(oldest) = order.pop_front()
            {
                by_address.remove(&oldest);
            }
        }
    }

    pub(super) fn record_refusal(&self, host: &str, port: u16, reason: &str) {
        // Repeated refusals are counted and logged once.
        if self.execution_log.egress_refused(host, port, reason) {
            tracing::warn!(
                program = self.program,
                host,
                port,
                reason,
                "an outbound connection is refused"
            );
        }
    }

    pub(super) fn record_reached(&self, host: &str, port: u16) {
        self.execution_log.egress_reached(host, port);
        let mut logged = lock(&self.logged);
        let program = self.program.as_str();
        // A program that chooses many names must not fill the log.
        if logged.len() < LOGGED_MAX && logged.insert((host.to_owned(), port)) {
            tracing::info!(program, host, port, "a contained program reaches a host");
            if logged.len() == LOGGED_MAX {
                tracing::warn!(program, "further hosts that it reaches are not logged");
            }
        }
    }
}
