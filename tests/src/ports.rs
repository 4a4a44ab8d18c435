//! Finds ports for servers that are started again at the same port.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Where the ports begin, and how many there are. The kernel gives others to sockets that ask for any
/// port (from 32768 on, by default), so that none is taken while its server is away.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free port of loopback that no other socket is given by the kernel.
///
/// # Panics
/// If all are taken.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests in other processes begin elsewhere.
    let own = (std::process::id().wrapping_mul(7_919) % u32::from(COUNT)) as u16;
    (0..COUNT)
        .map(|_| FIRST + (own + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}
