//! Controls the egress of contained programs: the hosts that a profile names, and the checks of
//! destinations.
//!
//! A program's own network leads only to the gateway. [`proxy`] accepts requests of programs that use a
//! proxy, [`relay`] connections to any address, and [`names`] DNS queries. This module checks connections
//! by the address that is actually connected to, and queries by their name.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

mod names;
mod proxy;
mod relay;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use toolbooth_contracts::ExecutionLog;
use toolbooth_launcher::client::ServeListener;
use toolbooth_launcher::order::Relay;
use toolbooth_launcher::wire::{Listener, ListenerKind};

use crate::error::{AddressError, NetworkRuleError};
use crate::net_guard::{ResolveError, Resolver, refusal, system_resolver};
use crate::own_doors::{OwnDoors, is_own};

/// The entry that matches every public host.
pub(crate) const EVERYWHERE: &str = "*";
/// The port on which every program with a network can try to connect.
const HTTPS: u16 = 443;
/// Maximum addresses with remembered names, of one program.
const NAMED_MAX: usize = 4096;
/// Maximum hosts that are logged, once each, of one program.
const LOGGED_MAX: usize = 4096;
/// Maximum addresses of one name.
const ADDRESSES_MAX: usize = 16;
/// Maximum names of one address.
const NAMES_MAX: usize = 8;

/// The hosts that a profile names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<AllowedHost>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    /// In lower case, without a final dot or brackets. `*.` matches one or more labels, and `*`
    /// every public host.
    host: String,
    /// `None` = any.
    port: Option<u16>,
}

impl AllowList {
    /// Reads a list of `name:port`, `*.name:port`, `address:port` and `[address]:port`, where `*` as
    /// the port matches any. `*:port` is every public host, and `*` is every public host at port
    /// 443.
    ///
    /// # Errors
    /// [`NetworkRuleError`], for the first entry that is none of these.
    pub fn parse(entries: &[String]) -> Result<Self, NetworkRuleError> {
        let entry = |text: &String| {
            let wrong = || NetworkRuleError::NoHost(text.clone());
            if text == EVERYWHERE {
                return Ok(AllowedHost { host: EVERYWHERE.to_owned(), port: Some(HTTPS) });
            }
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let port = match port {
                "*" if host == EVERYWHERE => {
                    return Err(NetworkRuleError::NoPort(text.clone()));
                }
                "*" => None,
                digits => Some(digits.parse().map_err(|_| wrong())?),
            };
            if host == EVERYWHERE {
                return Ok(AllowedHost { host: EVERYWHERE.to_owned(), port });
            }
            let host = normal(host);
            let name = host.strip_prefix("*.").unwrap_or(&host);
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
            if name.is_empty() || !name.chars().all(fits) {
                return Err(wrong());
            }
            Ok(AllowedHost { host, port })
        };
        entries.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// Whether every public host is named, for some port.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE)
    }

    /// Returns the ports on which the gateway accepts connections of programs that use no proxy.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let named = self.0.iter().filter_map(|entry| entry.port);
        let mut ports: Vec<u16> = named.chain([HTTPS]).filter(|port| *port != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the listeners of a program's network; `None` = it has no network.
    #[must_use]
    pub(crate) fn relay(&self) -> Option<Relay> {
        // If every host can be reached, a proxy adds nothing, and some programs handle it
        // incorrectly.
        let proxy = self.0.iter().any(|entry| entry.host != EVERYWHERE);
        (!self.0.is_empty()).then(|| Relay { ports: self.ports(), proxy })
    }

    /// Whether a host is named: by its name, or by its literal address.
    fn names(&self, host: &str, port: Option<u16>) -> bool {
        let host = normal(host);
        self.0.iter().filter(|entry| entry.host != EVERYWHERE).any(|entry| {
            let named = match entry.host.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == entry.host,
            };
            named && (port.is_none() || entry.port.is_none() || entry.port == port)
        })
    }

    /// Whether every public host can be reached at a port.
    fn opens(&self, port: u16) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE && entry.port == Some(port))
    }
}

/// Converts a host to the form that lists use.
fn normal(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host,
    }
}

