//! The frames between whoever orders and the launcher: a letter, a length, a JSON document.
//!
//! Nothing here waits for anything but the socket it is given.
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

/// Bytes before the document: the letter, and the length as four bytes, big endian.
pub const HEAD_BYTES: usize = 5;
/// Longest document: command lines and environments are bounded by the kernel at less.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Descriptors that come with one frame.
pub const FDS_MAX: usize = 3;

/// To the standing launcher: one more is wanted. Its socket, and the program's standard output and
/// standard error, come with it.
pub const NEW: u8 = b'n';
/// From the launcher: it reads its order next. Whoever orders waits for it: a launcher that ends
/// before this frame has run nothing.
pub const READY: u8 = b'y';
/// To the launcher: an order; its first byte carries the program's standard input.
pub const ORDER: u8 = b'o';
/// To the launcher: ask the program to end.
pub const ASK_TO_END: u8 = b't';
/// From the launcher: a listening socket comes with this frame; the document is a [`Listener`].
pub const LISTENER: u8 = b'l';
/// From the launcher: the program has been started; the document is the launcher's own number.
pub const STARTED: u8 = b's';
/// From the launcher: how it ended; the last frame.
pub const REPORT: u8 = b'r';

/// A frame of `document`.
#[must_use]
pub fn frame(letter: u8, document: &[u8]) -> Vec<u8> {
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEAD_BYTES + document.len());
    frame.push(letter);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(document);
    frame
}

/// The letter and length at the head of a frame.
#[must_use]
pub fn head(bytes: [u8; HEAD_BYTES]) -> (u8, usize) {
    let [letter, a, b, c, d] = bytes;
    (letter, usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX))
}

/// Sends a frame, and descriptors with it.
///
/// # Errors
/// Where the socket is gone or full.
pub fn send(
    to: BorrowedFd<'_>,
    letter: u8,
    document: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = frame(letter, document);
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

/// Sends a part of a frame, and descriptors with its first byte; gives the bytes that were sent.
///
/// # Errors
/// Where the socket is gone, or is full and does not wait: nothing of `bytes` was sent then.
pub fn send_some(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !with.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(sendmsg(to, &[IoSlice::new(bytes)], &mut with, SendFlags::NOSIGNAL)?)
}

/// Fills a buffer, and takes the descriptors that come with it.
///
/// # Errors
/// Where the socket ends before.
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

/// Receives some bytes, and the descriptors that come with them; 0 = the end.
///
/// # Errors
/// Where the socket is broken, or has nothing yet and does not wait.
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

/// A listening socket of a program's own network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// What is spoken there.
    pub kind: ListenerKind,
    /// The port.
    pub port: u16,
}

/// What is spoken at a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ListenerKind {
    /// An HTTP proxy is expected.
    Proxy,
    /// Connections to any address; their own address is where the program wanted to go.
    Stream,
    /// Names over TCP (RFC 7766).
    DnsStream,
    /// Names over UDP (RFC 1035).
    DnsDatagram,
}

/// How a launched program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// By itself, with a code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// The kernel ended it for its memory.
    MemoryLimit,
    /// It used up its processor time.
    CpuLimit,
    /// It wrote more beneath a path than it may.
    WriteLimit {
        /// The path.
        path: String,
        /// Bytes that may be there.
        bytes_max: u64,
    },
    /// It could not be started; nothing of it has run.
    Unstarted(Unstarted),
    /// The launcher itself failed after the program may have been started.
    Failed(Unstarted),
    /// What this machine has.
    Primitives(Vec<Found>),
}

/// Why a program could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unstarted {
    /// What was being done.
    pub step: String,
    /// Why it failed.
    pub cause: String,
    /// Whether the program itself is at fault: it is not there, or cannot be run.
    pub program: bool,
}

/// One primitive, and why it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The primitive.
    pub primitive: Primitive,
    /// Why it is missing; `None` = it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// What there is to say of it, such as a version or a folder.
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
