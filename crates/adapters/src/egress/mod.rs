//! What contained programs may reach: the hosts that a profile names, and how a destination is
//! judged.
//!
//! A program's own network leads to the gateway alone. [`proxy`] takes requests of programs that know
//! of a proxy, [`relay`] connections to any address, and [`names`] questions for names. All of them
//! are judged here, by the address that is really connected to.
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

/// The host that stands for every public one.
pub(crate) const EVERYWHERE: &str = "*";
/// The port that every program with a network may try.
const HTTPS: u16 = 443;
/// Addresses whose names are remembered, of one program.
const NAMED_MAX: usize = 4096;
/// Hosts that are logged once, of one program.
const LOGGED_MAX: usize = 4096;
/// Addresses of one name.
const ADDRESSES_MAX: usize = 16;
/// Names of one address.
const NAMES_MAX: usize = 8;

/// The hosts that a profile names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<AllowedHost>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    /// In lower case, without a final dot or brackets; `*.` stands before any one or more labels,
    /// and `*` for every public host.
    host: String,
    /// `None` = any.
    port: Option<u16>,
}

impl AllowList {
    /// A list of `name:port`, `*.name:port`, `address:port`, `[address]:port` (`*` as the port is
    /// any), `*:port` for every public host, and `*` for every public host at port 443.
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

    /// Whether every public host is named, at some port.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE)
    }

    /// The ports at which programs that know of no proxy find the gateway.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let named = self.0.iter().filter_map(|entry| entry.port);
        let mut ports: Vec<u16> = named.chain([HTTPS]).filter(|port| *port != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The listeners of a program's network; `None` where it has none.
    #[must_use]
    pub(crate) fn relay(&self) -> Option<Relay> {
        // Where every host may be reached a proxy adds nothing, and some programs handle it badly.
        let proxy = self.0.iter().any(|entry| entry.host != EVERYWHERE);
        (!self.0.is_empty()).then(|| Relay { ports: self.ports(), proxy })
    }

    /// Whether a host is named: by its name, or its address where that is written out.
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

    /// Whether every public host may be reached at a port.
    fn opens(&self, port: u16) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE && entry.port == Some(port))
    }
}

/// A host as lists have it.
fn normal(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host,
    }
}

/// Connections of all contained programs through the gateway at once.
const CONNECTIONS_MAX: usize = 512;
/// Which part of the descriptors that the gateway may open they may take, and which of these one
/// program may.
const DESCRIPTORS_PART: usize = 16;
const PROGRAM_PART: usize = 4;
/// Names that are looked up at once for all contained programs, and for one of them. A look-up takes
/// a thread for as long as the system's resolver wants.
const LOOKUPS_MAX: usize = 32;
const LOOKUPS_OF_PROGRAM_MAX: usize = 8;
/// How long a name may take to be looked up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// What all contained programs share of the gateway.
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

/// What holds for the networks of all contained programs of a gateway.
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
    /// Rules that let these addresses and ranges (`address/bits`) pass, although they are not
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

    /// The same rules over another resolver.
    #[must_use]
    pub fn with_resolver(self, resolver: Resolver) -> Self {
        Self { resolver, ..self }
    }

    /// Where the gateway itself listens: refused, whatever else is allowed.
    #[must_use]
    pub fn doors(&self) -> &OwnDoors {
        &self.doors
    }

    /// Whether the gateway itself listens there. An unspecified address leads to this machine.
    fn is_door(&self, to: SocketAddr) -> bool {
        to.ip().is_unspecified() || self.doors.has(to)
    }

    /// Whether an address that nobody wrote out may be reached.
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

/// Why a host that no profile names is refused, and what would name it.
fn unlisted(host: &str, port: u16) -> AddressError {
    AddressError::Unlisted(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// The network of one contained program, as the gateway serves it.
pub(crate) struct Passage {
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

/// Names that the program was told addresses of.
#[derive(Debug, Default)]
struct NamesByAddress {
    by_address: HashMap<IpAddr, Vec<String>>,
    /// The oldest first.
    order: VecDeque<IpAddr>,
}

impl ServeListener for Passage {
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

impl Passage {
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

    /// Judges where a connection leads, by its true address; gives the host as it is told, and
    /// `None` where it is refused, which is noted by then.
    fn judge(&self, to: SocketAddr) -> Option<String> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let names = lock(&self.named).by_address.get(&to.ip()).cloned().unwrap_or_default();
        let literal = to.ip().to_string();
        let listed = names.iter().find(|name| self.allowed.names(name, Some(to.port())));
        let shown = listed.or(names.last()).unwrap_or(&literal);
        let judged = if self.rules.is_door(to) {
            Err(AddressError::OwnDoor)
        } else if self.allowed.names(&literal, Some(to.port())) {
            // An address that an operator wrote out means itself.
            Ok(())
        } else if listed.is_some() || self.allowed.opens(to.port()) {
            self.rules.check(to)
        } else {
            Err(unlisted(shown, to.port()))
        };
        match judged {
            Ok(()) => Some(shown.clone()),
            Err(reason) => {
                self.note_refusal(shown, to.port(), &reason.to_string());
                None
            }
        }
    }

    /// The addresses of a host that a program names itself, all of which may be connected to.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        let literal = normal(host).parse::<IpAddr>().is_ok();
        let named = self.allowed.names(host, Some(port));
        let refuse = |reason: AddressError| {
            self.note_refusal(host, port, &reason.to_string());
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
        // One bad address is enough: which of them is taken is not for the name to say.
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

    /// The addresses of a name, as this machine's resolver has them.
    ///
    /// # Errors
    /// Where there are none, or none in time.
    async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let looking = async {
            // A program that asks for many names at once waits for its own look-ups, and no one
            // else's does for them.
            let own = Arc::clone(&self.lookups).acquire_owned().await;
            let shared = Arc::clone(&self.rules.budget.lookups).acquire_owned().await;
            let slots = (own.map_err(io::Error::other)?, shared.map_err(io::Error::other)?);
            let asked = (self.rules.resolver)(name.to_owned(), port);
            // A look-up that takes too long goes on in its thread, and so does its share of the
            // bound.
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

    /// Whether the program may ask for the addresses of a name.
    fn may_ask(&self, name: &str) -> bool {
        self.allowed.is_everywhere() || self.allowed.names(name, None)
    }

    /// Remembers which name the program was told addresses of.
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

    fn note_refusal(&self, host: &str, port: u16, reason: &str) {
        // Repeated refusals are counted, and told once.
        if self.execution_log.egress_refused(host, port, reason) {
            tracing::warn!(program = self.program, host, port, reason, "a way out is refused");
        }
    }

    fn note_reached(&self, host: &str, port: u16) {
        self.execution_log.egress_reached(host, port);
        let mut logged = lock(&self.logged);
        let program = self.program.as_str();
        // A program that chooses names does not choose how long the log is.
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