/// Maximum concurrent connections of all contained programs through the gateway.
const CONNECTIONS_MAX: usize = 512;
/// The divisor of the gateway's descriptor limit for all these connections, and the divisor of that
/// share for one program.
const DESCRIPTORS_PART: usize = 16;
const PROGRAM_PART: usize = 4;
/// Maximum concurrent look-ups for all contained programs, and for one of them. A look-up occupies a
/// thread until the system's resolver returns.
const LOOKUPS_MAX: usize = 32;
const LOOKUPS_OF_PROGRAM_MAX: usize = 8;
/// Timeout for the look-up of a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The gateway's resources that all contained programs share.
#[derive(Debug)]
struct Budget {
    connections_max: usize,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        let open = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let open = open.and_then(|open| usize::try_from(open).ok()).unwrap_or(usize::MAX);
        let connections_max = (open / DESCRIPTORS_PART).clamp(PROGRAM_PART, CONNECTIONS_MAX);
        let connections = Arc::new(Semaphore::new(connections_max));
        Self { connections_max, connections, lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

/// The network rules for all contained programs of a gateway.
#[derive(Clone)]
pub struct NetworkRules {
    budget: Arc<Budget>,
    allowed: Vec<IpNet>,
    doors: OwnDoors,
    resolver: Resolver,
}

impl std::fmt::Debug for NetworkRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkRules").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl Default for NetworkRules {
    fn default() -> Self {
        let doors = OwnDoors::default();
        Self { budget: Arc::default(), allowed: Vec::new(), doors, resolver: system_resolver() }
    }
}

impl NetworkRules {
    /// Creates rules that allow these addresses and ranges (`address/bits`), although they are not
    /// public.
    ///
    /// # Errors
    /// [`NetworkRuleError`], for the first one that is neither.
    pub fn parse(allowed: &[String]) -> Result<Self, NetworkRuleError> {
        let range = |text: &String| {
            let address = |_| text.parse::<IpAddr>().map(IpNet::from);
            let wrong = |_| NetworkRuleError::NoAddress(text.clone());
            text.parse::<IpNet>().or_else(address).map_err(wrong)
        };
        let allowed = allowed.iter().map(range).collect::<Result<_, _>>()?;
        Ok(Self { allowed, ..Self::default() })
    }

    /// Returns the same rules with another resolver.
    #[must_use]
    pub fn with_resolver(self, resolver: Resolver) -> Self {
        Self { resolver, ..self }
    }

    /// Returns the addresses of the gateway itself, which are always refused.
    #[must_use]
    pub fn doors(&self) -> &OwnDoors {
        &self.doors
    }

    /// Whether the gateway itself listens there. An unspecified address leads to this machine and
    /// counts too.
    fn is_door(&self, to: SocketAddr) -> bool {
        to.ip().is_unspecified() || self.doors.has(to)
    }

    /// Checks an address that is not named literally.
    fn check(&self, to: SocketAddr) -> Result<(), AddressError> {
        let address = to.ip();
        if self.allowed.iter().any(|range| range.contains(&address)) {
            return Ok(());
        }
        let what = refusal(address).or_else(|| is_own(to).then_some("an address of this machine"));
        match what {
            Some(what) => Err(AddressError::NotAllowed { address, what }),
            None => Ok(()),
        }
    }
}

/// Returns the refusal of a host that no profile names, with the entry that would name it.
fn unlisted(host: &str, port: u16) -> AddressError {
    AddressError::Unlisted(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// The network of one contained program, as the gateway serves it.
pub(crate) struct ProgramNetwork {
    allowed: AllowList,
    rules: NetworkRules,
    execution_log: ExecutionLog,
    /// The program, for the log.
    program: String,
    named: Mutex<NamesByAddress>,
    /// Hosts that were logged as reached.
    logged: Mutex<HashSet<(String, u16)>>,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// Names with addresses that the program has received.
#[derive(Debug, Default)]
struct NamesByAddress {
    by_address: HashMap<IpAddr, Vec<String>>,
    /// The oldest first.
    order: VecDeque<IpAddr>,
}

impl ServeListener for ProgramNetwork {
    fn serve(self: Arc<Self>, listener: Listener, fd: OwnedFd) -> io::Result<Box<dyn Send>> {
        let passage = self;
        let task = match listener.kind {
            ListenerKind::Proxy => tokio::spawn(proxy::serve(passage, stream_listener(fd)?)),
            ListenerKind::Stream => tokio::spawn(relay::serve(passage, stream_listener(fd)?)),
            ListenerKind::DnsStream => {
                tokio::spawn(names::serve_streams(passage, stream_listener(fd)?))
            }
            ListenerKind::DnsDatagram => {
                tokio::spawn(names::serve_datagrams(passage, names::Datagrams::of(fd)?))
            }
        };
        Ok(Box::new(Serving(task.abort_handle())))
    }
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
    fn judge(&self, to: SocketAddr) -> Option<String> {
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
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
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
    async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
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
    fn may_ask(&self, name: &str) -> bool {
        self.allowed.is_everywhere() || self.allowed.names(name, None)
    }

    /// Records the name of addresses that the program has received.
    fn remember(&self, name: &str, addresses: &[IpAddr]) {
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

    fn record_refusal(&self, host: &str, port: u16, reason: &str) {
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

    fn record_reached(&self, host: &str, port: u16) {
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

fn stream_listener(fd: OwnedFd) -> io::Result<tokio::net::TcpListener> {
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// A listener that is served until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
