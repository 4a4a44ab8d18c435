//! Restricts requests to public addresses, against server-side request forgery.
//!
//! A name is resolved once, and all its addresses are checked. The connection uses one of the
//! checked addresses, so a later change of the name has no effect.
//!
//! Path: 7. Doc: execution.md#addresses-that-are-refused

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::error::AddressError;
pub use crate::error::ResolveError;
use crate::own_doors::OwnDoors;

/// Time limit for resolving a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Returns why an address is refused; `None` = it is a public one.
///
/// Ranges: IANA's special-purpose registries (RFC 6890), and the metadata addresses of clouds.
#[must_use]
pub fn refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refusal_v4(address),
        IpAddr::V6(address) => refusal_v6(address),
    }
}

fn refusal_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = address.octets();
    match (a, b, c, d) {
        (127, ..) => Some("a loopback address"),
        (169, 254, ..) => Some("a link-local address"),
        // The metadata services of clouds return credentials.
        (168, 63, 129, 16) | (100, 100, 100, 200) | (192, 0, 0, 192) => Some("a metadata address"),
        (0, ..) => Some("an address of this network"),
        (10, ..) | (172, 16..=31, ..) | (192, 168, ..) => Some("a private address"),
        (100, 64..=127, ..) => Some("a shared address of a provider (RFC 6598)"),
        (192, 0, 0 | 2, _) | (198, 51, 100, _) | (203, 0, 113, _) | (192, 88, 99, _) => {
            Some("a special-purpose address")
        }
        (198, 18..=19, ..) => Some("an address for benchmarks"),
        (224..=239, ..) => Some("a multicast address"),
        (240..=255, ..) => Some("a reserved address"),
        _ => None,
    }
}

fn refusal_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, ..] = address.segments();
    match (a, b) {
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_unspecified() => Some("an address of this host"),
        (0, 0) if address.to_ipv4().is_some() => Some("an IPv4 address in another form"),
        (0x64, 0xff9b) => Some("a NAT64 address"),
        (0xfc00..=0xfdff, _) => Some("a unique local address"),
        (0xfe80..=0xfebf, _) => Some("a link-local address"),
        (0xff00..=0xffff, _) => Some("a multicast address"),
        (0x2002, _) => Some("a 6to4 address"),
        (0x2001, 0..=0x01ff | 0xdb8) | (0x3fff, 0..=0x0fff) => Some("a special-purpose address"),
        (0x2000..=0x3fff, _) => None,
        _ => Some("no global address"),
    }
}

/// Resolves a host name and port to addresses. Tests use their own resolver.
pub type Resolver =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// The system's own resolver.
#[must_use]
pub fn system_resolver() -> Resolver {
    Arc::new(|host, port| {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    })
}

/// Checks the addresses of requests.
#[derive(Clone)]
pub struct Guard {
    resolver: Resolver,
    allow_private: bool,
    doors: OwnDoors,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("allow_private", &self.allow_private).finish_non_exhaustive()
    }
}

impl Guard {
    /// Returns a guard with the system's resolver; `allow_private` allows every address.
    #[must_use]
    pub fn new(allow_private: bool) -> Self {
        Self::with_resolver(allow_private, system_resolver())
    }

    /// Returns a guard with another resolver.
    #[must_use]
    pub fn with_resolver(allow_private: bool, resolver: Resolver) -> Self {
        Self { resolver, allow_private, doors: OwnDoors::default() }
    }

    /// Returns the same guard, which always refuses the addresses at which the gateway listens.
    #[must_use]
    pub fn refusing(self, doors: OwnDoors) -> Self {
        Self { doors, ..self }
    }

    /// Checks that an address can be reached. Without a port (0) the gateway's own addresses are
    /// not recognised.
    ///
    /// # Errors
    /// [`AddressError`], which names the address and its kind.
    pub fn check(&self, to: SocketAddr) -> Result<(), AddressError> {
        let address = to.ip();
        if self.doors.has(to) {
            return Err(AddressError::Door(to));
        }
        match refusal(address) {
            Some(what) if !self.allow_private => Err(AddressError::Kind { address, what }),
            _ => Ok(()),
        }
    }

    /// Returns the addresses of a name, after a check of all of them.
    ///
    /// # Errors
    /// [`ResolveError`]: the name has no address, or one that cannot be reached.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let mut found = match bare.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => {
                let asked = (self.resolver)(host.to_owned(), port);
                match tokio::time::timeout(RESOLVE_TIMEOUT, asked).await {
                    Ok(Ok(found)) => found,
                    Ok(Err(error)) => {
                        let sentence = format!("`{host}` cannot be resolved: {error}");
                        return Err(ResolveError::Unresolved(sentence));
                    }
                    Err(_) => {
                        let sentence = format!("`{host}` was not resolved in time");
                        return Err(ResolveError::Unresolved(sentence));
                    }
                }
            }
        };
        found.truncate(ADDRESSES_MAX);
        // One refused address refuses the name, because its owner must not influence which address
        // is used.
        for address in &found {
            self.check(*address).map_err(|reason| {
                let written_out = bare.parse::<IpAddr>().is_ok();
                ResolveError::Refused(if written_out { reason } else { reason.of_name(host) })
            })?;
        }
        if found.is_empty() {
            return Err(ResolveError::Unresolved(format!("`{host}` has no address")));
        }
        Ok(found)
    }
}
