//! Asks the kernel which user owns the socket at the other end of a loopback connection.
//!
//! Uses socket diagnostics (`NETLINK_SOCK_DIAG`, sock_diag(7)): one exact look-up by addresses and
//! ports, answered by the kernel before the request returns. Stores no state except one open
//! socket.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use std::net::SocketAddr;

/// The owner of the socket at the other end of a connection, as the kernel reported it when the
/// connection was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerOwner {
    /// The effective user of this process.
    SameUser,
    /// Another user of this machine.
    OtherUser,
    /// Not proven: the peer is on another machine, has closed its socket, or the kernel does not
    /// answer. Must never be treated as the same user.
    Unknown,
}

/// Finds the owner of the socket at the other end of a connection.
pub trait PeerOwners: Send + Sync {
    /// Returns the owner of the socket with the local address `peer` and the remote address
    /// `local`. Returns [`PeerOwner::Unknown`] if the owner is not certain. Must not block, because
    /// the accept loop calls it.
    fn owner(&self, peer: SocketAddr, local: SocketAddr) -> PeerOwner;
}

/// The kernel's socket diagnostics. On systems other than Linux every owner is unknown.
#[derive(Debug, Default)]
pub struct SocketDiagnostics {
    /// Opened at the first look-up, and again after one that failed.
    #[cfg(target_os = "linux")]
    socket: std::sync::Mutex<Option<std::os::fd::OwnedFd>>,
}

#[cfg(not(target_os = "linux"))]
impl PeerOwners for SocketDiagnostics {
    fn owner(&self, _peer: SocketAddr, _local: SocketAddr) -> PeerOwner {
        PeerOwner::Unknown
    }
}

#[cfg(target_os = "linux")]
impl PeerOwners for SocketDiagnostics {
    fn owner(&self, peer: SocketAddr, local: SocketAddr) -> PeerOwner {
        use std::os::fd::AsFd as _;

        let (peer, local) = (canonical(peer), canonical(local));
        if !peer.ip().is_loopback() {
            return PeerOwner::Unknown;
        }
        let mut held = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Put back only after an answer, so that a late answer is not read as that of the next
        // look-up.
        let asked = held.take().map_or_else(linux::open, Ok).and_then(|socket| {
            let found = linux::ask(socket.as_fd(), peer, local)?;
            Ok((socket, found))
        });
        match asked {
            Ok((socket, found)) => {
                *held = Some(socket);
                let user = rustix::process::geteuid().as_raw();
                found.map_or(PeerOwner::Unknown, |found| linux::judge(&found, peer, local, user))
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel does not name the owner of a socket");
                PeerOwner::Unknown
            }
        }
    }
}

