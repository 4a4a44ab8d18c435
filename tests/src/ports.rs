//! Finds ports for servers that restart at the same port.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port and the number of ports. The kernel assigns other ports (from 32768 on, by default) to
/// sockets that request any port. So no port is taken while its server is stopped.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Returns a free loopback port that the kernel assigns to no other socket.
///
/// # Panics
/// If all are taken.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests in other processes begin at another port.
    let own = (std::process::id().wrapping_mul(7_919) % u32::from(COUNT)) as u16;
    (0..COUNT)
        .map(|_| FIRST + (own + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}
