//! The names under which clients reach the door: hosts, origins, and the proxies in front of it.
//!
//! Path: 1. Doc: front-doors.md#host-and-origin

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::HeaderName;
use http::uri::Authority;
use ipnet::IpNet;

use crate::auth::Connection;

/// The header in which proxies pass on the address of the client.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The names under which clients reach the door, in addition to its own addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DoorNames {
    hosts: Vec<String>,
    origins: Vec<String>,
    proxies: Option<Vec<IpNet>>,
    /// Whether pages reach the door by https only.
    is_secure: bool,
}

impl DoorNames {
    /// Creates the names of a door with these hosts (names without a port) and origins (RFC 6454, as
    /// browsers send them).
    #[must_use]
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins), ..Self::default() }
    }

    /// Returns the names of a door that speaks TLS.
    #[must_use]
    pub fn secure(self) -> Self {
        Self { is_secure: true, ..self }
    }

    /// Returns the names of a door that only proxies at these addresses reach.
    #[must_use]
    pub fn behind(self, proxies: Vec<IpNet>) -> Self {
        Self { proxies: Some(proxies), ..self }
    }

    /// Whether proxies are in front of the door.
    #[must_use]
    pub fn is_behind_proxy(&self) -> bool {
        self.proxies.is_some()
    }

    /// Whether a connection may reach the door: any, or only those of its proxies.
    pub(crate) fn admits(&self, connection: &Connection) -> bool {
        self.proxies.is_none() || self.is_proxy(connection.peer.ip())
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.proxies.iter().flatten().any(|network| network.contains(&address))
    }

    /// Returns the address of the client: that of the connection, or the last one that its proxies
    /// pass on and that is not theirs. Everything before it was written by the client.
    pub(crate) fn client(&self, connection: &Connection, headers: &HeaderMap) -> IpAddr {
        let peer = connection.peer.ip().to_canonical();
        if !self.is_proxy(peer) {
            return peer;
        }
        let mut nearest = peer;
        let values: Vec<&str> =
            headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        for text in values.iter().rev().flat_map(|value| value.rsplit(',')) {
            let text = text.trim();
            let address = text
                .parse::<IpAddr>()
                .or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
            let Ok(address) = address else { break };
            nearest = address.to_canonical();
            if !self.is_proxy(nearest) {
                break;
            }
        }
        nearest
    }

    /// Whether a `Host` names this door. Accepts any port, because a forwarded connection carries
    /// the port of its other end. A page that rebinds its own name cannot send an address.
    pub(super) fn has_host(&self, host: &str, connection: &Connection) -> bool {
        let Some(authority) = authority(host) else { return false };
        let name = authority.host().to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let own = connection.local.ip().to_canonical();
        (own.is_loopback() && is_loopback(&name))
            || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical() == own)
            || self.hosts.contains(&name)
    }

    /// Whether an origin is this door. Pages of other local servers are foreign.
    pub(super) fn has_origin(&self, origin: &str, connection: &Connection) -> bool {
        if self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let (scheme, standard) = if self.is_secure { ("https://", 443) } else { ("http://", 80) };
        let Some(authority) = origin.strip_prefix(scheme).and_then(authority) else {
            return false;
        };
        // An origin without a port has the default port of its scheme.
        let port = match authority.port() {
            Some(given) => given.as_u16(),
            None if authority.as_str() == authority.host() => standard,
            None => return false,
        };
        is_loopback(authority.host())
            && connection.local.ip().to_canonical().is_loopback()
            && port == connection.local.port()
    }
}

fn authority(text: &str) -> Option<Authority> {
    let authority = text.parse::<Authority>().ok()?;
    (!authority.as_str().contains('@')).then_some(authority)
}

fn is_loopback(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::PeerOwner;

    fn at(local: &str) -> Connection {
        from("192.0.2.9:5", local)
    }

    fn from(peer: &str, local: &str) -> Connection {
        let (peer, local) = (peer.parse().unwrap(), local.parse().unwrap());
        Connection { peer, local, owner: PeerOwner::Unknown }
    }

    #[test]
    fn only_this_machine_is_named() {
        let names = DoorNames::default();
        let here = at("127.0.0.1:7717");
        for good in ["localhost", "127.0.0.1:80", "[::1]:8080"] {
            assert!(names.has_host(good, &here), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "", "a@localhost"]
        {
            assert!(!names.has_host(bad, &here), "{bad}");
        }
    }

    #[test]
    fn a_door_beyond_loopback_has_its_address_and_its_configured_names() {
        let names = DoorNames::new(
            &["Gateway.example".to_owned()],
            &["https://gateway.example".to_owned()],
        );
        let there = at("192.0.2.1:7717");
        for good in ["gateway.example", "GATEWAY.example:443", "192.0.2.1:7717", "192.0.2.1"] {
            assert!(names.has_host(good, &there), "{good}");
        }
        for bad in ["localhost", "127.0.0.1", "192.0.2.2", "x.gateway.example", "gateway.example."]
        {
            assert!(!names.has_host(bad, &there), "{bad}");
        }
        assert!(names.has_host("[2001:db8::1]:80", &at("[2001:db8::1]:80")));
        assert!(names.has_origin("https://gateway.example", &there));
        for bad in [
            "http://gateway.example",
            "https://gateway.example:8443",
            "https://gateway.example.evil",
            "http://192.0.2.1:7717",
            "http://localhost:7717",
            "null",
        ] {
            assert!(!names.has_origin(bad, &there), "{bad}");
        }
    }

    #[test]
    fn only_the_own_port_is_the_own_origin() {
        let names = DoorNames::default();
        let here = at("127.0.0.1:7717");
        for good in ["http://localhost:7717", "http://127.0.0.1:7717", "http://[::1]:7717"] {
            assert!(names.has_origin(good, &here), "{good}");
        }
        assert!(names.has_origin("http://localhost", &at("127.0.0.1:80")));
        for bad in [
            "http://localhost:7718",
            "http://localhost",
            "http://localhost:",
            "http://localhost:7717/",
            "https://localhost:7717",
            "http://evil.example:7717",
            "http://a@localhost:7717",
            "localhost:7717",
            "null",
            "",
        ] {
            assert!(!names.has_origin(bad, &here), "{bad}");
        }
    }

    #[test]
    fn only_what_the_own_proxies_wrote_names_the_client() {
        let proxies = vec!["10.0.0.0/8".parse().unwrap(), "127.0.0.1/32".parse().unwrap()];
        let names = DoorNames::default().behind(proxies);
        let client = |peer: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, line.parse().unwrap());
            }
            names.client(&from(peer, "10.0.0.1:80"), &headers).to_string()
        };
        assert_eq!(client("10.1.1.1:9", &["6.6.6.6, 192.0.2.7"]), "192.0.2.7");
        assert_eq!(client("10.1.1.1:9", &["6.6.6.6", "192.0.2.7, 10.2.2.2"]), "192.0.2.7");
        assert_eq!(client("10.1.1.1:9", &["192.0.2.7:4711"]), "192.0.2.7");
        assert_eq!(client("10.1.1.1:9", &["6.6.6.6, unknown"]), "10.1.1.1");
        assert_eq!(client("10.1.1.1:9", &[]), "10.1.1.1");
        assert_eq!(client("192.0.2.8:9", &["6.6.6.6"]), "192.0.2.8");
        assert!(names.admits(&from("[::ffff:10.3.3.3]:9", "10.0.0.1:80")));
        assert!(!names.admits(&from("192.0.2.8:9", "10.0.0.1:80")));
        assert!(DoorNames::default().admits(&from("192.0.2.8:9", "10.0.0.1:80")));
    }
}