/// Turns an IPv4-mapped IPv6 address into its IPv4 address.
#[cfg(target_os = "linux")]
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{Error, ErrorKind, Result};
    use std::net::SocketAddr;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
    use netlink_packet_sock_diag::SockDiagMessage;
    use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_ESTABLISHED};
    use netlink_packet_sock_diag::inet::{
        ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
    };
    use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

    use super::{PeerOwner, canonical};

    /// An answer is one message of well under 1 KiB; a longer one would be cut and refused.
    const ANSWER_BYTES_MAX: usize = 8 << 10;
    /// "No cookie": the look-up is by addresses and ports alone (`INET_DIAG_NOCOOKIE`).
    const NO_COOKIE: [u8; 8] = [0xff; 8];

    pub(super) fn open() -> Result<OwnedFd> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
        // A connected netlink socket receives only messages of the kernel (port 0).
        rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(socket)
    }

    /// Returns the socket with exactly these addresses; `None` if the kernel finds none.
    pub(super) fn ask(
        socket: BorrowedFd<'_>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Result<Option<InetResponseHeader>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let request = InetRequest {
            family: if peer.is_ipv4() { AF_INET } else { AF_INET6 },
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            // The kernel ignores it in an exact look-up; `judge` checks the state.
            states: StateFlags::all(),
            socket_id: SocketId {
                source_port: peer.port(),
                destination_port: local.port(),
                source_address: peer.ip(),
                destination_address: local.ip(),
                interface_id: 0,
                cookie: NO_COOKIE,
            },
        };
        let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(socket, &bytes, SendFlags::empty())?;

        // The kernel answers during `send`, so the answer is already available.
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (_, length) = rustix::net::recv(socket, &mut answer[..], RecvFlags::DONTWAIT)?;
        let answer = answer.get(..length).ok_or(ErrorKind::InvalidData)?;
        let answer = NetlinkMessage::<SockDiagMessage>::deserialize(answer)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        match answer.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                Ok(Some(found.header))
            }
            NetlinkPayload::Error(error) => match error.to_io() {
                error if error.kind() == ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Derives the owner from a socket that the kernel found.
    pub(super) fn judge(
        found: &InetResponseHeader,
        peer: SocketAddr,
        local: SocketAddr,
        user: u32,
    ) -> PeerOwner {
        let id = &found.socket_id;
        let own = canonical(SocketAddr::new(id.source_address, id.source_port));
        let remote = canonical(SocketAddr::new(id.destination_address, id.destination_port));
        // If no connection matches, the kernel may report a listener on the same port.
        let is_peer = own == peer && remote == local;
        // After its process has closed a socket, the kernel reports inode 0 and user 0 for it. A
        // peer that has closed at least one direction is no longer ESTABLISHED.
        if !is_peer || found.state != TCP_ESTABLISHED || found.inode == 0 {
            return PeerOwner::Unknown;
        }
        if found.uid == user { PeerOwner::SameUser } else { PeerOwner::OtherUser }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn found(state: u8, uid: u32, inode: u32) -> InetResponseHeader {
            InetResponseHeader {
                family: AF_INET,
                state,
                timer: None,
                socket_id: SocketId {
                    source_port: 4_000,
                    destination_port: 7_717,
                    source_address: [127, 0, 0, 1].into(),
                    destination_address: [127, 0, 0, 1].into(),
                    interface_id: 0,
                    cookie: NO_COOKIE,
                },
                recv_queue: 0,
                send_queue: 0,
                uid,
                inode,
            }
        }

        #[test]
        fn only_an_open_socket_of_the_same_user_is_the_same_user() {
            let peer = SocketAddr::from(([127, 0, 0, 1], 4_000));
            let local = SocketAddr::from(([127, 0, 0, 1], 7_717));
            let judged =
                |state, uid, inode, user| judge(&found(state, uid, inode), peer, local, user);
            assert_eq!(judged(TCP_ESTABLISHED, 1_000, 7, 1_000), PeerOwner::SameUser);
            assert_eq!(judged(TCP_ESTABLISHED, 1_001, 7, 1_000), PeerOwner::OtherUser);
            assert_eq!(judged(TCP_ESTABLISHED, 1_000, 7, 0), PeerOwner::OtherUser);
            // FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LISTEN
            for state in [4, 5, 6, 8, 10] {
                assert_eq!(judged(state, 1_000, 7, 1_000), PeerOwner::Unknown, "{state}");
            }
            // A closed socket has user 0, which proves nothing to a gateway that runs as root.
            assert_eq!(judged(TCP_ESTABLISHED, 0, 0, 0), PeerOwner::Unknown);
            let elsewhere = SocketAddr::from(([127, 0, 0, 1], 4_001));
            let one = found(TCP_ESTABLISHED, 1_000, 7);
            assert_eq!(judge(&one, elsewhere, local, 1_000), PeerOwner::Unknown);
            assert_eq!(judge(&one, peer, elsewhere, 1_000), PeerOwner::Unknown);
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn pair(listen: &str, connect: &str) -> (TcpStream, TcpStream, SocketAddr) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(format!("{connect}:{port}")).unwrap();
        let (server, peer) = listener.accept().unwrap();
        (client, server, peer)
    }

    #[test]
    fn own_sockets_are_found_over_both_families() {
        let diagnostics = SocketDiagnostics::default();
        for (listen, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]"),
            // The listener and the peer's own socket may each see a mapped address.
            ("[::]:0", "127.0.0.1"),
            ("127.0.0.1:0", "[::ffff:127.0.0.1]"),
        ] {
            let (_client, server, peer) = pair(listen, connect);
            let owner = diagnostics.owner(peer, server.local_addr().unwrap());
            assert_eq!(owner, PeerOwner::SameUser, "{listen} from {connect}");
        }
    }

    #[test]
    fn a_peer_that_closed_either_direction_is_unknown() {
        let diagnostics = SocketDiagnostics::default();
        let (client, server, peer) = pair("127.0.0.1:0", "127.0.0.1");
        let local = server.local_addr().unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(diagnostics.owner(peer, local), PeerOwner::Unknown);
        let (client, server, peer) = pair("127.0.0.1:0", "127.0.0.1");
        drop(client);
        assert_eq!(diagnostics.owner(peer, server.local_addr().unwrap()), PeerOwner::Unknown);
    }

    #[test]
    fn a_listener_on_the_port_of_the_peer_proves_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(SocketDiagnostics::default().owner(peer, local), PeerOwner::Unknown);
    }

    #[test]
    fn an_answer_that_is_lost_does_not_serve_the_next_question() {
        let diagnostics = SocketDiagnostics::default();
        // A descriptor that is not a netlink socket simulates a broken one.
        let (broken, _) = std::os::unix::net::UnixStream::pair().unwrap();
        *diagnostics.socket.lock().unwrap() = Some(broken.into());
        let (_client, server, peer) = pair("127.0.0.1:0", "127.0.0.1");
        let local = server.local_addr().unwrap();
        assert_eq!(diagnostics.owner(peer, local), PeerOwner::Unknown);
        assert_eq!(diagnostics.owner(peer, local), PeerOwner::SameUser);
    }

    #[test]
    fn addresses_beyond_loopback_are_unknown() {
        let far = SocketAddr::from(([192, 0, 2, 1], 80));
        assert_eq!(SocketDiagnostics::default().owner(far, far), PeerOwner::Unknown);
    }
}
