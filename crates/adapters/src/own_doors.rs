//! Stores the addresses at which the gateway itself listens, which none of its tools can reach.
//!
//! Path: 7. Doc: execution.md#addresses-that-are-refused

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The addresses at which the gateway listens; clones share them.
#[derive(Debug, Clone, Default)]
pub struct OwnDoors(Arc<Mutex<Vec<SocketAddr>>>);

impl OwnDoors {
    fn doors(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an address at which the gateway listens.
    pub fn add(&self, address: SocketAddr) {
        self.doors().push(address);
    }

    /// Whether the gateway listens at an address. An unspecified address means this machine.
    #[must_use]
    pub fn has(&self, to: SocketAddr) -> bool {
        let address = to.ip().to_canonical();
        let leads = |door: &SocketAddr| {
            let own = door.ip().to_canonical();
            own == address
                || address.is_unspecified()
                || (own.is_unspecified() && is_own(SocketAddr::new(address, to.port())))
        };
        self.doors().iter().any(|door| door.port() == to.port() && leads(door))
    }
}

/// Whether an address belongs to this machine, so that the kernel reaches it from itself.
pub(crate) fn is_own(to: SocketAddr) -> bool {
    if to.ip().is_loopback() {
        // For every loopback address the kernel returns the first one as the source.
        return true;
    }
    let any: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: connecting a datagram socket only looks up the route.
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == to.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_known_by_each_of_its_addresses() {
        let doors = OwnDoors::default();
        let has = |address: &str| doors.has(address.parse().unwrap());
        doors.add("127.0.0.1:7717".parse().unwrap());
        for own in ["127.0.0.1:7717", "[::ffff:127.0.0.1]:7717", "0.0.0.0:7717", "[::]:7717"] {
            assert!(has(own), "{own}");
        }
        for other in ["127.0.0.1:7718", "127.0.0.2:7717", "[::1]:7717", "192.0.2.1:7717"] {
            assert!(!has(other), "{other}");
        }
        doors.add("0.0.0.0:8080".parse().unwrap());
        assert!(has("127.0.0.2:8080") && !has("192.0.2.1:8080"));
    }
}
