//! The frames between the client and the launcher: a tag, a length and a JSON document.
//!
//! The functions block only on the socket that they receive.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::order::Primitive;

/// Bytes before the document: the tag, and the length as four bytes, big endian.
pub const HEAD_BYTES: usize = 5;
/// Maximum length of a document, in bytes. The kernel's limit for command lines and environments is
/// lower.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Maximum number of descriptors with one frame.
pub const FDS_MAX: usize = 3;

/// To the fork server: fork a launcher. Its socket, and the program's standard output and standard
/// error, are sent with the frame.
pub const NEW: u8 = b'n';
/// From the launcher: it reads its order next. The client waits for this frame before it sends the
/// order: a launcher that ends earlier has run nothing.
pub const READY: u8 = b'y';
/// To the launcher: an order. The program's standard input is sent with its first byte.
pub const ORDER: u8 = b'o';
/// To the launcher: send SIGTERM to the program.
pub const ASK_TO_END: u8 = b't';
/// From the launcher: a listening socket is sent with this frame; the document is a [`Listener`].
pub const LISTENER: u8 = b'l';
/// From the launcher: the program may be running from now on; the document is the launcher's
/// process id.
pub const STARTED: u8 = b's';
/// From the launcher: the last frame; the document is a [`Report`].
pub const REPORT: u8 = b'r';

/// The bytes of a frame.
#[must_use]
pub fn frame(tag: u8, document: &[u8]) -> Vec<u8> {
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEAD_BYTES + document.len());
    frame.push(tag);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(document);
    frame
}

/// The tag and length at the head of a frame.
#[must_use]
pub fn head(bytes: [u8; HEAD_BYTES]) -> (u8, usize) {
    let [tag, a, b, c, d] = bytes;
    (tag, usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX))
}

/// Sends a frame, and descriptors with it.
///
/// # Errors
/// If the socket is closed, or full and non-blocking. A part of the frame may be sent then.
pub fn send(
    to: BorrowedFd<'_>,
    tag: u8,
    document: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = frame(tag, document);
    let (mut sent, mut fds) = (0, fds);
    while sent < frame.len() {
        match send_some(to, frame.get(sent..).unwrap_or_default(), fds) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        fds = &[];
    }
    Ok(())
}

/// Sends a part of a frame, and descriptors with its first byte. Returns the number of bytes that
/// were sent.
///
/// # Errors
/// If the socket is closed, or full and non-blocking, or if there are more than [`FDS_MAX`]
/// descriptors. Nothing of `bytes` is sent then.
pub fn send_some(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !with.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(sendmsg(to, &[IoSlice::new(bytes)], &mut with, SendFlags::NOSIGNAL)?)
}

/// Fills a buffer, and appends the descriptors that are received with it to `fds`.
///
/// # Errors
/// If the socket fails or is closed before the buffer is full.
pub fn fill(from: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match receive(from, buffer.get_mut(filled..).unwrap_or_default(), fds) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives bytes, and appends the descriptors that are received with them to `fds`. Returns the
/// number of bytes; 0 = the socket is closed.
///
/// # Errors
/// If the socket fails, or is empty and non-blocking.
pub fn receive(
    from: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let received = recvmsg(from, &mut buffers, &mut with, RecvFlags::CMSG_CLOEXEC)?;
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    Ok(received.bytes)
}

/// A listening socket in a program's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Its protocol.
    pub kind: ListenerKind,
    /// The port.
    pub port: u16,
}

/// The protocol of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ListenerKind {
    /// An HTTP proxy.
    Proxy,
    /// TCP connections to any address. The local address of a connection is the program's
    /// destination.
    Stream,
    /// DNS over TCP (RFC 7766).
    DnsStream,
    /// DNS over UDP (RFC 1035).
    DnsDatagram,
}

/// The outcome of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// The program exited with this code.
    Exit(i32),
    /// This signal ended the program.
    Signal(i32),
    /// It exceeded its memory limit, and the kernel or the launcher ended it.
    MemoryLimit,
    /// It used up its processor time.
    CpuLimit,
    /// It wrote more beneath a path than it may.
    WriteLimit {
        /// The path.
        path: String,
        /// The limit, in bytes.
        bytes_max: u64,
    },
    /// It could not be started; nothing of it has run.
    Unstarted(Unstarted),
    /// The launcher itself failed after the program may have been started.
    Failed(Unstarted),
    /// The primitives of this machine.
    Primitives(Vec<Found>),
}

/// Why a program could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unstarted {
    /// The step that failed.
    pub step: String,
    /// Why it failed.
    pub cause: String,
    /// Whether the program itself is the cause: it is missing, or cannot be run.
    pub program: bool,
}

/// The result of probing one primitive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The primitive.
    pub primitive: Primitive,
    /// Why it is missing; `None` = it is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// A detail, such as a version or a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        let frame = frame(REPORT, b"{}");
        let (bytes, rest) = frame.split_first_chunk::<HEAD_BYTES>().unwrap();
        assert_eq!((head(*bytes), rest), ((REPORT, 2), &b"{}"[..]));
    }
}
