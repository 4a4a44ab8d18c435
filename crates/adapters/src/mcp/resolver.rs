//! Looks up the addresses of a server by URL, and refuses those of the gateway itself.
//!
//! Path: 7. Doc: execution.md#addresses-that-are-refused

use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::error::ConnectError;
use crate::own_doors::OwnDoors;

/// Looks up the addresses of a server, except those at which the gateway itself listens: behind itself, each call
/// would be one of the caller `local`.
pub(super) struct Resolver {
    doors: OwnDoors,
    port: u16,
}

impl Resolver {
    /// Returns the resolver for one server.
    ///
    /// # Errors
    /// [`ConnectError::Door`], if the URL writes out such an address.
    pub(super) fn of(url: Option<&Url>, doors: &OwnDoors) -> Result<Self, ConnectError> {
        let port = url.and_then(Url::port_or_known_default).unwrap_or_default();
        match url.and_then(|url| written_address(url, port)) {
            Some(address) if doors.has(address) => Err(ConnectError::Door(address)),
            _ => Ok(Self { doors: doors.clone(), port }),
        }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (doors, port) = (self.doors.clone(), self.port);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), port)).await?;
            let found: Vec<SocketAddr> = found.collect();
            match found.iter().find(|address| doors.has(**address)) {
                Some(door) => Err(ConnectError::Door(*door).into()),
                // The port of the connection is that of the URL, or of a proxy.
                None => Ok(Box::new(found.into_iter().map(without_port)) as Addrs),
            }
        })
    }
}

fn without_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

/// Returns the address that a URL writes out, for which no name is looked up.
fn written_address(url: &Url, port: u16) -> Option<SocketAddr> {
    let host = url.host_str()?;
    let ip: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_gateways_own_door_is_no_server() {
        let doors = OwnDoors::default();
        doors.add("127.0.0.1:7717".parse().unwrap());
        let of = |url: &str| Resolver::of(Some(&url.parse().unwrap()), &doors);
        for own in
            ["http://127.0.0.1:7717/mcp", "http://0.0.0.0:7717/", "http://[::ffff:127.0.0.1]:7717"]
        {
            assert!(matches!(of(own), Err(ConnectError::Door(_))), "{own}");
        }
        assert!(of("http://127.0.0.1:7718/mcp").is_ok());
        let named = |url: &str| {
            let resolver = of(url).unwrap();
            async move { resolver.resolve("localhost".parse().unwrap()).await.map(drop) }
        };
        let refused = named("http://localhost:7717/mcp").await.unwrap_err();
        assert!(refused.to_string().contains("is the gateway itself"), "{refused}");
        named("http://localhost:7718/mcp").await.unwrap();
    }
}
