//! Controls the egress of contained programs: the hosts that a profile names ([`allow_list`]), and the
//! checks of destinations.
//!
//! A program's own network leads only to the gateway. [`proxy`] accepts requests of programs that use a
//! proxy, [`relay`] connections to any address, and [`names`] DNS queries. [`program_network`] checks
//! connections by the address that is actually connected to, and queries by their name.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

mod allow_list;
mod listeners;
mod names;
mod program_network;
mod proxy;
mod relay;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::Semaphore;

pub use self::allow_list::AllowList;
pub(crate) use self::allow_list::EVERYWHERE;
pub(crate) use self::program_network::ProgramNetwork;
use crate::error::{AddressError, NetworkRuleError};
use crate::mutex::lock;
use crate::net_guard::{Resolver, refusal, system_resolver};
use crate::own_doors::{OwnDoors, is_own};

/// Maximum concurrent connections of all contained programs through the gateway.
const CONNECTIONS_MAX: usize = 512;
/// The divisor of the gateway's descriptor limit for all these connections, and the divisor of that
/// share for one program.
const DESCRIPTORS_PART: usize = 16;
const PROGRAM_PART: usize = 4;
/// Maximum concurrent look-ups for all contained programs. A look-up occupies a thread until the
/// system's resolver returns.
const LOOKUPS_MAX: usize = 32;

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
#[cfg(test)]
mod tests;
