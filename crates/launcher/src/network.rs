//! Sets up the network namespace of a contained program: every address is local, and the gateway
//! serves its listeners.
//!
//! Routes are set by rtnetlink(7). The namespace has no interface other than loopback, so all
//! traffic that leaves it passes the gateway's listeners.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::order::Relay;
use crate::sys;
use crate::wire::{self, Listener, ListenerKind};

/// The port of DNS.
pub const DNS_PORT: u16 = 53;
/// An address other than loopback (RFC 5737, RFC 3849). Resolvers ask for addresses of a family
/// only if an interface has a non-loopback address of it.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Makes every address local to the loopback interface, which must be up.
pub(crate) fn make_all_local() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // NETLINK_ROUTE is protocol 0.
        None,
    )?;
    let loopback = sys::loopback_index()?;
    ask(&socket, &address(libc::AF_INET, &OWN_V4.octets(), loopback)?)?;
    ask(&socket, &route(libc::AF_INET, loopback)?)?;
    // A kernel without IPv6 needs no route for it.
    if let Err(error) = ask(&socket, &address(libc::AF_INET6, &OWN_V6.octets(), loopback)?)
        .and_then(|()| ask(&socket, &route(libc::AF_INET6, loopback)?))
        && has_v6()
    {
        return Err(error);
    }
    Ok(())
}

fn has_v6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// Opens the listeners of the namespace and sends them to the gateway. Returns the port of the
/// proxy, if there is one.
pub(crate) fn hand_out(control: BorrowedFd<'_>, relay: &Relay) -> io::Result<Option<u16>> {
    let send = |kind, port, fd: BorrowedFd<'_>| {
        let document = serde_json::to_vec(&Listener { kind, port })?;
        wire::send(control, wire::LISTENER, &document, &[fd])
    };
    let mut proxy = None;
    if relay.proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        send(ListenerKind::Proxy, port, listener.as_fd())?;
        proxy = Some(port);
    }
    let mut ports = relay.ports.clone();
    ports.push(DNS_PORT);
    ports.sort_unstable();
    ports.dedup();
    for port in ports {
        let kind = if port == DNS_PORT { ListenerKind::DnsStream } else { ListenerKind::Stream };
        // A listener for IPv6 accepts IPv4 as mapped addresses (RFC 3493, 3.7).
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        send(kind, port, listener.as_fd())?;
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DNS_PORT))?;
    send(ListenerKind::DnsDatagram, DNS_PORT, socket.as_fd())?;
    if let Ok(socket) = datagrams_v6() {
        send(ListenerKind::DnsDatagram, DNS_PORT, socket.as_fd())?;
    }
    Ok(proxy)
}

/// A socket for IPv6 datagrams only; IPv4 datagrams have a socket of their own.
fn datagrams_v6() -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    // Answers are sent from the queried address, which no interface has.
    rustix::net::sockopt::set_ipv6_freebind(&socket, true)?;
    let address = std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, DNS_PORT, 0, 0);
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// An rtnetlink request: header, body and attributes.
fn request(kind: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> io::Result<Vec<u8>> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let mut message = vec![0u8; 4];
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&u16::try_from(flags).map_err(io::Error::other)?.to_ne_bytes());
    // Sequence number and port id.
    message.extend_from_slice(&[0u8; 8]);
    message.extend_from_slice(body);
    for (name, value) in attributes {
        let length = u16::try_from(value.len() + 4).map_err(io::Error::other)?;
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&name.to_ne_bytes());
        message.extend_from_slice(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    if let Some(head) = message.first_chunk_mut() {
        *head = length.to_ne_bytes();
    }
    Ok(message)
}

/// The request to add `local default dev lo` to the table of local routes.
fn route(family: i32, loopback: u32) -> io::Result<Vec<u8>> {
    let family = u8::try_from(family).map_err(io::Error::other)?;
    // Family, prefix lengths, type of service, table, protocol, scope, type, flags.
    let body = [
        family,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
        0,
        0,
        0,
        0,
    ];
    request(libc::RTM_NEWROUTE, &body, &[(libc::RTA_OIF, &loopback.to_ne_bytes())])
}

/// The request to add an address to the loopback interface.
fn address(family: i32, address: &[u8], loopback: u32) -> io::Result<Vec<u8>> {
    let family = u8::try_from(family).map_err(io::Error::other)?;
    let prefix = u8::try_from(address.len() * 8).map_err(io::Error::other)?;
    // Family, prefix length, flags, scope (0 = everywhere), interface.
    let mut body = vec![family, prefix, 0, 0];
    body.extend_from_slice(&loopback.to_ne_bytes());
    let attributes = [(libc::IFA_LOCAL, address), (libc::IFA_ADDRESS, address)];
    request(libc::RTM_NEWADDR, &body, &attributes)
}

/// Sends a request to the kernel, and waits for its acknowledgement.
fn ask(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, message, SendFlags::empty(), &kernel)?;
    let mut answer = [0u8; 1024];
    let (length, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    // A header of 16 bytes, then the error as a negative number; 0 is the acknowledgement.
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::Error::other("the kernel answered no acknowledgement")),
    }
}
